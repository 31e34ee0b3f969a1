"""A policy of ours that others stand on: ``actor.model.base.folder`` of a head."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embodied.errors import ConfigError
from embodied.learn.checkpoint import exported
from embodied.learn.checkpoint.metadata import read_meta
from embodied.learn.origin import origin_of, restore
from embodied.lib.files import EXPORT_FILE
from embodied.lib.spec_json import to_json
from embodied.lib.trusted import check_trusted
from embodied.lib.weights_folder import find
from embodied.protocols import Examples, Exported, Exports, Policy
from embodied.types import EnvSpec

FORMAT = "hf"
"""In which a policy is written."""


def frozen_policy(folder: str) -> Policy:
    """Builds the policy of a folder, on the CPU.

    Args:
        folder: of a checkpoint, a run (its newest checkpoint) or an export, as ``embodied.tools.serve`` takes it.

    Raises:
        CheckpointError: nothing of that kind is there, or it is damaged.
        ConfigError: it names code that is none of this library's, or the server of a policy.
    """
    found = find(folder)
    if found.is_export:
        return exported.open_export(found.folder).policy
    origin = origin_of(found.folder, read_meta(found.folder))
    check_trusted(origin.target, origin.kwargs, found.folder)
    within = origin.kwargs.get("base")
    if isinstance(within, Mapping) and within.get("url"):  # nothing connects to an address that a folder names
        raise ConfigError(
            f"{found.folder} changes what a policy behind {within['url']} does, and its server is named by the folder "
            "alone",
            f"serve both as one, python -m embodied.tools.serve {folder} --base {within['url']} --port 8766, and set "
            "actor.model.base.url=ws://127.0.0.1:8766 in place of actor.model.base.folder",
        )
    return restore(found.folder).policy


def write_frozen(
    base: Policy, source: str | None, env: EnvSpec, folder: Path, dtype: str, examples: Examples,
    options: Mapping[str, Any],
) -> tuple[Policy, Exported | None]:  # fmt: skip
    """Writes a policy into a folder of which :func:`frozen_policy` builds it.

    Args:
        base: bound to ``env``.
        source: the folder that it was built from, if it was; an exported one is copied as it is.
        others: as :meth:`embodied.protocols.Exports.export` takes them.

    Returns:
        The policy of the folder that was written, bound to ``env``, and how it was exported; a copy: ``base`` and None.

    Raises:
        CheckpointError: the source is damaged.
        ConfigError: the policy offers no format, or cannot be written so.
    """
    found = None if source is None else find(source)
    if found is not None and found.is_export:
        exported.read_export(found.folder)  # what is damaged is not copied
        shutil.copytree(found.folder, folder)
        return base, None
    if not isinstance(base, Exports) or FORMAT not in base.export_formats:
        raise ConfigError(
            f"the head stands on {source}, and its policy ({type(base).__name__}) offers no format {FORMAT!r}: the "
            "folder could not hold it",
            "serve or evaluate the head's checkpoint as it is; or give the class of that policy export_formats and "
            "export() (embodied.protocols.Exports)",
        )
    folder.mkdir()
    written = base.export(FORMAT, folder, dtype, examples, options)
    told = {"num_action_chunks": base.spec.num_action_chunks, "describe": dict(base.describe())}
    origin = {} if found is None else {"checkpoint": str(found.folder)}
    facts = exported.ExportFile(
        FORMAT, written.dtype, to_json(env), told, dict(written.model), origin, dict(written.measured), written.rounding
    )
    (folder / EXPORT_FILE).write_text(json.dumps(exported.with_files(facts, folder), indent=1) + "\n", encoding="utf-8")
    policy: Any = exported.open_export(folder).policy
    policy.requires_grad_(False).eval()
    return policy, written
