"""The language model: a stock Llama trunk whose attention is bidirectional (OFT) or causal, and its output head.

Shapes: B rows, S tokens, d width, T action tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig, LlamaModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from ...shared.lora import sliced_linear
from ...shared.precision import without_autocast
from .config import N_BINS, NetConfig


def llama_config(config: NetConfig, attn_implementation: str) -> LlamaConfig:
    """Makes a LlamaConfig with every value written out: the checkpoints rely on defaults, and those differ
    elsewhere."""
    return LlamaConfig(  # type: ignore[call-arg]
        vocab_size=config.padded_vocab,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_attention_heads,
        rms_norm_eps=config.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        use_cache=False,
        is_causal=config.attention == "causal",  # read at every call; see LanguageModel.set_attention
        attn_implementation=attn_implementation,
    )


class LanguageModel(nn.Module):
    """The language model: a Llama whose attention mask may be bidirectional."""

    def __init__(self, config: NetConfig, attn_implementation: str = "sdpa") -> None:
        super().__init__()
        self.causal = config.attention == "causal"
        self.implementation = attn_implementation
        self.action_rows = slice(config.first_action_id, config.first_action_id + N_BINS)
        self.model = LlamaModel(llama_config(config, attn_implementation))
        self.lm_head = nn.Linear(config.hidden_size, config.padded_vocab, bias=False)

    def embed(self, ids: Tensor) -> Tensor:
        """Embeds token ids: int64 [B, L] → [B, L, d]."""
        return self.model.embed_tokens(ids)

    def set_attention(self, attention: str) -> None:
        """Sets the mask to ``bidirectional`` or ``causal`` from the next call on."""
        self.causal = attention == "causal"
        self.model.config.is_causal = self.causal

    def forward(self, embeddings: Tensor, present: Tensor | None, cache: DynamicCache | None = None) -> Tensor:
        """Computes final hidden states: embeddings [B, S, d] → [B, S, d].

        Args:
            embeddings: [B, S, d].
            present: bool [B, S], False at padding. No token sees padding, and padding takes no position. None = no
                padding, and the attention kernel needs no mask. With a cache, [B, cached + S].
            cache: keys and values of earlier tokens; those of these tokens are added.

        Returns:
            [B, S, d], meaningless at padding.
        """
        keys: dict[str, Any] = {} if cache is None else {"past_key_values": cache, "use_cache": True}
        if present is None:
            return self.model(inputs_embeds=embeddings, **keys).last_hidden_state
        cached = present.shape[1] - embeddings.shape[1]
        positions = (present.long().cumsum(1) - 1).clamp(min=0)[:, cached:]
        mask = self._mask(present, embeddings.dtype, cached)
        output = self.model(inputs_embeds=embeddings, attention_mask=mask, position_ids=positions, **keys)
        return output.last_hidden_state

    def new_cache(self) -> DynamicCache:
        """Makes an empty cache of keys and values."""
        return DynamicCache(config=self.model.config)

    def action_logits(self, hidden: Tensor) -> Tensor:
        """Computes logits of the 256 action tokens only: [B, T, d] → float32 [B, T, 256]. Adapters on
        lm_head are applied.

        They are always float32: near 10 the steps of bf16 are 0.06, as large as a policy update.
        """
        with without_autocast(hidden.device):
            return sliced_linear(self.lm_head, hidden, self.action_rows)

    def rebuild_rotary(self) -> None:
        """Computes the rotary frequencies. Checkpoints lack them, and on the meta device they get no values."""
        self.model.rotary_emb = LlamaRotaryEmbedding(self.model.config)

    def _mask(self, present: Tensor, dtype: torch.dtype, cached: int) -> Tensor:
        """Bool [B, 1, 1 or S, cached + S], additive for eager attention.

        It is made here and not by transformers from the 2-D mask: then neither kernel nor device synchronisation
        depends on the content of a batch. The flash-attn package only has a kernel for packed rows, made from the 2-D
        mask.
        """
        if self.implementation == "flash_attention_2":
            return present
        mask = present[:, None, None, :]
        if self.causal:
            length = present.shape[1]
            mask = mask & torch.ones(length, length, dtype=torch.bool, device=present.device).tril()[cached:]
        if self.implementation != "eager":
            return mask
        return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
