"""A run that goes on with another number of iterations, whose learning rates refer to that number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embodied import train
from embodied.run.folder.rescheduled import rescheduled
from embodied.schema.compose.compose import compose

CONFIG = str(Path(__file__).parents[1] / "config")
KEYS = "actor.lr_sched."
LINEAR = KEYS + "lr_decay_style=linear"


def said(done: int, before: int | None, *overrides: str) -> str | None:
    words = ["env=fake", "model=fake", "actor.optim.lr=0.1", "runner.max_epochs=20", *overrides]
    earlier = None if before is None else {"runner": {"max_epochs": before}}
    return rescheduled(earlier, compose(words, "train", [CONFIG]).config, done)


def test_a_schedule_that_is_stretched_is_said_with_both_rates():
    text = said(10, 10, LINEAR)
    assert text is not None
    assert "max_epochs was 10 and is 20" in text
    assert "the rate of the policy is 0.05; with 10 iterations it was 0." in text
    assert "warm-up again" not in text
    assert "lr_decay_iters" in text


@pytest.mark.parametrize(
    ("done", "before", "overrides"),
    [
        (10, 20, [LINEAR]),  # the same number
        (10, None, [LINEAR]),  # nobody knows
        (20, 10, [LINEAR]),  # nothing is left to do
        (10, 10, []),  # constant
        (10, 10, [LINEAR, KEYS + "lr_decay_iters=30"]),
        (10, 10, [KEYS + "lr_warmup_iters=15"]),  # in iterations, not as a share
        (10, 10, [KEYS + "lr_warmup_fraction=0.5"]),  # 5 and then 10: over by now
    ],
)
def test_a_schedule_that_stays_is_not_spoken_of(done, before, overrides):
    assert said(done, before, *overrides) is None


def test_a_warm_up_that_begins_again_is_said():
    text = said(10, 10, KEYS + "lr_warmup_fraction=0.8")
    assert text is not None
    assert "the rate of the policy is 0.0625; with 10 iterations it was 0.1. It is in its warm-up again." in text


def test_a_warm_up_that_goes_on_is_none_that_begins_again():
    text = said(4, 10, KEYS + "lr_warmup_fraction=0.8")
    assert text is not None
    assert "warm-up again" not in text


def test_the_command_says_it_and_does_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = [
        "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "runner.experiment_name=run",
        "algorithm.rollout_epoch=4", "algorithm.update_epoch=1", "env.train.max_episode_steps=10",
        "env.train.reward_mode=dense", "env.eval.video_cfg.save_video=false", "runner.save_interval=1", LINEAR,
        "actor.optim.lr=0.1", "--config-dir", CONFIG,
    ]  # fmt: skip
    for iterations, rate in ((1, None), (2, "is 0.05; with 1 iterations it was 0"), (3, "is 0.0333; with 2")):
        assert train.main([*command, f"runner.max_epochs={iterations}"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert ("the schedule of the learning rate" in shown) is (rate is not None)
        assert rate is None or rate in shown
    rates = [
        json.loads(line)["train/lr"] for line in Path("runs/run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert rates == pytest.approx([0.0, 0.0, 0.0]), "the last step of each part is the end of its schedule"
