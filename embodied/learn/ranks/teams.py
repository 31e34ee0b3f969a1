"""Gives the processes of a team the records of all of them (``actor.model.context_parallel_size``).

    slab of each process ─▶ rows of its episodes ─▶ exchange within the team ─▶ arrays of the team, the same in each

From there on a team is what a process is without teams: it has records, and ``rank`` of a result is the team's number
(:mod:`embodied.parallel.teams`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from embodied.learn.batch import Batch
from embodied.learn.ranks.balance import exchanged
from embodied.learn.score.batches import places_of
from embodied.parallel.sharding import Replicas
from embodied.types import EpisodeResult


def of_team(
    arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult], parallel: Replicas
) -> tuple[Mapping[str, np.ndarray], Sequence[EpisodeResult]]:  # fmt: skip
    """The records of this process's team, and the results with the teams that have their records, and the rows there.
    All ranks call it.

    Args:
        arrays: of this rank's slab.
        results: of all ranks.
    """
    team = parallel.teams.team
    if team.size == 1:
        return arrays, results
    used = [[*result.rows, *([result.final_row] if result.final_row >= 0 else [])] for result in results]
    counts = np.zeros(parallel.world.size, np.int64)
    for result, rows in zip(results, used, strict=True):
        counts[result.rank] += len(rows)
    by_team = counts.reshape(-1, team.size)
    begins = (np.cumsum(by_team, axis=1) - by_team).reshape(-1)  # next row of each rank in its team's arrays
    moved = []
    for result, rows in zip(results, used, strict=True):
        there = range(int(begins[result.rank]), int(begins[result.rank]) + len(rows))
        begins[result.rank] += len(rows)
        final = there[-1] if result.final_row >= 0 else -1
        number = parallel.teams.of(result.rank)
        moved.append(replace(result, rank=number, rows=tuple(there[: len(result.rows)]), final_row=final))
    pairs = zip(results, used, strict=True)
    own = np.asarray([row for result, rows in pairs if result.rank == parallel.world.rank for row in rows], np.int64)
    sent, to, of = np.tile(own, team.size), [len(own)] * team.size, by_team[parallel.group.rank].tolist()
    return {name: exchanged(array, sent, to, of, team) for name, array in arrays.items()}, moved


def where_collected(batch: Batch, results: Sequence[EpisodeResult], parallel: Replicas) -> Batch:
    """The batch of ``results`` with the ranks that have collected its records, and the rows of their slabs."""
    if parallel.teams.team.size == 1:
        return batch
    ranks, rows = places_of(results)
    return replace(batch, ranks=ranks, rows=rows)
