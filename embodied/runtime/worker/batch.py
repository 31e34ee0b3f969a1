"""Executes the commands of a worker's slots in rounds; one :class:`embodied.protocols.BatchEnv` hosts these slots.

GPU simulators step all their copies together, so no slot may be left behind in the middle of an episode:

| a round               | begins when                                                                            |
|-----------------------|----------------------------------------------------------------------------------------|
| of steps (and resets) | every slot that is in the middle of an episode has its command                         |
| of resets alone       | a RESET is there while a slot in mid-episode waits for the policy: a reset moves no    |
|                       | other slot, and the policy may be waiting for the slot that is to be reset             |

A round executes the K control steps of all STEPs together, then all RESETs, then renders once for all that need an
observation, and completes them all at once. A slot that ends early, waits for a reset or has no episode is not
``active``: what the simulator does with it meanwhile is not recorded. One case is rendered apart, before the other
slots move on: an episode that ends before its chunk does and whose last observation was asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from embodied.observe.video.video import Video
from embodied.protocols import BatchEnv
from embodied.runtime.channel import Command, Completion, Kind, Ring
from embodied.runtime.worker.perturb import Disturbance
from embodied.runtime.worker.slot import Slot, WorkerRows, start_of, wants_observation
from embodied.types import EnvSpec

Commands = Mapping[int, Command]  # keys: the slot's number in its batch


class Rounds:
    """Executes the commands for all slots of a worker whose simulator steps them together.

    Args:
        slots: the slots, in the order of their numbers in ``env``.
        names: index of each slot among all slots of the pool.
        next_message: what belongs to a RESET: the file of its video, then its perturbation.
    """

    def __init__(
        self, env: BatchEnv, spec: EnvSpec, slots: Sequence[Slot], names: Sequence[int], rows: WorkerRows,
        completions: Ring, next_message: Callable[[], Any],
    ) -> None:  # fmt: skip
        self._env, self._slots, self._rows = env, slots, rows
        self._spec, self._completions, self._next_message = spec, completions, next_message
        self._numbers = {name: number for number, name in enumerate(names)}
        self._hold = spec.action.neutral()
        self._steps: dict[int, Command] = {}  # STEPs that wait for their round
        self._resets: dict[int, Command] = {}
        self._videos: dict[int, Video] = {}
        self._disturbances: dict[int, Disturbance] = {}
        self._in_episode: set[int] = set()

    def execute(self, commands: Sequence[Command | Completion]) -> None:
        """Take commands, and execute what can be executed now."""
        for command in commands:
            assert isinstance(command, Command)
            number = self._numbers[command.slot]
            if command.kind == Kind.STEP:
                self._steps[number] = command
                continue
            self._resets[number] = command
            self._in_episode.discard(number)
            if command.video:
                self._videos[number] = self._next_message()
            if command.perturbed:
                self._disturbances[number] = Disturbance(self._spec, self._next_message())
        steps, resets = {}, self._resets
        if self._in_episode <= self._steps.keys():
            steps, self._steps = self._steps, {}
        self._resets = {}
        if steps or resets:
            self._round(steps, resets)

    def _round(self, steps: Commands, resets: Commands) -> None:
        seen: set[int] = set()  # slots whose observation has been written
        began = time.monotonic()
        early_s = self._step(steps, seen)
        stepped = time.monotonic()
        self._reset(resets)
        was_reset = time.monotonic()
        rest = {number: command for number, command in {**steps, **resets}.items() if number not in seen}
        self._observe(rest, seen)
        ended = time.monotonic()
        video_s = sum(self._slots[number].video_s for number in steps)
        shown_s = sum(self._slots[number].shown_s for number in seen)
        shown_of_steps = sum(self._slots[number].shown_s for number in steps)
        whole = Completion(
            Kind.RESET, -1, began=began, round_s=ended - began,
            reset_s=_share(was_reset - stepped, resets),
            step_s=_share(stepped - began - early_s - video_s + shown_of_steps, steps),
            render_s=_share(ended - was_reset + early_s - shown_s, seen),
        )  # fmt: skip
        for number, command in (*steps.items(), *resets.items()):
            self._complete(number, command, number in seen, whole)
        self._completions.announce()

    def _step(self, steps: Commands, seen: set[int]) -> float:
        """Execute the chunks. Returns the seconds spent on observations within them: those of episodes that ended
        before their chunk did, and those that are shown later."""
        if not steps:
            return 0.0
        numbers, early_s = list(steps), 0.0  # chunks is [K, n, A], or [K, n] of discrete actions
        chunks = np.stack([self._slots[n].executed(self._rows.actions(steps[n].row)) for n in numbers], axis=1)
        actions = np.empty((len(chunks), len(self._slots), *chunks.shape[2:]), chunks.dtype)
        actions[:] = self._hold
        actions[:, numbers] = chunks
        active = np.zeros(len(self._slots), bool)
        active[numbers] = True
        disturbed = {n: disturbance for n in numbers if (disturbance := self._slots[n].disturbance) is not None}
        for number in numbers:
            self._slots[number].begin_chunk(len(chunks), steps[number].row)
        for k in range(len(chunks)):
            results = self._env.step(actions[k], active)
            moved = np.flatnonzero(active).tolist()
            ended = [number for number in moved if not self._slots[number].count(results[number])]
            if disturbed:
                early_s += self._observe_late(disturbed, moved, ended)
            active[ended] = False
            actions[k + 1 :, ended] = self._hold
            if not active.any():
                break
            if ended:
                early_s += self._observe({number: steps[number] for number in ended}, seen)
        for number, command in steps.items():
            self._rows.write(command.row, self._slots[number].result)
        return early_s

    def _observe_late(self, disturbed: Mapping[int, Disturbance], moved: Sequence[int], ended: Sequence[int]) -> float:
        """Render what slots with latency show later. Returns the seconds spent.

        Args:
            moved: slots that made a control step.
            ended: those of them whose episode has ended with it.
        """
        late, began = {}, time.monotonic()
        for number in moved:
            if number in disturbed and (kept := disturbed[number].stepped(number not in ended)) is not None:
                late[number] = kept
        if late:
            self._env.observe([*late], [*late.values()])
        return time.monotonic() - began

    def _reset(self, resets: Commands) -> None:
        if not resets:
            return
        self._env.reset([*resets], [start_of(command) for command in resets.values()])
        for number, command in resets.items():
            self._slots[number].begin(command, self._videos.pop(number, None), self._disturbances.pop(number, None))

    def _observe(self, commands: Commands, seen: set[int]) -> float:
        """Write the present observation of each slot that needs one. Returns the seconds spent."""
        began = time.monotonic()
        wanted = {
            number: self._rows.observation(command.next_row)
            for number, command in commands.items()
            if command.kind == Kind.RESET or wants_observation(command, self._slots[number].result)
        }
        targets = {number: self._slots[number].target(out) for number, out in wanted.items()}
        if rendered := {number: into for number, into in targets.items() if into is not None}:
            self._env.observe([*rendered], [*rendered.values()])
        for number, out in wanted.items():
            self._slots[number].show(out)
        seen.update(wanted)
        return time.monotonic() - began

    def _complete(self, number: int, command: Command, observed: bool, whole: Completion) -> None:
        """Report what a slot has done, with its share of the seconds of the ``whole`` round."""
        slot = self._slots[number]
        render_s = whole.render_s if observed else 0.0
        if command.kind == Kind.RESET:
            self._in_episode.add(number)
            done = whole._replace(slot=command.slot, step_s=0.0, render_s=render_s)
        else:
            result = slot.result
            ended = result.terminated or result.truncated
            done = Completion(
                Kind.STEP, command.slot, result.num_steps, ended, observed, began=whole.began, round_s=whole.round_s,
                step_s=whole.step_s, render_s=render_s, video_s=slot.video_s,
            )  # fmt: skip
            if ended:
                self._in_episode.discard(number)
                slot.end()
        self._completions.put(done, announce=False)

    def close(self) -> None:
        for slot in self._slots:
            slot.discard_video()
        self._env.close()


def _share(seconds: float, slots: Mapping[int, Command] | set[int]) -> float:
    """One slot's share of the seconds that these slots spent together."""
    return seconds / max(len(slots), 1)
