"""Learning from demonstrations by a loss of the policy's own: flow matching, with noise of the run's streams."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import on_ranks
from test_cloning_steps import CONFIG, demonstrations

from embodied import sft
from embodied.data.samples import order
from embodied.errors import ConfigError, SpecMismatchError
from embodied.learn.cloning import Cloner
from embodied.parallel.group import Group
from embodied.parallel.sharding import make_parallel
from embodied.random import Stream, generator
from embodied.schema import bind
from embodied.testing import FakeEnv, FakePolicy, FlowPolicy, check_policy
from embodied.tools import demos

CPU = torch.device("cpu")
HERE = Path(__file__).parents[1]
RUN = (
    "env=fake", "model=fake", "actor.model._target_=embodied.testing.FlowPolicy", "tracker=jsonl", "runner.device=cpu",
    "runner.val_check_interval=-1", "runner.save_interval=-1", "sft.val_samples=20", "actor.global_batch_size=16",
    "actor.micro_batch_size=6", "actor.optim.lr=0.02", "env.eval.video_cfg.save_video=false", "data=demos",
    "actor.lr_sched.lr_decay_style=constant", "--config-dir", str(HERE / "config"),
)  # fmt: skip


class Unable(FlowPolicy):
    """Offers neither tokens nor a loss."""

    demonstration_loss = None  # type: ignore[assignment]


class OfTokensByAction(Unable):
    """Encodes actions, and counts their log-probs by the action alone."""

    def encode_actions(self, actions):
        return {"chain": actions[:, None].expand(-1, 4, -1, -1)}


class Standardised(FlowPolicy):
    """Scales actions by the mean and standard deviation of the demonstrations."""

    values: dict[str, Any]

    def use_statistics(self, name, values):
        self.values = {"name": name, "action": {key: values["action"][key] for key in ("mean", "std")}}

    def extra_state(self):
        return {"statistics": json.dumps(self.values)} if hasattr(self, "values") else {}

    def load_extra_state(self, found):
        self.values = json.loads(found["statistics"])


class OneLoss(FlowPolicy):
    def demonstration_loss(self, records, actions, noise):
        return super().demonstration_loss(records, actions, noise).mean(dim=1)


class OfTheBatch(FlowPolicy):
    def demonstration_loss(self, records, actions, noise):
        loss = super().demonstration_loss(records, actions, noise)
        return loss - loss.mean()


class Draws(FlowPolicy):
    """Draws numbers of its own."""

    def demonstration_loss(self, records, actions, noise):
        return super().demonstration_loss(records, actions, torch.randn_like(noise))


class Detached(FlowPolicy):
    def demonstration_loss(self, records, actions, noise):
        return super().demonstration_loss(records, actions, noise).detach()


def make(
    policy: FlowPolicy | FakePolicy, world: Group | None = None, strategy: str = "replicate", **actor: Any
) -> Cloner:
    values = deepcopy(CONFIG)
    values["actor"] |= {"fsdp_config": {"strategy": strategy}, **actor}
    config, parallel = bind(values), None
    if world is not None:
        parallel = make_parallel(policy, config.actor.fsdp_config, config.algorithm, world, CPU)
    return Cloner(policy, FakeEnv().spec, config, *demonstrations(), CPU, parallel)


def run(name: str, *overrides: str) -> list[dict[str, float]]:
    assert sft.main([*RUN, f"runner.experiment_name={name}", *overrides]) == 0
    rows = [json.loads(line) for line in Path("runs", name, "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: row[key] for key in row if key.startswith("sft/") and not key.endswith("_per_s")} for row in rows]


def weights(iteration: int, name: str) -> bytes:
    return Path("runs", name, "checkpoints", f"{iteration:06d}", "__0_0.distcp").read_bytes()


@pytest.fixture
def in_demos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = ["env=fake", "episodes=20", "noise_std=0.5", "demos.path=demos", "env.num_workers=1", *RUN[-2:]]
    assert demos.main([*made, "env.train.horizon=60"]) == 0


@pytest.mark.usefixtures("in_demos")
def test_a_run_learns_repeats_to_the_bit_and_goes_on_to_the_bit(capsys):
    steps = "sft.steps_per_iteration=20"
    whole = run("whole", steps, "runner.max_epochs=4")
    assert whole[-1]["sft/loss"] < 0.6 * whole[0]["sft/loss"]
    assert whole[-1]["sft/val_loss"] < whole[0]["sft/val_loss"]
    assert "sft/token_accuracy" not in whole[0], "continuous actions are no tokens"
    assert run("again", steps, "runner.max_epochs=4") == whole
    assert weights(4, "again") == weights(4, "whole")
    run("parts", steps, "runner.max_epochs=2")
    assert run("parts", steps, "runner.max_epochs=4") == whole
    assert weights(4, "parts") == weights(4, "whole")
    assert run("other", steps, "runner.max_epochs=1", "runner.seed=5")[0]["sft/loss"] != whole[0]["sft/loss"]


def spied(cloner: Cloner) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Notes actions and noise of each call."""
    calls, loss = [], cloner.policy.demonstration_loss

    def spy(records, actions, noise):
        calls.append((actions, noise))
        return loss(records, actions, noise)

    cloner.policy.demonstration_loss = spy
    return calls


