"""Sections of perturbations: ``env.train.perturb`` and ``env.eval.perturb``. A file of ``config/perturb/`` is one such
section (``+perturb=robot``)."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from embodied.errors import ConfigError, unknown_name
from embodied.perturbations import Condition, Perturbation
from embodied.schema.keys.base import Section


class PerturbationConfig(Section):
    """Strengths of perturbations; :class:`embodied.perturbations.Perturbation` says how each is done."""

    camera_move: float = Field(0.0, ge=0, description="Metres that each camera is moved, in a direction of its own.")
    camera_turn: float = Field(
        0.0, ge=0, le=180, description="Degrees that each camera is turned, about an axis of its own."
    )
    brightness: float = Field(0.0, ge=0, le=1, description="Pixels are multiplied by 1 plus or minus this.")
    contrast: float = Field(
        0.0, ge=0, le=1, description="Distances from the picture's mean are multiplied by 1 plus or minus this."
    )
    blur: float = Field(
        0.0, ge=0, le=0.25, description="Standard deviation of a Gaussian blur, as a share of the picture's height."
    )
    noise: float = Field(
        0.0, ge=0, le=1, description="Standard deviation of normal noise on each value of a pixel, as a share of 255."
    )
    latency: int = Field(0, ge=0, description="Control steps by which observations are older than they should be.")
    dropped_frames: float = Field(
        0.0, ge=0, le=1, description="Chance that a camera's picture is its last one once more."
    )
    action_delay: int = Field(
        0, ge=0, description="Control steps by which actions are executed later; the env's neutral action comes first."
    )
    action_noise: float = Field(
        0.0, ge=0, description="Standard deviation of normal noise on executed actions, as a share of half their range."
    )
    gripper_delay: int = Field(
        0, ge=0, description="Control steps by which the gripper's action is executed later than the others."
    )


class PerturbConfig(Section):
    conditions: dict[str, dict[str, PerturbationConfig]] = Field(
        {}, description="Perturbation → strength → how much of what: `conditions.blur.mild.blur=0.004`."
    )
    kinds: list[str] | None = Field(None, description="Perturbations of `conditions` that are used; null = all.")
    strengths: list[str] | None = Field(None, description="Strengths that are used; null = all.")
    without: list[str] = Field([], description="Perturbations that are left out.")
    unperturbed: float = Field(
        0.2, ge=0, lt=1, description="Training: share of the groups of episodes that stay as they are."
    )
    gripper_dim: int | None = Field(
        -1,
        description="Which number of an action is the gripper's, -1 = the last, null = none. It gets no action_noise.",
    )


def conditions_of(config: PerturbConfig | None, key: str) -> list[Condition]:
    """Returns the conditions that are used, in the order of the file; none without a configuration.

    Args:
        key: of the section, for messages.

    Raises:
        UnknownNameError: ``kinds``, ``strengths`` or ``without`` names what ``conditions`` do not have.
        ConfigError: nothing is left of them.
    """
    if config is None:
        return []
    strengths = dict.fromkeys(strength for table in config.conditions.values() for strength in table)
    _check_names(config.kinds or (), config.conditions, "perturbation", f"{key}.kinds")
    _check_names(config.without, config.conditions, "perturbation", f"{key}.without")
    _check_names(config.strengths or (), strengths, "strength", f"{key}.strengths")
    used = [
        Condition(kind, strength, Perturbation(**amounts.model_dump(), gripper_dim=config.gripper_dim))
        for kind, table in config.conditions.items()
        for strength, amounts in table.items()
        if kind in (config.kinds or config.conditions) and kind not in config.without
        if strength in (config.strengths or strengths)
    ]
    if not used:
        raise ConfigError(
            f"{key} leaves no perturbation: {len(config.conditions)} are known, and kinds, strengths and without leave "
            "out all of them",
            f"leave out {key}, or add +perturb=robot to the command",
        )
    return used


def _check_names(names: Iterable[str], known: Iterable[str], what: str, key: str) -> None:
    for name in names:
        if name not in known:
            raise unknown_name(what, name, known, key)
