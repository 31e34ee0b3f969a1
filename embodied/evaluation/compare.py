"""Compares two evaluations: pairs their episodes by start, says which conditions differ, and whether success does.

    start = task, initial state, seed;  a task is its name, else its instruction (with its number where two are equal)

Episodes of equal starts form pairs: McNemar's exact test and Tango's interval, which need fewer episodes than rates on
different starts. Several episodes of a start count as one start with a success rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from embodied.errors import EvaluationError
from embodied.evaluation.results import MEANS, WrittenEvaluation, choosing
from embodied.observe import statistics
from embodied.observe.statistics import wilson

ABSENT = "not recorded"
ALL = "all tasks"
REMARKS = {
    "episodes_per_task": "only the starts that both have are paired", "init_states_per_task": "",
    "seed": "draws sampled actions, and initial states unless the first ones are taken",
    "reward_mode": "changes the return, not success", "reward_coef": "changes the return, not success",
    "use_rel_reward": "changes the return, not success", "env_seed": "moves the seeds of the starts",
    **dict.fromkeys((f"env.{key}" for key in MEANS), "moves no start"),
}  # fmt: skip
"""What a condition does, of those that say nothing about how hard an episode is."""

CHOOSES = "chooses tasks; those that both have are paired"
"""What a condition does that says which of an env's tasks are run, where tasks have names."""

BEFORE = {"held_out_states": 0}
"""Conditions that files of older versions do not have, with the value that they had then."""

Key = tuple[str, int, int]
"""A start in words that two evaluations share: task, initial state, seed."""


@dataclass(frozen=True)
class DifferingCondition:
    """A condition in which two evaluations differ, with both values."""

    key: str
    first: Any
    second: Any
    remark: str = ""


@dataclass(frozen=True)
class Rate:
    """Success with Wilson's 95 % interval, in which episodes of one start count as one."""

    successes: int
    episodes: int
    starts: int
    rate: float  # mean over starts
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """Success of two compared evaluations on one task, or on all, and the difference second − first with its 95 %
    interval."""

    task: str
    first: Rate
    second: Rate
    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """The comparison of a second evaluation with a first: success by task, tests, conditions that differ."""

    first: WrittenEvaluation
    second: WrittenEvaluation
    differing: Sequence[DifferingCondition]
    notes: Sequence[str]  # gaps in what is known of the conditions
    unpaired: str  # why the starts were not paired; empty if they were
    shared: int  # starts with partners
    starts: tuple[int, int]  # number of starts on each side
    tasks: Sequence[Row]
    over_all: Row
    gained: int  # starts on which the second did better; 0 if unpaired
    lost: int
    p_value: float | None  # McNemar's, or Fisher's of unpaired starts; None where there is no such test
    adjusted: float | None  # the same, by Holm, if there are several comparisons (evaluation/pairwise.py)
    over_tasks: tuple[float, float] | None  # bootstrap interval; None with one task
    more: statistics.Needed | None  # starts that both need beside those they have; None without a difference
    outcomes: Sequence[Outcomes] = ()  # what was compared: the outcomes of both sides by start
    places: tuple[int, int] = (0, 1)  # positions of both among the evaluations that are compared

    @property
    def differ(self) -> bool:
        """Returns whether success differs by more than chance: the interval excludes 0, and the test agrees."""
        row = self.over_all
        return not row.low <= 0 <= row.high and (self.adjusted is None or self.adjusted < 0.05)


