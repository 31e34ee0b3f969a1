"""One decision of a flow policy as a program: uint8 pictures, prompt, state and noise → actions in the env's units.

Inside are the pictures' preparation, the state's normalisation, the network with its adapters merged, all denoising
steps, and what the chunk means to the env. The noise that the chunk begins with is an input.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from embodied.protocols import Policy
from embodied.types import Sampling

from ...shared.lora import merged_state
from ..network.model import Context, FlowVLA
from ..parts import Parts


class Exportable(Policy, Protocol):
    """What is read of a flow policy here. Its class imports this room, so that this room does not import it."""

    @property
    def parts(self) -> Parts: ...
    def decide(self, context: Context, noise: Tensor, sampling: Sampling) -> dict[str, Tensor]: ...
    def sampler(self, sampling: Sampling) -> Mapping[str, Any]: ...
    def pictures(self) -> Mapping[str, Any]: ...


class DecisionProgram(nn.Module):
    """The arithmetic of ``FlowVLAPolicy.act`` in float32 on the CPU, as a function of tensors alone.

    Args:
        policy: bound to its env; it stays as it is.
    """

    def __init__(self, policy: Exportable) -> None:
        super().__init__()
        self.policy = in_float32(policy)

    def forward(
        self, images: Tensor, prompt: Tensor, present: Tensor, noise: Tensor, greedy: Tensor, temperature: Tensor,
        state: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Inputs are those of :mod:`...shared.programs.facts`, outputs the fields of ``spec.decision``. The trunk reads
        an observation once for both ways to decide."""
        obs = {"images": images, "prompt": prompt, "prompt_mask": present, "state": state}
        context = self.policy.parts.read(obs)
        likeliest, drawn = (self.policy.decide(context, noise, Sampling(do_sample=drawn)) for drawn in (False, True))
        shown = {name: greedy.view(-1, *[1] * (values.ndim - 1)) for name, values in drawn.items()}
        return tuple(torch.where(shown[name], likeliest[name], drawn[name]) for name in self.policy.spec.decision)


def in_float32(policy: Exportable) -> Any:
    """Copies a policy in float32 to the CPU, adapters merged."""
    parts = policy.parts
    with torch.device("meta"):
        model = FlowVLA(parts.model.sizes)
    model.load_state_dict(merged_state(parts.model), assign=True)
    heads: dict[str, Any] = {
        name: None if (head := getattr(parts, name)) is None else copy.deepcopy(head).float().cpu()
        for name in ("value_head", "noise_head", "noise_policy")
    }
    settings = replace(parts.settings, precision="fp32", is_lora=False, gradient_checkpointing=False)
    copied = replace(parts, model=model, settings=settings, now=copy.copy(parts.now), compiled=None, **heads)
    again: Any = type(policy)
    return again(copied).eval().requires_grad_(False)


# -- against the policy ----------------------------------------------------------------------------------------------


def policy_answers(
    policy: Exportable, inputs: Mapping[str, Tensor], texts: Sequence[str], sampling: Sampling
) -> dict[str, Tensor]:
    """Computes the policy's own answers, as reference of a program.

    Args:
        inputs: of the program.
    """
    device = policy.parts.device
    obs = {name: inputs[name].to(device) for name in ("images", "state")}
    obs |= {name: rows.to(device) for name, rows in policy.encode_instructions(texts).items()}
    fields = policy.act(obs, inputs["noise"].to(device), sampling).fields
    return {name: values.cpu() for name, values in fields.items()}


def gaps(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> dict[str, float]:
    """Largest difference of each field of a decision, beside numbers above 1 as a share of the largest; infinite where
    one is no number."""
    apart = {}
    for name, values in wanted.items():
        difference = (found[name].double() - values.double()).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
        apart[name] = (difference.max() / values.double().abs().max().clamp(min=1.0)).item()
    return apart
