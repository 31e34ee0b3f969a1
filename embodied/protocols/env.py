"""What an env must offer, and may offer besides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from embodied.lib.host_memory import SimulatorMemory
from embodied.types import EnvSpec, Obs, SimulatorNeeds, Start, StepResult, WorkerFacts


class Env(Protocol):
    """One simulator instance, living in one env slot of a worker process.

    Constructing one is cheap (well under a second), imports no simulator, and raises
    :class:`embodied.errors.EmbodiedError` for whatever can be known to be wrong by then: unknown task, missing assets,
    impossible sizes. The launching process constructs one only to read :attr:`spec`. Simulator and GL context are made
    by the first :meth:`reset`, which only ever happens in a worker.

    ``reset(start)`` must leave no trace of earlier episodes: equal starts and equal actions give equal results,
    whatever ran before. An env that cannot keep this (a robot) says so with ``repeatable=False`` in its spec. The spec
    also declares what else may be asked of an env (``restorable``, ``retry_safe``). What an env offers besides is a
    protocol: :class:`Expert`, :class:`Batched`, :class:`HasProgressFeatures`, :class:`MovesCameras`, :class:`Preloads`,
    :class:`SafeStop`, :class:`SaysMemory`, :class:`embodied.protocols.KnowsFiles`.
    """

    @property
    def spec(self) -> EnvSpec: ...

    def preflight(self) -> None:
        """Called once in the launching process, before any worker starts: check in seconds, and in a process of its
        own, what the workers will need (a renderer). Changes nothing here.
        Raises :class:`embodied.errors.RendererUnavailableError` or another error with the fix."""
        ...

    def prepare(self) -> WorkerFacts:
        """Called in the worker before anything else: choose the renderer, set variables, import the simulator. A worker
        that hosts several slots calls it for each.
        Raises :class:`embodied.errors.RendererUnavailableError` or ``AssetsMissingError``."""
        ...

    def reset(self, start: Start) -> None:
        """Go to the initial condition. Renders nothing."""
        ...

    def step(self, action: np.ndarray) -> StepResult:
        """Make one control step; renders nothing.

        Args:
            action: as ``spec.action`` says: float32 [A] in the units of its ``low`` and ``high``, an int32 scalar
                from 0 to ``num_actions`` − 1, or the bytes of a text uint8 [L] (``embodied.instructions.read``).
        """
        ...

    def observe(self, out: Obs) -> None:
        """Render and write the present observation into ``out`` (every field of ``spec.obs``, in place)."""
        ...

    def frame(self) -> np.ndarray:
        """A picture for the video: uint8 [H, W, 3], upright. Called for recorded episodes only."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class SaysHowLong(Protocol):
    """Interface of an env that knows the longest time of a control step, e.g. of what it asks elsewhere. A deadline
    that is shorter (``env.step_timeout_s``) is then refused, since it would take such a step for a hang."""

    @property
    def longest_step_s(self) -> float:
        """Seconds that a control step takes at most."""


@runtime_checkable
class SaysWhatItReads(Protocol):
    """Interface of an env that says how its values are read, where that was inferred, e.g. which of them is success."""

    def reads(self) -> Mapping[str, str]:
        """Returns descriptions for the table that is printed before a run: what is read (success, pictures, …) → from
        where and how."""
        ...


class TaskKinds(NamedTuple):
    """Kinds of an env's tasks, in their order, and how many tasks of each kind are left out on this machine."""

    names: Sequence[str]
    kinds: Sequence[str]  # e.g. "camera"
    strengths: Sequence[str]  # e.g. "3"; empty where it is not known
    left_out: Mapping[str, int]
    note: str = ""  # what stands below the table
    chosen_by: Sequence[str] = ()  # arguments of the env that choose among tasks and change none


@runtime_checkable
class KnowsKinds(Protocol):
    """Interface of an env whose tasks are variations of others. Success is then said by kind and strength."""

    def task_kinds(self) -> TaskKinds | None:
        """Returns the kinds of the tasks; None if they have none."""
        ...


@runtime_checkable
class KnowsPrompts(Protocol):
    """Interface of a text env that knows the prompts of episodes without a reset. Answers in a file
    (``runner.answers``) are then matched to their problems by the prompt."""

    def prompt(self, start: Start) -> str:
        """The instruction in the first observation of an episode from ``start``. May be called in any process, before
        or between episodes, and changes nothing of them."""
        ...


