"""The advice on how many episodes an iteration should have: when, with which numbers, and keys that are taken."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from embodied import schema, train
from embodied.learn.ranks.sides import RolloutSide, TrainSide
from embodied.parallel.group import Group
from embodied.run.build.shares import check
from embodied.run.folder.folder import MAY_CHANGE
from embodied.run.training import noise_advice
from embodied.run.training.noise_advice import NoiseAdvice, more_episodes
from embodied.schema.compose.compose import compose

CONFIG = str(Path(__file__).parents[1] / "config")
ROBOT = ("env=fake", "model=fake", "env.train.total_num_envs=16", "env.eval.total_num_envs=16",
         "algorithm.group_size=8", "algorithm.rollout_epoch=4")  # fmt: skip
TEXT = ("env=fake_text", "model=fake_text", "runner.task_type=math", "algorithm.group_size=8",
        "algorithm.rollout_epoch=1", "data.rollout_batch_size=8")  # fmt: skip


def config(*overrides: str) -> schema.Config:
    return compose([*overrides], "train", [CONFIG]).config


def advised(config: schema.Config, signal: float, error: float | None, times: int = 3) -> list[str]:
    advice = NoiseAdvice(config, Group(), SimpleNamespace(advised=False))  # type: ignore[arg-type]
    metrics = {"train/signal_to_noise": signal} | ({} if error is None else {"train/signal_to_noise_error": error})
    said = [advice.take(metrics) for _ in range(times)]
    return [text for text in said if text]


def test_it_is_said_once_with_numbers_and_keys():
    found = config(*ROBOT, "actor.global_batch_size=32")
    assert advised(found, 0.3, 0.1) == [
        "  updates of 64 episodes: signal/noise 0.3 (0.1 to 0.5); 128 to 640 would give 1. For 213 or a few more: "
        "algorithm.rollout_epoch=14 actor.global_batch_size=112"
    ]
    assert advised(found, 0.6, 0.01) == []
    (text,) = advised(found, 0.0, 0.02)
    assert "16 times as many would not give 1" in text
    assert "algorithm.rollout_epoch" not in text


def test_a_process_that_only_collects_knows_that_it_was_said():
    train = SimpleNamespace(
        policy=None, unlogged={}, weight_version=3, rows=(), peak_flops=None, _of_starts=dict,
        noise=SimpleNamespace(advised=True),
    )  # fmt: skip
    collects: Any = object.__new__(RolloutSide)
    collects.starts = collects.policy = None
    assert not collects.advised
    collects.resumed(TrainSide.shared(train))  # type: ignore[arg-type]
    assert NoiseAdvice(config(*ROBOT), Group(), collects).take(
        {"train/signal_to_noise": 0.3, "train/signal_to_noise_error": 0.1}
    ) == ""  # fmt: skip


def test_it_waits_until_the_measurement_is_sure():
    found = config(*ROBOT)
    assert advised(found, 0.3, None) == []
    assert advised(found, 0.05, 0.2) == []
    (text,) = advised(found, 0.01, 0.04)
    assert "711 to more than 1024 would give 1" in text, "they may be enough"
    assert "For 711 or a few more: algorithm.rollout_epoch=45 " in text, (
        "more than the fewest is not known to be needed"
    )
    assert "algorithm.calculate_noise_scale" in MAY_CHANGE


@pytest.mark.parametrize("episodes", [65, 100.5, 213.3, 1000])
@pytest.mark.parametrize(
    ("base", "ranks", "step"),
    [
        (ROBOT, 1, 16),
        ((*ROBOT, "env.train.total_num_envs=4", "env.eval.total_num_envs=4", "algorithm.rollout_epoch=8"), 1, 8),
        ((*ROBOT, "env.train.total_num_envs=12", "env.eval.total_num_envs=12", "algorithm.rollout_epoch=6"), 3, 24),
        ((*ROBOT, "actor.channel.queue_size=200"), 2, 16),
        (TEXT, 1, 8),
        ((*TEXT, "data.drop_last=true", "env.train.total_num_envs=4", "env.eval.total_num_envs=4"), 4, 32),
    ],
)
def test_the_keys_are_taken_and_give_as_many_episodes(base, ranks, step, episodes):
    processes = Group(0, ranks, 0, ranks)
    keys = more_episodes(config(*base), processes, episodes)
    found = config(*base, *(f"{key}={value}" for key, value in keys.items()))
    check(found, processes)
    assert episodes <= schema.episodes_per_iteration(found) < episodes + step
    before = config(*base)
    records = found.actor.global_batch_size / before.actor.global_batch_size
    assert records == pytest.approx(
        schema.episodes_per_iteration(found) / schema.episodes_per_iteration(before), rel=0.01
    ), "as many optimizer steps as before"
    assert not found.data.drop_last
    assert not found.actor.channel.queue_size


def test_a_run_measures_and_advises_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("LITTLE", "SMALL", "SURELY_BELOW"):
        monkeypatch.setattr(noise_advice, name, 1e9)
    run: tuple[Any, ...] = (
        "env=fake", "model=fake", "tracker=jsonl", "runner.logger.report=false", "runner.device=cpu",
        "env.num_workers=1", "env.train.total_num_envs=4", "algorithm.rollout_epoch=2", "algorithm.group_size=2",
        "env.train.max_episode_steps=8", "env.train.reward_mode=dense", "runner.max_epochs=6",
        "runner.val_check_interval=-1", "runner.save_interval=1", "runner.experiment_name=run",
        "--config-dir", CONFIG,
    )  # fmt: skip
    assert train.main([*run]) == 0
    rows = [json.loads(line) for line in Path("runs/run/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert all("train/signal_to_noise" in row for row in rows)
    said = capsys.readouterr().out
    assert said.count("updates of 8 episodes: signal/noise") == 1
    assert train.main([*run, "runner.max_epochs=7"]) == 0
    assert "updates of 8 episodes" not in capsys.readouterr().out, "it was said before"
    assert len(rows) == 6
    assert ["train/signal_to_noise_error" in row for row in rows] == [False] * 4 + [True] * 2
    assert train.main([*run, "runner.experiment_name=off", "algorithm.calculate_noise_scale=false"]) == 0
    assert "noise" not in capsys.readouterr().out
    off = [json.loads(line) for line in Path("runs/off/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["train/loss"] for row in off] == [row["train/loss"] for row in rows]
