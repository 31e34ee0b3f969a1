"""Refuses perturbations that an env cannot have, or that a run has no use for. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from embodied import schema
from embodied.errors import ConfigError
from embodied.perturbations import Perturbation
from embodied.protocols import Batched, Env, MovesCameras
from embodied.run.build.given import ConfiguredEnv
from embodied.types import ContinuousAction, EnvSpec


def check(config: schema.Config, side: ConfiguredEnv) -> None:
    """Refuses perturbations that the env of a side cannot have, by name.

    Raises:
        ConfigError: what it cannot have, why, and the key that leaves it out.
    """
    key, section = f"env.{side.name}.perturb", side.config.perturb
    if section is None:
        return
    _check_use(config, side.name, section)
    side.kind.refuse_texts(
        ConfigError(f"{key} is for robots, and {side.config.target} takes text", f"leave out {key} (+perturb=…)")
    )
    wrong = {each.kind: why for each in side.conditions if (why := _cannot(each.by, side.spec, side.env))}
    if wrong:
        names = ",".join([*section.without, *wrong])
        reasons = "; ".join(f"{kind}: {why}" for kind, why in wrong.items())
        raise ConfigError(
            f"{side.config.target} cannot have these of {key}: {reasons}",
            f"add {key}.without=[{names}] to the command; the others work",
        )


def _cannot(by: Perturbation, spec: EnvSpec, env: Env) -> str | None:
    """Says why an env cannot have a perturbation; None if it can."""
    reasons: Sequence[tuple[bool, Callable[[], bool], str]] = (
        (by.of_cameras or by.of_pictures, lambda: "images" in spec.obs, "it has no pictures"),
        (by.of_cameras, lambda: not isinstance(env, Batched), "one simulator hosts all slots of a worker"),
        (by.of_cameras, lambda: isinstance(env, MovesCameras), "it has no move_camera (protocols.MovesCameras)"),
        (by.of_numbers, lambda: isinstance(spec.action, ContinuousAction), "its actions are not numbers"),
        (by.gripper_delay > 0, lambda: by.gripper_dim is not None, "perturb.gripper_dim is null"),
        (by.action_noise > 0, lambda: _has_range(spec), "the range of its actions has no end"),
        (by.of_numbers, lambda: _is_dim(by.gripper_dim, spec), f"its actions have no number {by.gripper_dim}"),
    )
    return next((why for asked, holds, why in reasons if asked and not holds()), None)


def _has_range(spec: EnvSpec) -> bool:
    """Returns whether noise can be a share of each action's range: its width is finite, also in float32."""
    with np.errstate(over="ignore"):
        low, high = np.array(spec.action_low, np.float32), np.array(spec.action_high, np.float32)
        return bool(np.isfinite(high - low).all())


def _is_dim(dim: int | None, spec: EnvSpec) -> bool:
    return dim is None or -spec.action_dim <= dim < spec.action_dim


def _check_use(config: schema.Config, side: str, section: schema.PerturbConfig) -> None:
    """Refuses what does not go together with perturbations, or has no use for them."""
    algorithm, task = config.algorithm, config.runner.task
    key = f"env.{side}.perturb"
    if task.records or (side == "train" and task.supervised):
        raise ConfigError(
            f"{key} is set, and runner.task_type {config.runner.task_type} {task.does} without perturbations",
            f"leave out {key}; perturbations are for reinforcement learning (env.train) and evaluations (env.eval)",
        )
    if side == "train" and config.runner.only_eval:
        raise ConfigError(
            f"{key} is set, and runner.only_eval runs no training",
            "use python -m embodied.eval … +perturb=NAME, or +perturb@env.eval.perturb=NAME",
        )
    if side == "eval" and section.unperturbed != schema.PerturbConfig().unperturbed:
        raise ConfigError(
            f"{key}.unperturbed is {section.unperturbed:g}, and an evaluation runs every start unperturbed as well",
            f"leave out {key}.unperturbed; it is for trainings (env.train)",
        )
    if side == "eval" and algorithm.val_group_size > 1:
        raise ConfigError(
            f"{key} compares one episode of each start with its perturbed ones, and algorithm.val_group_size is "
            f"{algorithm.val_group_size}",
            "set algorithm.val_group_size=1, and env.eval.episodes_per_task for more episodes",
        )
    if side == "train" and algorithm.adv_type == "remax":
        raise ConfigError(
            f"{key} gives episodes of one start different conditions, and algorithm.adv_type remax compares them with "
            "one greedy episode",
            f"leave out {key}, or choose another algorithm.adv_type, e.g. grpo",
        )
