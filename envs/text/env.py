"""Problems in text with answers that can be checked, as an :class:`embodied.protocols.Env`.

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
from embodied.errors import ConfigError
from embodied.types import ArraySpec, EnvSpec, Obs, Start, StepResult, TextAction, WorkerFacts

from ..shared.arguments import check_range
from .picture import draw
from .problems import Selection, Source, open_sources
from .reading import Prompt, Reading, text_of
from .verdict import Problem, Verdict, Verifier

MAX_BYTES = 1 << 20
BOXED = ({"name": "boxed"},)


@dataclass(frozen=True)
class Progress:
    """Where an episode stands."""

    start: Start
    prompt: Prompt  # what the policy is asked now
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
    """

    def __init__(
        self,
        sources: Sequence[Source],
        verifier: Sequence[Mapping[str, Any]] | Verifier,
        max_prompt_bytes: int,
        max_response_bytes: int,
        max_turns: int = 1,
    ) -> None:
        check_range("env.train.max_response_bytes", max_response_bytes, 1, MAX_BYTES)
        self._sources = sources
        self._verify = _verifier(verifier)
        self._spec = EnvSpec(
            obs={instructions.FIELD: ArraySpec((max_prompt_bytes,), "uint8")},
            cameras=(),
            action=TextAction(max_response_bytes),
            tasks=tuple(source.name for source in sources),
            num_init_states=tuple(len(source) for source in sources),
            max_episode_steps=max_turns,
            control_hz=1.0,
        )
        self._problem = Problem("", None, {}, -1)
        self._progress = Progress(Start(0, 0, 0), "")

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    @property
    def longest_step_s(self) -> float:
        """The longest time that verifying may take, seconds."""
        return float(getattr(self._verify, "longest_s", 0.0))

    def preflight(self) -> None:
        """Does nothing: the constructor has read the data's index and says what is wrong with it."""

    def prepare(self) -> WorkerFacts:
        """Says how many problems each source has, and which rows were skipped."""
        extra = {
            f"problems of {source.name}": "; ".join((f"{len(source):,} starts", *source.notes))
            for source in self._sources
        }
        return WorkerFacts(os.getpid(), "Pillow", "draws prompt and response into videos", extra)

    def reset(self, start: Start) -> None:
        self._problem = self._problem_of(start)
        self._progress = Progress(start, self._problem.prompt)

    def _problem_of(self, start: Start) -> Problem:
        check_range("task_id of a start", start.task_id, 0, len(self._sources) - 1)
        check_range("init_state_id of a start", start.init_state_id, 0, self._spec.num_init_states[start.task_id] - 1)
        return self._sources[start.task_id].problem(start.init_state_id, start.seed)

    def step(self, action: np.ndarray) -> StepResult:
        return self._judge(instructions.read(action))

    def _judge(self, response: str) -> StepResult:
        """Verifies the response, which ends the episode."""
        verdict = self._verify(self._problem, response)
        turn = self._progress.turn + 1
        self._progress = replace(self._progress, turn=turn, response=response, verdict=verdict)
        return StepResult(verdict.reward, terminated=True, success=verdict.success)

    def observe(self, out: Obs) -> None:
        instructions.write(text_of(self._progress.prompt), out[instructions.FIELD])

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
        self._problem = self._problem_of(state.start)
        self._progress = state

    def close(self) -> None:
        """Ends the verifier's helper processes. Other slots of the process that use them start them again."""
        if isinstance(self._verify, Closes):
            self._verify.close()


