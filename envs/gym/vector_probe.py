"""Makes a vector env once and says what it offers; refuses one whose copies cannot be restarted one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from embodied.errors import ConfigError, EmbodiedError

from .calls import action_facts, to_action
from .facts import GymFacts
from .late import ProbedEnv, silent_of
from .settings import Making
from .sources import bounds_of, deep_copy, difference, entries
from .vector import MEND, Copies, make_vector

_COPIES, _STEPS = 3, 4
_EQUAL = {0: 0, 1: 1, 2: 0}  # copies 0 and 2 have one seed
Episodes = list[list[dict[str, Any]]]  # [copy][step] what sources read


def describe_vector(making: Making, tried: list[ProbedEnv] | None) -> GymFacts:
    """Probes a vector env of three copies: makes, resets and steps it.

    Args:
        tried: gets the vector env, which stays open.

    Raises:
        ConfigError: ``reset`` takes no seed for each copy, or does not restart one copy alone.
    """
    import gymnasium

    name = making.tasks[0].name
    copies = Copies(making, "render_mode" not in making.tasks[0].make_kwargs and _draws(making), _COPIES)
    plain = _play(copies, name, None)
    frame, no_frame = _frame(copies)
    env = copies.env
    spec = getattr(env.unwrapped, "spec", None)
    differs = _differs(plain, _play(copies, name, None))
    alone = _play(copies, name, {1: 0})
    if not differs:
        if change := difference(plain[0], alone[0]):
            raise _resets_all(name, change)
        if change := difference(plain[0], alone[1][_STEPS + 1 :]):
            differs = f"a copy that is restarted alone: {change}"
    seen = [step for episode in plain for step in episode]
    found = {key: kind for step in seen for key, kind in entries("obs", step["obs"]).items()}
    found |= {key: kind for step in reversed(seen) for key, kind in entries("info", step["info"]).items()}
    space = getattr(env, "single_observation_space", None)
    limits = (getattr(spec, "max_episode_steps", None), getattr(env.unwrapped, "max_episode_steps", None))
    if tried is None:
        copies.close()
    else:
        tried.append(ProbedEnv(copies, lambda: copies.reset(_EQUAL), lambda: _drawn(copies)))
    return GymFacts(
        entries=found,
        action=action_facts(env.single_action_space, name),
        max_steps=next((limit for limit in limits if isinstance(limit, int)), 0),
        fps=float(env.metadata.get("render_fps") or 0),
        threshold=getattr(spec, "reward_threshold", None),
        frame=frame,
        no_frame=no_frame,
        differs=differs,
        variables=making.variables,
        version=gymnasium.__version__,
        bounds=bounds_of("obs", space),
        whole=False,
        silent=silent_of(seen),
    )


def _draws(making: Making) -> bool:
    """Whether the vector env can be made with pictures; envs say so in many ways, so it is tried."""
    try:
        make_vector(making, True, 1).close()
    except Exception:  # noqa: BLE001 (without pictures it is made again, and raises if that was not it)
        return False
    return True


def _frame(copies: Copies) -> tuple[tuple[int, ...] | None, str]:
    if getattr(copies.env, "render_mode", None) not in ("rgb_array", "rgb_array_list"):
        return None, "it has no render_mode rgb_array"
    try:
        return copies.pictures()[0].shape, ""
    except Exception as error:  # noqa: BLE001 (drivers and libraries raise anything)
        return None, " ".join(f"{type(error).__name__}: {error}".split())


def _play(copies: Copies, name: str, again: Mapping[int, int] | None) -> Episodes:
    """Short episodes of the same random actions in all copies.

    Args:
        again: copies that are restarted in the middle, alone, with their seeds.
    """
    _reset(copies, _EQUAL, name)
    space = copies.env.single_action_space
    space.seed(0)
    half = [to_action(space, space.sample()) for _ in range(_STEPS)]
    seen: Episodes = [[] for _ in range(_COPIES)]

    def look() -> None:
        for copy, values in enumerate(copies.values):
            seen[copy].append({key: deep_copy(value) for key, value in values.items()})

    look()
    for number, action in enumerate([*half, *half]):
        if again and number == _STEPS:
            _reset(copies, again, name)
            look()
        copies.step(np.stack([action] * _COPIES), np.ones(_COPIES, bool))
        look()
    for copy in range(_COPIES):  # of a copy that goes on, the look after the others' reset shows nothing new
        if again and copy not in again:
            del seen[copy][_STEPS + 1]
    return seen


def _drawn(copies: Copies) -> None:
    """Makes a step of the same random action in all copies that go on."""
    space = copies.env.single_action_space
    copies.step(np.stack([to_action(space, space.sample())] * _COPIES), ~np.array(copies.ended))


def _reset(copies: Copies, seeds: Mapping[int, int], name: str) -> None:
    first, alone = copies.env is None, len(seeds) < _COPIES
    try:
        shown = copies.reset(seeds)
    except EmbodiedError:
        raise
    except Exception as error:
        what = "a list of seeds, one a copy" if first else "options={'reset_mask': …}"
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"reset() of {name}'s vector env does not take {what}: {said}",
            MEND,
        ) from error
    for copy in range(_COPIES) if alone else ():
        if copy not in seeds and not copies.ended[copy]:
            now, before = ({"obs": obs, "reward": 0.0} for obs in (shown[copy], copies.values[copy]["obs"]))
            if change := difference([now], [before]):
                raise _resets_all(name, change)


def _differs(one: Episodes, two: Episodes) -> str:
    """How equal seeds give unequal episodes, in two copies or in two rounds; "" if they do not."""
    if change := difference(one[0], one[2]):
        return f"copies 0 and 2: {change}"
    if change := difference(one[0], two[0]) or difference(one[1], two[1]):
        return f"a second time: {change}"
    return ""


def _resets_all(name: str, change: str) -> ConfigError:
    return ConfigError(
        f"a reset of one copy of {name}'s vector env changes another: {change}",
        MEND,
    )
