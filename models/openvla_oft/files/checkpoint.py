"""Reads and loads folders in the layout of the released checkpoints.

    config.json               text sizes, dataset statistics (norm_stats)
    model*.safetensors        weights, one file or several with model.safetensors.index.json
    dataset_statistics.json   overrides norm_stats
    preprocessor_config.json  pixel normalisation
    tokenizer.json
    proprio_projector--*.pt   optional, from OFT fine-tuning
    vision_backbone--*.pt     optional, towers with FiLM layers (see .film); they replace those in the weights
    policy.json               ours: what config.json does not say (attention, images, chunk, …)

Loading is exact: every tensor of the folder is used or on :func:`ignored`'s list, and every parameter is filled. Other
programs' names for the same tensors are understood (:mod:`.names`). Without policy.json, sizes come from the tensors
(:mod:`.shapes`) and conventions from the configuration.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from embodied.errors import CheckpointError, unknown_name
from embodied.lib.files import check_export, folder_of, reading

from ...shared.files import read_json, read_pt, read_safetensors
from ...shared.quantized import quantized_layers
from ...shared.weights.misfit import fix_of_names
from ...shared.weights.stored import Stored, check_no_adapter
from ..network.config import NetConfig, check_plain
from .film import FILM_FILE, FILM_LAYER, read_film
from .names import released_name
from .shapes import NO_HINTS, TowerHints, count, sizes_of

TIMM_IDS = ["vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"]
ANCHORS = tuple(f"{part}model.embed_tokens.weight" for part in ("language_model.", "llm_backbone.llm.", "llm."))
VALUE_HEAD_FILE = "value_head.safetensors"
ADAPTER_FOLDER = "lora_adapter"
REFUSED = {
    "action_head--*.pt": (
        "it was trained with a continuous (L1 or diffusion) action head: its language head never learnt action tokens, "
        "so a token policy starts at 0 % and reinforcement learning has nothing to improve",
        "use a checkpoint fine-tuned with --use_l1_regression False, e.g. Haozhan72/Openvla-oft-SFT-libero10-trajall",
    ),
    "noisy_action_projector--*.pt": ("it is a diffusion policy", "use a checkpoint with discrete action tokens"),
}


def ignored(config: NetConfig) -> list[re.Pattern[str]]:
    """Returns patterns of a checkpoint's tensors that never influence an action: last vision blocks, final norms,
    pooling, buffers."""
    dino, siglip = config.featurizer.depth - 1, config.fused_featurizer.depth - 1
    return [
        re.compile(rf"vision_backbone\.featurizer\.(blocks\.{dino}|norm)\."),
        re.compile(rf"vision_backbone\.fused_featurizer\.(blocks\.{siglip}|norm|attn_pool)\."),
        re.compile(r"language_model\.model\.(layers\.\d+\.self_attn\.)?rotary_emb\."),
    ]


@dataclass(frozen=True)
class Folder:
    """A released OpenVLA-OFT checkpoint folder with all its files; nothing is loaded yet."""

    path: Path

    @classmethod
    def open(cls, model_path: str, for_tokens: bool = True) -> Folder:
        """Checks that ``model_path`` is a checkpoint folder, and opens it.

        Args:
            for_tokens: refuse a checkpoint whose actions do not come from tokens.

        Raises:
            CheckpointError: it is no such folder, or token RL cannot start from it.
        """
        path = folder_of(model_path)
        check_no_adapter(path, "actor.model.")
        if not (path / "config.json").is_file():
            raise CheckpointError(f"{path} has no config.json", "set actor.model.model_path to a Hugging Face folder")
        check_export(path)
        for pattern, (reason, fix) in REFUSED.items() if for_tokens else ():
            if found := next(path.glob(pattern), None):
                raise CheckpointError(f"{path} cannot be used: {reason} (it has {found.name})", fix)
        return cls(path)

    @cached_property
    def config(self) -> dict[str, Any]:
        """Content of config.json."""
        return read_json(self.path / "config.json")

    @cached_property
    def policy(self) -> dict[str, Any]:
        """Content of policy.json; empty if there is none."""
        return read_json(self.path / "policy.json") if (self.path / "policy.json").is_file() else {}

    @property
    def tokenizer(self) -> Path:
        """Path of the tokenizer's file."""
        return self.path / "tokenizer.json"

    @property
    def pixel_statistics(self) -> Sequence[Mapping[str, Any]] | None:
        """``tvf_normalize_params`` or None. ``means`` and ``stds`` are not read: training did not use them."""
        file = self.path / "preprocessor_config.json"
        found = read_json(file).get("tvf_normalize_params") if file.is_file() else None
        if found is None:
            return None
        with reading(file, "tvf_normalize_params are not two times a mean and a std of three colours"):
            numbers = [[float(number) for number in entry[name]] for entry in found for name in ("mean", "std")]
            if [*map(len, numbers)] != [3] * 4 or not all(math.isfinite(n) for row in numbers for n in row):
                raise ValueError(f"got {found!r:.200}")
        return found

    def net_config(self, hints: Sequence[TowerHints] = NO_HINTS) -> NetConfig:
        """Determines the network's sizes and conventions from policy.json; without that file, only the sizes, from the
        tensors' shapes.

        Args:
            hints: sizes that cannot be read from the tensors of unreleased towers.
        """
        if "net" in self.policy:
            return self._recorded(self.policy["net"])
        if (kind := self.config.get("model_type", "openvla")) != "openvla":
            raise CheckpointError(
                f"{self.path} is a checkpoint of another architecture: model_type {kind!r}, expected 'openvla'",
                "set actor.model.model_path to an OpenVLA or OpenVLA-OFT folder",
            )
        if (towers := self.config.get("timm_model_ids")) is not None and len(towers) != 2:
            raise CheckpointError(
                f"{self.path}: vision towers {towers}, supported: {TIMM_IDS}",
                "use an OpenVLA checkpoint with the fused DINOv2-SigLIP towers",
            )
        try:
            with reading(self.path / "config.json"):
                return sizes_of(self.shapes(), self.config, hints)
        except CheckpointError as error:
            raise CheckpointError(f"{self.path}: {error.message}", error.remedy) from error

    def _recorded(self, values: dict[str, Any]) -> NetConfig:
        try:
            check_plain(values)
            net = NetConfig.from_dict(values)
        except (AttributeError, TypeError, KeyError, ValueError) as error:
            raise CheckpointError(
                f"{self.path}/policy.json does not describe a network: {error}", "copy it again, or remove it"
            ) from error
        self._check_layers(net)
        return net

    def _check_layers(self, net: NetConfig) -> None:
        """Layers are counted before any is built. Of a tower the last, which is never run, may be missing."""
        shapes = self.shapes()
        for prefix, layers, least in (
            ("language_model.model.layers", net.num_hidden_layers, net.num_hidden_layers),
            ("vision_backbone.featurizer.blocks", net.featurizer.depth, net.featurizer.depth - 1),
            ("vision_backbone.fused_featurizer.blocks", net.fused_featurizer.depth, net.fused_featurizer.depth - 1),
        ):
            found = count(shapes, rf"{re.escape(prefix)}\.(\d+)\.")
            if not found:
                raise CheckpointError(
                    f"{self.path} has no tensor of {prefix}, and policy.json says {layers}; it has {_some(shapes)}",
                    fix_of_names([f"{prefix}.0"], list(shapes)),
                )
            if not least <= found <= layers:
                raise CheckpointError(
                    f"{self.path}/policy.json says {layers} {prefix}, the tensors are of {found}",
                    "use the policy.json that was saved with the weights, or the files of weights that were left out",
                )

    def statistics(self, unnorm_key: str | None) -> tuple[str, dict[str, Any]]:
        """Returns name and statistics of one dataset. ``unnorm_key`` may lack the suffix ``_no_noops``."""
        return choose_statistics(self.known_statistics(), unnorm_key, str(self.path))

    def known_statistics(self) -> dict[str, Any]:
        """Reads the statistics of all datasets, by name."""
        with reading(self.path / "config.json", "norm_stats are no statistics by name"):
            known: dict[str, Any] = dict(self.config.get("norm_stats") or {})
        if (self.path / "dataset_statistics.json").is_file():
            known |= read_json(self.path / "dataset_statistics.json")
        return known

    def statistics_file(self, name: str) -> Path:
        """Returns the file in which :meth:`known_statistics` finds the dataset ``name``."""
        file = self.path / "dataset_statistics.json"
        return file if file.is_file() and name in read_json(file) else self.path / "config.json"

    @cached_property
    def _stored(self) -> Stored:
        return Stored.of(self.path, ANCHORS)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yields every tensor by its released name, memory-mapped. If two have the same name, the later one counts."""
        for file in self._stored.files:
            yield from ((released_name(self._stored.plain[name]), tensor) for name, tensor in read_safetensors(file))
        yield from self._extras()

    def shapes(self) -> dict[str, Sequence[int]]:
        """Returns the shape of every tensor by its released name, from the headers of the files."""
        found: dict[str, Sequence[int]] = {released_name(name): shape for name, shape in self._stored.shapes().items()}
        return found | {name: tuple(tensor.shape) for name, tensor in self._extras()}

    def _extras(self) -> Iterator[tuple[str, Tensor]]:
        for file in self.path.glob("proprio_projector--*.pt"):
            yield from ((f"proprio_projector.{name}", tensor) for name, tensor in read_pt(file).items())
        for file in self.path.glob(FILM_FILE):
            yield from read_film(file).items()


def _some(shapes: Mapping[str, Any]) -> str:
    """A few names, each of another module."""
    first = {name.rsplit(".", 1)[0].partition(".layers.")[0].partition(".blocks.")[0]: name for name in shapes}
    return ", ".join([*first.values()][:4])


def adapter_folder(path: str) -> Path:
    """Returns the folder that holds the adapter: ``path`` itself or its ``lora_adapter``, where OFT puts it."""
    folder = Path(path).expanduser()
    return folder / ADAPTER_FOLDER if (folder / ADAPTER_FOLDER).is_dir() else folder


def choose_statistics(known: Mapping[str, Any], key: str | None, where: str) -> tuple[str, dict[str, Any]]:
    """Selects the statistics called ``key``, or the only ones. Raises UnknownNameError or CheckpointError."""
    if not known:
        raise CheckpointError(
            f"{where} has no dataset statistics", "add the dataset_statistics.json of its training data"
        )
    if key is None and len(known) == 1:
        return next(iter(known.items()))
    for name in (str(key), f"{key}_no_noops"):
        if name in known:
            return name, known[name]
    raise unknown_name("dataset", str(key), known, "actor.model.unnorm_key")


def load_exact(
    module: nn.Module, tensors: Iterable[tuple[str, Tensor]], ignore: list[re.Pattern[str]],
    device: torch.device | str = "cpu", source: Path | None = None,
) -> None:  # fmt: skip
    """Fill ``module`` with exactly these tensors, without a copy. It may be on the meta device.

    Args:
        device: where weights of 8 or 4 bits are made, one layer after the other, and stay.
        source: of the tensors, for errors.

    Raises:
        CheckpointError: lists missing, unknown and misshapen tensors.
    """
    own = {name: parameter.shape for name, parameter in module.named_parameters()}
    coded = {f"{name}.weight": layer for name, layer in quantized_layers(module).items()}
    own |= {name: layer.shape for name, layer in coded.items()}
    given = {name: tensor for name, tensor in tensors if not any(p.match(name) for p in ignore)}
    missing, unknown = sorted(own.keys() - given.keys()), sorted(given.keys() - own.keys())
    whole = [f"{name} {tensor.dtype}" for name, tensor in given.items() if not tensor.is_floating_point()]
    shapes = [
        f"{n} {tuple(given[n].shape)} ≠ {tuple(own[n])}"
        for n in sorted(own.keys() & given.keys())
        if given[n].shape != own[n]
    ]
    if missing or unknown or shapes or whole:
        problems = {"missing": missing, "unknown": unknown, "of another shape": shapes, "of whole numbers": whole}
        raise CheckpointError(
            f"{f'{source}: ' if source else ''}the tensors do not fit the network: "
            + "; ".join(_listed(k, v) for k, v in problems.items() if v),
            _load_fix(missing, unknown),
        )
    for name, layer in coded.items():
        layer.quantize(given.pop(name).to(device))
    module.load_state_dict(given, assign=True, strict=not coded)


def _listed(what: str, names: list[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{len(names)} {what}: {', '.join(names[:8])}{more}"


def _load_fix(missing: list[str], unknown: list[str]) -> str:
    proprio = "proprio_projector."
    if any(name.startswith(proprio) for name in missing):
        return "the checkpoint has no proprio projector: set actor.model.use_proprio=false"
    if any(name.startswith(proprio) for name in unknown):
        return "the checkpoint has a proprio projector: set actor.model.use_proprio=true"
    if any(FILM_LAYER.search(name) for name in missing):
        return "the checkpoint has no FiLM layers: set actor.model.use_film=false"
    if any(FILM_LAYER.search(name) for name in unknown):
        return "the checkpoint has FiLM layers: set actor.model.use_film=true"
    if missing and unknown:
        return fix_of_names(missing, unknown)
    return "use a checkpoint of this architecture and of the sizes under actor.model"
