"""Checks that an env gives what a policy reads, and takes what it gives; picks cameras and statistics for it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from embodied.errors import ConfigError, SpecMismatchError, broken, refuse
from embodied.types import ContinuousAction, EnvSpec

from .inputs.normalization import DEMONSTRATIONS, PAIRS, Scale
from .parts import Parts

EPS = 1e-8  # LeRobot's
KEY = "actor.model.statistics_key"
IDENTITY = Scale("identity")


def check_fit(parts: Parts, env: EnvSpec) -> None:
    """Raises :class:`SpecMismatchError` with all mismatches between policy and env."""
    rules = (_check_images, _check_cameras, _check_state, _check_actions, _check_tokenizer)
    refuse(broken(partial(rule, parts, env) for rule in rules))


def camera_order(parts: Parts, env: EnvSpec) -> tuple[int, ...]:
    """Numbers of the env's cameras that are read, in the order of the places for pictures."""
    names = parts.settings.cameras
    return tuple(range(len(env.cameras))) if names is None else tuple(env.cameras.index(name) for name in names)


def statistics_scales(
    parts: Parts, env: EnvSpec | None, values: Mapping[str, Any] | None = None
) -> tuple[Scale, Scale]:
    """Scales of state and actions: by new statistics, else those that there are, else the env's range of actions.

    Args:
        values: see :meth:`embodied.protocols.UsesStatistics.use_statistics`.

    Raises:
        ConfigError: the statistics lack what ``actor.model.normalization`` needs.
    """
    now = parts.now
    if values is None:
        if now.action.kind != "identity" or env is None or parts.source is not None:
            return now.state, now.action
        return now.state, Scale("quantiles", tuple(env.action_low), tuple(env.action_high), EPS)
    action, state = values.get("action"), values.get("proprio")
    return (
        now.state if state is None else _scale(parts, state, "proprio", now.state),
        now.action if action is None else _scale(parts, action, "action", now.action),
    )


def _scale(parts: Parts, block: Mapping[str, Any], feature: str, before: Scale) -> Scale:
    """A folder's kind of normalisation stays: the network was trained with it."""
    kind = before.kind if parts.source is not None else parts.settings.normalization
    if missing := [name for name in PAIRS[kind] if name not in block]:
        raise ConfigError(
            f"the statistics of {feature} lack {', '.join(missing)}, by which {kind} normalises",
            "set actor.model.normalization=quantiles or min_max, or record the demonstrations anew",
        )
    note = {
        name: tuple(float(v) for v in numbers) for name, numbers in block.items() if isinstance(numbers, list | tuple)
    }
    return Scale.of(kind, note, before.eps if parts.source is not None else EPS, before.openpi, feature)


def _check_images(parts: Parts, env: EnvSpec) -> None:
    images = env.obs.get("images")
    if images is None or not env.cameras or images.dtype != "uint8" or len(images.shape) != 4 or images.shape[3] != 3:
        got = "nothing" if images is None else f"{images.dtype} {list(images.shape)}"
        raise SpecMismatchError(
            f"this policy needs images uint8 [C, H, W, 3], the env gives {got}",
            "choose an env with cameras, or a model that reads none (model=mlp)",
        )


def _check_cameras(parts: Parts, env: EnvSpec) -> None:
    names, places = parts.settings.cameras, parts.places
    if names is not None and (lost := [name for name in names if name not in env.cameras]):
        raise SpecMismatchError(
            f"actor.model.cameras names {', '.join(lost)}, the env has {', '.join(env.cameras)}",
            "name cameras of the env, in the order of the policy's places",
        )
    count = len(env.cameras) if names is None else len(names)
    if places is not None and count > len(places):
        raise SpecMismatchError(
            f"the policy has places for {len(places)} pictures ({', '.join(places)}), and {count} cameras are read "
            f"({', '.join(names or env.cameras)})",
            f"name at most {len(places)} in actor.model.cameras, in the order of the places",
        )


def _check_state(parts: Parts, env: EnvSpec) -> None:
    state, most = env.obs.get("state"), parts.model.sizes.state_width
    if state is None or len(state.shape) != 1:
        raise SpecMismatchError("this policy reads a state, the env gives none", "choose an env with a state")
    width = parts.now.state.width
    if width is not None and state.shape[0] != width:
        raise SpecMismatchError(
            f"the statistics are of a state of {width} numbers, the env gives {state.shape[0]}",
            "choose an env with the state that the policy was trained with, name other statistics "
            f"({KEY}), or clone demonstrations with theirs ({KEY}={DEMONSTRATIONS})",
        )
    if parts.model.sizes.state_place != "text" and state.shape[0] > most:
        raise SpecMismatchError(
            f"the env's state has {state.shape[0]} numbers, the policy reads at most {most}",
            "choose an env with a smaller state"
            + ("" if parts.source else f", or set actor.model.state_width={state.shape[0]}"),
        )


def _check_actions(parts: Parts, env: EnvSpec) -> None:
    if not isinstance(env.action, ContinuousAction):
        raise SpecMismatchError(
            "this policy gives continuous actions, the env takes others", "choose another model for this env"
        )
    width, most = parts.now.action.width, parts.model.sizes.action_width
    if width is not None and (parts.source is not None or parts.now.name) and env.action_dim != width:
        raise SpecMismatchError(
            f"the statistics are of actions of {width} numbers, the env takes {env.action_dim}",
            "choose the env that the policy was trained for, name other statistics "
            f"({KEY}), or clone demonstrations with theirs ({KEY}={DEMONSTRATIONS})",
        )
    if env.action_dim > most:
        raise SpecMismatchError(
            f"the env's actions have {env.action_dim} numbers, the policy gives at most {most}",
            "choose an env with fewer"
            + ("" if parts.source else f", or set actor.model.action_width={env.action_dim}"),
        )


def _check_tokenizer(parts: Parts, env: EnvSpec) -> None:
    if parts.tokenizer is None:
        raise SpecMismatchError(
            f"{parts.source} has no tokenizer.json, and the policy reads the instruction",
            "copy it there, or set actor.model.tokenizer_path: of google/paligemma-3b-pt-224 for π0 and π0.5, of "
            "HuggingFaceTB/SmolVLM2-500M-Video-Instruct for SmolVLA",
        )
    rows = (parts.tokenizer.encode(task) for task in env.tasks)
    if (largest := max((max(ids, default=0) for ids in rows), default=0)) >= parts.model.sizes.vocab:
        raise SpecMismatchError(
            f"the tokenizer gives id {largest}, and the network embeds {parts.model.sizes.vocab} ids",
            "set actor.model.tokenizer_path to the tokenizer that the policy was trained with",
        )
    if not env.tasks:
        raise SpecMismatchError("the env has no task, hence no instruction", "give EnvSpec.tasks at least one")
