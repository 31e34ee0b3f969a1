"""The network alone with the original code's inputs, for comparing numbers.

It needs only tensors and config.json, no tokenizer and no statistics. Sizes come from the tensors::

    from embodied.models.openvla_oft.original import inputs_of, load_network

    network = load_network("FOLDER", attention="bidirectional")       # or causal; float32, on the CPU
    inputs = inputs_of(network, pixel_values, input_ids, attention_mask, proprio)
    with torch.no_grad():
        read = network(*inputs)          # read.hidden [B, 56, d], read.logits [B, 56, 256]
    tokens = read.logits.argmax(-1) + network.net.first_action_id
    actions = decode(network, tokens, low, high, mask)               # [B, 8, 7]; q01 and q99, or min and max

- ``pixel_values`` float [B, 6·n, H, W]: for each of the n images three channels normalised for DINOv2, then three
  normalised for SigLIP. ``proprio`` float [B, S], normalised.
- ``input_ids`` int [B, L] may lack the last token 29871 and hold padding at any place. It may end in action tokens (or
  stand-ins for them) and </s>, as in training: the prompt is found in it.
- Other spellings of tensor names (prismatic, timm, FiLM wrappers) are listed in :mod:`.files.names`. No file holds the
  towers' number of heads: give ``vision_num_attention_heads=4``, or two numbers, unless the widths are the released.
- The original takes the most likely of all 32064 tokens, ``network.language_model.lm_head(read.hidden).argmax(-1)``.
  With random weights this is a text token. ``decode`` clips these as the original does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..shared.prompts import padded
from .files.checkpoint import Folder
from .files.load import build_network
from .network.config import NetConfig
from .network.model import Inputs, OpenVLAOFT
from .settings import Settings
from .tokens.action_tokenizer import EPS, ActionTokenizer, Range
from .tokens.tokenizer import LLAMA_SPACE

EOS = 2
HINTS = ("vision_num_attention_heads", "vision_num_layers")


def load_network(path: str, **keys: Any) -> OpenVLAOFT:
    """Loads the network of a checkpoint folder, float32, in evaluation mode.

    Checkpoints with an L1 head are accepted too: their hidden states can be compared like any others.

    Args:
        path: a folder with config.json and safetensors; ``proprio_projector--*.pt`` and ``vision_backbone--*.pt`` are
            read too.
        keys: fields of :class:`.settings.Settings` that no file holds, e.g. ``attention``, ``stop_token``,
            ``num_action_chunks``. The tensors show whether there is a proprio token or FiLM.

    Raises:
        CheckpointError: tensors are missing, unknown, of another shape, or not enough to know the sizes.
    """
    hints = Settings.from_kwargs({key: keys[key] for key in HINTS if key in keys}).tower_hints
    folder = Folder.open(path, for_tokens=False)
    net = folder.net_config(hints)
    settings = Settings.from_kwargs({**_conventions(net), "size": None, "model_path": path, **keys})
    net = settings.net_config(net, with_conventions=bool(folder.policy))
    return build_network(settings, net, EOS, folder).float().eval()


def _conventions(net: NetConfig) -> dict[str, Any]:
    return {
        "attention": net.attention, "stop_token": net.stop_token, "num_images_in_input": net.num_images,
        "use_proprio": bool(net.proprio_dim), "proprio_dim": net.proprio_dim or 8, "use_film": net.film,
        "num_action_chunks": net.num_action_chunks, "action_dim": net.action_dim, "decoding": net.decoding,
    }  # fmt: skip


def inputs_of(
    network: OpenVLAOFT,
    pixel_values: Tensor,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    proprio: Tensor | None = None,
    space_id: int = LLAMA_SPACE,
) -> Inputs:
    """Converts inputs of the original code to the network's: prompts end in ``space_id``, padding stands behind BOS.

    Args:
        pixel_values: float [B, 6·n, H, W].
        input_ids: int [B, L].
        attention_mask: [B, L], 0 at padding; None = ids beyond the vocabulary are padding.
        proprio: float [B, S] or [S].
    """
    net = network.net
    present = input_ids < net.vocab_size if attention_mask is None else attention_mask.bool()
    rows = [
        _prompt(ids[mask].tolist(), net.first_action_id, space_id) for ids, mask in zip(input_ids, present, strict=True)
    ]
    ids, mask = padded(rows, EOS)
    state = None if proprio is None else proprio.float().view(len(rows), -1)
    return Inputs(pixel_values.float(), ids, None if mask.all() else mask, state)


def _prompt(ids: list[int], first_action_id: int, space_id: int) -> list[int]:
    """Prompt without the action tokens and </s> of training data, with the last token that the original appends."""
    ends = (place for place, token in enumerate(ids) if place and (token >= first_action_id or token == ids[0]))
    ids = ids[: next(ends, len(ids))]
    while ids[-1] == EOS:
        ids = ids[:-1]
    return ids if ids[-1] == space_id else [*ids, space_id]


def decode(
    network: OpenVLAOFT, tokens: Tensor, low: Sequence[float], high: Sequence[float], mask: Sequence[bool]
) -> Tensor:
    """Decodes token ids [B, T] to float64 [B, K, A] in the units of the data, the gripper as the data has it.

    Args:
        low: q01 of the statistics, or min (see :mod:`.tokens.normalization`) [A].
        high: q99, or max [A].
    """
    net = network.net
    values = ActionTokenizer(net.vocab_size).decode(tokens).unflatten(-1, (net.num_action_chunks, net.action_dim))
    ranges = Range(tuple(map(float, low)), tuple(map(float, high)), tuple(map(bool, mask)))
    return ranges.unnormalize(values, 0.0 if net.autoregressive else EPS)
