"""Two processes that compute each text together (``actor.model.context_parallel_size``) against one that does."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import chdir, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from causal_lm_texts import ARCHITECTURES, N, answered, make
from embodied.models.causal_lm import build_policy
from ranks import connected, free_port, on_ranks
from torch import Tensor

from embodied import sft, train
from embodied.errors import ConfigError, Stopped
from embodied.learn.checkpoint import loading
from embodied.learn.ranks.teams import of_team
from embodied.learn.step.meters.live_bytes import LiveBytes
from embodied.learn.step.passes import until_stopped
from embodied.parallel.group import Group
from embodied.parallel.sharding import Replicas
from embodied.parallel.teams import Teams
from embodied.run.build.preflight import check
from embodied.run.memory import counting
from embodied.schema.compose.compose import compose
from embodied.types import EpisodeResult, Sampling

LORA = {"is_lora": True, "lora_rank": 4, "lora_init_weights": False}


@dataclass(frozen=True)
class Case:
    """A network, and what is asked of it."""

    kind: str = "llama"
    sizes: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=Sampling)
    distribution: bool = False
    texts: int = 6


CASES = {
    **{kind: Case(kind) for kind in ARCHITECTURES},  # gemma: one head of keys and values for two processes
    "copied heads": Case("qwen2", {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 48}),
    "a value of the prompt": Case(keys={"value_head": True}),
    "a value of each token": Case("qwen2", keys={"value_head": True, "value_type": "token_level"}),
    "recomputed": Case("qwen3", keys={"gradient_checkpointing": True}),
    "adapters": Case("gemma2", keys=LORA),
    "adapters, recomputed": Case(keys={**LORA, "gradient_checkpointing": True}),
    "16 bits": Case("qwen2", keys={"precision": "bf16"}),
    "all choices": Case("gemma3", distribution=True),
    "truncated": Case(sampling=Sampling(temperature=0.7, top_k=5, repetition_penalty=1.3, min_new_tokens=2)),
    "one text of one token": Case(texts=1),
    "rows that are filled up": Case("qwen2", keys={"sequence_packing": False}),
}


def records_of(policy: Any, texts: int) -> dict[str, Tensor]:
    """Texts of uneven length, two with one prompt; a single one is short."""
    records = answered(policy, sampling=Sampling(ignore_eos=True))
    lengths = torch.tensor([3, N, 1, 7, 5, 2] if texts == 6 else [1], dtype=torch.int32)
    return {name: values[:texts] for name, values in {**records}.items() if name != "length"} | {"length": lengths}


def computed(case: Case, teams: Teams) -> dict[str, Tensor]:
    """What the policy says of the records, and the gradients of a loss of all of it, summed over processes."""
    torch.manual_seed(3)
    policy = make(case.kind, case.sizes, **case.keys)
    if policy.value_head is not None:
        torch.nn.init.normal_(policy.value_head.weight)
    parallel = Replicas(policy, Group() if teams.team.size == 1 else teams.team, teams=teams)
    with parallel.splitting():
        found = policy.evaluate(records_of(policy, case.texts), case.sampling, case.distribution)
        given = {"logprobs": found.logprobs, "entropy": found.entropy, "value": found.value}
        given = {name: values for name, values in given.items() if values is not None}
        loss = torch.zeros(())
        for values in given.values():
            loss = loss + (values * torch.randn(values.shape, generator=torch.Generator().manual_seed(5))).sum()
        if case.distribution:
            given["distribution"] = found.distribution
            loss = loss + found.distribution.exp().square().sum()
        loss.backward()
    parallel.sum_gradients()
    gradients = {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}
    return {name: values.detach() for name, values in {**given, "loss": loss, **gradients}.items()}


def apart(got: Tensor, wanted: Tensor) -> float:
    return ((got.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-9)).item()


TINY = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 3}  # as model=causal_lm_tiny
RECOMPUTED = {"gradient_checkpointing": True}


@dataclass
class Settled:
    """A team in which nothing is left of an exchange when it ends: gloo's threads let go of what was sent a moment
    later, and until then it counts as live."""

    group: Group

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)

    def exchange(self, *given: Any) -> Tensor:
        got = self.group.exchange(*given)
        time.sleep(0.02)
        return got


def live(team: Any, **keys: Any) -> tuple[int, int]:
    """Bytes that a pass over one text of 1024 tokens saves for the backward pass, and those at its fullest moment."""
    policy, draw = make(sizes=TINY, max_new_tokens=960, **keys), torch.Generator().manual_seed(0)
    prompt, tokens = (torch.randint(3, 50, (1, length), generator=draw) for length in (64, 960))
    records = {"prompt_ids": prompt, "prompt_length": torch.tensor([64]), "tokens": tokens}
    records["length"] = torch.tensor([960])
    for parameter in policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    gc.collect()
    gc.disable()  # it would free what a cycle holds in the middle of a pass, or not
    with LiveBytes() as counted:
        before = counted.restart()
        with policy.splitting(team) if team else nullcontext():
            found = policy.evaluate(records, Sampling())
        saved = counted.now - before
        (found.logprobs.sum() + found.entropy.sum()).backward()
    gc.enable()
    return saved, counted.peak - before


COMMON = (
    "env=arithmetic", "model=causal_lm_tiny", "tracker=jsonl", "runner.device=cpu", "runner.max_epochs=2",
    "runner.val_check_interval=-1", "runner.save_interval=-1", "env.num_workers=1", "env.train.total_num_envs=8",
    "env.eval.total_num_envs=4", "actor.micro_batch_size=3", "actor.optim.lr=0.01", "actor.model.max_new_tokens=24",
    "env.eval.video_cfg.save_video=false", "runner.num_threads=1",
    "algorithm.calculate_noise_scale=false",  # texts that several processes share do not have it
)  # fmt: skip
TRAIN = (
    *COMMON, "algorithm.group_size=4", "algorithm.rollout_epoch=1", "actor.global_batch_size=8",
    "algorithm.update_epoch=2", "reward.overlong_penalty.enable=true", "reward.overlong_penalty.buffer_length=24",
)  # fmt: skip
PPO = (
    "algorithm=ppo", "actor.model.value_head=true", "algorithm.kl_beta=0.1", "algorithm.use_kl_in_reward=true",
    "algorithm.critic_warmup_steps=1", "actor.model.gradient_checkpointing=true",
)  # fmt: skip
LORA_RUN = (
    "actor.model.is_lora=true", "algorithm.kl_beta=0.1", "rollout.recompute_logprobs=true",
    "runner.enable_dynamic_batch_size=true", "runner.max_tokens_per_mbs=80",
)  # fmt: skip
SFT = (
    *COMMON, "data.train_data_paths=[embodied.envs.text.arithmetic:demonstrations]",
    "data.options={terms: [3, 4], count: 400}", "data.test_size=40", "sft.steps_per_iteration=4", "sft.val_samples=15",
    "actor.global_batch_size=10", "runner.val_check_interval=2", "env.eval.episodes_per_task=8",
)  # fmt: skip
SHARED, WHOLE = "actor.fsdp_config.strategy=fsdp2", "actor.fsdp_config.strategy=replicate"
RUNS = {
    "ppo": (*TRAIN, WHOLE, *PPO),
    # In a step of the first iteration all records that teach are of one process.
    "gspo": (*TRAIN, SHARED, "algorithm.loss_type=gspo", "actor.optim.ema_decay=0.5"),
}
MORE_RUNS = {
    "grpo": (*TRAIN, WHOLE),
    "lora": (*TRAIN, *LORA_RUN),
    "sft": (*SFT, WHOLE),
    "sft shared out": (*SFT, SHARED),
}


def run_all(runs: Mapping[str, Sequence[str]], folder: Path, ports: Sequence[int]) -> None:
    """Each run as it is, and with texts that are computed by both processes."""
    ports = list(ports)
    with chdir(folder):
        for name, options in runs.items():
            for kind, more in {"apart": (), "together": ("actor.model.context_parallel_size=2",)}.items():
                os.environ["MASTER_PORT"] = str(ports.pop())
                entry = sft if name.startswith("sft") else train
                assert entry.main([*options, *more, f"runner.experiment_name={name}-{kind}"]) == 0


RESULTS = [  # rank, rows, final row
    (0, (3, 1), 5), (1, (2,), -1), (1, (7, 6), 0), (0, (4,), -1),
]  # fmt: skip


def records_of_team(world: Group) -> list[Any]:
    """What stands in the rows of each result, once the processes have each other's: hundreds are the rank."""
    arrays = {"row": 100 * world.rank + np.arange(8), "wide": np.full((8, 2, 3), world.rank, np.uint8)}
    episode: Any = None
    results = [
        EpisodeResult(episode, rows, 0.0, True, 1, True, False, final_row=final, rank=rank)
        for rank, rows, final in RESULTS
    ]
    got, moved = of_team(arrays, results, Replicas(make(), world, teams=Teams(world, Group())))
    assert {result.rank for result in moved} == {0}, "the number of the team"
    assert [got["wide"][result.rows[0]].mean() for result in moved] == [rank for rank, _, _ in RESULTS]
    return [(got["row"][list(one.rows)].tolist(), one.final_row >= 0 and got["row"][one.final_row]) for one in moved]


