"""A language model with a calculator, through the commands that users type: several turns, uneven ones in a group."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from embodied.envs.text.calculator import answered
from logged import rows_of

from embodied import train

SIZES = (
    "tracker=jsonl", "runner.device=cpu", "env.num_workers=2", "runner.num_threads=1",
    "actor.model.override_config.hidden_size=32", "actor.model.override_config.intermediate_size=64",
    "actor.model.override_config.num_hidden_layers=2", "actor.model.override_config.num_attention_heads=2",
    "env.train.data_args={digits: [1, 1], terms: [2, 2], operations: ['*'], count: 500}",
    "env.eval.data_args={digits: [1, 1], terms: [2, 2], operations: ['*'], count: 500}",
    "env.train.total_num_envs=32", "env.eval.total_num_envs=32", "env.eval.episodes_per_task=32",
)  # fmt: skip
FIRST = (
    "experiment=math_calculator_sft", *SIZES,
    "data.options={digits: [1, 1], terms: [2, 2], operations: ['*'], call_share: 1.0, count: 300}", "data.test_size=0",
    "runner.max_epochs=1", "sft.steps_per_iteration=120", "runner.val_check_interval=-1", "actor.optim.lr=0.003",
    "actor.global_batch_size=16", "actor.micro_batch_size=16",
)  # fmt: skip
FORMAT = "[{name: integer_after, separator: ';'}, {name: format, pattern: ';[1-4][0-9]*', weight: 1.0}]"
RUN = (
    "experiment=math_calculator", *SIZES, "env.train.reward_mode=dense", f"env.train.verifier={FORMAT}",
    "runner.max_epochs=2", "runner.val_check_interval=2",
    "runner.save_interval=-1", "algorithm.rollout_epoch=1", "runner.val_before_train=false",
    "algorithm.val_sampling_params.do_sample=true", "runner.logger.log_val_generations=32",
    f"runner.first=[{','.join(json.dumps(one) for one in FIRST)}]",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run: calls are cloned, not to the end, then two iterations of GRPO. Right answers are rare, so the shape of an
    answer is worth something too."""
    folder = tmp_path_factory.mktemp("calculator") / "run"
    assert train.main([*RUN, f"runner.logger.log_path={folder}"]) == 0
    return folder


def test_the_length_of_an_episode_counts_its_turns(made):
    for row in rows_of(made):
        turns = row["rollout/episode_length_mean"] * row["rollout/episodes"]
        assert row["rollout/records"] == row["rollout/env_steps"] == pytest.approx(turns)
        assert 1 < row["rollout/episode_length_mean"] < 3  # they are uneven
        assert row["train/logprob_gap"] < 1e-4
        assert row["train/grad_norm"] > 0


def test_transcripts_hold_what_was_called_and_what_the_calculator_said(made):
    kept = [
        json.loads(line) for line in (made / "generations" / "000002.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    measured = json.loads((made / "eval" / "000002.json").read_text(encoding="utf-8"))["episodes"]
    assert len(kept) == 32
    seen = set()
    for one, episode in zip(kept, measured, strict=True):
        problem, _, rest = one["prompt"].partition("=")
        turns = re.findall(r"(.*?)<calc>(.*?)</calc>(<result>.*?</result>)", rest, re.DOTALL)
        assert rest == "".join(f"{before}<calc>{call}</calc>{result}" for before, call, result in turns)
        assert all(answered(call) == result for _, call, result in turns)
        assert episode["steps"] == len(turns) + 1 <= 3
        _, opened, call = one["response"].partition("<calc>")
        assert len(turns) == 2 or not opened or "</calc>" not in call  # a whole call ends no episode but the longest
        assert one["success"] == (one["response"].rpartition(";")[2] == str(eval(problem)) and ";" in one["response"])
        seen.add(len(turns))
    assert len(seen) > 1


@pytest.mark.slow
def test_workers_and_lanes_change_no_number(made, tmp_path):
    copy = tmp_path / "run"
    copy.mkdir()
    (copy / "first").symlink_to(made / "first")
    options = ("env.num_workers=1", "rollout.policy_batch=16", f"runner.logger.log_path={copy}")
    assert train.main([*RUN, *options]) == 0
    assert rows_of(copy) == rows_of(made)
