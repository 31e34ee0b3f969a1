"""Checks that an env gives what a policy reads, and takes what it gives."""

from __future__ import annotations

from functools import partial

from embodied.errors import SpecMismatchError, broken, refuse
from embodied.types import EnvSpec, TextAction

from .network.config import NetConfig


def check_fit(policy: NetConfig, env: EnvSpec) -> None:
    """Raises :class:`SpecMismatchError` with all mismatches between policy and env."""
    rules = (_check_images, _check_state, _check_actions, _check_tasks)
    refuse(broken(partial(rule, policy, env) for rule in rules))


def _check_images(policy: NetConfig, env: EnvSpec) -> None:
    images = env.obs.get("images")
    if images is None or images.dtype != "uint8" or len(images.shape) != 4 or images.shape[3] != 3:
        got = "nothing" if images is None else f"{images.dtype} {list(images.shape)}"
        fix = "choose an env with cameras, or a model that reads none (model=mlp)"
        if isinstance(env.action, TextAction):
            fix = "choose a model that writes texts, e.g. model=causal_lm; for a checkpoint the model= of its training"
        raise SpecMismatchError(f"this policy needs images uint8 [C, H, W, 3], the env gives {got}", fix)
    if images.shape[0] < policy.num_images:
        raise SpecMismatchError(
            f"the policy reads {policy.num_images} images, the env has {images.shape[0]} ({', '.join(env.cameras)})",
            f"set actor.model.num_images_in_input={images.shape[0]}, or add a camera to the env",
        )


def _check_state(policy: NetConfig, env: EnvSpec) -> None:
    """An env of texts has no state either: what it lacks is said of its pictures."""
    state = env.obs["state"].shape if "state" in env.obs else (0,)
    if policy.proprio_dim and state != (policy.proprio_dim,) and not isinstance(env.action, TextAction):
        fix = f"set actor.model.proprio_dim={state[0]}" if state[0] else "set actor.model.use_proprio=false"
        raise SpecMismatchError(
            f"the policy reads {policy.proprio_dim} numbers of robot state, the env gives {list(state)}", fix
        )


def _check_actions(policy: NetConfig, env: EnvSpec) -> None:
    if not isinstance(env.action, TextAction) and env.action_dim != policy.action_dim:
        raise SpecMismatchError(
            f"the policy gives {policy.action_dim} numbers an action, the env takes {env.action_dim}",
            f"set actor.model.action_dim={env.action_dim}",
        )


def _check_tasks(policy: NetConfig, env: EnvSpec) -> None:
    if not env.tasks:
        raise SpecMismatchError("the env has no task, hence no instruction", "give EnvSpec.tasks at least one")
