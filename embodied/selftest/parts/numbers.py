"""Numbers of the device against those of the CPU, at equal weights and equal noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from embodied.selftest import learning
from embodied.selftest.learning import LearnedStep
from embodied.selftest.measured import Measured, at_most, few_of, figure, none_of
from embodied.selftest.place import Place
from embodied.selftest.policies import OFT, SMALL, TEXT, BuiltPolicy, built_policy, question

ROWS = 8
EXACT = 1e-4  # nats: on a CPU float32 that is added up in another order is 4e-6 apart
OTHER_TOKENS = 0.005  # share: noise may lie on the border between two tokens
GRADIENT = 2e-3  # tolerance, relative to the gradient's norm
MOVED = 0.02  # of what a step moves: Adam's first step takes the sign of each gradient, also of one that is rounding
ROUNDED = 3.0  # times as far from fp32 as the CPU's bf16
OTHER_ROUNDED = 0.15  # share of tokens, or of texts, that rounding to 8 bits may change
BF16: Mapping[str, tuple[str, ...]] = {"openvla_oft": OFT, "causal_lm": TEXT}


def numbers(place: Place) -> Iterator[Measured]:
    """Measures how far each small policy's numbers on the device are from those on the CPU."""
    for name, keys in SMALL.items():
        yield from exact(name, built_policy("cpu", *keys), built_policy(place.device, *keys))
    for name, keys in BF16.items():
        yield from rounded(name, keys, place)


def exact(name: str, cpu: BuiltPolicy, device: BuiltPolicy) -> Iterator[Measured]:
    """Measures the differences between CPU and device in float32."""
    name = f"{name} fp32"
    weights = [{n: p.detach() for n, p in one.policy.named_parameters()} for one in (cpu, device)]
    yield none_of(f"{name}: weights that are others", learning.unequal(*weights), len(weights[0]))
    asked, spec = question(cpu, ROWS), cpu.policy.spec
    wanted, found = learning.decide(cpu, asked), learning.decide(device, asked)
    yield few_of(f"{name}: other {_decisions(cpu)}", *learning.other_decisions(spec, found, wanted), OTHER_TOKENS)
    same = learning.same_so_far(spec, found, wanted)
    gap = learning.largest(found["logprobs"], wanted["logprobs"], same)
    yield at_most(f"{name}: act, log-probs", gap, EXACT, "nats")
    records = {**asked.obs, **wanted}
    here, there = (learning.evaluate(one, records) for one in (cpu, device))
    used = learning.counted(spec, records)
    for field, values in learning.fields_of(there).items():
        gap = learning.largest(values, learning.fields_of(here)[field], used if field != "value" else None)
        yield at_most(f"{name}: evaluate, {field}", gap, EXACT, "nats" if field != "value" else "")
    yield from updates(name, here.logprobs, learning.learn(device, records), learning.learn(cpu, records), used)


def updates(name: str, before: Tensor, device: LearnedStep, cpu: LearnedStep, counted: Tensor) -> Iterator[Measured]:
    """Measures how far two optimizer steps lie apart. ``before``: log-probs before the step."""
    yield at_most(f"{name}: update, loss", abs(device.loss - cpu.loss), EXACT, "nats")
    yield at_most(f"{name}: update, gradient", learning.relative(device.gradients, cpu.gradients), GRADIENT)
    gap, moved = (learning.rms(cpu.after.logprobs, other, counted) for other in (device.after.logprobs, before))
    yield at_most(f"{name}: update, log-probs after it, share of what it moved", gap / moved, MOVED)


def rounded(name: str, keys: tuple[str, ...], place: Place) -> Iterator[Measured]:
    """Measures the differences in bfloat16: the device's may be some times as far from float32 as the CPU's."""
    whole, bits = built_policy("cpu", *keys), "actor.model.precision=bf16"
    cpu, device = built_policy("cpu", *keys, bits), built_policy(place.device, *keys, bits)
    asked, spec, name = question(whole, ROWS), whole.policy.spec, f"{name} bf16"
    wanted, found = learning.decide(cpu, asked), learning.decide(device, asked)
    parted = learning.other_decisions(spec, found, wanted)
    # One rounded token makes another text, so of texts most may differ.
    text = spec.elements.length_axis is not None
    yield few_of(f"{name}: other {_decisions(cpu)}", *parted, 0.75 if text else OTHER_ROUNDED)
    records = {**asked.obs, **learning.decide(whole, asked)}
    truth, here, there = (learning.evaluate(one, records).logprobs for one in (whole, cpu, device))
    used = learning.counted(spec, records)
    usual = learning.rms(here, truth, used)
    yield figure(f"{name}: the CPU's log-probs from fp32, root mean square", usual, "nats")
    gap = learning.rms(there, truth, used)
    yield at_most(f"{name}: the device's log-probs from fp32, root mean square", gap, ROUNDED * usual, "nats")
    exact_step, here_step, there_step = (learning.learn(one, records).gradients for one in (whole, cpu, device))
    usual, gap = learning.relative(here_step, exact_step), learning.relative(there_step, exact_step)
    yield figure(f"{name}: the CPU's gradient from fp32", usual)
    yield at_most(f"{name}: the device's gradient from fp32", gap, ROUNDED * usual)


def _decisions(one: BuiltPolicy) -> str:
    return "tokens" if one.policy.spec.elements.length_axis is None else "texts"
