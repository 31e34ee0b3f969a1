"""A head that chooses the noise of a frozen flow policy: in this process, and through our own server."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from embodied.models.head import around_base
from embodied.models.served import build_policy
from serving_rig import ENV, ask, observation, serving

from embodied.client import wire
from embodied.errors import ConfigError, SpecMismatchError
from embodied.protocols import CHUNK, AnswersLater
from embodied.testing import FakePolicy, FlowPolicy, check_policy
from embodied.types import Sampling

FLOW = {"_target_": "embodied.testing.FlowPolicy", "one_step": True}
GREEDY = Sampling(do_sample=False)


def flow(seed: int = 0) -> FlowPolicy:
    policy = FlowPolicy(one_step=True, seed=seed)
    policy.bind(ENV)
    return policy


def head(base=FLOW, **keys):
    policy = around_base(base=base, head="noise", hidden=8, **keys)
    policy.bind(ENV)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(3)
        policy.actor.out.weight.normal_(0, 0.3)  # as after some training
    return policy


def seen(policy, rows: int = 3):
    random = np.random.default_rng(1)
    obs = {
        "images": torch.from_numpy(random.integers(0, 256, (rows, *ENV.obs["images"].shape), np.uint8)),
        "state": torch.from_numpy(random.standard_normal((rows, 8)).astype(np.float32)),
    }
    noise = torch.from_numpy(random.standard_normal((rows, *policy.spec.noise.shape)).astype(np.float32))
    return obs, noise


def act(policy, obs, noise, sampling):
    return policy.act(obs | dict(policy.encode_instructions([ENV.tasks[0]] * len(noise))), noise, sampling).fields


def test_it_keeps_the_promises_of_a_policy():
    check_policy(around_base(base=FLOW, head="noise", noise_width=7, hidden=8), ENV)


def test_the_base_begins_with_the_noise_that_the_actor_gives():
    policy, base = head(noise_width=7, noise_bound=2.5), flow()
    obs, noise = seen(policy)
    decided = act(policy, obs, noise, Sampling())
    assert decided[CHUNK].shape == (3, 7)
    first = torch.zeros(3, *base.spec.noise.shape)
    first[:, 0] = 2.5 * decided[CHUNK][:, None, :]
    assert torch.equal(decided["actions"], act(base, obs, first, GREEDY)["actions"])
    assert not torch.equal(decided["actions"], act(policy, obs, noise, GREEDY)["actions"])


def test_a_base_that_takes_no_noise_is_refused():
    with pytest.raises(SpecMismatchError, match="no flow policy") as found:
        head({"_target_": "embodied.testing.FakePolicy"})
    assert "residual" in found.value.remedy
    with pytest.raises(SpecMismatchError, match="no multiple"):
        head(noise_width=5)
    for keys in ({"noise_bound": 0}, {"noise_width": 0}):
        with pytest.raises(ConfigError):
            head(**keys)
    with serving(FakePolicy()) as served, pytest.raises(SpecMismatchError, match="no flow policy"):
        head({"url": f"ws://{served.address}"})


def test_through_a_server_it_decides_the_same():
    here = head(noise_width=7)
    with serving(flow(), fixed_shape=True, max_batch=1) as served:
        there = head({"url": f"ws://{served.address}"}, noise_width=7)
        assert isinstance(there, AnswersLater)
        try:
            obs, noise = seen(here)
            for sampling in (GREEDY, Sampling()):
                wanted, found = (act(one, obs, noise, sampling) for one in (here, there))
                for name, field in wanted.items():
                    torch.testing.assert_close(field, found[name], rtol=0, atol=1e-6, msg=name)
                for row in range(3):
                    one = {name: field[row].numpy() for name, field in obs.items()}
                    there.ask(row, one, ENV.tasks[0], noise[row].numpy(), sampling)
                answers: dict = {}
                while len(answers) < 3:
                    answers |= dict(there.answers(1.0))
                for row in range(3):
                    np.testing.assert_allclose(answers[row]["actions"], wanted["actions"][row], atol=1e-6)
        finally:
            there.base._crew.close()


def test_the_server_says_which_noise_it_takes_and_refuses_other():
    with serving(flow()) as served, served.connect() as socket:
        told = wire.unpack(socket.recv())["noise"]
        assert told == {"shape": [3, 4, 7], "kind": "normal", "uniform": 1, "greedy": 1}
        noise = np.zeros((3, 4, 7), np.float32)
        ask_ = lambda sent: ask(socket, {**observation(), wire.NOISE: sent})  # noqa: E731
        zero = ask_(noise)["actions"]
        noise[0] = 1
        assert not np.array_equal(zero, ask_(noise)["actions"])
        noise[0], noise[1] = 0, 1  # what a greedy decision does not read
        assert np.array_equal(zero, ask_(noise)["actions"])
        for wrong, said in ((noise[:2], "shape"), (noise - 0.5, "outside"), (noise * np.nan, "finite"),
                            (noise.astype(np.float64), "float64")):  # fmt: skip
            answer = ask_(wrong)
            text = answer if isinstance(answer, str) else answer["error"]
            assert said in str(text)


def test_an_older_server_is_refused():
    from embodied.models.served.dialects.openpi import told

    facts = {
        "server": "embodied",
        "action": {},
        "action_shape": [4, 7],
        "control_hz": 10,
        "cameras": [],
        "observation": {},
    }
    assert told(facts).noise is None
    assert build_policy.__kwdefaults__["send_noise"] is False
