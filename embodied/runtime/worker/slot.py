"""State that a worker keeps of the episode in an env slot: the rewards that count, its end, its video. It is the same
for an env that hosts one slot and for one that hosts a batch of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from embodied.errors import RunFolderError, SpecMismatchError
from embodied.observe.terminal.window import Window
from embodied.observe.video.video import Video, VideoWriter
from embodied.protocols import DEMONSTRATED, Reward
from embodied.runtime.channel import Command
from embodied.runtime.slab import FEATURES, INFO, Slab
from embodied.runtime.worker.finite import FiniteNumbers
from embodied.runtime.worker.perturb import Disturbance
from embodied.types import NO_INFO, ChunkResult, EnvSpec, Obs, Start, StepResult


class Slot:
    """The episode that runs in one env slot.

    Args:
        rewards: the slot's own, of training and of evaluation; they turn the env's reward into the recorded one.
        frame: gives a picture of the slot as it is, uint8 [H, W, 3].
        chunk: control steps of a whole chunk.
        decision: says the decision in a row of the slab in a few words; None = nothing is said of decisions.
        live: videos are shown in a window, too, while they are recorded.
        features: reads the slot's progress features, float32 [F]; None = they are not recorded.
        num_features: F, how many the slab has room for.
        notice: is told why a video could not be written. The episode goes on without it.
    """

    def __init__(
        self, spec: EnvSpec, rewards: tuple[Reward, Reward], frame: Callable[[], np.ndarray], chunk: int,
        decision: Callable[[int], str] | None = None, live: bool = False, notice: Callable[[str], None] = print,
        features: Callable[[], np.ndarray] | None = None, num_features: int = 0,
    ) -> None:  # fmt: skip
        self._notice, self._numbers = notice, FiniteNumbers(spec)
        self._features_of, self._num_features = features, num_features
        self._features: Callable[[], np.ndarray] | None = None  # of the present episode
        self._seen: tuple[np.ndarray, np.ndarray] | None = None
        self._live = live
        self._window: Window | None = None
        self._spec, self._rewards_of, self._frame, self._chunk = spec, rewards, frame, chunk
        self._decision, self._decided = decision, ""
        self._interval: int | None = 1  # see Video
        self._pictured: tuple[int, ...] | None = None  # control step and size of the last picture of the video
        self._video: VideoWriter | None = None
        self._says = False  # the decision stands on the video
        self.video_s = self.shown_s = 0.0  # seconds of the chunk's video, and those of them in show()
        self._steps = self._max_steps = 0
        self._ignore_terminations = False
        self.disturbance: Disturbance | None = None  # perturbation of the episode; None = it has none

    def begin(self, command: Command, video: Video | None, disturbance: Disturbance | None = None) -> None:
        """Begin the episode of ``command``; the env has just been reset for it, and its cameras were moved."""
        self.discard_video()
        self.disturbance = disturbance
        self._start = start_of(command)
        self._reward = self._rewards_of[command.evaluation]
        self._reward.begin()
        self._steps, self._max_steps = 0, command.max_steps
        self._progress, self._solved_at = 0.0, 0
        self._features = None if command.evaluation else self._features_of
        self._seen = None if self._features is None else (self._read(self._features),) * 2
        self._ignore_terminations = command.ignore_terminations
        self._evaluation, self._overridden = command.evaluation, False
        self.video_s = self.shown_s = 0.0
        self._pictured = None
        if video is not None:
            instruction = self._spec.tasks[command.task_id]
            if self._live and self._window is None:
                self._window = Window(instruction)
            self._interval, self._says = video.frame_interval, video.info and self._decision is not None
            with self._without_video_if_it_fails():
                self._video = VideoWriter(
                    Path(video.file), self._spec.control_hz / (self._interval or self._chunk), instruction, video.info,
                    notes=self._decision is not None, show=self._window.show if self._window else None,
                )  # fmt: skip
            self._decided, self._unshown = "", 0.0
            if self._video is not None and self._interval is not None:
                self._record(self._frame)

    def begin_chunk(self, length: int, row: int) -> None:
        """Begin the chunk of at most ``length`` control steps that was decided in ``row``."""
        if self._video is not None and self._says:
            assert self._decision is not None
            self._decided = self._decision(row)
        self._rewards = np.zeros(length, np.float32)
        self._done = 0
        self.video_s = self.shown_s = 0.0
        self._success = self._terminated = self._cut_off = False
        self._told = NO_INFO
        self._interventions: dict[int, np.ndarray] = {}

    def executed(self, actions: np.ndarray) -> np.ndarray:
        """Returns the actions to execute for a chunk that the policy decided, [K, …]: perturbed if the episode is."""
        return actions if self.disturbance is None else self.disturbance.execute(actions)

    def count(self, result: StepResult) -> bool:
        """Count one control step that has been made. Returns whether the episode goes on.

        Raises:
            SpecMismatchError: its reward is not finite, or what a human did instead is no action of the env.
        """
        if result.intervention is not None:
            done = intervention_of(result.intervention, self._spec, f"of control step {self._steps + 1}")
            self._interventions[self._done], self._overridden = done, True
        if self._overridden and self._evaluation:
            result = result._replace(success=False)  # what a human has helped to solve, the policy has not
        self._rewards[self._done] = reward = self._reward(result)
        if not math.isfinite(reward):
            raise _not_finite(reward, self._steps + 1, self._start)
        self._done += 1
        self._steps += 1
        self._success |= result.success
        self._progress = max(self._progress, float(result.reward))
        if result.success and not self._solved_at:
            self._solved_at = self._steps
        self._told = result.info
        self._terminated = result.terminated and not self._ignore_terminations
        self._cut_off = not self._terminated and (result.truncated or self._steps >= self._max_steps)
        goes_on = not self._terminated and not self._cut_off
        if self._features is not None and (not goes_on or self._done == len(self._rewards)):
            assert self._seen is not None
            self._seen = self._seen[1], self._read(self._features)
        if self._video is not None:
            self._unshown += reward
            if self._interval is not None and (not goes_on or self._steps % self._interval == 0):
                self._record(self._frame)
        return goes_on

    @property
    def result(self) -> ChunkResult:
        """Result of the control steps since :meth:`begin_chunk`."""
        return ChunkResult(
            self._rewards, self._done, self._terminated, self._cut_off, self._success, self._told, self._progress,
            self._solved_at, self._seen, self._interventions,
        )  # fmt: skip

    def _read(self, features: Callable[[], np.ndarray]) -> np.ndarray:
        """Reads the progress features into an array of its own: the env may fill one buffer again and again."""
        given = features()
        try:
            with np.errstate(over="ignore"):  # what is too large for float32 is infinite, and refused
                found = np.array(given, np.float32)
        except (TypeError, ValueError, OverflowError):
            raise self._odd(f"progress_features() is {_shown(given)}") from None
        if found.shape != (self._num_features,):
            raise self._odd(f"progress_features() is {_shown(given)}")
        if not np.isfinite(found).all():
            first = int(np.flatnonzero(~np.isfinite(found))[0])
            raise self._odd(f"number {first} of progress_features is {found[first]}")
        return found

    def _odd(self, fault: str) -> SpecMismatchError:
        start = self._start
        return SpecMismatchError(
            f"{fault} at control step {self._steps} (task {start.task_id}, seed {start.seed}), expected "
            f"{self._num_features} finite float32 numbers (num_progress_features)",
            "correct the env's progress_features, or set env.train.reward_mode=sparse",
        )

    def target(self, out: Obs) -> Obs | None:
        """Returns the arrays to render into before :meth:`show`; None: skip rendering, a delayed frame is shown."""
        return out if self.disturbance is None else self.disturbance.target(out)

    def show(self, out: Obs) -> None:
        """Fill ``out`` with the observation that the policy sees.

        Raises:
            SpecMismatchError: a number in it is not finite.
        """
        if self._video is not None and self._interval is None:
            before = self.video_s
            undisturbed = "images" in out and self.disturbance is None
            self._record(lambda: out["images"][0] if undisturbed else self._frame())
            self.shown_s = self.video_s - before
        if self.disturbance is not None:
            self.disturbance.show(out)
        self._numbers.check(out, self._steps, self._start)

    def _record(self, frame: Callable[[], np.ndarray]) -> None:
        assert self._video is not None
        started = time.perf_counter()
        picture = frame()
        if self._pictured is None or picture.shape == self._pictured[1:]:
            with self._without_video_if_it_fails():
                self._video.add(picture, self._steps, self._unshown, self._solved_at > 0, self._decided)
            self._unshown, self._pictured = 0.0, (self._steps, *picture.shape)
        self.video_s += time.perf_counter() - started  # since the last reset or begin_chunk

    def end(self) -> None:
        """End the episode: finish its video."""
        if self._video is not None:
            if self._pictured is not None and self._pictured[0] != self._steps:
                self._record(self._frame)  # no observation shows the end
            started = time.perf_counter()
            if self._video is not None:
                with self._without_video_if_it_fails():
                    self._video.close()
            self._video = None
            self.video_s += time.perf_counter() - started

    @contextmanager
    def _without_video_if_it_fails(self) -> Iterator[None]:
        try:
            yield
        except RunFolderError as error:
            with suppress(OSError):
                self.discard_video()
            self._video = None
            self._notice(f"an episode goes on without its video: {error.message}\n  fix: {error.remedy}")

    def discard_video(self) -> None:
        """Deletes the video of an episode that was not finished."""
        if self._video is not None:
            self._video.abort()
            self._video = None


class WorkerRows:
    """Rows of the slab as a worker uses them: it reads actions, and writes observations and results.

    Args:
        obs_fields: the names of an observation's fields.
    """

    def __init__(self, slab: Slab, obs_fields: Mapping[str, object]) -> None:
        self._arrays, self._slab, self._obs_fields = slab.arrays, slab, obs_fields
        self._views: dict[int, Obs] = {}  # row → views for its observation; made once
        self._info = {name.removeprefix(INFO): array for name, array in slab.arrays.items() if name.startswith(INFO)}

    def actions(self, row: int) -> np.ndarray:
        """The chunk to execute, as ``EnvSpec.action.field(K)`` says."""
        return self._arrays["actions"][row]

    def observation(self, row: int) -> Obs:
        """Writable views of the row's observation."""
        views = self._views.get(row)
        if views is None:
            views = self._views[row] = self._slab.views(self._obs_fields, row)
        return views

    def write(self, row: int, result: ChunkResult) -> None:
        """Write the result of the row's chunk."""
        arrays = self._arrays
        arrays["rewards"][row] = result.rewards
        arrays["num_steps"][row] = result.num_steps
        arrays["terminated"][row] = result.terminated
        arrays["truncated"][row] = result.truncated
        arrays["success"][row] = result.success
        arrays["progress"][row] = result.progress
        arrays["solved_at"][row] = result.solved_at
        for name, array in self._info.items():
            array[row] = result.info.get(name, 0)
        if result.features is not None:
            arrays[FEATURES][row] = result.features
        for step, action in result.interventions.items():
            arrays["actions"][row, step] = action
        if DEMONSTRATED in arrays:
            arrays[DEMONSTRATED][row] = bool(result.interventions)


