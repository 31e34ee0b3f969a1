"""Finds the checkpoint that a word of the command line names.

runs/NAME/checkpoints/000010    a checkpoint (meta.json)
runs/NAME                       its newest checkpoint
FOLDER with embodied.json       what ``embodied.tools.export`` has written
package:NAME/FOLDER             one of these within an installed package

Imports the standard library only, so that ``--help`` and a misspelt word answer at once.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied.errors import CheckpointError, ConfigError, did_you_mean
from embodied.lib.files import EXPORT_FILE, PACKAGE, checkpoint_near, in_package

KEY, TRUST_KEY = "checkpoint", "trust"
"""Short forms of the command line: a folder alone stands for ``checkpoint=FOLDER``, ``--trust`` for ``trust=true``.
They are no keys of the configuration."""
META_FILE = "meta.json"  # file that every checkpoint has
NAME_ONE = "name the folder of a checkpoint, of a run, or of an export"
SHOWN = 3  # runs that an error lists
_NAME = re.compile(r"(\d+)(?:\+(\d+))?")


@dataclass(frozen=True)
class Place:
    """A folder with weights."""

    folder: Path
    is_export: bool

    @property
    def file(self) -> Path:
        """The file that says what the folder holds."""
        return self.folder / (EXPORT_FILE if self.is_export else META_FILE)

    @property
    def run(self) -> Path:
        """The run's folder, for a checkpoint that lies in one."""
        return self.folder.absolute().parent.parent


@dataclass(frozen=True)
class Named:
    """What a command line says of a checkpoint."""

    folder: str | None
    trusted: bool


def split(overrides: Sequence[str]) -> tuple[list[str], Named]:
    """Returns the overrides without those of :data:`KEY` and :data:`TRUST_KEY`, and what these say.

    Raises:
        ConfigError: several checkpoints are named.
    """
    folders = [one.partition("=")[2] for one in overrides if one.startswith(f"{KEY}=")]
    trusted = f"{TRUST_KEY}=true" in overrides
    rest = [one for one in overrides if not one.startswith(f"{KEY}=") and one != f"{TRUST_KEY}=true"]
    weights = [one.partition("=")[2] for one in rest if folders and one.lstrip("+").startswith("runner.ckpt_path=")]
    if len(several := [*folders, *weights]) > 1:
        raise ConfigError(
            f"{', '.join(several)}: a command takes one checkpoint", "name one folder; embodied compare takes several"
        )
    return rest, Named(folders[0] if folders else None, trusted)


def as_override(word: str) -> str:
    """Rewrites a folder among the words of a command line as ``checkpoint=FOLDER``; returns other words as they are.
    A word with ``=`` is a folder only if there is a checkpoint."""
    if word.startswith(("~", "+", f"{KEY}=")):
        return word
    if word.startswith(PACKAGE) and "=" not in word:
        return f"{KEY}={word}"
    path = Path(word)
    try:
        there = path.exists()
    except OSError:  # longer than a name may be: an override that holds a configuration
        return word
    if not there:
        return word
    return word if "=" in word and find_in(path) is None else f"{KEY}={word}"


def find(word: str) -> Place:
    """Returns the folder with weights that a word names.

    Raises:
        AssetsMissingError: it names a package that is not installed.
        CheckpointError: there is none; it names what is there.
    """
    try:
        path = in_package(word) if word.startswith(PACKAGE) else Path(word).expanduser()
        found = find_in(path)
    except (OSError, RuntimeError) as error:  # longer than a name may be, not to be read, ~ of an unknown user
        raise CheckpointError(f"no folder can be found by {word[:200]!r}: {error}", NAME_ONE) from None
    if found is None:
        raise CheckpointError(_what_is_there(word, path), _fix(path))
    return found


def find_in(path: Path) -> Place | None:
    """Returns the weights in a folder, the newest of a run's; None if there are none."""
    if (path / META_FILE).is_file():
        return Place(path, False)
    if (path / EXPORT_FILE).is_file():
        return Place(path, True)
    found = [*path.glob(f"checkpoints/[0-9]*/{META_FILE}"), *path.glob(f"[0-9]*/{META_FILE}")]
    whole = sorted((file.parent for file in found if _NAME.fullmatch(file.parent.name)), key=_iteration)
    return Place(whole[-1], False) if whole else None


def identity(meta: Mapping[str, Any]) -> str | None:
    """Returns a short text that tells a checkpoint's weights from others, wherever their folder lies; None for one
    without checksums, which an older version wrote.

    Args:
        meta: content of its ``meta.json``.
    """
    if not meta.get("checksums"):
        return None
    names = ("parameters", "settled", "checksums")
    values = [meta["iteration"], meta.get("steps", 0), int(meta["trainer"]["weight_version"]), *map(meta.get, names)]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def not_a_word(word: str) -> ConfigError:
    """Returns the error about a word that is no override, and no folder either."""
    near = did_you_mean(word, [*map(str, _runs()), *(path.name for path in _runs())])
    return ConfigError(
        f"'{word}' is not of the form KEY=VALUE, and there is no folder of that name.{near}",
        f"write an override as KEY=VALUE, e.g. runner.max_epochs=2; or name a checkpoint, a run or an exported folder "
        f"that is there{_newest()}",
    )


def _what_is_there(word: str, path: Path) -> str:
    if not path.exists():
        return f"there is no folder {word}" + (f": {path} is missing" if word.startswith(PACKAGE) else "")
    if not path.is_dir():
        return f"{word} is a file, and a checkpoint is a folder"
    return (
        f"no checkpoint at {word}: it holds neither a checkpoint ({META_FILE}), nor those of a run "
        f"(checkpoints/000100/{META_FILE}), nor an export ({EXPORT_FILE})"
    )


def _fix(path: Path) -> str:
    if (beside := checkpoint_near(path)).is_dir():
        return f"give the folder of one checkpoint, e.g. {beside}"
    near = did_you_mean(str(path), map(str, _runs())).strip()
    return f"{near + ' Else name' if near else 'name'} the folder of a checkpoint, of a run, or of an export{_newest()}"


def _newest() -> str:
    runs = [str(path) for path in _runs()[:SHOWN]]
    return f"; the newest runs with checkpoints here: {', '.join(runs)}" if runs else ""


def _runs() -> list[Path]:
    """Runs below ``runs`` that have checkpoints, the newest first."""
    newest: dict[Path, float] = {}
    for file in Path("runs").glob(f"*/checkpoints/[0-9]*/{META_FILE}"):
        run = file.parents[2]
        newest[run] = max(newest.get(run, 0.0), file.stat().st_mtime)
    return sorted(newest, key=lambda run: -newest[run])


def _iteration(path: Path) -> tuple[int, int]:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2] or 0)
