"""How many processes accelerate starts for a file of TRL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

FILE, COUNT = "accelerate_config", "num_processes"
PROFILES = {"single_gpu": 1, **dict.fromkeys(("multi_gpu", "fsdp1", "fsdp2", "zero1", "zero2", "zero3"), 8)}
"""Files of accelerate that come with TRL → their processes."""
KEYS = (COUNT, "num_machines")


def with_processes(theirs: Mapping[str, Any], folder: Path, given: int | None) -> dict[str, Any]:
    """Returns TRL's keys with ``num_processes``, where it is known.

    Args:
        folder: where their file lies.
        given: what the user says; it comes before what stands in files.
    """
    keys = dict(theirs)
    if given is not None:
        return {**keys, COUNT: given}
    if (profile := PROFILES.get(str(keys.get(FILE)))) is not None:
        del keys[FILE]
        return {COUNT: profile, **keys}
    for file in (Path(str(keys.get(FILE))), folder / str(keys.get(FILE))):
        if keys.get(FILE) and file.is_file():
            said = yaml.safe_load(file.read_text(encoding="utf-8"))
            del keys[FILE]
            return {**{key: said[key] for key in KEYS if isinstance(said, Mapping) and key in said}, **keys}
    return keys
