"""The part of a vision-language network that reads pictures: vision tower and projector, which stay frozen.

    pixels uint8 [n, S, S, 3] ─▶ tower, projector ─▶ features [n · N, d] ─▶ in place of embeddings of the prompt

The language model is taken out of the network and is run, trained and adapted as any other. A picture is computed by
itself, so that its features do not depend on what else is in a batch.

Shapes: n pictures, S pixels of a side, N tokens of a picture, d width of the language model, B texts.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from transformers import AutoModelForCausalLM

from embodied import instructions
from embodied.errors import CheckpointError, SpecMismatchError
from embodied.types import EnvSpec

from ..text.pictures import FILES, KINDS, REFUSED, Pictures, kind_of

Placed = tuple[Tensor, Tensor]
"""Where features stand among the tokens of a pass, int64 [M], and the features [M, d]."""


class Vision(nn.Module):
    """Vision tower and projector of a vision-language model. Always in evaluation mode.

    Args:
        tower: transformers' ``…Model`` without its language model.
        config: of the whole network, as the folder has it.
        maker: name of the network's class.
        files: of transformers' processor, by name.
    """

    def __init__(self, tower: Any, pictures: Pictures, config: Any, maker: str, files: Mapping[str, bytes]) -> None:
        super().__init__()
        self.tower, self.pictures, self.config, self.maker, self.files = tower, pictures, config, maker, files
        self.width: int = config.text_config.hidden_size
        self.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Vision:
        return super().train(False)

    @torch.no_grad()
    def features(self, pixels: np.ndarray) -> Tensor:
        """Computes the features of n pictures uint8 [n, S, S, 3]: [n · N, d]."""
        return torch.cat([self._one(picture) for picture in pixels])

    def _one(self, picture: np.ndarray) -> Tensor:
        weight, own = next(self.tower.parameters()), self.pictures
        if isinstance(weight, FakeTensor):  # a dry run; towers ask for values
            return weight.new_zeros(own.tokens, self.width)
        x = torch.from_numpy(picture).to(weight.device).permute(2, 0, 1).unsqueeze(0).float() * own.scale
        mean, std = (x.new_tensor(numbers)[:, None, None] for numbers in (own.mean, own.std))
        x = ((x - mean) / std).to(weight.dtype)
        found = self.tower.get_image_features(pixel_values=x.unsqueeze(0) if self._lists else x, return_dict=True)
        return torch.cat([*found.pooler_output]).view(-1, self.width)

    @property
    def _lists(self) -> bool:
        """True if the tower takes a list of pictures for each text."""
        return KINDS[self.pictures.kind] == "text_model"

    def check(self) -> None:
        """Raises CheckpointError unless a picture has as many features as it has tokens."""
        size = self.pictures.size
        found = len(self.features(np.zeros((1, size, size, 3), np.uint8)))
        if found != self.pictures.tokens:
            raise CheckpointError(
                f"a picture of {size} pixels gives {found} features, and its prompt has {self.pictures.tokens} tokens "
                "for it",
                "check vision_config and vision_feature_select_strategy in config.json",
            )

    def shown(self, obs: Mapping[str, Tensor]) -> list[np.ndarray]:
        """Selects the pictures that each of B prompts refers to, uint8 [n, S, S, 3].

        Args:
            obs: ``prompt_ids`` [B, P], ``prompt_length`` [B] and, unless no prompt speaks of one, ``pictures``.

        Raises:
            SpecMismatchError: an observation has fewer pictures than its prompt speaks of.
        """
        ids, sizes = obs["prompt_ids"].cpu().numpy(), obs["prompt_length"].cpu().numpy()
        counts = [np.count_nonzero(row[:size] == self.pictures.token) for row, size in zip(ids, sizes, strict=True)]
        counts = [count // self.pictures.tokens for count in counts]
        side = self.pictures.size
        field = obs.get(instructions.PICTURES)
        pixels = np.zeros((len(ids), 0, side, side, 3), np.uint8) if field is None else field.cpu().numpy()
        if (most := max(counts, default=0)) > pixels.shape[1]:
            raise SpecMismatchError(
                f"a prompt speaks of {most} pictures ({instructions.PICTURE}), and its observation has "
                f"{pixels.shape[1]}",
                "name the column of pictures: data.image_key; or leave such prompts out",
            )
        return [row[:count] for row, count in zip(pixels, counts, strict=True)]

    def placed(
        self, prompts: Sequence[np.ndarray], begins: Sequence[int], pictures: Sequence[np.ndarray]
    ) -> Placed | None:
        """Computes the features of some prompts' pictures, with their places in a pass; None if there are none.

        Args:
            prompts: ids of each, int [p].
            begins: place of the first token of each.
            pictures: pictures of each.
        """
        both = zip(prompts, begins, strict=True)
        places = [begin + np.flatnonzero(ids == self.pictures.token) for ids, begin in both]
        made = [self.features(pixels) for pixels in pictures if len(pixels)]
        if not made:
            return None
        features = torch.cat(made)
        return torch.from_numpy(np.concatenate(places)).to(features.device), features

    def describe(self) -> dict[str, str]:
        """Returns facts for the console."""
        own = self.pictures
        told = f"{own.size}×{own.size}, {own.tokens} tokens each; vision tower and projector are frozen"
        return {"pictures": f"{own.kind}: {told}"}

    def named(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Joins the language model's weights and those of the vision tower under the names of the whole network."""
        part = f"model.{KINDS[self.pictures.kind]}."
        renamed = {f"{part}{name[6:]}" if name.startswith("model.") else name: w for name, w in weights.items()}
        return {**renamed, **{f"model.{name}": w.detach().cpu() for name, w in self.tower.state_dict().items()}}


