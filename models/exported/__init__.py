"""A policy that ``embodied.tools.export`` has written as a program (torch_export, onnx, aoti), run from its folder.

``build_policy`` is the ``_target_`` of ``config/model/exported.yaml``. It needs none of the code that made the policy,
and onnxruntime alone where the program is ONNX. It answers; it cannot be trained. Importing this package does not
import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .policy import ExportedPolicy

__all__ = ["build_policy", "reads"]


def reads() -> str:
    """Returns what a policy reads, for the page of models."""
    return "what its checkpoint read"


def build_policy(*, model_path: str, threads: int | None = None, trust: bool = False) -> ExportedPolicy:
    """Build the policy of an exported program.

    Args:
        model_path: the folder.
        threads: of onnxruntime; None = as many as torch has.
        trust: run machine code of the folder (format aoti). Set it for folders of your own alone.

    Raises:
        CheckpointError: the folder is missing, damaged, or holds what a program does not need.
        ConfigError: a package is missing, or the program is machine code and ``trust`` is false.
    """
    from .policy import build

    return build(model_path, threads, trust)
