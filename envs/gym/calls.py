"""Calls of an env: actions of ours turned into its own, and what it gives back, checked. An env of others may follow an
older Gymnasium, or none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from embodied.errors import ConfigError, SpecMismatchError

from .settings import KEY


def action_facts(space: Any, name: str) -> Mapping[str, Any]:
    """Describes an action space as JSON values: ``{"low": […], "high": […]}`` or ``{"n": N}``.

    Raises:
        ConfigError: it is another space, or a Box without bounds.
    """
    import gymnasium

    if isinstance(space, gymnasium.spaces.Discrete):
        return {"n": int(space.n)}
    if not isinstance(space, gymnasium.spaces.Box):
        raise ConfigError(
            f"{name} takes actions of {space}, expected Box or Discrete",
            f"name a gymnasium.ActionWrapper in {KEY}.wrappers that turns it into one of them",
        )
    low, high = (np.asarray(bound, np.float64).reshape(-1) for bound in (space.low, space.high))
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ConfigError(
            f"{name} takes actions of {space}, which has no bounds",
            f"name a wrapper in {KEY}.wrappers whose action_space has finite low and high",
        )
    return {"low": low.tolist(), "high": high.tolist()}


def from_action(space: Any, name: str) -> Callable[[np.ndarray], Any]:
    """Makes the function that converts our action into the env's; raises as :func:`action_facts` does."""
    action_facts(space, name)
    if hasattr(space, "n"):
        first = int(space.start)
        return lambda action: first + int(action)
    shape, dtype, low, high = space.shape, space.dtype, space.low, space.high
    if np.issubdtype(dtype, np.integer):  # the nearest whole number; a cast would cut towards zero, and wrap round
        return lambda action: np.rint(np.clip(np.asarray(action, np.float64).reshape(shape), low, high)).astype(dtype)
    return lambda action: np.clip(np.asarray(action).reshape(shape).astype(dtype), low, high)


def to_action(space: Any, action: Any) -> np.ndarray:
    """Converts an env's action into ours: float32 [A] or int32 []."""
    if hasattr(space, "n"):
        return np.asarray(int(action) - int(space.start), np.int32)
    flat = np.asarray(action, np.float32).reshape(-1)
    return np.clip(flat, space.low.reshape(-1), space.high.reshape(-1)).astype(np.float32)


def check_reset(returned: Any) -> tuple[Any, Mapping[Any, Any]]:
    """Splits what ``reset()`` returned into observation and info. Raises :class:`SpecMismatchError` if it is anything
    else."""
    if isinstance(returned, tuple | list) and len(returned) == 2 and _is_info(returned[1]):
        return returned[0], returned[1] or {}
    raise _another("reset()", returned, "(observation, info), the info a dict")


def check_step(returned: Any) -> tuple[Any, float, bool, bool, Mapping[Any, Any]]:
    """Splits what ``step()`` returned into observation, reward, terminated, truncated and info.

    Raises:
        SpecMismatchError: it gives anything else.
    """
    if not (isinstance(returned, tuple | list) and len(returned) == 5 and _is_info(returned[4])):
        raise _another("step()", returned, "(observation, reward, terminated, truncated, info), the info a dict")
    obs, reward, terminated, truncated, info = returned
    flags = check_flag(terminated, "terminated"), check_flag(truncated, "truncated")
    return obs, check_reward(reward), *flags, info or {}


def check_reward(reward: Any) -> float:
    """Converts an env's reward to a float. Raises :class:`SpecMismatchError` if it is no number."""
    try:
        return _number(reward)
    except (TypeError, ValueError, RuntimeError):
        raise SpecMismatchError(
            f"step() gave the reward {reward!r}, expected a number",
            f"let the env, or a wrapper of {KEY}.wrappers, give a float",
        ) from None


def check_flag(flag: Any, name: str) -> bool:
    """Converts an env's end flag to a bool. Raises :class:`SpecMismatchError` if it is none."""
    try:
        number = 0.0 if flag is None else _number(flag)
        if math.isnan(number):
            raise ValueError
        return bool(number)
    except (TypeError, ValueError, RuntimeError):
        raise SpecMismatchError(
            f"step() gave {flag!r} as {name}, expected True or False",
            f"let the env, or a wrapper of {KEY}.wrappers, give a bool",
        ) from None


def intervention_of(info: Mapping[Any, Any]) -> np.ndarray | None:
    """Reads what a human had executed instead of the action: ``info["executed_action"]``, flattened, where
    ``info["intervention"]`` is true; None where it is not, or not there.

    Raises:
        SpecMismatchError: there is no such action, or it is no numbers.
    """
    if not check_flag(info.get("intervention"), 'info["intervention"]'):
        return None
    action = info.get("executed_action")
    try:
        if action is None:
            raise ValueError
        return np.asarray(action, np.float32).reshape(-1)
    except (TypeError, ValueError, OverflowError):
        raise SpecMismatchError(
            f'info["intervention"] is true, and info["executed_action"] is {action!r}, expected the action that was '
            "executed",
            f"let the env, or a wrapper of {KEY}.wrappers, put it there, as its action_space has it",
        ) from None


def _number(value: Any) -> float:
    """One number, also of an array or a tensor that holds one."""
    if isinstance(value, str | bytes):
        raise TypeError
    item = getattr(value, "item", None)
    return float(item() if callable(item) else value)


def _is_info(info: Any) -> bool:
    return info is None or isinstance(info, Mapping)


def _another(call: str, given: Any, expected: str) -> SpecMismatchError:
    many = isinstance(given, tuple | list)
    got = f"({', '.join(type(one).__name__ for one in given)})" if many and len(given) < 9 else type(given).__name__
    return SpecMismatchError(
        f"{call} gives {got}, expected {expected}",
        f"correct the env: {call} as Gymnasium has had it since 0.26; or bring it into this form in a wrapper "
        f"({KEY}.wrappers)",
    )
