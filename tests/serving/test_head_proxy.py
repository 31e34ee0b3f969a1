"""A head around a policy behind our server: it answers as that does at first, is a policy again, and is served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embodied.models.head import around_base
from saved_policies import Learner
from serving_rig import ENV, ask, export, observation, serving
from test_served_evaluation import CONFIG, EVALUATION, evaluate, server
from websockets.sync.client import connect

from embodied import train
from embodied.client import Client
from embodied.errors import ConfigError, PolicyChangedError, ServerLostError, printed
from embodied.learn.checkpoint.checkpoint import Checkpoints
from embodied.learn.checkpoint.exported import open_export, read_export
from embodied.learn.frozen import frozen_policy
from embodied.learn.origin import Origin
from embodied.protocols import AnswersLater, NamesWeights
from embodied.serving.loading import load
from embodied.testing import FakePolicy, FlowPolicy
from embodied.tools import export as tools_export
from embodied.types import Sampling

GREEDY, SAMPLED = Sampling(do_sample=False), Sampling()
AROUND = "embodied.models.head.around_base"
HIDDEN = 16


@contextmanager
def around(url: str, env: Any = ENV, **keys: Any) -> Iterator[Any]:
    base = {"url": url, "timeout_s": 5.0, "connect_s": 2.0, "reconnect_s": 3.0}
    policy = around_base(base=base, hidden=HIDDEN, **keys)
    try:
        policy.bind(env)
        yield policy
    finally:
        policy.base._crew.close()


def bound(policy: Any) -> Any:
    policy.bind(ENV)
    return policy


def seen(rows: int) -> tuple[list[dict[str, np.ndarray]], list[str]]:
    each = [observation(row) for row in range(rows)]
    return [{name: one[name] for name in ("images", "state")} for one in each], [
        ENV.tasks[row % 2] for row in range(rows)
    ]


def decided(policy: Any, sampling: Sampling = GREEDY, rows: int = 4) -> dict[str, torch.Tensor]:
    each, texts = seen(rows)
    obs = {name: torch.from_numpy(np.stack([one[name] for one in each])) for name in each[0]}
    noise = torch.from_numpy(np.random.default_rng(1).standard_normal((rows, *policy.spec.noise.shape), np.float32))
    return dict(policy.act(obs | dict(policy.encode_instructions(texts)), noise, sampling).fields)


def answered(policy: Any, sampling: Sampling, rows: int = 4) -> list[dict[str, np.ndarray]]:
    """The same, asked and answered later, in the opposite order."""
    each, texts = seen(rows)
    noise = np.random.default_rng(1).standard_normal((rows, *policy.spec.noise.shape), np.float32)
    for row in reversed(range(rows)):
        policy.ask(row, each[row], texts[row], noise[row], sampling)
    policy.ask(rows, each[0], texts[0], noise[0], sampling)
    policy.forget(rows)
    found: dict[int, dict[str, np.ndarray]] = {}
    while len(found) < rows:
        found |= dict(policy.answers(5.0))
    assert sorted(found) == [*range(rows)]
    return [found[row] for row in range(rows)]


def test_it_answers_as_the_policy_behind_it_until_it_has_learnt_something():
    own = bound(FakePolicy())
    with serving(own) as at, around(f"ws://{at.address}") as policy:
        assert isinstance(policy, AnswersLater)
        assert isinstance(policy, NamesWeights)
        direct = own.act  # greedy, without noise
        each, texts = seen(4)
        obs = {name: torch.from_numpy(np.stack([one[name] for one in each])) for name in each[0]}
        expected = direct(obs | dict(own.encode_instructions(texts)), torch.zeros(4, 28), GREEDY).fields["actions"]
        assert torch.equal(decided(policy)["actions"], expected)
        assert [one["actions"].tolist() for one in answered(policy, GREEDY)] == expected.tolist()
        with torch.no_grad():
            policy.actor.out.bias.fill_(0.5)
        assert not torch.equal(decided(policy)["actions"], expected)
        for sampling in (GREEDY, SAMPLED):
            acted = decided(policy, sampling)
            for row, one in enumerate(answered(policy, sampling)):
                assert {*one} == {*policy.spec.decision}
                for name, field in one.items():
                    assert np.allclose(field, acted[name][row].numpy(), atol=1e-6), name
        assert deepcopy(policy).base is policy.base
        policy.check()


def test_the_session_of_a_flow_policy_is_drawn_by_the_head():
    own = bound(FlowPolicy(one_step=True))
    with serving(own, fixed_shape=True) as at, around(f"ws://{at.address}") as policy:
        assert policy.spec.noise.greedy == policy.head.noise_size == 2
        one, other = (decided(policy)["actions"] for _ in range(2))
        assert torch.equal(one, other)


def saved(folder: Path, url: str, bias: float) -> Path:
    """The checkpoint of a head around the policy behind ``url``, with a change of its own."""
    base = {"url": url, "token_file": "a/secret"}
    with around(url) as policy:
        with torch.no_grad():
            policy.actor.out.bias.fill_(bias)
        origin = Origin(AROUND, {"base": base, "hidden": HIDDEN}, (), 0, ENV)
        return Checkpoints(folder / "checkpoints", 1, origin=origin.as_json()).save(Learner(policy), 1)


def test_it_is_served_around_a_base_that_the_command_names(tmp_path: Path):
    own = bound(FakePolicy())
    with serving(own) as at:
        url = f"ws://{at.address}"
        path = saved(tmp_path, url, 0.5)
        with pytest.raises(ConfigError, match="named by the folder alone") as caught:
            load(path)
        assert f"--base {url}" in printed(caught.value)
        with pytest.raises(ConfigError, match="named by the folder alone"):
            frozen_policy(str(path))
        policy, env, _ = load(path, base=url)
        head: Any = policy
        try:
            acted = decided(head)["actions"]
            with serving(head, env) as proxy, connect(f"ws://{proxy.address}", compression=None, proxy=None) as socket:
                socket.recv(timeout=10)
                for row in range(4):
                    message = observation(row) | {"prompt": ENV.tasks[row % 2]}
                    reply = ask(socket, message)
                    assert np.allclose(reply["actions"], acted[row].numpy(), atol=1e-6)
        finally:
            head.base._crew.close()
    with serving(bound(FakePolicy(seed=1))) as other, pytest.raises(PolicyChangedError, match="another policy"):
        load(path, base=f"ws://{other.address}")
    plain = export(tmp_path / "plain", 3)
    with pytest.raises(ConfigError, match="asks no server"):
        load(plain, base=url)


def test_its_export_knows_its_base_and_is_told_where_it_is_served(tmp_path: Path, capsys: Any):
    own, out = bound(FakePolicy()), tmp_path / "out"
    with serving(own) as at, serving(bound(FakePolicy(seed=1))) as other:
        url = f"ws://{at.address}"
        path = saved(tmp_path, url, 0.5)
        words = [str(path), "--out", str(out), "--observations", "0"]
        assert tools_export.main(words) == 2
        assert f"--base {url}" in capsys.readouterr().err
        assert tools_export.main([*words, "--base", f"ws://{other.address}"]) == 2
        assert "serves another policy" in capsys.readouterr().err
        assert not out.exists()
        assert tools_export.main([*words, "--base", url]) == 0
        assert "name the server by --base" in capsys.readouterr().out
        assert at.address not in json.dumps(dict(read_export(out).model))
        for file in out.iterdir():
            assert "a/secret" not in file.read_text(encoding="utf-8", errors="replace")
        with pytest.raises(ConfigError, match="not in the folder") as caught:
            load(out)
        assert "--base ws://HOST:PORT" in printed(caught.value)
        with pytest.raises(ConfigError, match="names no policy"):
            open_export(out)
        with pytest.raises(PolicyChangedError, match="another policy"):
            load(out, base=f"ws://{other.address}")
        here, there = load(path, base=url).policy, load(out, base=url).policy
        try:
            for sampling in (GREEDY, SAMPLED):
                wanted, found = decided(here, sampling), decided(there, sampling)
                for name, field in wanted.items():
                    assert torch.allclose(field, found[name], atol=1e-6), name
        finally:
            for policy in (here, there):
                policy.base._crew.close()  # type: ignore[attr-defined]
    with pytest.raises(ServerLostError):
        around_base(base={"url": url, "connect_s": 0.2}, hidden=HIDDEN, model_path=str(out))


TRAINING = (
    *EVALUATION, "experiment=null", "algorithm=sac", "model=head_residual", "actor.model.hidden=16",
    "algorithm.sac.learning_starts=4",
    "actor.global_batch_size=8", "actor.micro_batch_size=8", "algorithm.rollout_epoch=1", "env.train.total_num_envs=2",
    "env.train.max_episode_steps=8", "runner.save_interval=1", "runner.val_check_interval=-1",
)  # fmt: skip


@pytest.mark.slow
def test_a_served_policy_gets_a_head_in_a_training_and_is_evaluated_with_it(
    tmp_path: Path, monkeypatch: Any, capsys: Any
):
    monkeypatch.chdir(tmp_path)
    policy = export(tmp_path / "policy", 3)
    with server(policy) as (_, first):
        keys = (*TRAINING, "runner.experiment_name=head")
        assert train.main([*keys, f"actor.model.base.url=ws://127.0.0.1:{first}", "runner.max_epochs=1"]) == 0
    with server(policy) as (_, port), serving(bound(FakePolicy(seed=4))) as wrong:
        url, other = f"ws://127.0.0.1:{port}", f"ws://{wrong.address}"
        assert port != first
        assert train.main([*keys, f"actor.model.base.url={other}", "runner.max_epochs=2"]) != 0
        assert "serves another policy" in capsys.readouterr().err
        assert train.main([*keys, f"actor.model.base.url={url}", "runner.max_epochs=2"]) == 0, "its server has moved"
        path = tmp_path / "runs" / "head" / "checkpoints" / "000002"
        capsys.readouterr()
        again = ("model=head_residual", "actor.model.hidden=16", f"runner.ckpt_path={path}")
        assert evaluate("judged", *again, f"actor.model.base.url={url}") == 0
        assert evaluate("wrong", *again, f"actor.model.base.url={other}") != 0
        assert "serves another policy" in capsys.readouterr().err
        out = str(tmp_path / "out")
        env = ("env=fake", *(one for one in EVALUATION if one.startswith("env.")), "episodes=2")
        assert (
            tools_export.main([str(path), "--base", url, "--out", out, "--config-dir", CONFIG, "--verify", *env]) == 0
        ), capsys.readouterr()
        assert "verified: env=fake" in capsys.readouterr().out
        assert evaluate("folder", out, "--base", url) == 0
        assert evaluate("elsewhere", out, "--base", other) != 0
        assert "serves another policy" in capsys.readouterr().err
        assert evaluate("nowhere", out) == 2
        assert "actor.model.base names no policy" in capsys.readouterr().err
        with server(Path(out), 0, "--base", url) as (_, proxy), Client(f"ws://127.0.0.1:{proxy}") as client:
            assert client.infer(observation(0)).shape == (4, 7)
        refused = [*TRAINING, f"actor.model.base.url={url}", "algorithm=grpo"]
        assert train.main(refused) == 2
        assert "learns by soft actor-critic" in capsys.readouterr().err
