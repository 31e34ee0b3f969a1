"""A simulator host: today's pool of workers, driven by frames instead of calls.

    frames ──▶ Host ──▶ Pool ══ slab: two rows a slot, of its decision and its observation ══ workers
    frames ◀── Host ◀── Pool

It knows slots, rows and commands of its own, and neither episodes nor policies. It ends when it is told to, or when it
has heard nothing for as long as the rollout waits for it; its workers end with it.
"""

from __future__ import annotations

import select
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

from embodied.observe.video.video import Video
from embodied.perturbations import Draws, Perturbation
from embodied.runtime.channel import Command, Completion, Kind
from embodied.runtime.pool.fork_server import ForkServer
from embodied.runtime.pool.placement import visible_gpus
from embodied.runtime.pool.pool import Pool, PoolConfig, num_workers
from embodied.runtime.ports import Back, Event, Lost
from embodied.runtime.remote.folders import temporary_folder
from embodied.runtime.remote.starter import Address, HostJob
from embodied.runtime.remote.wire import frames
from embodied.runtime.remote.wire.frames import ATTEMPT, COMMAND, COMPLETION, DamagedFrame, Frame, FrameKind, Rows
from embodied.runtime.remote.wire.handshake import Caller, Door
from embodied.runtime.remote.wire.link import ALIVE_S, Link
from embodied.runtime.slab import Slab

LINGER_S = 10.0  # seconds in which the reason of its end is to be fetched


