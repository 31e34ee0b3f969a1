"""The small OpenVLA-OFT on two ranks against one process: LoRA in replicas, all weights in parts (fsdp2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from embodied.models.openvla_oft import build_policy
from ranks import on_ranks
from rig import CPU

from embodied.learn.trainer import Trainer
from embodied.parallel.group import Group
from embodied.parallel.sharding import make_parallel
from embodied.parallel.units import shard_modules
from embodied.schema import ActorConfig, AlgorithmConfig, FsdpConfig, ModelConfig, OptimConfig
from embodied.types import ArraySpec, ContinuousAction, EnvSpec, Episode, EpisodeResult, Sampling, Start

TASKS = ("lift the cube", "open the top drawer and put the black bowl inside")
ENV = EnvSpec(
    obs={"images": ArraySpec((2, 64, 64, 3), "uint8"), "state": ArraySpec((8,), "float32")},
    cameras=("agentview", "wrist"), action=ContinuousAction((-1.0,) * 7, (1.0,) * 7), tasks=TASKS,
    num_init_states=(1, 1), max_episode_steps=16, control_hz=20.0,
)  # fmt: skip
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lora": ({"is_lora": True, "lora_rank": 4}, {"strategy": "auto"}),
    "all": ({}, {"strategy": "auto"}),
    "all in bf16": (
        {"precision": "bf16"},
        {"strategy": "fsdp2", "mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"}},
    ),
    "lora in parts": ({"is_lora": True, "lora_rank": 4, "gradient_checkpointing": True}, {"strategy": "fsdp2"}),
    "lora, all in parts": (
        {"is_lora": True, "lora_rank": 4},
        {"strategy": "fsdp2", "shard_frozen": True},
    ),
}
EXACT = (1e-3, 1e-5)
ROUNDING = {"all in bf16": (0.1, 5e-3)}  # relative and absolute: weights are rounded before they are gathered
NOISE = ("train/signal_to_noise", "train/noise_scale_episodes")  # not measured with fsdp2
LENGTHS = (2, 1, 1, 2)  # records of the episodes, two of each group


def made(keys: dict[str, Any]) -> Any:
    policy = build_policy(**keys)
    policy.bind(ENV)
    return policy


def episodes(world: Group, policy: Any) -> tuple[dict[str, np.ndarray], list[EpisodeResult]]:
    """Made-up records, answered by the policy; a slab that holds all of them. Group 1 is rank 1's, if there is one."""
    generator, count = torch.Generator().manual_seed(0), sum(LENGTHS)
    obs = {
        "images": torch.randint(0, 256, (count, 2, 64, 64, 3), dtype=torch.uint8, generator=generator),
        "state": torch.randn(count, 8, generator=generator),
        "prompt": torch.tensor([0, 0, 0, 1, 1, 1], dtype=torch.int32),
    }
    with torch.inference_mode():
        fields = policy.act(obs, torch.rand(count, 56, generator=generator), Sampling()).fields
    arrays = {name: tensor.numpy() for name, tensor in {**obs, **fields}.items()}
    arrays["task_id"], arrays["version"] = obs["prompt"].numpy(), np.zeros(count, np.int64)
    arrays["num_steps"] = np.full(count, 8, np.int32)
    arrays["rewards"] = np.zeros((count, 8), np.float32)
    results, row = [], 0
    for index, length in enumerate(LENGTHS):
        rows, rank = tuple(range(row, row + length)), index // 2 % world.size
        arrays["rewards"][rows[-1], -1] = index % 2
        episode = Episode(index, index // 2, Start(index // 2, 0, 0))
        results.append(
            EpisodeResult(episode, rows, float(index % 2), bool(index % 2), 8 * length, False, True, rank=rank)
        )
        row += length
    return arrays, results


def trained(name: str, world: Group) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """Metrics of two updates and the trained weights after them."""
    keys, fsdp = CASES[name]
    policy = made(keys)
    arrays, results = episodes(world, policy)
    algorithm = AlgorithmConfig(group_size=2)
    actor = ActorConfig(
        global_batch_size=4, micro_batch_size=1, optim=OptimConfig(lr=1e-3, clip_grad=0.1),
        model=ModelConfig(_target_="embodied.models.openvla_oft.build_policy"), fsdp_config=FsdpConfig(**fsdp),
    )  # fmt: skip
    parallel = make_parallel(policy, actor.fsdp_config, algorithm, world, CPU)
    trainer = Trainer(
        policy=policy, env=ENV, actor=actor, algorithm=algorithm, sampling=Sampling(), device=CPU, seed=0,
        max_steps=16, max_bad_updates=3, parallel=parallel,
    )  # fmt: skip
    metrics = [trainer.update(arrays, results, iteration)[0] for iteration in range(2)]
    weights = {n: p.detach() for n, p in policy.named_parameters() if p.requires_grad}
    return metrics, {n: (w.full_tensor() if hasattr(w, "full_tensor") else w).clone() for n, w in weights.items()}


def train_several(world: Group, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: trained(name, world) for name in names}


@pytest.mark.parametrize(
    "names",
    [("lora", "all", "all in bf16"), pytest.param(("lora in parts", "lora, all in parts"), marks=pytest.mark.slow)],
)
def test_two_ranks_train_as_one_process_does(names):
    ranks = on_ranks(train_several, names)
    for name in names:
        check(*trained(name, Group()), [rank[name] for rank in ranks], ROUNDING.get(name, EXACT))


def check(
    expected_metrics: list[dict[str, float]], expected: dict[str, torch.Tensor], ranks: list[Any],
    tolerance: tuple[float, float],
) -> None:  # fmt: skip
    relative, absolute = tolerance
    assert sum(row["train/optimizer_steps"] for row in expected_metrics) == 4
    for metrics, weights in ranks:
        for got, wanted in zip(metrics, expected_metrics, strict=True):
            if tolerance != EXACT:  # the largest of many differences says nothing of a rounded sum
                got, wanted = ({name: row[name] for name in ("train/loss", "train/grad_norm")} for row in (got, wanted))
            wanted = {name: value for name, value in wanted.items() if name in got or name not in NOISE}
            assert got == pytest.approx(wanted, rel=relative, abs=absolute)
        assert weights.keys() == expected.keys()
        for parameter, values in expected.items():
            assert weights[parameter].dtype is torch.float32
            torch.testing.assert_close(weights[parameter], values, rtol=0, atol=absolute)


def test_units_are_the_layers_of_language_model_and_towers():
    policy = made({})
    layers = policy.model.language_model.model.layers
    units = shard_modules(policy)
    assert set(layers) <= set(units)
    towers = (policy.model.vision_backbone.featurizer, policy.model.vision_backbone.fused_featurizer)
    assert set(units) - set(layers) == {block for tower in towers for block in tower.blocks}
