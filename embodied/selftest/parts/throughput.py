"""Act and training step of OpenVLA-OFT against the rate of a large matrix product, measured on the same device.

FLOPs are those that a decision needs by formula (:class:`embodied.protocols.CountsFlops`): recomputed layers do not
count. ``benchmarks/model.py`` measures more, in turns and several times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch

from embodied.learn.step.meters.mfu import measure, number_format
from embodied.protocols import CountsFlops
from embodied.selftest import learning
from embodied.selftest.large import LARGE, built, lacks_room
from embodied.selftest.measured import Measured, at_least, figure, skipped
from embodied.selftest.meters import peak_memory, seconds_of
from embodied.selftest.place import Place
from embodied.selftest.policies import OFT, BuiltPolicy, built_policy, question, to_device

ROUNDS = 3
LEAST_S = 1.0  # shortest round on a GPU
ACT, LEARN = (1, 8, 32), (1, 8)  # rows


def throughput(place: Place) -> Iterator[Measured]:
    """Measures decisions and samples a second, and which share of the matrix product's rate they use."""
    if why := lacks_room(place):
        yield skipped("7B, adapters, bf16", why)
        one, name = built_policy(place.device, *OFT, "actor.model.precision=fp32"), "small"
    else:
        one, name = built(place, LARGE), "7B"
    rate = measure(one.device, number_format(one.policy))
    yield figure(f"matrix product, {number_format(one.policy)}", rate / 1e12, "TFLOP/s")
    for rows in ACT:
        yield from _timed(f"{name}: act, {rows} rows", one, rows, _acts, False, rate, place)
    for rows in LEARN:
        yield from _timed(f"{name}: training step, {rows} rows", one, rows, _learns, True, rate, place)


def _timed(
    what: str,
    one: BuiltPolicy,
    rows: int,
    opened: Callable[[BuiltPolicy, int], Callable[[], Any]],
    training: bool,
    rate: float,
    place: Place,
) -> Iterator[Measured]:
    try:
        call = opened(one, rows)
        with peak_memory(one.device) as peak:
            call()
            once = seconds_of(call, 1, one.device)
            count = max(1, round(LEAST_S / once)) if place.on_gpu else 1
            seconds = median(seconds_of(call, count, one.device) / count for _ in range(ROUNDS))
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        yield skipped(what, "the GPU has too little memory for so many rows")
        return
    yield figure(f"{what}: rate", rows / seconds, "a second")
    yield figure(f"{what}: peak memory", peak[0] / 2**30, "GiB")
    assert isinstance(one.policy, CountsFlops)
    asked = question(one, rows)
    records = {**asked.obs, "actions": torch.zeros(rows)}
    flops = float(one.policy.flops({n: v.numpy() for n, v in records.items()}, training).sum())
    yield figure(f"{what}: FLOP/s", flops / seconds / 1e12, "TFLOP/s")
    yield at_least(f"{what}: share of the matrix product's rate", flops / seconds / rate, 1e-4)


def _acts(one: BuiltPolicy, rows: int) -> Callable[[], Any]:
    asked = question(one, rows).on(one.device)

    def call() -> None:
        with torch.inference_mode():
            one.policy.act(asked.obs, asked.noise, one.drawn)

    return call


def _learns(one: BuiltPolicy, rows: int) -> Callable[[], Any]:
    asked, engine = question(one, rows), learning.engine_of(one)
    records = to_device({**asked.obs, **learning.decide(one, asked)}, one.device)
    return lambda: learning.step(one, records, engine)
