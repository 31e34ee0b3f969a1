"""One decision of an OpenVLA-OFT as a program: uint8 pictures, prompt, state and noise → actions in the env's units.

Everything between is inside: resizing, cropping and normalising pixels, the network with its adapters merged, drawing
tokens, and what they mean to the env. Shapes: B rows, K actions of A numbers, T = K·A tokens, N = 256 classes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from embodied.protocols import Policy
from embodied.types import Sampling

from ...shared.lora import merged_state
from ..files.load import full_weights
from ..network.config import N_BINS
from ..network.model import OpenVLAOFT
from ..parts import Parts
from ..tokens.processing import resize_by_products


class DecisionProgram(nn.Module):
    """The arithmetic of ``OpenVLAOFTPolicy.act`` in float32, as a function of tensors alone.

    Args:
        parts: of a policy that is bound to its env; they stay as they are.
        by_products: resize pictures by products of matrices, for formats without a bicubic resize with antialiasing.
    """

    meaning: Tensor

    def __init__(self, parts: Parts, by_products: bool = False) -> None:
        super().__init__()
        self.network = merged_network(parts)
        self.pixels = copy.deepcopy(parts.pixels).cpu()
        if by_products:
            self.pixels.bicubic = resize_by_products
        self.proprio = parts.now.statistics.proprio
        self.register_buffer("meaning", meanings(parts))

    def forward(
        self, images: Tensor, prompt: Tensor, present: Tensor, noise: Tensor, greedy: Tensor, temperature: Tensor,
        state: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Inputs and outputs are those of :mod:`...shared.programs.facts`."""
        logp = self.log_probs(images, prompt, present, temperature, state)
        classes = torch.where(greedy.unsqueeze(1), logp.argmax(dim=-1), drawn(logp, noise))
        chosen = classes.unsqueeze(-1)
        actions = self.meaning.expand(images.shape[0], -1, -1).gather(-1, chosen).squeeze(-1)
        net = self.network.net
        return (
            actions.unflatten(1, (net.num_action_chunks, net.action_dim)),
            (classes + net.first_action_id).int(),
            logp.gather(-1, chosen).squeeze(-1),
        )

    def log_probs(
        self, images: Tensor, prompt: Tensor, present: Tensor, temperature: Tensor, state: Tensor | None = None
    ) -> Tensor:
        """Computes log-probabilities of all action token classes: float32 [B, T, N]."""
        if state is not None and self.proprio is not None:
            state = self.proprio.normalize(state)
        pixels = self.pixels(images[:, : self.network.net.num_images])
        read = self.network(pixels, prompt, present, state)
        return (read.logits / temperature.view(-1, 1, 1)).log_softmax(dim=-1)


def drawn(logp: Tensor, uniform: Tensor) -> Tensor:
    """Draws classes int64 [B, T] as :func:`...shared.sampling.draw` does. Classes are counted where it searches a
    sorted row, since ONNX has no such search."""
    cdf = logp.double().exp().cumsum(dim=-1)
    total = cdf[..., -1:]
    below = (cdf <= uniform.double().unsqueeze(-1) * total).sum(dim=-1)
    return torch.minimum(below, (cdf < total).sum(dim=-1))


def merged_network(parts: Parts) -> OpenVLAOFT:
    """Copies the network in float32 to the CPU, adapters merged; of its output head the rows of action tokens alone."""
    with torch.device("meta"):
        network = OpenVLAOFT(parts.model.net, parts.model.eos_id)
    network.load_state_dict(merged_state(parts.model, full_weights(parts.model, parts.settings)), assign=True)
    language = network.language_model
    language.rebuild_rotary()
    head = nn.Linear(language.lm_head.in_features, N_BINS, bias=False, device="meta")
    head.weight = nn.Parameter(language.lm_head.weight[language.action_rows].detach().clone())
    language.lm_head, language.action_rows = head, slice(0, N_BINS)
    return network.eval().requires_grad_(False)


def meanings(parts: Parts) -> Tensor:
    """Decodes each action token class at each place of a chunk, as the policy itself does: float32 [1, T, N]."""
    net = parts.model.net
    classes = torch.arange(N_BINS, device=parts.device).unsqueeze(1).expand(-1, net.action_tokens)
    return parts.decode_actions(classes + net.first_action_id).flatten(1).T.unsqueeze(0).contiguous().cpu()


