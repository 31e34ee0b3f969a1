"""Runs a network of transformers on tokens laid end to end: embedding, layers, last norm, logits.

The layers are transformers' own modules. What stands around them (masks, caches, copies of the outputs) is left out: it
costs a small network most of its time on a CPU, and the attention here needs none of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from embodied.errors import CheckpointError

from ...shared.lora import sliced_linear
from .attention import NAME, Attend, Heads, square
from .vision import Placed

Rotary = tuple[Tensor, Tensor] | Mapping[str, tuple[Tensor, Tensor]]
"""Cosines and sines [1, T, D] of the tokens' positions, of one kind for all layers or by the kind of layer."""

UNSUITABLE_ROPE = ("dynamic", "longrope")  # their angles depend on the longest text of a batch
KINDS = ("full_attention", "sliding_attention")


class Trunk:
    """Runs the layers of a ``…ForCausalLM`` with our attention. No module: the network stays the owner of its weights.

    Args:
        network: with transformers' parts ``model.embed_tokens``, ``model.layers``, ``model.norm``,
            ``model.rotary_emb`` and ``lm_head``.

    Raises:
        CheckpointError: the architecture needs what cannot be given here.
    """

    def __init__(self, network: Any) -> None:
        self.network, self.config = network, network.config
        check_architecture(network)
        self.layers: nn.ModuleList = network.model.layers
        count = len(self.layers)
        self._kinds = list(getattr(self.config, "layer_types", None) or ["full_attention"] * count)
        self._many_rotaries = "layer_type" in inspect.signature(network.model.rotary_emb.forward).parameters
        self._cap: float | None = getattr(self.config, "final_logit_softcapping", None)

    def hidden(self, ids: Tensor, rotary: Rotary, attend: Attend, placed: Placed | None = None) -> Tensor:
        """Computes the last hidden states of T tokens: int64 [T] → [T, d].

        Args:
            placed: places int64 [M] whose embeddings are replaced, and by what, [M, d].
        """
        model = self.network.model
        hidden = model.embed_tokens(ids.unsqueeze(0))
        if placed is not None:
            places, features = placed
            hidden = hidden.index_copy(1, places, features.to(hidden.dtype).unsqueeze(0))
        for layer, kind in zip(self.layers, self._kinds, strict=True):
            angles = rotary[kind] if isinstance(rotary, Mapping) else rotary
            hidden = layer(hidden, attention_mask=None, position_embeddings=angles, attend=attend)
        return model.norm(hidden)[0]

    def rotary(self, positions: Tensor) -> Rotary:
        """Computes cosines and sines of rotary positions int64 [T]."""
        module, weight = self.network.model.rotary_emb, self.network.model.embed_tokens.weight
        places = positions.unsqueeze(0)
        if not self._many_rotaries:
            return module(weight, position_ids=places)
        return {kind: module(weight, places, kind) for kind in dict.fromkeys(self._kinds)}

    def logits(self, hidden: Tensor) -> Tensor:
        """Computes the logits of R tokens, always float32: [R, d] → [R, V]. Near 10 the steps of bf16 are as large as
        an update."""
        with torch.autocast(hidden.device.type, enabled=False):
            logits = sliced_linear(self.network.lm_head, hidden, slice(None))
        return logits if self._cap is None else self._cap * torch.tanh(logits / self._cap)

    @property
    def vocabulary(self) -> int:
        """V, the number of the logits; it may be above the number of the tokenizer's tokens."""
        return self.config.vocab_size


def check_architecture(network: Any) -> None:
    """Refuses a network whose modules have other names, or whose layers need another attention than the one here."""
    config, kind = network.config, network.config.model_type
    model = getattr(network, "model", None)
    missing = [name for name in ("embed_tokens", "layers", "norm", "rotary_emb") if not hasattr(model, name)]
    missing += [] if hasattr(network, "lm_head") else ["lm_head"]
    if missing:
        raise _unsuitable(kind, f"it has no {', '.join(missing)}")
    kinds = set(getattr(config, "layer_types", None) or ()) - set(KINDS)
    if kinds:
        raise _unsuitable(kind, f"it has layers of the kinds {', '.join(sorted(kinds))}")
    ropes = _rope_types(getattr(config, "rope_parameters", None) or {})
    if found := sorted(ropes & set(UNSUITABLE_ROPE)):
        raise _unsuitable(kind, f"its rotary positions are {found[0]}: they depend on what else is in a batch")


def _rope_types(parameters: Mapping[str, Any]) -> set[str]:
    """Names of the rotary positions, which may be given by the kind of layer."""
    nested = [value for value in parameters.values() if isinstance(value, Mapping)]
    return {str(each.get("rope_type")) for each in (parameters, *nested)}


def _unsuitable(kind: str, reason: str) -> CheckpointError:
    return CheckpointError(
        f"the architecture '{kind}' cannot be run here: {reason}",
        "use a network of the kind of Llama, Mistral, Qwen2, Qwen3, Gemma, Gemma 2 or Gemma 3",
    )


@torch.no_grad()
def check_against_transformers(network: Any, trunk: Trunk) -> None:
    """Compares the logits of a few tokens with those of transformers' own forward pass, and selects our attention.

    An architecture that scales its residuals, logits or embeddings in its own way is found by it.

    Raises:
        CheckpointError: they differ.
    """
    ids = torch.arange(16, device=network.lm_head.weight.device) * 7919 % trunk.vocabulary
    network.set_attn_implementation("eager")
    try:
        expected = network(input_ids=ids.unsqueeze(0), use_cache=False).logits[0].float()
    finally:
        network.set_attn_implementation(NAME)
    try:
        found = trunk.logits(trunk.hidden(ids, trunk.rotary(torch.arange(16, device=ids.device)), _one_text))
    except (TypeError, AttributeError, RuntimeError) as error:
        raise _unsuitable(network.config.model_type, f"its layers are called in another way ({error})") from error
    bound = 1e-3 if network.lm_head.weight.dtype == torch.float32 else 0.1
    if isinstance(found, FakeTensor):  # sizes without numbers, which a dry run counts
        return
    gap = ((found - expected).abs().max() / expected.abs().max().clamp(min=1e-6)).item()
    if not gap <= bound:
        raise _unsuitable(network.config.model_type, f"its logits differ by {gap:.1%} from those of transformers")


def _one_text(query: Tensor, key: Tensor, value: Tensor, heads: Heads) -> Tensor:
    q, k, v = (part.transpose(0, 1).unsqueeze(0) for part in (query, key, value))
    return square(q, k, v, heads)[0].transpose(0, 1)
