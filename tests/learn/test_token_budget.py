"""Passes that are filled by tokens: how they are cut, and that they change no sum."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from embodied import train
from embodied.learn.batch import packed
from embodied.testing import FakeTextPolicy

HERE = Path(__file__).parents[1]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(8, 64), st.integers(1, 12))
def test_every_record_is_in_one_part_and_no_part_is_too_full(lengths, budget, size):
    tokens, index = torch.tensor(lengths), torch.arange(100, 100 + len(lengths))
    parts = packed(index, tokens, budget, size)
    assert sorted(torch.cat(parts).tolist()) == index.tolist()
    for part in parts:
        assert len(part) <= size
        assert len(part) == 1 or tokens[part - 100].sum() <= budget


def test_parts_are_few_and_of_like_work():
    tokens = torch.tensor([10] * 4 + [5] * 8)
    parts = packed(torch.arange(12), tokens, 20, 99)
    assert [int(tokens[part].sum()) for part in parts] == [20, 20, 20, 20]


def test_a_record_beyond_the_budget_is_a_part_of_its_own():
    parts = packed(torch.arange(3), torch.tensor([50, 3, 4]), 10, 99)
    assert sorted(map(len, parts)) == [1, 2]
    assert [part.tolist() for part in parts if len(part) == 1] == [[0]]


RUN = (
    "env=fake_text", "model=fake_text", "tracker=jsonl", "runner.device=cpu", "env.num_workers=1",
    "runner.max_epochs=2",
    "runner.val_check_interval=-1", "runner.save_interval=-1", "env.train.total_num_envs=16",
    "algorithm.rollout_epoch=2", "algorithm.group_size=8", "actor.global_batch_size=32", "actor.micro_batch_size=32",
    "env.eval.video_cfg.save_video=false", "actor.optim.lr=0.05", "--config-dir", str(HERE / "config"),
)  # fmt: skip


@pytest.mark.parametrize("loss", ["ppo", "gspo", "tis"])
def test_a_budget_changes_no_sum(tmp_path, monkeypatch, loss):
    monkeypatch.chdir(tmp_path)
    found = []
    for name, more in (("whole", ()), ("budget", ("enable_dynamic_batch_size=true", "max_tokens_per_mbs=24"))):
        options = (*(f"runner.{one}" for one in more), f"runner.experiment_name={name}", f"algorithm.loss_type={loss}")
        assert train.main([*RUN, *options]) == 0
        rows = map(json.loads, Path("runs", name, "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        found.append([(row["train/loss"], row["train/grad_norm"], row["rollout/return_mean"]) for row in rows])
    for whole, budget in zip(*found, strict=True):
        assert budget == pytest.approx(whole, rel=1e-4, abs=1e-7)


def test_passes_without_gradients_have_a_budget_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    budgets: list[tuple[int, bool]] = []  # tokens of each pass, and whether it has gradients

    def counted(policy: FakeTextPolicy, records, sampling, distribution=False):
        light = {"length": records["length"].numpy()}
        budgets.append((int(policy.tokens(light).sum()), torch.is_grad_enabled()))
        return evaluate(policy, records, sampling, distribution)

    evaluate = FakeTextPolicy.evaluate
    monkeypatch.setattr(FakeTextPolicy, "evaluate", counted)
    dynamic = ("runner.enable_dynamic_batch_size=true", "runner.max_tokens_per_mbs=24")
    options = ("algorithm.logprob_forward_max_tokens=64", "algorithm.loss_type=tis", "runner.max_epochs=1")
    assert train.main([*RUN, *dynamic, *options, "runner.experiment_name=run"]) == 0
    largest = [max(tokens for tokens, gradients in budgets if gradients is wanted) for wanted in (True, False)]
    assert largest[0] <= 24 < largest[1] <= 64


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("env=fake model=fake", "runner.enable_dynamic_batch_size: for texts alone"),
        ("env=fake_text model=fake_text actor.model._target_=broken_policies.CountsNothing", "does not count them"),
    ],
)
def test_a_policy_that_counts_no_tokens_is_refused(tmp_path, monkeypatch, capsys, kind, said):
    monkeypatch.chdir(tmp_path)
    options = ("runner.enable_dynamic_batch_size=true", "runner.dry_run=true", "runner.device=cpu")
    assert train.main([*kind.split(), *options, "--config-dir", str(HERE / "config")]) == 2
    assert said in capsys.readouterr().err
