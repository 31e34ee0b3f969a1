"""Folders and programs for other programs (``embodied.tools.export``). What writes them is imported when it is asked
for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embodied.protocols import Examples, Exported, Policy

from ...shared.exporting import PROGRAMS
from ..parts import Parts

FOLDERS = {
    "hf": "a Hugging Face folder in OpenVLA-OFT's own layout: weights with adapters merged, tokenizer, statistics",
    "adapter": "a peft folder: the LoRA adapters, with the modules that were trained in full",
}
KINDS = {**FOLDERS, **PROGRAMS}


def export(
    policy: Policy, parts: Parts, kind: str, folder: Path, dtype: str, examples: Examples, options: Mapping[str, Any]
) -> Exported:  # fmt: skip
    """Writes the policy in one of the export formats. See :meth:`embodied.protocols.Exports.export`.

    Args:
        parts: of the policy.
    """
    assert kind in KINDS
    if kind in FOLDERS:
        from .folder import export_folder

        return export_folder(policy, parts, kind, folder, dtype, examples, options)
    from .program import export_program

    return export_program(policy, parts, kind, folder, dtype, examples, options)
