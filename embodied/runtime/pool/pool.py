"""The pool of env workers: sends commands, and waits for {done, death, deadline} in one epoll.

A worker that dies is known within milliseconds (pidfd). One that misses the deadline of its phase is asked for its
stack (SIGUSR1) and killed. Its slots are reported as lost, and a fresh worker is started, which reports when it is
ready. A robot is stopped before its worker is killed, and when it has died (pool/safe_stop.py); none takes its place.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import closing

from embodied.errors import SafeStopError
from embodied.observe.video.video import Video
from embodied.perturbations import Draws
from embodied.runtime.channel import Command, Completion
from embodied.runtime.memory import proportional_memory
from embodied.runtime.pool import ending, process
from embodied.runtime.pool.placement import slots_of
from embodied.runtime.pool.process import Deadlines as Deadlines
from embodied.runtime.pool.process import PoolConfig, WorkerProcess
from embodied.runtime.pool.supervise import Supervisor
from embodied.runtime.ports import Back, Event, Lost
from embodied.runtime.slab import Slab
from embodied.types import WorkerFacts


class Pool:
    """Worker processes of this machine as an :class:`embodied.runtime.ports.EnvPort`.

    Args:
        say: given one paragraph for each worker that failed and is replaced.
        wait: return when all workers serve; else :meth:`recv` says which do.

    Raises (from the constructor and ``recv``):
        WorkerDiedError, WorkerHungError: with the worker's traceback or stack, if it failed at its first start or too
            often in a row.
        EmbodiedError: of any class that the env raised, e.g. RendererUnavailableError.
        SafeStopError: (from ``close``, too) a robot may still move.
    """

    def __init__(
        self, config: PoolConfig, slab: Slab, say: Callable[[str], None] = lambda text: None, wait: bool = True
    ) -> None:
        self._config, self._slab = config, slab
        self.num_slots = config.num_slots
        self._supervisor = Supervisor(config.max_restarts, say)
        self._epoll = select.epoll()
        self._workers: dict[int, WorkerProcess] = {}
        self._by_fd: dict[int, WorkerProcess] = {}
        self._by_slot: dict[int, WorkerProcess] = {}
        self._to_wake: dict[int, WorkerProcess] = {}
        self._quiet: dict[int, WorkerProcess] = {}  # may have answered without waking this process
        self._attempts: list[int] = []  # how often each worker was started since `wake`
        self._served = False  # all workers have served before
        self._in_flight: set[int] = set()  # slots whose command is not answered
        self._starting = 0  # workers that do not serve yet
        self._look_at = 0.0  # monotonic time before which no deadline passes
        config.log_dir.mkdir(parents=True, exist_ok=True)
        try:
            self.wake(wait)
        except BaseException:
            self.close()
            raise

    def wake(self, wait: bool = True) -> None:
        """Start the workers, unless they have been, and ``wait`` until they serve."""
        if not self._workers:
            self._attempts = [0] * self._config.num_workers
            for index in range(self._config.num_workers):
                self._start(index)
            while wait and self._starting:
                self._poll(self._next_deadline())

    def fileno(self) -> int:
        """Returns a descriptor that is readable when :meth:`recv` has something to say, deadlines apart."""
        return self._epoll.fileno()

    # -- starting and replacing --------------------------------------------------------------------------------------

    def _start(self, index: int) -> None:
        config = self._config
        slots = slots_of(index, config.num_slots, config.num_workers, config.batch)
        worker = process.start(config, self._slab, index, slots, self._attempts[index], self._served)
        self._attempts[index] += 1
        self._starting += 1
        self._look_at = 0.0
        self._workers[index] = worker
        self._by_slot |= dict.fromkeys(slots, worker)
        for fd in worker.fds:
            self._epoll.register(fd, select.EPOLLIN)
            self._by_fd[fd] = worker

    def _replace(self, worker: WorkerProcess) -> list[Event]:
        """Release a worker that has ended and start another. Returns what it had done, and which slots are lost."""
        events: list[Event] = list(self._completed(worker))
        self._in_flight -= worker.pending.keys()
        self._starting -= worker.facts is None
        busy = set(worker.busy)
        error = worker.error(self._config)
        try:
            ending.stop_robot_of(worker, error)
        finally:
            self._forget(worker)
        if worker.facts is None and self._attempts[worker.index] == 1 and not self._served:  # its first start
            raise error
        if worker.guardian is not None:
            raise ending.not_replaced(error)
        of_worker = worker.facts is not None and not worker.evaluates_a_start
        self._supervisor.failed(worker.index, error, of_worker, worker.log)
        if worker.facts is not None:
            events += [Lost(slot, error, len(busy) if slot in busy else 0) for slot in worker.slots]
        self._start(worker.index)
        return events

    def _forget(self, worker: WorkerProcess) -> None:
        del self._workers[worker.index]
        self._quiet.pop(worker.index, None)
        for fd in worker.fds:
            if self._by_fd.pop(fd, None) is not None:
                self._epoll.unregister(fd)
        worker.release()

    @property
    def facts(self) -> list[WorkerFacts]:
        """Facts that the serving workers found at their start."""
        return [worker.facts for worker in self._in_order if worker.facts is not None]

    def facts_of(self, slot: int) -> WorkerFacts | None:
        """Returns what the slot's worker found at its start; None while it starts."""
        return self._by_slot[slot].facts

    @property
    def memory(self) -> int:
        """Bytes of the workers."""
        return sum(map(proportional_memory, self.pids))

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._in_order]

    @property
    def up(self) -> list[int]:
        """Slots that take commands, as far as :meth:`recv` has said."""
        return sorted(slot for slot, worker in self._by_slot.items() if worker.facts is not None)

    def group_of(self, slot: int) -> int:
        """The slot's worker if it steps its slots together, else 0."""
        return self._by_slot[slot].index if self._config.batch else 0

    def simulators_of(self, slot: int) -> int:
        """The first slot of the slot's worker if those share simulators, else the slot."""
        worker = self._by_slot[slot]
        return worker.slots[0] if worker.facts is not None and worker.facts.shares_simulators else slot

    @property
    def moving(self) -> AbstractSet[int]:
        """Slots with a command that will be answered whatever is sent or not."""
        slots = {slot for worker in self._workers.values() for slot in worker.moving} if self._config.batch else None
        return self._in_flight if slots is None else slots

    @property
    def restarts(self) -> int:
        """Workers that have failed and were replaced."""
        return self._supervisor.total

    def blame(self, lost: Lost, episode_id: int, count: int) -> None:
        """Report an episode that has been lost ``count`` times; raises ``lost.error`` if that is too often."""
        self._supervisor.episode_failed(lost.error, episode_id, count, lost.suspects)

    def forgive(self, slot: int) -> None:
        """Report that the episode that ended the slot's workers is given up; they do not count as failures in a row."""
        self._supervisor.finished_an_episode(self._by_slot[slot].index)

    @property
    def _in_order(self) -> list[WorkerProcess]:
        return [self._workers[index] for index in sorted(self._workers)]

    # -- serving -----------------------------------------------------------------------------------------------------

    def send(self, command: Command, video: Video | None = None, draws: Draws | None = None) -> None:
        """Give a slot its next command. Its worker is woken by the next :meth:`flush` or :meth:`recv`.

        Args:
            video: how a RESET with ``video=True`` records its episode.
            draws: the perturbation of a RESET with ``perturbed=True``.
        """
        worker = self._by_slot[command.slot]
        worker.give(command)
        self._in_flight.add(command.slot)
        if worker.batch or len(worker.pending) == 1:
            self._look_at = min(self._look_at, worker.deadline(self._config.deadlines))
        worker.channel.commands.put(command, announce=False)
        worker.outbox.put(*(message for message in (video and video.absolute(), draws) if message is not None))
        self._to_wake[worker.index] = worker

    def flush(self) -> None:
        """Wake the workers that have been given commands."""
        for index, worker in self._to_wake.items():
            if self._workers.get(index) is worker:  # else it is gone
                worker.channel.commands.announce()
                if worker.outbox:
                    self._post(worker)
        self._to_wake.clear()

    def _post(self, worker: WorkerProcess) -> None:
        """Send what the worker's RESETs need besides. If its socket is full, the rest follows when there is room."""
        fd = worker.socket.fileno()
        done, waits = worker.outbox.flush(), fd in self._by_fd
        if waits and done:
            self._epoll.unregister(fd)
            del self._by_fd[fd]
        elif not waits and not done:
            self._epoll.register(fd, select.EPOLLOUT)
            self._by_fd[fd] = worker

    def recv(self, min_ready: int, timeout: float | None = None) -> list[Event]:
        """Wait until ``min_ready`` slots have completed, a slot was lost or came back, ``timeout`` seconds have passed,
        or nothing is left to wait for. Returns all that has happened."""
        self.flush()
        events = list[Event]()
        until = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            missing = min_ready - len(events)
            enough = missing <= 0 or not self._busy or self._ask_for(missing)
            left = min(self._next_deadline(), max(0.0, until - time.monotonic()))
            events += self._poll(0.0 if enough else left)
            enough = len(events) >= min_ready or not self._busy or time.monotonic() >= until
            if enough or not all(isinstance(event, Completion) for event in events):
                return events

    @property
    def _busy(self) -> bool:
        return bool(self._in_flight) or self._starting > 0

    def _ask_for(self, missing: int) -> bool:
        """Tell the workers how many answers this process waits for. It is to be woken once one worker has its part of
        these: before that there cannot be enough. Returns whether some worker has its part by now."""
        if missing == 1 and not self._quiet:
            return False
        busy = [worker for worker in self._workers.values() if worker.pending]
        part = -(-missing // len(busy)) if busy else 1
        have = False
        for worker in busy:
            completions = worker.channel.completions
            have |= completions.ask(min(part, len(worker.pending)))
            if completions.withheld:
                self._quiet[worker.index] = worker
        self._look_at = min(self._look_at, self._next_look)
        return have

    @property
    def _next_look(self) -> float:
        """Monotonic time of the next look for answers that woke nobody. Their worker may have gone on to a phase with a
        shorter deadline than its last known one."""
        return time.monotonic() + self._config.deadlines.shortest if self._quiet else float("inf")

    def _poll(self, wait: float) -> list[Event]:
        events, dead = list[Event](), list[WorkerProcess]()
        for fd, _ in self._epoll.poll(None if wait == float("inf") else wait):
            worker = self._by_fd[fd]
            if fd == worker.pidfd:
                dead.append(worker)
            elif fd == worker.socket.fileno():
                if worker.facts is None:
                    events += self._heard(worker)
                else:
                    self._post(worker)
            else:
                worker.channel.completions.hush()
                events += self._completed(worker)
        for worker in [*self._quiet.values()]:
            events += self._completed(worker)
            if not worker.channel.completions.withheld:
                del self._quiet[worker.index]
        for worker in dead:  # only now: their successors may get the same file descriptors
            events += self._replace(worker)
        self._press_the_overdue()
        return events

    def _press_the_overdue(self) -> None:
        now = time.monotonic()
        if now < self._look_at:
            return
        for worker in self._workers.values():
            if now >= worker.deadline(self._config.deadlines):
                ending.press(worker)
        deadlines = (worker.deadline(self._config.deadlines) for worker in self._workers.values())
        self._look_at = min([*deadlines, self._next_look])

    def _heard(self, worker: WorkerProcess) -> list[Event]:
        """Read the worker's first message; its last one is read after its end."""
        fd = worker.socket.fileno()
        self._epoll.unregister(fd)
        del self._by_fd[fd]
        worker.listen()
        if worker.facts is None or worker.words is not None:
            return []
        worker.overdue = None
        self._starting -= 1
        self._served |= not self._starting
        return [Back(slot) for slot in worker.slots]

    def _completed(self, worker: WorkerProcess) -> list[Completion]:
        completions = worker.channel.completions.take()
        for done in completions:
            worker.answered(done)  # type: ignore[arg-type]
            self._in_flight.discard(done.slot)
        if completions:
            worker.overdue = None if not worker.killed else worker.overdue
        if any(done.ended for done in completions):  # type: ignore[union-attr]
            self._supervisor.finished_an_episode(worker.index)
            self._supervisor.noticed(worker.notices())
        return completions  # type: ignore[return-value]

    def _next_deadline(self) -> float:
        """Seconds until a deadline may pass. The deadline of an answered command counts until it has been looked at
        once. This saves a look at every worker for every message."""
        return max(0.0, self._look_at - time.monotonic())

    # -- ending ------------------------------------------------------------------------------------------------------

    def rest(self) -> None:
        """End the workers until :meth:`wake`, so that all that they hold is free. No command may be in flight."""
        if failed := self._end():
            raise failed[0]

    def close(self) -> None:
        """End the workers and wait for them."""
        with closing(self._epoll):
            self.rest()

    def _end(self) -> list[SafeStopError]:
        for fd in self._by_fd:  # none after close
            self._epoll.unregister(fd)
        failed = ending.end(self._in_order)
        self._workers, self._by_fd, self._by_slot, self._to_wake, self._quiet = {}, {}, {}, {}, {}
        self._starting = 0
        return failed


def num_workers(requested: int | None, num_slots: int, ranks: int = 1) -> int:
    """Worker processes for ``num_slots`` slots: as many as were asked for, else one a slot, but at most one a core of
    the part of this rank."""
    return min(num_slots, requested or max(1, (os.cpu_count() or 1) // ranks))
