"""Data sets of Hugging Face: a folder (of files, or written by ``save_to_disk``), or a name on the hub.

The package ``datasets`` reads it once and the rows are copied into the cache folder, as those of a Parquet file are. So
env workers, and later starts, do not import it. The copy of a folder is made again when a file of it changes. The copy
of a name stays: the hub is not asked again, and the same revision gives the same run.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from embodied.errors import AssetsMissingError, ConfigError, DatasetError
from embodied.rows.files import SourceFile, SourceFolder, SourceName
from embodied.rows.formats import ARROW_ROWS, KINDS, ArrowCopy

LOOKED_AT = 1000  # lines of a file of JSON lines, to find out what its columns hold


@dataclass(frozen=True)
class Part:
    """The part of a Hugging Face data set that is read: subset, splits, revision.

    Args:
        subset: its configuration; None = the only one.
        split: one, or several to be joined; () = the only one.
        revision: branch, tag or commit on the hub.
    """

    subset: str | None = None
    split: tuple[str, ...] = ()
    revision: str | None = None

    @classmethod
    def of(cls, subset: str | None, split: str | Sequence[str] | None, revision: str | None) -> Part:
        """Makes a part from the values of configuration keys."""
        return cls(subset, (split,) if isinstance(split, str) else tuple(split or ()), revision)

    def __str__(self) -> str:
        values = {"subset": self.subset, "split": "+".join(self.split), "revision": self.revision}
        told = [f"{name} {value}" for name, value in values.items() if value]
        return f" ({', '.join(told)})" if told else ""


WHOLE = Part()


def source_of(where: str, part: Part = WHOLE, keep: bool = True) -> SourceFile:
    """Resolves a data path to a file, a folder or a hub data set, and notes its present state.

    Args:
        keep: whether what is worked out from it is kept for other processes and later starts.

    Raises:
        DatasetError: there is no such file, or it is empty.
        ConfigError: ``part`` says something that this has not.
    """
    path = Path(where).expanduser()
    if path.is_dir():
        if part.revision is not None:
            raise ConfigError(f"revision is {part.revision}, and {where} is a folder", "leave the revision out")
        return replace(SourceFolder.of(path), keep=keep)
    if is_hub_name(where):
        return replace(SourceName.of(path), keep=keep)
    if part != WHOLE:
        raise ConfigError(
            f"{where} is a file, and has no{part}: these are of data sets of Hugging Face",
            "leave out data.train_subset, train_split, train_revision (val_… of the other side), or give a folder",
        )
    return replace(SourceFile.of(path), keep=keep)


def is_hub_name(where: str) -> bool:
    """Returns whether ``where`` names a data set on the Hugging Face hub: nothing here is called so, and it does not
    end like a file."""
    path = Path(where)
    named = re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", where) is not None
    return named and not path.exists() and path.suffix.lower() not in (*KINDS, ".txt", ".py", ".arrow")


class HubRows(ArrowCopy):
    """Rows of a Hugging Face data set, on the hub or in a folder.

    Raises:
        DatasetError: it cannot be loaded, or has no such split.
        AssetsMissingError: the package ``datasets`` is not installed, and there is no copy yet.
    """

    def __init__(self, source: SourceFile, part: Part) -> None:
        where = str(source.path)

        def write(out: BinaryIO) -> None:
            from pyarrow import ipc

            tables = _tables(where, part)
            if (first := next(tables, None)) is None:
                raise DatasetError(f"{where}{part} has no rows", "name another part of the data set")
            with ipc.new_file(out, first.schema) as copy:
                copy.write_table(first)
                for table in tables:
                    copy.write_table(_as(first.schema, table, f"{where}{part}"))

        digest = hashlib.sha256(repr(part).encode()).hexdigest()[:16]
        super().__init__(source, f"hub-{digest}.arrow", write)


def _tables(where: str, part: Part) -> Iterator[Any]:
    """The rows as Arrow tables of :data:`ARROW_ROWS`."""
    try:
        for one in _splits(where, part):
            yield from one.with_format("arrow").iter(batch_size=ARROW_ROWS)
    except (AssetsMissingError, DatasetError):
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise DatasetError(
            f"the data set {where}{part} cannot be loaded: {' '.join(map(str.strip, lines[:4]))}",
            "give a .jsonl, .json, .csv or .parquet file, a folder of them, or a name on the hub that this machine can "
            "reach; data.train_subset and data.train_split name its part",
        ) from error


def _as(schema: Any, table: Any, where: str) -> Any:
    """The table with the columns and types of the first rows. Columns of nulls alone get the type; no text becomes a
    number."""
    import pyarrow as arrow

    try:
        if arrow.unify_schemas([schema, table.schema]).equals(schema):
            return table.select(schema.names).cast(schema)
    except (arrow.ArrowInvalid, arrow.ArrowTypeError, KeyError):
        pass  # said below
    told, found = ({one.name: str(one.type) for one in fields} for fields in (schema, table.schema))
    names = [name for name in {**told, **found} if told.get(name) != found.get(name)]
    texts = [f"'{name}' is {told.get(name, 'missing')}, then {found.get(name, 'missing')}" for name in names]
    raise DatasetError(
        f"columns of {where} change between its rows: {'; '.join(texts)}",
        "write all files of a data set with the same columns and types: numbers, or texts, throughout",
    )


def _splits(where: str, part: Part) -> Iterable[Any]:
    found = _loaded(where, part)
    if not isinstance(found, Mapping):
        if part.split:
            raise DatasetError(f"{where} is one split, and has no{part}", "leave the split out")
        return [found]
    wanted = part.split or (tuple(found) if len(found) == 1 else ())
    if not wanted or any(name not in found for name in wanted):
        raise DatasetError(
            f"{where}{part} has the splits {', '.join(map(str, found))}",
            "name one of them: data.train_split, data.val_split (env.train.split, env.eval.split)",
        )
    return [found[name] for name in wanted]


def _loaded(where: str, part: Part) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise AssetsMissingError(
            f"{where} needs the Python package 'datasets', which is not installed", "pip install 'embodied-rl[text]'"
        ) from error
    datasets.disable_progress_bars()
    folder = Path(where)
    if any((folder / name).is_file() for name in ("dataset_dict.json", "state.json")):  # written by save_to_disk
        return datasets.load_from_disk(where)
    if folder.is_dir():
        _check_kinds(datasets.load_dataset_builder(where, part.subset), part)
    # A folder is read as it is. What comes from the hub is kept by datasets, too, which then works without a network.
    return datasets.load_dataset(where, part.subset, revision=part.revision, streaming=folder.is_dir())


def _check_kinds(builder: Any, part: Part) -> None:
    """Refuses files of JSON whose first rows have a text and a number in one column: ``datasets`` would turn the texts
    into numbers, ``"00012"`` into 12. A data set that declares its columns says itself what they become."""
    if builder.info.features is not None:
        return
    for split, files in (builder.config.data_files or {}).items():
        seen: dict[str, tuple[str, str]] = {}  # column → what it holds, and in which file
        for file in files if split in (part.split or (split,)) else ():
            for name, kind in _kinds(Path(file)).items():
                before, where = seen.setdefault(name, (kind, file))
                if before != kind:
                    raise DatasetError(
                        f"column '{name}' is {before} in {where}, and {kind} in {file}",
                        "write the column in the same way in all files: numbers, or texts, throughout",
                    )


def _kinds(file: Path) -> dict[str, str]:
    """What the first value of each column is, for texts and numbers; a null is no value."""
    found: dict[str, str] = {}
    for row in _first_rows(file):
        for name, value in row.items():
            if name not in found and isinstance(value, str | int | float):
                found[name] = "a text" if isinstance(value, str) else "a number"
    return found


def _first_rows(file: Path) -> list[Mapping[str, Any]]:
    """The first rows of JSON lines, or all of a JSON list; nothing of other files."""
    if file.suffix.lower() not in (".jsonl", ".ndjson", ".json") or not file.is_file():
        return []
    try:
        with file.open("rb") as opened:
            is_list = opened.read(1) == b"["
            opened.seek(0)
            lines = (line for line in islice(opened, LOOKED_AT) if line.strip())
            found = json.load(opened) if is_list else [json.loads(line) for line in lines]
    except ValueError:  # datasets itself reports broken JSON
        return []
    return [row for row in found if isinstance(row, dict)]