@runtime_checkable
class ReadsProblems(Protocol):
    """Interface of a text env that knows which rows of its data it asks. A number of a problem in a file of answers
    (``runner.answers``) is then that of its row, and ``rollout/skipped_problems`` is logged."""

    def rows(self, task_id: int) -> Sequence[int]:
        """Row numbers, from 0, of the task's initial states in their order. One row may come several times."""
        ...

    @property
    def skipped_problems(self) -> int:
        """Entries of the env's data that are no problems and are never asked."""
        ...


@runtime_checkable
class Restorable(Protocol):
    """Interface of an env that can go back to a moment: an env with ``EnvSpec.restorable`` offers it beside
    :class:`Env`."""

    def get_state(self) -> Any:
        """A picklable state with all that is needed to go on from here exactly."""
        ...

    def set_state(self, state: Any) -> None:
        """Restore what :meth:`get_state` gave, for the same task: equal actions then give equal results, bit by bit (if
        the env is ``repeatable``)."""
        ...


@runtime_checkable
class SafeStop(Protocol):
    """Interface of a robot that can be brought to a stand from outside of its worker. An env with
    ``EnvSpec.retry_safe=False`` must offer it beside :class:`Env`: no worker of such an env is killed before."""

    def safe_stop(self) -> None:
        """Stop the robot, and return when it stands.

        Called on an instance of its own, neither prepared nor reset, in a process of its own
        (:mod:`embodied.runtime.pool.safe_stop`): the env that moved the robot hangs, or is gone. It may be called where
        the robot stands already. Raises if the robot may still move; ``env.safe_stop_timeout_s`` is its time.

        It is called before a worker is killed, and after one has died; not where a worker ended in order: then
        :meth:`Env.close` was called in the worker.
        """
        ...


@runtime_checkable
class Expert(Protocol):
    """A scripted solution that an env may offer beside :class:`Env`, for demonstrations (``embodied.tools.demos``). An
    env that solves only some of its tasks has the method for those, and names them in a text ``experts``."""

    def expert(self) -> Iterator[np.ndarray]:
        """Yield actions as in :meth:`Env.step`, on a freshly reset env. Each is worked out from privileged state when
        it is asked for. The actions stop when the expert gives up or the episode ends.

        The expert reads the state anew for every action, because the executed action may not be the one that it gave
        (noise). An action is a function of the state and of what the expert did before in this episode only.
        """
        ...


@runtime_checkable
class MistakenExpert(Expert, Protocol):
    """An expert that can also do another thing than what is asked for, for demonstrations with mistakes
    (``demos.mistakes``)."""

    def mistaken_expert(self) -> Iterator[np.ndarray]:
        """Yield actions as :meth:`Expert.expert` does, for something else that the same scene offers, such as another
        object at the same target. The actions stop when that is done, or when the expert gives up on the whole
        attempt: who cannot do it goes on until the step limit."""
        ...


@runtime_checkable
class MovesCameras(Protocol):
    """Interface of an env whose cameras can be moved for an episode; offered beside :class:`Env`. Perturbations of
    cameras (``env.eval.perturb``) need it, and slots of their own: a :class:`Batched` env is not asked."""

    def move_camera(self, name: str, translation: np.ndarray, rotation: np.ndarray) -> None:
        """Move and turn a camera relative to its own pose, until the next :meth:`Env.reset`, which puts it back. Called
        after a reset and before the first :meth:`Env.observe`; a second call moves it further. A camera that a body
        carries goes on moving with it. Moving by zero changes no bit of a picture.

        Args:
            name: of ``spec.cameras``.
            translation: float64 [3], m, in the camera's frame: x to its right, y upwards, it looks along −z.
            rotation: float64 [3], rad: a rotation vector in that frame.
        """
        ...


@runtime_checkable
class HasProgressFeatures(Protocol):
    """Interface of an env that says in numbers where its objects and its hand are; offered beside :class:`Env`.
    ``env.train.reward_mode=own_successes`` rewards how near they come to those of episodes that succeeded. The object
    of :meth:`Batched.batch` has ``progress_features(slot)`` for a slot (:class:`BatchHasProgressFeatures`)."""

    @property
    def num_progress_features(self) -> int:
        """F, the same for all tasks. Known without a simulator."""
        ...

    def progress_features(self) -> np.ndarray:
        """The present state as finite numbers: float32 [F]. Renders nothing and changes nothing. Called after each
        reset and each chunk of a training. Of a task the place of a number always means the same, numbers of all
        features have similar units (m, entries of a rotation matrix), and what a task lacks is 0."""
        ...


