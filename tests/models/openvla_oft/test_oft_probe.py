"""The probe: which attention mask fits a checkpoint, and warnings at a dead prior; reached in a run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from embodied.models.openvla_oft import Settings
from embodied.models.openvla_oft.build import _is_open
from embodied.models.openvla_oft.probe import Reading, compare_masks, look, read, settle_attention, warnings

from embodied import train
from embodied.types import Sampling


def teach(policy, obs, steps: int = 40):
    """Raise the likelihood of one action chunk per observation until the prior is sharp; the tokens."""
    tokens = 768 + torch.randint(0, 256, (1, 56), generator=torch.Generator().manual_seed(0)).expand(
        len(obs["state"]), 56
    )
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        (-policy.evaluate({**obs, "action_tokens": tokens}, Sampling()).logprobs.mean()).backward()
        optimizer.step()
    return tokens


@pytest.fixture(scope="module")
def causal_folder(tmp_path_factory, request):
    """A checkpoint that was trained under the causal mask, without a sidecar that says so, and its demonstrations."""
    make, observe = request.getfixturevalue("make_policy"), request.getfixturevalue("make_observations")
    policy, obs = make(attention="causal"), observe(4)
    tokens = teach(policy, obs)
    folder = tmp_path_factory.mktemp("causal") / "hf"
    policy.save(folder)
    forget_attention(folder)
    return folder, tokens


def forget_attention(folder) -> None:
    sidecar = json.loads((folder / "policy.json").read_text(encoding="utf-8"))
    sidecar["attention_open"] = True
    (folder / "policy.json").write_text(json.dumps(sidecar), encoding="utf-8")


def test_the_mask_of_the_training_is_found_by_entropy(causal_folder, make, observe) -> None:
    policy = make(model_path=str(causal_folder[0]), attention="auto", size=None)
    assert policy.parts.now.attention_open
    assert "to be probed" in policy.describe()["attention"]
    lines = policy.probe(observe(4))
    assert policy.model.net.attention == "causal"
    assert not policy.parts.now.attention_open
    assert "causal fits" in lines[0]
    assert "bidirectional" in lines[0]
    assert policy.probe(observe(4)) == look(policy.parts, policy.inputs(observe(4))), "nothing is left to settle"


def test_the_mask_of_the_training_is_found_by_demonstrations(causal_folder, make, observe) -> None:
    folder, tokens = causal_folder
    policy = make(model_path=str(folder), attention="auto", size=None)
    readings = compare_masks(policy.parts, policy.inputs(observe(4)), tokens)
    assert policy.model.net.attention == "causal", "the sidecar's stays"
    assert readings["causal"].nll < 0.5 * readings["bidirectional"].nll
    assert "negative log-likelihood" in settle_attention(policy.parts, policy.inputs(observe(4)), tokens)


def test_a_probed_policy_acts_like_one_that_was_told(causal_folder, make, observe, noise) -> None:
    told = make(model_path=str(causal_folder[0]), attention="causal")
    probed = make(model_path=str(causal_folder[0]), attention="auto")
    probed.probe(observe(4))
    one, two = (p.act(observe(4), noise(4), Sampling()).fields["logprobs"] for p in (told, probed))
    assert torch.equal(one, two)


def test_the_result_is_recorded_in_the_sidecar(causal_folder, make, observe, tmp_path) -> None:
    policy = make(model_path=str(causal_folder[0]), attention="auto")
    policy.probe(observe(4))
    policy.save(tmp_path / "hf")
    sidecar = json.loads((tmp_path / "hf" / "policy.json").read_text(encoding="utf-8"))
    assert sidecar["net"]["attention"] == "causal"
    assert sidecar["attention_probe"]["causal"] < sidecar["attention_probe"]["bidirectional"]
    again = make(model_path=str(tmp_path / "hf"), attention="auto")
    assert again.model.net.attention == "causal"
    assert not again.parts.now.attention_open


def test_a_resumed_run_keeps_the_mask_and_does_not_look_again(causal_folder, make, observe) -> None:
    """Later weights and other observations could tell another story, or none."""
    first, second = (make(model_path=str(causal_folder[0]), attention="auto") for _ in range(2))
    assert "attention" not in first.extra_state()
    first.probe(observe(4))
    assert first.extra_state()["attention"] == "causal"
    second.load_extra_state(first.extra_state())
    assert second.model.net.attention == "causal"
    assert second.extra_state() == first.extra_state()
    assert not [line for line in second.probe(observe(4)) if "attention" in line]
    told = make(model_path=str(causal_folder[0]), attention="causal")
    told.load_extra_state({"attention": "bidirectional"})
    assert told.model.net.attention == "causal", "what was asked for by name stays"
    assert "attention" not in told.extra_state()


@pytest.mark.parametrize(
    ("sidecar", "is_open"),
    [({}, True), ({"net": {}}, False), ({"net": {}, "attention_open": True}, True), ({"attention_open": False}, False)],
)
def test_the_mask_is_open_unless_a_sidecar_tells_it(sidecar, is_open) -> None:
    """One that has the network's sizes was written with the mask of its training."""
    folder = SimpleNamespace(policy=sidecar)
    assert _is_open(Settings.from_kwargs({"attention": "auto"}), folder) == is_open
    assert not _is_open(Settings.from_kwargs({"attention": "causal"}), folder)
    assert not _is_open(Settings.from_kwargs({"attention": "auto"}), None)


