"""Any Gymnasium env as an :class:`embodied.protocols.Env` (docs/how_to/add_a_robot_task.md)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from embodied.errors import ConfigError, SpecMismatchError
from embodied.lib.host_memory import SimulatorMemory
from embodied.protocols import BatchEnv
from embodied.types import ContinuousAction, DiscreteAction, EnvSpec, Obs, Start, StepResult, WorkerFacts

from ..shared.arguments import check_number, check_range
from ..shared.machine import versions_of
from .calls import intervention_of
from .experts import actions_of
from .facts import GymFacts, alike, ask, facts_of
from .mapping import MappingSettings, ResolvedMapping, mapping_of, reads
from .settings import ASYNC, KEY, VECTOR_ENTRY_POINT, check_interventions, check_together, making_of
from .simulator import Simulator, prepare
from .sources import RENDER

SEED_STREAM = 2**30
"""Seeds of evaluation starts begin here (``embodied.runtime.plan``), so bit 30 of a seed tells the two apart."""
_DEFAULT_STEPS, _DEFAULT_HZ = 200, 20.0


class GymEnv:
    """One slot of any Gymnasium env, with its wrappers.

    The env is made once in a process of its own, which says what it has; the mapping below is checked against that.
    Values are named by sources (:mod:`.sources`): ``obs``, ``obs.KEY``, ``obs[0:4]``, ``info.KEY``, ``reward``,
    ``return``, ``terminated``, ``truncated``, ``render``.

    Observation: ``images`` uint8 [C, H, W, 3], ``state`` float32 [S], ``instruction`` uint8 [L], each if it is mapped.
    Action: float32 [A] of a Box, flattened, in its units; or the number of an action of a Discrete space.

    Starts: the env is reset with the seed ``Start.seed``. With ``num_init_states=N`` there are only N: the seed is
    ``init_state_id``, plus 2³⁰ in an evaluation. An evaluation has seeds that training never has.

    Args:
        id: registered name, as ``gymnasium.make`` takes it (``module:Name-v0`` imports the module).
        entry_point: dotted path of a function or class that makes the env, in place of an id.
        imports: modules that register envs, imported before.
        make_kwargs: arguments of ``gymnasium.make`` or of the entry point. Pictures are asked for by ``render_mode``
            where the env has them.
        wrappers: dotted paths, or ``{target: path, kwargs: {…}}``; the first is the innermost.
        variables: environment variables, set in the workers unless they are set already.
        tasks: ids, or ``{id or entry_point, make_kwargs, instruction}``, one for each task; keys that one leaves out
            are those above. null = the one task that the keys above make.
        instruction: what the policy is told; null = the env's name.
        instruction_from: source of a text that the policy is told instead, read with each observation.
        instruction_bytes: room for it; longer texts are cut.
        images: sources of pictures; null = all entries of the observation that are clearly some (:mod:`.pictures`).
        image_size: pixels, H and W, to which pictures are brought; null = as they are.
        image_layout: what the channels of pictures are, where that is not clear: rgb, rgba (alpha is left out), grey,
            rgb_frames or grey_frames (pictures one after another, each of which becomes one). null = found out.
        image_range: numbers of black and of white; null = 0 and 255, or 0 and 1 where the space is bounded so.
        rotate_images: turn pictures by 180°.
        state: sources whose numbers, flattened, are the state; null = all of the observation that is neither picture
            nor text.
        success: source that is true when the task is solved, or a comparison (``return>=475``, ``info.distance<0.05``);
            null = info.is_success, info.success, or the registered reward threshold as a return. An entry of ``info``
            may be there only when an episode ends; ``info.KEY?`` may be missing there too.
        end_on_success: an episode ends when the task is solved.
        progress: source of the reward that ``reward_mode=dense`` reads. A return with ``use_rel_reward=true`` is the
            sum of the rewards, as Gymnasium means it. What says how far an episode is may be read in either way.
        progress_range: two numbers of it that stand for 0 and 1, clipped in between; solved is then 1. null = as it is.
        progress_features: sources of the numbers by which ``reward_mode=own_successes`` says how near a state is to
            another, such as poses of objects and hand; null = none.
        expert: dotted path of a scripted policy for demonstrations: a function of the observation that gives an action,
            or a class with ``get_action`` or ``__call__``, made anew for each episode. A parameter ``env`` of either
            is given the env.
        num_init_states: different starts of each task; null = one for each seed.
        remake: make the env anew for each episode, for envs whose reset leaves traces of earlier ones.
        repeatable: false = train although equal seeds give different episodes.
        kept_envs: envs that a slot keeps open when there are several tasks.
        vectorization: null = each slot has an env of its own. Otherwise all slots of a worker are hosted together
            (:class:`embodied.protocols.Batched`): ``sync`` = in a gymnasium SyncVectorEnv; ``async`` = in an
            AsyncVectorEnv, each in a process of its own; ``vector_entry_point`` = in the vector env that the id
            registers, or that ``entry_point`` makes from ``num_envs`` and ``make_kwargs``. ``wrappers`` are then
            vector wrappers. Such a vector env must restart single copies from their own seeds (:mod:`.vector`).
        control_hz: control steps a second; null = render_fps of the env, or 20.
        interventions: a human may override actions: where ``info["intervention"]`` is true, ``info["executed_action"]``
            was executed instead, an action of the env's ``action_space``.
        python: the workers' interpreter (``${env.python}``), which is asked what the env has.

    Raises:
        ConfigError, UnknownKeyError, UnknownNameError: a key, an id, or a mapping that does not fit; what the env has
            is listed with its shapes. A vector env that cannot restart one copy from its seed.
        AssetsMissingError: gymnasium, or a module of ``imports``, is not installed.
    """

    def __init__(
        self, id: str | None = None, entry_point: str | None = None, imports: Sequence[str] = (),
        make_kwargs: Mapping[str, Any] | None = None, wrappers: Sequence[Any] = (),
        variables: Mapping[str, str] | None = None, tasks: Sequence[str | Mapping[str, Any]] | None = None,
        instruction: str | None = None, instruction_from: str | None = None, instruction_bytes: int = 256,
        images: Sequence[str] | None = None, image_size: int | Sequence[int] | None = None,
        image_layout: str | None = None, image_range: Sequence[float] | None = None,
        rotate_images: bool = False, state: Sequence[str] | None = None, success: str | None = None,
        end_on_success: bool = True, progress: str = "return", progress_range: Sequence[float] | None = None,
        expert: str | None = None, num_init_states: int | None = None, remake: bool = False, repeatable: bool = True,
        kept_envs: int = 10, vectorization: str | None = None, control_hz: float | None = None,
        python: str | None = None, progress_features: Sequence[str] | None = None,
        interventions: bool = False,
    ) -> None:  # fmt: skip
        if num_init_states is not None:
            check_range(f"{KEY}.num_init_states", num_init_states, 1, SEED_STREAM)
        check_range(f"{KEY}.kept_envs", kept_envs, 1, 10_000)
        check_range(f"{KEY}.instruction_bytes", instruction_bytes, 1, 1 << 16)
        if control_hz is not None:
            check_number(f"{KEY}.control_hz", control_hz, 0.001, 100_000)
        self._making = making_of(
            id, entry_point, make_kwargs or {}, instruction, tasks, imports, wrappers, variables or {}, vectorization
        )
        together = vectorization == VECTOR_ENTRY_POINT
        if together:
            check_together(self._making, remake, expert)
        wanted = MappingSettings(
            images, image_size, image_layout, image_range, rotate_images, state, instruction_from, instruction_bytes,
            success, progress, progress_range, progress_features,
        )  # fmt: skip
        self._remake, self._python, self._kept = remake, python, kept_envs
        self._facts = facts_of(self._making, remake, python)
        if self._facts.differs and repeatable:
            mend = (
                "let each copy draw from a generator of its own that its seed makes"
                if together
                else f"set {KEY}.remake=true (the env is made anew for each episode) if a reset leaves traces, or seed "
                "what the env draws from in a wrapper"
            )
            raise ConfigError(
                f"two episodes from one seed differ: {self._facts.differs}",
                f"{mend}; or train all the same with {KEY}.repeatable=false, env.eval.repeatable=false",
            )
        self._mapped = mapping_of(wanted, self._facts)
        self._num_starts, self._end_on_success = num_init_states, end_on_success
        self._spec = self._make_spec(self._facts, self._mapped, control_hz, repeatable)
        if interventions:
            check_interventions(self._spec.action, vectorization)
        self._spec = replace(self._spec, interventions=interventions)
        self._simulator: Simulator | None = None
        self._solved = False
        if expert is not None:
            self._expert_path = expert
            self.expert = self._expert
        if self._mapped.features:  # set here alone: an env without it does not offer any
            self.num_progress_features = self._mapped.feature_dim
        if vectorization is not None:
            self.batch = self._batch

    def _batch(self, num_slots: int) -> BatchEnv:
        """Hosts all slots of a worker in one vector env (:class:`embodied.protocols.Batched`)."""
        if self._making.vectorization == VECTOR_ENTRY_POINT:
            from .vector import Copies, VectorBatch

            draws = self._facts.frame is not None
            copies = Copies(self._making, draws, num_slots)
            return VectorBatch(
                copies, self._mapped, self._end_on_success, self.seed_of, draws, self._spec.max_episode_steps
            )
        from .hosted import HostedBatch

        return HostedBatch(self, num_slots, apart=self._making.vectorization == ASYNC)

    def _make_spec(
        self, facts: GymFacts, mapped: ResolvedMapping, control_hz: float | None, repeatable: bool
    ) -> EnvSpec:
        if not mapped.obs:
            raise ConfigError(
                "an observation has nothing: no picture, no state, no instruction",
                f"leave {KEY}.images and {KEY}.state null, or name sources",
            )
        action = facts.action
        return EnvSpec(
            obs=mapped.obs,
            cameras=mapped.cameras,
            action=(
                DiscreteAction(action["n"])
                if "n" in action
                else ContinuousAction(tuple(action["low"]), tuple(action["high"]))
            ),
            tasks=tuple(task.instruction or task.name for task in self._making.tasks),
            num_init_states=(self._num_starts or 1,) * len(self._making.tasks),
            max_episode_steps=facts.max_steps or _DEFAULT_STEPS,
            control_hz=float(control_hz or facts.fps or _DEFAULT_HZ),
            restorable=False,
            repeatable=repeatable,
        )

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def host_memory(self) -> SimulatorMemory | None:
        """Says what the env took when it was tried (:class:`embodied.protocols.SaysMemory`); None: a vector env, whose
        copies were not counted, or a kernel that does not say it."""
        imports, one = self._facts.memory
        if not imports or self._making.vectorization == VECTOR_ENTRY_POINT:
            return None
        one += imports if self._making.vectorization == ASYNC else 0  # each has a process of its own
        note = "measured when the env was tried, with one env after some steps of random actions"
        return SimulatorMemory(imports, (one,), slot=one, keeps=self._kept, keys={"keeps": "kept_envs"}, note=note)

    def preflight(self) -> None:
        """Probes the env again if its facts came from the cache. Raises :class:`SpecMismatchError` if it
        has changed."""
        found = ask(self._making, self._remake, self._python)
        if not alike(found, self._facts):
            raise SpecMismatchError(
                f"{self._making.tasks[0].name} has changed since it was last asked: it has {found}, "
                f"expected {self._facts}",
                "run the command again: what it has now is known from here on",
            )

    def reads(self) -> Mapping[str, str]:
        """Lists how the env's values are read where that was inferred (:class:`embodied.protocols.SaysWhatItReads`)."""
        return reads(self._mapped, self._facts)

    def prepare(self) -> WorkerFacts:
        self._making = replace(self._making, variables={**self._making.variables, **self._facts.variables})
        prepare(self._making)
        backend = os.environ.get("MUJOCO_GL", "")
        renderer, reason = ("the env's own", "render()") if self._facts.frame else ("none", self._facts.no_frame)
        if not self._facts.frame and not self._mapped.images:
            reason = f"videos are grey: {reason}"
        extra = {"MUJOCO_GL": backend} if backend else {}
        packages = ("gymnasium", "numpy", *(name.split(".")[0] for name in self._making.imports))
        versions = versions_of(packages)
        if self._making.vectorization == VECTOR_ENTRY_POINT:
            versions["vector env"] = self._making.tasks[0].name
        return WorkerFacts(os.getpid(), renderer, reason, extra, versions=versions)

    def preload(self) -> None:
        """Does what :meth:`prepare` does: imports the simulator."""
        self.prepare()

    def seed_of(self, start: Start) -> int:
        """Returns the seed that ``reset`` takes for a start. Raises :class:`ConfigError` if there is no such start."""
        check_range("task_id of a start", start.task_id, 0, len(self._spec.tasks) - 1)
        check_range("init_state_id of a start", start.init_state_id, 0, self._spec.num_init_states[start.task_id] - 1)
        if self._num_starts is None:
            return start.seed
        return (start.seed & SEED_STREAM) + start.init_state_id

    # -- an episode --------------------------------------------------------------------------------------------------

    @property
    def _sim(self) -> Simulator:
        if self._simulator is None:
            self._simulator = Simulator(self._making, self._facts.frame is not None, self._kept, self._remake)
        return self._simulator

    def reset(self, start: Start) -> None:
        self._sim.reset(start.task_id, self.seed_of(start))
        self._solved, self._steps = False, 0

    def step(self, action: np.ndarray) -> StepResult:
        sim, intervention = self._sim, None
        if not sim.ended:
            sim.step(action)
            self._steps += 1
            if self._spec.interventions:
                intervention = intervention_of(sim.values["info"])
            self._solved = self._mapped.solves(sim.values, sim.ended or self._steps >= self._spec.max_episode_steps)
            if sim.ended:
                self._mapped.check_end(sim.values)
        else:
            sim.step(action)
        result = self._mapped.result_of(sim.values, self._solved, self._end_on_success)
        return result if intervention is None else result._replace(intervention=intervention)

    def observe(self, out: Obs) -> None:
        values = self._sim.values
        if self._mapped.renders:
            values = {**values, RENDER: self._sim.render()}
        self._mapped.write(values, out)

    def frame(self) -> np.ndarray:
        """The rendered picture; of an env without one the first of the observation, or a grey one."""
        rendered = self._sim.render() if self._facts.frame is not None else None
        return self._mapped.frame(self._sim.values, rendered)

    @property
    def judges_at_end(self) -> bool:
        """See :attr:`embodied.protocols.JudgesAtEnd.judges_at_end`."""
        return self._mapped.success.at_end

    def progress_features(self) -> np.ndarray:
        """Says where things are (:class:`embodied.protocols.HasProgressFeatures`)."""
        return self._mapped.features_of(self._sim.values)

    def _expert(self) -> Iterator[np.ndarray]:
        """Yields the scripted policy's actions (:class:`embodied.protocols.Expert`)."""
        return actions_of(self._expert_path, self._sim)

    def close(self) -> None:
        if self._simulator is not None:
            self._simulator.close()
            self._simulator = None
