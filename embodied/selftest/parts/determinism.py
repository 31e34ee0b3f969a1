"""The same twice, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from embodied.selftest import learning
from embodied.selftest.measured import Measured, none_of
from embodied.selftest.place import Place
from embodied.selftest.policies import SMALL, made, question

ROWS = 8


def determinism(place: Place) -> Iterator[Measured]:
    """Yields how many tensors of act, evaluate and an update differ between two policies that were built alike."""
    for name, keys in SMALL.items():
        first, second = (dict(_all(place, keys)) for _ in range(2))
        for what in ("act", "evaluate", "gradient", "weights after the update"):
            one, other = ({k: v for k, v in side.items() if k.startswith(f"{what}/")} for side in (first, second))
            yield none_of(f"{name}: {what}, tensors that differ", learning.unequal(one, other), len(one))


def _all(place: Place, keys: tuple[str, ...]) -> Iterator[tuple[str, Tensor]]:
    one = made(place.device, *keys)
    asked = question(one, ROWS)
    decision = learning.decide(one, asked)
    yield from ((f"act/{name}", values) for name, values in decision.items())
    records = {**asked.obs, **decision}
    found = learning.fields_of(learning.evaluate(one, records))
    yield from ((f"evaluate/{name}", values) for name, values in found.items())
    step = learning.learn(one, records)
    yield from ((f"gradient/{name}", values) for name, values in step.gradients.items())
    yield from ((f"weights after the update/{name}", values) for name, values in step.weights.items())
