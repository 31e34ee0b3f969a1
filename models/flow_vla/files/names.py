"""Names of tensors: in folders of LeRobot and openpi, and in the network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

HEADS = re.compile(r"action_time_mlp_(in|out)\.")

SMOLVLA = {
    "vlm_with_expert.vlm.model.vision_model.": "vision.",
    "vlm_with_expert.vlm.model.connector.modality_projection.proj.": "projector.",
    "vlm_with_expert.vlm.model.text_model.embed_tokens.": "embed_tokens.",
    "vlm_with_expert.vlm.model.text_model.layers.": "layers.{}.trunk.",
    "vlm_with_expert.vlm.model.text_model.norm.": "trunk_norm.",
    "vlm_with_expert.lm_expert.layers.": "layers.{}.expert.",
    "vlm_with_expert.lm_expert.norm.": "expert_norm.",
}
PI = {
    "paligemma_with_expert.paligemma.model.vision_tower.vision_model.": "vision.",
    "paligemma_with_expert.paligemma.model.multi_modal_projector.linear.": "projector.",
    "paligemma_with_expert.paligemma.model.language_model.embed_tokens.": "embed_tokens.",
    "paligemma_with_expert.paligemma.model.language_model.layers.": "layers.{}.trunk.",
    "paligemma_with_expert.paligemma.model.language_model.norm.": "trunk_norm.",
    "paligemma_with_expert.gemma_expert.model.layers.": "layers.{}.expert.",
    "paligemma_with_expert.gemma_expert.model.norm.": "expert_norm.",
}
ENDS = ("state_proj.", "action_in_proj.", "action_out_proj.", "time_mlp_in.", "time_mlp_out.")
TIED = "paligemma_with_expert.paligemma.lm_head.weight"  # stands for an embedding that is not stored
EMBEDDING = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
DEAD = re.compile(
    r"vlm_with_expert\.vlm\.lm_head\.|vlm_with_expert\.lm_expert\.(lm_head|embed_tokens)\."
    r"|paligemma_with_expert\.paligemma\.lm_head\.|paligemma_with_expert\.gemma_expert\.(lm_head|model\.embed_tokens)\."
    r"|.*vision_model\.(head\.|embeddings\.position_ids$)|.*rotary_emb\.inv_freq$"
)
"""Tensors that no action depends on: heads over words, SigLIP's pooling, tables that are computed."""


@dataclass(frozen=True)
class Names:
    """How the tensors of a folder are called in the network."""

    own: Mapping[str, str]  # name in the folder → name in the network
    dead: tuple[str, ...]  # names in the folder that nothing reads
    unknown: tuple[str, ...]


def rename(stored: Iterable[str]) -> Names:
    """Renames the tensors of a folder."""
    stored = list(stored)
    front = "model." if any(name.startswith("model.") for name in stored) else ""
    tied = front + EMBEDDING not in stored
    own: dict[str, str] = {}
    dead, unknown = [], []
    for name in stored:
        bare = name.removeprefix(front)
        if bare == TIED and tied:
            own[name] = "embed_tokens.weight"
        elif DEAD.match(bare):
            dead.append(name)
        elif (found := _own(bare)) is not None:
            own[name] = found
        else:
            unknown.append(name)
    return Names(own, tuple(dead), tuple(unknown))


def stored_name(own: str, layout: str) -> str:
    """Names a tensor of the network as LeRobot's folder of a layout does."""
    if own == "embed_tokens.weight" and layout != "smolvla":
        return f"model.{TIED}"
    if own.startswith(ENDS):
        return f"model.{own if layout == 'pi05' or not own.startswith('time') else f'action_{own}'}"
    for theirs, ours in (SMOLVLA if layout == "smolvla" else PI).items():
        front, _, stream = ours.partition("{}")
        if not stream and own.startswith(front):
            return f"model.{theirs}{own.removeprefix(front)}"
        if stream and own.startswith(front) and stream in own:
            return f"model.{theirs}{own.removeprefix(front).replace(stream, '.', 1)}"
    raise KeyError(own)


def _own(bare: str) -> str | None:
    bare = HEADS.sub(r"time_mlp_\1.", bare) if bare.startswith("action_time") else bare
    if bare.startswith(ENDS):
        return bare
    for table in (SMOLVLA, PI):
        for theirs, ours in table.items():
            if bare.startswith(theirs):
                rest = bare.removeprefix(theirs)
                if "{}" not in ours:
                    return ours + rest
                number, _, rest = rest.partition(".")
                return ours.format(number) + rest
    return None
