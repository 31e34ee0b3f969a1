"""Scripted policies of the user's or of a package, for demonstrations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from embodied.errors import ConfigError
from embodied.lib.targets import load_target

from .calls import to_action
from .settings import KEY
from .simulator import Simulator


def actions_of(path: str, simulator: Simulator) -> Iterator[np.ndarray]:
    """Yields a scripted policy's actions in the running episode until it gives None or the env's episode has ended.

    Raises:
        ConfigError: it cannot be imported, or gives no action of the env.
    """
    policy = _policy(path, simulator.env)
    while not simulator.ended:
        action = policy(simulator.values["obs"])
        if action is None:
            return
        try:
            ours = to_action(simulator.env.action_space, action)
        except (TypeError, ValueError) as error:
            raise _no_action(path, action, simulator) from error
        if not np.isfinite(ours).all():
            raise _no_action(path, action, simulator)
        yield ours


def _policy(path: str, env: Any) -> Callable[[Any], Any]:
    target: Any = load_target(path, f"{KEY}.expert")
    is_class, act = inspect.isclass(target), target
    if is_class:
        made = act(env=env) if _takes_env(act) else act()
        act = getattr(made, "get_action", None) or made
    if not callable(act):
        raise ConfigError(
            f"{KEY}.expert: {path} has neither get_action nor __call__",
            "name a function of the observation, or such a class",
        )
    return (lambda obs: act(obs, env=env)) if _takes_env(act) else act


def _takes_env(function: Any) -> bool:
    try:
        return "env" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _no_action(path: str, action: Any, simulator: Simulator) -> ConfigError:
    return ConfigError(
        f"{KEY}.expert: {path} gives {action!r}, which is no action of {simulator.env.action_space}",
        "let it give an action as the env's step() takes it, or None to give up",
    )
