"""The first message of a websocket: what the policy takes and gives (:mod:`embodied.client.wire` has the fields)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import embodied
from embodied.client import wire
from embodied.instructions import fields_of
from embodied.lib.spec_json import to_json
from embodied.protocols import Policy
from embodied.serving.limits import ServerLimits
from embodied.types import EnvSpec

MOST_TASKS = 100  # instructions of the training that are told


def metadata(
    policy: Policy,
    env: EnvSpec,
    keys: Mapping[str, str],
    limits: ServerLimits,
    *,
    greedy: bool,
    max_batch: int,
    requests: int = 1,
    continues: bool = False,
) -> dict[str, Any]:
    """Makes the metadata message that clients get first, in values that :func:`embodied.client.wire.pack` takes.

    Args:
        requests: most requests of one frame.
    """
    spec, chunk = to_json(env), policy.spec.num_action_chunks
    shape = env.action.field(chunk).shape
    return {
        "server": "embodied",
        "protocol": wire.PROTOCOL,
        "version": embodied.__version__,
        "num_action_chunks": chunk,
        "action_shape": [*shape, 1][:2],  # a discrete action is one number
        "action": {
            name: [*map(float, value)] if name in ("low", "high") else value for name, value in spec["action"].items()
        },
        "control_hz": float(env.control_hz),
        "cameras": spec["cameras"],
        "observation": {
            name: {"shape": [*map(int, env.obs[name].shape)], "dtype": env.obs[name].dtype} for name in fields_of(env)
        },
        "keys": dict(keys),
        "tasks": spec["tasks"][:MOST_TASKS],
        "greedy": greedy,
        "greedy_noise": bool(policy.spec.noise.greedy),
        "draw": True,
        "noise": {**asdict(policy.spec.noise), "shape": [*policy.spec.noise.shape]},
        "continues": continues,
        "max_batch": max_batch,
        "requests": requests,
        "model": {str(name): str(fact) for name, fact in policy.describe().items()},
        "limits": {"max_bytes": limits.max_bytes, "idle_s": limits.idle_s, "rate": limits.rate},
    }
