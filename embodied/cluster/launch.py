"""The launcher: starts the ranks of a run, shows what they print, ends all when one fails, and says why on top.

python -m embodied.train … cluster.launcher=ray       on a node of a Ray cluster
python -m embodied.train … cluster.launcher=local cluster.num_gpus_per_node=2
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Protocol

from embodied.cluster.events import Ended, Event, HeadGone, Line, Lost, Note, Placed, Refused, event_of
from embodied.cluster.first_cause import STOPPED, Cause, cause_of, stopped_text
from embodied.cluster.nodes import Shape, shapes_after_loss
from embodied.cluster.plan import Placing, Plan
from embodied.cluster.ranks import Order, Ranks, free_port
from embodied.errors import ClusterError, ConfigError, EmbodiedError, refuse
from embodied.lib.child import Child, tail
from embodied.lib.spans import as_spans

INSTALL = "pip install 'ray[default]>=2.50'"
END_S = 3.0  # for ranks to end after another has failed
DRIVER_S = 15.0  # for the driver to end, with all of Ray that is on the way
LOOKED_S = 0.5
LOOK = (
    "see ray status, and Ray's own logs on the head (/tmp/ray/session_latest/logs); end what is left, and start again"
)
BY_SIGNAL = (signal.SIGINT, signal.SIGTERM)


class Started(Protocol):
    """Ranks that run somewhere; ``events`` ends with None, also if nobody can see the ranks any more."""

    events: queue.SimpleQueue[Event | None]

    def words(self) -> str:
        """Returns the end of what the driver has printed."""
        ...

    def send(self, command: dict[str, float]) -> None:
        """``{"signal": NUMBER}`` or ``{"end": SECONDS}`` until SIGKILL."""

    def close(self) -> None: ...


class Local:
    """Ranks of this machine, as children of this process."""

    def __init__(self, order: Order, name: str) -> None:
        self.events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._left, self._lock = order.each, threading.Lock()
        self.events.put(Placed([name], [order.each]))
        self._ranks = Ranks(order, self._tell)

    def _tell(self, event: Event) -> None:
        self.events.put(event)
        with self._lock:  # each rank has a thread
            self._left -= isinstance(event, Ended)
            if not self._left:
                self.events.put(None)

    def send(self, command: dict[str, float]) -> None:
        if "signal" in command:
            self._ranks.signal(int(command["signal"]))
        else:
            threading.Thread(target=self._ranks.end, args=(command["end"],), daemon=True).start()

    def words(self) -> str:
        return ""

    def close(self) -> None:
        self._ranks.close()


class ByRay:
    """Ranks that a driver has placed by Ray."""

    def __init__(self, plan: Plan) -> None:
        self.events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._printed = tempfile.NamedTemporaryFile(prefix="embodied-ray-")  # noqa: SIM115 (see close)
        reading, writing = os.pipe()
        command = [sys.executable, "-m", "embodied.cluster.driver", str(writing)]
        out = self._printed.fileno()
        self._driver = Child(command, stdin=subprocess.PIPE, stdout=out, stderr=out, pass_fds=(writing,))
        os.close(writing)
        self._send(asdict(plan))
        threading.Thread(target=self._read, args=(reading,), daemon=True, name="driver").start()

    def _read(self, reading: int) -> None:
        with open(reading, encoding="utf-8") as stream:
            for line in stream:
                self.events.put(event_of(line))
        self.events.put(None)

    def words(self) -> str:
        return tail(Path(self._printed.name))

    def _send(self, command: object) -> None:
        assert self._driver.stdin is not None
        with suppress(OSError):  # it has ended
            self._driver.stdin.write(json.dumps(command).encode() + b"\n")
            self._driver.stdin.flush()

    def send(self, command: dict[str, float]) -> None:
        self._send(command)

    def close(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._driver.wait(DRIVER_S)
        self._driver.end()
        self._printed.close()


class Watch:
    """Watches ranks from their start to the end of the last."""

    def __init__(self, started: Started, grace_s: float, say: Callable[[str], None]) -> None:
        self._started, self._grace_s, self._say = started, grace_s, say
        self.placed = Placed([], [])
        self.refused: list[EmbodiedError] = []
        self.cause: Cause | None = None
        self.statuses: list[int] = []
        self._signal = 0  # the last that came
        self._head_gone = False
        self._until: float | None = None  # the ranks have ended by then, or are killed

    def run(self) -> None:
        while (event := self._next()) is not None:
            match event:
                case Line():
                    if self.cause is None:
                        print(event.text, flush=True)
                case Ended() | Lost():
                    self._ended(event)
                case Placed():
                    self.placed = event
                    self._say(_places(event))
                case Note():
                    self._say(event.text)
                case HeadGone():
                    if not self._head_gone:
                        self._say(stopped_text(event))
                    self._head_gone = True
                    self._end_by(self._grace_s)
                case Refused():
                    self.refused.append(ClusterError(event.message, event.remedy))
        stopped = self._head_gone or self._signal or self.cause or self.refused
        if not stopped and len(self.statuses) < max(1, sum(self.placed.counts)):
            raise ClusterError(f"Ray has failed, and these are its last words:\n{self._started.words()}", LOOK)

    def _next(self) -> Event | None:
        while True:
            with suppress(queue.Empty):
                return self._started.events.get(timeout=LOOKED_S)
            if self._until is not None and time.monotonic() > self._until:
                self._started.send({"end": 0.0})
                self._until += DRIVER_S

    def _ended(self, event: Ended | Lost) -> None:
        if isinstance(event, Ended):
            self.statuses.append(event.status)
        if self.cause is not None or (isinstance(event, Lost) and self._head_gone):
            return
        stopped = isinstance(event, Ended) and self._signal and -event.status in BY_SIGNAL
        self.cause = None if stopped else cause_of(event, self.placed)
        if self.cause is not None:
            self._started.send({"end": END_S})
            self._end_by(END_S + LOOKED_S)
        elif isinstance(event, Ended) and event.status:
            self._end_by(self._grace_s)  # the others have met this one before, or wait in vain

    def _end_by(self, seconds: float) -> None:
        self._until = self._until or time.monotonic() + seconds

    def signal(self, number: int) -> None:
        """Hands a signal to the ranks, which answer it."""
        self._signal = number
        self._started.send({"signal": number})

    @property
    def status(self) -> int:
        """Exit status for the command."""
        ended = [status if status >= 0 else 128 - status for status in self.statuses if status]
        by_signal = 128 + (signal.SIGTERM if self._head_gone else self._signal)
        usual = by_signal if by_signal > 128 and not self.statuses else 0
        return next((status for status in STOPPED if status in ended), ended[0] if ended else usual)


def _places(placed: Placed) -> str:
    ranks = map(placed.ranks_of, range(len(placed.names)))
    return "ranks: " + ", ".join(f"{name}: rank {as_spans(own)}" for name, own in zip(placed.names, ranks, strict=True))


@dataclass(frozen=True)
class Job:
    """A command that is to run as several ranks.

    Args:
        arguments: of Python, for each rank.
        run: the run's folder.
        resource: that a rank takes one of (:class:`Plan`).
        count: of nodes, and ``each`` ranks on each, as far as the user has said it.
        divides: returns whether a number of ranks can share the run's slots and groups.
        say: shows a line.
        placement: of :class:`Plan`.
    """

    launcher: Literal["local", "ray"]
    arguments: list[str]
    run: Path
    resource: str
    count: int | None
    each: int | None
    address: str
    init_timeout_s: float
    agent_timeout_s: float
    stop_timeout_s: float
    max_restarts: int
    divides: Callable[[int], bool]
    say: Callable[[str], None]
    placement: Placing | None = None

    @property
    def grace_s(self) -> float:
        """Time in which ranks save and end after a signal."""
        return self.stop_timeout_s + 10.0


def launch(job: Job) -> int:
    """Runs the ranks of a job to their end, with restarts; returns the exit status.

    Raises:
        EmbodiedError: they cannot be started; what ended them.
    """
    if job.launcher == "ray" and find_spec("ray") is None:
        raise ConfigError("cluster.launcher is ray, and Ray is not installed", f"{INSTALL}, on all nodes")
    made = _make_folder(job.run)
    try:
        restarts, shapes, lost = 0, list[Shape](), list[str]()
        while True:
            watch = _run_once(job, shapes, lost, restarts)
            refuse(watch.refused)
            if watch.cause is None:
                return watch.status
            if restarts == job.max_restarts or not watch.cause.again:
                raise watch.cause.error()
            restarts += 1
            shapes = shapes_after_loss(Shape(tuple(watch.placed.counts)), job.divides)
            lost += filter(None, [watch.cause.node_id])
            job.say(
                f"{watch.cause.text} {watch.cause.detail}\n"
                f"restart {restarts} of {job.max_restarts}: the run goes on from its newest checkpoint"
            )
    finally:
        for folder in made:
            with suppress(OSError):  # it holds a run now
                folder.rmdir()


def _make_folder(path: Path) -> list[Path]:
    """Makes a folder; returns those that were made, the innermost first."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    return missing


