"""The groups of the configuration, and the files that each has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

GROUPS = ("env", "model", "algorithm", "runtime", "tracker", "experiment", "perturb", "protocol")


def group_options(group: str, folders: Sequence[str] = ()) -> list[str]:
    """Lists the names of the files of a config group, e.g. ``env`` → libero_10; ``folders`` as in :func:`compose`."""
    import embodied.config

    roots = [*embodied.config.__path__, *folders]
    return sorted({path.stem for root in roots for path in (Path(root) / group).glob("*.yaml")})
