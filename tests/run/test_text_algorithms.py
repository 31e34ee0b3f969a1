"""Every algorithm trains on texts of uneven length, through the command that users type."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from embodied import train
from embodied.schema.compose.compose import compose

HERE = Path(__file__).parents[1]
CONFIG = HERE.parent / "config" / "algorithm"
FOLDERS = ("--config-dir", str(HERE / "config"))
RUN = (
    "env=fake_text", "model=fake_text", "tracker=jsonl", "runner.device=cpu", "env.num_workers=1",
    "runner.max_epochs=2", "runner.val_check_interval=-1", "runner.save_interval=-1", "env.train.total_num_envs=16",
    "env.eval.total_num_envs=16", "algorithm.rollout_epoch=2", "algorithm.group_size=8", "actor.global_batch_size=16",
    "actor.micro_batch_size=8", "env.eval.video_cfg.save_video=false", "actor.optim.lr=0.05",
    "runner.experiment_name=run", "runner.enable_dynamic_batch_size=true", "runner.max_tokens_per_mbs=40",
)  # fmt: skip
TOKENS = ("actor.model.value_type=token_level",)
KL = ("algorithm.kl_beta=0.1",)
CASES: dict[str, tuple[str, ...]] = {
    "grpo": ("algorithm=grpo",),
    "dapo": ("algorithm=dapo", "reward.overlong_penalty.enable=true", "reward.overlong_penalty.buffer_length=4"),
    "dr_grpo": ("algorithm=dr_grpo",),
    "rloo": ("algorithm=rloo",),
    "reinforce_pp": ("algorithm=reinforce_pp",),
    "reinforce_pp, baseline": ("algorithm=grpo", "algorithm.adv_type=reinforce_plus_plus_baseline"),
    "gspo": ("algorithm=gspo", "algorithm.sampling_params.max_new_tokens=6"),
    "cispo": ("algorithm=cispo",),
    "ppo": ("algorithm=ppo",),
    "start_value": ("algorithm=start_value",),
    "ppo_tokens": ("algorithm=ppo_tokens", *TOKENS),
    "ppo_tokens, KL in the reward": ("algorithm=ppo_tokens", *TOKENS, *KL, "algorithm.use_kl_in_reward=true"),
    "KL in the loss": ("algorithm=grpo", *KL, "algorithm.unbiased_kl_estimate=true"),
    "remax": ("algorithm=grpo", "algorithm.adv_type=remax"),
    "tis, recomputed": ("algorithm=grpo", "algorithm.loss_type=tis", "rollout.recompute_logprobs=true"),
}  # fmt: skip


OFF_POLICY = {"sac"}  # for actions that are numbers: tests/run/test_sac_run.py


def rows_of(folder: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", CASES)
def test_it_runs_on_texts_of_uneven_length(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert train.main([*RUN, *CASES[name], *FOLDERS]) == 0
    rows = rows_of("runs/run")
    assert len(rows) == 2
    for row in rows:
        assert all(math.isfinite(value) for value in row.values())
        assert row["train/optimizer_steps"] == 2
        assert row["train/grad_norm"] > 0
        assert row["train/bad_updates"] == 0
        assert row["train/logprob_gap"] < 1e-5
        assert 1 < row["rollout/tokens_mean"] < 8, "some end before the limit of 8"
        assert 0 < row["rollout/full_length_share"] < 1
    if "KL" in name or name == "reinforce_pp":
        first, second = (row["train/kl_reference"] for row in rows)
        assert "loss" in name or first == pytest.approx(0, abs=1e-6), "nothing has been learnt yet"
        assert second != pytest.approx(first, abs=1e-6)
    if name.startswith("ppo"):
        assert rows[0]["train/value_loss"] > 0


def test_groups_without_a_gradient_are_replaced(tmp_path, monkeypatch):
    """With the sparse reward nearly no answer is right, so that many groups teach nothing."""
    monkeypatch.chdir(tmp_path)
    more = ("algorithm=dapo", "algorithm.max_sampling_rounds=4", "env.train.reward_mode=sparse")
    assert train.main([*RUN, *more, *FOLDERS]) == 0
    rows = rows_of("runs/run")
    assert any(row.get("rollout/dropped_groups", 0) > 0 for row in rows)
    assert all(math.isfinite(row["train/loss"]) for row in rows)


def test_every_algorithm_that_is_shipped_is_run_here():
    named = {option.partition("=")[2] for options in CASES.values() for option in options if "algorithm=" in option}
    assert {path.stem for path in CONFIG.glob("*.yaml")} - OFF_POLICY <= named


def test_values_of_tokens_are_chosen_by_one_key():
    for name in ("causal_lm", "causal_lm_tiny"):
        options = [f"model={name}", "actor.model.model_path=/a/checkpoint", "algorithm=ppo_tokens"]
        made = compose(options).config
        assert made.actor.model.model_extra["value_head"] is True
        assert made.actor.model.model_extra["value_type"] == made.algorithm.reward_type == "token_level"
        assert (made.algorithm.adv_type, made.algorithm.gamma, made.algorithm.gae_lambda) == ("gae", 1.0, 0.95)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["replicate", "fsdp2"])
@pytest.mark.parametrize("more", [(), ("rollout.recompute_logprobs=true", "algorithm.loss_type=tis")])
def test_two_processes_learn_the_values_of_one(tmp_path, monkeypatch, strategy, more):
    monkeypatch.chdir(tmp_path)
    options = [*RUN, "algorithm=ppo_tokens", *TOKENS, *more]
    assert train.main([*options, "runner.experiment_name=one", *FOLDERS]) == 0
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    two = (f"actor.fsdp_config.strategy={strategy}", "runner.experiment_name=two", *FOLDERS)
    subprocess.run([*launch, "embodied.train", *options, *two], check=True, timeout=300)
    varying = re.compile("time/|memory/|.*_per_s$|rollout/batch_size_mean$")
    for one, other in zip(rows_of("runs/one"), rows_of("runs/two"), strict=True):
        names = [name for name in one if not varying.match(name) and name in other]
        assert {name: other[name] for name in names} == pytest.approx({n: one[n] for n in names}, rel=1e-4, abs=1e-6)
