"""A real language model on real problems, through the commands that users type."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from logged import rows_of

from embodied import eval as evaluation
from embodied import train
from embodied.learn.origin import restore
from embodied.types import Sampling, TextAction

SIZES = (
    "tracker=jsonl", "runner.device=cpu", "env=arithmetic", "model=causal_lm_tiny", "env.num_workers=2",
    "actor.model.override_config.hidden_size=32", "actor.model.override_config.intermediate_size=64",
    "actor.model.override_config.num_hidden_layers=2", "actor.model.override_config.num_attention_heads=2",
    "actor.model.max_prompt_tokens=12", "actor.model.max_new_tokens=8", "env.eval.video_cfg.save_video=false",
    "env.train.data_args={terms: [2, 2], count: 500}", "env.eval.data_args={terms: [2, 2], count: 500}",
    "env.train.total_num_envs=32", "env.eval.total_num_envs=32", "env.eval.episodes_per_task=64",
)  # fmt: skip
FIRST = (
    "experiment=sft", *SIZES, "data=embodied.envs.text.arithmetic:demonstrations",
    "data.options={terms: [2, 2], count: 300}", "runner.max_epochs=1", "sft.steps_per_iteration=120",
    "sft.val_samples=16", "runner.val_check_interval=-1", "actor.global_batch_size=32", "actor.micro_batch_size=32",
    "actor.optim.lr=0.003",
)  # fmt: skip
RUN = (
    *SIZES, "experiment=math_quickstart", "runner.max_epochs=2", "runner.val_check_interval=2",
    "runner.save_interval=1", "runner.enable_dynamic_batch_size=true", "runner.max_tokens_per_mbs=100",
    "algorithm.group_size=8", "algorithm.rollout_epoch=1", "actor.global_batch_size=32", "actor.micro_batch_size=16",
    "runner.num_threads=1", "runner.logger.log_val_generations=8", "env.train.reward_mode=dense",
    f"runner.first=[{','.join(json.dumps(one) for one in FIRST)}]",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run: cloned, then two iterations of GRPO."""
    folder = tmp_path_factory.mktemp("math") / "run"
    assert train.main([*RUN, f"runner.logger.log_path={folder}"]) == 0
    return folder


def test_it_learns_from_what_its_own_log_probs_say(made):
    rows = rows_of(made)
    assert [row["step"] for row in rows] == [0, 1, 2]
    for row in rows[1:]:
        assert row["train/logprob_gap"] < 1e-4
        assert row["train/grad_norm"] > 0
        assert 32 <= row["rollout/tokens"] <= 32 * 8
    assert rows_of(made / "first")[0]["sft/val_loss"] < 2.5


def test_generations_are_what_was_verified(made):
    kept = [
        json.loads(line) for line in (made / "generations" / "000002.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert len(kept) == 8
    for one in kept:
        answer = one["response"].rpartition(";")[2]
        right = str(eval(one["prompt"].rstrip("=")))
        assert one["success"] == (";" in one["response"] and answer.strip() == right)


def test_workers_and_lanes_change_no_number(made, tmp_path):
    copy = tmp_path / "run"
    (copy).mkdir()
    (copy / "first").symlink_to(made / "first")
    options = ("env.num_workers=1", "rollout.policy_batch=16", f"runner.logger.log_path={copy}")
    assert train.main([*RUN, *options]) == 0
    assert rows_of(copy) == rows_of(made)


def test_a_checkpoint_answers_without_the_run(made):
    policy, env = restore(made / "checkpoints" / "000002")
    assert isinstance(env.action, TextAction)
    told = policy.encode_instructions(["1+2=", "9-4+3="])
    noise = torch.zeros(2, *policy.spec.noise.shape)
    decision = policy.act(told, noise, Sampling(do_sample=False))
    assert decision.fields["actions"].shape == (2, 1, env.action.max_bytes)


def test_an_evaluation_repeats_what_the_training_measured(made, tmp_path):
    options = (f"runner.ckpt_path={made / 'checkpoints' / '000002'}", f"runner.logger.log_path={tmp_path / 'eval'}")
    assert evaluation.main([*SIZES, "experiment=null", *options, "env.eval.reward_mode=sparse"]) == 0
    measured = json.loads((tmp_path / "eval" / "eval" / "000000.json").read_text(encoding="utf-8"))
    assert measured["tasks"][-1]["success_rate"] == rows_of(made)[-1]["eval/success_rate"]


def test_a_deadline_that_a_verifier_may_miss_is_refused(capsys, tmp_path):
    slow = "[{name: remote, url: 'http://127.0.0.1:9', timeout_s: 60}]"
    options = ("runner.dry_run=true", f"env.train.verifier={slow}", f"runner.logger.log_path={tmp_path / 'run'}")
    assert train.main([*SIZES, "experiment=math", *options]) == 2
    assert "and env.step_timeout_s is 120" in capsys.readouterr().err


def test_transcripts_that_may_outgrow_the_policy_are_refused(capsys, tmp_path):
    options = ("env=calculator", "env.train.data_args={}", "env.eval.data_args={}", "runner.dry_run=true")
    assert train.main([*SIZES, "experiment=math", *options, f"runner.logger.log_path={tmp_path / 'run'}"]) == 2
    assert "transcripts grow to 256 bytes" in capsys.readouterr().err
