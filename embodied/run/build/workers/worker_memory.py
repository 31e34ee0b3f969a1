"""Adds up the host memory of env workers, by what their env says of it. Needs no torch and no simulator.

| ``start_method`` | server | a worker |
|---|---|---|
| spawn | | imports, and the tasks that its slots are in |
| forkserver | imports | what it writes of the imports, and its tasks |
| forkserver that builds (``ForkMemory.built``) | imports and tasks | what it writes of them |

Each further slot of a worker, and libraries' files once, come on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from embodied import schema
from embodied.lib.host_memory import ForkMemory, SimulatorMemory
from embodied.parallel.group import Group
from embodied.protocols import SaysMemory
from embodied.run.build.given import ConfiguredEnv, Sides
from embodied.run.build.shares import pools_of
from embodied.run.build.workers.pools import forks
from embodied.runtime.memory import free_memory

PLAIN_WORKER = 20 * 2**20  # bytes of a worker without a simulator (benchmarks/results/start.json: 17 MB)
UNKNOWN = SimulatorMemory(PLAIN_WORKER, (0,))
SPARE = 0.2  # share of the free memory that a proposal leaves


@dataclass(frozen=True)
class WorkerMemory:
    """The env workers of a pool, with what their env says of its memory."""

    tasks: int  # that the env offers
    slots: int
    workers: int
    start_method: str
    says: SimulatorMemory = UNKNOWN

    @classmethod
    def of(cls, side: ConfiguredEnv, slots: int, workers: int, start_method: str) -> WorkerMemory:
        """Asks the env of a side."""
        says = side.env.host_memory() if isinstance(side.env, SaysMemory) else None
        return cls(len(side.spec.tasks), slots, workers, start_method, says or UNKNOWN)

    @property
    def kept(self) -> int:
        """Tasks that the fullest worker keeps."""
        return min(self.tasks, max(self.tasks if self.says.keeps is None else self.says.keeps, self.each))

    @property
    def each(self) -> int:
        """Slots of the fullest worker."""
        return -(-self.slots // self.workers)

    @property
    def _fork(self) -> ForkMemory | None:
        return None if self.start_method == "spawn" else self.says.forked

    @property
    def _tasks(self) -> int:
        """Bytes that the tasks add to a worker that builds them."""
        return self.says.with_tasks(self.kept) + (self.says.rebuilding if self._built < self.tasks else 0)

    @property
    def _built(self) -> int:
        """Tasks that a process keeps whose slots need no more: the server's."""
        return min(self.tasks, self.tasks if self.says.keeps is None else self.says.keeps)

    @property
    def server(self) -> int:
        """Bytes of the process that forks the workers."""
        fork = self._fork
        if fork is None:
            return 0
        return self.says.imports + (self.says.with_tasks(self._built) if fork.built else 0)

    @property
    def worker(self) -> int:
        """Bytes of a worker with one slot."""
        fork = self._fork
        if fork is None:
            return self.says.imports + self._tasks
        if not fork.built:
            return fork.imports + self._tasks
        others = self._tasks if self._built < self.tasks else 0  # tasks that the server has not built
        return fork.slot + fork.task * self._built + others

    @property
    def further(self) -> int:
        """Bytes of each further slot of a worker."""
        return self.says.slot * self.kept

    @property
    def all(self) -> int:
        """Bytes of all workers and the server."""
        slots = (self.slots - self.workers) * self.further
        return self.server + self.workers * self.worker + slots + self.says.files

    @property
    def at_once(self) -> int:
        """Bytes that come on top for a moment, if all workers build a task at once."""
        fork = self._fork
        one = fork is not None and fork.built and self._built == self.tasks
        return self.says.building * (1 if one else self.workers)

    @property
    def addressed(self) -> int:
        """Bytes of address space of the fullest worker; 0 if it is not known."""
        return self.says.addressed(self.kept, self.each)

    def with_workers(self, workers: int) -> WorkerMemory:
        """The same slots on at most so many workers."""
        return replace(self, workers=min(workers, self.slots))

    def with_slots(self, slots: int) -> WorkerMemory:
        """At most so many slots."""
        return replace(self, slots=min(slots, self.slots), workers=min(slots, self.workers))

    def keeping(self, tasks: int) -> WorkerMemory:
        """Workers that keep so many tasks, if the env has a key for it."""
        return replace(self, says=replace(self.says, keeps=tasks)) if "keeps" in self.says.keys else self


def memories_of(config: schema.Config, sides: Sides, processes: Group) -> list[WorkerMemory]:
    """Returns what the envs say of the workers of a process, by pool."""
    return [
        WorkerMemory.of(*pool, "forkserver" if forks(config.env, pool[0].env) else "spawn")
        for pool in pools_of(config, sides, processes)
    ]


def with_workers(config: schema.Config, sides: Sides, processes: Group) -> schema.Config:
    """Puts a number in the place of ``env.num_workers=auto``, once: what is free changes while a run starts."""
    if config.env.num_workers != "auto":
        return config
    free = free_memory()
    count = workers_that_fit(
        memories_of(config, sides, processes), None if free is None else free // processes.local_size
    )
    return config.model_copy(update={"env": config.env.model_copy(update={"num_workers": count})})


def workers_that_fit(pools: Sequence[WorkerMemory], free: int | None) -> int:
    """Returns how many workers a pool may have so that those of all fit into a part of the free memory, at least one.

    Args:
        pools: with as many workers as the cores can use.
        free: bytes; None = not known, so that all fit.
    """
    most = max((pool.workers for pool in pools), default=1)
    if free is None:
        return most
    return next((count for count in range(most, 1, -1) if _needs(pools, count) <= (1 - SPARE) * free), 1)


def _needs(pools: Sequence[WorkerMemory], count: int) -> int:
    fewer = [pool.with_workers(count) for pool in pools]
    return sum(pool.all + pool.at_once for pool in fewer)
