"""Whether what answers behind a server is what answered first: fixed observations are asked again.

Answers of a repeatable server are equal but for rounding, which depends on what else it computes at the same time. One
that draws by itself answers otherwise each time; of it only what it says of itself is compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied.errors import PolicyChangedError
from embodied.instructions import fields_of
from embodied.random import Stream, generator
from embodied.types import ArraySpec, EnvSpec

COUNT = 3  # observations
ROUNDING = 1e-3  # of the size of a number among all answers: what rounding may change


@dataclass(frozen=True)
class Fingerprint:
    """What a server answered first; ``answers`` is None if it draws by itself."""

    facts: str  # what it says of itself, as JSON
    answers: np.ndarray | None  # numbers [COUNT, …]

    @property
    def short(self) -> str:
        """Twelve hexadecimal digits that stand for it."""
        data = self.facts.encode() if self.answers is None else self.answers.astype(np.float32).tobytes()
        return hashlib.sha256(data).hexdigest()[:12]

    def as_text(self) -> str:
        """Writes it as JSON."""
        answers = None if self.answers is None else self.answers.tolist()
        return json.dumps({"facts": self.facts, "answers": answers})

    @classmethod
    def from_text(cls, text: str) -> Fingerprint:
        """Reads what :meth:`as_text` has written."""
        found = json.loads(text)
        return cls(found["facts"], None if found["answers"] is None else np.asarray(found["answers"]))

    def check(self, other: Fingerprint, url: str) -> None:
        """Compares with what answers now. Raises PolicyChangedError if it is another policy."""
        if self.answers is None or other.answers is None:
            if self.facts != other.facts:
                raise _changed(url, "it says something else of itself")
        elif not alike(self.answers, other.answers):
            gap = ""
            if self.answers.shape == other.answers.shape:
                gap = f", by up to {np.abs(self.answers - other.answers).max():.3g}"
            raise _changed(url, f"it answers the same {COUNT} observations otherwise{gap}")


def _changed(url: str, how: str) -> PolicyChangedError:
    return PolicyChangedError(
        f"{url} serves another policy than before: {how}. No episode counts that both may have acted in",
        "serve the first policy again and repeat the command, or evaluate the new one from the beginning",
    )


def alike(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether answers to the same observations are equal but for rounding."""
    if one.shape != other.shape:
        return False
    numbers = one.reshape(-1, one.shape[-1] if one.ndim > 2 else 1).astype(np.float64)
    sizes = np.maximum(np.ptp(numbers, axis=0), np.abs(numbers).max(axis=0))  # of each number of an action
    gaps = np.abs(numbers - other.reshape(numbers.shape).astype(np.float64))
    return bool((gaps <= ROUNDING * np.maximum(sizes, 1e-6)).all())


def facts_of(told: Mapping[str, Any]) -> str:
    """What a server says of itself, as JSON with sorted keys."""
    return json.dumps(told, sort_keys=True, default=str)


def observations(env: EnvSpec) -> Sequence[tuple[dict[str, np.ndarray], str]]:
    """Returns the fixed observations of an env, the same in every run, with instructions."""
    found = []
    for number in range(COUNT):
        random = generator(0, Stream.MEASURED_NOISE, number)
        obs = {name: _drawn(env.obs[name], random) for name in fields_of(env)}
        found.append((obs, env.tasks[number % len(env.tasks)] if env.tasks else "do nothing"))
    return found


def _drawn(spec: ArraySpec, random: np.random.Generator) -> np.ndarray:
    kind = np.dtype(spec.dtype).kind
    if spec.dtype == "uint8":
        return random.integers(0, 256, spec.shape, np.uint8)
    return random.standard_normal(spec.shape).astype(spec.dtype) if kind == "f" else np.zeros(spec.shape, spec.dtype)
