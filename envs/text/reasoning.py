"""The procedural tasks of the package reasoning-gym (arXiv 2505.24760), about a hundred, with their own scorers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

from embodied.errors import AssetsMissingError, ConfigError, unknown_name
from embodied.types import WorkerFacts

from ..shared.arguments import check_range
from ..shared.machine import try_in_process
from .problems import Selection, of_numbers
from .reading import Reading
from .slot import TextEnv

INSTALL = "pip install reasoning-gym==0.1.25, or 'embodied-rl[text]' which brings it along"
SCORED = ({"name": "reasoning_gym"},)
_EVAL_SEED = 2**30  # added to the seed of evaluation problems
_UNKNOWN, _REFUSED, _MADE = "unknown ", "refused ", "made"
_TRIAL = f"""
import json, sys
from reasoning_gym import create_dataset
from reasoning_gym.factory import DATASETS
for task, options in json.loads(sys.argv[1]).items():
    if task not in DATASETS:
        print("found {_UNKNOWN}" + json.dumps([task, sorted(DATASETS)])); break
    try:
        create_dataset(task, size=1, seed=0, **options)[0]
    except Exception as error:
        print("found {_REFUSED}" + json.dumps([task, f"{{type(error).__name__}}: {{error}}"])); break
else:
    print("found {_MADE}")