def compare(
    first: WrittenEvaluation, second: WrittenEvaluation, unpaired: bool = False, same_starts: bool = False,
    seed: int = 0, z: float = statistics.Z95,
) -> Comparison:  # fmt: skip
    """Compares the second evaluation with the first. Of several comparisons see :mod:`embodied.evaluation.pairwise`.

    Args:
        unpaired: treat starts as different ones even if they are equal.
        same_starts: equally numbered starts are the same although the envs' arguments differ.
        seed: of the bootstrap.
        z: what a test must reach (:func:`embodied.observe.statistics.level`), for :attr:`Comparison.more`.

    Raises:
        EvaluationError: they share no task, or no start while ``unpaired`` is not asked for.
    """
    differing = list(differences(first, second))
    sides = keyed(first, second)
    tasks = [task for task in dict.fromkeys(key[0] for key in sides[0]) if task in {key[0] for key in sides[1]}]
    if not tasks:
        there, here = map(_few, task_names(first, second))
        raise EvaluationError(
            f"{first.name} and {second.name} have no task in common: {there} there, {here} here",
            "evaluate both on the same tasks (the same env=…)",
        )
    shared = [key for key in sides[0] if key in sides[1]]
    why = ""
    if unpaired:
        why = "as asked for (--unpaired)"
    elif not same_starts and any(_moves_starts(one.key) and one.remark != CHOOSES for one in differing):
        why = "the env's arguments differ, so starts of equal numbers may be different ones; --same-starts pairs them"
    elif not shared:
        raise EvaluationError(
            f"no episode of {second.name} has a partner in {first.name}: their tasks are the same, their starts are "
            f"not ({_example(sides[0], tasks[0])} there, {_example(sides[1], tasks[0])} here)",
            "evaluate both with the same env.eval.seed, env.eval.use_fixed_reset_state_ids and runner.seed, or compare "
            "them as rates on different starts: --unpaired",
        )
    chosen = [shared, shared] if not why else [[key for key in side if key[0] in tasks] for side in sides]
    picked = [{key: side[key] for key in keys} for side, keys in zip(sides, chosen, strict=True)]
    row = unpaired_row if why else paired_row
    by_task = {task: [_of_task(side, task) for side in picked] for task in tasks}
    rows = [row(task, *both) for task, both in by_task.items() if both[0]]  # a task may have no pairs
    over_all = row(ALL, *picked)
    gained, lost = (0, 0) if why else discordant(*picked)
    counts = [(one.first.rate * one.first.starts, one.first.starts, one.second.rate * one.second.starts,
               one.second.starts) for one in rows]  # fmt: skip
    p_value = fisher(over_all) if why else statistics.mcnemar(gained, lost)
    return Comparison(
        first, second, differing, list(_notes(first, second)), why, len(shared), (len(sides[0]), len(sides[1])), rows,
        over_all, gained, lost, p_value, p_value, statistics.bootstrap(counts, seed) if len(rows) > 1 else None,
        _more(over_all, None if why else _changes(*picked), z), picked,
    )  # fmt: skip


def rates(evaluation: WrittenEvaluation) -> list[tuple[str, Rate]]:
    """Returns success of each task of an evaluation, then over all of them."""
    own = keyed(evaluation, evaluation)[0]
    tasks = dict.fromkeys(key[0] for key in own)
    return [*((task, _rate(_of_task(own, task))) for task in tasks), (ALL, _rate(own))]


# -- conditions ------------------------------------------------------------------------------------------------------


def differences(first: WrittenEvaluation, second: WrittenEvaluation) -> Iterator[DifferingCondition]:
    """Yields the conditions that differ, but for whose weights they are. Keys of the env begin with ``env.``.
    All keys of which the protocols' hashes are made are among them."""
    told, only_chosen = set[str](), choosing(first, second)
    for one in _told_of(first, second):
        if one.key not in told:
            told.add(one.key)
            yield replace(one, remark=CHOOSES) if one.key in only_chosen else one


def _told_of(first: WrittenEvaluation, second: WrittenEvaluation) -> Iterator[DifferingCondition]:
    """Yields the same; what stands in several places of the files comes several times."""
    if first.conditions and second.conditions:
        yield from _differing(*(_flat({**side.conditions, "weights": ""}) for side in (first, second)))
    if first.env is not None and second.env is not None:
        yield from _differing(*(_arguments(side, bool(first.protocol and second.protocol)) for side in (first, second)))
    if first.protocol and second.protocol:
        yield from _differing(*({"protocol": side.protocol.get("name")} for side in (first, second)))
        yield from _differing(*(_flat(side.protocol["keys"]) for side in (first, second)))


def _arguments(side: WrittenEvaluation, known: bool) -> dict[str, Any]:
    """Arguments of the env.

    Args:
        known: whether both files say what simulated and drew; then the arguments that chose it say nothing more.
    """
    assert side.env is not None
    return {key: value for key, value in _flat(side.env, "env.").items() if not (known and _is_means(key))}


def _is_means(key: str) -> bool:
    return key.split(".")[1] in MEANS


def _moves_starts(key: str) -> bool:
    """Returns whether starts of equal numbers may be others where this condition differs."""
    return key.startswith("env.") and not _is_means(key)


def same_protocol(first: WrittenEvaluation, second: WrittenEvaluation) -> bool | None:
    """Returns whether two evaluations were made under the same protocol; None if a file does not name its protocol."""
    if not first.protocol or not second.protocol:
        return None
    return first.protocol.get("hash") == second.protocol.get("hash")


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[DifferingCondition]:
    for key in dict.fromkeys([*first, *second]):
        one, other = (side.get(key, BEFORE.get(key, ABSENT)) for side in (first, second))
        if one != other:
            yield DifferingCondition(key, one, other, REMARKS.get(key, ""))


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _notes(*sides: WrittenEvaluation) -> Iterator[str]:
    if old := [side.name for side in sides if not side.conditions]:
        yield f"an old version wrote {' and '.join(old)}: the file does not say under which conditions it was made"
    if silent := [side.name for side in sides if side.conditions and not side.protocol]:
        yield f"which simulator and renderer made {' and '.join(silent)} is not recorded"
    if same_protocol(*sides) is False and sides[0].protocol["keys"] == sides[1].protocol["keys"]:
        yield "the protocols' hashes differ although every key in the files is the same: other versions have made them"
    if unknown := [side.name for side in sides if side.env is None]:
        yield f"on which env {' and '.join(unknown)} was made is not known, so neither is whether the envs differ"
    elif inferred := [side.name for side in sides if not side.env_is_recorded]:
        yield (
            f"the env of {' and '.join(inferred)} is that of the run's config.yaml, which may be newer than the "
            "evaluation"
        )


