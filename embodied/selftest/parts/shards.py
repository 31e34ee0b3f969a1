"""FSDP2 with one rank: the collectives of the device's own library, and the numbers of a policy that is not shared out.

A run of one process does not use it (:func:`embodied.parallel.sharding.strategy_of`), so it is asked for directly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from embodied.parallel.group import Group
from embodied.parallel.sharding import Shards
from embodied.schema import FsdpConfig
from embodied.selftest import learning
from embodied.selftest.measured import Measured, at_most, few_of, figure
from embodied.selftest.place import Place
from embodied.selftest.policies import OFT, TEXT, BuiltPolicy, built_policy, question, use

ROWS = 4
EXACT = 2e-4  # nats
GRADIENT = 1e-4  # tolerance, relative to the gradient's norm
WHOLE = {"openvla_oft": (*OFT, "actor.model.is_lora=false"), "causal_lm": TEXT}
"""Policies that are trained as a whole."""


def shards(place: Place) -> Iterator[Measured]:
    """Measures how far a policy that is sharded by FSDP is from one that is not."""
    with one_rank(place) as backend:
        yield figure("collectives", backend)
        for name, keys in WHOLE.items():
            yield from _compared(name, built_policy(place.device, *keys), built_policy(place.device, *keys))


def _compared(name: str, whole: BuiltPolicy, shared: BuiltPolicy) -> Iterator[Measured]:
    asked, spec = question(whole, ROWS), whole.policy.spec
    parallel = share(shared)
    wanted = learning.decide(whole, asked)
    with parallel.acting():
        found = learning.decide(shared, asked)
    yield few_of(f"{name}: other decisions", *learning.other_decisions(spec, found, wanted), 0.005)
    records = {**asked.obs, **wanted}
    used = learning.counted(spec, records)
    usual = learning.engine_of(whole)
    engine = learning.engine_of(shared, parallel)
    for number in ("first", "second"):
        step, plain = learning.learn(shared, records, engine), learning.learn(whole, records, usual)
        parallel.reshard()
        yield at_most(f"{name}: {number} update, loss", abs(step.loss - plain.loss), EXACT, "nats")
        gap = learning.relative(step.gradients, plain.gradients)
        yield at_most(f"{name}: {number} update, gradient", gap, GRADIENT)
        gap = learning.largest(step.after.logprobs, plain.after.logprobs, used)
        yield at_most(f"{name}: log-probs after the {number} update", gap, 10 * EXACT, "nats")


def share(built: BuiltPolicy) -> Shards:
    """Shards a policy by FSDP over the one rank that there is."""
    return Shards(built.policy, FsdpConfig(strategy="fsdp2"), Group(), built.device)


@contextmanager
def one_rank(place: Place) -> Iterator[str]:
    """Context with a process group of this process alone; yields the name of its collectives' library."""
    backend = "nccl" if place.on_gpu else "gloo"
    use(place.device)
    store = dist.HashStore()
    dist.init_process_group("cpu:gloo,cuda:nccl" if place.on_gpu else "gloo", store=store, rank=0, world_size=1)
    try:
        yield backend
    finally:
        dist.destroy_process_group()
