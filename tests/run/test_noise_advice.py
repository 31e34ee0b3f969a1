"""The advice on how many episodes an iteration should have: when, with which numbers, and keys that are taken."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from embodied import schema, train
from embodied.parallel.group import Group
from embodied.run.build.shares import check
from embodied.run.training import noise_advice
from embodied.run.training.noise_advice import AFTER, NoiseAdvice, more_episodes
from embodied.schema.compose.compose import compose

CONFIG = str(Path(__file__).parents[1] / "config")
ROBOT = ("env=fake", "model=fake", "env.train.total_num_envs=16", "env.eval.total_num_envs=16",
         "algorithm.group_size=8", "algorithm.rollout_epoch=4")  # fmt: skip
TEXT = ("env=fake_text", "model=fake_text", "runner.task_type=math", "algorithm.group_size=8",
        "algorithm.rollout_epoch=1", "data.rollout_batch_size=8")  # fmt: skip


def config(*overrides: str) -> schema.Config:
    return compose([*overrides], "train", [CONFIG]).config


def advised(config: schema.Config, signal: float, times: int = AFTER) -> list[str]:
    advice = NoiseAdvice(config, Group(), SimpleNamespace())  # type: ignore[arg-type]
    said = [advice.take({"train/signal_to_noise": signal}) for _ in range(times)]
    return [text for text in said if text]


def test_it_is_said_once_with_numbers_and_keys():
    found = config(*ROBOT)
    assert advised(found, 0.3, AFTER - 1) == []
    assert advised(found, 0.3, 4 * AFTER) == [
        "  updates of 64 episodes: signal/noise 0.3; about 213 would give 1: algorithm.rollout_epoch=14"
    ]
    assert advised(found, 0.6, 4 * AFTER) == []
    (text,) = advised(found, 0.0)
    assert "16 times as many would not give 1" in text
    assert "algorithm.rollout_epoch" not in text


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
    assert not found.data.drop_last
    assert not found.actor.channel.queue_size


def test_a_run_measures_and_advises_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(noise_advice, "AFTER", 2)
    monkeypatch.setattr(noise_advice, "LITTLE", 1e9)
    run: tuple[Any, ...] = (
        "env=fake", "model=fake", "tracker=jsonl", "runner.logger.report=false", "runner.device=cpu",
        "env.num_workers=1", "env.train.total_num_envs=4", "algorithm.rollout_epoch=2", "algorithm.group_size=2",
        "env.train.max_episode_steps=8", "env.train.reward_mode=dense", "runner.max_epochs=4",
        "runner.val_check_interval=-1", "runner.save_interval=-1", "runner.experiment_name=run",
        "--config-dir", CONFIG,
    )  # fmt: skip
    assert train.main([*run]) == 0
    rows = [json.loads(line) for line in Path("runs/run/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert all("train/signal_to_noise" in row for row in rows)
    said = capsys.readouterr().out
    assert said.count("updates of 8 episodes: signal/noise") == 1
    assert train.main([*run, "runner.experiment_name=off", "algorithm.calculate_noise_scale=false"]) == 0
    assert "noise" not in capsys.readouterr().out
    off = [json.loads(line) for line in Path("runs/off/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["train/loss"] for row in off] == [row["train/loss"] for row in rows]
