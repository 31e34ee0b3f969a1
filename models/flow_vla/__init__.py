"""Flow policies: SmolVLA, π0 and π0.5, which denoise a chunk of continuous actions.

``build_policy`` is the ``_target_`` of ``config/model/flow_vla_tiny.yaml``, ``smolvla.yaml``, ``pi0.yaml`` and
``pi05.yaml``; its keyword arguments are the fields of :class:`~.settings.Settings`. Importing this package imports no
torch.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from .settings import Settings

if TYPE_CHECKING:
    from .policy import FlowVLAPolicy

__all__ = ["Settings", "build_policy", "reads"]

PIXELS = {"smolvla": 512, "pi0": 224, "pi05": 224}
"""Pixels of a side of what released networks read."""


def reads(layout: str, model_path: str | None = None, image_size: int = 64) -> str:
    """Returns what a policy with such keys reads, for the page of models."""
    return f"all cameras, {image_size if model_path is None else PIXELS[layout]} px, the state"


def build_policy(**kwargs: Any) -> FlowVLAPolicy:
    """Builds the policy on the CPU, from a folder or with random weights.

    Raises:
        ConfigError: a key under ``actor.model`` is unknown, has a wrong value, or contradicts the folder.
        CheckpointError: the folder is missing, damaged, or of another model.
    """
    import torch

    from .build import build

    with torch.device("cpu"):
        return build(Settings.from_kwargs(kwargs))


# The configuration is checked against this signature. Taking it from the dataclass keeps one list of keys.
build_policy.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [p.replace(kind=p.KEYWORD_ONLY) for p in inspect.signature(Settings).parameters.values()]
)
