"""One env worker seen from the launcher: how its process is started, watched, asked for its stack, and released."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from embodied.errors import WorkerDiedError, WorkerError, WorkerHungError
from embodied.lib.child import how_it_ended, tail
from embodied.runtime.channel import Channel, Command, Completion, Kind
from embodied.runtime.messages import Notice, Outbox, Ready, WorkerSetup, receive, send
from embodied.runtime.pool.books import Books
from embodied.runtime.pool.fork_server import ForkedProcess, ForkServer
from embodied.runtime.pool.placement import START, Gpu, cores_of, module_folders, numa_nodes, worker_environment
from embodied.runtime.pool.safe_stop import Guardian, await_frozen
from embodied.runtime.slab import Slab
from embodied.runtime.worker.declared import Declared
from embodied.runtime.worker.expert import ExpertJob
from embodied.runtime.worker.reward import ShapedReward
from embodied.runtime.worker.shown import Shown
from embodied.types import WorkerFacts

STACK_S = 0.2  # pause between asking a hung worker for its stack and killing it: faulthandler has to write it


@dataclass(frozen=True)
class Deadlines:
    """Seconds that a worker may take for one phase."""

    init: float
    reset: float
    step: float

    def of(self, phase: str) -> float:
        """Returns the deadline of a phase, seconds."""
        return {"starting": self.init, "resetting": self.reset}.get(phase, self.step)

    @property
    def shortest(self) -> float:
        """Seconds of the shortest deadline of a worker that has started: reset or step."""
        return min(self.reset, self.step)


@dataclass(frozen=True)
class PoolConfig:
    """Settings of a pool. ``env_kwargs`` are arguments of the env's class; each slot gets an instance of its own."""

    num_slots: int
    num_workers: int
    env_target: str
    env_kwargs: Mapping[str, Any]
    reward: ShapedReward
    deadlines: Deadlines
    log_dir: Path
    eval_reward: ShapedReward | None = None  # reward of episodes that evaluate; None = the same
    live: bool = False  # videos are shown in a window while they are recorded
    shown: Shown | None = None  # how a policy's decision is said on videos
    env_channel: tuple[str, str, int] = ("embodied", "obs_buffer", 0)  # name, queue_name, queue_size
    rollout_channel: tuple[str, str, int] = ("embodied", "action_buffer", 0)
    max_restarts: int = 0  # restarts of one worker in a row, without a finished episode in between
    python: str | None = None  # the workers' interpreter; None = the launcher's
    pin: bool = False  # pin each worker to cores of its own
    gpus: tuple[Gpu, ...] = ()  # the workers render on these in turn
    batch: bool = False  # the env hosts all slots of a worker (:class:`embodied.protocols.Batched`)
    rank: int = 0  # number of this process among the `ranks` of this machine that have a pool each
    ranks: int = 1
    server: ForkServer | None = None  # forks the workers; None = each starts as an interpreter of its own
    expert: ExpertJob | None = None  # slots take EXPERT instead of STEP; only without a batch
    group_name: str = "worker"  # begins the names of the workers' logs
    safe_stop_s: float | None = None  # the env is a robot: limit of its safe-stop hook, before a worker is killed
    declared: Declared | None = None  # by the launcher's env; None = workers do not compare theirs


