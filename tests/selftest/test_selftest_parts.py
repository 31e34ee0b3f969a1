"""The parts themselves on the CPU: each measures something real, and a fault makes it fail."""

from __future__ import annotations

import importlib
import re
import sys
import threading
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from embodied.learn.step import resting
from embodied.lib.child import how_it_ended
from embodied.selftest import apart, large, learning, policies, twice
from embodied.selftest.measured import NotRun
from embodied.selftest.parts import (
    PARTS,
    attention,
    checkpoints,
    compiled,
    determinism,
    engine,
    memory,
    numbers,
    offload,
    rendering,
    shards,
    throughput,
)
from embodied.selftest.parts.engine import against_lanes
from embodied.selftest.place import Place

SLOW = ("offload", "compiled", "rendering", "resume", "simulation", "memory", "throughput")
ON_CPU = ("numbers", "determinism", "attention", "checkpoints", "shards", *SLOW)
NEEDS = {"rendering": "libero", "simulation": "mani_skill"}


@pytest.fixture
def place(tmp_path) -> Place:
    return Place("cpu", tmp_path)


def found(name: str, place: Place):
    module, _, function = PARTS[name].place.partition(":")
    return [*getattr(importlib.import_module(module), function)(place)]


def wrong(measured) -> list[str]:
    return [one.what for one in measured if not one.holds]


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in ON_CPU])
def test_a_part_holds_on_a_cpu(name, place):
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    measured = found(name, place)
    assert not wrong(measured)
    assert any(one.allowed for one in measured)


@pytest.mark.parametrize("name", ["graphs", "engine"])
def test_what_a_cpu_cannot_do_is_not_run(name, place):
    with pytest.raises(NotRun, match="the device is cpu"):
        found(name, place)


MATRIX = {
    "mlp": "head.weight", "openvla_oft": "layers.1.mlp.down_proj.base_layer.weight",
    "causal_lm": "layers.1.mlp.down_proj.weight",
}  # fmt: skip


def perturbed(kind: str, by: float, monkeypatch) -> None:
    """Lets the device's policies have one matrix to which numbers of this size are added."""
    usual = policies.built_policy

    def made(device: str, *overrides: str):
        one = usual("cpu", *overrides)
        if device == "cpu":
            return one
        with torch.no_grad():
            (matrix,) = [p for name, p in one.policy.named_parameters() if name.endswith(MATRIX[kind])]
            matrix += by * torch.randn(matrix.shape, generator=torch.Generator().manual_seed(0))
        return one

    monkeypatch.setattr(numbers, "built_policy", made)
    monkeypatch.setattr(numbers, "SMALL", {kind: policies.SMALL[kind]})
    monkeypatch.setattr(numbers, "BF16", {})


@pytest.mark.parametrize("kind", policies.SMALL)
def test_a_perturbed_weight_fails_the_numbers(kind, tmp_path, monkeypatch):
    perturbed(kind, 0.01, monkeypatch)
    failed = wrong(numbers.numbers(Place("cuda", tmp_path)))
    assert f"{kind} fp32: weights that are others" in failed
    assert f"{kind} fp32: evaluate, logprobs" in failed
    assert f"{kind} fp32: update, gradient" in failed


@pytest.mark.parametrize("kind", policies.SMALL)
def test_rounding_alone_does_not_fail_the_numbers(kind, tmp_path, monkeypatch):
    perturbed(kind, 1e-6, monkeypatch)
    failed = wrong(numbers.numbers(Place("cuda", tmp_path)))
    assert failed == [f"{kind} fp32: weights that are others"]


@pytest.mark.parametrize("kind", numbers.BF16)
def test_coarser_numbers_than_bf16_fail(kind, tmp_path, monkeypatch):
    perturbed(kind, 0.3, monkeypatch)
    monkeypatch.setattr(numbers, "SMALL", {})
    monkeypatch.setattr(numbers, "BF16", {kind: policies.SMALL[kind]})
    failed = wrong(numbers.numbers(Place("cuda", tmp_path)))
    assert f"{kind} bf16: the device's log-probs from fp32, root mean square" in failed


def test_noise_that_is_drawn_anew_fails_determinism(place, monkeypatch):
    usual = learning.decide

    calls = iter(range(100))

    def decide(made, asked):
        fields = usual(made, asked)
        return {**fields, "logprobs": fields["logprobs"] + 1e-6 * next(calls)}

    monkeypatch.setattr(learning, "decide", decide)
    assert "openvla_oft: act, tensors that differ" in wrong(found("determinism", place))


@pytest.mark.parametrize(
    ("by", "failed"),
    [
        (0.0, []),
        (1e-7, []),
        (1e-2, ["gradient, apart, share of their norm"]),
    ],
)
def test_a_gpu_may_add_up_gradients_in_any_order_and_no_more(by, failed, tmp_path, monkeypatch):
    usual, learn, calls = policies.built_policy, learning.learn, iter(range(1, 100))

    def learned(one, records):
        step, share = learn(one, records), by * next(calls)
        return replace(step, gradients={n: (1 + share) * v for n, v in step.gradients.items()})

    monkeypatch.setattr(determinism, "built_policy", lambda device, *keys: usual("cpu", *keys))
    monkeypatch.setattr(determinism, "SMALL", {"mlp": policies.MLP})
    monkeypatch.setattr(learning, "learn", learned)
    measured = [*determinism.determinism(Place("cuda", tmp_path))]
    assert wrong(measured) == [f"mlp: {what}" for what in failed]
    shown = {one.what: one.found for one in measured}
    assert (shown["mlp: gradient, tensors that differ in a bit"] > 0) == (by > 0)
    assert shown["mlp: act, tensors that differ"] == 0