"""


class ReasoningEnv(TextEnv):
    """A text env of reasoning-gym's tasks, each with starts of its own.

    A problem is a function of task, options, ``seed`` and number. Evaluation starts take other seeds than training
    starts; in a task with few possible problems, equal ones can occur all the same.

    Args:
        tasks: name → options, as ``reasoning_gym.create_dataset(name, **options)`` takes them, e.g. ``{chain_sum:
            {min_terms: 2, max_terms: 3}, gsm_symbolic: {}}``.
        count: problems of each task.
        dataset_seed: other seeds give other problems. Problem n is drawn from seed + n: choose seeds that lie further
            apart than ``count``.
        success_at: score from which on a response is right.
        verifier: None = the scorer of the task; its score is the reward.
        system_prompt, chat, template, max_prompt_bytes, max_response_bytes: as those of
            :class:`embodied.envs.text.env.MathEnv`.

    Raises:
        AssetsMissingError: reasoning-gym is not installed.
        ConfigError: no task, or an option out of range. ``preflight`` raises it for what a task does not take.
    """

    def __init__(
        self,
        tasks: Mapping[str, Mapping[str, Any] | None] | None = None,
        count: int = 10_000,
        dataset_seed: int = 0,
        success_at: float = 1.0,
        verifier: Any = None,
        system_prompt: str | None = None,
        chat: bool = False,
        template: str | None = None,
        max_prompt_bytes: int = 4096,
        max_response_bytes: int = 4096,
    ) -> None:
        if not tasks:
            raise ConfigError(
                "env.train.tasks is not set: no task of reasoning-gym",
                "set env.train.tasks={chain_sum:{min_terms:2}} and env.eval.tasks the same",
            )
        _check_numbers(count, dataset_seed)
        self._tasks = {name: dict(options or {}) for name, options in tasks.items()}
        reading = Reading(
            system_prompt=system_prompt, chat=chat, template=template, max_prompt_bytes=max_prompt_bytes,
            needs_answer=False,
        )  # fmt: skip
        sources = [
            of_numbers(name, Entries(name, _as_key(options), count, dataset_seed), reading, Selection())
            for name, options in self._tasks.items()
        ]
        parts = [{**part, "success_at": success_at} for part in SCORED] if verifier is None else verifier
        super().__init__(sources, parts, max_prompt_bytes, max_response_bytes)

    def preflight(self) -> None:
        """Makes a problem of each task, in a process of its own.

        Raises:
            UnknownNameError: there is no such task.
            ConfigError: a task does not take its options.
        """
        _try(self._tasks, "env.train.tasks")

    def prepare(self) -> WorkerFacts:
        """Imports reasoning-gym, so that helper processes that are forked from this one have it."""
        for name, options in self._tasks.items():
            data_set(name, _as_key(options), 1, 0)
        return super().prepare()


def demonstrations(
    tasks: Mapping[str, Mapping[str, Any] | None], count: int = 1000, dataset_seed: int = 0
) -> list[dict[str, str]]:  # fmt: skip
    """Makes demonstrations for supervised learning: rows of question and reference answer, of training problems alone.
    The tasks take turns.

    Args:
        tasks, dataset_seed: as those of :class:`ReasoningEnv`.
        count: problems of each task.

    Raises:
        AssetsMissingError: reasoning-gym is not installed.
        UnknownNameError: there is no such task.
        ConfigError: ``count`` or ``dataset_seed`` is out of range, or a task does not take its options.
    """
    _check_numbers(count, dataset_seed)
    given = {name: dict(options or {}) for name, options in tasks.items()}
    _try(given, "data.options.tasks")
    made = [Entries(name, _as_key(options), count, dataset_seed) for name, options in given.items()]
    rows = (entries[number] for number in range(count) for entries in made)
    return [{"prompt": row["prompt"], "response": row["answer"]} for row in rows]


@dataclass(frozen=True)
class Scorer:
    """The scorer of a reasoning-gym task. It is small when it is pickled: the task is made where it is called."""

    task: str
    options: str  # JSON

    def __call__(self, answer: str, entry: Mapping[str, Any]) -> float:
        """The score of an answer, from 0 to 1."""
        return float(data_set(self.task, self.options, 1, 0).score_answer(answer=answer, entry=entry))


class Entries:
    """Rows of a reasoning-gym task: question, answer, and what its scorer needs.

    Args:
        options: JSON.
    """

    def __init__(self, task: str, options: str, count: int, seed: int) -> None:
        self._task, self._options, self._count, self._seed = task, options, count, seed

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> dict[str, Any]:
        entry = data_set(self._task, self._options, self._count, self._seed)[number]
        return {
            "prompt": entry["question"], "answer": entry["answer"], "entry": entry,
            "scorer": Scorer(self._task, self._options),
        }  # fmt: skip

    def __iter__(self) -> Any:
        return (self[number] for number in range(len(self)))

    def for_evaluation(self) -> Entries:
        """Returns the same task with other seeds, for evaluations."""
        return Entries(self._task, self._options, self._count, self._seed + _EVAL_SEED)


@cache  # the configuration's tasks, each for training, for evaluation and for its scorer
def data_set(task: str, options: str, count: int, seed: int) -> Any:
    """Makes a reasoning-gym data set. It draws problem n from seed + n when it is asked for it.

    Args:
        options: JSON.
    """
    from reasoning_gym import create_dataset

    return create_dataset(task, size=count, seed=seed, **json.loads(options))


def _try(tasks: Mapping[str, Mapping[str, Any]], key: str) -> None:
    worked, answer = try_in_process(_TRIAL, [json.dumps(tasks)], {}, "found ")
    if not worked:
        raise AssetsMissingError(f"reasoning-gym cannot be used: {answer}", INSTALL)
    if answer.startswith(_UNKNOWN):
        task, known = json.loads(answer.removeprefix(_UNKNOWN))
        raise unknown_name("task of reasoning-gym", task, known, f"a key of {key}")
    if answer.startswith(_REFUSED):
        task, why = json.loads(answer.removeprefix(_REFUSED))
        raise ConfigError(
            f"{key}.{task}: reasoning-gym refuses {tasks[task]}: {why}",
            f"give options that the configuration of '{task}' in reasoning-gym has",
        )


def _check_numbers(count: int, dataset_seed: int) -> None:
    check_range("env.train.count", count, 1, _EVAL_SEED)
    check_range("env.train.dataset_seed", dataset_seed, 0, _EVAL_SEED)
    if find_spec("reasoning_gym") is None:
        raise AssetsMissingError("the Python package 'reasoning-gym' is not installed", INSTALL)


def _as_key(options: Mapping[str, Any]) -> str:
    return json.dumps(options, sort_keys=True)
