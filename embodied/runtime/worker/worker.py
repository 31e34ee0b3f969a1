"""The env worker: a process that hosts env slots, executes whole chunks, and renders once at the end of each.

Started by :mod:`embodied.runtime.pool.process` through :mod:`embodied.runtime.pool.start_worker`. It waits for
{commands, the launcher's end of the socket} in one poll and ends with its launcher. It imports neither torch nor the
policy; what the simulator imports is the simulator's affair. GL contexts exist only here.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from embodied.errors import EmbodiedError
from embodied.lib.child import end_with_parent
from embodied.lib.targets import load_target
from embodied.protocols import Batched, BatchEnv, BatchHasProgressFeatures, Env, HasProgressFeatures, MovesCameras
from embodied.runtime.channel import Channel, Command, Completion, Kind, Ring
from embodied.runtime.messages import Notice, Ready, WorkerSetup, receive, send
from embodied.runtime.slab import FEATURES, Slab
from embodied.runtime.worker.batch import Rounds
from embodied.runtime.worker.declared import Declared, OtherEnv
from embodied.runtime.worker.expert import ExpertJob, Experts
from embodied.runtime.worker.perturb import Disturbance
from embodied.runtime.worker.slot import Slot, WorkerRows, start_of, wants_observation
from embodied.types import WorkerFacts

TOGETHER_S = 0.0005
"""Seconds. Chunks that take less in all are announced together: waking the launcher would cost more than they do, and a
call of the policy takes longer."""


class Singles:
    """Executes commands for slots with one env each, one after another."""

    def __init__(
        self, envs: Mapping[int, tuple[Env, Slot]], rows: WorkerRows, completions: Ring, next_message: Callable[[], Any]
    ) -> None:
        self._envs, self._rows, self._completions, self._next_message = envs, rows, completions, next_message

    def execute(self, commands: Sequence[Command | Completion]) -> None:
        """Execute commands one after another. A command that takes less time than waking the launcher is announced with
        the next one. If the next one raises, the announcement comes first: else the error would be blamed on the slot
        before."""
        announced = time.monotonic()
        try:
            for command, following in zip(commands, [*commands[1:], None], strict=True):
                assert isinstance(command, Command)
                done, now = self._do(command), time.monotonic()
                quick = now - announced < TOGETHER_S and command.kind == Kind.STEP
                together = quick and following is not None and following.kind == Kind.STEP
                self._completions.put(done, announce=not together)
                announced = announced if together else now
        except Exception:
            self._completions.announce()
            raise

    def _do(self, command: Command) -> Completion:
        if command.kind == Kind.OBSERVE:
            env, slot = self._envs[command.slot]
            began = time.monotonic()
            return Completion(
                Kind.OBSERVE, command.slot, began=began, render_s=self._observe(env, slot, command.next_row)
            )
        return self._reset(command) if command.kind == Kind.RESET else self._step(command)

    def _reset(self, command: Command) -> Completion:
        env, slot = self._envs[command.slot]
        video = self._next_message() if command.video else None
        disturbance = Disturbance(env.spec, self._next_message()) if command.perturbed else None
        began = time.monotonic()
        env.reset(start_of(command))
        if disturbance is not None:
            _move_cameras(env, disturbance)
        slot.begin(command, video, disturbance)
        reset_s = time.monotonic() - began
        observed = command.next_row >= 0
        render_s = self._observe(env, slot, command.next_row) if observed else 0.0
        return Completion(Kind.RESET, command.slot, observed=observed, began=began, reset_s=reset_s, render_s=render_s)

    def _step(self, command: Command) -> Completion:
        env, slot = self._envs[command.slot]
        actions = self._rows.actions(command.row)
        began, late_s, disturbance = time.monotonic(), 0.0, slot.disturbance
        slot.begin_chunk(len(actions), command.row)
        for action in slot.executed(actions):
            goes_on = slot.count(env.step(action))
            if disturbance is not None and (late := disturbance.stepped(goes_on)) is not None:
                stepped = time.monotonic()
                env.observe(late)
                late_s += time.monotonic() - stepped
            if not goes_on:
                break
        step_s = time.monotonic() - began - slot.video_s - late_s
        result = slot.result
        self._rows.write(command.row, result)
        observed = wants_observation(command, result)
        render_s = late_s + (self._observe(env, slot, command.next_row) if observed else 0.0)
        ended = result.terminated or result.truncated
        if ended:
            slot.end()
        # by position, which takes half as long as by name: kind … observed, began, reset_s, step_s, render_s, video_s
        return Completion(
            Kind.STEP, command.slot, result.num_steps, ended, observed, began, 0.0, step_s, render_s, slot.video_s
        )

    def _observe(self, env: Env, slot: Slot, row: int) -> float:
        started, out = time.perf_counter(), self._rows.observation(row)
        if (target := slot.target(out)) is not None:
            env.observe(target)
        slot.show(out)
        return time.perf_counter() - started - slot.shown_s

    def close(self) -> None:
        for env, slot in self._envs.values():
            slot.discard_video()
            env.close()


class Worker:
    """An env worker process: makes the envs and executes the commands for its slots."""

    def __init__(self, setup: WorkerSetup, launcher: socket.socket) -> None:
        self._launcher = launcher
        self._messages: deque[Any] = deque()  # received, not used yet
        self._noticed = False
        if setup.cores:
            os.sched_setaffinity(0, setup.cores)
        self._channel = Channel(setup.channel)
        self._slab = Slab.attach(setup.slab_fd, setup.slab_fields, setup.slab_rows)
        sys.path += [folder for folder in setup.sys_path if folder not in sys.path]
        self._make = load_target(setup.env_target, "env._target_")
        self._setup = setup
        env, self.facts = self._prepared(compared=True)
        self._host = self._make_host(env)

    def _prepared(self, compared: bool = False) -> tuple[Env, WorkerFacts]:
        """Makes an env. Raises :class:`OtherEnv` if it is ``compared`` with the launcher's and is another."""
        env: Env = self._make(**self._setup.env_kwargs)
        wanted = self._setup.declared if compared else None
        if wanted is not None and (declared := Declared.of(env)).digest != wanted:
            raise OtherEnv(declared)
        return env, env.prepare() or WorkerFacts(os.getpid(), "unknown", "the env's prepare() said nothing")

    def _slot(self, env: Env, frame: Callable[[], np.ndarray], features: Callable[[], np.ndarray] | None) -> Slot:
        setup = self._setup
        decision = partial(setup.shown.text, self._slab.arrays) if setup.shown is not None else None
        chunk = self._slab.arrays["rewards"].shape[1]
        rewards = replace(setup.reward), replace(setup.eval_reward or setup.reward)
        recorded = self._slab.arrays.get(FEATURES)  # [R, 2, F]
        read, size = (None, 0) if recorded is None else (features, recorded.shape[-1])
        return Slot(env.spec, rewards, frame, chunk, decision, setup.live, self._notice, read, size)

    def _notice(self, text: str) -> None:
        """Tells the launcher, once: it hears when an episode has ended."""
        if not self._noticed:
            self._noticed = True
            with suppress(OSError):
                send(self._launcher, Notice(text))

    def _make_host(self, first: Env) -> Singles | Rounds | Experts:
        if self._setup.expert is not None:
            return self._experts(first, self._setup.expert)
        return self._rounds(first) if isinstance(first, Batched) else self._singles(first)

    def _envs(self, first: Env) -> dict[int, Env]:
        """An env for each slot."""
        envs = [first, *(self._prepared()[0] for _ in self._setup.slots[1:])]
        return dict(zip(self._setup.slots, envs, strict=True))

    def _singles(self, first: Env) -> Singles:
        slots = {index: (env, self._slot(env, env.frame, _features(env))) for index, env in self._envs(first).items()}
        rows = WorkerRows(self._slab, first.spec.obs)
        return Singles(slots, rows, self._channel.completions, self._next_message)

    def _experts(self, first: Env, job: ExpertJob) -> Experts:
        slots = {index: (env, self._slot(env, env.frame, None)) for index, env in self._envs(first).items()}
        return Experts(slots, job, self._slab, self._channel.completions, self._next_message)

    def _rounds(self, env: Env) -> Rounds:
        assert isinstance(env, Batched)
        names, batch, spec = self._setup.slots, env.batch(len(self._setup.slots)), env.spec
        slots = [
            self._slot(env, partial(batch.frame, number), _features_of_slot(env, batch, number))
            for number in range(len(names))
        ]
        rows = WorkerRows(self._slab, spec.obs)
        return Rounds(batch, spec, slots, names, rows, self._channel.completions, self._next_message)

    def _next_message(self) -> Any:
        """Returns the next message to a RESET from the socket: the file of its video, then its perturbation. A list
        has those of one RESET or more."""
        if not self._messages:
            self._messages.extend(receive(self._launcher))
        return self._messages.popleft()

    def serve(self) -> None:
        """Serve commands until the launcher closes its end of the socket."""
        poll = select.poll()
        poll.register(self._channel.handles.go_fd, select.POLLIN)
        poll.register(self._launcher, 0)  # only hang-up: data on it is read when a RESET announces it
        while True:
            events = dict(poll.poll())
            if self._launcher.fileno() in events:
                return
            self._channel.commands.hush()
            if commands := self._channel.commands.take():  # empty if an earlier wake-up took them
                self._host.execute(commands)

    def close(self) -> None:
        self._host.close()


