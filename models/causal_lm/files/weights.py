"""Checks the weights of a language model's folder, before transformers reads them and after.

transformers goes on with random numbers where a weight is missing, and leaves out what it does not know. Neither is
taken here, but for what :data:`UNUSED` names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig, GenerationConfig

from embodied.errors import CheckpointError
from embodied.lib.files import check_content, inside, read_json
from embodied.weights.listing import INDEX, WHOLE, read_index
from embodied.weights.naming import BUFFERS

from ...shared.files import read_pt
from ...shared.weights.finite import check_numbers, check_range, extremes
from ...shared.weights.misfit import LAYER, Misfit
from ...shared.weights.stored import Stored, check_config, check_no_adapter
from .source import TOKENIZER_FILES

PARTS = ("", "model.language_model.", "language_model.model.", "language_model.", "model.text_model.", "model.")
ANCHORS = tuple(f"{part}embed_tokens.weight" for part in sorted(PARTS[1:], key=len, reverse=True))
UNUSED = re.compile(rf"{BUFFERS.pattern}|(^|\.)(v_head|value_head|mtp|mtp_layers)\.")
"""Tensors that a folder may have besides: what is computed anew, value heads of other programs, and layers that guess
further tokens."""
BIN, BIN_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


class _Whole(dict[str, Any]):
    """A state dict that is never copied: transformers copies its arguments, and with them all weights."""

    def __deepcopy__(self, memo: Any) -> _Whole:
        return self


@dataclass(frozen=True)
class Weights:
    """The checked weights in a folder, before a network gets them."""

    folder: Path
    key: str  # section of the configuration that names the folder, with a dot at its end
    stored: Stored | None  # None: the files are those of torch (pytorch_model.bin)
    tensors: Mapping[str, Tensor] | None = None  # tensors of torch's files, by plain names

    @classmethod
    def of(cls, folder: Path, key: str) -> Weights:
        """Reads the headers of a folder's weights, or torch's files whole, and checks them.

        Raises:
            CheckpointError: as :meth:`Stored.of`.
            DamagedCheckpointError: a file is damaged or missing.
        """
        check_jsons(folder)
        bins = _bins(folder)
        if not bins:
            return cls(folder, key, Stored.of(folder, ANCHORS, key))
        check_config(folder)
        check_no_adapter(folder, key)
        return cls(folder, key, None, {name: tensor for file in bins for name, tensor in read_pt(file).items()})

    def load(self, maker: Any, own_code: bool, config: Mapping[str, Any], dtype: torch.dtype) -> tuple[Any, Any]:
        """Loads the network; returns it, and transformers' loading report. Weights of other shapes are left out.

        Args:
            maker: ``AutoModelForCausalLM`` or another one.
            own_code: the folder's own code is run.
            config: fields of config.json that are to be others.

        Raises:
            CheckpointError: names are not plain, and only the folder's own code could read them.
        """
        keys: dict[str, Any] = {"dtype": dtype, "output_loading_info": True, "ignore_mismatched_sizes": True}
        state = self._state()
        if state is None:
            return maker.from_pretrained(
                self.folder, local_files_only=True, trust_remote_code=own_code, **keys, **config
            )
        if own_code:
            raise CheckpointError(
                f"{self.folder} needs code of its own, and its tensors bear names of a wrapper",
                "save it without the wrapper: `model._orig_mod.save_pretrained('DIR')`, or `model.module…`",
            )
        made, unused = AutoConfig.from_pretrained(
            self.folder, local_files_only=True, return_unused_kwargs=True, **config
        )
        with torch.device("meta"):  # the public way from an Auto… class to the one that it chooses
            kind = type(maker.from_config(made))
        network, loaded = kind.from_pretrained(None, config=made, state_dict=state, **keys, **unused)
        network.config.name_or_path = str(self.folder)
        if (self.folder / "generation_config.json").is_file():
            network.generation_config = GenerationConfig.from_pretrained(self.folder, local_files_only=True)
        return network, loaded

    def _state(self) -> _Whole | None:
        """The weights by plain names; None where transformers can read the files as they are."""
        if self.stored is None:
            return _Whole(self.tensors or {})
        index = inside(self.folder, INDEX)
        # transformers cannot read an index without metadata
        bare = index.is_file() and not isinstance(read_json(index).get("metadata"), dict)
        return self._slices() if self.stored.renamed or bare else None

    def _slices(self) -> _Whole:
        """Tensors that are read when transformers asks for them."""
        assert self.stored is not None
        opened = {file: safe_open(file, framework="pt") for file in self.stored.files}
        headers = self.stored.headers.items()
        return _Whole({self.stored.plain[name]: opened[file].get_slice(name) for file, h in headers for name in h})

    def check_loaded(self, loaded: Mapping[str, Any], config: Any) -> None:
        """Raises CheckpointError unless transformers' loading report says that all weights were loaded.

        Raises:
            CheckpointError: weights are missing, unknown or of other shapes.
        """
        unknown = [name for name in loaded["unexpected_keys"] if not _is_unused(name, config.get_text_config())]
        shapes = {name: (tuple(there), tuple(wanted)) for name, there, wanted in loaded["mismatched_keys"]}
        missing = [name for name in loaded["missing_keys"] if name not in shapes]
        Misfit(sorted(missing), sorted(unknown), shapes).check(self.folder, config.get_text_config(), self.key)

    def _place(self, name: str) -> tuple[Path, str] | None:
        """File and name in it of a parameter, which has another prefix in the files of a vision-language network."""
        if self.stored is None:
            return None
        end = f".{name.removeprefix('model.')}"
        others = (plain for plain in self.stored.plain.values() if f".{plain}".endswith(end))
        return self.stored.place(name) or self.stored.place(next(others, ""))

    def check_numbers(self, parameters: Mapping[str, Tensor]) -> None:
        """Refuses NaN and infinity in loaded weights.

        Raises:
            CheckpointError: there are some; names tensor and file.
        """
        for name, parameter in parameters.items():
            place = self._place(name)
            file, there = (self.folder, name) if place is None else place
            found = extremes(parameter)
            if found is not None and place is not None and not all(abs(one) < torch.inf for one in found):
                with safe_open(file, framework="pt") as opened:
                    check_range(opened.get_tensor(there), f"{file}: {there}", parameter.dtype)
            check_numbers(parameter, there, file)


def _is_unused(name: str, config: Any) -> bool:
    """Returns whether a network may lack a tensor of its folder, such as those of layers that guess further tokens."""
    if UNUSED.search(name):
        return True
    found, own = LAYER.search(name), config.num_hidden_layers
    more = getattr(config, "num_nextn_predict_layers", None) or 0
    return found is not None and own <= int(found[1]) < own + more


def check_tied(network: Any, folder: Path) -> None:
    """Raises CheckpointError if config.json ties the head to the embedding, and the files have another head."""
    head, embedding = network.lm_head.weight, network.get_input_embeddings().weight
    if not network.config.tie_word_embeddings or head is embedding or head.is_meta:
        return
    if head.shape == embedding.shape and (extremes(head) is None or torch.equal(head, embedding)):
        return
    raise CheckpointError(
        f"{folder}/config.json says tie_word_embeddings, and lm_head.weight in the files is not the embedding",
        "set actor.model.override_config.tie_word_embeddings=false to use the head of the files; or remove "
        "lm_head.weight from them if the embedding is meant",
    )


def check_jsons(folder: Path) -> None:
    """Checks the JSON files that transformers reads beside the weights.

    Raises:
        CheckpointError: a file may not be read.
        DamagedCheckpointError: it is a stand-in, or no JSON object.
    """
    for file in _beside(folder):
        if file.suffix == ".json":
            read_json(file)
        elif file.suffix != ".gguf":
            check_content(file)


def _beside(folder: Path) -> Iterable[Path]:
    forms = ("config.json", "generation_config.json", "preprocessor_config.json", *TOKENIZER_FILES)
    return sorted({file for form in forms for file in folder.glob(form) if file.is_file()})


def _bins(folder: Path) -> list[Path]:
    """Files of torch, where there are none of safetensors."""
    if any(inside(folder, name).is_file() for name in (WHOLE, INDEX)):
        return []
    if (whole := inside(folder, BIN)).is_file():
        return [whole]
    index = inside(folder, BIN_INDEX)
    return [inside(folder, name) for name in sorted(set(read_index(index).values()))] if index.is_file() else []
