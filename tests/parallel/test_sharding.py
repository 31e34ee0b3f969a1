"""Two ranks against one process: the same records, the same metrics, the same weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from ranks import on_ranks
from rig import CPU

from embodied.errors import ConfigError, RanksDifferError
from embodied.learn.trainer import Trainer
from embodied.parallel.group import Group
from embodied.parallel.sharding import Replicas, check_same_weights, make_parallel, shard_modules
from embodied.runtime.plan import train_plan
from embodied.schema import ActorConfig, AlgorithmConfig, FsdpConfig, GradScalerConfig, ModelConfig, OptimConfig
from embodied.testing import FakePolicy
from embodied.types import EnvSpec, EpisodeResult, Sampling

Data = tuple[EnvSpec, Mapping[str, np.ndarray], Sequence[EpisodeResult]]


@dataclass(frozen=True)
class Case:
    """A configuration to train with, on records of policies of its kind."""

    algorithm: dict[str, Any] = field(default_factory=dict)
    fsdp: dict[str, Any] = field(default_factory=lambda: {"strategy": "replicate"})
    batch: int = 7  # does not divide the records, and few of a rank's fall into one
    micro: int = 2
    values: bool = False
    optim: dict[str, Any] = field(default_factory=dict)
    scaler: dict[str, Any] = field(default_factory=dict)


FSDP2 = {"strategy": "fsdp2"}
PPO = {"adv_type": "gae", "reward_type": "chunk_level", "entropy_bonus": 0.01}
CASES = {
    "grpo": Case(),
    "ppo": Case({**PPO, "critic_warmup_steps": 2}, values=True),
    "gspo": Case({"loss_type": "gspo", "off_policy_masking_delta": 0.001}),
    "early stop": Case({"early_stop_imp_ratio": 1.0000001}),
    "a rank without kept groups": Case(
        {"filter_rewards": True, "rewards_lower_bound": 0.5, "rewards_upper_bound": 9.0}
    ),
    "kl": Case({"kl_beta": 0.1}),
    "fsdp2 grpo": Case(fsdp=FSDP2),
    "fsdp2 ppo": Case({**PPO, "critic_warmup_steps": 2}, FSDP2, values=True),
    "fsdp2 gspo": Case({"loss_type": "gspo", "off_policy_masking_delta": 0.001}, FSDP2),
    "fsdp2 filter": Case({"filter_rewards": True, "rewards_lower_bound": 0.5, "rewards_upper_bound": 9.0}, FSDP2),
    "kl in the reward": Case({"kl_beta": 0.1, "use_kl_in_reward": True}),
    "decoupled": Case({"loss_type": "tis"}),
    "average": Case(optim={"ema_decay": 0.5}),
    "fsdp2 kl": Case({"kl_beta": 0.1, "off_policy_masking_delta": 0.001}, FSDP2),
    "fsdp2 kl accumulates": Case({"kl_beta": 0.1}, {**FSDP2, "enable_gradient_accumulation": True}),
    "fsdp2 decoupled": Case({"loss_type": "tis"}, FSDP2),
    "fsdp2 average": Case(fsdp=FSDP2, optim={"ema_decay": 0.5}),
    "fsdp2 loss scale": Case(fsdp=FSDP2, scaler={"enabled": True, "growth_interval": 2}),
    "fsdp2 accumulates": Case(fsdp={**FSDP2, "enable_gradient_accumulation": True}),
    "fsdp2 keeps gathered": Case(fsdp={**FSDP2, "reshard_after_forward": False}),
    "hsdp": Case(fsdp={**FSDP2, "fsdp_size": 1}),
}


def data_of(rig) -> Data:
    """8 episodes of 4 starts, groups 0 and 2 of rank 0. The arrays are a copy. Returns of odd groups are small."""
    plan = train_plan(rig.env.spec, seed=23, iteration=0, episodes=8, group_size=2)
    results, _ = rig.rollout().collect(plan, rig.job())
    arrays = {name: array.copy() for name, array in rig.slab.arrays.items()}
    changed = []
    for result in results:
        rows, rank = list(result.rows), result.episode.group_id % 2
        arrays["rewards"][rows] += 0.0 if rank else 0.2
        total = float(arrays["rewards"][rows].sum())
        changed.append(replace(result, rank=rank, episode_return=0.1 * total if rank else total))
    return rig.env.spec, arrays, changed


@pytest.fixture(scope="module")
def collected(shared_rig) -> dict[bool, Data]:
    return {
        values: data_of(shared_rig(slots=4, workers=1, success_distance=0.6, policy={"value_head": values}))
        for values in (False, True)
    }


def trained(case: Case, data: Data, world: Group) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """Metrics of three updates, and the weights after them."""
    env, arrays, results = data
    if world.size > 1:
        arrays = only_own(arrays, results, world.rank)
    else:
        results = [replace(result, rank=0) for result in results]
    policy = FakePolicy(value_head=case.values)
    policy.bind(env)
    algorithm = AlgorithmConfig(group_size=2, update_epoch=2, **case.algorithm)
    actor = ActorConfig(
        global_batch_size=case.batch, micro_batch_size=case.micro,
        optim=OptimConfig(lr=0.01, clip_grad=0.05, **case.optim), grad_scaler=GradScalerConfig(**case.scaler),
        model=ModelConfig(_target_="embodied.testing.FakePolicy"), fsdp_config=FsdpConfig(**case.fsdp),
    )  # fmt: skip
    parallel = make_parallel(policy, actor.fsdp_config, algorithm, world, CPU)
    trainer = Trainer(
        policy=policy, env=env, actor=actor, algorithm=algorithm, sampling=Sampling(), device=CPU, seed=0,
        max_steps=10, max_bad_updates=3, parallel=parallel,
    )  # fmt: skip
    metrics = []
    for iteration in range(3):
        with parallel.acting(), torch.inference_mode():
            acts(policy, env, times=1 + 2 * world.rank)
        metrics.append(trainer.update(arrays, results, iteration)[0])
        parallel.check()
    with trainer.evaluated(), parallel.acting(), torch.inference_mode():
        evaluated = acts(policy, env, times=1)
    weights = {name: whole(parameter) for name, parameter in policy.named_parameters()}
    return metrics, {**weights, "log-probs of an evaluation": evaluated}


def only_own(arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult], rank: int) -> dict[str, np.ndarray]:
    """The slab of a rank: where others' records would be there is nothing of use."""
    rows = [row for result in results if result.rank == rank for row in (*result.rows, result.final_row)]
    own = {name: np.full_like(array, 77) for name, array in arrays.items()}
    for name, array in arrays.items():
        own[name][rows] = array[rows]
    return own