@pytest.mark.parametrize("micro", [1, 3, 4])
def test_a_sample_s_noise_is_a_function_of_seed_and_place_alone(micro):
    cloner = make(FlowPolicy(), micro_batch_size=micro)
    calls, shape = spied(cloner), cloner.policy.spec.noise.shape
    torch.manual_seed(micro)
    cloner.iterate(0)
    noise = torch.cat([noise for _, noise in calls]).numpy()
    drawn = [
        generator(11, Stream.DEMONSTRATION_NOISE, place, 0).standard_normal(shape, np.float32) for place in range(12)
    ]
    assert np.array_equal(noise, np.stack(drawn)), "of the twelve places of three steps, in their order"


def test_a_policy_may_be_given_mean_and_standard_deviation():
    cloner = make(Standardised())
    actions = np.concatenate([episode.actions for episode in demonstrations()[0]]).astype(np.float64)
    values = cloner.policy.values["action"]
    assert values == {"mean": pytest.approx(actions.mean(0)), "std": pytest.approx(actions.std(0))}
    assert cloner.notes == ["statistics of actions: mean and standard deviation of the demonstrations"]


def test_no_token_is_the_likeliest_of_a_policy_whose_greedy_decision_is_drawn():
    policy = FakePolicy()
    policy.spec = replace(policy.spec, noise=replace(policy.spec.noise, greedy=1))
    assert set(make(policy).validate()) == {"sft/clean_loss", "sft/val_loss"}
    assert "sft/token_accuracy" in make(FakePolicy()).validate()


def test_a_longer_chunk_is_taught_with_noise_of_its_own():
    cloner = make(FlowPolicy(one_step=True, horizon=6), micro_batch_size=4)
    calls = spied(cloner)
    cloner.iterate(0)
    chosen = order(len(cloner.samples), 11, 0, 4)
    actions, noise = calls[0]
    episodes = [episode.actions for episode in demonstrations()[0]]
    begins = np.cumsum([0, *map(len, episodes)])
    for row, sample in enumerate(chosen):
        episode = int(np.searchsorted(begins, sample, "right")) - 1
        rows = np.minimum(sample - begins[episode] + np.arange(6), len(episodes[episode]) - 1)
        assert np.array_equal(actions[row], episodes[episode][rows]), "six actions, the last of an episode repeated"
        drawn = cloner.policy.spec.demonstration_noise.draw(
            generator(11, Stream.DEMONSTRATION_NOISE, row, 0)
        )  # fmt: skip
        assert np.array_equal(noise[row], drawn)
    assert noise.shape == (4, 2, 6, 7)
    assert cloner.samples.mask(chosen).shape == (4, 6)
    assert {"sft/clean_loss", "sft/val_loss"} == set(cloner.validate())


