"""Finds a model by its name on the Hugging Face hub among those that were downloaded before. Nothing is downloaded.

~/.cache/huggingface/hub/models--OWNER--NAME/refs/main              the commit of a branch or tag
                                             snapshots/COMMIT/      its files
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embodied.errors import ConfigError
from embodied.schema.keys.paths import MISSING, at, with_changes

PATH, REVISION = "actor.model.model_path", "actor.model.model_revision"
MAIN = "main"
_NAME = re.compile(r"([\w-][\w.-]*/)?[\w-][\w.-]*")
_REVISION = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*")


def with_cached_model(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the configuration with the folder of a downloaded model in place of its name and revision.

    A folder that is there keeps its meaning, and a name that was never downloaded is left as it is.

    Raises:
        ConfigError: a revision is asked for that was not downloaded.
    """
    name, revision = at(mapping, PATH), at(mapping, REVISION)
    given = revision not in (MISSING, None)
    if not isinstance(name, str) or not _NAME.fullmatch(name) or Path(name).exists():
        return dict(mapping)
    cached = cache() / f"models--{name.replace('/', '--')}"
    if not cached.is_dir() and not given:
        return dict(mapping)
    found = _snapshot(cached, str(revision) if given else MAIN)
    if found is None:
        there = sorted(str(ref.relative_to(cached / "refs")) for ref in (cached / "refs").rglob("*") if ref.is_file())
        commits = sorted(path.name for path in cached.glob("snapshots/*"))
        raise ConfigError(
            f"{PATH} is {name}, and revision {revision if given else MAIN} of it is not in {cached.parent}, which has "
            + (", ".join([*there, *commits]) or "none"),
            f"nothing is downloaded here: run hf download {name}" + (f" --revision {revision}" if given else "")
            + f", or set {PATH} to a folder",
        )  # fmt: skip
    return with_changes(mapping, {PATH: str(found), REVISION: None})


def cache() -> Path:
    """Returns the folder in which huggingface_hub keeps what it has downloaded."""
    if (own := os.environ.get("HF_HUB_CACHE")) is not None:
        return Path(own).expanduser()
    above = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(os.environ.get("HF_HOME") or above).expanduser() / "hub"


def _snapshot(cached: Path, revision: str) -> Path | None:
    """The folder of a branch, tag or commit; None if it was not downloaded."""
    if not _REVISION.fullmatch(revision):
        return None
    ref = cached / "refs" / revision
    commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else revision
    found = cached / "snapshots" / commit
    return found if "/" not in commit and found.is_dir() else None
