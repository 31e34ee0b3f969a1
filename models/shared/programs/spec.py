"""What a program decides and draws with, as JSON: the parts of a policy's spec that it needs to answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from embodied.types import ArraySpec, Elements, EnvSpec, Noise, PolicySpec


def to_json(spec: PolicySpec) -> dict[str, Any]:
    """Converts the parts of a spec to values that ``json.dumps`` takes."""
    return {
        "num_action_chunks": spec.num_action_chunks,
        "decision": {name: asdict(field) for name, field in spec.decision.items()},
        "elements": asdict(spec.elements), "noise": asdict(spec.noise), "categories": dict(spec.categories),
        "sampling": list(spec.sampling),
    }  # fmt: skip


def from_json(data: Mapping[str, Any], env: EnvSpec) -> PolicySpec:
    """Makes a spec from what :func:`to_json` returned. Raises KeyError, TypeError or ValueError if it is another."""
    decision = {str(name): _field(field) for name, field in data["decision"].items()}
    elements, noise, count = data["elements"], data["noise"], _count(data["num_action_chunks"])
    action, length = _axis(elements["action_axis"]), _axis(elements["length_axis"])
    scored = Elements(_shape(elements["shape"]), action, length, tuple(map(str, elements["levels"])))
    drawn = Noise(_shape(noise["shape"]), str(noise["kind"]), _count(noise["uniform"]), _count(noise["greedy"]))
    if drawn.kind not in ("uniform", "normal") or max(drawn.uniform, drawn.greedy) > (*drawn.shape, 0)[0]:
        raise ValueError(f"noise is {noise}")
    if decision["actions"] != (wanted := env.action.field(count)) or decision["logprobs"].dtype != "float32":
        raise ValueError(f"a decision is {decision}, expected actions as {wanted}, and log-probs of float32")
    return PolicySpec(
        count, decision, scored, drawn, entropy=False, distribution=False,
        sampling=tuple(data.get("sampling", PolicySpec.sampling)),
        categories={str(name): _count(most) for name, most in data["categories"].items()},
    )  # fmt: skip


def of_tokens(num_action_chunks: int, action_dim: int, categories: int) -> PolicySpec:
    """Makes the spec of a program that says none: it draws a token for each number of its actions."""
    shape = (num_action_chunks, action_dim)
    tokens = num_action_chunks * action_dim
    decision = {
        "action_tokens": ArraySpec((tokens,), "int32"),
        "actions": ArraySpec(shape, "float32"),
        "logprobs": ArraySpec((tokens,), "float32"),
    }
    return PolicySpec(
        num_action_chunks, decision, Elements(shape, action_axis=0), Noise((tokens,)),
        categories={"action_tokens": categories}, entropy=False, distribution=False,
    )  # fmt: skip


def _field(data: Mapping[str, Any]) -> ArraySpec:
    return ArraySpec(_shape(data["shape"]), np.dtype(data["dtype"]).name)


def _shape(data: Any) -> tuple[int, ...]:
    return tuple(map(_count, data))


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no whole number of 0 or more")
    return value


def _axis(value: Any) -> int | None:
    return None if value is None else _count(value)
