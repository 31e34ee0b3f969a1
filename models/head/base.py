"""The frozen policy under a head: how it is built from ``actor.model.base``, and whether it is the one of before."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from embodied.errors import ConfigError, PolicyChangedError, unknown_name
from embodied.lib.targets import arguments_of, load_target
from embodied.protocols import HasExtraState, NamesWeights, Policy
from embodied.random import Stream, generator
from embodied.types import EnvSpec, Sampling

KEY = "actor.model.base"
SHORT = {"url": "embodied.models.served.build_policy", "folder": "embodied.learn.frozen.frozen_policy"}
"""Key of ``actor.model.base`` that needs no ``_target_`` beside it → what builds the policy then."""
IDENTITY = "base"
"""Name of the identity in a head's extra state; the base's own state stands behind ``base.``."""
NAME_ONE = (
    f"set {KEY}.url to the address of its server (ws://HOST:PORT), {KEY}.folder to its checkpoint, run or exported "
    f"folder, or {KEY}._target_ to what builds it"
)
GREEDY = Sampling(do_sample=False)
OBSERVATIONS = 3


def make_base(keys: Mapping[str, Any] | None) -> Policy:
    """Builds the frozen policy.

    Args:
        keys: one of ``url``, ``folder`` and ``_target_``, and arguments of what builds it. Null values of the first two
            are as if they were not there.

    Raises:
        ConfigError: none of them is set, or several are, or what they name cannot be built.
    """
    given = {name: value for name, value in (keys or {}).items() if value is not None or name not in SHORT}
    target = given.pop("_target_", None)
    named = [name for name in SHORT if name in given]
    if target is None and len(named) != 1:
        said = "names no policy" if not named else f"has {' and '.join(named)}, which name two policies"
        raise ConfigError(f"{KEY} {said}", NAME_ONE)
    target = SHORT[named[0]] if target is None else str(target)
    takes = arguments_of(target, f"{KEY}._target_")
    for name in given:
        if name not in takes:
            raise unknown_name("key", f"{KEY}.{name}", [f"{KEY}.{one}" for one in takes.named], "the key")
    for name, parameter in takes.named.items():
        if parameter.default is parameter.empty and name not in given:
            raise ConfigError(f"{KEY}.{name} is missing", f"set {KEY}.{name}; {target} needs it")
    policy: Any = load_target(target, f"{KEY}._target_")(**given)
    if not isinstance(policy, nn.Module):
        raise ConfigError(f"{target} builds a {type(policy).__name__}, which is no policy", NAME_ONE)
    frozen: Any = policy.requires_grad_(False).eval()
    return frozen


def state_of(base: Policy, env: EnvSpec) -> dict[str, str]:
    """Returns what identifies a base, and its own extra state: the extra state of a head around it."""
    own = base.extra_state() if isinstance(base, HasExtraState) else {}
    return {IDENTITY: identity_of(base, env), **{f"{IDENTITY}.{name}": text for name, text in own.items()}}


def check_state(base: Policy, env: EnvSpec, found: Mapping[str, str]) -> None:
    """Gives a base its own extra state back, and compares it with the one that a head was trained on.

    Raises:
        PolicyChangedError: it is another policy.
    """
    front = f"{IDENTITY}."
    own = {name.removeprefix(front): text for name, text in found.items() if name.startswith(front)}
    if own and isinstance(base, HasExtraState):
        base.load_extra_state(own)  # a served policy compares its answers here
    wanted, now = found.get(IDENTITY), identity_of(base, env)
    if wanted is not None and wanted != now:
        raise PolicyChangedError(
            f"the head was trained on the base {wanted}, and {KEY} is {now}, another policy",
            f"set {KEY} to the policy that it was trained on, with the same weights; or train a new head",
        )


def identity_of(base: Policy, env: EnvSpec) -> str:
    """Returns a short text that tells a base from others: a checksum of its weights, or of what it answers to fixed
    observations if its weights are out of sight. ``elsewhere`` = behind a server, which compares its answers itself."""
    if isinstance(base, NamesWeights):
        return "elsewhere"
    assert isinstance(base, nn.Module)
    weights = {**dict(base.named_parameters()), **dict(base.named_buffers())}
    if any(True for _ in base.parameters()):
        return f"weights {_checksum(weights):08x}"
    return f"answers {_checksum(_answers(base, env)):08x}"


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    found = 0
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        found = zlib.crc32(f"{name} {tensor.dtype} {[*tensor.shape]}".encode(), found)
        found = zlib.crc32(tensor.flatten().view(torch.uint8).numpy().tobytes(), found)
    return found


@torch.no_grad()
def _answers(base: Any, env: EnvSpec) -> dict[str, Tensor]:
    """The base's greedy answers to fixed observations, rounded to thousandths."""
    random = generator(0, Stream.MEASURED_NOISE, OBSERVATIONS)
    obs: dict[str, Tensor] = {}
    for name, field in env.obs.items():
        whole = field.dtype == "uint8"
        drawn = (
            random.integers(0, 256, (OBSERVATIONS, *field.shape))
            if whole
            else random.standard_normal((OBSERVATIONS, *field.shape))
        )
        obs[name] = torch.from_numpy(drawn.astype(field.dtype))
    texts = [(*env.tasks, "do nothing")[number % (len(env.tasks) + 1)] for number in range(OBSERVATIONS)]
    noise = torch.zeros(OBSERVATIONS, *base.spec.noise.shape)
    actions = base.act(obs | dict(base.encode_instructions(texts)), noise, GREEDY).fields["actions"]
    return {"actions": (actions.double() * 1000).round().to(torch.int64)}
