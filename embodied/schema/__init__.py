"""The typed configuration: every key with its meaning. ``docs/configuration.md`` is generated from it.

Hydra composes YAML groups into one mapping (:mod:`embodied.schema.compose.compose`); the models below check types and
ranges and refuse unknown keys; :func:`check` refuses combinations that cannot work, with the numbers. Defaults live
only here:
a YAML file holds only its changes.

Under ``env.train``, ``env.eval`` and ``actor.model`` all other keys belong to the class named by ``_target_``;
:func:`target_kwargs` checks them against its signature.
"""

from __future__ import annotations

from embodied.lib.targets import load_target as load_target
from embodied.schema.compose.binding import bind as bind
from embodied.schema.compose.binding import check_known as check_known
from embodied.schema.compose.binding import check_target_keys as check_target_keys
from embodied.schema.compose.binding import target_kwargs as target_kwargs
from embodied.schema.keys.base import OpenSection as OpenSection
from embodied.schema.keys.base import Precision as Precision
from embodied.schema.keys.base import Section as Section
from embodied.schema.keys.config import Config as Config
from embodied.schema.keys.config import defaults as defaults
from embodied.schema.keys.sections.actor import ActorConfig as ActorConfig
from embodied.schema.keys.sections.actor import CriticConfig as CriticConfig
from embodied.schema.keys.sections.actor import GradScalerConfig as GradScalerConfig
from embodied.schema.keys.sections.actor import LrScheduleConfig as LrScheduleConfig
from embodied.schema.keys.sections.actor import ModelConfig as ModelConfig
from embodied.schema.keys.sections.actor import OptimConfig as OptimConfig
from embodied.schema.keys.sections.actor import TokenizerConfig as TokenizerConfig
from embodied.schema.keys.sections.algorithm import LOSSES as LOSSES
from embodied.schema.keys.sections.algorithm import AlgorithmConfig as AlgorithmConfig
from embodied.schema.keys.sections.algorithm import EvalSamplingConfig as EvalSamplingConfig
from embodied.schema.keys.sections.algorithm import KlControlConfig as KlControlConfig
from embodied.schema.keys.sections.algorithm import SamplingConfig as SamplingConfig
from embodied.schema.keys.sections.algorithm import StartValueConfig as StartValueConfig
from embodied.schema.keys.sections.checkpoint import CheckpointConfig as CheckpointConfig
from embodied.schema.keys.sections.cluster import ClusterConfig as ClusterConfig
from embodied.schema.keys.sections.data import DataConfig as DataConfig
from embodied.schema.keys.sections.data import DemosConfig as DemosConfig
from embodied.schema.keys.sections.data import SftConfig as SftConfig
from embodied.schema.keys.sections.env import ChannelConfig as ChannelConfig
from embodied.schema.keys.sections.env import EnvConfig as EnvConfig
from embodied.schema.keys.sections.env import EnvEvalConfig as EnvEvalConfig
from embodied.schema.keys.sections.env import EnvSideConfig as EnvSideConfig
from embodied.schema.keys.sections.env import EnvTrainConfig as EnvTrainConfig
from embodied.schema.keys.sections.env import RolloutConfig as RolloutConfig
from embodied.schema.keys.sections.env import VideoConfig as VideoConfig
from embodied.schema.keys.sections.fsdp import FsdpConfig as FsdpConfig
from embodied.schema.keys.sections.fsdp import MixedPrecisionConfig as MixedPrecisionConfig
from embodied.schema.keys.sections.off_policy import ReplayConfig as ReplayConfig
from embodied.schema.keys.sections.off_policy import SacConfig as SacConfig
from embodied.schema.keys.sections.perturb import PerturbationConfig as PerturbationConfig
from embodied.schema.keys.sections.perturb import PerturbConfig as PerturbConfig
from embodied.schema.keys.sections.perturb import conditions_of as conditions_of
from embodied.schema.keys.sections.protocol import ProtocolConfig as ProtocolConfig
from embodied.schema.keys.sections.reward import OverlongPenaltyConfig as OverlongPenaltyConfig
from embodied.schema.keys.sections.reward import RewardConfig as RewardConfig
from embodied.schema.keys.sections.runner import LoggerConfig as LoggerConfig
from embodied.schema.keys.sections.runner import RunnerConfig as RunnerConfig
from embodied.schema.rules.checks import GROUP_ADVANTAGES as GROUP_ADVANTAGES
from embodied.schema.rules.checks import check as check
from embodied.schema.rules.checks import episodes_per_iteration as episodes_per_iteration
from embodied.schema.rules.checks import episodes_told as episodes_told
from embodied.schema.rules.checks import only_evaluates as only_evaluates
from embodied.schema.rules.checks import rules as rules
from embodied.schema.rules.no_effect import notes as notes
from embodied.schema.rules.text_checks import context_parallel_size as context_parallel_size
