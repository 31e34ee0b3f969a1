"""The whole configuration."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from embodied.schema.keys.base import Section
from embodied.schema.keys.sections.actor import ActorConfig, CriticConfig
from embodied.schema.keys.sections.algorithm import AlgorithmConfig
from embodied.schema.keys.sections.cluster import ClusterConfig
from embodied.schema.keys.sections.data import DataConfig, DemosConfig, SftConfig
from embodied.schema.keys.sections.env import EnvConfig, RolloutConfig
from embodied.schema.keys.sections.protocol import ProtocolConfig
from embodied.schema.keys.sections.reward import RewardConfig
from embodied.schema.keys.sections.runner import DEFAULT_SEED, RunnerConfig

SEEDS_APART = 1_000_003
"""Between the starts' seeds of two runs whose ``runner.seed`` differ by one: more starts than a run uses."""


class Config(Section):
    """The whole configuration of a run, section by section."""

    runner: RunnerConfig
    algorithm: AlgorithmConfig = AlgorithmConfig()
    env: EnvConfig
    rollout: RolloutConfig = RolloutConfig()
    actor: ActorConfig
    critic: CriticConfig = CriticConfig()
    reward: RewardConfig = RewardConfig()
    data: DataConfig = DataConfig()
    sft: SftConfig = SftConfig()
    demos: DemosConfig = DemosConfig()
    protocol: ProtocolConfig = ProtocolConfig()
    cluster: ClusterConfig = ClusterConfig()

    @property
    def data_seed(self) -> int:
        """Seed of the order of problems and demonstrations."""
        return self.runner.seed if self.data.seed is None else self.data.seed

    @property
    def start_seed(self) -> int:
        """Offset of the seeds of the starts that training and demonstrations begin from."""
        given = self.env.train.seed
        return (self.runner.seed - DEFAULT_SEED) * SEEDS_APART % 2**30 if given is None else given


def defaults(section: type[BaseModel] = Config) -> dict[str, Any]:
    """Returns every default of a section as a nested mapping: ``${runner.seed}`` works even if no file mentions that
    key."""
    found: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            given = {} if field.is_required() else field.default.model_dump(by_alias=True, exclude_unset=True)
            found[name] = {**defaults(kind), **given}
        elif not field.is_required():
            found[field.alias or name] = field.default
    return found
