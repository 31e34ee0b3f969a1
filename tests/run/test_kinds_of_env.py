"""Envs of every declared kind train, evaluate and teach, through the command that users type."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embodied import train
from embodied.learn.origin import restore
from embodied.testing import FakePolicy
from embodied.tools import demos
from embodied.types import DiscreteAction

HERE = Path(__file__).parents[1]
RUN = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "runner.max_epochs=1", "runner.save_interval=1",
    "runner.val_check_interval=1", "algorithm.rollout_epoch=2", "env.train.max_episode_steps=10", "runner.seed=1",
    "env.eval.max_episode_steps=6", "env.train.reward_mode=dense", "env.num_workers=2", "runner.experiment_name=run",
    "--config-dir", str(HERE / "config"),
)  # fmt: skip
KINDS = {
    "discrete": ("num_actions=5", ("+actor.model.num_actions=5",)),
    "without pictures": ("pictures=false", ("env.eval.video_cfg.save_video=false",)),
    "not restorable": ("restorable=false", ()),
    "not repeatable": ("repeatable=false", ()),
    "its own sentences": ("sentences=true", ()),
    "its own sentences, a small OpenVLA-OFT": ("sentences=true", ("model=openvla_oft_tiny",)),
}


SLOW = ("not repeatable", "its own sentences, a small OpenVLA-OFT")


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind in SLOW)) for kind in KINDS])
def test_it_trains_and_evaluates(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    option, more = KINDS[kind]
    sides = [f"+env.{side}.{option}" for side in ("train", "eval")]
    assert train.main([*RUN, *sides, *more]) == 0
    (row,) = map(json.loads, Path("runs/run/metrics.jsonl").read_text(encoding="utf-8").splitlines())
    assert row["train/grad_norm"] > 0
    assert row["train/logprob_gap"] < 1e-4
    assert "eval/success_rate" in row
    env = restore(Path("runs/run/checkpoints/000001")).env
    assert isinstance(env.action, DiscreteAction) == (kind == "discrete")
    assert ("images" in env.obs) == (kind != "without pictures")


def test_discrete_actions_are_learnt_from_demonstrations(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sides = [f"+env.{side}.num_actions=8" for side in ("train", "eval")]
    config = ("--config-dir", str(HERE / "config"))
    made = ("env=fake", "episodes=6", "demos.path=keys", "env.num_workers=1", "env.train.horizon=60", *sides, *config)
    assert demos.main(made) == 0
    sft = (
        "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "data=keys", "runner.max_epochs=2",
        "sft.steps_per_iteration=60", "sft.val_samples=32", "actor.optim.lr=0.02", "actor.global_batch_size=16",
        "actor.micro_batch_size=16", "runner.experiment_name=sft", "runner.val_check_interval=-1",
        "+actor.model.num_actions=8", "+actor.model.num_action_chunks=1", *sides, *config,
    )  # fmt: skip
    assert train.main(sft, "sft") == 0
    rows = [*map(json.loads, Path("runs/sft/metrics.jsonl").read_text(encoding="utf-8").splitlines())]
    assert rows[-1]["sft/token_accuracy"] > rows[0]["sft/token_accuracy"] / 2 + 0.3


def test_sentences_of_the_observations_are_what_is_learnt_from_demonstrations(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sides = [f"+env.{side}.sentences=true" for side in ("train", "eval")]
    config = ("--config-dir", str(HERE / "config"))
    made = ("env=fake", "episodes=3", "demos.path=told", "env.num_workers=1", "env.train.horizon=60", *sides, *config)
    assert demos.main(made) == 0
    told: list[str] = []
    encode = FakePolicy.encode_instructions
    monkeypatch.setattr(
        FakePolicy, "encode_instructions", lambda self, texts: (told.extend(texts), encode(self, texts))[1]
    )
    sft = (
        "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "data=told", "runner.max_epochs=1",
        "sft.steps_per_iteration=4", "sft.val_samples=8", "actor.global_batch_size=16", "actor.micro_batch_size=16",
        "runner.experiment_name=sft", "runner.val_check_interval=-1", *sides, *config,
    )  # fmt: skip
    assert train.main(sft, "sft") == 0
    assert told
    assert all(text.startswith("from place ") for text in told)