@dataclass
class WorkerProcess(Books):
    """A worker's process and its connections to the launcher. ``facts`` are set once it serves."""

    index: int
    slots: tuple[int, ...]
    process: subprocess.Popen | ForkedProcess
    pidfd: int
    socket: socket.socket
    outbox: Outbox  # messages that its RESETs need besides, over the socket
    channel: Channel
    log: Path
    since: float  # monotonic time at which its present phase began
    told: float = 0.0  # monotonic time at which it was last given a command
    facts: WorkerFacts | None = None
    batch: bool = False
    pending: dict[int, Command] = field(default_factory=dict)
    resets: int = 0
    in_episode: set[int] = field(default_factory=set)
    words: Ready | None = None  # its own message about why it ends
    overdue: str | None = None  # the phase that took too long
    killed: bool = False
    guardian: Guardian | None = None  # stops its robot; None: it has none
    stopped: bool = False  # its robot was stopped, or that was tried

    @property
    def fds(self) -> tuple[int, int, int]:
        """File descriptors to wait on: its death, its completions, and its first or last message."""
        return self.pidfd, self.channel.handles.done_fd, self.socket.fileno()

    @property
    def phase(self) -> str | None:
        """Present phase: starting, resetting, stepping; None while nothing is asked of it."""
        if self.facts is None:
            return "starting"
        if not self.pending or self.waits:
            return None
        resetting = self.resets if self.batch else next(iter(self.pending.values())).kind == Kind.RESET
        return "resetting" if resetting else "stepping"

    @property
    def busy(self) -> Collection[int]:
        """Slots that it may have been busy with when it failed; in a batch all that had a command."""
        if self.batch:
            return () if self.waits else self.pending.keys()
        return [*self.pending][:1]

    @property
    def evaluates_a_start(self) -> bool:
        """Whether it was bringing a slot to the start of an evaluation's episode: an error then is of this start."""
        first = next(iter(self.pending.values()), None)
        return not self.batch and first is not None and first.kind == Kind.RESET and first.evaluation

    def give(self, command: Command) -> None:
        """Notes a command that was sent to the worker."""
        self.note(command)
        self.told = time.monotonic()
        if len(self.pending) == 1 or (self.batch and not self.overdue):  # else the present deadline stays
            self.since = self.told

    def answered(self, done: Completion) -> None:
        """Notes a command that the worker has executed. Its present phase began then, or when it was last told, if that
        is later."""
        self.since = max(self.told, done.finished)
        self.cross_off(done)

    def deadline(self, deadlines: Deadlines) -> float:
        """Monotonic time at which something must be done about this worker."""
        if self.phase is None or self.killed:
            return float("inf")
        return self.since + deadlines.of(self.phase) + (STACK_S if self.overdue else 0.0)

    def press(self) -> None:
        """Ask a worker whose deadline has passed for its stack; kill it the next time. Its death is then seen as
        usual."""
        if self.overdue is None:
            self.overdue = self.phase
            self.process.send_signal(signal.SIGUSR1)
        else:
            self.kill()

    def kill(self) -> None:
        """Kills the worker; its robot is stopped before. Raises :class:`SafeStopError`, once it is killed."""
        try:
            self.stop_robot()
        finally:
            self.process.kill()
            self.killed = True

    def stop_robot(self) -> None:
        """Stop its robot, if it has one and that was not done. The process commands nothing from then on.

        Raises:
            SafeStopError: the robot may still move.
        """
        if self.guardian is not None and not self.stopped:
            self.stopped = True
            self.process.send_signal(signal.SIGSTOP)
            await_frozen(self.process.pid)
            self.guardian.stop()

    def listen(self) -> None:
        """Reads the worker's first message (facts), or its last one (an error), if there is one."""
        self.socket.settimeout(1.0)  # a message is sent as a whole, or its writer is gone
        try:
            while isinstance(message := receive(self.socket), Notice):
                pass
        except (EOFError, OSError):
            return
        if not message.failed:
            self.facts, self.since = message.facts, time.monotonic()
            return
        self.words = message
        if message.error is not None or message.declared is not None:
            self.kill()  # it has reported everything, and closing could hang

    def notices(self) -> list[str]:
        """Returns texts for a person that the worker has sent since the last call; does not wait for more."""
        told: list[str] = []
        waiting = select.poll()
        waiting.register(self.socket, select.POLLIN)
        with suppress(EOFError, OSError):
            while self.words is None and any(events & select.POLLIN for _, events in waiting.poll(0)):
                self.socket.settimeout(1.0)
                message = receive(self.socket)
                if isinstance(message, Notice):
                    told.append(message.text)
                else:
                    self.words = message
        return told

    def error(self, config: PoolConfig) -> Exception:
        """The error that says why it ended, once it has."""
        self.listen()
        code = self.process.wait()
        if self.words is not None and self.words.error is not None:
            return self.words.error  # type: ignore[return-value]
        who = f"env worker {self.index} (pid {self.process.pid}, slots {list(self.slots)})"
        if self.words is not None and self.words.declared is not None and config.declared is not None:
            return config.declared.differs(who, config.env_target, self.words.declared)
        if isinstance(self.process, ForkedProcess) and self.process.orphaned:
            return _died_with_its_server(who, self.process.orphaned, self.log)
        if self.overdue is not None and self.words is None:
            return _hung(who, self.overdue, config.deadlines.of(self.overdue), self.log)
        return _died(who, code, self.log, self.words.traceback if self.words else tail(self.log))

    def release(self) -> None:
        """Close its connections; the process has ended."""
        if self.guardian is not None:
            self.guardian.dismiss()
        self.socket.close()
        os.close(self.pidfd)
        self.channel.close()


def _died(who: str, code: int, log: Path, detail: str) -> WorkerError:
    return WorkerDiedError(
        f"{who} {how_it_ended(code)}",
        f"see {log}; SIGKILL without a traceback is usually the kernel out of memory: lower env.num_workers",
        detail,
    )


