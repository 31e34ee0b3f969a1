"""The inputs of a run: its configuration, the envs of both sides, its demonstrations. Values alone, made by
:mod:`embodied.run.build.preflight`; needs no torch and no simulator."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from embodied import schema
from embodied.observe.terminal.console import Console
from embodied.parallel.group import Group
from embodied.perturbations import Condition
from embodied.protocols import Env
from embodied.run.build.action_kind import ActionKind
from embodied.run.build.demonstrations import Demonstrated
from embodied.runtime.signals import StopSignal
from embodied.schema.compose.compose import Composed
from embodied.types import EnvSpec


@dataclass(frozen=True)
class ConfiguredEnv:
    """One configured env of a run, ``env.train`` or ``env.eval``, with what its class offers. Sides of equal
    ``identity`` can share their workers."""

    name: str
    config: schema.EnvSideConfig
    kwargs: Mapping[str, Any]
    env: Env  # constructed to be asked, never reset
    spec: EnvSpec
    max_steps: int
    conditions: tuple[Condition, ...]  # conditions that perturb its episodes; none without ``perturb``
    kind: ActionKind  # robot or text

    @property
    def identity(self) -> str:
        """Identity of its simulators: env class and arguments. Rewards are no part: each episode names its own."""
        return json.dumps([self.config.target, dict(self.kwargs)], sort_keys=True, default=str)


class Sides(NamedTuple):
    """The envs of a run, for training and for evaluations."""

    train: ConfiguredEnv
    eval: ConfiguredEnv


@dataclass(frozen=True)
class Checked:
    """A configuration whose envs were constructed (not built) and found to exist, and the processes of the run."""

    composed: Composed
    train: ConfiguredEnv
    eval: ConfiguredEnv
    processes: Group
    demonstrations: Demonstrated  # none unless the run is supervised

    @property
    def config(self) -> schema.Config:
        return self.composed.config

    @property
    def sides(self) -> Sides:
        """Both envs of the run, for training and for evaluations."""
        return Sides(self.train, self.eval)


Recipe = Callable[[Checked, Console, StopSignal], None]
"""Builds and runs what was checked. It may raise :class:`embodied.errors.Stopped` before there is anything to keep."""
