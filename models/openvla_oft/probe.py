"""Tests a checkpoint on the first observations: which attention mask fits it, and whether its prior over actions works.

A network under the wrong mask, with an untrained language head (checkpoints with an L1 head) or with another prompt
still gives actions, but useless ones. Two numbers show it at once: the probability of text tokens at the action
positions, and the entropy over the 256 action tokens (log 256 = 5.5 nats is pure chance).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from embodied.types import Sampling

from ..shared import sampling as distribution
from .network.config import N_BINS
from .network.model import Inputs, ReadOut
from .parts import Parts

MASKS = ("bidirectional", "causal")
CLEARLY = 0.9  # a mask is clearly better if its nats are at most this share of the other's
MIN_INSIDE = 0.5  # least probability on action tokens; below it the prior is called dead
MAX_ENTROPY = 0.9 * math.log(N_BINS)  # largest entropy in nats; above it the prior is called uniform


@dataclass(frozen=True)
class Reading:
    """Measures how well a network's predictions fit action tokens: means over observations and action positions, at
    temperature 1."""

    inside: float  # probability of the 256 action tokens among all text tokens, 0 … 1
    entropy: float  # nats, over the 256
    nll: float | None = None  # nats per demonstrated action token, over the 256

    @property
    def nats(self) -> float:
        """Misfit of a network: negative log-likelihood of demonstrations if there are any, else entropy."""
        return self.entropy if self.nll is None else self.nll


def read(parts: Parts, inputs: Inputs, tokens: Tensor | None = None) -> Reading:
    """Measures a network's fit to action tokens in one forward pass. Only here the logits of the whole vocabulary are
    computed.

    Args:
        tokens: int [B, T], demonstrated action tokens of the inputs.
    """

    def greedy(logits: Tensor, position: int) -> Tensor:
        return logits.argmax(-1)

    with torch.no_grad():
        out = parts.decode(inputs, greedy)[0] if tokens is None else parts.read_out(inputs, tokens.long())
        logp = distribution.log_probs(out.logits, Sampling())
        nll = None
        if tokens is not None:
            classes = tokens.long() - parts.model.net.first_action_id
            nll = -logp.gather(-1, classes.unsqueeze(-1)).mean().item()
        return Reading(_inside(parts, out), distribution.entropy(logp).mean().item(), nll)


def _inside(parts: Parts, out: ReadOut) -> float:
    net, head = parts.model.net, parts.model.language_model.lm_head
    with parts.number_format():
        logits = head(out.hidden)[..., : net.vocab_size].float()
    return logits.softmax(-1)[..., net.first_action_id :].sum(-1).mean().item()


def compare_masks(parts: Parts, inputs: Inputs, tokens: Tensor | None = None) -> dict[str, Reading]:
    """Measures the network's fit under each attention mask. Afterwards the policy has its own mask again."""
    before, readings = parts.model.net.attention, {}
    try:
        for mask in MASKS:
            parts.model.set_attention(mask)
            readings[mask] = read(parts, inputs, tokens)
    finally:
        parts.model.set_attention(before)
    return readings


def settle_attention(parts: Parts, inputs: Inputs, tokens: Tensor | None = None) -> str:
    """Chooses the attention mask that fits ``inputs`` clearly better, or leaves it open. Returns a message
    for the user."""
    readings = compare_masks(parts, inputs, tokens)
    best, other = sorted(MASKS, key=lambda mask: readings[mask].nats)
    measure = "entropy" if tokens is None else "negative log-likelihood"
    parts.now.attention_probe = {mask: reading.nats for mask, reading in readings.items()}
    numbers = f"{measure} {best} {readings[best].nats:.2f}, {other} {readings[other].nats:.2f} nats"
    if readings[best].nats > CLEARLY * readings[other].nats:
        return (
            f"warning: attention: auto cannot tell ({numbers}); {parts.model.net.attention} stays. Set "
            "actor.model.attention to what the checkpoint was trained with: the wrong mask ruins it silently"
        )
    parts.model.set_attention(best)
    parts.now.attention_open = False
    return f"attention: {best} fits the checkpoint ({numbers}); actor.model.attention={best} skips this probe"


def look(parts: Parts, inputs: Inputs) -> list[str]:
    """Probes a checkpoint on first observations: chooses its attention mask, warns about a bad prior. Random weights
    have no prior to look at."""
    lines = [settle_attention(parts, inputs)] if parts.now.attention_open else []
    if parts.settings.probe and parts.settings.model_path is not None:
        lines += warnings(read(parts, inputs))
    return lines


def warnings(reading: Reading) -> list[str]:
    """Warns about a bad prior; empty for a good one."""
    lines = []
    if reading.inside < MIN_INSIDE:
        lines.append(
            f"warning: only {100 * reading.inside:.1f} % of the probability at the action positions lies on action "
            "tokens: this language head was not trained for them (a checkpoint with an L1 head?), or attention, stop "
            "token or prompt are not those of its training; reinforcement learning would start at chance"
        )
    if reading.entropy > MAX_ENTROPY:
        lines.append(
            f"warning: the action distribution is nearly uniform ({reading.entropy:.2f} of {math.log(N_BINS):.2f} "
            "nats): the policy acts at random; check actor.model.attention, stop_token, image keys and the checkpoint"
        )
    return lines
