"""A reward model in runs, through the commands that users type."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from logged import rows_of
from reward_folders import write_classifier
from test_run import checkpoints, lines, wait_for
from test_run_ranks import pid_of_rank

from embodied import train

HERE = Path(__file__).parents[1]
FOLDERS = ("--config-dir", str(HERE / "config"))
RUN = (
    "env=fake_text", "model=fake_text", "tracker=jsonl", "runner.device=cpu", "env.num_workers=2",
    "env.train.total_num_envs=16", "env.eval.total_num_envs=16", "env.eval.video_cfg.save_video=false",
    "actor.optim.lr=0.3", "runner.task_type=math", "runner.max_epochs=2", "algorithm.rollout_epoch=2",
    "algorithm.group_size=8", "actor.global_batch_size=32", "actor.micro_batch_size=32", "reward.use_reward_model=true",
)  # fmt: skip
STUB = "reward.model._target_=stub_reward_models.CountsB"
ALONE = ("env.train.reward_coef=0",)  # what the env pays counts nothing


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(name: str, *options: str) -> list[dict[str, float]]:
    assert train.main([*RUN, *options, f"runner.experiment_name={name}", *FOLDERS]) == 0
    return rows_of(f"runs/{name}")


def test_what_the_model_likes_is_learnt(capsys):
    rows = run("run", STUB, *ALONE, "runner.max_epochs=5", "algorithm.rollout_epoch=4")
    scores = [row["rollout/reward_model_mean"] for row in rows]
    assert scores[-1] > 1.5 * scores[0] > 0
    assert [row["rollout/return_mean"] for row in rows] == pytest.approx(scores)
    assert "model a count of letters" in capsys.readouterr().out


def test_its_scores_are_added_with_their_weight():
    alone = run("alone", STUB, *ALONE)[0]
    paid = run("paid", "reward.use_reward_model=false")[0]
    both = run("both", STUB, "reward.model.scale=0.5", "reward.reward_model_weight=3")[0]
    assert both["rollout/reward_model_mean"] == pytest.approx(0.5 * alone["rollout/reward_model_mean"])
    wanted = paid["rollout/return_mean"] + 1.5 * alone["rollout/return_mean"]
    assert both["rollout/return_mean"] == pytest.approx(wanted)
    assert both["rollout/success_rate"] == paid["rollout/success_rate"]
    assert "rollout/reward_model_mean" not in paid


def test_groups_that_differ_by_it_alone_are_kept():
    dynamic = ("algorithm.dynamic_sampling=true", *ALONE, "runner.max_epochs=1")
    with_model = run("with", STUB, *dynamic)[0]
    equal = run("equal", STUB, "reward.model.scale=0", *dynamic)[0]  # all returns of all groups are 0
    assert with_model["rollout/zero_advantage_share"] < 0.5
    assert with_model["train/grad_norm"] > 0
    assert equal["rollout/zero_advantage_share"] == 1
    assert equal["rollout/sampling_rounds"] == 3


def test_greedy_baselines_have_it_too():
    rows = run("remax", STUB, *ALONE, "algorithm.adv_type=remax")
    assert rows[0]["rollout/greedy_return_mean"] > 0
    assert rows[0]["rollout/greedy_return_mean"] == pytest.approx(round(rows[0]["rollout/greedy_return_mean"] * 4) / 4)


def test_every_turn_but_the_last_is_left_alone():
    turns = ("env.train.turns=2", "env.eval.turns=2")
    one = run("turns", STUB, *ALONE, *turns, "reward.model.scale=2")[0]
    assert one["rollout/return_mean"] == pytest.approx(one["rollout/reward_model_mean"])
    assert one["rollout/records"] == 2 * one["rollout/episodes"]


def test_a_classifier_of_a_folder_scores_a_run():
    write_classifier(Path("judge"))
    rows = run("run", "reward.model.model_path=judge", *ALONE, "reward.model.micro_batch_size=5")
    assert [row["rollout/return_mean"] for row in rows] == pytest.approx([r["rollout/reward_model_mean"] for r in rows])
    assert all(row["train/grad_norm"] > 0 for row in rows)
    again = run(
        "again", "reward.model.model_path=judge", *ALONE, "reward.model.micro_batch_size=5", "env.num_workers=1"
    )
    assert again == rows


LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "embodied.train"]
TWO = ("env.num_workers=1", "runner.experiment_name=two", *FOLDERS)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["replicate", "fsdp2"])
def test_two_ranks_score_their_own_records(strategy):
    write_classifier(Path("judge"))
    options = ("reward.model.model_path=judge", f"reward.model.strategy={strategy}", *ALONE)
    one = run("one", *options)
    subprocess.run([*LAUNCH, *RUN, *options, *TWO], check=True, timeout=300)
    for left, right in zip(one, rows_of("runs/two"), strict=True):
        assert {name: right[name] for name in left if name in right} == pytest.approx(left, rel=1e-4, abs=1e-5)


@pytest.mark.slow
def test_a_signal_to_one_of_two_ranks_ends_both_where_they_score_together():
    write_classifier(Path("judge"))
    options = (
        "reward.model.model_path=judge",
        "reward.model.strategy=fsdp2",
        "reward.model.micro_batch_size=1",
        *ALONE,
    )
    more = ("runner.max_epochs=500", "runner.val_check_interval=-1")
    process = subprocess.Popen([*LAUNCH, *RUN, *options, *TWO, *more])
    try:
        wait_for(lambda: lines(Path("runs/two/metrics.jsonl")) >= 2 or process.poll() is not None, 120)
        os.kill(pid_of_rank(process, 1), signal.SIGTERM)
        assert process.wait(60) == 1, "torchrun says that its ranks were ended"
    finally:
        process.kill()
    done = len(rows_of("runs/two"))
    assert checkpoints("two")[-1] == f"{done:06d}"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((STUB, "reward.model.broken=3"), "the reward model gave nan for the answer"),
        ((), "reward.model.model_path is missing"),
        (("reward.model.model_path=nowhere",), "no folder nowhere"),
        (("reward.model.model_path=nowhere", "reward.model.max_lenght=3"), "Did you mean 'max_length'"),
        ((STUB, "env=fake", "model=fake", "runner.task_type=embodied"), "reward.use_reward_model: for texts alone"),
    ],
)
def test_what_cannot_work_is_said(options, said, capsys):
    assert train.main([*RUN, *options, "runner.experiment_name=run", *FOLDERS]) == 2
    assert said in capsys.readouterr().err
