"""Demonstrations of any layout, and the check that they fit the policy's env."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from embodied import instructions
from embodied.errors import AssetsMissingError, DatasetError, SpecMismatchError
from embodied.types import ActionSpec, ContinuousAction, DiscreteAction, EnvSpec


@dataclass(frozen=True)
class Demonstration:
    """One episode of L control steps. Entry t was observed before action t."""

    instruction: str
    actions: np.ndarray  # float32 [L, A] in units of the controller; int32 [L] if discrete
    # observation fields without the pictures, e.g. "state" float32 [L, S]; instructions.FIELD uint8 [L, n] if the
    # instruction changes within the episode
    fields: Mapping[str, np.ndarray]
    pictures: Callable[[int], np.ndarray] | None  # t → uint8 [C, H, W, 3], decoded on each call; None without cameras
    where: str = "a demonstration"  # its file and its number there, for messages

    def __len__(self) -> int:
        return len(self.actions)

    def instruction_at(self, t: int) -> str:
        """Returns the instruction of step t."""
        own = self.fields.get(instructions.FIELD)
        return self.instruction if own is None else instructions.read(own[t].astype(np.uint8))

    @property
    def instructions(self) -> tuple[str, ...]:
        """Every instruction of the episode once, in the order of its steps."""
        own = self.fields.get(instructions.FIELD)
        if own is None:
            return (self.instruction,)
        return tuple(dict.fromkeys(self.instruction_at(t) for t in range(len(self))))


@dataclass(frozen=True)
class Demonstrations:
    """The episodes of one path, and the file's record of how they were made."""

    path: Path
    episodes: Sequence[Demonstration]
    made_with: Mapping[str, object] = field(default_factory=dict)  # e.g. {"control_mode": "pd_ee_delta_pose"}
    fps: float | None = None  # control steps a second, where the file says it
    columns: Sequence[str] = ()  # columns of the file, for messages


@dataclass(frozen=True)
class PendingEpisode:
    """A demonstrated episode that is listed and not read yet."""

    where: str  # its file and its number there
    read: Callable[[], Demonstration]  # raises DatasetError, SpecMismatchError, or what its file's library raises


@dataclass(frozen=True)
class DemonstrationStream:
    """A data set whose episodes are read one after another."""

    episodes: Iterable[PendingEpisode]
    count: int  # number of demonstrations
    made_with: Mapping[str, object] = field(default_factory=dict)
    fps: float | None = None
    columns: Sequence[str] = ()


@dataclass(frozen=True)
class FieldSelection:
    """Which fields of demonstrations to read: the env's names and, where they differ, the file's.

    Args:
        cameras: the env's cameras, in its order; None = all that the file has.
        camera_keys: their names in the file, in the same order; None = the same (or the layout's own names for them).
        state_keys: arrays whose concatenation is the env's ``state``; None = the layout's own.
        action_key: array of the actions; None = the layout's own.
        instruction: for episodes whose file has none.
        rotate_images: whether pictures of HDF5 files are turned by 180°; None = as the file's program left them.
        key: names the paths in the configuration, for messages.
    """

    cameras: Sequence[str] | None
    camera_keys: Sequence[str] | None = None
    state_keys: Sequence[str] | None = None
    instruction: str | None = None
    action_key: str | None = None
    rotate_images: bool | None = None
    key: str = "data"

    @property
    def one_path(self) -> str:
        """Returns how one path is given, for messages."""
        return f"{self.key}=PATH" if self.key == "data" else f"{self.key}=[PATH]"


def check_fit(demonstrations: Demonstrations, env: EnvSpec, kwargs: Mapping[str, Any]) -> None:
    """Compare demonstrations with the env. Raises :class:`SpecMismatchError` for the first mismatch.

    Args:
        kwargs: keyword arguments of the env; if they and the file both name a controller, the two are compared.
    """
    made, now = demonstrations.made_with.get("control_mode"), choices(kwargs)["control_mode"]
    if None not in (made, now) and made != now:
        raise _misfit(
            demonstrations, f"were made with control_mode {made}, and the env has {now}",
            f"give env.train and env.eval the control_mode {made}, or replay the demonstrations",
        )  # fmt: skip
    made, now = demonstrations.made_with.get("camera_views"), choices(kwargs)["camera_views"]
    if "camera_views" in demonstrations.made_with and made != now:
        raise _misfit(
            demonstrations, f"were seen with init_params.camera_views {made}, and the env has {now}",
            "give env.train and env.eval the camera_views of the demonstrations, or make them anew",
        )  # fmt: skip
    _check_actions(demonstrations, env.action)
    _check_fields(demonstrations, env)
    if isinstance(env.action, ContinuousAction):
        _check_range(demonstrations, env.action)


