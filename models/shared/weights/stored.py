"""Weights of a folder by plain names, before any is read: what the headers of its files tell is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from embodied.errors import CheckpointError
from embodied.lib.files import read_json
from embodied.weights.formats import check_declared, check_formats
from embodied.weights.header import Entry
from embodied.weights.listing import read_headers
from embodied.weights.naming import check_merged, plain_names

ADAPTER = "adapter_config.json"


@dataclass(frozen=True)
class Stored:
    """Weights in a folder of safetensors files, not loaded yet."""

    folder: Path
    headers: Mapping[Path, Mapping[str, Entry]]
    plain: Mapping[str, str]  # name in the files → without what other programs put around modules

    @classmethod
    def of(cls, folder: Path, anchors: Sequence[str], key: str = "actor.model.") -> Stored:
        """Reads the headers of all files and checks them.

        Args:
            anchors: see :func:`embodied.weights.naming.plain_names`.
            key: of the section of the configuration that names the folder, with a dot at its end.

        Raises:
            CheckpointError: weights are quantised, adapters are not merged, or names cannot be told apart.
            DamagedCheckpointError: a file is damaged or missing.
        """
        headers = read_headers(folder)
        names = [name for header in headers.values() for name in header]
        check_formats(headers)
        check_config(folder)
        check_merged(names, folder, key)
        check_no_adapter(folder, key)
        return cls(folder, headers, plain_names(dict.fromkeys(names), anchors, folder))

    @property
    def files(self) -> list[Path]:
        """The files that hold tensors."""
        return list(self.headers)

    @property
    def renamed(self) -> bool:
        """Whether a name in the files differs from the plain one."""
        return any(name != plain for name, plain in self.plain.items())

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shape of each tensor by its plain name."""
        return {self.plain[name]: entry.shape for header in self.headers.values() for name, entry in header.items()}

    def place(self, plain: str) -> tuple[Path, str] | None:
        """Returns the file of a tensor and its name in it; None if there is none of this plain name."""
        for file, header in self.headers.items():
            for name in header:
                if self.plain[name] == plain:
                    return file, name
        return None


def check_config(folder: Path) -> None:
    """Raises CheckpointError if config.json says that the weights are quantised."""
    file = folder / "config.json"
    check_declared(read_json(file) if file.is_file() else {}, file)


def check_no_adapter(folder: Path, key: str) -> None:
    """Raises CheckpointError if a folder holds an adapter of peft, alone or beside a network: transformers would load
    another network, the one that the adapter names."""
    if (folder / ADAPTER).is_file() and not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{folder} holds an adapter of peft ({ADAPTER}) and no network",
            f"set {key}model_path to the network below it, {key}lora_path={folder} and {key}is_lora=true",
        )
    if (folder / ADAPTER).is_file():
        raise CheckpointError(
            f"{folder} holds a network and an adapter of peft ({ADAPTER}) beside it: it does not tell whether the "
            "adapter is merged into the network",
            f"move {ADAPTER} and adapter_model.safetensors into a folder of their own; if they are not merged yet, set "
            f"{key}lora_path to it",
        )