def _run_once(job: Job, shapes: list[Shape], lost: list[str], restarts: int) -> Watch:
    arguments = job.arguments if restarts == 0 or not (job.run / "checkpoints").is_dir() else going_on(job.arguments)
    with _started(replace(job, arguments=arguments), shapes, lost) as started:
        watch = Watch(started, job.grace_s, job.say)
        before = {number: signal.signal(number, lambda number, _: watch.signal(number)) for number in BY_SIGNAL}
        try:
            watch.run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return watch


def going_on(arguments: list[str]) -> list[str]:
    """Returns the arguments of a run that goes on from its newest checkpoint.

    >>> going_on(["-m", "embodied.train", "runner.resume_dir=null", "env=fake"])
    ['-m', 'embodied.train', 'env=fake', 'runner.resume_dir=auto']
    """
    return [*(word for word in arguments if not word.startswith("runner.resume_dir=")), "runner.resume_dir=auto"]


@contextmanager
def _started(job: Job, shapes: list[Shape], lost: list[str]) -> Iterator[Started]:
    nonce = job.run.absolute() / f".seen-by-all-nodes-{os.getpid()}"
    started: Started
    try:
        if job.launcher == "local":
            started = Local(_local_order(job), "localhost")
        else:
            nonce.write_text(secrets.token_hex(16), encoding="utf-8")
            started = ByRay(_plan(job, shapes, lost, nonce))
        try:
            yield started
        finally:
            started.close()
    finally:
        nonce.unlink(missing_ok=True)


def _local_order(job: Job) -> Order:
    each = job.each or 1
    return Order(job.arguments, "local", 0, each, 0, each, "127.0.0.1", free_port("127.0.0.1"), os.getcwd())


def _plan(job: Job, shapes: list[Shape], lost: list[str], nonce: Path) -> Plan:
    return Plan(
        job.arguments, os.getcwd(), str(job.run.absolute()), str(nonce), job.address, job.resource, job.count, job.each,
        job.init_timeout_s, job.agent_timeout_s, job.grace_s, [[*shape.counts] for shape in shapes], lost,
        job.placement,
    )  # fmt: skip