def _check_actions(demonstrations: Demonstrations, wanted: ActionSpec) -> None:
    assert isinstance(wanted, ContinuousAction | DiscreteAction), (
        "texts are demonstrated in other files (embodied.data.texts.text)"
    )
    actions = demonstrations.episodes[0].actions
    numbers = actions.shape[1] if actions.ndim == 2 else 0
    if isinstance(wanted, ContinuousAction):
        if numbers != wanted.dim:
            shown = f"{numbers} numbers an action" if numbers else "one of several actions a step"
            raise _misfit(
                demonstrations, f"have {shown}, and the env takes {wanted.dim}",
                "choose the env's controller with which they were made",
            )  # fmt: skip
        return
    if numbers:
        raise _misfit(
            demonstrations, f"have {numbers} numbers an action, and the env takes one of {wanted.num_actions} actions",
            "choose the env with which they were made",
        )  # fmt: skip
    for episode in demonstrations.episodes:
        for odd in (int(episode.actions.min()), int(episode.actions.max())):
            if not 0 <= odd < wanted.num_actions:
                raise _misfit(
                    demonstrations,
                    f"have an action {odd}, and the env's are 0 to {wanted.num_actions - 1} ({episode.where})",
                    "choose the env with which they were made",
                )  # fmt: skip


def _check_fields(demonstrations: Demonstrations, env: EnvSpec) -> None:
    first = demonstrations.episodes[0]
    for name, spec in env.obs.items():
        if name == instructions.FIELD:  # optional: without it an episode has the instruction of its task
            continue
        if name == "images":
            got = () if first.pictures is None else tuple(first.pictures(0).shape)
            fix = "give env.train and env.eval the cameras and sizes of the demonstrations (init_params)"
        else:
            got = tuple(first.fields[name].shape[1:]) if name in first.fields else ()
            fix = "choose the env whose observations they are, or data.state_keys for another part of them"
            fix += f": {', '.join(demonstrations.columns)}" if demonstrations.columns else ""
        if got != spec.shape:
            shown = list(got) if got else "nothing"
            raise _misfit(demonstrations, f"have {shown} as '{name}', and the env gives {list(spec.shape)}", fix)


TOLERANCE = 0.05  # share of the range's width, for rounding and a little overshoot
STRAYS = 0.01  # share of numbers that may lie further outside


def _check_range(demonstrations: Demonstrations, wanted: ContinuousAction) -> None:
    """Refuse actions outside the env's range: they are probably in other units."""
    actions = np.concatenate([episode.actions for episode in demonstrations.episodes])
    low, high = np.array(wanted.low), np.array(wanted.high)
    margin = TOLERANCE * (high - low)
    outside = ((actions < low - margin) | (actions > high + margin)).mean(axis=0)
    worst = int(outside.argmax())
    if outside[worst] > STRAYS:
        raise _misfit(
            demonstrations,
            f"have {outside[worst]:.0%} of the numbers of action dimension {worst} outside the env's range "
            f"[{low[worst]:g}, {high[worst]:g}] (they lie in [{actions[:, worst].min():.3g}, "
            f"{actions[:, worst].max():.3g}])",
            "convert the actions to the env's units, or choose the env's controller with which they were made",
        )  # fmt: skip


def _misfit(demonstrations: Demonstrations, what: str, remedy: str) -> SpecMismatchError:
    return SpecMismatchError(f"the demonstrations in {demonstrations.path} {what}", remedy)


def choices(kwargs: Mapping[str, Any]) -> dict[str, object]:
    """Returns the env's keyword arguments that demonstrations must agree with and array shapes do not show: control
    mode and camera poses."""
    given = {**(kwargs.get("init_params") or {}), **kwargs}
    return {name: given.get(name) for name in ("control_mode", "camera_views")}


def no_camera(path: Path | str, camera: str, known: Sequence[str]) -> SpecMismatchError:
    """Error for a camera that a file does not have."""
    return SpecMismatchError(
        f"{path} has no pictures of the env's camera '{camera}', only of: {', '.join(known) or 'none'}",
        "give env.train and env.eval the camera of the demonstrations, or name the file's with data.camera_keys=[…]",
    )


def no_actions(where: str, key: str, known: Sequence[str]) -> DatasetError:
    """Error for actions that a file does not have under their name.

    Args:
        known: names of what the file has.
    """
    near = [name for name in known if "action" in name.lower()]
    remedy = "restore the file from where it came from, or remove the episode"
    if near:
        remedy = f"name the actions with data.action_key, which may be {' or '.join(near)}"
    return DatasetError(f"{where} has no actions '{key}', only: {', '.join(known) or 'nothing'}", remedy)


def camera_names(selection: FieldSelection, layout_names: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    """Pairs each camera of the env with its name in the file.

    Args:
        layout_names: names that the layout has for cameras.

    Raises:
        SpecMismatchError: ``camera_keys`` are not as many as the cameras.
    """
    cameras = selection.cameras if selection.cameras is not None else selection.camera_keys or ()
    names = selection.camera_keys
    if names is None:
        names = [(layout_names or {}).get(camera, camera) for camera in cameras]
    if len(names) != len(cameras):
        raise SpecMismatchError(
            f"data.camera_keys names {len(names)} cameras, and the env has {len(cameras)}: {', '.join(cameras)}",
            "give data.camera_keys one name for each camera of the env, in its order",
        )
    return list(zip(cameras, names, strict=True))


def package(name: str) -> ModuleType:
    """Import an optional package. Raises :class:`AssetsMissingError` with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise AssetsMissingError(
            f"demonstrations need the package {name.partition('.')[0]}: {error}",
            'pip install "embodied-rl[data]" (from a checkout: pip install -e ".[data]")',
        ) from error
