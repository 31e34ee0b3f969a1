"""Records demonstrations over the env port: one attempt of the expert after another, in every slot.

    tasks (attempt, start) ──RESET──▶ slot ──EXPERT──▶ slot ──EXPERT … ended ──▶ (attempt, Recording or None)
            ▲                          │ Lost
            └── the attempt is redone ─┘

What :mod:`embodied.runtime.worker.expert` leaves in a slot's row is copied before the slot acts again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence

import numpy as np

from embodied.data.lerobot.writer import Recording
from embodied.runtime.channel import Command, Completion, Kind
from embodied.runtime.ports import EnvPort, Event, Lost, not_redone
from embodied.runtime.slab import Slab
from embodied.runtime.worker.expert import ENDS, ExpertJob
from embodied.types import Start

Task = tuple[int, Start]
"""Number of an attempt, and where it starts."""


class Recorder:
    """Records demonstrations: runs scripted experts from starts, one attempt at a time in each slot.

    Args:
        port: its workers have an :class:`embodied.runtime.worker.expert.ExpertJob`.
        slab: has the fields of :func:`embodied.runtime.worker.expert.expert_fields`, and one row a slot.
        max_steps: control steps of an attempt at most.
        job: that of the port's workers; None: an attempt without mistakes.
        retry_safe: True: a lost attempt is redone; False: its loss ends the recording.
    """

    def __init__(self, port: EnvPort, slab: Slab, max_steps: int, retry_safe: bool = True, job: ExpertJob | None = None
    ) -> None:  # fmt: skip
        self._port, self._slab, self._max_steps, self._retry_safe = port, slab, max_steps, retry_safe
        self._job = job
        self._idle = deque(port.up)
        self._running: dict[int, _Attempt] = {}  # attempts by slot
        self._lost: deque[Task] = deque()  # tasks to be redone, before any other
        self._exhausted = False  # there are no more tasks
        self._failures: Counter[int] = Counter()  # failures of workers, by the attempt that they were busy with

    def results(self, tasks: Iterator[Task]) -> Iterator[tuple[int, Recording | None]]:
        """Yields ``(attempt, recording)`` of every task as it ends; the recording is None if the attempt failed. A
        deliberate mistake (:meth:`ExpertJob.mistaken`) has failed if the step limit ended it.

        Raises:
            WorkerError: a worker failed too often in a row, or an attempt has ended too many workers.
        """
        self._start(tasks)
        while self._running or self._lost or not self._exhausted:
            ended = self._take(self._port.recv(1))
            self._start(tasks)  # starts come before the results are used, so that no slot waits for their use
            yield from ended

    def _start(self, tasks: Iterator[Task]) -> None:
        while self._idle:
            task = self._lost.popleft() if self._lost else next(tasks, None)
            if task is None:
                self._exhausted = True
                break
            slot, (attempt, start) = self._idle.popleft(), task
            self._running[slot] = _Attempt(task, [*self._slab.fields])
            command = Command(
                Kind.RESET, slot, task_id=start.task_id, init_state_id=start.init_state_id, seed=start.seed,
                max_steps=self._max_steps, attempt=attempt,
            )  # fmt: skip
            self._port.send(command)
        self._port.flush()

    def _take(self, events: Sequence[Event]) -> list[tuple[int, Recording | None]]:
        ended = []
        for event in events:
            if isinstance(event, Completion):
                ended += self._complete(event)
            elif isinstance(event, Lost):
                self._lose(event)
            else:
                self._idle.append(event.slot)
        return ended

    def _complete(self, done: Completion) -> list[tuple[int, Recording | None]]:
        attempt = self._running[done.slot]
        if done.kind == Kind.EXPERT:
            attempt.copy(self._slab, done.slot, done.num_steps)
        if not done.ended:
            self._port.send(Command(Kind.EXPERT, done.slot, row=done.slot))
            return []
        del self._running[done.slot]
        self._idle.append(done.slot)
        number = attempt.task[0]
        mistaken = self._job is not None and self._job.mistaken(number)
        return [(number, attempt.recording(self._max_steps if mistaken else None))]

    def _lose(self, lost: Lost) -> None:
        if lost.slot in self._idle:
            self._idle.remove(lost.slot)
        attempt = self._running.pop(lost.slot, None)
        if attempt is None:
            return
        if not self._retry_safe:
            raise not_redone(f"attempt {attempt.task[0]}", lost) from lost.error
        self._lost.append(attempt.task)
        if lost.suspects:
            number = attempt.task[0]
            self._failures[number] += 1
            self._port.blame(lost, number, self._failures[number])


class _Attempt:
    """Steps of an attempt so far: for each field of the slab, parts of [steps, …]."""

    def __init__(self, task: Task, fields: Sequence[str]) -> None:
        self.task = task
        self._parts: dict[str, list[np.ndarray]] = {name: [] for name in fields if name not in _ELSEWHERE}
        self._files: list[list[bytes]] = []  # [steps][C]

    def copy(self, slab: Slab, row: int, steps: int) -> None:
        """Copy the first ``steps`` control steps of a row."""
        arrays = slab.arrays
        for name, parts in self._parts.items():
            parts.append(arrays[name][row, :steps].copy())
        if "pictures" in arrays:
            files, sizes = arrays["pictures"][row], arrays["picture_bytes"][row, :steps].tolist()
            self._files += [[files[k, c, :n].tobytes() for c, n in enumerate(own)] for k, own in enumerate(sizes)]

    def recording(self, limit: int | None = None) -> Recording | None:
        """The episode, if it ended with success or, given a ``limit``, before that many control steps."""
        fields = {name: np.concatenate(parts) for name, parts in self._parts.items()}
        actions, rewards, successes = (fields.pop(name) for name in ("actions", "rewards", "successes"))
        done = len(successes) and (successes[-1] or (limit is not None and len(successes) < limit))
        if not done:
            return None
        columns = [list(column) for column in zip(*self._files, strict=True)]
        number, start = self.task
        return Recording(start, number, columns, fields, actions, rewards, successes)


_ELSEWHERE = ("pictures", "picture_bytes", *ENDS)
