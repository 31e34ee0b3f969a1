"""Answers in a file, where an evaluation expects a policy (``runner.answers``): the env's verifiers judge them.

A row names its problem in one of three ways, and holds one answer or several:

    {"prompt": "1+2=", "response": "3"}                                        by its prompt (or conversation)
    {"problem": 7, "task": "test.jsonl", "responses": ["3", "4"]}              by the number of its row in the task's
                                                                               file, from 0; one task need not be named
    {"start": {"task_id": 0, "init_state_id": 7, "seed": 0}, "response": "3"}  as generations/ of a run has it

A prompt beside a number or a start must be that of the problem. An env that does not know rows
(``embodied.protocols.ReadsProblems``) has its starts numbered. Answers to one problem may stand in several rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from embodied import instructions
from embodied.errors import ConfigError, DatasetError, did_you_mean
from embodied.protocols import KnowsPrompts, ReadsProblems
from embodied.rows.files import SourceFile
from embodied.rows.formats import Rows, open_rows
from embodied.run.build.given import ConfiguredEnv
from embodied.run.evaluation.non_policies import ImmediatePort, StandIn
from embodied.runtime.plan import EVAL_SEEDS
from embodied.runtime.policy.policy_port import PolicyPort, Request
from embodied.runtime.slab import Slab
from embodied.schema import EnvEvalConfig
from embodied.types import Episode, EpisodeResult, Start

Place = tuple[int, int]
"""A problem: its task, and its number in it."""


# -- the file --------------------------------------------------------------------------------------------------------


def read(path: Path, side: ConfiguredEnv) -> dict[Place, list[str]]:
    """Reads a file of answers to the env's problems: problem → its answers, in the order of the file.

    Raises:
        ConfigError: the env has several turns, or does not say its prompts and the file names no numbers.
        DatasetError: the file cannot be read, a row names no problem of the env, or holds no answer to it.
    """
    spec = side.spec
    assert side.kind.from_rows
    most = spec.action.field(1).shape[-1]  # bytes of an answer
    if side.max_steps > 1:
        raise ConfigError(
            f"{side.config.target} has up to {side.max_steps} turns, and a file holds one answer to each problem",
            "choose an env of one turn, or evaluate a model",
        )
    places, found = Places(side), dict[Place, list[str]]()
    for number, row in enumerate(_rows(path)):
        where = f"{path}, row {number}"
        texts = _texts(row, where)
        for text in texts:
            if (size := len(text.encode(errors="replace"))) > most:
                raise DatasetError(
                    f"{where}: the answer has {size:,} bytes, and the env takes {most:,}",
                    f"set env.train.max_response_bytes and env.eval.max_response_bytes to {size} or more",
                )
        found.setdefault(places.of(row, where), []).extend(texts)
    if not found:
        raise DatasetError(f"{path} has no rows", "give a file with answers in it")
    return found


def _rows(path: Path) -> Rows:
    try:
        return open_rows(SourceFile.of(path))
    except DatasetError as error:
        raise DatasetError(
            error.message, "give a .jsonl, .json, .csv or .parquet file with answers in it: answers=FILE"
        ) from error


def _texts(row: Mapping[str, Any], where: str) -> list[str]:
    given = row["responses"] if "responses" in row else [row["response"]] if "response" in row else None
    if not isinstance(given, list) or not given or not all(isinstance(text, str) for text in given):
        raise DatasetError(
            f"{where} holds no answer: {str(dict(row))[:120]}",
            'give it a text under "response", or a list of texts under "responses"',
        )
    return given


class Places:
    """Looks up the problem of the env that a row of an answers file names."""

    def __init__(self, side: ConfiguredEnv) -> None:
        self._side, self._spec = side, side.spec
        self._prompts: dict[str, Place] | None = None
        self._rows: dict[int, range | dict[int, int]] = {}  # task → rows of its starts, or row → the first start of it

    def of(self, row: Mapping[str, Any], where: str) -> Place:
        """Returns the problem that ``row`` names. Raises :class:`DatasetError` if there is none, or if the row also has
        another prompt."""
        if isinstance(start := row.get("start"), Mapping):
            place = self._numbered(start.get("task_id", 0), start.get("init_state_id"), where)
            return self._same(place, row.get("prompt"), where)
        if "problem" in row:
            place = self._numbered(self._task(row.get("task", 0), where), row["problem"], where, of_rows=True)
            return self._same(place, row.get("prompt"), where)
        if "prompt" in row:
            return self._asked(row["prompt"], where)
        raise DatasetError(
            f"{where} names no problem; it has {', '.join(map(str, row)) or 'nothing'}",
            'name it by "prompt", by "problem" (its row, from 0), or by "start" as generations/ of a run does',
        )

    def _task(self, given: Any, where: str) -> Any:
        names = self._spec.tasks
        if not isinstance(given, str):
            return given
        if given not in names:
            raise DatasetError(
                f"{where}: no task '{given}'.{did_you_mean(given, names)}", f"set task to one of: {', '.join(names)}"
            )
        return names.index(given)

    def _numbered(self, task: Any, number: Any, where: str, of_rows: bool = False) -> Place:
        counts, env = self._spec.num_init_states, self._side.env
        if not isinstance(task, int) or not 0 <= task < len(counts):
            raise DatasetError(
                f"{where}: no task {task!r}, env.eval has {len(counts)}", f"number tasks from 0 to {len(counts) - 1}"
            )
        if isinstance(number, str) and number.isdecimal():  # a CSV file has texts alone
            number = int(number)
        if of_rows and isinstance(number, int) and isinstance(env, ReadsProblems):
            if (start := self._start_of(task, number, env)) is not None:
                return task, start
            raise DatasetError(
                f"{where}: no problem {number}: none of the {counts[task]:,} of task {task} of env.eval is of that row",
                "set env.eval.data to the file that they are of, and leave out answers to rows that are not evaluated",
            )
        if not isinstance(number, int) or not 0 <= number < counts[task]:
            raise DatasetError(
                f"{where}: no problem {number!r}, task {task} of env.eval has {counts[task]:,}",
                f"number problems from 0 to {counts[task] - 1}, and set env.eval.data to the file that they are of",
            )
        return task, number

    def _start_of(self, task: int, row: int, env: ReadsProblems) -> int | None:
        if task not in self._rows:
            self._rows[task] = _by_row(env.rows(task))
        found = self._rows[task]
        if isinstance(found, range):
            return found.index(row) if row in found else None
        return found.get(row)

    def _same(self, place: Place, prompt: Any, where: str) -> Place:
        """Refuses a problem with another prompt than a row has, if it has one and the env can say its own."""
        env = self._side.env
        if prompt is None or not isinstance(env, KnowsPrompts):
            return place
        text, own = _text(prompt, where), env.prompt(start_at(place, self._side))
        if text.encode(errors="replace") != own.encode(errors="replace"):
            raise DatasetError(
                f"{where}: its prompt is {text[:120]!r}, and that of the problem which it names {own[:120]!r}",
                "set env.eval as it was when the answers were written (data, part, shuffle, template …), or name "
                "problems by prompt alone",
            )
        return place

    def _asked(self, prompt: Any, where: str) -> Place:
        text = _text(prompt, where)
        if self._prompts is None:
            self._prompts = self._all_prompts()
        if text not in self._prompts:
            raise DatasetError(
                f"{where}: no problem of env.eval has the prompt {text[:120]!r}",
                "set env.eval.data to the file of these problems, and template, system_prompt and chat of env.eval as "
                'they were when the answers were written; or name problems by number: "problem"',
            )
        return self._prompts[text]

    def _all_prompts(self) -> dict[str, Place]:
        env = self._side.env
        if not isinstance(env, KnowsPrompts):
            raise ConfigError(
                f"{self._side.config.target} cannot say prompts without a reset (embodied.protocols.KnowsPrompts)",
                'name problems by number in the file: "problem"',
            )
        starts = [(task, number) for task, count in enumerate(self._spec.num_init_states) for number in range(count)]
        return {env.prompt(start_at(place, self._side)): place for place in reversed(starts)}  # the first one stays


def _by_row(rows: Sequence[int]) -> range | dict[int, int]:
    """Row → the first start of it. A range stays one: it may be very long."""
    return rows if isinstance(rows, range) else {row: start for start, row in reversed([*enumerate(rows)])}


def _text(prompt: Any, where: str) -> str:
    """A prompt of a row as an observation holds it."""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list) or not all(isinstance(one, Mapping) for one in prompt):
        raise DatasetError(f"{where}: the prompt is {prompt!r}", "give a text, or a list of messages")
    return instructions.of_messages(prompt)


def start_at(place: Place, side: ConfiguredEnv) -> Start:
    """Returns the start of a problem in an evaluation, with the evaluation's seed."""
    task, number = place
    assert isinstance(side.config, EnvEvalConfig)
    return Start(task, number, EVAL_SEEDS + side.config.seed + number)


