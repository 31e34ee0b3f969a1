"""The pool of env workers: starts them in parallel, sends commands, and waits for {done, death, deadline} in one epoll.

A worker that dies is reported with its traceback within milliseconds (pidfd); one that does not answer within the
deadline of what it is doing is asked for its stack (SIGUSR1), killed, and reported with it.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embodied.errors import WorkerDiedError, WorkerHungError
from embodied.runtime.channel import Channel, Command, Completion, Kind
from embodied.runtime.messages import Ready, WorkerSetup, receive, send
from embodied.runtime.reward import ShapedReward
from embodied.runtime.slab import Slab
from embodied.types import WorkerFacts

LOG_TAIL = 4000  # characters of a worker's log that an error shows


@dataclass(frozen=True)
class Deadlines:
    """Seconds that a worker may take for one phase."""

    init: float
    reset: float
    step: float


@dataclass
class WorkerProcess:
    """The launcher's side of one worker."""

    index: int
    slots: tuple[int, ...]
    process: subprocess.Popen
    pidfd: int
    socket: socket.socket
    channel: Channel
    log: Path
    pending: list[Kind] = field(default_factory=list)  # commands not yet answered, oldest first
    since: float = 0.0  # monotonic time at which the oldest pending command became the worker's current one


@dataclass(frozen=True)
class PoolConfig:
    """How to start a pool. ``env_kwargs`` are those of the env's class; each slot gets an instance of its own."""

    num_slots: int
    num_workers: int
    env_target: str
    env_kwargs: Mapping[str, Any]
    reward: ShapedReward
    deadlines: Deadlines
    log_dir: Path
    info_on_video: bool = True
    env_channel: tuple[str, str, int] = ("embodied", "obs_buffer", 0)  # name, queue_name, queue_size
    rollout_channel: tuple[str, str, int] = ("embodied", "action_buffer", 0)