class MathEnv(TextEnv):
    r"""Problems of data files, or of custom data sets.

    Observation: ``instruction`` uint8 [P], the prompt, or the conversation if the data or the options make one.
    Action: uint8 [L], the response, which ends the episode. Reward and success: what the verifier says.

    Args:
        data: one or several of: a .jsonl, .json, .csv or .parquet file; a custom data set, ``path/to/file.py:Name`` or
            ``package.module:Name`` (:mod:`embodied.envs.text.custom`). Each is a task, called by the file's name.
        verifier: what responses are judged by, a list of parts: ``[{name: boxed}, {name: format, pattern: …, weight:
            0.1}]`` (:mod:`embodied.envs.text.verifiers`).
        weights: relative numbers of starts, one for each of ``data``. There are as many starts as problems in all; a
            source repeats its problems, or uses a subset drawn by ``shuffle_seed``, to have its share of them. None =
            every problem is a start.
        data_args: keyword arguments of custom data sets.
        prompt_key: column of the prompt: a text, or a list of messages.
        answer_key: column of the answer; a dot leads into a column (``reward_model.ground_truth``). None = the data has
            no answers. Rows whose prompt or answer is missing or empty are skipped; how many is said at the start.
        messages_key: column of a conversation to go on with, in place of ``prompt_key``.
        data_source_key: column that verifiers find as ``data_source`` in the problem's fields.
        system_prompt: begins the conversation, if the data does not begin it with one of its own.
        chat: a plain prompt becomes a conversation of one message (with ``system_prompt`` it always does).
        template: how a prompt, or the last message, is put: ``"{prompt}\nPut the answer into \\boxed{{}}."``. Other
            columns may be named.
        max_prompt_bytes: P. A conversation takes about 40 bytes a message more than its text.
        truncation: what happens with longer prompts: error, or cut off on the left or the right side.
        filter_overlong_prompts: leave out longer prompts. Those that have too many tokens the policy refuses.
        shuffle: number the problems in another order. Training draws its starts in random order anyway; evaluations
            take the first ones, and ``max_samples`` keeps the first ones.
        shuffle_seed: of that order.
        max_samples: use at most so many problems of each source.
        max_response_bytes: L; a policy cuts longer responses.

    Raises:
        ConfigError: an option is impossible.
        DatasetError: data is missing, empty or damaged, no row has such a column, or a prompt is too long.
        AssetsMissingError: a package is not installed, or no cache folder can be written.
    """

    def __init__(
        self,
        data: str | list[str] | None = None,
        verifier: Any = BOXED,
        weights: list[float] | None = None,
        data_args: Mapping[str, Any] | None = None,
        prompt_key: str = "prompt",
        answer_key: str | None = "answer",
        messages_key: str | None = None,
        data_source_key: str | None = None,
        system_prompt: str | None = None,
        chat: bool = False,
        template: str | None = None,
        max_prompt_bytes: int = 2048,
        truncation: str = "error",
        filter_overlong_prompts: bool = False,
        shuffle: bool = False,
        shuffle_seed: int = 0,
        max_samples: int | None = None,
        max_response_bytes: int = 4096,
    ) -> None:
        reading = Reading(
            prompt_key, answer_key, messages_key, data_source_key, system_prompt, chat, template, max_prompt_bytes,
            truncation,
        )  # fmt: skip
        selection = Selection(filter_overlong_prompts, shuffle, shuffle_seed, max_samples)
        sources = open_sources(paths_of(data), data_args or {}, reading, selection, weights)
        super().__init__(sources, verifier, max_prompt_bytes, max_response_bytes)


def paths_of(data: str | list[str] | None) -> list[str]:
    """One or several data files as a list. Raises :class:`ConfigError` if there is none."""
    if not data:
        raise ConfigError(
            "env.train.data is not set: no problems",
            "set env.train.data and env.eval.data to a .jsonl, .json, .csv or .parquet file, or a list of them",
        )
    return [data] if isinstance(data, str) else list(data)


@runtime_checkable
class Closes(Protocol):
    """A verifier with processes of its own, which it ends."""

    def close(self) -> None: ...


def _verifier(given: Sequence[Mapping[str, Any]] | Verifier) -> Verifier:
    return given if callable(given) else _shared_verifier(json.dumps(given, default=list))


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
