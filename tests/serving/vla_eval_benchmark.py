"""A benchmark of vla-eval, without a simulator: a line of numbers that actions add up on. Imported by vla-eval's own
command in an environment of its own, in which nothing of ``embodied`` can be imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from vla_eval.benchmarks.base import StepBenchmark, StepResult
from vla_eval.specs import IMAGE_RGB, LANGUAGE, RAW

LENGTH = 6  # control steps of an episode: a chunk and half of one


def pictures(episode: int, step: int) -> np.ndarray:
    """What both cameras see, uint8 [2, 16, 16, 3]."""
    return np.random.default_rng((episode, step)).integers(0, 256, (2, 16, 16, 3), np.uint8)


class Line(StepBenchmark):
    """Writes all actions that it got into ``file``, a line of JSON an episode.

    Args:
        sends: cameras that it has.
    """

    def __init__(self, file: str, sends: int = 2, send_wrist_image: bool = False, send_state: bool = False) -> None:
        super().__init__()
        self._file, self._sends = Path(file), sends
        self._wrist, self._state = send_wrist_image, send_state
        self._episode, self._step, self._at, self._got = 0, 0, np.zeros(8), list[list[float]]()

    def get_tasks(self) -> list[dict[str, Any]]:
        return [{"name": f"move the point to goal {number}", "suite": "line"} for number in (0, 1)]

    def reset(self, task: dict[str, Any]) -> None:
        self._episode, self._step, self._at, self._got = task["episode_idx"], 0, np.zeros(8), []

    def step(self, action: dict[str, Any]) -> StepResult:
        values = np.asarray(action["actions"])
        self._got.append(values.tolist())
        self._at[: len(values)] += values
        self._step += 1
        return StepResult(None, 0.0, self._step == LENGTH, {})

    def make_obs(self, raw_obs: Any, task: dict[str, Any]) -> dict[str, Any]:
        seen = pictures(self._episode, self._step)
        names = ["agentview", "wrist"][: self._sends if self._wrist else 1]
        obs = {"images": dict(zip(names, seen, strict=False)), "task_description": task["name"]}
        return {**obs, "states": self._at.copy()} if self._state else obs

    def get_step_result(self, step_result: StepResult) -> dict[str, Any]:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"task": self._task["name"], "episode": self._episode, "actions": self._got}) + "\n")
        return {"success": step_result.done}

    def get_action_spec(self) -> dict[str, Any]:
        return {"action": RAW}

    def get_observation_spec(self) -> dict[str, Any]:
        return {"agentview": IMAGE_RGB, "language": LANGUAGE}