def test_a_validation_has_the_same_noise_each_time_and_other_noise_than_training():
    cloner = make(FlowPolicy())
    calls = spied(cloner)
    first, count = cloner.validate(), len(calls)
    assert cloner.validate() == first
    assert set(first) == {"sft/clean_loss", "sft/val_loss"}
    for (_, one), (_, other) in zip(calls[:count], calls[count:], strict=True):
        assert torch.equal(one, other)
    seen = {row.tobytes() for _, noise in calls for row in noise.numpy()}
    calls.clear()
    cloner.iterate(0)
    assert not seen & {row.tobytes() for _, noise in calls for row in noise.numpy()}


def test_the_loss_is_the_mean_over_the_actions_that_were_taken():
    cloner = make(FlowPolicy(), micro_batch_size=4)
    loss, calls = cloner.policy.demonstration_loss, []
    cloner.policy.demonstration_loss = lambda *given: calls.append(loss(*given)) or calls[-1]
    cloner.iterate(0)
    total = 0.0
    for step, found in enumerate(calls):
        chosen = order(len(cloner.samples), 11, step * 4, 4)
        mask = torch.from_numpy(cloner.samples.mask(chosen))
        total += found[mask].mean().item() / 3
    assert any(not cloner.samples.mask(order(len(cloner.samples), 11, step * 4, 4)).all() for step in range(3))
    assert cloner.close_iteration(0)["sft/loss"] == pytest.approx(total, rel=1e-6)


CASES = {
    "replicate": ("replicate", {}),
    "replicate, odd batch": ("replicate", {"global_batch_size": 5, "micro_batch_size": 2}),
    "fsdp2": ("fsdp2", {}),
    "fsdp2, odd batch": ("fsdp2", {"global_batch_size": 5, "micro_batch_size": 2}),
}


def trained(world: Group | None, strategy: str, actor: dict[str, Any]) -> tuple[list[dict[str, float]], dict[str, Any]]:
    cloner, metrics = make(FlowPolicy(), world, strategy, **actor), []
    for iteration in range(2):
        cloner.iterate(iteration)
        metrics.append(cloner.validate() | cloner.close_iteration(iteration))
    tensors = {name: value.detach() for name, value in cloner.policy.named_parameters()}
    return metrics, {n: (t.full_tensor() if hasattr(t, "full_tensor") else t).clone() for n, t in tensors.items()}


def train_all(world: Group) -> dict[str, Any]:
    return {name: trained(world, *case) for name, case in CASES.items()}


def test_two_processes_learn_what_one_does():
    for rank in on_ranks(train_all):
        for name, case in CASES.items():
            (metrics, tensors), (expected, wanted) = rank[name], trained(None, "replicate", case[1])
            for got, row in zip(metrics, expected, strict=True):
                assert got == pytest.approx(row, rel=1e-4, abs=1e-6), name
            for parameter, values in wanted.items():
                torch.testing.assert_close(tensors[parameter], values, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("policy", "what"),
    [
        (Unable(), "Unable cannot learn from demonstrations"),
        (OfTokensByAction(), "counts its log-probs by action_level or chunk_level"),
    ],
)
def test_a_policy_that_offers_nothing_is_told_the_method_to_write(policy, what):
    with pytest.raises(ConfigError, match=what) as refused:
        make(policy)
    assert "demonstration_loss(records, actions, noise)" in str(refused.value)
    assert "add token_level" not in str(refused.value)


def test_a_loss_of_another_shape_is_refused_with_both_shapes():
    with pytest.raises(SpecMismatchError, match=r"of OneLoss: got shape \[3\], expected \[3, 4\]"):
        make(OneLoss()).iterate(0)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (OneLoss(), r"demonstration_loss\(\)': got float32 \(3,\), expected float32 \(3, 4\)"),
        (OfTheBatch(), "of one record: got another loss in a batch"),
        (Draws(), "under equal noise: got another loss"),
        (Detached(), "got no gradient"),
    ],
)
def test_the_check_of_policies_holds_the_loss_to_its_contract(policy, message):
    with pytest.raises(SpecMismatchError, match=message):
        check_policy(policy, FakeEnv().spec)
