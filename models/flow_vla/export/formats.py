"""Folders and programs for other programs (``embodied.tools.export``). What writes them is imported when it is asked
for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied.protocols import Examples, Exported

from ...shared.exporting import PROGRAMS

if TYPE_CHECKING:
    from .decision import Exportable

FOLDERS = {"hf": "LeRobot's folder: weights with adapters merged, configuration, processors with statistics"}
KINDS = {**FOLDERS, **PROGRAMS}


def export(
    policy: Exportable, kind: str, folder: Path, dtype: str, examples: Examples, options: Mapping[str, Any]
) -> Exported:  # fmt: skip
    """Writes the policy in one of the export formats. See :meth:`embodied.protocols.Exports.export`."""
    assert kind in KINDS
    if kind in FOLDERS:
        from .folder import export_folder

        return export_folder(policy, folder, dtype, examples, options)
    from .program import export_program

    return export_program(policy, kind, folder, dtype, examples, options)
