"""What simulators take of a machine's memory: values that an env says (:class:`embodied.protocols.SaysMemory`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ForkMemory:
    """Private memory of a worker that was forked from a process with its simulator, bytes."""

    imports: int  # what a fork writes of the imports that it inherits
    slot: int = 0  # what a fork of a process with built tasks takes, …
    task: int = 0  # … and what each of these tasks adds
    built: bool = False  # the process builds tasks before it forks; False = it imports alone


@dataclass(frozen=True)
class SimulatorMemory:
    """Host memory that an env's simulators take in a worker, bytes, as it was measured.

    Example: a worker takes 116 MB before its first task, 515 with one, 556 with two, 603 with three.

        >>> SimulatorMemory(116, (399, 440, 487)).with_tasks(5)
        581
    """

    imports: int  # a worker that has imported the simulator, before its first reset
    tasks: tuple[int, ...]  # what 1, 2, … tasks add, built and drawn; further ones add what the last did
    slot: int = 0  # what each further slot of a worker adds, for each task that it goes to
    files: int = 0  # libraries' files, which all workers of a machine share
    building: int = 0  # added for a moment while a task is built
    keeps: int | None = None  # tasks that a worker keeps, or as many as its slots are in; None = all
    rebuilding: int = 0  # added for good where a worker keeps fewer tasks than there are
    forked: ForkMemory | None = None  # None: not known
    drawn: float = 0.0  # share of ``tasks`` that lies in a GPU's memory where one draws
    addresses: tuple[int, ...] = ()  # address space of a worker with 0, 1, … tasks, as ``ulimit -v`` counts it
    slot_addresses: int = 0  # … of each further slot
    keys: Mapping[str, str] = field(default_factory=dict)  # "keeps", "tasks" → the env's key that says it
    note: str = ""  # of what the figures are, and what was not measured

    def with_tasks(self, count: int) -> int:
        """Returns what so many tasks add to a worker."""
        return _extended((0, *self.tasks), count)

    def addressed(self, tasks: int, slots: int = 1) -> int:
        """Returns the address space of a worker with so many tasks and slots; 0 if it is not known."""
        return _extended(self.addresses, tasks) + (slots - 1) * self.slot_addresses if self.addresses else 0


def _extended(values: tuple[int, ...], index: int) -> int:
    """Reads a series, which goes on as its last two values do."""
    last = len(values) - 1
    return values[min(index, last)] + max(0, index - last) * (values[last] - values[last - 1])