def test_weights_that_were_not_learned_alike_fail_on_a_gpu():
    began = {"a": torch.zeros(100)}
    one, other = {"a": torch.ones(100)}, {"a": torch.ones(100)}
    assert not wrong(twice.weights("w", one, other, began, on_gpu=True))
    other["a"][:10] = -1
    assert wrong(twice.weights("w", one, other, began, on_gpu=True)) == ["w, apart, share of what was learned"]
    assert wrong(twice.weights("w", began, began, began, on_gpu=True)), "nothing was learned"
    assert wrong(twice.weights("w", one, {**one, "b": one["a"]}, {**began, "b": began["a"]}, on_gpu=True))


def test_flash_attn_is_asked_of_gpus_that_can(place, monkeypatch):
    capability = {"cuda": (7, 5), "cuda:1": (8, 0)}
    monkeypatch.setattr(attention, "find_spec", lambda name: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability[str(device)])
    assert "7.5" in attention._lacks_flash(Place("cuda", place.folder))
    assert attention._lacks_flash(Place("cuda:1", place.folder)) == ""
    monkeypatch.setattr(torch.version, "cuda", None)
    assert attention._lacks_flash(Place("cuda", place.folder)) == "", "AMD counts otherwise"


@pytest.mark.parametrize(
    ("device", "there", "said"),
    [
        ("cuda", {"CC": None}, "C, and gcc or clang is not installed"),
        ("cuda", {"CC": "no-such-cc"}, "no-such-cc is not installed (CC is set)"),
        ("cpu", {"CXX": None}, "C++, and g++ is not installed"),
        ("cpu", {"CXX": "no-such-cxx"}, "no-such-cxx is not installed (CXX is set)"),
    ],
)
def test_a_compiler_that_is_missing_is_named(device, there, said, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, value in there.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    with pytest.raises(NotRun, match=re.escape(said)):
        compiled.need_compiler(Place(device, tmp_path))
    (tmp_path / "clang").touch(mode=0o755)
    if there == {"CC": None}:
        compiled.need_compiler(Place(device, tmp_path))


@pytest.mark.parametrize(
    ("device", "gpus", "wanted"),
    [
        ("cpu", (0, 1), {}),
        ("cuda", (2, 3), {"EMBODIED_RENDER_GPU": "2", "MUJOCO_EGL_DEVICE_ID": "5"}),
        ("cuda:1", (2, 3), {"EMBODIED_RENDER_GPU": "3"}),
        ("cuda:2", (2, 3), {}),
        ("cuda", (), {}),
    ],
)
def test_what_draws_and_simulates_gets_the_gpu_that_is_tested(device, gpus, wanted, monkeypatch):
    for name in ("EMBODIED_RENDER_GPU", "MUJOCO_EGL_DEVICE_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(apart, "egl_indices", lambda: {2: 5})
    assert apart.placed(device, gpus) == wanted


def test_a_gpu_is_asked_for_memory_that_libraries_do_not_hide(place):
    keys = (*policies.WIDE, *memory.PASS)
    assert memory.counted(place, keys) > 10 * memory.LIBRARIES


def test_a_python_without_vllm_is_no_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "built_policy", lambda device, *keys: policies.built_policy("cpu", *keys))
    with pytest.raises(NotRun, match=r"has no package vllm; name the Python .*--vllm-python"):
        [*engine.engine(Place("cuda", tmp_path, sys.executable))]


def test_attention_that_sees_too_much_fails(place, monkeypatch):
    usual = attention._made

    def made(place, implementation, precision):
        one = usual(place, implementation, precision)
        if implementation == "sdpa":
            one.module.model.set_attention("causal")
        return one

    monkeypatch.setattr(attention, "_made", made)
    assert "sdpa fp32: log-probs" in wrong(found("attention", place))


def test_a_checkpoint_that_is_written_late_fails(place, monkeypatch):
    """As if tensors were copied to memory that the next step changes."""
    monkeypatch.setattr(checkpoints.Checkpoints, "_copied", lambda saving, snapshot: snapshot)
    write = checkpoints.Checkpoints._write

    def late(saving, snapshot):
        if saving._async:
            late.waits.wait(60)
        write(saving, snapshot)

    late.waits = threading.Event()
    learn, calls = learning.learn, []

    def learned(*given):
        done = learn(*given)
        calls.append(done)
        late.waits.set()
        return done

    monkeypatch.setattr(checkpoints.Checkpoints, "_write", late)
    monkeypatch.setattr(learning, "learn", learned)
    measured = []
    late.waits.clear()
    for one in checkpoints.checkpoints(place):
        late.waits.clear()
        measured.append(one)
    assert any("in the background" in what for what in wrong(measured))


def moved(monkeypatch) -> None:
    """Lets weights that rest be other tensors, as they are on another device."""
    monkeypatch.setattr(resting, "on_host", lambda tensor: False)
    monkeypatch.setattr(resting, "to_host", lambda tensor: tensor.detach().clone())
    monkeypatch.setattr(resting, "to_device", lambda tensor, device: tensor.detach().clone())


def rested(place: Place):
    """What the part says of weights that rest under FSDP2, and where the shards lie after they have rested."""
    one = policies.built_policy("cpu", *policies.TEXT)
    asked = policies.question(one, 2)
    records = {**asked.obs, **learning.decide(one, asked)}
    with shards.one_rank(place):
        shared = policies.built_policy("cpu", *policies.TEXT)
        parallel = shards.share(shared)
        failed = wrong(offload.weights("weights", shared, records, parallel.reshard))
        parallel.reshard()
        before = {n: p.to_local().data_ptr() for n, p in shared.policy.named_parameters()}
        resting.RestingWeights(shared.module, True).rest()
        after = {n: p.to_local().data_ptr() for n, p in shared.policy.named_parameters()}
        held = {n: p._sharded_param_data.data_ptr() for n, p in fsdp_parameters(shared.module)}
    return failed, before, after, held


def fsdp_parameters(module):
    """What FSDP2 itself keeps of each parameter, by name."""
    for one in module.modules():
        if isinstance(one, FSDPModule):
            for group in one._get_fsdp_state()._fsdp_param_groups:
                yield from ((parameter._param_fqn, parameter) for parameter in group.fsdp_params)


def test_shards_of_fsdp2_rest_and_learn_afterwards(place, monkeypatch):
    moved(monkeypatch)
    failed, before, after, held = rested(place)
    assert failed == []
    assert not [name for name in before if before[name] == after[name]], "each is copied while the old one is there"
    assert held == after, "FSDP2 has these, too"


def test_random_weights_are_drawn_on_the_default_device(place):
    """The same policy as one that is built without it; on a GPU its numbers would be others."""
    one = large.built(place, (*policies.OFT,))
    other = policies.built_policy("cpu", *policies.OFT)
    weights = [{n: p.detach() for n, p in made.policy.named_parameters()} for made in (one, other)]
    assert learning.unequal(*weights) == 0
    assert large.lacks_room(place)


def test_a_count_that_is_too_small_fails(place, monkeypatch):
    usual = memory.counted
    monkeypatch.setattr(memory, "counted", lambda *given: int(0.8 * usual(*given)))
    assert wrong(found("memory", place)) == ["small: peak from the count"]


@pytest.mark.parametrize(
    ("picture", "failed"),
    [
        ("noise", "egl from osmesa, mean"),
        ("empty", "egl: standard deviation of the picture"),
    ],
)
def test_another_picture_fails(place, monkeypatch, picture, failed):
    def ask(module, name, file, device):
        images = np.random.default_rng(0).integers(0, 256, (1, 32, 32, 3), dtype=np.uint8)
        if name == "egl":
            images = np.zeros_like(images) if picture == "empty" else np.roll(images, 5, axis=2)
        np.savez(file, images=images, driver=np.asarray("llvmpipe"))

    monkeypatch.setattr(rendering, "find_spec", lambda name: True)
    monkeypatch.setattr(rendering.apart, "ask", ask)
    assert failed in wrong(rendering.rendering(place))
    on_gpu = wrong(rendering.rendering(Place("cuda", place.folder)))
    assert "egl: drawn on the GPU, by llvmpipe" in on_gpu


def test_how_a_second_process_ended_is_said(tmp_path):
    with pytest.raises(Exception, match="ended with status 1") as raised:
        rendering.apart.ask("no_such_module", "egl", tmp_path / "file.npz", "cpu")
    assert "No module named no_such_module" in str(raised.value)
    assert how_it_ended(1) in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "failed"),
    [
        ("none", []),
        ("other", ["other texts than the lanes write"]),
        ("scaled", ["log-probs from those of evaluate, mean"]),
    ],
)
def test_an_engines_texts_are_held_against_the_lanes(fault, failed, place):
    """With transformers' own Llama in the place of vLLM, which no machine of the tests has."""
    python = place.folder / "python"
    engine = Path(__file__).with_name("llama_engine.py")
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && exit 0\nexec {sys.executable} {engine} {fault} "$3"\n', encoding="utf-8"
    )
    python.chmod(0o755)
    measured = [*against_lanes(place, f"rollout.python={python}")]
    assert wrong(measured) == failed
    assert len(measured) == 3


def test_rows_for_which_there_is_no_memory_are_left_out(place):
    def opened(one, rows):
        raise torch.OutOfMemoryError("CUDA out of memory")

    one = policies.built_policy("cpu", *policies.MLP)
    (measured,) = throughput._timed("act, 32 rows", one, 32, opened, False, 1e12, place)
    assert measured.skipped
    assert "too little memory" in str(measured.found)
