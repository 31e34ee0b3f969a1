"""Which demonstrations a step of behaviour cloning learns from, and what its loss is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied.data.demonstrations import Demonstration
from embodied.data.samples import Samples, order
from embodied.learn.cloning import Cloner
from embodied.schema import bind
from embodied.testing import FakeEnv, FakePolicy

CONFIG = {
    "runner": {"logger": {"log_path": "x"}, "seed": 11},
    "env": {side: {"_target_": "x", "video_cfg": {"video_base_dir": "x"}} for side in ("train", "eval")},
    "actor": {"model": {"_target_": "x"}, "global_batch_size": 4, "micro_batch_size": 3, "optim": {"lr": 1e-3}},
    "sft": {"steps_per_iteration": 3, "val_samples": 16},
}


def demonstrations() -> tuple[list[Demonstration], list[Demonstration]]:
    """Two episodes to learn from and one that is held out."""
    env = FakeEnv().spec
    images, state = env.obs["images"].shape, env.obs["state"].shape
    random = np.random.default_rng(0)

    def episode(length: int) -> Demonstration:
        actions = random.uniform(-1, 1, (length, 7)).astype(np.float32)
        fields = {"state": random.normal(size=(length, *state)).astype(np.float32)}
        return Demonstration(env.tasks[0], actions, fields, lambda t: np.full(images, t, np.uint8))

    return [episode(6), episode(7)], [episode(5)]


@pytest.fixture
def cloner() -> Cloner:
    train, held_out = demonstrations()
    return Cloner(FakePolicy(), FakeEnv().spec, bind(CONFIG), train, held_out, torch.device("cpu"))


def test_the_steps_take_the_samples_in_their_order_one_batch_after_the_other(cloner, monkeypatch):
    taken, batch = [], Samples.batch
    monkeypatch.setattr(Samples, "batch", lambda self, chosen: (taken.extend(chosen), batch(self, chosen))[1])
    for iteration in range(2):
        cloner.iterate(iteration)
        cloner.close_iteration(iteration)
    assert len(taken) == 2 * 3 * 4
    assert taken == order(len(cloner.samples), 11, 0, 24).tolist()


def test_an_iteration_counts_its_steps_and_no_bad_update(cloner):
    cloner.iterate(1)
    assert cloner.steps_done == 3
    metrics = cloner.close_iteration(1)
    assert cloner.steps_done == 0
    assert (metrics["sft/optimizer_steps"], metrics["sft/bad_updates"]) == (3, 0)
    assert metrics["sft/epoch"] == pytest.approx(2 * 3 * 4 / 13)
    assert cloner.weight_version == 3


class Numbers(FakePolicy):
    """Says that its decisions are no integers, as a policy of continuous actions does."""

    def __init__(self) -> None:
        super().__init__()
        self.spec = replace(self.spec, categories={})


def test_dropout_does_not_disturb_a_validation(monkeypatch):
    train, held_out = demonstrations()
    cloner, seen = Cloner(FakePolicy(), FakeEnv().spec, bind(CONFIG), train, held_out, torch.device("cpu")), []
    evaluate = cloner.policy.evaluate
    monkeypatch.setattr(cloner.policy, "evaluate", lambda *a: seen.append(cloner.policy.training) or evaluate(*a))
    cloner.validate()
    assert seen
    assert not any(seen)
    assert cloner.policy.training


def test_a_policy_without_categories_is_validated_by_its_loss_alone():
    train, held_out = demonstrations()
    cloner = Cloner(Numbers(), FakeEnv().spec, bind(CONFIG), train, held_out, torch.device("cpu"))
    cloner.iterate(0)
    found = cloner.validate()
    assert set(found) == {"sft/clean_loss", "sft/val_loss"}
    assert found["sft/val_loss"] > 0
