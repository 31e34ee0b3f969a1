"""Folders that come from elsewhere, such as checkpoints: their files are read only where they belong, and only as they
were written.

    check_folder(folder)          links that leave the folder, pipes and devices are refused
    inside(folder, name)          a name that stands in a file of the folder, e.g. in an index of weights
    reading(file)                 what is in a file is not as expected: an error with the file's name
    check_content(file)           the file is a stand-in for what was to be downloaded, or cannot be read at all
    checksums, sealed             note what was written
    check_checksums, check_seal   find what was changed
    check_export(folder)          all of it, for a folder that an export has written
    folder_of(model_path)         the folder that a key of the configuration names

Imports the standard library only.
"""

from __future__ import annotations

import json
import stat
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from embodied.errors import AssetsMissingError, CheckpointError, DamagedCheckpointError

EXPORT_FILE = "embodied.json"  # every folder of embodied.tools.export has it
PACKAGE = "package:"
"""Begins a ``model_path`` that lies in an installed package."""
MOST_JSON_BYTES = 1 << 28  # the largest known, an index or a tokenizer, has some 10 MB
MOST_ENTRIES = 100_000  # files of a folder
PIECE = 1 << 22  # bytes that are read at a time
RESTED_NS = 2 * 10**9
"""Age from which a file's times tell every later change: the coarsest clocks of file systems count 2 s."""
AGAIN = "download or copy it again"
LFS = b"version https://git-lfs"
STAND_INS: Mapping[bytes, str] = {
    b"<!doctype": "an HTML page", b"<html": "an HTML page", b"<?xml": "an XML page (an error message of a server?)",
    b"invalid username": "an error message of a server", b"entry not found": "an error message of a server",
    b"repository not found": "an error message of a server", b"access to model": "an error message of a server",
}  # fmt: skip
"""What a failed download leaves under a file's name begins so, in lower case."""
UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def folder_of(model_path: str) -> Path:
    """The folder that ``model_path`` names: a path, or ``package:NAME/FOLDER`` for one within an installed package.

    Raises:
        AssetsMissingError: the package is not installed.
        CheckpointError: there is no such folder.
    """
    path = in_package(model_path) if model_path.startswith(PACKAGE) else Path(model_path).expanduser()
    if not path.is_dir():
        raise CheckpointError(
            f"no folder {path} (actor.model.model_path)",
            "nothing is downloaded here: run `hf download OWNER/NAME` first, or with `--local-dir DIR` and give DIR",
        )
    return path


def in_package(word: str) -> Path:
    """Returns where ``package:NAME/FOLDER`` is; the folder may be missing.

    Raises:
        AssetsMissingError: the package is not installed, or has no such part.
    """
    package, _, folder = word.removeprefix(PACKAGE).partition("/")
    places, top = _places_of(package), package.partition(".")[0]
    if places:
        return Path(places[0]) / folder
    if top != package and _places_of(top):
        raise AssetsMissingError(
            f"there is no package '{package}': '{top}' is installed and has none of that name",
            f"correct {word}, or name a folder",
        )
    raise AssetsMissingError(
        f"the Python package '{package}' of {word} is not installed",
        f"pip install {top.replace('_', '-')}, or name a folder in place of {word}",
    )


