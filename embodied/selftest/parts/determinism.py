"""The same twice, bit by bit; of what a GPU adds up in any order, within rounding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from embodied.selftest import learning, twice
from embodied.selftest.measured import Measured, none_of
from embodied.selftest.place import Place
from embodied.selftest.policies import SMALL, built_policy, question

ROWS = 8


def determinism(place: Place) -> Iterator[Measured]:
    """Yields how many tensors of act, evaluate and an update differ between two policies that were built alike."""
    for name, keys in SMALL.items():
        one, other = (_all(place, keys) for _ in range(2))
        for what in ("weights", "act", "evaluate"):
            differ = learning.unequal(one[what], other[what])
            yield none_of(f"{name}: {what}, tensors that differ", differ, len(one[what]))
        what = f"{name}: gradient"
        yield from twice.gradients(what, one["gradient"], other["gradient"], place.on_gpu)
        what = f"{name}: weights after the update"
        yield from twice.weights(what, one["updated"], other["updated"], other["weights"], place.on_gpu)


def _all(place: Place, keys: tuple[str, ...]) -> dict[str, Mapping[str, Tensor]]:
    one = built_policy(place.device, *keys)
    asked, weights = question(one, ROWS), learning.trained(one)
    decision = learning.decide(one, asked)
    records = {**asked.obs, **decision}
    found = learning.fields_of(learning.evaluate(one, records))
    step = learning.learn(one, records)
    return {
        "weights": weights, "act": decision, "evaluate": found, "gradient": step.gradients, "updated": step.weights,
    }  # fmt: skip
