"""A slot of an env whose problems and responses are text: what all envs of texts share.

A problem is a start, a response is the answer to one observation, and verifying it is the control step.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np

from embodied import instructions
from embodied.lib.host_memory import SimulatorMemory
from embodied.types import ArraySpec, EnvSpec, Obs, Start, StepResult, TextAction, WorkerFacts

from ..shared.arguments import check_range
from .picture import draw
from .problems import Source
from .reading import Prompt, text_of
from .verdict import Problem, Verdict, Verifier

MAX_BYTES = 1 << 20
PLAIN, LOADED = 22 * 2**20, 66 * 2**20
"""Bytes of a worker, and of one whose verifier has a time limit: sympy, and a process that is watched. Slots share
them."""


@dataclass(frozen=True)
class Progress:
    """State of a running text episode."""

    start: Start
    prompt: Prompt  # present prompt of the policy
    turn: int = 0  # responses so far
    response: str | None = None  # the last one
    verdict: Verdict | None = None


class TextEnv:
    """One slot of a text env: asks a problem of its sources, and verifies the response.

    Args:
        sources: a task each.
        verifier: parts for ``make_verifier`` of :mod:`embodied.envs.text.verifiers`, or a verifier.
        max_prompt_bytes: P, of an observation.
        max_response_bytes: L, of an action.
        max_turns: responses of an episode at most.
        pictures: how many an observation holds, and how many pixels each side of them has; None = it has none.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        verifier: Sequence[Mapping[str, Any]] | Verifier,
        max_prompt_bytes: int,
        max_response_bytes: int,
        max_turns: int = 1,
        pictures: tuple[int, int] | None = None,
    ) -> None:
        check_range("env.train.max_response_bytes", max_response_bytes, 1, MAX_BYTES)
        self._sources = sources
        self._verify = _verifier(verifier)
        obs = {instructions.FIELD: ArraySpec((max_prompt_bytes,), "uint8")}
        if pictures is not None:
            count, size = pictures
            obs[instructions.PICTURES] = ArraySpec((count, size, size, 3), "uint8")
        self._spec = EnvSpec(
            obs=obs,
            cameras=(),
            action=TextAction(max_response_bytes),
            tasks=tuple(source.name for source in sources),
            num_init_states=tuple(len(source) for source in sources),
            max_episode_steps=max_turns,
            control_hz=1.0,
            info=(instructions.ANSWER, instructions.FAILURES),
        )
        self._problem = Problem("", None, {}, -1)
        self._progress = Progress(Start(0, 0, 0), "")
        self._pixels = np.zeros((0, 0, 0, 3), np.uint8)  # pixels of the problem's pictures

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def host_memory(self) -> SimulatorMemory:
        """Says what a worker takes (:class:`embodied.protocols.SaysMemory`) with verifiers of ours."""
        return SimulatorMemory(LOADED if self.longest_step_s else PLAIN, (0,))

    @property
    def longest_step_s(self) -> float:
        """The longest time that verifying may take, seconds."""
        return float(getattr(self._verify, "longest_s", 0.0))

    @property
    def skipped_problems(self) -> int:
        """Rows of all sources that are no problems, or whose prompts are too long."""
        return sum(source.skipped for source in self._sources)

    def preflight(self) -> None:
        """Does nothing: the constructor has read the data's index and says what is wrong with it."""

    def prepare(self) -> WorkerFacts:
        """Loads what verdicts need. Says how many problems each source has, and which rows were skipped."""
        if isinstance(self._verify, Loads):
            self._verify.load()
        extra = {
            f"problems of {source.name}": "; ".join((f"{len(source):,}", *source.notes)) for source in self._sources
        }
        return WorkerFacts(os.getpid(), "Pillow", "draws prompt and response into videos", extra)

    def reset(self, start: Start) -> None:
        self._ask(start)
        self._progress = Progress(start, self._problem.prompt)

    def _ask(self, start: Start) -> None:
        """Reads the problem of a start. Its verifier, which may be another process, gets it without pictures."""
        problem, field = self._problem_of(start), self._spec.obs.get(instructions.PICTURES)
        if field is not None:
            self._pixels = self._sources[start.task_id].pixels(problem, field.shape[1])
        self._problem = replace(problem, pictures=())

    def _problem_of(self, start: Start) -> Problem:
        check_range("task_id of a start", start.task_id, 0, len(self._sources) - 1)
        check_range("init_state_id of a start", start.init_state_id, 0, self._spec.num_init_states[start.task_id] - 1)
        return self._sources[start.task_id].problem(start.init_state_id, start.seed)

    def prompt(self, start: Start) -> str:
        """Returns the prompt of a start, as an observation holds it."""
        return text_of(self._problem_of(start).prompt)

    def rows(self, task_id: int) -> Sequence[int]:
        """Returns, for each start of a task, the number of its row in the source."""
        numbers = self._sources[task_id].numbers
        return numbers if isinstance(numbers, range) else numbers.tolist()

    def step(self, action: np.ndarray) -> StepResult:
        return self._judge(instructions.read(action))

    def _judge(self, response: str) -> StepResult:
        """Verifies the response, which ends the episode."""
        verdict = self._verify(replace(self._problem, asked=self._progress.prompt), response)
        turn = self._progress.turn + 1
        self._progress = replace(self._progress, turn=turn, response=response, verdict=verdict)
        info = {
            instructions.ANSWER: instructions.answer_code(verdict.answer),
            instructions.FAILURES: verdict.failures,  # it raised, gave no number, or did not end
        }
        return StepResult(verdict.reward, terminated=True, success=verdict.success, info=info)

    def observe(self, out: Obs) -> None:
        instructions.write(text_of(self._progress.prompt), out[instructions.FIELD])
        if instructions.PICTURES in self._spec.obs:
            shown = out[instructions.PICTURES]
            shown[: len(self._pixels)] = self._pixels
            shown[len(self._pixels) :] = 0

    def frame(self) -> np.ndarray:
        """A picture of prompt, response and verdict, uint8 [540, 960, 3]."""
        now, verdict, success = self._progress, None, False
        if now.verdict is not None:
            success = now.verdict.success
            expected = "" if self._problem.answer is None else f"   expected: {str(self._problem.answer)[:80]}"
            verdict = f"{'right' if success else 'wrong'}, reward {now.verdict.reward:g}{expected}"
        return draw(_shown(now.prompt), now.response, verdict, success)

    def get_state(self) -> Progress:
        return self._progress

    def set_state(self, state: Progress) -> None:
        self._ask(state.start)
        self._progress = state

    def close(self) -> None:
        """Ends the verifier's helper processes. Other slots of the process that use them start them again."""
        if isinstance(self._verify, Closes):
            self._verify.close()


@runtime_checkable
class Loads(Protocol):
    """Interface of a verifier that imports or reads something before its first verdict."""

    def load(self) -> None:
        """Imports or reads what verdicts need."""


@runtime_checkable
class Closes(Protocol):
    """Interface of a verifier with processes of its own."""

    def close(self) -> None:
        """Ends the verifier's processes."""


def _verifier(given: Sequence[Mapping[str, Any]] | Verifier) -> Verifier:
    return given if callable(given) else _shared_verifier(as_json(given))


def as_json(parts: Sequence[Mapping[str, Any]]) -> str:
    """Encodes a verifier's configuration as one text, to compare it with others."""
    return json.dumps(parts, default=list)


@lru_cache(maxsize=16)
def _shared_verifier(parts: str) -> Verifier:
    """Makes a verifier that all slots of a process share. They verify one after another, and a verifier may have a
    process of its own."""
    from .verifiers import make_verifier

    return make_verifier(json.loads(parts))


def _shown(prompt: Prompt) -> str:
    """A prompt for people."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"[{message['role']}] {message['content']}" for message in prompt)
