"""A fake env of texts: a made-up problem, an answer, a verdict."""

from __future__ import annotations

import os
import time

import numpy as np

from embodied import instructions
from embodied.lib.host_memory import SimulatorMemory
from embodied.testing.env import WORKER
from embodied.types import ArraySpec, EnvSpec, Obs, Start, StepResult, TextAction, WorkerFacts


class FakeTextEnv:
    """Asks for a letter; the reward is the share of the answer's characters that are this letter.

    Args:
        num_problems: initial states; each asks for one of the letters a, b, c in turn.
        turns: answers of an episode. Each observation is the transcript so far.
        think_s: seconds that a verdict takes.
    """

    def __init__(self, num_problems: int = 6, turns: int = 1, max_bytes: int = 12, think_s: float = 0.0) -> None:
        self._turns, self._think_s = turns, think_s
        prompt = 8 + turns * (max_bytes + 1)
        self._spec = EnvSpec(
            obs={instructions.FIELD: ArraySpec((prompt,), "uint8")},
            cameras=(),
            action=TextAction(max_bytes),
            tasks=("write one letter",),
            num_init_states=(num_problems,),
            max_episode_steps=turns,
            control_hz=1.0,
            info=(instructions.ANSWER,),
        )
        self._transcript, self._letter, self._turn = "", "a", 0

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def preflight(self) -> None: ...

    def host_memory(self) -> SimulatorMemory:
        return SimulatorMemory(WORKER, (0,))

    def prepare(self) -> WorkerFacts:
        return WorkerFacts(os.getpid(), "none", "texts need none")

    def reset(self, start: Start) -> None:
        self._letter, self._turn = "abc"[start.init_state_id % 3], 0
        self._transcript = self.prompt(start)

    def prompt(self, start: Start) -> str:
        return f"#{start.init_state_id % 1000} {'abc'[start.init_state_id % 3]}"

    def step(self, action: np.ndarray) -> StepResult:
        time.sleep(self._think_s)
        answer = instructions.read(action)
        self._transcript += f"\n{answer}"
        self._turn += 1
        reward = answer.count(self._letter) / max(len(answer), 1)
        info = {instructions.ANSWER: instructions.answer_code(answer)}
        return StepResult(reward, self._turn == self._turns, reward == 1.0, info)

    def observe(self, out: Obs) -> None:
        instructions.write(self._transcript, out[instructions.FIELD])

    def frame(self) -> np.ndarray:
        return np.full((16, 16, 3), ord(self._letter), np.uint8)

    def get_state(self) -> tuple[str, str, int]:
        return self._transcript, self._letter, self._turn

    def set_state(self, state: tuple[str, str, int]) -> None:
        self._transcript, self._letter, self._turn = state

    def close(self) -> None: ...
