"""A vector env of others that simulates all copies together, driven copy by copy.

Gymnasium leaves open how one copy of a vector env is restarted. What is needed here is what its SyncVectorEnv and
AsyncVectorEnv do since 1.1, with automatic resets turned off (``AutoresetMode.DISABLED``):

- ``reset(seed=[s0, s1, …], options={"reset_mask": bool [N]})`` restarts the masked copies, each from its own seed, and
  leaves the others as they are;
- what a copy does is decided by its seed and its actions, whatever the others do.

Gymnasium's base class promises one seed for the whole batch, and its own CartPoleVectorEnv takes no more. The starts
of a group could then not be equal, so :mod:`.vector_probe` refuses such a vector env.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from embodied.errors import AssetsMissingError, ConfigError
from embodied.types import Obs, Start, StepResult

from .calls import check_flag, check_reward, from_action
from .mapping import ResolvedMapping
from .pictures import rendered
from .settings import ASYNC, KEY, VECTOR_ENTRY_POINT, Making
from .simulator import make_unwrapped, wrapped
from .sources import RENDER, deep_copy

MEND = (
    "let its reset() take seed=[one for each copy] and options={'reset_mask': bool array}, restart the masked copies "
    "and leave the others as they are, as gymnasium.vector.SyncVectorEnv does; or set "
    f"{KEY}.vectorization={ASYNC}, which makes an env for each slot"
)


def make_vector(making: Making, render: bool, copies: int) -> Any:
    """Makes the vector env, in its wrappers.

    Raises:
        UnknownNameError, ConfigError, AssetsMissingError: as :func:`.simulator.make`; the id registers no vector env;
            what is made is none, or resets ended copies by itself.
    """
    import gymnasium

    if not hasattr(gymnasium.vector, "AutoresetMode"):
        raise AssetsMissingError(
            f"gymnasium {gymnasium.__version__} does not let a vector env leave its resets to others",
            "pip install 'gymnasium>=1.1'",
        )
    task = making.tasks[0]

    def of_id(name: str, **kwargs: Any) -> Any:
        return gymnasium.make_vec(name, copies, VECTOR_ENTRY_POINT, **kwargs)

    if task.id is not None and _registers_none(task.id):
        raise ConfigError(
            f"'{task.id}' registers no vector_entry_point",
            f"set {KEY}.vectorization=async (or null), or name a function that makes a vector env: "
            f"{KEY}.id=null {KEY}.entry_point=MODULE.FUNCTION",
        )
    env = wrapped(make_unwrapped(task, of_id, render, {"num_envs": copies}), task, making)
    for name in ("num_envs", "single_action_space", "single_observation_space"):
        if not hasattr(env, name):
            raise ConfigError(
                f"{task.name} is a {type(env).__name__} without {name}, expected a gymnasium.vector.VectorEnv",
                f"let {KEY}.entry_point make one from num_envs, or leave {KEY}.vectorization null",
            )
    mode = env.metadata.get("autoreset_mode")
    if getattr(mode, "value", mode) != gymnasium.vector.AutoresetMode.DISABLED.value:
        raise ConfigError(
            f"{task.name} is a vector env that resets ended copies by itself, without a seed (autoreset_mode "
            f"{getattr(mode, 'value', mode)}): equal starts would not be equal episodes",
            f"make it with metadata['autoreset_mode'] = AutoresetMode.DISABLED, and {MEND}",
        )
    return env


def _registers_none(id: str) -> bool:
    import gymnasium

    try:
        return gymnasium.spec(id).vector_entry_point is None
    except gymnasium.error.Error:
        return False  # make_vec says what is wrong


class Copies:
    """The sub-envs of a gymnasium vector env. Those whose own episode has ended stand still, as a single env does.

    Args:
        number: of copies.
    """

    def __init__(self, making: Making, render: bool, number: int) -> None:
        self._making, self._render, self._number = making, render, number
        self.env: Any = None
        self.values: list[dict[str, Any]] = [{} for _ in range(number)]  # values that sources read, a map for each copy
        self.ended = [False] * number  # the copy's own episode has
        self._seeds = [0] * number
        self._over: set[int] = set()  # ended, and not reset since
        self._held: dict[int, np.ndarray] = {}  # last pictures of copies that have ended
        self._from_action: Callable[[np.ndarray], Any] = np.asarray

    @property
    def steps(self) -> list[dict[str, Any]]:
        """Values that sources may read after the last step, of each copy, as :class:`.late.Env` has it."""
        return self.values

    @property
    def over(self) -> bool:
        """Whether the episode of every copy has ended."""
        return all(self.ended)

    def reset(self, seeds: Mapping[int, int]) -> list[Any]:
        """Restarts some copies, each from its seed. Returns the observations of all copies."""
        obs, info = self._restart(seeds)
        for copy in seeds:
            self.values[copy] = {
                "obs": deep_copy(obs[copy]), "info": _info_of(info, copy, self._number), "reward": 0.0, "return": 0.0,
                "terminated": False, "truncated": False,
            }  # fmt: skip
            self.ended[copy] = False
            self._held.pop(copy, None)
        return obs

    def _restart(self, seeds: Mapping[int, int]) -> tuple[list[Any], Mapping[str, Any]]:
        for copy, seed in seeds.items():
            self._seeds[copy] = seed
        options = None
        if self.env is None:  # the first reset is of all: some vector envs have nothing to show of the others
            self.env = make_vector(self._making, self._render, self._number)
            self._from_action = from_action(self.env.single_action_space, self._making.tasks[0].name)
        else:
            mask = np.zeros(self._number, bool)
            mask[list(seeds)] = True
            options = {"reset_mask": mask}
        self._over -= seeds.keys()
        obs, info = self.env.reset(seed=list(self._seeds), options=options)
        return list(_each(self.env.observation_space, obs)), info

    def step(self, actions: np.ndarray, active: np.ndarray) -> None:
        """Makes a step of all copies. The values of those that are not active stay as they are."""
        from gymnasium.vector.utils import concatenate, create_empty_array

        moving = [bool(active[copy]) and not self.ended[copy] for copy in range(self._number)]
        for copy in np.flatnonzero(active).tolist():
            if not moving[copy]:
                self.values[copy] = {**self.values[copy], "reward": 0.0}
        if not any(moving):
            return
        if self._over:  # no step is allowed while a copy has ended
            self._hold([copy for copy in self._over if active[copy]])
            self._restart({copy: self._seeds[copy] for copy in self._over})
        space = self.env.single_action_space
        empty: Any = create_empty_array(space, self._number)
        given = concatenate(space, [self._from_action(action) for action in actions], empty)
        batch, rewards, terminated, truncated, info = self.env.step(given)
        for copy, obs in enumerate(_each(self.env.observation_space, batch)):
            flags = check_flag(terminated[copy], "terminated"), check_flag(truncated[copy], "truncated")
            ended = any(flags)
            if ended:
                self._over.add(copy)
            if not moving[copy]:
                continue
            reward = check_reward(rewards[copy])
            self.values[copy] = {
                "obs": deep_copy(obs), "info": _info_of(info, copy, self._number), "reward": reward,
                "return": self.values[copy]["return"] + reward, "terminated": flags[0], "truncated": flags[1],
            }  # fmt: skip
            self.ended[copy] = ended

    def _hold(self, copies: Sequence[int]) -> None:
        if self._render and copies:
            pictures = self.pictures()
            self._held.update({copy: np.copy(pictures[copy]) for copy in copies})

    def pictures(self) -> list[np.ndarray]:
        """A picture of each copy: uint8 [H, W, 3]. Raises :class:`ConfigError` if the env gives none."""
        drawn = self.env.render()
        if drawn is None or len(drawn) != self._number:
            raise ConfigError(
                f"render() gives {type(drawn).__name__} of {0 if drawn is None else len(drawn)} pictures, expected one "
                f"for each of {self._number} copies",
                f"name pictures of the observation in {KEY}.images and set {KEY}.make_kwargs.render_mode=null",
            )
        return [self._held.get(copy, rendered(picture)) for copy, picture in enumerate(drawn)]

    def close(self) -> None:
        if self.env is not None:
            self.env.close()
            self.env = None


class VectorBatch:
    """Hosts the slots of a worker in the user's own vector env (:class:`embodied.protocols.BatchEnv`).

    Args:
        seed_of: gives what ``reset`` takes for a start.
        max_steps: control steps of an episode of the env's own.
    """

    def __init__(
        self, copies: Copies, mapped: ResolvedMapping, end_on_success: bool, seed_of: Callable[[Start], int],
        draws: bool, max_steps: int,
    ) -> None:  # fmt: skip
        self._max_steps = max_steps
        self._copies, self._mapped, self._end_on_success = copies, mapped, end_on_success
        self._seed_of, self._draws = seed_of, draws
        self._solved, self._steps = [False] * len(copies.values), [0] * len(copies.values)

    def reset(self, slots: Sequence[int], starts: Sequence[Start]) -> None:
        self._copies.reset({slot: self._seed_of(start) for slot, start in zip(slots, starts, strict=True)})
        for slot in slots:
            self._solved[slot], self._steps[slot] = False, 0

    def step(self, actions: np.ndarray, active: np.ndarray) -> Sequence[StepResult]:
        copies, before = self._copies, list(self._copies.ended)
        copies.step(actions, active)
        return [self._result(slot, before[slot]) for slot in range(len(copies.values))]

    def _result(self, slot: int, stood: bool) -> StepResult:
        values = self._copies.values[slot]
        if not values:  # never reset
            return StepResult(0.0, False, False)
        if not stood:
            self._steps[slot] += 1
            ended = self._copies.ended[slot] or self._steps[slot] >= self._max_steps
            self._solved[slot] = self._mapped.solves(values, ended)
            if self._copies.ended[slot]:
                self._mapped.check_end(values)
        return self._mapped.result_of(values, self._solved[slot], self._end_on_success)

    def observe(self, slots: Sequence[int], outs: Sequence[Obs]) -> None:
        pictures = self._copies.pictures() if self._mapped.renders else None
        for slot, out in zip(slots, outs, strict=True):
            values = self._copies.values[slot]
            self._mapped.write(values if pictures is None else {**values, RENDER: pictures[slot]}, out)

    def progress_features(self, slot: int) -> np.ndarray:
        return self._mapped.features_of(self._copies.values[slot])

    def frame(self, slot: int) -> np.ndarray:
        """The rendered picture; of an env without one the first of the observation, or a grey one."""
        rendered = self._copies.pictures()[slot] if self._draws else None
        return self._mapped.frame(self._copies.values[slot], rendered)

    def close(self) -> None:
        self._copies.close()


def _each(space: Any, batch: Any) -> Iterator[Any]:
    from gymnasium.vector.utils import iterate

    return iter(iterate(space, batch))


def _info_of(info: Mapping[str, Any], copy: int, number: int) -> dict[str, Any]:
    """One copy's part of a vector env's ``info``: arrays by name, each with a mask ``_NAME`` of whose they are."""
    found = {}
    for name, value in info.items():
        mask = info.get(f"_{name}")
        if (name.startswith("_") and name[1:] in info) or (mask is not None and not mask[copy]):
            continue
        if isinstance(value, Mapping):
            found[name] = _info_of(value, copy, number)
        elif hasattr(value, "__len__") and not isinstance(value, str) and len(value) == number:
            found[name] = deep_copy(value[copy])
    return found
