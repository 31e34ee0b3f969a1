"""Which tasks the simulators of slots have built: building one costs as much as an episode."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

from embodied.types import Episode


class BuiltTasks:
    """Remembers the tasks whose simulators have been built, the latest last, by the number of the slots that have these
    simulators (:meth:`embodied.runtime.ports.EnvPort.simulators_of`). Building one costs as much as an episode."""

    def __init__(self) -> None:
        self._built: defaultdict[int, deque[int]] = defaultdict(lambda: deque(maxlen=64))

    def pick(self, simulators: int, pending: Sequence[Episode], running: Iterable[Episode]) -> int:
        """Chooses the index of the pending episode that a slot with these simulators should take: one of a task that is
        built, else of a task that no other slot works on, else the first.

        Args:
            running: episodes of the other slots.
        """
        built = self._built[simulators]
        if built and pending[0].start.task_id == built[-1]:  # nothing to compare: always so with one task
            return 0
        busy_tasks = {episode.start.task_id for episode in running}

        def cost(index: int) -> tuple[int, int]:
            task = pending[index].start.task_id
            return (0 if task in built else 1 if task not in busy_tasks else 2), index

        best = min(range(len(pending)), key=cost)
        task = pending[best].start.task_id
        if task in built:
            built.remove(task)
        built.append(task)
        return best

    def forget(self, simulators: int) -> None:
        """Forget what has been built: a new worker has built nothing."""
        self._built[simulators].clear()
