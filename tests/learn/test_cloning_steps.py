"""Which demonstrations a step of behaviour cloning learns from, and what its loss is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied import instructions
from embodied.data.demonstrations import Demonstration
from embodied.data.samples import Samples, order
from embodied.data.texts.text import DemonstratedAnswer
from embodied.errors import CheckpointError, Stopped
from embodied.learn.checksums import checksums_of_cloned
from embodied.learn.cloning import Cloner
from embodied.learn.watch import Passed, Watch
from embodied.schema import bind
from embodied.testing import FakeEnv, FakePolicy
from embodied.types import EnvSpec

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


def test_the_policy_is_given_every_instruction_of_an_episode():
    (first, *rest), held_out = demonstrations()
    told = np.zeros((len(first), 8), np.uint8)
    for t, row in enumerate(told):
        instructions.write("push" if t < 3 else "pull", row)
    changing = replace(first, instruction="push", fields={**first.fields, instructions.FIELD: told})
    given: list[tuple[str, ...]] = []

    class Policy(FakePolicy):
        def bind(self, env: EnvSpec) -> None:
            given.append(env.tasks)
            super().bind(env)

    cloner = Cloner(Policy(), FakeEnv().spec, bind(CONFIG), [changing, *rest], held_out, torch.device("cpu"))
    assert given[-1] == ("push", "pull", FakeEnv().spec.tasks[0])
    assert cloner.samples.instructions(np.array([2, 3, 6])) == ["push", "pull", FakeEnv().spec.tasks[0]]


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


def test_batches_that_are_read_ahead_give_the_same_bits(monkeypatch):
    readers, batch = [], Samples.batch

    def read(samples, chosen):
        readers.append((threading.current_thread().name.startswith("read-ahead"), tuple(chosen)))
        return batch(samples, chosen)

    monkeypatch.setattr(Samples, "batch", read)
    found = []
    for depth in (None, 0, 2):
        made = bind({**CONFIG, "data": {"prefetch_factor": depth}})
        cloner = Cloner(FakePolicy(), FakeEnv().spec, made, *demonstrations(), torch.device("cpu"))
        metrics = []
        for iteration in range(2):
            cloner.iterate(iteration)
            metrics.append((cloner.validate(), cloner.close_iteration(iteration)))
        weights = torch.cat([p.detach().flatten() for _, p in cloner.policy.named_parameters()])
        found.append((metrics, weights, [*readers]))
        readers.clear()
    (usual, weights, alone), nothing, (ahead, same, threads) = found
    assert usual == ahead == nothing[0]
    assert torch.equal(weights, same)
    assert not any(thread for thread, _ in [*alone, *nothing[2]])
    assert all(thread for thread, _ in threads)
    assert sorted(chosen for _, chosen in threads) == sorted(chosen for _, chosen in alone), "each once"


def test_a_stop_ends_what_is_read_ahead():
    made = bind({**CONFIG, "data": {"prefetch_factor": 3}})
    cloner = Cloner(FakePolicy(), FakeEnv().spec, made, *demonstrations(), torch.device("cpu"))
    with pytest.raises(Stopped):
        cloner.iterate(0, stopping_after(2))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("read-ahead")]
    whole = Cloner(FakePolicy(), FakeEnv().spec, bind(CONFIG), *demonstrations(), torch.device("cpu"))
    whole.iterate(0)
    cloner.iterate(0)
    assert cloner.steps_done == 3
    for (_, one), (_, other) in zip(cloner.policy.named_parameters(), whole.policy.named_parameters(), strict=True):
        assert torch.equal(one, other)


def stopping_after(passes: int) -> Watch:
    @contextmanager
    def watch(name: str, total: int) -> Iterator[Passed]:
        left = [passes]

        def passed(records: int) -> bool:
            left[0] -= 1
            return left[0] > 0

        yield passed

    return watch


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


def goes_on(before: list[Any], now: list[Any], pictures: bool = True) -> str:
    """Returns what is said when a run that has learnt from some demonstrations goes on with others; "" if nothing."""
    env = FakeEnv(pictures=pictures).spec
    state = Cloner(FakePolicy(), env, bind(CONFIG), before, [], torch.device("cpu")).state_dict()
    again = Cloner(FakePolicy(), env, bind(CONFIG), now, [], torch.device("cpu"))
    try:
        again.load_state_dict(state)
    except CheckpointError as error:
        return error.message
    return ""


def test_a_run_does_not_go_on_with_other_demonstrations():
    (first, second), (other,) = demonstrations()
    repainted = replace(first, pictures=lambda t: np.full(FakeEnv().spec.obs["images"].shape, t + (t == 5), np.uint8))
    nudged = first.actions.copy()
    nudged[2, 1] += 1e-6
    numbers, both = "observations or instructions have changed", "or instructions and their pictures have changed"
    assert goes_on([first, second], [first, second]) == ""
    assert numbers in goes_on([first, second], [first, replace(second, instruction="other words")])
    assert numbers in goes_on([first, second], [replace(first, actions=nudged), second])
    assert both in goes_on([first, second], [first, second, other])
    assert both in goes_on([first, second], [second, first])
    assert "learnt from: their pictures have changed" in goes_on([first, second], [repainted, second])
    assert goes_on([first, second], [repainted, second], pictures=False) == "", "which are not read"


def test_a_checkpoint_of_an_earlier_version_says_nothing_of_demonstrations(cloner):
    state = {name: value for name, value in cloner.state_dict().items() if not name.startswith("demonstrat")}
    assert len(state) == len(cloner.state_dict()) - 2
    cloner.load_state_dict(state)


def test_of_very_many_cloned_pictures_some_are_summed(monkeypatch):
    monkeypatch.setattr("embodied.learn.checksums.SUMMED_STEPS", 3)
    episodes, read = demonstrations()[0], []
    shown = [replace(one, pictures=lambda t, n=n: read.append((n, t)) or np.zeros(1)) for n, one in enumerate(episodes)]
    checksums_of_cloned(shown, pictures=True)
    assert read == [(0, 0), (0, 5), (1, 4)]  # every fifth of 6 + 7


def test_answers_and_their_pictures_are_summed():
    one = DemonstratedAnswer("a <image>", "b", ({"bytes": b"png", "path": "x"},))
    kinds = [one, replace(one, response="c"), replace(one, instruction="a <image>b", response="")]
    assert len({checksums_of_cloned([kind], pictures=True).numbers for kind in kinds}) == 3
    pictures = [({"bytes": b"png2", "path": "x"},), ("x.png",), (Path("y.png"),), ()]
    kinds = [one, *(replace(one, pictures=each) for each in pictures)]
    assert len({checksums_of_cloned([kind], pictures=True).pictures for kind in kinds}) == 5
    assert {checksums_of_cloned([kind], pictures=False).pictures for kind in kinds} == {0}
