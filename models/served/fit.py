"""Whether a server's answers fit the env: what it tells of itself, before the first episode, and each answer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from embodied.errors import EmbodiedError, SpecMismatchError, refuse
from embodied.instructions import fields_of
from embodied.types import ContinuousAction, DiscreteAction, EnvSpec, TextAction

from .dialects import Told
from .mapping import Mapped

FAR = 5.0  # widths of the env's range by which an action may lie outside: more is another unit
ANOTHER = "choose the env that the server's policy was trained for, or serve a policy of this env"


def check_told(told: Told, env: EnvSpec, mapping: Mapped | None, url: str) -> None:
    """Compares what a server tells of itself with an env.

    Raises:
        SpecMismatchError: all that does not fit.
    """
    if isinstance(env.action, TextAction):
        raise SpecMismatchError(
            "the env takes text, and policy servers answer with actions",
            "answers of a language model's server: generate them to a file, and evaluate it (runner.answers)",
        )
    refuse([*_differences(told, env, mapping, url)])


def _differences(told: Told, env: EnvSpec, mapping: Mapped | None, url: str) -> Iterator[EmbodiedError]:
    yield from _of_action(told, env, url)
    if told.control_hz is not None and abs(told.control_hz - env.control_hz) > 1e-3 * env.control_hz:
        yield SpecMismatchError(
            f"the policy of {url} was trained at {told.control_hz:g} control steps a second, the env makes "
            f"{env.control_hz:g}",
            "choose an env of the same rate: an action that is held for another time does something else",
        )
    if mapping is not None:
        mapping.fills(env)
        return
    if told.observation is None:
        from .mapping import ready

        yield SpecMismatchError(
            f"{url} does not tell what its requests hold, and no mapping does",
            f"set actor.model.mapping to a YAML file of yours, or to one that is ready: {', '.join(ready())}",
        )
        return
    yield from _of_observation(told, env, url)


def _of_action(told: Told, env: EnvSpec, url: str) -> Iterator[EmbodiedError]:
    action = env.action
    if isinstance(action, DiscreteAction):
        if told.action_dim is not None and told.num_actions != action.num_actions:
            has = "actions of several numbers" if told.num_actions is None else f"one of {told.num_actions} actions"
            yield SpecMismatchError(f"{url} gives {has}, the env takes one of {action.num_actions}", ANOTHER)
        return
    assert isinstance(action, ContinuousAction)
    if told.num_actions is not None:
        yield SpecMismatchError(
            f"{url} gives one of {told.num_actions} actions, the env takes {action.dim} numbers", ANOTHER
        )
    elif told.action_dim is not None and told.action_dim != action.dim:
        yield SpecMismatchError(
            f"{url} gives actions of {told.action_dim} numbers, the env takes {action.dim}", ANOTHER
        )
    elif told.low is not None and told.high is not None:
        own, theirs = np.array([action.low, action.high]), np.array([told.low, told.high])
        if own.shape != theirs.shape or not np.allclose(own, theirs, rtol=1e-4, atol=1e-6):
            yield SpecMismatchError(
                f"{url} gives actions in {[*told.low]} … {[*told.high]}, the env takes {[*action.low]} … "
                f"{[*action.high]}: other units, or another controller",
                ANOTHER,
            )


def _of_observation(told: Told, env: EnvSpec, url: str) -> Iterator[EmbodiedError]:
    assert told.observation is not None
    own = {name: (tuple(env.obs[name].shape), env.obs[name].dtype) for name in fields_of(env)}
    for name in {**told.observation, **own}:
        wanted, got = told.observation.get(name), own.get(name)
        if wanted is None or (got is not None and got == wanted):
            continue
        shown = "has none" if got is None else f"gives {got[1]} {[*got[0]]}"
        yield SpecMismatchError(
            f"{url} takes '{name}' as {wanted[1]} {[*wanted[0]]}, the env {shown}",
            "choose the env that the server's policy was trained for, with the same cameras and sizes "
            "(env.*.init_params); or say in actor.model.mapping what fills the request",
        )
    if told.cameras is not None and "images" in told.observation and told.cameras != tuple(env.cameras):
        yield SpecMismatchError(
            f"{url} takes the cameras {', '.join(told.cameras)}, the env has {', '.join(env.cameras) or 'none'}",
            "name the cameras of the env in this order (env.*.init_params), or set actor.model.mapping",
        )


def read_actions(
    actions: np.ndarray, env: EnvSpec, mapping: Mapped | None, chunk: int | None, url: str, ranged: bool = True
) -> np.ndarray:  # fmt: skip
    """Returns the actions of an answer as a decision holds them: K, or all where ``chunk`` is None.

    Args:
        ranged: False: the observation is none of the env, and the actions may lie anywhere.

    Raises:
        SpecMismatchError: they are none of the env's: another size, too few, not finite, far outside of the range.
    """
    if isinstance(env.action, DiscreteAction):
        return _choices(actions, env.action, chunk, url)
    wanted = env.continuous
    actions = actions[None] if actions.ndim == 1 else actions
    if actions.ndim != 2 or actions.shape[1] != wanted.dim:
        raise SpecMismatchError(
            f"{url} gave actions {list(actions.shape)}, the env takes {wanted.dim} numbers an action", ANOTHER
        )
    _check_length(len(actions), chunk, url)
    actions = actions[:chunk]
    if not np.isfinite(actions).all():
        raise SpecMismatchError(
            f"{url} gave actions that are not finite numbers",
            "see the server's log: its weights may be damaged, or its observations outside of what it was trained on",
        )
    found = actions.astype(np.float32) if mapping is None else mapping.actions(actions)
    if ranged:
        _check_range(found, wanted, url)
    return found


def _check_range(found: np.ndarray, wanted: ContinuousAction, url: str) -> None:
    low, high = np.asarray(wanted.low), np.asarray(wanted.high)
    with np.errstate(invalid="ignore"):
        over = np.maximum(low - found, found - high) / np.maximum(high - low, 1e-9)
    over = np.where(np.isfinite(over), over, 0.0)  # a dimension without limits
    if over.max() > FAR:
        place = int(over.argmax() % wanted.dim)
        extremes = f"{found[:, place].min():.4g} … {found[:, place].max():.4g}"
        raise SpecMismatchError(
            f"{url} gave {extremes} for number {place} of an action, whose range in the env is {low[place]:g} … "
            f"{high[place]:g}: other units",
            "set actions.scale in actor.model.mapping, or serve a policy of this env's controller",
        )


def _choices(actions: np.ndarray, wanted: DiscreteAction, chunk: int | None, url: str) -> np.ndarray:
    if actions.ndim != 1 or actions.dtype.kind not in "iu":
        raise SpecMismatchError(
            f"{url} gave {actions.dtype} {list(actions.shape)}, the env takes one of {wanted.num_actions} actions",
            ANOTHER,
        )
    _check_length(len(actions), chunk, url)
    if actions.min() < 0 or actions.max() >= wanted.num_actions:
        raise SpecMismatchError(
            f"{url} gave action {int(actions.max())}, the env has 0 … {wanted.num_actions - 1}", ANOTHER
        )
    return actions[:chunk].astype(np.int32)


def _check_length(got: int, chunk: int | None, url: str) -> None:
    if chunk is not None and got < chunk:
        raise SpecMismatchError(
            f"{url} gives {got} actions an answer, and {chunk} are to be executed",
            f"set actor.model.num_action_chunks={got}, or less (or actions.take of the mapping)",
        )
