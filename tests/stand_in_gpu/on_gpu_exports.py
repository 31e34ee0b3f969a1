"""Exports from the device, a supervised step of the robot policy, and layers in 8 bits: what they give on the CPU."""

from __future__ import annotations

import copy
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from causal_lm_texts import make as make_text_policy
from embodied.models.openvla_oft import build_policy
from named import NAMED_SFT
from on_gpu_learning import CONFIG, demonstrations, unnamed
from robots import ENV, observe
from safetensors.torch import load_file
from torch.nn.attention import SDPBackend, sdpa_kernel

from embodied.learn.cloning import Cloner
from embodied.protocols.serving import Examples
from embodied.schema import bind
from embodied.testing import FakeEnv
from embodied.types import Sampling

LORA = {"is_lora": True, "lora_rank": 4, "lora_init_weights": False}


def robots(**keys):
    policy = build_policy(value_head=True, **keys)
    policy.bind(ENV)
    return policy


def texts(**keys):
    return make_text_policy(value_head=True, **keys)


def files(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {str(file.relative_to(folder)): load_file(file) for file in sorted(folder.rglob("*.safetensors"))}


@pytest.mark.parametrize("kind", ["hf", "adapter"])
@pytest.mark.parametrize("make", [robots, texts])
def test_a_folder_from_the_device_is_that_of_the_cpu(gpu, tmp_path, make, kind):
    if kind == "adapter":
        make().save(tmp_path / "base")
        policy = make(model_path=str(tmp_path / "base"), **LORA)
    else:
        policy = make(**LORA)
    for name, one in (("cpu", policy), ("cuda", copy.deepcopy(policy).to("cuda"))):
        (tmp_path / name).mkdir()
        one.export(kind, tmp_path / name, "fp32", Examples(), {})
    found, wanted = files(tmp_path / "cuda"), files(tmp_path / "cpu")
    assert found.keys() == wanted.keys()
    assert found.keys()
    for file, tensors in wanted.items():
        assert tensors.keys() == found[file].keys()
        assert all(torch.equal(found[file][name], tensors[name]) for name in tensors), file


def cloned(device: str, **keys):
    policy, (train, held_out) = build_policy(seed=3, **keys).to(device), demonstrations()
    cloner = Cloner(policy, FakeEnv().spec, bind(CONFIG), train, held_out, torch.device(device))
    with sdpa_kernel(SDPBackend.MATH):
        cloner.iterate(0)
        metrics = {**cloner.close_iteration(0), **cloner.validate()}
    return metrics, {name: p.detach().cpu() for name, p in policy.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("keys", [{"use_proprio": True}, {**LORA, "gradient_checkpointing": True}])
def test_supervised_steps_of_the_robot_policy(gpu, keys):
    found = cloned("cuda", **keys)
    assert sorted(unnamed(gpu, NAMED_SFT)) == []
    wanted = cloned("cpu", **keys)
    assert found[0] == pytest.approx(wanted[0], rel=1e-4)
    for name, values in wanted[1].items():
        torch.testing.assert_close(found[1][name], values, rtol=0, atol=1e-4, msg=name)


@pytest.fixture
def codes(monkeypatch):
    """bitsandbytes' codes of 8 bits, by their formula: its kernels are not for this device."""
    library, package = ModuleType("bitsandbytes.functional"), ModuleType("bitsandbytes")

    def quant(weight):
        most = weight.float().abs().amax(1)
        return (weight.float() * (127 / most[:, None])).round().to(torch.int8), most, None

    library.int8_vectorwise_quant = quant
    library.int8_vectorwise_dequant = lambda codes, scale: codes.float() * (scale[:, None] / 127)
    package.nn = SimpleNamespace(Linear8bitLt=ModuleType, Linear4bit=ModuleType)  # peft asks whether a layer is one
    package.functional, package.__spec__ = library, ModuleSpec("bitsandbytes", None)
    monkeypatch.setitem(sys.modules, "bitsandbytes", package)
    monkeypatch.setitem(sys.modules, "bitsandbytes.functional", library)


@pytest.mark.parametrize("again", [False, True], ids=["kept", "recomputed"])
def test_layers_in_8_bits(gpu, codes, again):
    policy = build_policy(quantization_bit=8, gradient_checkpointing=again, **LORA)
    policy.bind(ENV)
    moved = copy.deepcopy(policy).to("cuda")
    noise = torch.rand(3, 56)
    found, sampling = [], Sampling()
    for one, device in ((policy, "cpu"), (moved, "cuda")):
        obs = {name: values.to(device) for name, values in observe(3).items()}
        if device == "cuda":
            one.act(obs, noise.to(device), sampling)  # makes the constants
            gpu.seen.clear()
        with sdpa_kernel(SDPBackend.MATH):
            uniform = noise.to(device)
            decision = one.act(obs, uniform, sampling)
            result = one.evaluate({**obs, **decision.fields}, sampling)
            result.logprobs.sum().backward()
        gradients = {name: p.grad.cpu() for name, p in one.named_parameters() if p.grad is not None}
        found.append({"tokens": decision.fields["actions"].cpu(), "logp": result.logprobs.detach().cpu(), **gradients})
    assert len(found[0]) > 2
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[1][name], values) for name, values in found[0].items())
