"""A small flow policy on two ranks against one process: in replicas, and in parts (fsdp2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from embodied.models.flow_vla import build_policy
from ranks import on_ranks
from rig import CPU
from test_sharding_oft import ENV, EXACT, LENGTHS, check

from embodied.learn.trainer import Trainer
from embodied.parallel.group import Group
from embodied.parallel.sharding import make_parallel
from embodied.parallel.units import shard_modules
from embodied.schema import ActorConfig, AlgorithmConfig, FsdpConfig, ModelConfig, OptimConfig
from embodied.types import Episode, EpisodeResult, Sampling, Start

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "expert in parts": ({"layout": "smolvla", "gradient_checkpointing": True}, "fsdp2"),
    "all in parts": ({"layout": "pi0", "train_expert_only": False, "noise_steps": "all"}, "fsdp2"),
    "replicas": ({"layout": "pi0"}, "auto"),
    "a head of a frozen policy in parts": (
        {"layout": "smolvla", "noise_method": "noise_policy", "precision": "bf16"},
        "fsdp2",
    ),
}


def made(keys: dict[str, Any]) -> Any:
    policy = build_policy(
        **{"num_action_chunks": 4, "num_steps": 2, "hidden_size": 32, "expert_hidden_size": 32, **keys}
    )
    policy.bind(ENV)
    return policy


def episodes(world: Group, policy: Any) -> tuple[dict[str, np.ndarray], list[EpisodeResult]]:
    """Made-up records, answered by the policy; a slab that holds all of them. Group 1 is rank 1's, if there is one."""
    generator, count = torch.Generator().manual_seed(0), sum(LENGTHS)
    obs = {
        "images": torch.randint(0, 256, (count, 2, 64, 64, 3), dtype=torch.uint8, generator=generator),
        "state": torch.randn(count, 8, generator=generator),
        **policy.encode_instructions([ENV.tasks[0]] * 3 + [ENV.tasks[1]] * 3),
    }
    noise = torch.rand(count, *policy.spec.noise.shape, generator=generator)
    with torch.inference_mode():
        fields = policy.act(obs, noise, Sampling()).fields
    arrays = {name: tensor.numpy().copy() for name, tensor in {**obs, **fields}.items()}
    arrays["task_id"], arrays["version"] = np.repeat(np.arange(2), 3), np.zeros(count, np.int64)
    arrays["num_steps"] = np.full(count, 4, np.int32)
    arrays["rewards"] = np.zeros((count, 4), np.float32)
    results, row = [], 0
    for index, length in enumerate(LENGTHS):
        rows, rank = tuple(range(row, row + length)), index // 2 % world.size
        arrays["rewards"][rows[-1], -1] = index % 2
        episode = Episode(index, index // 2, Start(index // 2, 0, 0))
        results.append(
            EpisodeResult(episode, rows, float(index % 2), bool(index % 2), 4 * length, False, True, rank=rank)
        )
        row += length
    return arrays, results


def trained(name: str, world: Group) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """Metrics of two updates and the trained weights after them."""
    keys, strategy = CASES[name]
    policy = made(keys)
    arrays, results = episodes(world, policy)
    algorithm = AlgorithmConfig(group_size=2, logprob_type="chunk_level", entropy_type="chunk_level")
    actor = ActorConfig(
        global_batch_size=4, micro_batch_size=1, optim=OptimConfig(lr=1e-3, clip_grad=0.1),
        model=ModelConfig(_target_="embodied.models.flow_vla.build_policy"),
        fsdp_config=FsdpConfig(strategy=strategy),  # type: ignore[arg-type]
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


def test_two_ranks_train_as_one_process_does():
    ranks = on_ranks(train_several, tuple(CASES))
    for name in CASES:
        check(*trained(name, Group()), [rank[name] for rank in ranks], EXACT)


def test_units_are_the_layers_that_trunk_and_expert_share():
    policy = made({})
    assert set(policy.model.layers) <= set(shard_modules(policy))
