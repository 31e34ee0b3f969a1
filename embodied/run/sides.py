"""The sides of a run, ``env.train`` and ``env.eval``, with what their envs offer. Needs no torch and no simulator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from embodied import schema
from embodied.errors import ConfigError
from embodied.perturbations import Condition
from embodied.protocols import Env
from embodied.schema.perturb import conditions
from embodied.types import EnvSpec, TextAction


@dataclass(frozen=True)
class EnvSide:
    """``env.train`` or ``env.eval`` with what its env offers. Sides of equal ``identity`` can share their workers."""

    name: str
    config: schema.EnvSideConfig
    kwargs: Mapping[str, Any]
    env: Env  # constructed to be asked, never reset
    spec: EnvSpec
    max_steps: int
    conditions: tuple[Condition, ...]  # that perturb its episodes; none without ``perturb``

    @property
    def identity(self) -> str:
        """What its simulators depend on. Rewards are no part of it: each episode says whose count."""
        return json.dumps([self.config.target, dict(self.kwargs)], sort_keys=True, default=str)


def make_side(name: str, side: schema.EnvSideConfig) -> EnvSide:
    """Constructs the env of a side and asks what it offers.

    Args:
        name: of the side, for messages.

    Raises:
        ConfigError: its target cannot be imported or does not take the keys, a task has no initial state, or
            ``perturb`` names what its conditions do not have.
    """
    kwargs = schema.target_kwargs(side, f"env.{name}")
    env: Env = schema.load_target(side.target, f"env.{name}._target_")(**kwargs)
    spec = env.spec
    if not spec.tasks or min(spec.num_init_states) < 1:
        raise ConfigError(
            f"env.{name} offers {len(spec.tasks)} tasks with num_init_states {list(spec.num_init_states)}",
            f"choose tasks with at least one initial state: the keys of {side.target} under env.{name}",
        )
    steps = side.max_episode_steps or spec.max_episode_steps
    if isinstance(spec.action, TextAction):
        steps = min(steps, spec.max_episode_steps)  # sizes for robots, e.g. of experiment=laptop, allow more
    return EnvSide(name, side, kwargs, env, spec, steps, tuple(conditions(side.perturb, f"env.{name}.perturb")))
