"""The policies of the self-test, built by configuration as a run builds its own, and what they are asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from embodied import instructions
from embodied.parallel.group import Group
from embodied.protocols import Policy
from embodied.random import Stream
from embodied.run.build.given import Sides
from embodied.run.build.policy import build_policy, sampling
from embodied.run.build.preflight import check
from embodied.runtime.plan import noise
from embodied.schema import Config
from embodied.schema.compose.compose import compose
from embodied.types import EnvSpec, Sampling

FOLDER = str(Path(__file__).with_name("config"))
COMMON = (
    "experiment=null", "tracker=jsonl", "env.eval.video_cfg.save_video=false", "runner.seed=1", "env.num_workers=1",
    "env.train.total_num_envs=2", "env.eval.total_num_envs=2", "algorithm.group_size=2",
)  # fmt: skip
ROBOT = ("env=selftest", "env.train.max_episode_steps=16", "env.eval.max_episode_steps=8")
MLP = (*ROBOT, "model=mlp")
OFT = (*ROBOT, "model=openvla_oft_tiny", "actor.model.lora_init_weights=false")
TEXT = (
    "env=arithmetic", "model=causal_lm_tiny", "actor.model.max_new_tokens=24",
    "actor.model.override_config.initializer_range=0.1",
)  # fmt: skip
SMALL: Mapping[str, tuple[str, ...]] = {"mlp": MLP, "openvla_oft": OFT, "causal_lm": TEXT}
"""Overrides of each small policy. Adapters are random and weights large, so that each of them counts."""
WIDE = (
    *TEXT, "actor.model.override_config.hidden_size=1024", "actor.model.override_config.intermediate_size=4096",
    "actor.model.override_config.num_hidden_layers=4", "actor.model.override_config.num_attention_heads=8",
)  # fmt: skip
"""A language model that takes a GiB when it learns: beside it what libraries take is little."""
SUMS = ("7+2-9=", "3-3+8+1=", "12=", "5+5-1+4-2+6=")


@dataclass(frozen=True)
class BuiltPolicy:
    """A policy on its device, bound to its env, with the configuration that built it."""

    config: Config
    env: EnvSpec
    policy: Policy
    device: torch.device
    drawn: Sampling  # how its training draws

    @property
    def module(self) -> torch.nn.Module:
        assert isinstance(self.policy, torch.nn.Module)
        return self.policy


@dataclass(frozen=True)
class Question:
    """Observations of B rows and the noise of their decisions, on the CPU, to ask policies."""

    obs: Mapping[str, Tensor]
    noise: Tensor

    def on(self, device: torch.device) -> Question:
        """Returns the same on a device."""
        return Question(to_device(self.obs, device), self.noise.to(device))


def configured(device: str, *overrides: str) -> tuple[Config, Sides]:
    """Composes and checks a configuration of the self-test; returns it with the envs."""
    checked = check(compose([*COMMON, f"runner.device={device}", *overrides], "train", [FOLDER]), Group())
    return checked.config, checked.sides


def built_policy(device: str, *overrides: str) -> BuiltPolicy:
    """Builds a policy of the self-test. Equal overrides give equal weights on every device: they are drawn
    on the CPU."""
    exact_arithmetic()
    use(device)
    config, sides = configured(device, *overrides)
    policy, found = build_policy(config, Group(), sides)
    algorithm = config.algorithm
    return BuiltPolicy(
        config, sides.train.spec, policy, found, sampling(algorithm.sampling_params, algorithm.logprob_dtype)
    )


def use(device: str) -> None:
    """Selects the current GPU, which calls that name none use, such as the capture of a graph."""
    if (index := torch.device(device).index) is not None:
        torch.cuda.set_device(index)


def exact_arithmetic() -> None:
    """Switches TF32 off, whose products of float32 have 10 bits."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def question(built: BuiltPolicy, rows: int, seed: int = 0) -> Question:
    """Draws random observations of the policy's env, and noise: a function of the arguments alone."""
    env, random = built.env, np.random.default_rng(seed)
    obs: dict[str, Tensor] = {}
    for name, field in env.obs.items():
        if name not in instructions.fields_of(env):
            continue
        if field.dtype == "uint8":
            values = random.integers(0, 256, (rows, *field.shape), dtype=np.uint8)
        else:
            values = random.standard_normal((rows, *field.shape)).astype(field.dtype)
        obs[name] = torch.from_numpy(values)
    texts = env.tasks if built.policy.spec.elements.length_axis is None else SUMS
    obs |= built.policy.encode_instructions([texts[row % len(texts)] for row in range(rows)])
    drawn = [noise(seed, Stream.TRAIN_NOISE, row, 0, built.policy.spec.noise) for row in range(rows)]
    return Question({name: values.cpu() for name, values in obs.items()}, torch.from_numpy(np.stack(drawn)))


def to_device(fields: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Copies named tensors to a device."""
    return {name: values.to(device) for name, values in fields.items()}
