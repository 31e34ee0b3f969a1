"""The typed configuration: every key with its meaning. ``docs/configuration.md`` is generated from it.

Hydra composes YAML groups into one mapping (:mod:`embodied.schema.compose`); the models below check types and ranges
and refuse unknown keys; :func:`check` refuses combinations that cannot work, with the numbers. Defaults live only here:
a YAML file holds only its changes.

Under ``env.train``, ``env.eval`` and ``actor.model`` all other keys belong to the class named by ``_target_``;
:func:`target_kwargs` checks them against its signature.
"""

from __future__ import annotations

from embodied.lib.targets import load_target as load_target
from embodied.schema.actor import ActorConfig as ActorConfig
from embodied.schema.actor import CriticConfig as CriticConfig
from embodied.schema.actor import GradScalerConfig as GradScalerConfig
from embodied.schema.actor import LrScheduleConfig as LrScheduleConfig
from embodied.schema.actor import ModelConfig as ModelConfig
from embodied.schema.actor import OptimConfig as OptimConfig
from embodied.schema.actor import TokenizerConfig as TokenizerConfig
from embodied.schema.algorithm import LOSSES as LOSSES
from embodied.schema.algorithm import AlgorithmConfig as AlgorithmConfig
from embodied.schema.algorithm import EvalSamplingConfig as EvalSamplingConfig
from embodied.schema.algorithm import KlControlConfig as KlControlConfig
from embodied.schema.algorithm import SamplingConfig as SamplingConfig
from embodied.schema.base import OpenSection as OpenSection
from embodied.schema.base import Precision as Precision
from embodied.schema.base import Section as Section
from embodied.schema.binding import bind as bind
from embodied.schema.binding import check_known as check_known
from embodied.schema.binding import check_target_keys as check_target_keys
from embodied.schema.binding import target_kwargs as target_kwargs
from embodied.schema.checkpoint import CheckpointConfig as CheckpointConfig
from embodied.schema.checks import GROUP_ADVANTAGES as GROUP_ADVANTAGES
from embodied.schema.checks import check as check
from embodied.schema.checks import episodes_per_iteration as episodes_per_iteration
from embodied.schema.checks import episodes_told as episodes_told
from embodied.schema.checks import only_evaluates as only_evaluates
from embodied.schema.checks import rules as rules
from embodied.schema.config import Config as Config
from embodied.schema.config import defaults as defaults
from embodied.schema.data import DataConfig as DataConfig
from embodied.schema.data import DemosConfig as DemosConfig
from embodied.schema.data import SftConfig as SftConfig
from embodied.schema.env import ChannelConfig as ChannelConfig
from embodied.schema.env import EnvConfig as EnvConfig
from embodied.schema.env import EnvEvalConfig as EnvEvalConfig
from embodied.schema.env import EnvSideConfig as EnvSideConfig
from embodied.schema.env import EnvTrainConfig as EnvTrainConfig
from embodied.schema.env import RolloutConfig as RolloutConfig
from embodied.schema.env import VideoConfig as VideoConfig
from embodied.schema.fixed import notes as notes
from embodied.schema.fsdp import FsdpConfig as FsdpConfig
from embodied.schema.fsdp import MixedPrecisionConfig as MixedPrecisionConfig
from embodied.schema.perturb import PerturbationConfig as PerturbationConfig
from embodied.schema.perturb import PerturbConfig as PerturbConfig
from embodied.schema.perturb import conditions_of as conditions_of
from embodied.schema.protocol import ProtocolConfig as ProtocolConfig
from embodied.schema.reward import OverlongPenaltyConfig as OverlongPenaltyConfig
from embodied.schema.reward import RewardConfig as RewardConfig
from embodied.schema.runner import ClusterConfig as ClusterConfig
from embodied.schema.runner import LoggerConfig as LoggerConfig
from embodied.schema.runner import RunnerConfig as RunnerConfig
from embodied.schema.text_checks import context_parallel_size as context_parallel_size