def _move_cameras(env: Env, disturbance: Disturbance) -> None:
    for camera, translation, rotation in disturbance.moves():
        assert isinstance(env, MovesCameras)  # preflight refuses the others
        env.move_camera(camera, translation, rotation)


def _features(env: Env) -> Callable[[], np.ndarray] | None:
    return env.progress_features if isinstance(env, HasProgressFeatures) else None


def _features_of_slot(env: Env, batch: BatchEnv, slot: int) -> Callable[[], np.ndarray] | None:
    if not isinstance(env, HasProgressFeatures):
        return None
    return partial(cast(BatchHasProgressFeatures, batch).progress_features, slot)


def _failure(error: Exception) -> Ready:
    if isinstance(error, OtherEnv):
        return Ready(declared=error.declared)
    return Ready(error=error if isinstance(error, EmbodiedError) else None, traceback=traceback.format_exc())


def main() -> int:
    end_with_parent()  # it may be blocked inside the simulator then
    faulthandler.enable()  # a crash in the simulator's native code leaves its stack in the worker's log
    faulthandler.register(signal.SIGUSR1)  # the launcher asks a hung worker where it stands
    for stop in (signal.SIGINT, signal.SIGTERM):  # the whole process group often gets them; the launcher handles them
        signal.signal(stop, signal.SIG_IGN)
    launcher = socket.socket(fileno=int(sys.argv[1]))
    worker = None
    try:
        setup: WorkerSetup = receive(launcher)
        if setup.guarded:
            end_with_parent(number=0)  # its guardian stops the robot first (embodied.runtime.pool.safe_stop)
        worker = Worker(setup, launcher)
        send(launcher, Ready(worker.facts))
        worker.serve()
    except (EOFError, BrokenPipeError):
        return 0
    except Exception as error:  # noqa: BLE001 (any failure of any simulator is reported to the launcher)
        send(launcher, _failure(error))
        return 1
    finally:
        if worker is not None:
            worker.close()
        sys.stdout.flush()
    return 0
