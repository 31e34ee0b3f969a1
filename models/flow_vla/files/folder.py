"""Opens a folder of LeRobot or openpi: which layout it is, what its configuration says, which tensors it has.

    LeRobot   config.json with "type", model.safetensors, policy_preprocessor.json and its state_file
    openpi    config.json with action_horizon, model.safetensors, assets/*/norm_stats.json

Nothing is loaded before it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from embodied.errors import CheckpointError
from embodied.lib.files import check_export, folder_of, inside, reading

from ...shared.files import read_json
from ...shared.weights.stored import Stored, check_no_adapter
from ..network.sizes import LAYOUTS, Sizes
from .names import Names, rename
from .sizes import read_sizes

OTHERS = {
    "pi0_fast": "π0-FAST writes tokens and denoises nothing",
    "groot": "GR00T has another network and another time",
}
"""``type`` of LeRobot's configuration that is no flow policy of this room → what it is."""
USE = "use a folder of SmolVLA, π0 (lerobot/pi0_base) or π0.5 (lerobot/pi05_base), of LeRobot or openpi (PyTorch)"
OWN_FILE = "flow_vla.json"
OLD_PI0 = ("normalize_inputs.", "unnormalize_outputs.", "normalize_targets.")


@dataclass(frozen=True)
class Folder:
    """A folder with a flow policy."""

    path: Path
    config: Mapping[str, Any]
    stored: Stored
    names: Names

    @classmethod
    def open(cls, model_path: str) -> Folder:
        """Opens the folder that ``model_path`` names.

        Raises:
            CheckpointError: there is no such folder, it is of another network, or it has tensors of none.
        """
        path = folder_of(model_path)
        check_no_adapter(path, "actor.model.")
        check_export(path)
        if not (path / "config.json").is_file():
            raise CheckpointError(f"{path} has no config.json", "give the folder of a policy with all its files")
        config = read_json(path / "config.json")
        _check_kind(path, config)
        stored = Stored.of(path, ())
        folder = cls(path, config, stored, rename(stored.plain.values()))
        folder._check_names()
        with reading(path / "config.json", "chunk, prompt or pictures are not as expected"):
            if min(folder.horizon, folder.prompt_tokens) < 1 or not all(map(str, folder.cameras)):
                raise ValueError(f"chunks of {folder.horizon} actions, prompts of {folder.prompt_tokens} tokens")
        return folder

    @property
    def openpi(self) -> bool:
        """Whether openpi's converter wrote it; else LeRobot."""
        return "type" not in self.config

    @property
    def layout(self) -> str:
        """A name of :data:`LAYOUTS`. openpi says in no key which of its two it is, and the tensors do."""
        if self.openpi:
            return (
                "pi05" if any(name.endswith("expert_norm.dense.weight") for name in self.names.own.values()) else "pi0"
            )
        return str(self.config["type"])

    @property
    def horizon(self) -> int:
        """H, actions of a chunk."""
        return int(self.config["action_horizon" if self.openpi else "chunk_size"])

    @property
    def num_steps(self) -> int:
        """Denoising steps that the folder was made for."""
        return int(self.config.get("num_steps", self.config.get("num_inference_steps", 10)))

    @property
    def prompt_tokens(self) -> int:
        """Tokens of a prompt at most."""
        return int(self.config.get("tokenizer_max_length", 200 if self.layout == "pi05" else 48))

    @property
    def cameras(self) -> tuple[str, ...]:
        """Places for pictures, by LeRobot's names without their beginning; openpi's are known."""
        if self.openpi:
            return ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
        front = "observation.images."
        features = self.config.get("input_features", {})
        return tuple(name.removeprefix(front) for name in features if name.startswith(front))

    def sizes(self, vision_heads: int | None = None, head_dim: int | None = None, read_out: bool = False) -> Sizes:
        """Determines the network's sizes from tensors and keys.

        Args:
            vision_heads: of the tower; null = as the VLM's configuration or the released towers have it.
            head_dim: numbers of a head of the text layers; null likewise.
            read_out: a value head reads the trunk's last layer.
        """
        file, own = self.path / "config.json", self.own
        with reading(file, "its sizes are not as expected"):
            said = {
                "horizon": self.horizon, "image_size": self._image_size(), "cross_every": self._cross_every(),
                "vision_heads": vision_heads or own.get("vision_heads"), "head_dim": head_dim or own.get("head_dim"),
                "min_period": float(self.config.get("min_period", 4e-3)),
                "max_period": float(self.config.get("max_period", 4.0)),
            }  # fmt: skip
        try:
            return replace(read_sizes(self.layout, self.shapes, said, self.vlm), read_out=read_out)
        except CheckpointError as error:
            raise CheckpointError(f"{self.path}: {error.message}", error.remedy) from error

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors by the network's names."""
        stored = self.stored.shapes()
        return {own: stored[name] for name, own in self.names.own.items()}

    @cached_property
    def vlm(self) -> dict[str, Any]:
        """config.json of the VLM that SmolVLA names, if its folder lies at hand; else empty."""
        name = str(self.config.get("vlm_model_name", ""))
        for folder in (self.path / vlm_name(self.config), Path(name)):
            if name and (folder / "config.json").is_file():
                return read_json(folder / "config.json")
        return {}

    @property
    def own(self) -> dict[str, Any]:
        """Content of flow_vla.json, which we write: sizes that no other file says."""
        return read_json(self.path / OWN_FILE) if (self.path / OWN_FILE).is_file() else {}

    @property
    def tokenizer(self) -> Path | None:
        """Path of tokenizer.json: in the folder, or in that of the VLM beside it."""
        files = (self.path / "tokenizer.json", self.path / vlm_name(self.config) / "tokenizer.json")
        return next((file for file in files if file.is_file()), None)

    def _image_size(self) -> int | None:
        found = self.config.get("resize_imgs_with_padding", self.config.get("image_resolution"))
        if found is None:
            return None
        height, width = found
        if height != width:
            raise ValueError(f"pictures of {height} × {width}, expected squares")
        return int(height)

    def _cross_every(self) -> int:
        if self.layout != "smolvla" or "cross" not in self.config.get("attention_mode", "cross_attn"):
            return 0
        every = int(self.config.get("self_attn_every_n_layers", 2))
        if every < 1:
            raise ValueError(f"self_attn_every_n_layers is {every}, expected 1 or more")
        return every

    def _check_names(self) -> None:
        if old := [name for name in self.names.unknown if name.startswith(OLD_PI0)]:
            raise CheckpointError(
                f"{self.path} is the old lerobot/pi0, whose statistics stand in its weights ({old[0]})",
                "use lerobot/pi0_base, or a fine-tuned policy that LeRobot ≥ 0.4 has saved",
            )
        if self.names.unknown:
            shown = ", ".join(self.names.unknown[:4])
            raise CheckpointError(
                f"{self.path} has {len(self.names.unknown)} tensors that no network of this room has: {shown}", USE
            )


