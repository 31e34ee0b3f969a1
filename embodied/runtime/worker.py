"""The env worker: a process that hosts env slots, executes whole chunks, and renders once at the end of each.

Started by :mod:`embodied.runtime.process` through :mod:`embodied.runtime.start_worker`. It waits for {commands, the
launcher's end of the socket} in one poll and ends with its launcher. It imports neither torch nor the policy; what the
simulator imports is the simulator's affair. GL contexts exist only here.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from embodied.errors import EmbodiedError
from embodied.observe.video import VideoWriter
from embodied.protocols import Env, Reward
from embodied.runtime.channel import Channel, Command, Completion, Kind
from embodied.runtime.messages import Ready, WorkerSetup, receive, send
from embodied.runtime.slab import Slab
from embodied.targets import load_target
from embodied.types import ChunkResult, Obs, Start, WorkerFacts

TOGETHER_S = 0.0002
"""Chunks that take less are announced together: waking the launcher would cost more than they do."""


class Slot:
    """One env and the episode that runs in it."""

    def __init__(self, env: Env, reward: Reward, info_on_video: bool) -> None:
        self.env, self.reward, self._info = env, reward, info_on_video
        self._video: VideoWriter | None = None
        self._steps = self._max_steps = 0
        self._ignore_terminations = False

    def reset(self, command: Command, video: str | None) -> None:
        self._discard_video()
        self.env.reset(Start(command.task_id, command.init_state_id, command.seed))
        self.reward.begin()
        self._steps, self._max_steps = 0, command.max_steps
        self._ignore_terminations = command.ignore_terminations
        if video:
            spec = self.env.spec
            self._video = VideoWriter(Path(video), spec.control_hz, spec.tasks[command.task_id], info=self._info)
            self._record(0.0, False)

    def run_chunk(self, actions: np.ndarray) -> tuple[ChunkResult, float]:
        """Execute up to K actions; ``(result, seconds spent on the video)``. Renders nothing but video frames."""
        rewards = np.zeros(len(actions), np.float32)
        success = terminated = False
        steps, video_s = 0, 0.0
        for action in actions:
            result = self.env.step(action)
            rewards[steps] = reward = self.reward(result)
            steps += 1
            self._steps += 1
            success |= result.success
            terminated = result.terminated and not self._ignore_terminations
            if self._video is not None:
                video_s += self._record(reward, success)
            if terminated or self._steps >= self._max_steps:
                break
        truncated = self._steps >= self._max_steps and not terminated
        return ChunkResult(rewards, steps, terminated, truncated, success), video_s

    def _record(self, reward: float, success: bool) -> float:
        if self._video is None:
            return 0.0
        started = time.perf_counter()
        self._video.add(self.env.frame(), self._steps, reward, success)
        return time.perf_counter() - started

    def end(self) -> None:
        """The episode is over: finish its video."""
        if self._video is not None:
            self._video.close()
            self._video = None

    def _discard_video(self) -> None:
        if self._video is not None:
            self._video.abort()
            self._video = None

    def close(self) -> None:
        self._discard_video()
        self.env.close()


class Worker:
    """Serves the commands of its slots, in order."""

    def __init__(self, setup: WorkerSetup, launcher: socket.socket) -> None:
        self._launcher = launcher
        if setup.cores:
            os.sched_setaffinity(0, setup.cores)
        self._channel = Channel(setup.channel)
        self._slab = Slab.attach(setup.slab_fd, setup.slab_fields, setup.slab_rows)
        self._slots: dict[int, Slot] = {}
        sys.path += [folder for folder in setup.sys_path if folder not in sys.path]
        make = load_target(setup.env_target, "env._target_")
        for index in setup.slots:
            env: Env = make(**setup.env_kwargs)
            facts = env.prepare() or WorkerFacts(os.getpid(), "unknown", "the env's prepare() said nothing")
            self._slots[index] = Slot(env, replace(setup.reward), setup.info_on_video)
        self.facts = facts
        self._obs_fields = env.spec.obs
        self._views: dict[int, Obs] = {}  # row → where its observation goes; made once

    def serve(self) -> None:
        """Until the launcher closes its end."""
        poll = select.poll()
        poll.register(self._channel.handles.go_fd, select.POLLIN)
        poll.register(self._launcher, 0)  # only hang-up: data on it is read when a RESET announces a video
        while True:
            events = dict(poll.poll())
            if self._launcher.fileno() in events:
                return
            self._execute(self._channel.commands.take())

    def _execute(self, commands: Sequence[Command | Completion]) -> None:
        """One after another. What takes less than it costs to wake the launcher is announced together with the next."""
        announced = time.monotonic()
        for command, following in zip(commands, [*commands[1:], None], strict=True):
            assert isinstance(command, Command)
            done, now = self._do(command), time.monotonic()
            quick = now - announced < TOGETHER_S and command.kind is Kind.STEP
            together = quick and following is not None and following.kind is Kind.STEP
            self._channel.completions.put(done, announce=not together)
            announced = announced if together else now

    def _do(self, command: Command) -> Completion:
        return self._reset(command) if command.kind is Kind.RESET else self._step(command)

    def _reset(self, command: Command) -> Completion:
        slot = self._slots[command.slot]
        video = receive(self._launcher) if command.video else None
        began = time.monotonic()
        slot.reset(command, video)
        reset_s = time.monotonic() - began
        render_s = self._observe(slot, command.next_row)
        return Completion(Kind.RESET, command.slot, began=began, reset_s=reset_s, render_s=render_s)

    def _step(self, command: Command) -> Completion:
        slot, arrays, row = self._slots[command.slot], self._slab.arrays, command.row
        began = time.monotonic()
        result, video_s = slot.run_chunk(arrays["actions"][row])
        step_s = time.monotonic() - began - video_s
        arrays["rewards"][row] = result.rewards
        arrays["num_steps"][row] = result.num_steps
        arrays["terminated"][row] = result.terminated
        arrays["truncated"][row] = result.truncated
        arrays["success"][row] = result.success
        ended = result.terminated or result.truncated
        observed = not ended or _asks_for_the_final_observation(command, result)
        render_s = self._observe(slot, command.next_row) if observed else 0.0
        if ended:
            slot.end()
        return Completion(
            Kind.STEP, command.slot, result.num_steps, ended, observed,
            began=began, step_s=step_s, render_s=render_s, video_s=video_s,
        )  # fmt: skip

    def _observe(self, slot: Slot, row: int) -> float:
        started = time.perf_counter()
        views = self._views.get(row)
        if views is None:
            views = self._views[row] = self._slab.views(self._obs_fields, row)
        slot.env.observe(views)
        return time.perf_counter() - started

    def close(self) -> None:
        for slot in self._slots.values():
            slot.close()


def _asks_for_the_final_observation(command: Command, result: ChunkResult) -> bool:
    return (result.truncated and command.observe_truncated) or (result.terminated and command.observe_terminated)


def _end_with_launcher() -> None:
    """Ask the kernel to end this process with its parent, in case it is then blocked inside the simulator."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)


def _failure(error: Exception) -> Ready:
    return Ready(error=error if isinstance(error, EmbodiedError) else None, traceback=traceback.format_exc())


def main() -> int:
    _end_with_launcher()
    faulthandler.enable()  # a crash in the simulator's native code leaves its stack in the worker's log
    faulthandler.register(signal.SIGUSR1)  # the launcher asks a hung worker where it stands
    for stop in (signal.SIGINT, signal.SIGTERM):  # often sent to the whole process group, and the launcher's to handle
        signal.signal(stop, signal.SIG_IGN)
    launcher = socket.socket(fileno=int(sys.argv[1]))
    worker = None
    try:
        worker = Worker(receive(launcher), launcher)
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
