"""Demonstrations of any layout, and the check that they fit the policy's env."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from embodied import instructions
from embodied.errors import AssetsMissingError, SpecMismatchError
from embodied.types import ActionSpec, ContinuousAction, EnvSpec, TextAction


@dataclass(frozen=True)
class Demonstration:
    """One episode of L control steps. Entry t was observed before action t."""

    instruction: str
    actions: np.ndarray  # float32 [L, A] in units of the controller; int32 [L] if discrete
    fields: Mapping[str, np.ndarray]  # observation fields without the pictures, e.g. "state" float32 [L, S]
    pictures: Callable[[int], np.ndarray] | None  # t → uint8 [C, H, W, 3], decoded on each call; None without cameras

    def __len__(self) -> int:
        return len(self.actions)


@dataclass(frozen=True)
class Demonstrations:
    """The episodes of one path, and the file's record of how they were made."""

    path: Path
    episodes: Sequence[Demonstration]
    made_with: Mapping[str, object] = field(default_factory=dict)  # e.g. {"control_mode": "pd_ee_delta_pose"}


@dataclass(frozen=True)
class Wanted:
    """What to read: the env's names and, where they differ, the file's.

    Args:
        cameras: the env's cameras, in its order.
        camera_keys: their names in the file, in the same order; None = the same (or the layout's own names for them).
        state_keys: arrays whose concatenation is the env's ``state``; None = the layout's own.
        instruction: for episodes whose file has none.
    """

    cameras: Sequence[str]
    camera_keys: Sequence[str] | None = None
    state_keys: Sequence[str] | None = None
    instruction: str | None = None


def check_fit(found: Demonstrations, env: EnvSpec, kwargs: Mapping[str, Any]) -> None:
    """Compare demonstrations with the env. Raises :class:`SpecMismatchError` for the first mismatch.

    Args:
        kwargs: keyword arguments of the env; if they and the file both name a controller, the two are compared.
    """
    made, now = found.made_with.get("control_mode"), choices(kwargs)["control_mode"]
    if None not in (made, now) and made != now:
        raise _misfit(
            found, f"were made with control_mode {made}, and the env has {now}",
            f"give env.train and env.eval the control_mode {made}, or replay the demonstrations",
        )  # fmt: skip
    made, now = found.made_with.get("camera_views"), choices(kwargs)["camera_views"]
    if "camera_views" in found.made_with and made != now:
        raise _misfit(
            found, f"were seen with init_params.camera_views {made}, and the env has {now}",
            "give env.train and env.eval the camera_views of the demonstrations, or make them anew",
        )  # fmt: skip
    _check_actions(found, env.action)
    _check_fields(found, env)
    if isinstance(env.action, ContinuousAction):
        _check_range(found, env.action)


def _check_actions(found: Demonstrations, wanted: ActionSpec) -> None:
    assert not isinstance(wanted, TextAction), "texts are demonstrated in other files (embodied.data.text)"
    actions = found.episodes[0].actions
    numbers = actions.shape[1] if actions.ndim == 2 else 0
    if isinstance(wanted, ContinuousAction):
        if numbers != wanted.dim:
            shown = f"{numbers} numbers an action" if numbers else "one of several actions a step"
            raise _misfit(
                found, f"have {shown}, and the env takes {wanted.dim}",
                "choose the env's controller with which they were made",
            )  # fmt: skip
        return
    if numbers:
        raise _misfit(
            found, f"have {numbers} numbers an action, and the env takes one of {wanted.num_actions} actions",
            "choose the env with which they were made",
        )  # fmt: skip
    most = max(int(episode.actions.max()) for episode in found.episodes)
    if most >= wanted.num_actions:
        raise _misfit(
            found, f"have an action {most}, and the env's are 0 to {wanted.num_actions - 1}",
            "choose the env with which they were made",
        )  # fmt: skip


def _check_fields(found: Demonstrations, env: EnvSpec) -> None:
    first = found.episodes[0]
    for name, spec in env.obs.items():
        if name == instructions.FIELD:  # optional: without it an episode has the instruction of its task
            continue
        if name == "images":
            got = () if first.pictures is None else tuple(first.pictures(0).shape)
            fix = "give env.train and env.eval the cameras and sizes of the demonstrations (init_params)"
        else:
            got = tuple(first.fields[name].shape[1:]) if name in first.fields else ()
            fix = "choose the env whose observations they are, or data.state_keys for another part of them"
        if got != spec.shape:
            shown = list(got) if got else "nothing"
            raise _misfit(found, f"have {shown} as '{name}', and the env gives {list(spec.shape)}", fix)


TOLERANCE = 0.05  # share of the range's width, for rounding and a little overshoot
STRAYS = 0.01  # share of numbers that may lie further outside


def _check_range(found: Demonstrations, wanted: ContinuousAction) -> None:
    """Refuse actions outside the env's range: they are probably in other units."""
    actions = np.concatenate([episode.actions for episode in found.episodes])
    low, high = np.array(wanted.low), np.array(wanted.high)
    margin = TOLERANCE * (high - low)
    outside = ((actions < low - margin) | (actions > high + margin)).mean(axis=0)
    worst = int(outside.argmax())
    if outside[worst] > STRAYS:
        raise _misfit(
            found, f"have {outside[worst]:.0%} of the numbers of action dimension {worst} outside the env's range "
            f"[{low[worst]:g}, {high[worst]:g}] (they lie in [{actions[:, worst].min():.3g}, "
            f"{actions[:, worst].max():.3g}])",
            "convert the actions to the env's units, or choose the env's controller with which they were made",
        )  # fmt: skip


def _misfit(found: Demonstrations, what: str, remedy: str) -> SpecMismatchError:
    return SpecMismatchError(f"the demonstrations in {found.path} {what}", remedy)


def choices(kwargs: Mapping[str, Any]) -> dict[str, object]:
    """Keyword arguments of an env on which demonstrations depend although their sizes do not show it."""
    given = {**(kwargs.get("init_params") or {}), **kwargs}
    return {name: given.get(name) for name in ("control_mode", "camera_views")}


def no_camera(path: Path, camera: str, known: Sequence[str]) -> SpecMismatchError:
    """Error for a camera that a file does not have."""
    return SpecMismatchError(
        f"{path} has no pictures of the env's camera '{camera}', only of: {', '.join(known) or 'none'}",
        "give env.train and env.eval the camera of the demonstrations, or name the file's with data.camera_keys=[…]",
    )


def package(name: str) -> ModuleType:
    """Import an optional package. Raises :class:`AssetsMissingError` with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise AssetsMissingError(
            f"demonstrations need the package {name.partition('.')[0]}: {error}",
            'pip install "embodied-rl[data]" (from a checkout: pip install -e ".[data]")',
        ) from error
