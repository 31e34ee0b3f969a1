"""What a dry run counts of the device's memory, against what the same passes take."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from embodied.learn.step.meters.live_bytes import LiveBytes
from embodied.parallel.group import Group
from embodied.run.build.demonstrations import Demonstrated
from embodied.run.memory.say import plan
from embodied.selftest import learning
from embodied.selftest.large import LARGE, built, lacks_room
from embodied.selftest.measured import Measured, at_most, figure, skipped
from embodied.selftest.place import Place
from embodied.selftest.policies import OFT, WIDE, BuiltPolicy, built_policy, configured, question

PASS = ("actor.global_batch_size=2", "actor.micro_batch_size=2", "rollout.policy_batch=2", "runner.max_epochs=2")
LARGE_PASS = ("actor.global_batch_size=1", "actor.micro_batch_size=1", "rollout.policy_batch=1", "runner.max_epochs=2")
SHARE = 0.1  # tolerance, relative to the count
LIBRARIES = 64 * 2**20  # bytes that CUDA's libraries take as tensors for themselves
GIB = 2**30


def memory(place: Place) -> Iterator[Measured]:
    """Measures the memory of a small network, and of one of 7B parameters where it fits, against what a dry
    run counts."""
    keys: tuple[str, ...] = (*(WIDE if place.on_gpu else OFT), *PASS)
    count = counted(place, keys)
    if place.on_gpu:
        yield from _measured("small", built_policy(place.device, *keys), count)
    else:
        yield from _live("small", place, keys, count)
    keys = (*LARGE, *LARGE_PASS)
    if why := lacks_room(place):
        yield skipped("7B, adapters, bf16", why)
        return
    yield from _measured("7B, adapters, bf16", built(place, keys), counted(place, keys))


def counted(place: Place, keys: tuple[str, ...]) -> int:
    """Returns the bytes of tensors on the device that a dry run counts for a configuration."""
    taken = plan(*configured(place.device, *keys), Group(), Demonstrated((), ())).taken
    return sum(size for name, size in taken.device.items() if name != "CUDA")


def _measured(name: str, one: BuiltPolicy, count: int) -> Iterator[Measured]:
    """Yields the peak of two updates and a call of the policy between them, on a GPU."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(one.device)
    _passes(one)
    peak = torch.cuda.max_memory_allocated(one.device)
    yield figure(f"{name}: counted by a dry run", count / GIB, "GiB")
    yield figure(f"{name}: peak of reserved memory", torch.cuda.max_memory_reserved(one.device) / GIB, "GiB")
    yield figure(f"{name}: peak of tensors", peak / GIB, "GiB")
    limit = (SHARE * count + LIBRARIES) / GIB
    yield at_most(f"{name}: peak from the count", abs(peak - count) / GIB, limit, "GiB")


def _live(name: str, place: Place, keys: tuple[str, ...], count: int) -> Iterator[Measured]:
    """Yields the peak of the bytes of tensors that live in this process, for a CPU."""
    with (live := LiveBytes()):
        _passes(built_policy(place.device, *keys))
    yield figure(f"{name}: counted by a dry run", count / GIB, "GiB")
    yield figure(f"{name}: peak of live tensors", live.peak / GIB, "GiB")
    limit = (SHARE * count + 2**20) / GIB
    yield at_most(f"{name}: peak from the count", abs(live.peak - count) / GIB, limit, "GiB")


def _passes(one: BuiltPolicy) -> None:
    rows = one.config.actor.micro_batch_size
    asked, engine = question(one, rows), learning.engine_of(one)
    records = {**asked.obs, **learning.decide(one, asked)}
    for _ in range(2):  # the first makes the optimizer's state
        learning.step(one, records, engine)