def _check_kind(path: Path, config: Mapping[str, Any]) -> None:
    kind = config.get("type")
    if kind is None and "action_horizon" in config and "paligemma_variant" in config:
        return
    if kind not in LAYOUTS:
        name = str(kind or config.get("model_type", "of no type"))
        reason = next((why for other, why in OTHERS.items() if name.lower().startswith(other)), None)
        reason = reason or ("GR00T has another network and another time" if "gr00t" in name.lower() else None)
        raise CheckpointError(
            f"{path} holds a policy {name!r}, which this model does not run{f': {reason}' if reason else ''}", USE
        )
    if config.get("use_relative_actions"):
        raise CheckpointError(
            f"{path}/config.json says use_relative_actions: actions relative to the state, which is not done here",
            "use a policy that was trained on the env's own actions",
        )
    if config.get("adapt_to_pi_aloha") or config.get("use_delta_joint_actions_aloha"):
        raise CheckpointError(
            f"{path}/config.json says adapt_to_pi_aloha: joints and grippers are turned around, which is not done here",
            "use a policy that was trained on the env's own actions",
        )


def vlm_name(config: Mapping[str, Any]) -> str:
    """Name of the folder within a SmolVLA folder in which its VLM's configuration and tokenizer lie."""
    return str(config.get("vlm_model_name", "vlm")).rsplit("/", 1)[-1]


def state_file(folder: Path, step: Mapping[str, Any]) -> Path:
    """Returns the file with a processor step's tensors."""
    return inside(folder, step.get("state_file"))