def _places_of(package: str) -> list[str]:
    """Folders of an installed package; none if there is no such package."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):  # a package around it is missing, or it is no name
        return []
    return [*(spec.submodule_search_locations or [])] if spec else []


def check_folder(folder: Path) -> None:
    """Check every entry of a folder, and of the folders in it, before any file is read.

    Links within the folder are fine, and so are those of a download folder of Hugging Face, whose files lie in
    ``blobs`` beside its ``snapshots``.

    Raises:
        CheckpointError: a link leads out of the folder or nowhere, or something is neither file nor folder.
    """
    roots = _roots(folder)
    for number, entry in enumerate(folder.rglob("*")):
        if number >= MOST_ENTRIES:
            raise CheckpointError(f"{folder} has more than {MOST_ENTRIES} files", "give the folder of one checkpoint")
        if entry.is_symlink():
            _check_target(entry, _resolved(entry), roots)
        elif not stat.S_ISREG(mode := entry.stat().st_mode) and not stat.S_ISDIR(mode):
            raise CheckpointError(f"{entry} is neither a file nor a folder", f"remove it, or {AGAIN}")


def inside(folder: Path, name: Any) -> Path:
    """Returns the path of a file that is named within another file. Raises :class:`CheckpointError` unless it lies in
    ``folder``.

    Raises:
        CheckpointError: it is no name of a file in the folder, e.g. an absolute path or one with "..".
    """
    if not isinstance(name, str) or name in ("", ".", "..") or any(sign in name for sign in "/\\\0") or len(name) > 255:
        raise CheckpointError(
            f"{folder} names the file {str(name)[:80]!r}, expected one that lies in this folder",
            f"{AGAIN}; if it comes from strangers, do not use it",
        )
    path = folder / name
    if path.is_symlink():
        _check_target(path, _resolved(path), _roots(folder))
    return path


def _roots(folder: Path) -> list[Path]:
    """Folders in which a checkpoint's files may lie."""
    own = folder.resolve()
    return [own, own.parents[1] / "blobs"] if own.parent.name == "snapshots" else [own]


def _resolved(link: Path) -> Path | None:
    try:
        return link.resolve(strict=True)
    except (OSError, RuntimeError):  # it leads nowhere, or in a circle
        return None


def _check_target(link: Path, target: Path | None, roots: list[Path]) -> None:
    if target is None or not any(target.is_relative_to(root) for root in roots) or not target.is_file():
        where = "leads nowhere" if target is None else f"is a link to {target}, expected a file in this folder"
        raise CheckpointError(f"{link} {where}", "copy the file itself into the folder")


@contextmanager
def reading(file: Path, what: str = "its content is not as expected") -> Iterator[None]:
    """Context that turns errors while the content of ``file`` is parsed into one that names the file.

    Raises:
        DamagedCheckpointError: instead of the errors in :data:`UNREADABLE`, and of those of the file system. It says so
            if the file is a stand-in (:func:`check_content`).
    """
    try:
        yield
    except (*UNREADABLE, OSError) as error:
        check_content(file)
        raise DamagedCheckpointError(f"{file} is damaged: {what} ({type(error).__name__}: {error})", AGAIN) from error


def check_content(file: Path) -> None:
    """Refuse a file that stands in for one that was never downloaded, is empty, or may not be read. One that is not
    there, or is no file, passes.

    Raises:
        CheckpointError: the file may not be read.
        DamagedCheckpointError: it is empty, a pointer of Git LFS, or a page of a web server.
    """
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            return
        with file.open("rb") as opened:
            begins = opened.read(256).lstrip()
    except PermissionError as error:
        fix = f"give yourself the right to read it: chmod u+r {file}, or ask its owner"
        raise CheckpointError(f"{file} may not be read ({error.strerror})", fix) from error
    except OSError:
        return
    if begins.startswith(LFS):
        raise DamagedCheckpointError(
            f"{file} is damaged: it is a pointer of Git LFS, which stands where the file itself was not downloaded",
            f"run `git lfs pull` in {file.parent} (`git lfs install` first if it was never run), or download the file "
            "with `hf download`",
        )
    found = "an empty file" if not begins else _stand_in(begins.lower())
    if found is not None:
        raise DamagedCheckpointError(f"{file} is damaged: it is {found}", AGAIN)


def _stand_in(begins: bytes) -> str | None:
    return next((what for sign, what in STAND_INS.items() if begins.startswith(sign)), None)


def read_json(file: Path) -> dict[str, Any]:
    """Reads a file that holds one JSON object.

    Raises:
        DamagedCheckpointError: it cannot be read, is no JSON object, or is too large for one.
    """
    with reading(file, "it is no JSON object"):
        if not stat.S_ISREG(file.stat().st_mode):
            raise ValueError("it is no file")
        if (size := file.stat().st_size) > MOST_JSON_BYTES:
            raise ValueError(f"it has {size} bytes, expected at most {MOST_JSON_BYTES}")
        values = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise TypeError(f"it holds a {type(values).__name__}")
    return values


