"""Flow policies for other programs: a program answers as the checkpoint, denoising inside; a folder is read again."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embodied.models.exported import build_policy as build_exported
from embodied.models.exported.policy import ExportedPolicy
from embodied.models.flow_vla import build_policy
from embodied.models.flow_vla.export import program as exporter
from embodied.models.flow_vla.export.decision import gaps
from embodied.models.flow_vla.policy import FlowVLAPolicy
from saved_policies import Learner
from torch import Tensor

from embodied.errors import ConfigError, SpecMismatchError
from embodied.learn.checkpoint.checkpoint import Checkpoints
from embodied.learn.checkpoint.exported import open_export, read_export
from embodied.learn.origin import Origin, Simulator
from embodied.protocols import Examples
from embodied.random import Stream, generator
from embodied.testing import FakeEnv
from embodied.tools import export
from embodied.types import Sampling

FAKE = {"success_distance": 0.3, "cameras": 2, "horizon": 12}
ENV = FakeEnv(**FAKE).spec
TARGET = "embodied.models.flow_vla.build_policy"
SMALL: Mapping[str, Any] = {
    "layout": "smolvla", "action_horizon": 5, "num_action_chunks": 4, "action_width": 9, "state_width": 12,
    "hidden_size": 32, "intermediate_size": 48, "expert_hidden_size": 24, "expert_intermediate_size": 40,
    "vision_hidden_size": 32, "vision_intermediate_size": 32, "vision_num_layers": 1, "num_hidden_layers": 2,
    "image_size": 32, "num_steps": 1, "eval_steps": 2, "is_lora": True, "lora_rank": 2, "lora_init_weights": False,
}  # fmt: skip
STATISTICS = {
    "action": {"q01": [-0.7] * 7, "q99": [0.9] * 7}, "proprio": {"q01": [-1.5] * 8, "q99": [2.0] * 8},
}  # fmt: skip
GREEDY, SAMPLED = Sampling(do_sample=False), Sampling()
VERIFY = ("--verify", "env=fake", "episodes=2", "--config-dir", str(Path(__file__).parents[2] / "config"))


def policy_of(**keys: Any) -> FlowVLAPolicy:
    policy = build_policy(**{**SMALL, **keys})
    policy.use_statistics("demonstrations", STATISTICS)
    policy.bind(ENV)
    return policy


def saved(policy: FlowVLAPolicy, run: Path, **keys: Any) -> Path:
    """A checkpoint of :func:`policy_of`."""
    origin = Origin(TARGET, {**SMALL, **keys}, (), 0, ENV, Simulator("embodied.testing.FakeEnv", FAKE))
    return Checkpoints(run / "checkpoints", 1, origin=origin.as_json()).save(Learner(policy), 1)


@pytest.fixture(scope="module", params=["torch_export", "onnx"])
def written(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[FlowVLAPolicy, Path, ExportedPolicy]:
    """A policy, and the program that the command has written of its checkpoint and evaluated beside it. Each format has
    a layout of its own."""
    keys = {"layout": "pi0", "num_hidden_layers": 1} if request.param == "onnx" else {}
    policy, run = policy_of(**keys), tmp_path_factory.mktemp("run")
    given = ["--format", request.param, "--out", str(run / "out"), "--observations", "2"]
    assert export.main([str(saved(policy, run, **keys)), *given, *VERIFY]) == 0
    program = build_exported(model_path=str(run / "out"))
    program.bind(ENV)
    return policy, run / "out", program


def asked(policy: Any, rows: int, texts: list[str], sampling: Sampling) -> Mapping[str, Tensor]:
    random = np.random.default_rng(rows)
    images = torch.from_numpy(random.integers(0, 256, (rows, *ENV.obs["images"].shape), dtype=np.uint8))
    state = torch.from_numpy(random.standard_normal((rows, 8)).astype(np.float32))
    noise = [policy.spec.noise.draw(generator(0, Stream.EVAL_NOISE, 0, row)) for row in range(rows)]
    obs = {"images": images, "state": state, **policy.encode_instructions(texts)}
    return policy.act(obs, torch.from_numpy(np.stack(noise)), sampling).fields


# -- programs --------------------------------------------------------------------------------------------------------


def test_a_program_answers_as_the_checkpoint(written: tuple[FlowVLAPolicy, Path, ExportedPolicy]) -> None:
    policy, _, program = written
    same = ("num_action_chunks", "decision", "elements", "noise")
    assert {name: getattr(program.spec, name) for name in same} == {name: getattr(policy.spec, name) for name in same}
    assert program.sampler(GREEDY) == {"sampler": "ode", "num_steps": 2}
    assert program.sampler(SAMPLED) == policy.sampler(SAMPLED)
    for rows, texts in ((1, ["go"]), (3, [ENV.tasks[0], "push the red cup off the table\n", ENV.tasks[1]])):
        for sampling in (GREEDY, SAMPLED):
            wanted, found = (asked(one, rows, texts, sampling) for one in (policy, program))
            assert [*found] == [*wanted]
            for name, values in wanted.items():
                torch.testing.assert_close(found[name], values, atol=1e-5, rtol=1e-5, check_dtype=True)
    greedy, sampled = (asked(program, 3, [ENV.tasks[0]] * 3, sampling)["actions"] for sampling in (GREEDY, SAMPLED))
    assert (greedy - sampled).abs().max() > 0.01
    with pytest.raises(ConfigError, match="no table of choices") as caught:
        asked(program, 1, ["go"], Sampling(temperature=0.5))
    assert "temperature=1" in caught.value.remedy


def test_a_noise_policy_is_written_too_and_quantized_trunks_are_refused(tmp_path: Path) -> None:
    steered = {"noise_method": "noise_policy", "is_lora": False, "lora_rank": 32, "lora_init_weights": True}
    policy = policy_of(**steered)
    with torch.no_grad():
        for weights in policy.noise_policy.parameters():
            weights.normal_(std=0.2)
    (tmp_path / "out").mkdir()
    policy.export("torch_export", tmp_path / "out", "fp32", Examples(), {})
    program = build_exported(model_path=str(tmp_path / "out"))
    program.bind(ENV)
    for sampling in (GREEDY, SAMPLED):
        wanted, found = (asked(one, 2, [*ENV.tasks[:2]], sampling) for one in (policy, program))
        for name, values in wanted.items():
            torch.testing.assert_close(found[name], values, atol=1e-5, rtol=1e-5)
    held = dataclasses.replace(policy.parts.settings, quantization_bit=8)
    with pytest.raises(ConfigError, match="held in 8 bits"):
        exporter._check(dataclasses.replace(policy.parts, settings=held), "onnx", "fp32", None)


def test_it_was_verified_by_evaluation(written: tuple[FlowVLAPolicy, Path, ExportedPolicy]) -> None:
    _, folder, _ = written
    found = json.loads((folder / "verified.json").read_text(encoding="utf-8"))
    assert found["verified"]
    facts = json.loads((folder / "program.json").read_text(encoding="utf-8"))
    assert facts["sampler"]["greedy"] == {"sampler": "ode", "num_steps": 2}
    assert max(facts["measured"]["largest_difference"].values()) <= 1e-5


@pytest.mark.parametrize("written", ["torch_export"], indirect=True)
def test_inputs_of_another_size_are_refused(written: tuple[FlowVLAPolicy, Path, ExportedPolicy]) -> None:
    _, _, program = written
    inputs = {
        "images": torch.zeros(2, *ENV.obs["images"].shape, dtype=torch.uint8),
        "prompt": torch.ones(2, 5, dtype=torch.int64), "present": torch.ones(2, 5, dtype=torch.bool),
        "noise": torch.zeros(2, *program.spec.noise.shape), "greedy": torch.tensor([True, False]),
        "temperature": torch.ones(2), "state": torch.zeros(2, 8),
    }  # fmt: skip
    assert program._program[0](inputs)["actions"].shape == (2, 4, 7)
    wrong = {
        "noise": inputs["noise"][:, :-1],
        "state": torch.zeros(3, 8),
        "prompt": torch.ones(2, 2, dtype=torch.int64),
    }
    for name, tensor in wrong.items():
        with pytest.raises(SpecMismatchError, match=f"'{name}' has"):
            program._program[0]({**inputs, name: tensor})


def test_a_program_that_answers_otherwise_is_not_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    policy = policy_of()

    def odd(kind: str, folder: Path, outputs: Any) -> Any:
        shapes = {name: policy.spec.decision[name].shape for name in outputs}
        return lambda inputs: {
            name: torch.full((len(inputs["noise"]), *shape), math.nan) for name, shape in shapes.items()
        }

    monkeypatch.setattr(exporter, "write", lambda *given: [])
    monkeypatch.setattr(exporter, "open_program", odd)
    with pytest.raises(ConfigError, match=r"differs from the policy: .* by up to inf"):
        policy.export("onnx", tmp_path, "fp32", Examples(), {})


def test_gaps_are_shares_beside_large_numbers() -> None:
    wanted = {"actions": torch.tensor([200.0, 0.0]), "logprobs": torch.tensor([0.5])}
    found = {"actions": torch.tensor([200.0, 0.2]), "logprobs": torch.tensor([0.6])}
    assert gaps(wanted, found) == pytest.approx({"actions": 1e-3, "logprobs": 0.1}, rel=1e-4)


@pytest.mark.parametrize(
    ("keys", "kind", "dtype", "options", "match", "fix"),
    [
        ({"layout": "pi05", "max_prompt_length": 200}, "onnx", "fp32", {}, "has the state in it", "--format hf"),
        ({}, "onnx", "bf16", {}, "compute in fp32, not in bf16", "leave --dtype out"),
        ({}, "onnx", "fp32", {"max_shard_size": 9}, "does not divide its weights", "leave --shard-size out"),
        ({}, "hf", "fp32", {"max_shard_size": 9}, "from one file alone", "leave --shard-size out"),
        ({}, "hf", "fp32", {"quantize": "int8"}, "floating point alone", "leave --quantize out"),
    ],
)
def test_what_a_format_cannot_hold_is_refused(
    keys: dict[str, Any], kind: str, dtype: str, options: dict[str, Any], match: str, fix: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        policy_of(**keys).export(kind, tmp_path, dtype, Examples(), options)
    assert fix in caught.value.remedy


# -- LeRobot's folder ------------------------------------------------------------------------------------------------


def test_a_folder_is_the_policy_and_needs_nothing_else(tmp_path: Path) -> None:
    policy, out = policy_of(), tmp_path / "hf"
    assert export.main([str(saved(policy, tmp_path)), "--out", str(out), "--observations", "2", *VERIFY]) == 0
    assert json.loads((out / "verified.json").read_text(encoding="utf-8"))["verified"]
    facts = read_export(out)
    assert (facts.format, facts.dtype, facts.rounding) == ("hf", "fp32", "none")
    assert facts.measured["fp32"]["action_largest"] <= 1e-5
    assert [file.name for file in out.glob("*.safetensors") if file.name.startswith("model")] == ["model.safetensors"]
    assert "SmolVLAPolicy.from_pretrained" in (out / "README.md").read_text(encoding="utf-8")
    again = open_export(out).policy
    for sampling in (GREEDY, SAMPLED):
        wanted, found = (asked(one, 2, [ENV.tasks[0]] * 2, sampling) for one in (policy, again))
        for name, values in wanted.items():
            torch.testing.assert_close(found[name], values, atol=1e-5, rtol=1e-5)


def test_a_folder_in_sixteen_bits_says_what_it_loses(tmp_path: Path) -> None:
    policy = policy_of(is_lora=False)
    obs = exporter.made_up(ENV)
    found = policy.export("hf", tmp_path / "bf16", "bf16", obs, {})
    assert (found.dtype, found.rounding) == ("bf16", "16 bits")
    assert 1e-4 < found.measured["bf16"]["action_largest"] < 0.1
    chosen = policy.export("hf", tmp_path / "auto", "auto", obs, {})
    assert chosen.measured["bf16"] == found.measured["bf16"]
    assert chosen.dtype == ("bf16" if found.measured["bf16"]["logprob_mean"] <= 0.01 else "fp32")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"noise_method": "noise_policy", "lora_rank": 32, "lora_init_weights": True}, "acts as the frozen policy"),
        ({"layout": "pi05", "state_in_prompt": False}, "puts the state into the prompt"),
        ({}, ""),
    ],
)
def test_a_folder_says_where_lerobot_acts_otherwise(keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    found = policy_of(**{"is_lora": False, **keys}).export("hf", tmp_path / "hf", "fp32", Examples(), {})
    told = [note for note in found.notes if "LeRobot" in note]
    assert len(told) == bool(said)
    assert said in "".join(told)