class BatchHasProgressFeatures(Protocol):
    """:class:`HasProgressFeatures` of all slots of a worker."""

    def progress_features(self, slot: int) -> np.ndarray:
        """Those of one slot: float32 [F]."""
        ...


@runtime_checkable
class NeedsOfMachine(Protocol):
    """Interface of an env's class that says what its simulator needs of a machine, for ``embodied.tools.doctor``."""

    @staticmethod
    def needs() -> SimulatorNeeds:
        """Called on the class, also where the simulator is not installed. Imports no simulator."""
        ...


@runtime_checkable
class SaysMemory(Protocol):
    """What an env's simulators take of a machine's memory, measured. An env may say it, and a run that cannot fit is
    then refused before it starts; ``env.num_workers=auto`` and the dry run count with it."""

    def host_memory(self) -> SimulatorMemory | None:
        """Called in the launching process, on an instance that is never reset. Imports no simulator. None: nothing was
        measured for these arguments."""
        ...


class Preloads(Protocol):
    """Interface of an env whose imports workers inherit with ``env.start_method: forkserver``; offered beside
    :class:`Env`."""

    def preload(self) -> None:
        """Called once, on an instance in the process that forks the workers: import the simulator, as
        :meth:`Env.prepare` does. ``prepare`` is still called in each worker, whose environment variables may be others.

        It must start no thread, open no device and make no GL context: a fork of those is broken. Threads and open
        devices are found, and the workers then import for themselves.
        """
        ...


@runtime_checkable
class BuildsAhead(Protocol):
    """Simulators that workers inherit with ``env.start_method: forkserver``; an env may offer them beside
    :class:`Preloads`."""

    def builds(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """Called after ``preload()``, on an instance in the process that forks the workers. Yields what the run needs
        there, as ``(name, act)``: ``act`` builds one simulator, which a later instance of a forked worker finds and
        need not build.

        One act after the other is called. One that raises is left to the workers, and the others go on. One that
        leaves a thread or an open device is left to them with all that follow, as for :meth:`Preloads.preload`.
        """
        ...


class BatchEnv(Protocol):
    """One simulator for all slots of a worker, e.g. a GPU simulator that steps all copies of a task together. It is
    made by :meth:`Batched.batch`. Its slots have the numbers 0 … N − 1, and are without an episode until they are
    reset.

    Simulator and GL context are made by the first :meth:`reset`. As with :class:`Env`, a reset leaves no trace of
    earlier episodes: in which slot an episode runs, and what runs beside it, changes nothing of it (as far as the
    simulator's arithmetic allows). ``embodied.testing.check_batch_env`` drives every method.
    """

    def reset(self, slots: Sequence[int], starts: Sequence[Start]) -> None:
        """Bring these slots to their starts; all others stay exactly as they are. Renders nothing."""
        ...

    def step(self, actions: np.ndarray, active: np.ndarray) -> Sequence[StepResult]:
        """Make one control step of all slots; renders nothing.

        Args:
            actions: float32 [N, A] or int32 [N], as in :meth:`Env.step`; slots that are not active get
                ``spec.action.neutral()``.
            active: bool [N]. The others have no episode, or have ended theirs: they may move or stay as the simulator
                likes, and are reset before they become active again.

        Returns:
            N results; those of slots that are not active are not read.
        """
        ...

    def observe(self, slots: Sequence[int], outs: Sequence[Obs]) -> None:
        """Render once, and write the present observation of each of these slots into its ``out``, as
        :meth:`Env.observe` does."""
        ...

    def frame(self, slot: int) -> np.ndarray:
        """A picture of one slot for its video: uint8 [H, W, 3], upright."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Batched(Protocol):
    """Interface of an env that makes one object for all slots of a worker; offered beside :class:`Env`. Rollouts then
    call only :attr:`Env.spec`, :meth:`Env.preflight`, :meth:`Env.prepare` (once in a worker) and :meth:`batch`."""

    def batch(self, num_slots: int) -> BatchEnv:
        """Make the object. Called once in a worker, after ``prepare``; as cheap as constructing an env."""
        ...


@runtime_checkable
class SaysWhatKeysMean(Protocol):
    """An env's class may say what some of its arguments do, as dotted keys."""

    keys_of_policy: ClassVar[tuple[str, ...]]
    """What the policy sees and moves: cameras, state, control mode. With a checkpoint another env of the class takes
    those that the policy learnt with."""
    keys_without_start: ClassVar[tuple[str, ...]]
    """Those that change no start: with other values of them, equal numbers name equal starts of a task."""