def acts(policy: FakePolicy, env: EnvSpec, times: int) -> torch.Tensor:
    """Log-probs of the last answer, to an observation that is the same on all ranks."""
    obs = {"images": torch.zeros(1, *env.obs["images"].shape), "state": torch.zeros(1, *env.obs["state"].shape)}
    for _ in range(times):
        decision = policy.act({**obs, "task": torch.zeros(1, dtype=torch.long)}, torch.zeros(1, 28), Sampling())
    return decision.fields["logprobs"].clone()


def whole(parameter: torch.Tensor) -> torch.Tensor:
    tensor = parameter.detach()
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).clone()


def train_all(world: Group, collected: dict[bool, Data]) -> dict[str, Any]:
    return {name: trained(case, collected[case.values], world) for name, case in CASES.items()}


@pytest.fixture(scope="module")
def on_two_ranks(collected) -> list[dict[str, Any]]:
    return on_ranks(train_all, collected)


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_train_as_one_process_does(name, collected, on_two_ranks):
    case = CASES[name]
    alone = replace(case, fsdp={})
    expected_metrics, expected = trained(alone, collected[case.values], Group())
    assert sum(row["train/optimizer_steps"] for row in expected_metrics) > 2
    for rank in on_two_ranks:
        metrics, weights = rank[name]
        for got, wanted in zip(metrics, expected_metrics, strict=True):
            assert got == pytest.approx(wanted, rel=1e-4, abs=1e-5)
        for parameter, values in expected.items():
            torch.testing.assert_close(weights[parameter], values, rtol=0, atol=1e-5)


def test_the_cases_are_what_they_are_called(collected, on_two_ranks):
    metrics = {name: rows for name, (rows, _) in on_two_ranks[0].items()}
    assert sum(row["train/early_stops"] for row in metrics["early stop"]) > 0
    assert [row["train/filtered_groups"] for row in metrics["a rank without kept groups"]] == [2, 2, 2]
    assert metrics["ppo"][0]["train/value_loss"] > 0
    assert all(row["train/grad_norm"] > 0 for row in metrics["grpo"])


