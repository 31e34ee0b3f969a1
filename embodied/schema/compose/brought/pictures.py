"""How an exported folder prepares pictures: a named protocol leaves that as the policy learnt with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embodied.errors import EmbodiedError
from embodied.lib.files import EXPORT_FILE, UNREADABLE, check_seal, folder_of, inside, read_json

PICTURES = ("image_preset", "center_crop")
"""Keys of ``actor.model`` that a protocol may set, and that belong to the weights."""


def own_pictures(model: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the dotted keys of ``actor.model`` on pictures as ``actor.model.model_path`` says them in its
    ``embodied.json``; none of a folder that has no such file, which says nothing of pictures."""
    path = model.get("model_path")
    if not isinstance(path, str):
        return {}
    try:
        file = inside(folder_of(path), EXPORT_FILE)
        said = check_seal(file, read_json(file))["model"]
        same = said.get("_target_") == model.get("_target_")
        return {f"actor.model.{key}": said[key] for key in PICTURES if same and key in said}
    except (*UNREADABLE, OSError, EmbodiedError):
        return {}  # whoever builds the policy says what is wrong with the folder
