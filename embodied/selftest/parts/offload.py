"""What waits in host memory: activations, optimizer, weights. No number may change, and the device gets memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor
from torch.distributed.tensor import DTensor

from embodied.learn.step.resting import RestingWeights
from embodied.selftest import learning, twice
from embodied.selftest.measured import Measured, at_least, at_most, none_of, skipped
from embodied.selftest.meters import allocated, peak_memory
from embodied.selftest.parts import shards
from embodied.selftest.place import Place
from embodied.selftest.policies import OFT, TEXT, WIDE, BuiltPolicy, built_policy, question

ROWS = 8
DEEP = (*OFT, "actor.model.num_hidden_layers=12", "actor.model.gradient_checkpointing=true")
ANYWAY = "the device is cpu: they lie in host memory anyway"
MIB = 2**20
GIVEN_BACK = 0.95  # share of the bytes that were moved; torch's allocator rounds


def offload(place: Place) -> Iterator[Measured]:
    """Measures whether moving weights to host memory changes numbers, and how much device memory it frees."""
    yield from _activations(place)
    yield from _optimizer(place)
    wide = WIDE if place.on_gpu else TEXT
    one = built_policy(place.device, *wide)
    asked = question(one, 2)
    records = {**asked.obs, **learning.decide(one, asked)}
    yield from weights("weights on the host", one, records)
    with shards.one_rank(place):
        shared = built_policy(place.device, *wide)
        yield from weights("weights on the host, fsdp2", shared, records, shards.share(shared).reshard)


def _activations(place: Place) -> Iterator[Measured]:
    found: list[learning.LearnedStep] = []
    peaks: list[float] = []
    for more in ((), ("actor.model.activation_offload=true",)):
        one = built_policy(place.device, *DEEP, *more)
        asked = question(one, ROWS * (4 if place.on_gpu else 1))
        records = {**asked.obs, **learning.decide(one, asked)}
        with peak_memory(one.device) as peak:
            found.append(learning.learn(one, records))
        peaks += peak
    yield from twice.gradients(
        "activations on the host: gradients", found[1].gradients, found[0].gradients, place.on_gpu
    )
    what = "activations on the host: peak of an update"
    yield at_most(what, peaks[1] / MIB, peaks[0] / MIB, "MiB") if place.on_gpu else skipped(what, ANYWAY)


def _optimizer(place: Place) -> Iterator[Measured]:
    found: list[learning.LearnedStep] = []
    freed = held = 0
    began: Mapping[str, Tensor] = {}
    for wanted in ("false", "true"):
        one = built_policy(place.device, *(WIDE if place.on_gpu else TEXT), f"actor.enable_offload={wanted}")
        asked, engine, began = question(one, ROWS), learning.engine_of(one), learning.trained(one)
        records = {**asked.obs, **learning.decide(one, asked)}
        learning.learn(one, records, engine)
        state = [v for each in engine.optimizer.state.values() for v in each.values() if isinstance(v, Tensor)]
        held = sum(values.nbytes for values in state if values.is_cuda)
        del state
        before = allocated(one.device)
        engine.rest()
        freed = before - allocated(one.device)
        found.append(learning.learn(one, records, engine))
    what = "optimizer on the host: weights after its return"
    yield from twice.weights(what, found[1].weights, found[0].weights, began, place.on_gpu)
    yield _freed("optimizer on the host: freed", freed, held, place.on_gpu)


def weights(
    name: str, built: BuiltPolicy, records: Mapping[str, Tensor], settle: Callable[[], None] = lambda: None
) -> Iterator[Measured]:
    """Measures what changes when a policy's weights rest in host memory, come back, and learn.

    Args:
        settle: called before they rest.
    """
    engine, before = learning.engine_of(built), learning.fields_of(learning.evaluate(built, records))
    settle()
    resting = RestingWeights(built.module, True)
    held = sum(local_shard(parameter).nbytes for parameter in built.module.parameters())
    has = allocated(built.device)
    resting.rest()
    freed = has - allocated(built.device)
    resting.wake()
    after = learning.fields_of(learning.evaluate(built, records))
    yield none_of(f"{name}: fields of evaluate that differ afterwards", learning.unequal(before, after), len(after))
    step = learning.learn(built, records, engine)
    gap = learning.largest(step.after.logprobs, after["logprobs"], learning.counted(built.policy.spec, records))
    yield at_least(f"{name}: log-probs that the next step moves", gap, 1e-6, "nats")
    yield _freed(f"{name}: freed", freed, held, built.device.type != "cpu")


def local_shard(parameter: Tensor) -> Tensor:
    """Returns this process's shard of a parameter; the parameter itself without shards."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def _freed(what: str, freed: int, held: int, on_gpu: bool) -> Measured:
    return at_least(what, freed / MIB, GIVEN_BACK * held / MIB, "MiB") if on_gpu else skipped(what, ANYWAY)
