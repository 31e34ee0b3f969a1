"""Envs without a simulator whose cost is known: for both sides of a comparison the same work, the same pictures."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from embodied.types import ArraySpec, ContinuousAction, EnvSpec, Obs, Start, StepResult, WorkerFacts

NO_LIMIT = 10**6


class CostEnv:
    """Each control step costs ``step_s``; each observation writes all pictures anew.

    Args:
        work: ``free`` = nothing, ``busy`` = so many seconds of CPU time, ``sleep`` = wall time, log-normal with
            ``sigma`` (0 = constant) and mean ``step_s``.
        in_place: draw into the arrays that the runtime hands over; otherwise draw into own arrays and copy them.
        reset_s: bounds of a reset's duration, uniform; it sleeps.
        ends_early: share of episodes that end with success at a random step; the others run to the step limit.
    """

    def __init__(
        self, work: str = "free", step_s: float = 0.0, sigma: float = 0.0, in_place: bool = True, size: int = 224,
        cameras: int = 2, action_dim: int = 7, reset_s: tuple[float, float] = (0.0, 0.0), horizon: int = NO_LIMIT,
        ends_early: float = 0.0,
    ) -> None:  # fmt: skip
        self._work, self._step_s, self._sigma, self._in_place = work, step_s, sigma, in_place
        self._reset_s, self._horizon, self._ends_early = reset_s, horizon, ends_early
        images = ArraySpec((cameras, size, size, 3), "uint8")
        self._own = np.zeros(images.shape, np.uint8)
        self._steps, self._durations = 0, np.zeros(1)
        self._spec = EnvSpec(
            {"images": images, "state": ArraySpec((8,), "float32")}, tuple(f"camera{i}" for i in range(cameras)),
            ContinuousAction((-1.0,) * action_dim, (1.0,) * action_dim), ("nothing",), (1,), horizon, 20.0,
        )  # fmt: skip

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def preflight(self) -> None:
        pass

    def prepare(self) -> WorkerFacts:
        return WorkerFacts(os.getpid(), "none", "pictures of one colour")

    def durations(self, seed: int) -> tuple[float, np.ndarray, int]:
        """Of the episode with this seed: seconds of its reset, of each step (used in turn), steps until it ends."""
        random = np.random.default_rng([seed, 77])
        reset = random.uniform(*self._reset_s)
        steps = self._step_s * random.lognormal(-(self._sigma**2) / 2, self._sigma, 1024)
        early = random.random() < self._ends_early
        return reset, steps, int(random.integers(1, self._horizon)) if early else self._horizon

    def reset(self, start: Start) -> None:
        reset, self._durations, self._length = self.durations(start.seed)
        self._steps = 0
        if reset:
            time.sleep(reset)

    def step(self, action: np.ndarray) -> StepResult:
        if self._work == "sleep":
            time.sleep(self._durations[self._steps % len(self._durations)])
        elif self._work == "busy":
            until = time.thread_time() + self._step_s
            while time.thread_time() < until:
                pass
        self._steps += 1
        done = self._ends_early > 0 and self._steps >= self._length and self._length < self._horizon
        return StepResult(float(done), done, done)

    def observe(self, out: Obs) -> None:
        pictures = out["images"] if self._in_place else self._own
        pictures[...] = self._steps % 256
        if not self._in_place:
            out["images"][...] = self._own
        out["state"][...] = self._steps

    def frame(self) -> np.ndarray:
        return self._own[0]

    def get_state(self) -> Mapping[str, Any]:
        return {"steps": self._steps}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._steps = state["steps"]

    def close(self) -> None:
        pass
