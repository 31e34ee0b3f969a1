"""A worker's slots in which the env's expert acts, for demonstrations.

    recorder ── RESET ──▶ env.reset
    recorder ── EXPERT(row) ──▶ up to K times: expert's action ─▶ observe ─▶ env.step      all of it into the row
    recorder ◀── Completion(num_steps, ended) ──

An expert reads privileged state before each control step, so its loop runs where the simulator is. Pictures are encoded
here as well: workers spread this over the cores, and the data set holds picture files.

With mistakes, some attempts are of another thing than what was asked for; those that do it are kept as well.

With noise the executed action is the expert's plus a normal number, clipped to the range; the recorded one is the
expert's. So the states are those that a policy with errors comes to, and the actions lead back from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied.data import pictures
from embodied.observe.video.video import Video
from embodied.protocols import Env, Expert, MistakenExpert
from embodied.random import Stream, generator
from embodied.runtime.channel import Command, Completion, Kind, Ring
from embodied.runtime.slab import Slab
from embodied.runtime.worker.finite import FiniteNumbers
from embodied.runtime.worker.slot import Slot, intervention_of, start_of
from embodied.types import ArraySpec, ContinuousAction, EnvSpec

MAX_STEPS = 32
"""Most control steps of one command. With more, a hung step would be found later. With fewer, workers would wait for
the recorder while it writes files."""
ROW_BYTES = 32 << 20  # most bytes of a row that holds more than one step
ENDS = ("terminated", "truncated")
"""Fields of a step that say whether and how it ended the attempt. None does where the expert gave up."""


@dataclass(frozen=True)
class ExpertJob:
    """Settings that all attempts of a recording share.

    Args:
        seed: keys the noise; that of attempt n is a function of the seed and n.
        noise_std: standard deviation of the noise, as a share of half the action range; discrete actions have none.
        mistakes: share of the attempts in which the expert does another thing than what is asked for
            (:class:`embodied.protocols.MistakenExpert`); which ones, is a function of the seed.
    """

    seed: int
    noise_std: float
    mistakes: float = 0.0

    def mistaken(self, attempt: int) -> bool:
        """Returns whether the expert does another thing than asked for in this attempt."""
        return self.mistakes > 0 and generator(self.seed, Stream.EXPERT_MISTAKES, attempt).random() < self.mistakes


def expert_fields(spec: EnvSpec) -> dict[str, ArraySpec]:
    """Fields of a slab whose rows hold K control steps of an expert. Each step has the observation before it (pictures
    as files), the expert's action, and the step's result."""
    one = _step_fields(spec)
    steps = max(1, min(MAX_STEPS, ROW_BYTES // sum(field.nbytes for field in one.values())))
    return {name: ArraySpec((steps, *field.shape), field.dtype) for name, field in one.items()}


def _step_fields(spec: EnvSpec) -> dict[str, ArraySpec]:
    fields = {name: field for name, field in spec.obs.items() if name != "images"}
    if "images" in spec.obs:
        cameras, height, width, _ = spec.obs["images"].shape
        fields["pictures"] = ArraySpec((cameras, pictures.most_bytes(height, width)), "uint8")  # files, then padding
        fields["picture_bytes"] = ArraySpec((cameras,), "int32")
    return {
        **fields,
        "actions": ArraySpec(spec.action.field(1).shape[1:], spec.action.field(1).dtype),
        "rewards": ArraySpec((), "float32"),
        "successes": ArraySpec((), "bool"),
        **{name: ArraySpec((), "bool") for name in ENDS},
    }


class Experts:
    """Executes commands for slots that have an env with a scripted expert each, one after another."""

    def __init__(
        self, envs: Mapping[int, tuple[Env, Slot]], job: ExpertJob, slab: Slab, completions: Ring,
        next_message: Callable[[], Any],
    ) -> None:  # fmt: skip
        self._attempts = {number: _Attempt(env, slot, job, slab) for number, (env, slot) in envs.items()}
        self._completions, self._next_message = completions, next_message

    def execute(self, commands: Sequence[Command | Completion]) -> None:
        """Executes commands one after another; a command is an attempt of the expert."""
        for command in commands:
            assert isinstance(command, Command)
            began = time.monotonic()
            attempt = self._attempts[command.slot]
            if command.kind == Kind.RESET:
                attempt.begin(command, self._next_message() if command.video else None)
                done = Completion(Kind.RESET, command.slot, observed=False, began=began)
                self._completions.put(done._replace(reset_s=time.monotonic() - began))
            else:
                steps, ended = attempt.act(command.row)
                done = Completion(Kind.EXPERT, command.slot, steps, ended, observed=False, began=began)
                self._completions.put(done._replace(step_s=time.monotonic() - began))

    def close(self) -> None:
        for attempt in self._attempts.values():
            attempt.close()


class _Attempt:
    """An attempt of the expert in one slot."""

    def __init__(self, env: Env, slot: Slot, job: ExpertJob, slab: Slab) -> None:
        assert isinstance(env, Expert)
        self._slot, self._shown = slot, False
        self.env, self._expert_of, self._job, self._arrays = env, env.expert, job, slab.arrays
        self._wrong_of = env.mistaken_expert if isinstance(env, MistakenExpert) else env.expert
        spec, action = env.spec, env.spec.action
        self._range = None
        if isinstance(action, ContinuousAction):
            self._range = np.array(action.low, np.float32), np.array(action.high, np.float32)
        self._names = [name for name in spec.obs if name != "images"]
        self._numbers = FiniteNumbers(spec)
        images = spec.obs.get("images")
        self._images = None if images is None else np.zeros(images.shape, images.dtype)
        self._expert: Iterator[np.ndarray] | None = None  # made in the first step, under its deadline
        self._steps = self._max_steps = 0

    def begin(self, command: Command, video: Video | None) -> None:
        self._start = start_of(command)
        self.env.reset(self._start)
        self._shown = video is not None
        if self._shown:
            self._slot.begin(command, video)
        self._mistaken = self._job.mistaken(command.attempt)
        self._random = generator(self._job.seed, Stream.EXPERT_NOISE, command.attempt)
        self._steps, self._max_steps = 0, command.max_steps
        self._expert = None

    def act(self, row: int) -> tuple[int, bool]:
        """Let the expert act for as many control steps as the row takes. Returns how many it made, and whether the
        attempt has ended: by success, by the env, by the step limit, or because the expert gave up."""
        if self._shown:
            self._slot.begin_chunk(len(self._arrays["rewards"][row]), row)
        steps, ended = self._act(row)
        if self._shown and ended:
            self._slot.end()
        return steps, ended

    def close(self) -> None:
        """Close the env; a video that has not ended is deleted."""
        self._slot.discard_video()
        self.env.close()

    def _act(self, row: int) -> tuple[int, bool]:
        arrays = self._arrays
        if self._expert is None:
            self._expert = self._wrong_of() if self._mistaken else self._expert_of()
        most = len(arrays["rewards"][row])
        for k in range(most):
            action = next(self._expert, None)
            if action is None:
                return k, True
            self._observe(row, k)
            arrays["actions"][row, k], executed = self._disturbed(action)
            result = self.env.step(executed)
            if result.intervention is not None:
                which = f"of control step {self._steps + 1}"
                arrays["actions"][row, k] = intervention_of(result.intervention, self.env.spec, which)
            arrays["rewards"][row, k], arrays["successes"][row, k] = result.reward, result.success
            self._steps += 1
            if self._shown:
                self._slot.count(result)
            terminated = result.success or result.terminated
            truncated = not terminated and (result.truncated or self._steps == self._max_steps)
            arrays["terminated"][row, k], arrays["truncated"][row, k] = terminated, truncated
            if terminated or truncated:
                return k + 1, True
        return most, False

    def _disturbed(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The expert's action as it is recorded, and as it is executed."""
        if self._range is None:
            chosen = np.asarray(action, np.int32)[()]
            return chosen, chosen
        low, high = self._range
        action = np.clip(np.asarray(action, np.float32), low, high)
        drawn = self._random.standard_normal(len(low)).astype(np.float32)
        return action, np.clip(action + self._job.noise_std * drawn * (high - low) / 2, low, high)

    def _observe(self, row: int, k: int) -> None:
        arrays = self._arrays
        out = {name: arrays[name][row, k] for name in self._names}
        self.env.observe(out if self._images is None else {**out, "images": self._images})
        self._numbers.check(out, self._steps, self._start)
        if self._images is None:
            return
        for camera, picture in enumerate(self._images):
            file = np.frombuffer(pictures.encode(picture), np.uint8)
            arrays["pictures"][row, k, camera, : len(file)] = file
            arrays["picture_bytes"][row, k, camera] = len(file)