def passes_until_one_stops(world: Group) -> int:
    """Passes of this process after which all have ended; the second process ends its third."""
    made: list[Tensor] = []
    parallel = Replicas(make(), world, teams=Teams(world, Group()))
    try:
        for part, _ in until_stopped([torch.arange(1)] * 5, lambda _: world.rank == 0 or len(made) < 3, parallel):
            made.append(part)
    except Stopped:
        return len(made)
    return -1


def compute_all(world: Group, folder: Path, ports: Sequence[int]) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """What this process finds in all cases, and the bytes of passes. Then it makes the runs."""
    teams = Teams(world, Group())
    with connected(world):
        alone = make().evaluate(records_of(make(), 6 if world.rank else 1), Sampling())  # each for itself
        assert len(alone.logprobs) == (6 if world.rank else 1)
        found = {name: computed(case, teams) for name, case in CASES.items()}
        bytes_of = [live(Settled(world)), live(Settled(world), **RECOMPUTED)]
        found |= {"records": records_of_team(world), "passes": passes_until_one_stops(world)}
    run_all(RUNS, folder, ports)
    return found, bytes_of


def ports_for(runs: Mapping[str, Any]) -> list[int]:
    return [free_port() for _ in range(2 * len(runs))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def on_two_ranks(folder) -> list[tuple[dict[str, Any], list[tuple[int, int]]]]:
    return on_ranks(compute_all, folder, ports_for(RUNS), connects=False)


@pytest.mark.parametrize("name", CASES)
def test_two_processes_say_of_texts_what_one_says_with_its_gradient(name, on_two_ranks):
    expected, bound = computed(CASES[name], Teams(Group(), Group())), 2e-2 if name == "16 bits" else 1e-5
    assert {"logprobs", "entropy", "loss"} < expected.keys()
    for cases, _ in on_two_ranks:
        found: Mapping[str, Tensor] = cases[name]
        assert found.keys() == expected.keys()
        worst = {key: apart(found[key], expected[key]) for key in expected}
        assert max(worst.values()) <= bound, worst


def test_a_team_has_the_records_of_its_processes_and_stops_together(on_two_ranks):
    for found, _ in on_two_ranks:
        assert found["passes"] == 3, "a stop of one ends both after the same pass"
        assert found["records"] == [([3, 1], 5), ([102], False), ([107, 106], 100), ([4], False)]


@pytest.mark.parametrize("keys", [{}, RECOMPUTED])
def test_two_processes_take_half_of_the_memory_each_as_a_dry_run_counts(keys, on_two_ranks):
    one, counted = live(None, **keys), live(counting.OneOf(2), **keys)
    print(f"{keys}: a pass of one process adds {one[1] / 2**20:.1f} MiB, of two {counted[1] / 2**20:.1f} MiB each")
    for _, bytes_of in on_two_ranks:
        for got, wanted, whole in zip(bytes_of[bool(keys)], counted, one, strict=True):
            assert got == pytest.approx(wanted, rel=1e-3)
            assert got < (0.7 if keys else 0.55) * whole


def rows_of(run: Path) -> list[dict[str, float]]:
    """Metrics of a run, without those of times and memory."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    apart = ("time/", "memory/", "rollout/batch")
    return [{k: v for k, v in row.items() if not k.startswith(apart) and not k.endswith("_per_s")} for row in rows]


def weights_of(run: Path, **keys: Any) -> dict[str, Tensor]:
    policy = build_policy(override_config={**TINY, "num_attention_heads": 4}, max_prompt_tokens=64, **keys)
    loading.load(run / "checkpoints/000002", policy)
    return {name: parameter.detach() for name, parameter in policy.named_parameters()}


def compare(name: str, folder: Path) -> None:
    """Asserts that both kinds of a run have the same metrics and weights."""
    one, two = (folder / f"runs/{name}-{kind}" for kind in ("apart", "together"))
    for row, expected in zip(rows_of(two), rows_of(one), strict=True):
        assert row.get("train/grad_norm", row.get("sft/grad_norm")) > 0
        assert row == pytest.approx(expected, rel=1e-4, abs=1e-5)
    keys = {"value_head": name == "ppo", "is_lora": name == "lora", "max_new_tokens": 24}
    found, expected = weights_of(two, **keys), weights_of(one, **keys)
    begun = build_policy(override_config={**TINY, "num_attention_heads": 4}, seed=1234, **keys)
    assert any(not torch.equal(p, expected[name]) for name, p in begun.named_parameters())
    for parameter, values in expected.items():
        torch.testing.assert_close(found[parameter], values, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", RUNS)
def test_runs_end_with_the_weights_and_metrics_of_processes_apart(name, on_two_ranks, folder):
    compare(name, folder)


def make_more(world: Group, folder: Path, ports: Sequence[int]) -> None:
    run_all(MORE_RUNS, folder, ports)


@pytest.mark.slow
def test_more_runs_end_with_the_weights_and_metrics_of_processes_apart(tmp_path):
    on_ranks(make_more, tmp_path, ports_for(MORE_RUNS), connects=False)
    for name in MORE_RUNS:
        compare(name, tmp_path)


def checked_of(tmp_path: Path, size: int, *more: str) -> Any:
    composed = compose([*TRAIN, f"runner.output_dir={tmp_path}", *more], "train")
    return check(composed, Group(0, size, 0, size))


def asked(checked: Any) -> tuple[Any, ...]:
    return checked.config, checked.sides, checked.processes


@pytest.mark.parametrize("limit", [counting.LIMIT, 0], ids=["with memory", "without memory"])
def test_a_dry_run_counts_the_part_of_one_process(tmp_path, limit):
    few = "actor.micro_batch_size=2"
    apart, together = (
        counting.count(*asked(one), one.demonstrations, limit)
        for one in (checked_of(tmp_path, 2, few, f"actor.model.context_parallel_size={size}") for size in (1, 2))
    )
    assert together.passes.update.saved == pytest.approx(apart.passes.update.saved / 2, rel=0.03)
    both = checked_of(tmp_path, 2, "actor.model.context_parallel_size=2")
    footprint = together.footprint(*asked(both), on_gpu=False)
    assert footprint.host["records of the team"] == 2 * footprint.host["slab"]


@pytest.mark.parametrize(
    ("size", "more", "text"),
    [
        (1, (), "the 1 of the run cannot be divided into teams of 2"),
        (2, ("actor.model.context_parallel_size=4",), "the 2 of the run cannot be divided into teams of 4"),
        (2, ("algorithm.max_staleness=1",), "a text together cannot act meanwhile"),
    ],
)
def test_what_cannot_be_divided_is_refused(tmp_path, size, more, text):
    with pytest.raises(ConfigError) as failed:
        checked_of(tmp_path, size, "actor.model.context_parallel_size=2", *more)
    assert text in str(failed.value)


def test_heads_are_divided_or_refused_and_what_does_not_learn_needs_no_team(tmp_path):
    with pytest.raises(ConfigError, match="4 attention heads cannot be shared by 3 processes") as failed:
        make(context_parallel_size=3)
    assert "a divisor of 4: 1, 2, 4" in str(failed.value)
    with pytest.raises(ConfigError, match="context_parallel_size = 0: it counts something"):
        make(context_parallel_size=0)
    checked_of(tmp_path, 1, "actor.model.context_parallel_size=2", "runner.only_eval=true")
