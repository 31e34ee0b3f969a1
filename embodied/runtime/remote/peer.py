"""One simulator host as the rollout sees it: how it is started and reached, what its slots were given, what it says."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field
from typing import Any

from embodied.errors import ConfigError, EmbodiedError, WorkerDiedError
from embodied.observe.video.video import Video
from embodied.perturbations import Draws
from embodied.runtime.channel import Command, Completion, Kind
from embodied.runtime.pool.books import Books
from embodied.runtime.ports import Back, Event, Lost
from embodied.runtime.remote.starter import KEY_BYTES, HostJob, HostStarter, StartedHost
from embodied.runtime.remote.wire import frames
from embodied.runtime.remote.wire.clock import Clock
from embodied.runtime.remote.wire.frames import ATTEMPT, COMMAND, COMPLETION, DamagedFrame, Frame, FrameKind, Rows
from embodied.runtime.remote.wire.handshake import SESSION_BYTES, NotOpened, Opened, dial
from embodied.runtime.remote.wire.link import Link
from embodied.types import WorkerFacts

DIAL_S = 3.0  # seconds of an attempt to reach a host; short, so that a link that is whole again is soon used
AGAIN_S = 0.3  # pause between two attempts to reach a host
REFUSALS = 3  # attempts that a host may break off, or seem to be of another version, before it counts as gone
DAMAGES = 3  # connections in a row that break without one new frame


@dataclass
class RemoteWorker(Books):
    """Slots of a host that wait for each other; without batches, all of a host's."""

    batch: bool
    pending: dict[int, Command] = field(default_factory=dict)
    resets: int = 0
    in_episode: set[int] = field(default_factory=set)


Found = Opened | Exception


