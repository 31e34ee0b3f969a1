"""Frozen layers in 8 and 4 bits (bitsandbytes)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from embodied.selftest import learning
from embodied.selftest.measured import Measured, NotRun, at_least, at_most, figure
from embodied.selftest.place import Place
from embodied.selftest.policies import OFT, built_policy, question

ROWS = 8
SHARE = 0.25  # of what the codes themselves change: kernels of two devices add up in another order


def quantized(place: Place) -> Iterator[Measured]:
    """Measures how far products with quantized weights on the device are from the CPU's, and what they cost."""
    if find_spec("bitsandbytes") is None:
        raise NotRun("bitsandbytes is not installed: pip install 'embodied-rl[quantize]'")
    whole = built_policy("cpu", *OFT)
    asked = question(whole, ROWS)
    records = {**asked.obs, **learning.decide(whole, asked)}
    used, truth = learning.counted(whole.policy.spec, records), learning.evaluate(whole, records).logprobs
    for bits in (8, 4):
        key = f"actor.model.quantization_bit={bits}"
        cpu, device = built_policy("cpu", *OFT, key), built_policy(place.device, *OFT, key)
        here, there = (learning.evaluate(one, records).logprobs for one in (cpu, device))
        cost = learning.rms(here, truth, used)
        yield figure(f"{bits} bits: log-probs from whole weights, root mean square", cost, "nats")
        gap = learning.rms(there, here, used)
        yield at_most(f"{bits} bits: log-probs from the CPU's, root mean square", gap, SHARE * cost, "nats")
        step, usual = learning.learn(device, records), learning.learn(cpu, records)
        gap = learning.relative(step.gradients, usual.gradients)
        yield at_most(f"{bits} bits: gradient from the CPU's", gap, 0.05)
        codes = [p.nbytes for p in device.module.parameters() if not p.is_floating_point()]
        yield at_least(f"{bits} bits: layers of codes", len(codes), 1, f"of {sum(codes) / 2**20:.2f} MiB")
