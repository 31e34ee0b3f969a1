"""The network from normalised pixels to action logits.

Sequence (patches of all images, one proprio token if there is one, prompt ending in the token '▁'), parallel decoding:

    [BOS] [patches × n] [proprio?] [prompt … ▁] [T zero embeddings] [</s>?]
                                            └── read-out ──┘

The placeholders are zero vectors; only their positions differ. The read-out is shifted by one: the last prompt token
predicts action token 0, placeholder i−1 predicts action token i. In autoregressive decoding (OpenVLA before OFT) the
action tokens themselves take the placeholders' place and there is no stop token; the read-out is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .config import NetConfig
from .language import LanguageModel
from .projector import Projector, ProprioProjector
from .vision import VisionBackbone


class ReadOut(NamedTuple):
    """What a forward pass gives: hidden states and logits of the action tokens."""

    hidden: Tensor  # [B, T, d]; hidden[:, 0] belongs to the last prompt token
    logits: Tensor  # float32 [B, T, 256], of token ids first_action_id … first_action_id + 255


class Inputs(NamedTuple):
    """The network's inputs for B observations."""

    pixels: Tensor  # float [B, 6·n, H, W], normalised
    prompt: Tensor  # int64 [B, L]: BOS, padding, then the text's tokens
    present: Tensor | None = None  # bool [B, L], False at padding; None = no padding
    proprio: Tensor | None = None  # float [B, S], normalised; given if and only if there is a proprio token


class OpenVLAOFT(nn.Module):
    """The whole OpenVLA-OFT network. Parameters have the checkpoints' names; ``proprio_projector`` is a separate file
    there."""

    def __init__(self, config: NetConfig, eos_id: int, attn_implementation: str = "sdpa") -> None:
        super().__init__()
        self.net = config
        self.eos_id = eos_id
        self.vision_backbone = VisionBackbone(config)
        self.projector = Projector(config)
        self.language_model = LanguageModel(config, attn_implementation)
        if config.proprio_dim:
            self.proprio_projector = ProprioProjector(config.proprio_dim, config.hidden_size)

    def forward(
        self,
        pixels: Tensor,
        prompt: Tensor,
        present: Tensor | None = None,
        proprio: Tensor | None = None,
        tokens: Tensor | None = None,
    ) -> ReadOut:
        """Computes hidden states and action logits of B observations in one pass. The first four arguments are those of
        :class:`Inputs`; ``tokens`` are the decoded action tokens.

        Args:
            tokens: int64 [B, T], the decoded tokens; only autoregressive networks read them.
        """
        inputs = Inputs(pixels, prompt, present, proprio)
        context = self._context(inputs)
        prefix = self._prefix(prompt, context)
        embeddings = torch.cat([prefix, *self._tail(prompt, prefix, tokens)], dim=1)
        hidden = self.language_model(embeddings, self._present(present, context.shape[1], self.net.tail_tokens))
        last_prompt = prefix.shape[1] - 1
        read = hidden[:, last_prompt : last_prompt + self.net.action_tokens]
        return ReadOut(read, self.language_model.action_logits(read))

    def generate(self, inputs: Inputs, choose: Callable[[Tensor, int], Tensor]) -> tuple[ReadOut, Tensor]:
        """Decodes action tokens one by one with cached keys and values; ``choose`` picks each from logits.

        Args:
            choose: (logits float32 [B, 1, 256], position 0 … T−1) → class int64 [B, 1].

        Returns:
            the read-out, and the classes int64 [B, T].
        """
        context, cache = self._context(inputs), self.language_model.new_cache()
        embeddings = self._prefix(inputs.prompt, context)
        hidden: list[Tensor] = []
        logits: list[Tensor] = []
        classes: list[Tensor] = []
        for position in range(self.net.action_tokens):
            present = self._present(inputs.present, context.shape[1], position)
            hidden.append(self.language_model(embeddings, present, cache)[:, -1:])
            logits.append(self.language_model.action_logits(hidden[-1]))
            classes.append(choose(logits[-1], position))
            embeddings = self.language_model.embed(classes[-1] + self.net.first_action_id)
        return ReadOut(torch.cat(hidden, 1), torch.cat(logits, 1)), torch.cat(classes, 1)

    def set_attention(self, attention: str) -> None:
        """Changes the mask of a built network, e.g. after a probe of its checkpoint."""
        self.net = self.net.with_attention(attention)
        self.language_model.set_attention(attention)

    def _context(self, inputs: Inputs) -> Tensor:
        """Embeddings between BOS and prompt: [B, n·P (+ 1), d]."""
        language = self._instruction(inputs) if self.net.film else None
        patches = self.projector(self.vision_backbone(inputs.pixels, language))
        if inputs.proprio is None:
            return patches
        return torch.cat([patches, self.proprio_projector(inputs.proprio).to(patches.dtype)], dim=1)

    def _instruction(self, inputs: Inputs) -> Tensor:
        """Mean embedding [B, d] of every token that is neither image nor action: BOS, prompt, stop token."""
        text = self.language_model.embed(inputs.prompt).float()
        weight = torch.ones_like(text[..., :1]) if inputs.present is None else inputs.present.unsqueeze(-1).float()
        total, count = (text * weight).sum(1), weight.sum(1)
        if self.net.stop_token:
            total, count = total + self._stop(inputs.prompt)[:, 0].float(), count + 1
        return total / count

    def _prefix(self, prompt: Tensor, context: Tensor) -> Tensor:
        text = self.language_model.embed(prompt)
        return torch.cat([text[:, :1], context.to(text.dtype), text[:, 1:]], dim=1)

    def _tail(self, prompt: Tensor, prefix: Tensor, tokens: Tensor | None) -> list[Tensor]:
        if self.net.autoregressive:
            assert tokens is not None, "an autoregressive network is evaluated on the tokens that it gave"
            return [self.language_model.embed(tokens[:, :-1])]
        slots = prefix.new_zeros(prefix.shape[0], self.net.action_tokens, prefix.shape[2])
        return [slots, self._stop(prompt)] if self.net.stop_token else [slots]

    def _stop(self, prompt: Tensor) -> Tensor:
        """Embedding of </s>: [B, 1, d]."""
        return self.language_model.embed(torch.full_like(prompt[:, :1], self.eos_id))

    def _present(self, present: Tensor | None, context: int, tail: int) -> Tensor | None:
        """Stretch the prompt's mask over the context and ``tail`` tokens behind the prompt."""
        if present is None:
            return None
        ones = present.new_ones(present.shape[0], context + tail)
        return torch.cat([present[:, :1], ones[:, :context], present[:, 1:], ones[:, context:]], 1)