def check_pictures(env: EnvSpec, vision: Vision | None, model_path: str | None) -> None:
    """Raises SpecMismatchError if the policy cannot read the pictures of an env."""
    field = env.obs.get(instructions.PICTURES)
    if field is None:
        return
    if vision is None:
        kind = "" if model_path is None else kind_of(Path(model_path).expanduser())
        why = REFUSED.get(kind, "the network reads texts alone")
        raise SpecMismatchError(
            f"the env has pictures (data.image_key), and the policy cannot read them{f' ({kind})' if kind else ''}: "
            f"{why}",
            f"choose a checkpoint of {', '.join(KINDS)} for actor.model.model_path, or leave data.image_key out",
        )
    if field.shape[1] != (size := vision.pictures.size):
        raise SpecMismatchError(
            f"the env's pictures have {field.shape[1]}×{field.shape[2]} pixels, and the network reads {size}×{size}",
            f"set env.train.image_size={size} and env.eval.image_size={size}",
        )


def digest(pixels: np.ndarray) -> bytes:
    """Hashes pictures, to tell them apart; b"" for none."""
    return hashlib.blake2b(pixels.tobytes(), digest_size=16).digest() if len(pixels) else b""


def taken_apart(folder: Path, pictures: Pictures, whole: Any) -> tuple[Any, Vision]:
    """Splits a vision-language network into its language model, as a ``…ForCausalLM`` of transformers, and the part
    that reads pictures.

    Args:
        folder: of the network.
        whole: an ``…ForConditionalGeneration``, which loses its language model.
    """
    config, part = copy.deepcopy(whole.config), KINDS[pictures.kind]
    language = getattr(whole.model, part)
    with torch.device("meta"):
        network: Any = AutoModelForCausalLM.from_config(language.config)
    network.model, network.lm_head, network.generation_config = language, whole.lm_head, whole.generation_config
    network.config.tie_word_embeddings = whole.lm_head.weight is language.embed_tokens.weight
    delattr(whole.model, part)
    files = {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}
    return network, Vision(whole.model, pictures, config, type(whole).__name__, files)