# -- against the policy ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """Reference answers to a program's inputs: tokens, and the distribution that they come from."""

    tokens: Tensor  # int64 [B, T]
    logp: Tensor  # float32 [B, T, N]


def policy_answers(
    policy: Policy, device: torch.device, inputs: Mapping[str, Tensor], texts: Sequence[str], sampling: Sampling
) -> Reference:
    """Computes the policy's own answers by ``act`` and ``evaluate``, as reference of a program.

    Args:
        inputs: of the program.
    """
    obs = {name: inputs[name].to(device) for name in ("images", "state") if name in inputs}
    obs |= {name: rows.to(device) for name, rows in policy.encode_instructions(texts).items()}
    fields = policy.act(obs, inputs["noise"].to(device), sampling).fields
    with torch.no_grad():
        logp = policy.evaluate({**obs, **fields}, sampling, distribution=True).distribution
    assert isinstance(logp, Tensor)
    return Reference(fields["action_tokens"].long().cpu(), logp.cpu())


@torch.no_grad()
def module_answers(module: DecisionProgram, inputs: Mapping[str, Tensor]) -> Reference:
    """Computes a module's answers before it is traced, as reference of its program."""
    seen = {name: inputs[name] for name in ("images", "prompt", "present", "temperature", "state") if name in inputs}
    return Reference(module(*inputs.values())[1].long(), module.log_probs(**seen))


@dataclass(frozen=True)
class Difference:
    """Largest differences of a program from a reference. A token that differs where the reference itself is undecided
    within the tolerance is counted and is no error."""

    actions: float  # unit of the env's actions
    logprobs: float  # nats
    undecided: int = 0

    @property
    def largest(self) -> float:
        """The larger of the two differences."""
        return max(self.actions, self.logprobs)

    def __or__(self, other: Difference) -> Difference:
        undecided = self.undecided + other.undecided
        return Difference(max(self.actions, other.actions), max(self.logprobs, other.logprobs), undecided)


def difference(
    reference: Reference, answers: Mapping[str, Tensor], inputs: Mapping[str, Tensor], meaning: Tensor, first: int,
    tolerance: float,
) -> Difference:  # fmt: skip
    """Compares a program's answers with reference answers.

    Args:
        meaning: of :func:`meanings`.
        first: id of the first action token.
    """
    classes, own = answers["action_tokens"].long() - first, reference.tokens - first
    table = meaning.expand(len(classes), -1, -1)
    means, meant = (table.gather(-1, c.unsqueeze(-1)).squeeze(-1) for c in (classes, own))
    other = classes != own
    excused = other & _undecided(reference.logp, classes, inputs, tolerance)
    wrong = torch.where(other & ~excused, (means - meant).abs(), 0.0)
    actions = torch.maximum(wrong, (answers["actions"].flatten(1) - means).abs())
    logp = reference.logp.gather(-1, classes.unsqueeze(-1)).squeeze(-1)
    return Difference(_largest(actions), _largest((answers["logprobs"] - logp).abs()), int(excused.sum()))


def _largest(gaps: Tensor) -> float:
    """Infinite if one of them is no number."""
    return gaps.nan_to_num(nan=torch.inf, posinf=torch.inf).max().item()


def _undecided(logp: Tensor, classes: Tensor, inputs: Mapping[str, Tensor], tolerance: float) -> Tensor:
    """Returns whether the reference would have chosen ``classes`` as well if its numbers were moved by ``tolerance``:
    bool [B, T]."""
    near_best = logp.amax(-1) - logp.gather(-1, classes.unsqueeze(-1)).squeeze(-1) <= tolerance
    cdf = logp.double().exp().cumsum(-1)
    cdf = cdf / cdf[..., -1:]
    upper = cdf.gather(-1, classes.unsqueeze(-1)).squeeze(-1)
    lower = upper - logp.gather(-1, classes.unsqueeze(-1)).squeeze(-1).double().exp()
    uniform = inputs["noise"].double()
    drawn_so = (uniform >= lower - tolerance) & (uniform <= upper + tolerance)
    return torch.where(inputs["greedy"].unsqueeze(1), near_best, drawn_so)
