"""LeRobot's SmolVLAPolicy from its package alone.

    pip install --no-deps lerobot==0.4.4 draccus==0.10.0 mergedeep pyyaml-include==1.4.1 toml
    pip install --no-deps typing_inspect mypy_extensions

Its import asks for packages of robots, videos and data sets that acting does not need; those that are not here get
empty stand-ins. Of the VLM's processor two token ids alone are read. transformers 4.55 to 4.57 place patches wrongly
in float32 (transformers#41190); others are right.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from contextlib import chdir
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import Tensor
from transformers import SmolVLMForConditionalGeneration  # noqa: F401  before the stand-ins, so that it looks in vain

OPTIONAL = ("torchvision", "deepdiff", "serial", "av", "einops", "datasets", "cv2", "imageio", "rerun", "gymnasium")


class _Stand(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for what is not installed; it stands behind all other finders."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        missing = name.partition(".")[0] in OPTIONAL
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if missing else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Stand(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _imported() -> types.ModuleType:
    """Imports the policy's module. Its package would import all policies, each with packages of its own."""
    found = importlib.util.find_spec("lerobot")
    if found is None or found.submodule_search_locations is None:
        raise ModuleNotFoundError("lerobot is not installed")
    sys.meta_path.append(_StandIns())
    bare = types.ModuleType("lerobot.policies")
    bare.__path__ = [f"{found.submodule_search_locations[0]}/policies"]
    sys.modules["lerobot.policies"] = bare
    from lerobot.policies.smolvla import modeling_smolvla, smolvlm_with_expert

    tokens = types.SimpleNamespace(fake_image_token_id=1, global_image_token_id=1)
    processor = types.SimpleNamespace(tokenizer=tokens)
    smolvlm_with_expert.AutoProcessor = types.SimpleNamespace(from_pretrained=lambda name: processor)
    return modeling_smolvla


def open_policy(folder: Path) -> Any:
    """Opens a folder with SmolVLAPolicy.from_pretrained. The VLM that its configuration names lies in the folder."""
    policy_class = _imported().SmolVLAPolicy
    with chdir(folder):
        return policy_class.from_pretrained(".").eval()


def batch_of(policy: Any, obs: dict[str, Tensor]) -> dict[str, Tensor]:
    """What LeRobot's preprocessor makes of observations with ``images`` uint8 [B, n, H, W, 3], a normalised ``state``,
    ``prompt`` and ``prompt_mask``."""
    pictures = (obs["images"].permute(0, 1, 4, 2, 3).float() / 255).unbind(1)
    return {
        **dict(zip(policy.config.image_features, pictures, strict=True)), "observation.state": obs["state"],
        "observation.language.tokens": obs["prompt"], "observation.language.attention_mask": obs["prompt_mask"],
    }  # fmt: skip


@torch.no_grad()
def chunk_of(policy: Any, batch: dict[str, Tensor], noise: Tensor) -> Tensor:
    """The normalised chunk [B, H, A] from noise [B, H, W]."""
    return policy.predict_action_chunk(batch, noise=noise)


def joint_pass(policy: Any, batch: dict[str, Tensor], x: Tensor, noise: Tensor, time: Tensor) -> Tensor:
    """Squared errors of the velocity, as LeRobot trains: prefix and suffix in one pass."""
    images, masks = policy.prepare_images(batch)
    tokens, mask = batch["observation.language.tokens"], batch["observation.language.attention_mask"]
    return policy.model.forward(images, masks, tokens, mask, policy.prepare_state(batch), x, noise, time)