class Peer:
    """A host from its start to its end. One that takes its place is another peer.

    Args:
        slots: that it serves, as the rollout counts; the host counts from 0.
        rows: of the rollout's slab.
        tell: called by a thread with the peer and what it has found.
    """

    def __init__(
        self, index: int, slots: tuple[int, ...], job: HostJob, rows: Rows, say: Callable[[str], None],
        tell: Callable[[Peer, Found], None],
    ) -> None:  # fmt: skip
        self.index, self.slots, self._job, self._rows, self._say, self._tell = index, slots, job, rows, say, tell
        self._numbers = {slot: number for number, slot in enumerate(slots)}
        self.link = Link(self._large)
        self._key, self._session = os.urandom(KEY_BYTES), os.urandom(SESSION_BYTES)
        self._lock = threading.Lock()
        self._dropped = False
        self.started: StartedHost | None = None
        self.reached = False  # it was connected before
        self.dialing = False
        self.served = False  # some slot took commands before
        self.restarts = 0  # of its workers
        self.rested = False
        self.memory: int | None = None  # bytes of its workers, once it was asked
        self.clock = Clock()
        self._broke_at = 0  # frames taken when the connection broke the last time
        self._broken = 0  # connections that broke without a new frame since
        self._workers: dict[int, RemoteWorker] = {}  # by number of the group
        self._group = [0] * len(slots)
        self._simulators = [*range(len(slots))]
        self._attempts = [0] * len(slots)
        self._filmed = [False] * len(slots)
        self.up: set[int] = set()  # these two: slots as the rollout counts
        self.pending: dict[int, Command] = {}
        self._facts: dict[int, WorkerFacts] = {}  # by slot
        self._shares_folder = False

    # -- starting and reaching ---------------------------------------------------------------------------------------

    def start(self, starter: HostStarter, avoid: AbstractSet[str]) -> None:
        """Start the host and reach it, in a thread."""
        self.dialing = True
        self._in_thread(lambda: self._start(starter, avoid))

    def dial(self, until: float) -> None:
        """Reach the host again, in a thread, until the monotonic time ``until``."""
        taken, why = self.link.taken, self.link.broken
        self.link.detach()
        self._broken = self._broken + 1 if taken == self._broke_at else 0
        self._broke_at, self.dialing = taken, True
        if isinstance(why, DamagedFrame) and self._broken >= DAMAGES:
            return self._tell(self, self.gone(f"sends damaged frames: {why}"))
        self._in_thread(lambda: self._tell(self, self._dial(until, taken)))

    def attach(self, opened: Opened) -> None:
        """Go on over a connection. Raises :class:`DamagedFrame` if the host does not know what was sent before."""
        self.dialing, self.reached = False, True
        self.link.attach(*opened)

    def drop(self) -> None:
        """Give the host up: close its connection and end its process, as far as it can be reached."""
        with self._lock:
            self._dropped = True
        self.link.detach()
        if self.started is not None:
            self.started.stop()

    @property
    def name(self) -> str:
        """The host in words."""
        where = f" ({self.started.node}, {self.started.address})" if self.started is not None else ""
        return f"simulator host {self.index}{where}"

    def gone(self, what: str) -> WorkerDiedError:
        """Makes the error for a host that is lost, with the end of its log."""
        detail = self.started.tail() if self.started is not None else ""
        return WorkerDiedError(
            f"{self.name} {what}",
            "see the host's log and whether its node is up; if the network only stands still now and then, raise "
            "cluster.node_timeout_s",
            detail,
        )

    def _in_thread(self, work: Callable[[], None]) -> None:
        def caught() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 (raised by the thread of the rollout)
                self._tell(self, error)

        threading.Thread(target=caught, daemon=True, name=f"host {self.index}").start()

    def _start(self, starter: HostStarter, avoid: AbstractSet[str]) -> None:
        started = starter.start(self.index, self._job, self._key, avoid)
        with self._lock:
            self.started, dropped = started, self._dropped
        if dropped:
            return started.stop()
        self._tell(self, self._dial(time.monotonic() + self._job.silence_s, 0))

    def _dial(self, until: float, taken: int) -> Opened | Exception:
        """Tries to reach the host. Returns why it cannot be, if so."""
        assert self.started is not None
        refused: list[Exception] = []
        while True:
            try:
                limit = max(AGAIN_S, min(DIAL_S, until - time.monotonic()))
                return dial(self.started.address, self._key, self._session, taken, limit)
            except ConnectionRefusedError:
                return self.gone("has ended")
            except (NotOpened, EmbodiedError) as error:
                refused.append(error)
                if len(refused) == REFUSALS:
                    return self._refused(refused)
            except OSError as error:
                if time.monotonic() > until:
                    return self.gone(f"has not answered for {self._job.silence_s:g} s ({error})")
            if self._dropped:
                return self.gone("was given up")
            time.sleep(AGAIN_S)

    def _refused(self, errors: list[Exception]) -> Exception:
        """Returns why a host is lost. It is of another version if it says so each time and was never reached; one such
        hello may have been damaged on its way."""
        if not self.reached and all(isinstance(error, EmbodiedError) for error in errors):
            return errors[-1]
        return self.gone(f"has ended or does not know this rollout: {getattr(errors[-1], 'message', errors[-1])}")

    # -- commands ----------------------------------------------------------------------------------------------------

    def give(self, command: Command, video: Video | None, draws: Draws | None) -> None:
        """Give a slot its next command; :meth:`Link.flush` sends it.

        Raises:
            EmbodiedError: the host cannot write the video.
        """
        local = self._numbers[command.slot]
        if video is not None and not self._shares_folder:
            raise _unwritten(self.name, video)
        if command.kind == Kind.RESET:
            self._filmed[local] = video is not None and video.info
        row, decision = -1, b""
        if command.kind == Kind.STEP:
            row, decision = 2 * local, self._rows.decision(command.row, self._filmed[local])
        following = 2 * local + 1 if command.next_row >= 0 else -1
        small = ATTEMPT.pack(self._attempts[local])
        small += COMMAND.pack(*command._replace(slot=local, row=row, next_row=following)) + decision
        said = {"video": video and asdict(video.absolute()), "draws": draws and asdict(draws)}
        if said := {name: value for name, value in said.items() if value is not None}:
            small += frames.to_text(said)
        self.link.put(FrameKind.COMMAND, local, small)
        self.pending[command.slot] = command
        self._worker(local).note(command)

    def forgive(self, slot: int) -> None:
        self.link.put(FrameKind.FORGIVE, self._numbers[slot])

    def ask(self, kind: int) -> None:
        """Tell the host to rest, to wake, or to report its memory. It does so after what it was told before."""
        self.link.put(kind)
        if kind == FrameKind.REST:
            self.rested = False
            self.up.clear()
            self.pending.clear()
            self._workers.clear()
            self._facts.clear()
        self.memory = None

    # -- what is known -----------------------------------------------------------------------------------------------

    @property
    def moving(self) -> Iterator[int]:
        """Slots whose command will be answered whatever is sent or not."""
        for worker in self._workers.values():
            yield from worker.moving

    def group_of(self, slot: int) -> int:
        return self._group[self._numbers[slot]]

    def simulators_of(self, slot: int) -> int:
        return self.slots[self._simulators[self._numbers[slot]]]

    @property
    def facts(self) -> list[WorkerFacts]:
        """Facts of the workers that serve, each once."""
        return [*{facts.pid: facts for _, facts in sorted(self._facts.items())}.values()]

    def _worker(self, local: int) -> RemoteWorker:
        batch = self._job.pool.batch
        group = self._group[local] if batch else 0
        if group not in self._workers:
            self._workers[group] = RemoteWorker(batch)
        return self._workers[group]

    # -- what it says ------------------------------------------------------------------------------------------------

    def hear(self, frame: Frame, now: float) -> list[Event]:
        """Take a frame in. Returns the event that it tells of, if any.

        Raises:
            EmbodiedError: the host's pool has failed for good.
            DamagedFrame: the frame makes no sense.
        """
        self.clock.heard(frame.clock, now)
        if frame.kind == FrameKind.DONE:
            return [self._done(frame)]
        if frame.kind == FrameKind.NOTE:
            self._say(frame.small.decode(errors="replace"))
        elif frame.kind == FrameKind.RESTED:
            self.rested = True
            self.up.clear()  # what came back before it rested
            self._facts.clear()
        elif frame.kind in (FrameKind.LOST, FrameKind.BACK, FrameKind.FAILED, FrameKind.MEMORY):
            return self._told(frame, frames.from_text(frame.small))
        elif frame.kind != FrameKind.ALIVE:
            raise DamagedFrame(f"a frame of kind {frame.kind}")
        return []

    def _told(self, frame: Frame, said: Any) -> list[Event]:
        try:
            if frame.kind == FrameKind.FAILED:
                raise frames.error_from_json(said)
            if frame.kind == FrameKind.MEMORY:
                self.memory = int(said["bytes"])
                return []
            slot = self._slot(frame.slot)
            self.restarts = int(said["restarts"])
            if frame.kind == FrameKind.LOST:
                return [self._lost(slot, frames.error_from_json(said["error"]), int(said["suspects"]))]
            group, simulators = int(said["group"]), self._slot(int(said["simulators"]))
            self._shares_folder = bool(said["shares_folder"])
            self._facts[slot] = WorkerFacts(**said["facts"])
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedFrame(f"a frame of kind {frame.kind} with other fields") from error
        self._group[frame.slot], self._simulators[frame.slot] = group, self._numbers[simulators]
        self.up.add(slot)
        self.served = True
        return [Back(slot)]

    def _slot(self, local: int) -> int:
        if not 0 <= local < len(self.slots):
            raise DamagedFrame(f"slot {local}, and there are {len(self.slots)}")
        return self.slots[local]

    def _lost(self, slot: int, error: Exception, suspects: int) -> Lost:
        local = self._numbers[slot]
        if slot in self.pending:
            self._forget_command(local)
        self._worker(local).in_episode.discard(slot)
        self.up.discard(slot)
        self._facts.pop(slot, None)
        self._attempts[local] += 1
        return Lost(slot, error, suspects)

    def _forget_command(self, local: int) -> None:
        command, worker = self.pending.pop(self.slots[local]), self._worker(local)
        del worker.pending[command.slot]
        worker.resets -= command.kind == Kind.RESET

    def lose_all(self, error: Exception) -> list[Event]:
        """Returns the loss of every slot that was up; the env is not to blame."""
        return [self._lost(slot, error, 0) for slot in sorted(self.up)]

    def _answered(self, kind: int, local: int, small: bytes) -> tuple[Command, Completion]:
        """Reads a completion, which must answer the slot's command."""
        command = self.pending.get(self._slot(local))
        if command is None or len(small) < COMPLETION.size:
            raise DamagedFrame(f"slot {local} was given nothing that this could answer")
        done = Completion(*COMPLETION.unpack_from(small))
        if done.slot != local or done.kind != command.kind or (done.observed and command.next_row < 0):
            raise DamagedFrame(f"slot {local} was given {command}, and answers {done}")
        return command, done

    def _large(self, kind: int, local: int, small: bytes) -> list[memoryview]:
        """Where an observation belongs: into the row that the rollout has named."""
        if kind != FrameKind.DONE:
            return []
        command, done = self._answered(kind, local, small)
        return self._rows.observation(command.next_row) if done.observed else []

    def _done(self, frame: Frame) -> Completion:
        local = frame.slot
        command, done = self._answered(frame.kind, local, frame.small)
        if done.kind == Kind.STEP:
            self._rows.write_result(command.row, frame.small[COMPLETION.size :])
        done = done._replace(slot=command.slot, began=self.clock.ours(done.began))
        del self.pending[command.slot]
        self._worker(local).cross_off(done)
        return done


def _unwritten(host: str, video: Video) -> EmbodiedError:
    return ConfigError(
        f"{host} does not see the run's folder, so that it cannot write the video {video.file}",
        "put the run's folder (runner.logger.log_path) where all nodes see it, or record no videos "
        "(env.train.video_cfg.save_video=false, env.eval.video_cfg.save_video=false)",
    )
