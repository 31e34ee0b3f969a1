"""A policy of ours that others stand on: ``actor.model.base.folder`` of a head."""

from __future__ import annotations

from embodied.learn.checkpoint import exported
from embodied.learn.checkpoint.metadata import read_meta
from embodied.learn.origin import origin_of, restore
from embodied.lib.trusted import check_trusted
from embodied.lib.weights_folder import find
from embodied.protocols import Policy


def frozen_policy(folder: str) -> Policy:
    """Builds the policy of a folder, on the CPU.

    Args:
        folder: of a checkpoint, a run (its newest checkpoint) or an export, as ``embodied.tools.serve`` takes it.

    Raises:
        CheckpointError: nothing of that kind is there, or it is damaged.
        ConfigError: it names code that is none of this library's.
    """
    found = find(folder)
    if found.is_export:
        return exported.open_export(found.folder).policy
    origin = origin_of(found.folder, read_meta(found.folder))
    check_trusted(origin.target, origin.kwargs, found.folder)
    return restore(found.folder).policy
