"""Ways to compute attention against the one that is written out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec

import torch
from torch import Tensor

from embodied.selftest import learning
from embodied.selftest.measured import Measured, at_most, figure, skipped
from embodied.selftest.place import Place
from embodied.selftest.policies import OFT, BuiltPolicy, built_policy, question

ROWS = 8
AMPERE = 8  # major number of the capability of NVIDIA's GPUs from 2020 on
EXACT = 2e-4  # nats, in fp32
ROUNDED = 3.0  # times as far from fp32 as the attention that is written out, in bf16


def attention(place: Place) -> Iterator[Measured]:
    """Yields how far sdpa, and flash-attn if it is installed, are from the attention that is written out."""
    eager = _made(place, "eager", "fp32")
    asked = question(eager, ROWS)
    records = {**asked.obs, **learning.decide(eager, asked)}
    used = learning.counted(eager.policy.spec, records)
    truth, steps = _of(eager, records)
    values, _ = _of(_made(place, "sdpa", "fp32"), records)
    yield at_most("sdpa fp32: log-probs", learning.largest(values, truth, used), EXACT, "nats")
    values, gradients = _of(_made(place, "eager", "bf16"), records)
    usual, slope = learning.rms(values, truth, used), learning.relative(gradients, steps)
    yield figure("eager bf16: log-probs from fp32, root mean square", usual, "nats")
    for name in ("sdpa", "flash_attention_2"):
        if name == "flash_attention_2" and (why := _lacks_flash(place)):
            yield skipped(name, why)
            continue
        values, gradients = _of(_made(place, name, "bf16"), records)
        gap = learning.rms(values, truth, used)
        yield at_most(f"{name} bf16: log-probs from fp32, root mean square", gap, ROUNDED * usual, "nats")
        yield at_most(f"{name} bf16: gradient from fp32", learning.relative(gradients, steps), ROUNDED * slope)


def _lacks_flash(place: Place) -> str:
    """Why flash-attn cannot be measured; empty if it can."""
    if not place.on_gpu:
        return "it computes on a GPU alone"
    if find_spec("flash_attn") is None:
        return "the package flash-attn is not installed"
    major, minor = torch.cuda.get_device_capability(torch.device(place.device))
    if torch.version.cuda is not None and major < AMPERE:
        return f"flash-attn needs a GPU of capability {AMPERE}.0, and this one has {major}.{minor}"
    return ""


def _made(place: Place, implementation: str, precision: str) -> BuiltPolicy:
    keys = f"actor.model.attn_implementation={implementation}", f"actor.model.precision={precision}"
    return built_policy(place.device, *OFT, *keys)


def _of(one: BuiltPolicy, records: Mapping[str, Tensor]) -> tuple[Tensor, Mapping[str, Tensor]]:
    return learning.evaluate(one, records).logprobs, learning.learn(one, records).gradients