class Host:
    """Serves the slots of one rollout.

    Args:
        bind: address to listen at; port 0 = any.
    """

    def __init__(self, job: HostJob, key: bytes, bind: Address) -> None:
        self._job, self._slots = job, job.pool.num_slots
        self._door = Door(bind, key)
        self.address = self._door.address
        self._link = Link(self._large)
        self._session: bytes | None = None
        self._told_to_end = False
        self._given: dict[int, Command] = {}  # commands that the pool has
        self._attempts = [0] * self._slots  # how often each slot was lost
        self._filmed = [False] * self._slots  # the slot's episode has a video that shows decisions
        self._resting = False

    # -- life --------------------------------------------------------------------------------------------------------

    def serve(self) -> int:
        """Serve until the end; returns the exit status."""
        ended = threading.Event()
        threading.Thread(target=self._show_life, args=(ended,), daemon=True, name="alive").start()
        with ExitStack() as opened:
            opened.callback(ended.set)
            opened.callback(self._door.close)
            opened.callback(self._link.detach)
            try:
                # reached first: to start workers may take longer than the rollout waits for a word
                while not self._link.attached and self._goes_on(self._job.silence_s):
                    self._exchange(None)
                if not self._link.attached:
                    return 0
                self._open(opened)
                self._link.heard = time.monotonic()  # nobody has listened meanwhile
                while self._goes_on(self._job.silence_s):
                    self._exchange(self._pool)
                    if not self._resting:
                        self._tell(self._pool.recv(1, timeout=0.0))
                return 0
            except Exception as error:  # noqa: BLE001 (whatever it is belongs to the rollout)
                print(f"the host ends: {error}", flush=True)
                self._link.put(FrameKind.FAILED, small=frames.to_text(frames.error_to_json(error)))
                self._link.heard = time.monotonic()
                while self._goes_on(LINGER_S):
                    self._exchange(None)
                return 1

    def _open(self, opened: ExitStack) -> None:
        config, job = self._config(opened), self._job
        self._slab = Slab.create(job.fields, 2 * self._slots, "host.slab")
        opened.callback(self._slab.close)
        self._rows = Rows(self._slab, job.obs)
        if job.forks:
            envs = [(config.env_target, config.env_kwargs)]
            server = ForkServer(envs, config.log_dir, config.deadlines.init, config.gpus, config.python, self._say)
            opened.callback(server.close)
            config = replace(config, server=server)
        self._pool = Pool(config, self._slab, self._say, wait=False)
        opened.callback(self._pool.close)

    def _config(self, opened: ExitStack) -> PoolConfig:
        """Returns the pool's settings with what only this node knows."""
        job, config = self._job, self._job.pool
        sys.path += [folder for folder in job.sys_path if folder not in sys.path]
        self._shares_folder = (config.log_dir / job.proof).is_file()
        logs = config.log_dir
        if not self._shares_folder:
            logs = opened.enter_context(temporary_folder())
        gpus = visible_gpus() if job.gpus is None else job.gpus
        workers = config.num_workers or (max(1, len(gpus)) if config.batch else None)
        return replace(config, log_dir=logs, gpus=gpus, num_workers=num_workers(workers, self._slots, config.ranks))

    def _goes_on(self, silence_s: float) -> bool:
        if self._told_to_end:
            return False
        silent = time.monotonic() - self._link.heard
        if silent > silence_s:
            print(f"the host ends: it has heard nothing for {silent:.0f} s", flush=True)
            return False
        return True

    def _show_life(self, ended: threading.Event) -> None:
        """Runs in a thread of its own: the pool may take its time, e.g. to start its workers."""
        while not ended.wait(ALIVE_S):
            self._link.alive()

    def _say(self, text: str) -> None:
        self._link.put(FrameKind.NOTE, small=text.encode())

    # -- frames ------------------------------------------------------------------------------------------------------

    def _exchange(self, pool: Pool | None) -> None:
        """Send what there is, wait up to a second for something to do, and obey what has come."""
        waiting = select.poll()
        waiting.register(self._door, select.POLLIN)
        if pool is not None:
            waiting.register(pool, select.POLLIN)
        flushed = self._link.flush()
        if self._link.attached:
            waiting.register(self._link, select.POLLIN if flushed else select.POLLIN | select.POLLOUT)
        waiting.poll(1000 * ALIVE_S)
        for caller in self._door.callers():
            self._receive(caller)
        for frame in self._link.read():
            if pool is not None or frame.kind == FrameKind.BYE:
                self._obey(frame)
        if self._link.broken is not None:
            print(f"the connection is broken: {self._link.broken}", flush=True)
            self._link.detach()

    def _receive(self, caller: Caller) -> None:
        """Go on with the rollout that has come to the door, and send another one away."""
        if self._session is None:
            self._session = caller.session
        if caller.session != self._session:
            return caller.refuse()
        self._link.detach()
        try:
            self._link.attach(*caller.accept(self._link.taken))
        except (OSError, DamagedFrame) as error:
            print(f"the connection is broken: {error}", flush=True)
            self._link.detach()

    def _large(self, kind: int, slot: int, small: bytes) -> list[memoryview]:
        return []

    def _obey(self, frame: Frame) -> None:
        if frame.kind == FrameKind.COMMAND:
            self._command(frame.slot, frame.small)
        elif frame.kind == FrameKind.FORGIVE:
            self._pool.forgive(self._checked(frame.slot))
        elif frame.kind == FrameKind.MEMORY:
            self._link.put(FrameKind.MEMORY, small=frames.to_text({"bytes": self._pool.memory}))
        elif frame.kind == FrameKind.REST:
            self._resting = True
            self._pool.rest()
            self._given.clear()
            self._link.put(FrameKind.RESTED)
        elif frame.kind == FrameKind.WAKE:
            self._resting = False
            self._pool.wake(wait=False)
        elif frame.kind == FrameKind.BYE:
            self._told_to_end = True
        elif frame.kind != FrameKind.ALIVE:
            raise DamagedFrame(f"a frame of kind {frame.kind}")

    def _checked(self, slot: int) -> int:
        if not 0 <= slot < self._slots:
            raise DamagedFrame(f"slot {slot}, and there are {self._slots}")
        return slot

    def _command(self, slot: int, small: bytes) -> None:
        """Give the pool a command, unless its slot was lost while it was on its way."""
        at = ATTEMPT.size + COMMAND.size
        if len(small) < at:
            raise DamagedFrame(f"a command of {len(small)} bytes")
        command = Command(*COMMAND.unpack_from(small, ATTEMPT.size))
        own = (2 * self._checked(slot), 2 * slot + 1, -1)
        if command.slot != slot or command.row not in own or command.next_row not in own:
            raise DamagedFrame(f"slot {slot} has the rows {own}, and not those of {command}")
        if ATTEMPT.unpack_from(small)[0] != self._attempts[slot]:
            return
        if command.kind == Kind.STEP:
            size = self._rows.decision_bytes(self._filmed[slot])
            self._rows.write_decision(command.row, small[at : at + size], self._filmed[slot])
            at += size
        video, draws = _extras(frames.from_text(small[at:]) if len(small) > at else {})
        if command.kind == Kind.RESET:
            self._filmed[slot] = video is not None and video.info
        self._given[slot] = command
        self._pool.send(command, video, draws)

    # -- events ------------------------------------------------------------------------------------------------------

    def _tell(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Completion):
                self._done(event)
            elif isinstance(event, Lost):
                self._lost(event)
            else:
                self._back(event)

    def _done(self, done: Completion) -> None:
        command, small = self._given.pop(done.slot), COMPLETION.pack(*done)
        if done.kind == Kind.STEP:
            small += self._rows.result(command.row)
        large = self._rows.observation(command.next_row) if done.observed else ()
        self._link.put(FrameKind.DONE, done.slot, small, large)

    def _lost(self, lost: Lost) -> None:
        self._given.pop(lost.slot, None)
        self._attempts[lost.slot] += 1
        error = frames.error_to_json(lost.error)
        said = {"error": error, "suspects": lost.suspects, "restarts": self._pool.restarts}
        self._link.put(FrameKind.LOST, lost.slot, frames.to_text(said))

    def _back(self, back: Back) -> None:
        pool, facts = self._pool, self._pool.facts_of(back.slot)
        assert facts is not None
        said = {
            "group": pool.group_of(back.slot), "simulators": pool.simulators_of(back.slot),
            "facts": asdict(replace(facts, extra=dict(facts.extra), versions=dict(facts.versions))),
            "restarts": pool.restarts, "shares_folder": self._shares_folder,
        }  # fmt: skip
        self._link.put(FrameKind.BACK, back.slot, frames.to_text(said))


def _extras(said: Any) -> tuple[Video | None, Draws | None]:
    """Makes what a RESET needs besides."""
    try:
        video = Video(**said["video"]) if "video" in said else None
        draws = Draws(**{**said["draws"], "by": Perturbation(**said["draws"]["by"])}) if "draws" in said else None
    except (TypeError, KeyError) as error:
        raise DamagedFrame("a video or a perturbation with other fields") from error
    return video, draws
