"""A program that decides continuous actions from noise of two kinds: what it gives and takes stands in its folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embodied.models.exported import build_policy as build_exported
from embodied.models.exported.policy import ExportedPolicy
from embodied.models.shared.programs.facts import TOKENIZER, Facts, PromptFacts
from embodied.models.shared.programs.write import write
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn

from embodied import eval as evaluation
from embodied import train
from embodied.errors import EmbodiedError
from embodied.lib.files import checksums, sealed
from embodied.random import Stream, generator
from embodied.testing import FakeEnv, FlowPolicy
from embodied.types import Sampling

ENV = FakeEnv().spec
GREEDY = Sampling(do_sample=False)
RUN = (
    "env=fake", "model=exported", "tracker=jsonl", "runner.device=cpu", "env.num_workers=1",
    "env.eval.total_num_envs=2", "env.eval.episodes_per_task=1", "algorithm.val_group_size=2",
    "env.eval.max_episode_steps=6", "env.eval.reward_mode=dense", "env.eval.video_cfg.save_video=false",
    "--config-dir", str(Path(__file__).parents[1] / "config"),
)  # fmt: skip


class Program(nn.Module):
    """The decision of a flow policy for the first task, sampled or greedy row by row."""

    def __init__(self, policy: FlowPolicy) -> None:
        super().__init__()
        self.policy = policy

    def forward(
        self, images: Tensor, prompt: Tensor, present: Tensor, noise: Tensor, greedy: Tensor, temperature: Tensor,
        state: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        obs = {"state": state, "task": 0 * prompt[:, 0]}
        found = [self.policy.act(obs, noise, Sampling(do_sample=do_sample)).fields for do_sample in (False, True)]
        likeliest, drawn = ([one[name] for name in self.policy.spec.decision] for one in found)
        pairs = zip(likeliest, drawn, strict=True)
        return tuple(torch.where(greedy.view(-1, *[1] * (one.ndim - 1)), one, other) for one, other in pairs)


@pytest.fixture(scope="module")
def policy() -> FlowPolicy:
    made = FlowPolicy(one_step=True)
    made.bind(ENV)
    return made


def written(policy: FlowPolicy, kind: str, folder: Path) -> Path:
    folder.mkdir()
    inputs = {
        "images": torch.zeros(2, *ENV.obs["images"].shape, dtype=torch.uint8),
        "prompt": torch.ones(2, 8, dtype=torch.int64), "present": torch.ones(2, 8, dtype=torch.bool),
        "noise": torch.rand(2, *policy.spec.noise.shape), "greedy": torch.tensor([True, False]),
        "temperature": torch.ones(2), "state": torch.zeros(2, 8),
    }  # fmt: skip
    files = write(kind, Program(policy), inputs, 64, folder, tuple(policy.spec.decision))
    words = {word: number for number, word in enumerate(["[UNK]", *" ".join(ENV.tasks).split()])}
    tokenizer = Tokenizer(models.WordLevel(words, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / TOKENIZER))
    sampler = {name: policy.sampler(sampling) for name, sampling in (("greedy", GREEDY), ("sampled", Sampling()))}
    facts = Facts(
        kind, ENV, PromptFacts("{}", False, 1, 2, 0, 64), 2, 8, 4, 7, declared=policy.spec, sampler=sampler
    )  # fmt: skip
    facts.write(folder, [*files, TOKENIZER])
    return folder


@pytest.fixture(scope="module", params=["torch_export", "onnx"])
def folder(request, policy, tmp_path_factory) -> Path:
    return written(policy, request.param, tmp_path_factory.mktemp("flow") / request.param)


def asked(rows: int) -> dict[str, Tensor]:
    random = np.random.default_rng(0)
    return {"images": torch.zeros(rows, *ENV.obs["images"].shape, dtype=torch.uint8),
            "state": torch.from_numpy(random.standard_normal((rows, 8)).astype(np.float32))}  # fmt: skip


def draw(policy: Any, rows: int) -> Tensor:
    drawn = [policy.spec.noise.draw(generator(0, Stream.EVAL_NOISE, 0, row)) for row in range(rows)]
    return torch.from_numpy(np.stack(drawn))


def test_it_declares_what_the_policy_declares_and_answers_as_it_does(policy, folder):
    program = build_exported(model_path=str(folder))
    program.bind(ENV)
    same = ("num_action_chunks", "decision", "elements", "noise", "categories")
    assert {name: getattr(program.spec, name) for name in same} == {name: getattr(policy.spec, name) for name in same}
    assert program.sampler(GREEDY) == {"sampler": "ode", "num_steps": 3}
    assert program.sampler(Sampling()) == {"sampler": "flow_sde", "num_steps": 3}
    obs, noise, texts = asked(3), draw(program, 3), [ENV.tasks[0]] * 3
    for sampling in (GREEDY, Sampling()):
        wanted = policy.act(obs | policy.encode_instructions(texts), noise, sampling).fields
        found = program.act(obs | program.encode_instructions(texts), noise, sampling).fields
        assert [*found] == [*wanted]
        for name, values in wanted.items():
            torch.testing.assert_close(found[name], values, atol=1e-5, rtol=0, check_dtype=True)


@pytest.mark.parametrize("folder", ["torch_export"], indirect=True)
def test_an_evaluation_of_it_draws_the_noise_of_greedy_decisions(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert evaluation.main([*RUN, f"actor.model.model_path={folder}", "runner.logger.log_path=run"]) == 0
    found = json.loads(Path("run/eval/000000.json").read_text(encoding="utf-8"))
    assert len({one["return"] for one in found["episodes"]}) == len(found["episodes"]) == 4
    named = {"sampler": "ode", "num_steps": 3, "greedy_noise": True}
    assert named.items() <= found["protocol"]["keys"]["sampling"].items()


@pytest.mark.parametrize("folder", ["torch_export"], indirect=True)
def test_a_dry_run_counts_it_and_says_that_it_cannot_be_trained(folder, tmp_path, monkeypatch, capsys):
    """torch reads its graph with sizes that are symbols, whose bytes nobody can count."""
    monkeypatch.chdir(tmp_path)
    asked = (*RUN, f"actor.model.model_path={folder}", "runner.dry_run=true")
    assert evaluation.main([*asked]) == 0
    assert "memory of the process" in capsys.readouterr().out
    assert train.main([*asked]) == 2
    assert "cannot be trained" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("noise", {"kind": "cauchy"}), ("noise", {"greedy": 9}), ("noise", {"shape": [3, -4, 7]}),
        ("elements", {"action_axis": "0"}), ("decision", {"actions": {"shape": [4, 6], "dtype": "float32"}}),
        ("decision", {"logprobs": {"shape": [4, 7], "dtype": "objects"}}), ("num_action_chunks", None),
    ],
)  # fmt: skip
def test_a_spec_that_cannot_be_is_refused_before_the_program_is_read(policy, tmp_path, part, change):
    facts = Facts("onnx", ENV, PromptFacts("{}", False, 1, 2, 0, 64), 2, 8, 4, 7, declared=policy.spec)
    (tmp_path / "program.onnx").write_bytes(b"none")
    (tmp_path / TOKENIZER).write_bytes(b"none")
    facts.write(tmp_path, ["program.onnx", TOKENIZER])
    values = json.loads((tmp_path / "program.json").read_text(encoding="utf-8"))
    del values["checksum"]
    values["spec"][part] = change if change is None else {**values["spec"][part], **change}
    values["files"] = checksums(tmp_path, values["files"])
    (tmp_path / "program.json").write_text(json.dumps(sealed(values)), encoding="utf-8")
    with pytest.raises(EmbodiedError, match=r"program\.json is damaged"):
        build_exported(model_path=str(tmp_path))


def test_a_program_of_tokens_is_written_as_before(tmp_path):
    facts = Facts("onnx", ENV, PromptFacts("{}", False, 1, 2, 0, 64), 2, 8, 4, 7, 5, 256)
    (tmp_path / "program.onnx").write_bytes(b"none")
    facts.write(tmp_path, ["program.onnx"])
    values = json.loads((tmp_path / "program.json").read_text(encoding="utf-8"))
    later = {"spec", "declared", "sampler"}
    assert values["version"] == 1
    assert [*values] == ["version", *(name for name in asdict(facts) if name not in later), "checksum"]
    assert isinstance(facts.spec.noise.shape, tuple)
    assert ExportedPolicy.sampler(type("One", (), {"facts": facts})(), GREEDY) == {}