def intervention_of(given: object, spec: EnvSpec, which: str) -> np.ndarray:
    """Returns what a human had executed instead of an action, in an array of its own: float32 [A].

    Args:
        which: e.g. "of control step 3".

    Raises:
        SpecMismatchError: the env declares no interventions, or this is no action of it.
    """
    if not spec.interventions:
        raise SpecMismatchError(
            f"the intervention {which}: a human overrode the action, and the env declares that nobody does",
            "let the env's spec say interventions=True (EnvSpec.interventions)",
        )
    low, high = (np.asarray(bounds, np.float32) for bounds in (spec.action_low, spec.action_high))
    try:
        with np.errstate(over="ignore"):  # what is too large for float32 is infinite, and refused
            found = np.array(given, np.float32)
        fault = f"is {_shown(given)}" if found.shape != low.shape else ""
    except (TypeError, ValueError, OverflowError):
        found, fault = low, f"is {_shown(given)}"
    if not fault and not np.isfinite(found).all():
        fault = f"has {found[~np.isfinite(found)][0]}"
    if not fault and (wrong := np.flatnonzero((found < low) | (found > high))).size:
        first = int(wrong[0])
        fault = f"has {found[first]} as number {first}, outside of {low[first]} to {high[first]}"
    if fault:
        raise SpecMismatchError(
            f"the intervention {which} {fault}, expected the executed action: {len(low)} finite float32 numbers within "
            "the bounds of the env's actions",
            "let the env report what was executed in the units of its actions, and clip it where its controller does",
        )
    return found


def _shown(given: object) -> str:
    shape, kind = getattr(given, "shape", None), getattr(given, "dtype", type(given).__name__)
    return f"{kind}" if shape is None else f"{kind} {tuple(shape)}"


def _not_finite(reward: float, step: int, start: Start) -> SpecMismatchError:
    return SpecMismatchError(
        f"the reward of control step {step} is {reward} (task {start.task_id}, seed {start.seed}), expected a finite "
        "number",
        "correct the reward that the env's step() returns, or end the episode before",
    )


def start_of(command: Command) -> Start:
    """Returns the start in a RESET command."""
    return Start(command.task_id, command.init_state_id, command.seed)


def wants_observation(command: Command, result: ChunkResult) -> bool:
    """Returns whether a STEP's ``next_row`` gets the observation after it: yes while the episode goes on, and at its
    end if that was asked for."""
    if result.truncated:
        return command.observe_truncated
    return command.observe_terminated if result.terminated else True
