"""Carries out the perturbation of one episode, in the env worker, between an env and what reads and writes its rows.

    policy ──▶ actions ─▶ execute: delay ─▶ gripper's delay ─▶ noise ──▶ env
    policy ◀── show: pictures' effects ◀─ dropped frames ◀─ latency ◀── env, whose cameras were moved after its reset

Delays are of control steps, also within chunks: the first actions that are executed are the env's neutral one, and the
last that the policy has decided are never executed. An observation with latency is rendered at its own moment, in the
middle of a chunk, so each chunk still costs one render.

It does not know which env it is, nor whether the env hosts one slot or many. Numbers are a function of the seed, the
stream and the place, of the control step or observation, and of what they are for; so neither the worker nor the order
of the work changes one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from enum import IntEnum

import numpy as np

from embodied.perturbations import Draws
from embodied.random import Stream, generator
from embodied.runtime.worker import picture_effects
from embodied.types import ContinuousAction, EnvSpec, Obs


class Use(IntEnum):
    """Purposes of an episode's random numbers of perturbations: each has a stream of its own."""

    CAMERAS = 0
    LIGHT = 1
    PICTURE_NOISE = 2
    DROPPED_FRAMES = 3
    ACTION_NOISE = 4


class Disturbance:
    """Applies a perturbation to the running episode of a slot. A slot without one has no such object.

    Order of calls: :meth:`moves`, then :meth:`target` and :meth:`show` for the first observation; for each chunk
    :meth:`execute`, :meth:`stepped` after each control step, and :meth:`target` and :meth:`show` at its end.
    """

    def __init__(self, spec: EnvSpec, draws: Draws) -> None:
        self._spec, self._draws, self._by = spec, draws, draws.by
        neutral = spec.action.neutral()
        self._delay = Delay(self._by.action_delay, neutral)
        if self._by.of_numbers:
            self._gripper = [] if self._by.gripper_dim is None else [self._by.gripper_dim]
            self._gripper_delay = Delay(self._by.gripper_delay, neutral[self._gripper])
        self._steps = 0  # control steps that were made
        self._chunk = 1  # K
        self._late: deque[tuple[int, Obs]] = deque()  # control step and observation; the oldest is shown next
        self._shown = 0  # observations
        self._last: np.ndarray | None = None  # pictures of the one before
        light = self._numbers(Use.LIGHT, 0).integers(2, size=2) * 2 - 1
        self._brightness, self._contrast = float(light[0]) * self._by.brightness, float(light[1]) * self._by.contrast

    def _numbers(self, use: Use, at: int) -> np.random.Generator:
        return generator(self._draws.seed, Stream(self._draws.stream), at, use, self._draws.place)

    # -- cameras -----------------------------------------------------------------------------------------------------

    def moves(self) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Yields each camera with its translation (m) and rotation vector (rad), [3] each; nothing if none is moved."""
        if not self._by.of_cameras:
            return
        drawn = self._numbers(Use.CAMERAS, 0).standard_normal((len(self._spec.cameras), 2, 3))
        directions = drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)
        for camera, (direction, axis) in zip(self._spec.cameras, directions, strict=True):
            yield camera, self._by.camera_move * direction, math.radians(self._by.camera_turn) * axis

    # -- actions -----------------------------------------------------------------------------------------------------

    def execute(self, chunk: np.ndarray) -> np.ndarray:
        """Begins a chunk that the policy has decided, [K, …]; returns the actions to execute, of the same shape."""
        self._chunk = len(chunk)
        executed = self._delay(chunk)
        if not self._by.of_numbers:
            return executed
        executed = executed.copy()
        executed[:, self._gripper] = self._gripper_delay(executed[:, self._gripper])
        return self._noisy(executed) if self._by.action_noise else executed

    def _noisy(self, actions: np.ndarray) -> np.ndarray:
        action = self._spec.action
        assert isinstance(action, ContinuousAction)
        low, high = np.array(action.low, np.float32), np.array(action.high, np.float32)
        drawn = self._numbers(Use.ACTION_NOISE, self._steps).standard_normal(actions.shape, dtype=np.float32)
        drawn[:, self._gripper] = 0
        return np.clip(actions + np.float32(self._by.action_noise) * drawn * (high - low) / 2, low, high)

    # -- observations ------------------------------------------------------------------------------------------------

    def stepped(self, continues: bool) -> Obs | None:
        """Counts a control step of the chunk. Returns arrays to render into if the present observation will be shown
        later, at the end of a chunk ``latency`` control steps from now; else None.

        Args:
            continues: whether the episode does.
        """
        self._steps += 1
        due = self._by.latency and continues and (self._steps + self._by.latency) % self._chunk == 0
        return self._keep() if due else None

    def target(self, out: Obs) -> Obs | None:
        """Returns the arrays to render into, so that :meth:`show` can fill ``out``; None: skip rendering."""
        if not self._by.latency:
            return out
        return self._keep() if self._steps == 0 else None

    def _keep(self) -> Obs:
        kept = {name: np.empty(field.shape, field.dtype) for name, field in self._spec.obs.items()}
        self._late.append((self._steps, kept))
        return kept

    def show(self, out: Obs) -> None:
        """Makes ``out`` what the policy sees: the newest observation that is old enough, through its cameras."""
        if self._by.latency:
            while len(self._late) > 1 and self._late[1][0] <= self._steps - self._by.latency:
                self._late.popleft()
            for name, value in self._late[0][1].items():
                out[name][...] = value
        if self._by.of_pictures:
            out["images"][...] = self._pictures(out["images"])
        self._shown += 1

    def _pictures(self, seen: np.ndarray) -> np.ndarray:
        pictures = self._through_cameras(seen)
        if self._by.dropped_frames:
            drawn = self._numbers(Use.DROPPED_FRAMES, self._shown).random(len(pictures))
            if self._last is not None:
                dropped = drawn < self._by.dropped_frames
                pictures[dropped] = self._last[dropped]
            self._last = pictures
        return pictures

    def _through_cameras(self, seen: np.ndarray) -> np.ndarray:
        """A camera's lens blurs, then the light changes, then its sensor adds noise."""
        by = self._by
        if not (by.blur or by.brightness or by.contrast or by.noise):
            return seen.copy()
        pictures = seen.astype(np.float32)
        if by.blur:
            pictures = picture_effects.blur(pictures, by.blur * pictures.shape[1])
        if by.brightness:
            pictures = picture_effects.brighten(pictures, self._brightness)
        if by.contrast:
            pictures = picture_effects.stretch_contrast(pictures, self._contrast)
        if by.noise:
            drawn = self._numbers(Use.PICTURE_NOISE, self._shown).standard_normal(pictures.shape, dtype=np.float32)
            pictures = picture_effects.add_noise(pictures, by.noise, drawn)
        return picture_effects.to_bytes(pictures)


class Delay:
    """Delays a sequence of rows by ``steps``: each call gives the row that came so many calls before, at
    first ``first``.

    >>> later = Delay(2, np.zeros(()))
    >>> later(np.array([1.0, 2.0, 3.0])), later(np.array([4.0, 5.0, 6.0]))
    (array([0., 0., 1.]), array([2., 3., 4.]))

    Args:
        first: what is given in place of the rows that are not there yet.
    """

    def __init__(self, steps: int, first: np.ndarray) -> None:
        self._waiting = np.stack([first] * steps) if steps else np.empty((0, *first.shape), first.dtype)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        joined = np.concatenate([self._waiting, rows])
        self._waiting = joined[len(rows) :]
        return joined[: len(rows)]