def test_random_weights_cannot_tell_and_say_so(make, observe, tmp_path) -> None:
    make().save(tmp_path / "hf")
    forget_attention(tmp_path / "hf")
    policy = make(model_path=str(tmp_path / "hf"), attention="auto")
    lines = policy.probe(observe(4))
    assert "cannot tell" in lines[0]
    assert policy.parts.now.attention_open
    assert policy.model.net.attention == "bidirectional"


def test_a_dead_prior_is_warned_about_unless_told_not_to(make, observe, tmp_path) -> None:
    assert make().probe(observe(2)) == [], "random weights on purpose"
    make().save(tmp_path / "hf")
    lines = make(model_path=str(tmp_path / "hf")).probe(observe(2))
    assert any("of the probability at the action positions" in line for line in lines)
    assert make(model_path=str(tmp_path / "hf"), probe=False).probe(observe(2)) == []


def test_a_live_prior_is_silent(causal_folder, make, observe) -> None:
    policy = make(model_path=str(causal_folder[0]), attention="causal")
    assert read(policy.parts, policy.inputs(observe(4))).entropy < 2.0
    assert not any("nearly uniform" in line for line in policy.probe(observe(4)))


def test_mass_and_entropy_against_the_whole_vocabulary(make, observe) -> None:
    policy = make()
    reading = read(policy.parts, policy.inputs(observe(2)))
    out = policy.parts.read_out(policy.inputs(observe(2)))
    logits = policy.model.language_model.lm_head(out.hidden)[..., :1024]
    assert reading.inside == pytest.approx(logits.softmax(-1)[..., 768:].sum(-1).mean().item(), abs=1e-6)
    assert 0 < reading.entropy < math.log(256)


RUN = (
    "env=fake", "model=openvla_oft_tiny", "tracker=jsonl", "runner.device=cpu", "runner.experiment_name=run",
    "runner.only_eval=true", "env.train.total_num_envs=2", "env.eval.total_num_envs=2", "env.eval.max_episode_steps=6",
    "env.eval.video_cfg.save_video=false", "rollout.enforce_eager=false", "actor.model.use_proprio=false",
    "actor.model.is_lora=false", "actor.model.lora_modules_to_save=null", "actor.model.attention=auto",
    "actor.model.size=null", "actor.model.image_size=null",
)  # fmt: skip


def test_a_run_prints_what_the_probe_found(causal_folder, tmp_path, monkeypatch, capsys) -> None:
    """Once, on the first observations of real simulators (here: fake ones in worker processes)."""
    monkeypatch.chdir(tmp_path)
    forget_attention(causal_folder[0])
    folder, configs = f"actor.model.model_path={causal_folder[0]}", str(Path(__file__).parents[2] / "config")
    assert train.main([*RUN, folder, "--config-dir", configs]) == 0
    said = capsys.readouterr().out
    assert said.count("causal fits the checkpoint") + said.count("attention: auto cannot tell") == 1
    assert "rollout.enforce_eager=false changes nothing on cpu" in said


@pytest.mark.parametrize(
    ("reading", "said"),
    [
        (Reading(inside=0.99, entropy=2.0), []),
        (Reading(inside=0.02, entropy=2.0), ["2.0 % of the probability"]),
        (Reading(inside=0.99, entropy=5.5), ["nearly uniform"]),
        (Reading(inside=0.02, entropy=5.5), ["2.0 % of the probability", "nearly uniform"]),
    ],
)
def test_warnings(reading, said) -> None:
    lines = warnings(reading)
    assert len(lines) == len(said)
    assert all(part in line for part, line in zip(said, lines, strict=True))
