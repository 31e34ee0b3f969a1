"""Brings records from the processes that collect episodes to those that train, where a process does one of both.

    slab of each that collects ─▶ numbers of all records ─▶ score ─▶ rows that carry a gradient, once ─▶ passes
                                  (rewards, lengths, values)          (observations, decisions)

A group of episodes goes to one process that trains, whoever collected it (:attr:`EpisodeResult.learner`). It is the one
that would have collected it if all processes did both, so what is computed depends on their number alone. Both moves
are an ``all_to_all`` of all processes of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from embodied import instructions
from embodied.learn.ranks.arrived import Arrays, Arrived
from embodied.learn.ranks.balance import exchanged
from embodied.parallel.group import Group
from embodied.types import ArraySpec, EnvSpec, EpisodeResult, PolicySpec

NUMBERS = ("num_steps", "rewards", "version", "length", "value", "progress_features")
"""Fields that scoring reads of each record, as far as records have them."""


@dataclass(frozen=True)
class Dealer:
    """Moves the records of an iteration. All processes of the run make the same calls.

    Args:
        fields: of a record.
        texts: the tokens of answers count among the numbers.
    """

    world: Group
    env: EnvSpec
    policy: PolicySpec
    fields: Mapping[str, ArraySpec]
    texts: bool = False

    def deal(self, slab: Arrays, results: Sequence[EpisodeResult]) -> tuple[Arrived, list[EpisodeResult]]:
        """Moves the numbers of all records.

        Args:
            slab: of this process; empty where no episodes are collected.
            results: of all processes, in the plan's order.

        Returns:
            this process's records to train on, and the results with the train rank that has them and their rows there.
        """
        train, size = self.world.of("train"), self.world.size
        used = [[*result.rows, *([result.final_row] if result.final_row >= 0 else [])] for result in results]
        counts, begins = np.zeros((size, size), np.int64), list[int]()  # [from, to]
        for result, rows in zip(results, used, strict=True):
            to = train.members[result.learner]
            begins.append(int(counts[result.rank, to]))
            counts[result.rank, to] += len(rows)
        before = np.cumsum(counts, axis=0) - counts  # rows that others' records take first
        moved, own = [], list[tuple[int, int, int]]()
        for result, rows, begin in zip(results, used, begins, strict=True):
            to = train.members[result.learner]
            first = int(before[result.rank, to]) + begin
            there = tuple(range(first, first + len(rows)))
            final = there[-1] if result.final_row >= 0 else -1
            moved.append(
                replace(result, rank=result.learner, rows=there[: len(result.rows)], final_row=final, leases=())
            )
            if to == self.world.rank:
                own += [(place, result.rank, row) for place, row in zip(there, rows, strict=True)]
        sent = self._rows_sent(results, used)
        arrays = self._moved(slab, self._numbers, sent, counts)
        places = np.array([(source, row) for _, source, row in sorted(own)], np.int64).reshape(-1, 2)
        later = {
            name: np.zeros((len(places), *self.fields[name].shape), self.fields[name].dtype) for name in self._read
        }
        return Arrived({**arrays, **later}, places, size, partial(self.fetched, slab)), moved

    def serve(self, slab: Arrays) -> None:
        """Takes part in the one :meth:`Arrived.fetch` of an update, in a process that does not train."""
        self.fetched(slab, [np.zeros(0, np.int64)] * self.world.size)

    def fetched(self, slab: Arrays, wanted: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Fetches what passes read of records: arrays [m, …], by the process that they come from.

        Args:
            wanted: rows of each process's slab, int64 each.
        """
        everyones, own = self.world.gather(wanted), self.world.rank
        counts = np.array([[len(rows[source]) for rows in everyones] for source in range(self.world.size)], np.int64)
        return self._moved(slab, self._read, np.concatenate([rows[own] for rows in everyones]), counts)

    def _rows_sent(self, results: Sequence[EpisodeResult], used: Sequence[Sequence[int]]) -> np.ndarray:
        """This process's rows in the order of the processes that they go to, then of the plan: int64."""
        mine = [
            (result.learner, rows) for result, rows in zip(results, used, strict=True) if result.rank == self.world.rank
        ]
        return np.array([row for _, rows in sorted(mine, key=lambda one: one[0]) for row in rows], np.int64)

    def _moved(self, slab: Arrays, names: Sequence[str], sent: np.ndarray, counts: np.ndarray) -> dict[str, np.ndarray]:
        """Exchanges fields of records; ``counts`` int64 [size, size] go from a process to another."""
        rank, found = self.world.rank, {}
        for name in names:
            spec = self.fields[name]
            array = slab[name] if slab else np.zeros((1, *spec.shape), spec.dtype)
            found[name] = exchanged(array, sent, counts[rank].tolist(), counts[:, rank].tolist(), self.world)
        return found

    @property
    def _numbers(self) -> list[str]:
        return [name for name in (*NUMBERS, *(["tokens"] if self.texts else [])) if name in self.fields]

    @property
    def _read(self) -> list[str]:
        """Fields that passes read and that are no numbers."""
        told = [] if instructions.FIELD in self.env.obs else ["task_id"]
        return [name for name in (*self.env.obs, *self.policy.decision, *told) if name not in self._numbers]
