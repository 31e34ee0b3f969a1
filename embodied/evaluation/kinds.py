"""Success by kind and strength, of envs whose tasks are variations of others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from embodied.observe.statistics import wilson
from embodied.protocols import Env, KnowsKinds, TaskKinds
from embodied.types import Episode, EpisodeResult, Start

ALL = "all"
LOST = {"not_run": "episodes not run", "left_out": "tasks left out"}
"""Fields of rows that have columns only where something was lost, with their heads."""
NAMED = 10
"""Tasks that the console names; the file has all of them."""


@dataclass(frozen=True)
class KindSuccess:
    """Success on the tasks of a kind and strength, with the Wilson 95 % interval, in which episodes of one start
    count as one."""

    kind: str
    strength: str  # ALL: of every strength
    successes: int
    episodes: int
    success_rate: float | None  # None: no episode was run
    low: float
    high: float
    not_run: int  # planned episodes that could not be run
    left_out: int = 0  # tasks of the whole suite that this machine cannot run


def kinds_of(env: Env) -> TaskKinds | None:
    """Returns the kinds of an env's tasks; None if they have none."""
    return env.task_kinds() if isinstance(env, KnowsKinds) else None


def by_kind(
    kinds: TaskKinds, episodes: Sequence[EpisodeResult], origin: Callable[[EpisodeResult], Start]
) -> list[KindSuccess]:
    """Returns a row for each kind and one for each of its strengths, then one over all.

    Args:
        episodes: those that could not be run, too.
        origin: what is the same for episodes that are no independent trials.
    """
    strata: dict[tuple[str, str], list[EpisodeResult]] = defaultdict(list)
    for result in episodes:
        task = result.episode.start.task_id
        kind, strength = kinds.kinds[task], kinds.strengths[task]
        for key in {(kind, ALL), (kind, strength or ALL), (ALL, ALL)}:
            strata[key].append(result)
    for kind in kinds.left_out:
        strata.setdefault((kind, ALL), [])
    left_out = {(kind, ALL): count for kind, count in kinds.left_out.items()}
    left_out[ALL, ALL] = sum(kinds.left_out.values())
    return [_row(*key, strata[key], left_out.get(key, 0), origin) for key in sorted(strata, key=place)]


def place(key: tuple[str, str]) -> tuple[bool, str, bool, str]:
    """Orders rows, of which a key is kind and strength: strengths after their kind, all kinds last."""
    kind, strength = key
    return kind == ALL, kind, strength != ALL, strength


def _row(
    kind: str, strength: str, results: Sequence[EpisodeResult], left_out: int, origin: Callable[[EpisodeResult], Start]
) -> KindSuccess:
    run = [result.success for result in results if not result.not_run]
    starts = len({origin(result) for result in results if not result.not_run})
    low, high = wilson(sum(run) * starts / len(run), starts) if run else (0.0, 1.0)
    rate = sum(run) / len(run) if run else None
    return KindSuccess(kind, strength, sum(run), len(run), rate, low, high, len(results) - len(run), left_out)


def table(rows: Sequence[KindSuccess]) -> list[list[str]]:
    """Formats rows: a head, then kinds with their strengths below."""
    lost = {head: [getattr(row, name) for row in rows] for name, head in LOST.items()}
    lost = {head: counts for head, counts in lost.items() if any(counts)}
    head = ["kind", "strength", "success", "95 % interval", *lost]
    return [head, *(_cells(row, own) for row, *own in zip(rows, *lost.values(), strict=True))]


def _cells(row: KindSuccess, lost: Sequence[int]) -> list[str]:
    share = "-" if row.success_rate is None else f"{row.successes}/{row.episodes} ({row.success_rate:.0%})"
    interval = "-" if row.success_rate is None else f"{row.low:.0%} to {row.high:.0%}"
    return [row.kind, row.strength, share, interval, *(f"{count:,}" if count else "" for count in lost)]


def metrics(rows: Sequence[KindSuccess]) -> dict[str, float]:
    """Returns ``eval/kind/NAME/success_rate`` of each kind that was run."""
    return {
        f"eval/kind/{row.kind}/success_rate": row.success_rate
        for row in rows
        if row.strength == ALL and row.kind != ALL and row.success_rate is not None
    }


def facts(kinds: TaskKinds, rows: Sequence[KindSuccess], episodes: Sequence[EpisodeResult]) -> dict[str, object]:
    """Makes an evaluation file's entries: rows, names, kinds, strengths of
    tasks, and those that could not be run with why."""
    failed = {kinds.names[one.episode.start.task_id]: one.not_run for one in episodes if one.not_run}
    return {
        "kinds": [asdict(row) for row in rows], "task_names": list(kinds.names), "task_kinds": list(kinds.kinds),
        "task_strengths": list(kinds.strengths), "tasks_chosen_by": list(kinds.chosen_by), "tasks_not_run": failed,
    }  # fmt: skip


def named(kinds: TaskKinds, failed: Sequence[EpisodeResult]) -> str:
    """Names the tasks of episodes that could not be run, as the end of a sentence."""
    names = [*dict.fromkeys(kinds.names[one.episode.start.task_id] for one in failed)]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"\ntasks that could not be run: {', '.join(names[:NAMED])}{more}"


def read(rows: object) -> list[KindSuccess]:
    """Reads rows as an evaluation's file has them; none if one is not such a row."""
    try:
        found = [KindSuccess(**row) for row in _mappings(rows)]
    except TypeError:
        return []
    return found if all(map(_is_whole, found)) else []


def _is_whole(row: KindSuccess) -> bool:
    counts = (row.successes, row.episodes, row.not_run, row.left_out)
    rates = (row.low, row.high, *(() if row.success_rate is None else (row.success_rate,)))
    return (
        isinstance(row.kind, str)
        and isinstance(row.strength, str)
        and all(type(count) is int and count >= 0 for count in counts)
        and all(type(rate) in (int, float) and 0 <= rate <= 1 for rate in rates)
    )


def _mappings(rows: object) -> Iterator[Mapping[str, Any]]:
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict):
            yield row


class KindsDone:
    """Counts kinds whose episodes have all ended, for the progress line.

    Args:
        plan: all episodes.
        before: episodes of the plan that have ended.
    """

    def __init__(self, kinds: TaskKinds, plan: Sequence[Episode], before: Iterable[EpisodeResult] = ()) -> None:
        self._kinds = kinds
        self._left = Counter(kinds.kinds[episode.start.task_id] for episode in plan)
        for result in before:
            self.book(result)

    def book(self, result: EpisodeResult) -> dict[str, str]:
        """Books an episode that has ended; returns the fact for the progress line."""
        self._left[self._kinds.kinds[result.episode.start.task_id]] -= 1
        return {"kinds_done": f"{sum(left <= 0 for left in self._left.values())}/{len(self._left)}"}
