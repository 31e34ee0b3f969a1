"""The network from normalised pixels to action logits.

Sequence (patches of all images, one proprio token if there is one, prompt ending in the token '▁'):

    [BOS] [patches × n] [proprio?] [prompt … ▁] [T zero embeddings] [</s>?]
                                            └── read-out ──┘

The placeholders are zero vectors that only their position tells apart. The read-out is shifted by one: the last prompt
token predicts action token 0, placeholder i−1 predicts action token i.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .config import NetConfig
from .language import LanguageModel
from .projector import Projector, ProprioProjector
from .vision import VisionBackbone


class ReadOut(NamedTuple):
    hidden: Tensor  # [B, T, d]; hidden[:, 0] is that of the last prompt token
    logits: Tensor  # float32 [B, T, 256], of token ids first_action_id … first_action_id + 255


class OpenVLAOFT(nn.Module):
    """Parameter names are those of the checkpoints (``proprio_projector`` is a file of its own there)."""

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
        self, pixels: Tensor, prompt: Tensor, present: Tensor | None = None, proprio: Tensor | None = None
    ) -> ReadOut:
        """
        Args:
            pixels: float [B, 6·n, H, W], normalised.
            prompt: int64 [B, L]: BOS, padding, then the text's tokens.
            present: bool [B, L], False at padding; None = no padding.
            proprio: float [B, S], normalised; given if and only if the network has a proprio token.
        """
        context = self._context(pixels, proprio)
        embeddings = self._sequence(prompt, context)
        hidden = self.language_model(embeddings, self._present(present, context.shape[1]))
        last_prompt = prompt.shape[1] + context.shape[1] - 1
        read = hidden[:, last_prompt : last_prompt + self.net.action_tokens]
        return ReadOut(read, self.language_model.action_logits(read))

    def _context(self, pixels: Tensor, proprio: Tensor | None) -> Tensor:
        """Embeddings between BOS and prompt: [B, n·P (+ 1), d]."""
        patches = self.projector(self.vision_backbone(pixels))
        if proprio is None:
            return patches
        return torch.cat([patches, self.proprio_projector(proprio).to(patches.dtype)], dim=1)

    def _sequence(self, prompt: Tensor, context: Tensor) -> Tensor:
        text = self.language_model.embed(prompt)
        parts = [text[:, :1], context.to(text.dtype), text[:, 1:]]
        parts.append(text.new_zeros(text.shape[0], self.net.action_tokens, text.shape[2]))
        if self.net.stop_token:
            parts.append(self.language_model.embed(torch.full_like(prompt[:, :1], self.eos_id)))
        return torch.cat(parts, dim=1)

    def _present(self, present: Tensor | None, context: int) -> Tensor | None:
        """Stretch the prompt's mask over the whole sequence."""
        if present is None:
            return None
        tail = self.net.action_tokens + int(self.net.stop_token)
        batch = present.shape[0]
        return torch.cat(
            [present[:, :1], present.new_ones(batch, context), present[:, 1:], present.new_ones(batch, tail)], 1
        )