# -- starts ----------------------------------------------------------------------------------------------------------


def keyed(first: WrittenEvaluation, second: WrittenEvaluation) -> list[dict[Key, Sequence[bool]]]:
    """Returns the outcomes of both evaluations by start. Tasks are told apart by their names if both files have them,
    else by their instructions, because the numbers of tasks depend on which were chosen; equal ones by number, too."""
    without_seed = first.starts_without_seed and second.starts_without_seed
    found: list[dict[Key, Sequence[bool]]] = []
    for side, named in zip((first, second), task_names(first, second), strict=True):
        outcomes: dict[Key, list[bool]] = {}
        for (task, state, seed), own in side.outcomes.items():
            outcomes.setdefault((named[task], state, 0 if without_seed else seed), []).extend(own)
        found.append(dict(outcomes))
    return found


def task_names(*sides: WrittenEvaluation) -> list[dict[int, str]]:
    """Returns the names of each side's tasks, by their numbers."""
    named = all(side.task_names for side in sides)
    texts = [{task: side.task_names[task] if named else text for task, text in side.tasks.items()} for side in sides]
    several = {text for own in texts for text, count in Counter(own.values()).items() if count > 1}
    return [
        {number: f"{text} (task {number})" if text in several else text for number, text in own.items()}
        for own in texts
    ]


def _of_task(side: Mapping[Key, Sequence[bool]], task: str) -> dict[Key, Sequence[bool]]:
    return {key: own for key, own in side.items() if key[0] == task}


def _few(tasks: Mapping[int, str]) -> str:
    texts = [f"'{text}'" for text in tasks.values()]
    return ", ".join(texts[:2]) + (" …" if len(texts) > 2 else "")


def _example(side: Mapping[Key, Sequence[bool]], task: str) -> str:
    _, state, seed = next(key for key in side if key[0] == task)
    return f"e.g. initial state {state}, seed {seed}"


# -- numbers ---------------------------------------------------------------------------------------------------------


Outcomes = Mapping[Key, Sequence[bool]]


def _means(side: Outcomes) -> list[float]:
    return [sum(own) / len(own) for own in side.values()]


def _rate(side: Outcomes) -> Rate:
    means = _means(side)
    low, high = wilson(min(sum(means), len(means)), len(means))
    episodes = [one for own in side.values() for one in own]
    return Rate(sum(episodes), len(episodes), len(means), sum(means) / len(means), low, high)


def paired_row(task: str, first: Outcomes, second: Outcomes) -> Row:
    """Makes the row of outcomes that have the same starts in the same order."""
    up, down = _changes(first, second)
    low, high = statistics.tango(up, down, len(first))
    return Row(task, _rate(first), _rate(second), (up - down) / len(first), low, high)


def _changes(first: Outcomes, second: Outcomes) -> tuple[float, float]:
    """By how much success rose on the starts where it rose, and fell where it fell; of one episode each these are
    numbers of starts."""
    changes = [after - before for before, after in zip(_means(first), _means(second), strict=True)]
    return sum(one for one in changes if one > 0), -sum(one for one in changes if one < 0)


def discordant(first: Outcomes, second: Outcomes) -> tuple[int, int]:
    """Counts the pairs in which the second did better, and worse."""
    pairs = [*zip(_means(first), _means(second), strict=True)]
    return sum(after > before for before, after in pairs), sum(after < before for before, after in pairs)


def unpaired_row(task: str, first: Outcomes, second: Outcomes) -> Row:
    """Makes the row of outcomes of different starts."""
    one, other = _rate(first), _rate(second)
    low, high = statistics.unpaired(one.rate * one.starts, one.starts, other.rate * other.starts, other.starts)
    return Row(task, one, other, other.rate - one.rate, low, high)


def fisher(row: Row) -> float | None:
    """Returns the p-value of a row of different starts; None if a start has several episodes."""
    one, other = row.first, row.second
    if (one.episodes, other.episodes) != (one.starts, other.starts):
        return None  # episodes of one start are no independent trials, and the test knows whole starts only
    return statistics.fisher(one.successes, one.starts, other.successes, other.starts)


def _more(row: Row, changes: tuple[float, float] | None, z: float) -> statistics.Needed | None:
    """Starts that both need beside those they have. ``changes`` are those of pairs, None if there are none."""
    one, other = row.first, row.second
    if changes is None:
        own = (one.rate * one.starts, one.starts, other.rate * other.starts, other.starts)
        return statistics.needed_unpaired(*own, z)
    needed = statistics.needed_pairs(*changes, one.starts, z)
    return needed and statistics.Needed(*(max(0, number - one.starts) for number in needed))
