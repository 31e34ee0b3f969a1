"""Two ranks against one process: the same records, the same metrics, the same weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import on_ranks
from rig import CPU

from embodied.errors import ConfigError, RanksDifferError
from embodied.learn.ranks.balance import imbalance, placed
from embodied.learn.trainer import Trainer
from embodied.parallel.group import Group
from embodied.parallel.same_weights import check_same_weights
from embodied.parallel.sharding import Replicas, make_parallel, strategy_of
from embodied.parallel.units import shard_modules
from embodied.runtime.plan import train_plan
from embodied.schema import ActorConfig, AlgorithmConfig, FsdpConfig, GradScalerConfig, ModelConfig, OptimConfig
from embodied.testing import FakePolicy, FakeTextEnv, FakeTextPolicy
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
    balance: bool = False
    text: bool = False  # rank 0 has long answers, and rank 1 short ones

    @property
    def data(self) -> str:
        """Which records it trains on."""
        return "text" if self.text else "values" if self.values else "plain"


FSDP2 = {"strategy": "fsdp2"}
PPO = {"adv_type": "gae", "reward_type": "chunk_level", "entropy_bonus": 0.01}
NOISE = {"train/signal_to_noise", "train/noise_scale_episodes", "train/signal_to_noise_error"}
"""Not measured with fsdp2."""

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
    "balanced ppo": Case({**PPO, "critic_warmup_steps": 2}, values=True, balance=True),
    "balanced a rank without kept groups": Case(
        {"filter_rewards": True, "rewards_lower_bound": 0.5, "rewards_upper_bound": 9.0}, balance=True
    ),
    "fsdp2 balanced": Case(fsdp=FSDP2, balance=True),
    "text": Case(text=True),
    "balanced text": Case(text=True, balance=True),
    "balanced text tis": Case({"loss_type": "tis"}, text=True, balance=True),
    "balanced text gspo": Case({"loss_type": "gspo"}, FSDP2, text=True, balance=True),
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


class Counting(FakeTextPolicy):
    """Counts the tokens of passes with gradients."""

    seen = 0

    def evaluate(self, records: Mapping[str, torch.Tensor], *more: Any, **options: Any) -> Any:
        if torch.is_grad_enabled():
            self.seen += int(self.tokens({"length": records["length"].numpy()}).sum())
        return super().evaluate(records, *more, **options)


def texts(rig) -> Data:
    """8 episodes of three answers each: of 9 to 12 tokens on rank 0, of one or two on rank 1."""
    env, arrays, results = data_of(rig)
    random = np.random.default_rng(3)
    for result in results:
        for row in result.rows:
            length = int(random.integers(1, 3) if result.rank else random.integers(9, 13))
            arrays["length"][row] = length
            arrays["tokens"][row] = np.where(np.arange(12) < length, random.integers(1, 7, 12), 0)
            arrays["logprobs"][row] = -random.random(12)
    return env, arrays, results


@pytest.fixture(scope="module")
def collected(shared_rig) -> dict[str, Data]:
    robots = {
        name: data_of(shared_rig(slots=4, workers=1, success_distance=0.6, policy={"value_head": name == "values"}))
        for name in ("plain", "values")
    }
    text = {"target": "embodied.testing.FakeTextEnv", "kind": FakeTextEnv, "turns": 3}
    return {**robots, "text": texts(shared_rig(net=FakeTextPolicy(12), **text, slots=4, workers=1, rows=96))}


def trained(case: Case, data: Data, world: Group) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """Metrics of three updates, and the weights after them. With texts: the tokens that this rank has computed."""
    env, arrays, results = data
    if world.size > 1:
        arrays = only_own(arrays, results, world.rank)
    else:
        results = [replace(result, rank=0) for result in results]
    policy = Counting(12) if case.text else FakePolicy(value_head=case.values)
    policy.bind(env)
    algorithm = AlgorithmConfig(group_size=2, update_epoch=2, **case.algorithm)
    actor = ActorConfig(
        global_batch_size=case.batch, micro_batch_size=case.micro,
        optim=OptimConfig(lr=0.01, clip_grad=0.05, **case.optim), grad_scaler=GradScalerConfig(**case.scaler),
        enable_dp_load_balance=case.balance,
        model=ModelConfig(_target_="embodied.testing.FakePolicy"), fsdp_config=FsdpConfig(**case.fsdp),
    )  # fmt: skip
    parallel = make_parallel(policy, actor.fsdp_config, algorithm, world, CPU)
    trainer = Trainer(
        policy=policy, env=env, actor=actor, algorithm=algorithm, sampling=Sampling(), device=CPU, seed=0,
        max_steps=10, max_bad_updates=3, parallel=parallel,
    )  # fmt: skip
    metrics = []
    for iteration in range(3):
        if not case.text:
            with parallel.acting(), torch.inference_mode():
                acts(policy, env, times=1 + 2 * world.rank)
        metrics.append(trainer.update(arrays, results, iteration)[0])
        parallel.check()
    if case.text:
        metrics.append({"tokens": policy.seen})
        return metrics, {"table": whole(policy.table)}
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


def train_all(world: Group, collected: dict[str, Data]) -> dict[str, Any]:
    return {name: trained(case, collected[case.data], world) for name, case in CASES.items()}


@pytest.fixture(scope="module")
def on_two_ranks(collected) -> list[dict[str, Any]]:
    return on_ranks(train_all, collected)


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_train_as_one_process_does(name, collected, on_two_ranks):
    case = CASES[name]
    alone = replace(case, fsdp={})
    expected_metrics, expected = trained(alone, collected[case.data], Group())
    assert sum(row["train/optimizer_steps"] for row in expected_metrics[:3]) > 2
    for rank in on_two_ranks:
        metrics, weights = rank[name]
        for got, wanted in zip(metrics[:3], expected_metrics[:3], strict=True):
            got = {key: value for key, value in got.items() if "imbalance" not in key}
            assert case.fsdp.get("strategy") != "fsdp2" or not NOISE & got.keys()
            wanted = {key: value for key, value in wanted.items() if key in got or key not in NOISE}
            assert got == pytest.approx(wanted, rel=1e-4, abs=1e-5)
        for parameter, values in expected.items():
            torch.testing.assert_close(weights[parameter], values, rtol=0, atol=1e-5)


def test_the_cases_are_what_they_are_called(collected, on_two_ranks):
    metrics = {name: rows for name, (rows, _) in on_two_ranks[0].items()}
    assert all("train/signal_to_noise" in row for row in metrics["grpo"])
    assert sum(row["train/early_stops"] for row in metrics["early stop"]) > 0
    assert [row["train/filtered_groups"] for row in metrics["a rank without kept groups"]] == [2, 2, 2]
    assert metrics["ppo"][0]["train/value_loss"] > 0
    assert all(row["train/grad_norm"] > 0 for row in metrics["grpo"])


def test_balanced_ranks_compute_about_equally_many_tokens(on_two_ranks):
    def tokens(name: str) -> list[int]:
        return [rank[name][0][3]["tokens"] for rank in on_two_ranks]

    apart, balanced = tokens("text"), tokens("balanced text")
    assert apart[0] > 3 * apart[1]
    assert sum(balanced) == sum(apart), "each record once"
    assert max(balanced) < 1.1 * min(balanced)
    rows = [row for rank in on_two_ranks for row in rank["balanced text"][0][:3]]
    assert min(row["train/rank_imbalance_before"] for row in rows) > 1.5
    assert max(row["train/rank_imbalance"] for row in rows) < 1.2
    plain = on_two_ranks[0]["text"][0]
    assert not [key for row in plain for key in row if "imbalance" in key]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 50)), min_size=1, max_size=60), st.integers(4, 5))
def test_no_rank_gets_more_than_the_mean_and_one_record(records, size):
    ranks, costs = (torch.tensor(column) for column in zip(*records, strict=True))
    to = placed(ranks, costs, size)
    mean, largest = float(costs.sum()) / size, imbalance(to, costs, size) * float(costs.sum()) / size
    assert largest <= mean + int(costs.max()) + 1e-6
    assert imbalance(to, costs, size) <= imbalance(ranks, costs, size)


@settings(deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=60))
def test_of_equal_records_about_those_move_that_are_too_many(ranks):
    ranks = torch.tensor(ranks)
    to = placed(ranks, torch.ones(len(ranks), dtype=torch.int64), 3)
    before, after = (torch.bincount(found, minlength=3) for found in (ranks, to))
    assert int(after.max()) == -(-len(ranks) // 3)
    assert int((to != ranks).sum()) <= 1.5 * int((before - len(ranks) // 3).clamp(min=0).sum())


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
    with pytest.raises(ConfigError, match=text) as refused:
        make_parallel(FakePolicy(), FsdpConfig(**fsdp), AlgorithmConfig(**algorithm), Group(0, 2), CPU)
    assert ("actor.training_backend=ddp" in refused.value.remedy) == ("use_kl_in_reward" in text), (
        "which sets fsdp2, too"
    )


def test_one_process_and_a_frozen_base_are_not_sharded():
    policy, auto = FakePolicy(), FsdpConfig()
    assert type(make_parallel(policy, FsdpConfig(strategy="fsdp2"), AlgorithmConfig(), Group(), CPU)) is Replicas
    policy.body.requires_grad_(False)
    made = make_parallel(policy, auto, AlgorithmConfig(), Group(1, 2), CPU)
    assert type(made) is Replicas
    assert list(made.notes) == ["2 processes, replicate: 3 of 5 weights are trained"]
    for asked, notes in (({}, 1), ({"shard_frozen": True}, 0)):
        strategy, said = strategy_of(policy, FsdpConfig(strategy="fsdp2", **asked), AlgorithmConfig(), Group(1, 2))
        assert strategy == "fsdp2"
        assert [line.partition(";")[0] for line in said] == ["fsdp2: 3 of 5 weights are trained and shared out"][:notes]


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