def check_export(folder: Path) -> dict[str, Any]:
    """Check a folder that ``embodied.tools.export`` has written, and return what stands in its ``embodied.json``. Of a
    folder without that file only its entries are checked, and the result is empty.

    Raises:
        CheckpointError: as :func:`check_folder`.
        DamagedCheckpointError: a file is not what was written.
    """
    check_folder(folder)
    file = inside(folder, EXPORT_FILE)
    if not file.exists():
        return {}
    values = check_seal(file, read_json(file))
    with reading(file):
        noted = dict(values.get("files", {}))
    check_checksums(
        folder,
        noted,
        f"{AGAIN}; after an edit that you mean, remove its entry from 'files', and the line 'checksum', in {file}",
    )
    return values


# -- checksums -------------------------------------------------------------------------------------------------------


def checksums(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Size and checksum of files by name, as :func:`check_checksums` reads them. Names may have folders in them."""
    return {name: _sum_of_file(folder / name) for name in names}


def check_checksums(folder: Path, noted: Mapping[str, Any], fix: str = AGAIN) -> None:
    """Compares files with sizes and checksums that were noted of them. Raises DamagedCheckpointError.

    A checksum finds damage. It does not tell who wrote a file.

    Args:
        fix: what the error says to do.

    Raises:
        DamagedCheckpointError: a file is gone or has other bytes.
    """
    for name, wanted in noted.items():
        file = folder
        for part in name.split("/"):
            file = inside(file, part)
        got = _sum_of_file(file) if file.is_file() else "nothing"
        if got != wanted:
            raise DamagedCheckpointError(f"{file} is damaged: it has {got}, expected {wanted}", fix)


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Adds a checksum of themselves to JSON values."""
    return {**values, "checksum": _sum_of_values(values)}


def check_seal(file: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Checks the checksum that :func:`sealed` added, and returns the values without it.

    Values without a checksum are returned as they are: an older version wrote none, and whoever edits a file on purpose
    takes it out, as the fix says. A file that was cut has none either, but is no JSON any more (:func:`read_json`).

    Raises:
        DamagedCheckpointError: they are others.
    """
    if "checksum" not in values:
        return values
    own = {name: value for name, value in values.items() if name != "checksum"}
    if (got := _sum_of_values(own)) != values["checksum"]:
        raise DamagedCheckpointError(
            f"{file} is damaged or was edited: its checksum is {got}, expected {values['checksum']}",
            f"{AGAIN}; after an edit that you mean, remove the line 'checksum' from it",
        )
    return own


def _sum_of_values(values: Mapping[str, Any]) -> str:
    return f"crc32 {zlib.crc32(json.dumps(values, sort_keys=True).encode()):08x}"


def _sum_of_file(path: Path) -> str:
    """Of a file that has rested for :data:`RESTED_NS` the sum is kept: the same bytes are not read twice."""
    facts = path.stat()
    changed = max(facts.st_mtime_ns, facts.st_ctime_ns)
    if time.time_ns() - changed < RESTED_NS:
        return _sum(path)
    return _kept_sum(path, facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


@lru_cache(maxsize=4096)
def _kept_sum(path: Path, *_unchanged: int) -> str:
    return _sum(path)


def _sum(path: Path) -> str:
    value, size = 0, 0
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            value, size = zlib.crc32(piece, value), size + len(piece)
    return f"{size} bytes, crc32 {value:08x}"


def checkpoint_near(path: Path) -> Path:
    """Returns the newest checkpoint of a run, of a folder of checkpoints, or beside one that is not there; where there
    is none, an example."""
    for folder in (path / "checkpoints", path, path.parent):
        if found := sorted(folder.glob("*/meta.json")):
            return found[-1].parent
    return Path("runs/NAME/checkpoints/000004")