class Pool:
    """``send`` commands, ``recv`` completions. A slot has at most one command in flight.

    Raises (from the constructor, ``send`` and ``recv``):
        WorkerDiedError, WorkerHungError: with the worker's traceback or stack.
        EmbodiedError: of any class that the env raised in ``prepare``, e.g. RendererUnavailableError.
    """

    def __init__(self, config: PoolConfig, slab: Slab) -> None:
        self._config, self._slab = config, slab
        self.num_slots = config.num_slots
        self._epoll = select.epoll()
        self._workers: list[WorkerProcess] = []
        self._by_fd: dict[int, WorkerProcess] = {}
        self._by_slot: dict[int, WorkerProcess] = {}
        config.log_dir.mkdir(parents=True, exist_ok=True)
        try:
            for index in range(config.num_workers):
                self._start(index, tuple(range(index, config.num_slots, config.num_workers)))
            self.facts: list[WorkerFacts] = [self._await_ready(worker) for worker in self._workers]
        except BaseException:
            self.close()
            raise
        self._by_slot = {slot: worker for worker in self._workers for slot in worker.slots}

    # -- starting ----------------------------------------------------------------------------------------------------

    def _start(self, index: int, slots: tuple[int, ...]) -> None:
        ours, theirs = socket.socketpair()
        channel = self._make_channel(index, len(slots))
        log = self._config.log_dir / f"worker-{index:02d}.log"
        handles = channel.handles
        inherited = (theirs.fileno(), self._slab.fd, handles.memory_fd, handles.go_fd, handles.done_fd)
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "embodied.runtime.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=inherited, env=_environment(),
            )  # fmt: skip
        theirs.close()
        worker = WorkerProcess(index, slots, process, os.pidfd_open(process.pid), ours, channel, log)
        self._workers.append(worker)
        for fd in (worker.pidfd, handles.done_fd):
            self._epoll.register(fd, select.EPOLLIN)
            self._by_fd[fd] = worker
        send(ours, self._setup(worker))

    def _make_channel(self, index: int, slots: int) -> Channel:
        name, commands, command_size = self._config.rollout_channel
        _, completions, completion_size = self._config.env_channel
        label = f"{name}.{commands}.{completions}.{index}"
        return Channel.create(label, command_size or slots, completion_size or slots)

    def _setup(self, worker: WorkerProcess) -> WorkerSetup:
        config = self._config
        return WorkerSetup(
            index=worker.index, slots=worker.slots, env_target=config.env_target, env_kwargs=config.env_kwargs,
            reward=config.reward, slab_fd=self._slab.fd,
            slab_fields=self._slab.fields, slab_rows=self._slab.rows, channel=worker.channel.handles,
            info_on_video=config.info_on_video, sys_path=tuple(sys.path),
        )  # fmt: skip

    def _await_ready(self, worker: WorkerProcess) -> WorkerFacts:
        worker.socket.settimeout(self._config.deadlines.init)
        try:
            ready = receive(worker.socket)
        except TimeoutError:
            raise self._hung(worker, "starting", self._config.deadlines.init) from None
        except (EOFError, ConnectionError):
            raise self._died(worker, None) from None
        if ready.error is not None:
            raise ready.error
        if ready.traceback:
            raise self._died(worker, ready)
        worker.socket.settimeout(None)
        return ready.facts

    # -- serving -----------------------------------------------------------------------------------------------------

    def send(self, command: Command, video: str | None = None) -> None:
        """Give a slot its next command; ``video`` is the file that a RESET with ``video=True`` records to."""
        worker = self._by_slot[command.slot]
        if not worker.pending:
            worker.since = time.monotonic()
        worker.pending.append(command.kind)
        if video is not None:
            try:
                send(worker.socket, video)
            except OSError:
                raise self._died(worker, self._last_words(worker)) from None
        worker.channel.commands.put(command)

    def recv(self, min_ready: int) -> list[Completion]:
        """Wait until ``min_ready`` slots (or all with a command, if fewer) have completed; return all that have."""
        done: list[Completion] = []
        while len(done) < min_ready and any(worker.pending for worker in self._workers):
            for fd, _ in self._epoll.poll(self._next_deadline()):
                done += self._on_event(fd, self._by_fd[fd])
            self._check_deadlines()
        return done

    def _on_event(self, fd: int, worker: WorkerProcess) -> list[Completion]:
        if fd == worker.pidfd:
            raise self._died(worker, self._last_words(worker))
        completions = worker.channel.completions.take()
        del worker.pending[: len(completions)]
        worker.since = time.monotonic()
        return completions  # type: ignore[return-value]

    def _limit(self, worker: WorkerProcess) -> float:
        deadlines = self._config.deadlines
        return deadlines.reset if worker.pending[0] is Kind.RESET else deadlines.step

    def _next_deadline(self) -> float:
        now = time.monotonic()
        left = [worker.since + self._limit(worker) - now for worker in self._workers if worker.pending]
        return max(0.0, min(left))

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        for worker in self._workers:
            if worker.pending and now - worker.since > self._limit(worker):
                phase = "resetting" if worker.pending[0] is Kind.RESET else "stepping"
                raise self._hung(worker, phase, self._limit(worker))

    # -- failing -----------------------------------------------------------------------------------------------------

    def _last_words(self, worker: WorkerProcess) -> Ready | None:
        worker.socket.settimeout(1.0)
        try:
            return receive(worker.socket)
        except (EOFError, OSError):
            return None

    def _died(self, worker: WorkerProcess, words: Ready | None) -> BaseException:
        code = worker.process.wait()
        if words is not None and words.error is not None:
            return words.error
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        detail = words.traceback if words is not None else _tail(worker.log)
        return WorkerDiedError(
            f"env worker {worker.index} (pid {worker.process.pid}, slots {list(worker.slots)}) {how}",
            f"see {worker.log}; SIGKILL without a traceback is usually the kernel out of memory: lower env.num_workers",
            detail,
        )

    def _hung(self, worker: WorkerProcess, phase: str, limit: float) -> Exception:
        worker.process.send_signal(signal.SIGUSR1)
        time.sleep(0.2)  # for faulthandler to write the stack; nothing to wait on
        worker.process.kill()
        key = {"starting": "env.init_timeout_s", "resetting": "env.reset_timeout_s"}.get(phase, "env.step_timeout_s")
        return WorkerHungError(
            f"env worker {worker.index} (pid {worker.process.pid}) did not answer for {limit:g} s while {phase}; "
            "it stood at:",
            f"if the simulator is only slow, raise {key}; its log is {worker.log}",
            _tail(worker.log),
        )

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    # -- ending ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the workers and wait for them; those that do not end within 5 s are killed."""
        for worker in self._workers:
            worker.socket.close()
        deadline = time.monotonic() + 5.0
        for worker in self._workers:
            try:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            os.close(worker.pidfd)
            worker.channel.close()
        self._workers, self._by_fd, self._by_slot = [], {}, {}
        self._epoll.close()


def _environment() -> dict[str, str]:
    """The worker's environment: one thread each unless the user says otherwise, as there is about one worker a core."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {**threads, **os.environ, "PYTHONUNBUFFERED": "1"}


def _tail(log: Path) -> str:
    text = log.read_text(errors="replace") if log.exists() else ""
    return text[-LOG_TAIL:] or "(its log is empty)"


def num_workers(requested: int | None, num_slots: int) -> int:
    """Worker processes for ``num_slots`` slots: as many as were asked for, else one a slot but at most one a core."""
    return min(num_slots, requested or os.cpu_count() or 1)
