"""A flow policy whose greedy decision is the ODE from drawn noise, and of whose steps one, chosen by a uniform number,
adds noise: each place that hands over noise, and the distribution in closed form."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embodied.models.shared.change import change
from test_flow import CPU, RUN

from embodied import eval as evaluation
from embodied import train
from embodied.errors import SpecMismatchError
from embodied.evaluation.compare import compare
from embodied.evaluation.results import read
from embodied.export.observations import GREEDY
from embodied.export.verify import EXACT, PolicyRun, agreement
from embodied.protocols import Examples
from embodied.random import Stream, generator
from embodied.runtime.policy.policy_port import Draw, Request
from embodied.testing import FakeEnv, FlowPolicy, check_policy
from embodied.types import Gaussian, Noise, Sampling

ENV = FakeEnv().spec
ONE_STEP = (*RUN, "+actor.model.one_step=true", "algorithm.logprob_type=action_level")


class ReadsMore(FlowPolicy):
    """Its greedy decision reads numbers that it does not declare."""

    def act(self, obs, noise, sampling):
        return super().act(obs, noise[:, [1, 0, 2]], sampling)


class FromZeros(FlowPolicy):
    """Its greedy decision reads none of the numbers that it declares."""

    def act(self, obs, noise, sampling):
        return super().act(obs, noise if sampling.do_sample else 0 * noise, sampling)


class Narrower(FlowPolicy):
    """Gives narrower or wider Gaussians than it draws from."""

    def evaluate(self, records, sampling, distribution=False):
        found = super().evaluate(records, sampling, distribution)
        if found.distribution is None:
            return found
        return replace(found, distribution=self.altered(found.distribution))

    def altered(self, gaussian: Gaussian) -> Gaussian:
        return gaussian._replace(std=4 * gaussian.std)


class NoWidth(Narrower):
    def altered(self, gaussian: Gaussian) -> Gaussian:
        return gaussian._replace(std=0 * gaussian.std)


class OfTheChunk(Narrower):
    def altered(self, gaussian: Gaussian) -> Gaussian:
        return Gaussian(gaussian.mean[:, :1], gaussian.std[:, :1])


class ReadsBeyond(FlowPolicy):
    """Reads more than what is left of a chunk."""

    def act_after(self, obs, noise, sampling, left_over, left, delay):
        return super().act_after(obs, noise, sampling, left_over, left + 1, delay)


def counting(**changes: int) -> FlowPolicy:
    policy = FlowPolicy(one_step=True)
    policy.spec = replace(policy.spec, noise=replace(policy.spec.noise, **changes))
    return policy


@pytest.mark.parametrize("horizon", [None, 6])
def test_it_keeps_the_contract(horizon):
    check_policy(FlowPolicy(one_step=True, horizon=horizon), ENV)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (ReadsMore(one_step=True), r"do_sample=False under other noise behind the first 1 entries, spec.noise.greedy"),
        (FromZeros(one_step=True), r"do_sample=False under other noise in the first 1 entries(.|\n)*got the same"),
        (counting(greedy=0), "actions with do_sample=False under other noise: got others"),
        (counting(greedy=4), "greedy of a Noise: got 4, expected 0 to 3"),
        (counting(uniform=-1), "uniform of a Noise: got -1, expected 0 to 3"),
        (Narrower(one_step=True), r"log-probs: got 1.4 above the Gaussians' largest density"),
        (ReadsBeyond(one_step=True), r"act_after\(\) with other numbers behind what is left"),
        (NoWidth(one_step=True), "std of the Gaussians: got 0, expected numbers above 0"),
        (OfTheChunk(one_step=True), "mean and std of the Gaussians"),
    ],
)
def test_the_check_of_policies_holds_it_to_what_it_declares(policy, message):
    with pytest.raises(SpecMismatchError, match=message):
        check_policy(policy, ENV)


def test_noise_may_be_of_both_kinds():
    noise = Noise((6, 500), "normal", uniform=2, greedy=1)
    drawn = noise.draw(generator(3, Stream.EVAL_NOISE, 0, 0))
    same = generator(3, Stream.EVAL_NOISE, 0, 0).standard_normal((6, 500), dtype=np.float32)
    assert np.array_equal(drawn[:4], same[:4])
    assert drawn.dtype == np.float32
    assert (drawn[:4] < 0).any()
    assert ((drawn[4:] >= 0) & (drawn[4:] < 1)).all()
    assert abs(drawn[4:].mean() - 0.5) < 0.05
    one_kind = replace(noise, uniform=0).draw(generator(3, Stream.EVAL_NOISE, 0, 0))
    assert np.array_equal(one_kind, same), "the bits that it had before there were two kinds"


def bound(**options: Any) -> FlowPolicy:
    policy = FlowPolicy(one_step=True, **options)
    policy.bind(ENV)
    return policy


def seen(rows: int) -> dict[str, torch.Tensor]:
    random = np.random.default_rng(1)
    return {name: torch.from_numpy(random.random((rows, *spec.shape)).astype(spec.dtype)) for name, spec in
            ENV.obs.items()}  # fmt: skip


def noise_of(policy: FlowPolicy, draw: Draw, asked: list[Request]) -> torch.Tensor:
    return torch.from_numpy(draw.noise_of(asked, policy.spec.noise))


def test_the_uniform_number_chooses_the_step_and_the_record_s_log_prob_is_the_step_s():
    policy, rows = bound(), 40
    obs = seen(rows) | policy.encode_instructions([ENV.tasks[0]] * rows)
    asked = [Request(0, 0, episode, 0) for episode in range(rows)]
    drawn = noise_of(policy, Draw(Sampling(), 0, Stream.TRAIN_NOISE), asked)
    fields = policy.act(obs, drawn, Sampling()).fields
    assert set(fields["step"].tolist()) == {0, 1, 2}
    assert fields["step"].tolist() == [int(3 * number) for number in drawn[:, 2, 0, 0]]
    before, after = fields["chain"].unbind(1)
    link = drawn[:, 0]
    for step in range(3):
        mean, here = policy._mean(obs, link, step), fields["step"] == step
        link = torch.where(here[:, None, None], mean + 0.2 * drawn[:, 1], mean)
        torch.testing.assert_close(after[here], link[here])
        torch.testing.assert_close(fields["logprobs"][here], torch.distributions.Normal(mean, 0.2).log_prob(link)[here])
    torch.testing.assert_close(fields["actions"], policy._actions(link))
    assert not torch.equal(before, after)


def test_exports_are_compared_from_the_noise_of_the_episodes():
    """Greedy actions agree only if the second policy is given the noise that the first one had."""
    policy, draw = bound(), Draw(GREEDY, 5, Stream.EVAL_NOISE)
    asked = [Request(0, 0, episode, t) for episode in range(2) for t in range(3)]
    obs = seen(6)
    fields = policy.act(
        obs | policy.encode_instructions([ENV.tasks[0]] * 6), noise_of(policy, draw, asked), GREEDY
    ).fields
    examples = Examples((), {name: values.numpy() for name, values in obs.items()}, (ENV.tasks[0],) * 6)
    owners = np.array([0, 0, 0, 1, 1, 1])
    run = PolicyRun([], examples, fields["actions"].numpy(), asked, draw, owners, [])
    found = agreement(bound(), run, ENV, EXACT, 4, CPU)
    assert (found.share, found.observations) == (1.0, 6)
    other = replace(run, draw=replace(draw, seed=6))
    assert agreement(bound(), other, ENV, EXACT, 4, CPU).share < 0.1


def test_two_forms_of_a_policy_are_compared_from_drawn_noise():
    class Zeros(FlowPolicy):
        def act(self, obs, noise, sampling):
            assert noise[:, 0].abs().min() > 0
            return super().act(obs, noise * 0 if self.zero else noise, sampling)

    policies = [Zeros(one_step=True) for _ in range(3)]
    examples = Examples((), {name: values.numpy() for name, values in seen(6).items()}, (ENV.tasks[0],) * 6)
    for policy, zero in zip(policies, (False, False, True), strict=True):
        policy.bind(ENV)
        policy.zero = zero
    assert change(policies[0], policies[1], examples, CPU).action_largest == 0
    assert change(policies[0], policies[2], examples, CPU).action_largest > 0.1


def test_a_run_learns_with_the_kl_of_gaussians_and_evaluations_draw_and_name_the_sampler(
    tmp_path, monkeypatch, capsys
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    exact = ("algorithm.kl_beta=0.1", "algorithm.kl_penalty_type=full", "runner.val_check_interval=-1")
    assert train.main([*ONE_STEP, *exact]) == 0
    rows = [json.loads(line) for line in Path("runs/run/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows[-1]["train/kl_reference"] > 0
    own = [*(one for one in ONE_STEP if not one.startswith("runner.experiment_name")), "env.eval.reward_mode=dense"]
    again = ("algorithm.val_group_size=3", "env.eval.episodes_per_task=2", "runner.max_epochs=1")
    assert evaluation.main([*own, *again, "runner.experiment_name=ode"]) == 0
    found = json.loads(Path("runs/ode/eval/000000.json").read_text(encoding="utf-8"))
    sampling = {"sampler": "ode", "num_steps": 3, "greedy_noise": True}
    assert sampling.items() <= found["conditions"]["sampling"].items()
    assert sampling.items() <= found["protocol"]["keys"]["sampling"].items()
    returns = [one["return"] for one in found["episodes"]]
    assert len(set(returns)) == len(returns) == 12, "greedy episodes of a start have noise of their own"
    assert evaluation.main([*own, "runner.experiment_name=both", "algorithm.val_sampling_params.do_sample=both"]) == 0
    assert "under the conditions above" not in capsys.readouterr().out, "that they are drawn otherwise is meant"
    both = [read(f"runs/both/eval/000000{ending}.json") for ending in ("", "-sampled")]
    assert {"sampling.sampler"} <= {row.key for row in compare(*both).differing}