# -- in the place of a policy ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counts:
    """Counts of the answers in a file, and of the env's problems."""

    answers: int
    problems: int  # problems with an answer
    total: int  # problems of the env
    most: int  # answers to one problem

    @property
    def missing(self) -> int:
        """Problems without an answer."""
        return self.total - self.problems

    def __str__(self) -> str:
        few = f"; {self.missing:,} have none" if self.missing else ""
        ending = "s" if self.answers > 1 else ""
        return f"{self.answers:,} answer{ending} to {self.problems:,} of {self.total:,} problems{few}"


class FileAnswers(StandIn):
    """Stand-in for a policy that gives the answers of a file.

    Args:
        found: problem → answers to it.
    """

    def __init__(self, side: ConfiguredEnv, answers: Mapping[Place, Sequence[str]]) -> None:
        super().__init__(side.spec.action)
        self.plan: list[Episode] = []
        self._texts: dict[int, str] = {}  # answers by episode_id
        for group, place in enumerate(sorted(answers)):
            for text in answers[place]:
                self._texts[len(self.plan)] = text
                self.plan.append(Episode(len(self.plan), group, start_at(place, side)))
        most, total = max(map(len, answers.values())), sum(side.spec.num_init_states)
        self.counts = Counts(len(self.plan), len(answers), total, most)

    def over_all(self, results: Sequence[EpisodeResult]) -> float:
        """Returns the success rate with problems without an answer counted as wrong: the mean over all problems of the
        share of their answers that is right."""
        own: dict[int, list[bool]] = {}
        for result in results:
            own.setdefault(result.episode.group_id, []).append(result.success)
        return sum(sum(right) / len(right) for right in own.values()) / self.counts.total

    def summary(self, results: Sequence[EpisodeResult]) -> dict[str, object]:
        """Returns the entries that only answers of a file have in the file of results."""
        return {"answers": {**asdict(self.counts), "success_rate": self.over_all(results)}}

    def port(self, slab: Slab) -> PolicyPort:
        """Makes the policy port that gives the file's answers
        (:class:`embodied.runtime.policy.policy_port.OffersPort`)."""
        return AnswersPort(slab, self._texts)

    def describe(self) -> Mapping[str, str]:
        return {"answers": str(self.counts)}


class AnswersPort(ImmediatePort):
    """A policy port that writes the answer of each episode into its row.

    Args:
        texts: by episode.
    """

    def __init__(self, slab: Slab, texts: Mapping[int, str]) -> None:
        super().__init__(slab)
        self._texts = texts

    def answer(self, request: Request) -> None:
        instructions.write(self._texts[request.episode_id], self._slab.arrays["actions"][request.row][0])