def _died_with_its_server(who: str, server: str, log: Path) -> WorkerError:
    return WorkerDiedError(
        f"{who} ended because {server}",
        f"see {log}; env.start_method=spawn needs no such server",
        tail(log),
    )


def _hung(who: str, phase: str, limit: float, log: Path) -> WorkerError:
    key = {"starting": "env.init_timeout_s", "resetting": "env.reset_timeout_s"}.get(phase, "env.step_timeout_s")
    return WorkerHungError(
        f"{who} did not answer for {limit:g} s while {phase}; it stood at:",
        f"if the simulator is only slow, raise {key}; its log is {log}",
        tail(log),
    )


def start(
    config: PoolConfig, slab: Slab, index: int, slots: tuple[int, ...], attempt: int, again: bool = False
) -> WorkerProcess:
    """Start worker ``index`` and send it its set-up; returns before it is ready. ``attempt`` 0 is the first.

    Args:
        again: its log goes on.
    """
    name = f"{index:02d}.{attempt}.log" if attempt else f"{index:02d}.log"
    guardian = _guardian(config, config.log_dir / f"safe-stop-{name}")
    ours, theirs = socket.socketpair()
    channel = _make_channel(config, index, len(slots))
    log = config.log_dir / f"{config.group_name}-{name}"
    handles = channel.handles
    inherited = (theirs.fileno(), slab.fd, handles.memory_fd, handles.go_fd, handles.done_fd)
    environment = worker_environment(index, config.gpus, config.python)
    process: subprocess.Popen | ForkedProcess
    with theirs, log.open("ab" if again else "wb") as output:
        if config.server is None:
            process, pidfd, names = _spawn(config.python, inherited, output.fileno(), environment)
        else:
            process, pidfd, names = config.server.fork(inherited, output.fileno(), environment)
    worker = WorkerProcess(
        index, slots, process, pidfd, ours, Outbox(ours), channel, log, time.monotonic(), batch=config.batch,
        guardian=guardian,
    )  # fmt: skip
    if guardian is not None:
        guardian.watch(process.pid)
    _, slab_fd, memory_fd, go_fd, done_fd = names
    setup = WorkerSetup(
        index=index, slots=slots, env_target=config.env_target, env_kwargs=config.env_kwargs, reward=config.reward,
        eval_reward=config.eval_reward, slab_fd=slab_fd, slab_fields=slab.fields, slab_rows=slab.rows,
        channel=replace(handles, memory_fd=memory_fd, go_fd=go_fd, done_fd=done_fd),
        live=config.live, shown=config.shown,
        sys_path=module_folders(config.python, sys.path, (sys.prefix, sys.base_prefix)),
        cores=_cores(config, index) if config.pin else (),
        expert=config.expert, guarded=guardian is not None,
        declared=None if config.declared is None else config.declared.digest,
    )  # fmt: skip
    with suppress(OSError):  # it is dead already; its pidfd says so
        send(ours, setup)
    return worker


def _guardian(config: PoolConfig, log: Path) -> Guardian | None:
    """Start what stops the robot, before there is a worker that could move it."""
    if config.safe_stop_s is None:
        return None
    setup = Guardian.setup(config.env_target, config.env_kwargs, config.python, config.safe_stop_s)
    return Guardian(setup, config.python, log, config.deadlines.init)


def _spawn(
    python: str | None, inherited: tuple[int, ...], output: int, environment: Mapping[str, str]
) -> tuple[subprocess.Popen, int, tuple[int, ...]]:
    """Start a worker as a fresh interpreter. Returns the process, its pidfd, and the numbers that ``inherited`` have in
    it (the same). The first of ``inherited`` is its end of the socket."""
    process = subprocess.Popen(  # no Child: the worker asks for its death signal, or has a guardian
        [python or sys.executable, str(START), str(inherited[0])],
        stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=inherited, env=environment,
    )  # fmt: skip
    return process, os.pidfd_open(process.pid), inherited


def _make_channel(config: PoolConfig, index: int, slots: int) -> Channel:
    name, commands, command_size = config.rollout_channel
    other, completions, completion_size = config.env_channel
    back = completions if other == name else f"{other}.{completions}"
    label = f"{name}.{commands}.{back}.{index}"
    return Channel.create(label, command_size or slots, completion_size or slots)


def _cores(config: PoolConfig, index: int) -> tuple[int, ...]:
    """Cores of a pinned worker, chosen among the workers of all ranks of this machine."""
    before = config.rank * config.num_workers
    return cores_of(before + index, config.ranks * config.num_workers, numa_nodes())