class Layers(torch.nn.Module):
    """Three layers and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])
        self.head = torch.nn.Linear(4, 1)
        self.register_buffer("scale", torch.tensor([1.001]))
        self.register_buffer("steps", torch.tensor([3]))

    def evaluate(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            inputs = layer(inputs).tanh()
        return self.head(inputs) * self.scale


GATHERS = {"usual": {}, "early": {"forward_prefetch": True, "backward_prefetch": "pre"},
           "late": {"backward_prefetch": "post"}, "never early": {"backward_prefetch": False},
           "own buffers": {"mixed_precision": {"buffer_dtype": "fp32"}},
           "short buffers": {"mixed_precision": {"buffer_dtype": "bf16"}}}  # fmt: skip


def gathers(world: Group) -> dict[str, tuple[list[tuple[str, str]], list[torch.Tensor]]]:
    """What is gathered before its turn, and the weights after two steps. Checks the format of buffers."""
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    found = {}
    for name, keys in GATHERS.items():
        policy, early = Layers(), []
        parallel = make_parallel(policy, FsdpConfig(**FSDP2, **keys), AlgorithmConfig(), world, CPU)

        def unshard(group: Any, kind: str, early: Any = early, unshard: Any = FSDPParamGroup._prefetch_unshard) -> None:
            if not group.is_unsharded:
                early.append((kind, group._module_fqn))
            unshard(group, kind)

        optimizer = torch.optim.SGD(policy.parameters(), 0.1)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(FSDPParamGroup, "_prefetch_unshard", staticmethod(unshard))
            for _ in range(2):
                policy.evaluate(torch.ones(2, 4) * (world.rank + 1)).square().sum().backward()
                parallel.sum_gradients()
                optimizer.step()
                optimizer.zero_grad()
                parallel.reshard()
        found[name] = early[: len(early) // 2], [whole(parameter) for parameter in policy.parameters()]
        assert early[len(early) // 2 :] == found[name][0], "in each pass"
        short = name == "short buffers"
        assert (policy.scale.dtype, policy.steps.dtype) == (torch.bfloat16 if short else torch.float32, torch.int64)
    return found


def differ(world: Group) -> str:
    policy = FakePolicy(seed=world.rank)
    with pytest.raises(RanksDifferError) as caught:
        check_same_weights(policy, world)
    return caught.value.message


def differ_and_gathers(world: Group) -> tuple[str, dict[str, tuple[list[tuple[str, str]], list[torch.Tensor]]]]:
    return differ(world), gathers(world)


@pytest.fixture(scope="module")
def small_works() -> list[Any]:
    """Both in the same two processes, which take seconds to start."""
    return on_ranks(differ_and_gathers)


def test_ranks_that_hold_other_weights_are_refused(small_works):
    assert "the 2 processes hold different weights: 5 of 5 parameters differ (task.weight" in small_works[1][0]


def test_layers_are_gathered_when_the_keys_say_so_with_the_same_numbers(small_works):
    found = [dict(gathered) for _, gathered in small_works]
    usual = found[0]["usual"][1]
    for rank in found:
        _, rounded = rank.pop("short buffers")
        assert not torch.equal(rounded[0], usual[0])
        torch.testing.assert_close(rounded, usual, rtol=0.05, atol=0.01)
        assert all(map(torch.equal, rank.pop("own buffers")[1], usual))
    assert {name: rows for name, (rows, _) in found[0].items()} == {
        "usual": [("backward", f"layers.{number}") for number in (2, 1, 0)],
        "early": [("forward", "layers.1"), ("forward", "layers.2"),
                  *(("backward", f"layers.{number}") for number in (2, 1, 0))],
        "late": [], "never early": [],
    }  # fmt: skip
    for rank in found:
        for _, weights in rank.values():
            assert all(map(torch.equal, weights, usual))


@pytest.mark.parametrize(
    ("fsdp", "algorithm", "text"),
    [
        ({"strategy": "fsdp"}, {"kl_beta": 0.1, "use_kl_in_reward": True}, "use_kl_in_reward is true"),
        ({"strategy": "fsdp2", "cpu_offload": True}, {}, "the device is a CPU"),
    ],
)
def test_what_fsdp2_cannot_do_is_refused(fsdp, algorithm, text):
    with pytest.raises(ConfigError, match=text):
        make_parallel(FakePolicy(), FsdpConfig(**fsdp), AlgorithmConfig(**algorithm), Group(0, 2), CPU)


def test_one_process_and_a_frozen_base_are_not_sharded():
    policy, auto = FakePolicy(), FsdpConfig()
    assert type(make_parallel(policy, FsdpConfig(strategy="fsdp2"), AlgorithmConfig(), Group(), CPU)) is Replicas
    policy.body.requires_grad_(False)
    made = make_parallel(policy, auto, AlgorithmConfig(), Group(1, 2), CPU)
    assert type(made) is Replicas
    assert list(made.notes) == ["2 processes, replicate: 3 of 5 weights are trained"]


def test_units_are_the_layers_unless_the_policy_says_others():
    net = torch.nn.ModuleDict(
        {"a": torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.ModuleList()]), "b": torch.nn.ReLU()}
    )
    assert shard_modules(net) == list(net["a"])
    net.shard_modules = lambda: [net["b"]]
    assert shard_modules(net) == [net["b"]]


@pytest.mark.parametrize(("strategy", "notes"), [("auto", 0), ("replicate", 0), ("fsdp2", 1), ("fsdp", 2)])
def test_one_process_is_told_that_nothing_is_shared_out(strategy, notes):
    algorithm = AlgorithmConfig(adv_type="grpo")
    made = make_parallel(FakePolicy(), FsdpConfig(strategy=strategy), algorithm, Group(), CPU)
    said = ["actor.fsdp_config.strategy fsdp: it is FSDP2 that is used", "fsdp2 shards nothing in one process"]
    assert isinstance(made, Replicas)
    assert list(made.notes) == said[2 - notes :]
