"""Checks the contents of a file of torch.export before torch reads it.

``torch.export.load`` runs code of the file in several ways: pickled tensors and sample inputs, sizes as expressions
that are evaluated, guards, names that are pasted into generated code, calls of any function of torch. Programs of ours
need none of it. :func:`check_archive` admits only

- the files of one program, none of them pickled, no sample inputs, no guards;
- calls of ATen operators and of arithmetic on sizes;
- names that are words, and sizes that are arithmetic on words and whole numbers.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch.export.pt2_archive import PT2ArchiveReader

from embodied.errors import CheckpointError

FILES = re.compile(
    r"archive_format|archive_version|byteorder|version|\.data/(version|serialization_id)|models/model\.json"
    r"|data/weights/(weight_\d+|model_weights_config\.json)|data/constants/(tensor_\d+|model_constants_config\.json)"
    r"|data/sample_inputs/model\.pt"
)
TARGETS = re.compile(
    r"torch\.ops\.aten\.\w+\.\w+|torch\.sym_(int|float|max|min|not|sum|ite)|math\.(ceil|floor|trunc)"
    r"|_operator\.(getitem|add|sub|mul|floordiv|truediv|mod|neg|pow|eq|ne|ge|gt|le|lt|and_|or_|not_)"
)
REFUSED = re.compile(r"torch\.ops\.aten\.from_file\.")  # it maps any file of the machine
FUNCTIONS = "Add|Mul|Max|Min|Mod|PythonMod|FloorDiv|CeilDiv|CleanDiv|Identity"
SYMBOL = r"Symbol\('[su]\d++'(?:, (?:positive|nonnegative|integer)=True)*+\)"
SIZES = re.compile(rf"(?:{SYMBOL}|Pow\({SYMBOL}, Integer\(2\)\)|Integer\(-?\d{{1,19}}+\)|(?:{FUNCTIONS})\(|\)|, )*+")
WORDS = re.compile(r"[\w.]*")
TREES = re.compile(r'[\w.\[\]{}:,"\\ -]*')  # how inputs and outputs are nested, as JSON


def check_archive(path: Path) -> None:
    """Raises CheckpointError if an exported program's file holds anything beside what is listed above."""
    reader = PT2ArchiveReader(str(path))
    names = reader.get_file_names()
    if unknown := [name for name in names if not FILES.fullmatch(name)]:
        raise _refused(path, f"a file '{unknown[0]}'")
    if len({*names}) < len(names):
        raise _refused(path, "two files of one name")
    if reader.read_bytes("data/sample_inputs/model.pt"):
        raise _refused(path, "sample inputs, which would be unpickled")
    for kind in ("weights", "constants"):
        _check_tensors(path, json.loads(reader.read_string(f"data/{kind}/model_{kind}_config.json")))
    program = json.loads(reader.read_string("models/model.json"))
    if program.get("guards_code"):
        raise _refused(path, "guards, which are code")
    _check_graph(path, "", program)


def _check_tensors(path: Path, listed: Any) -> None:
    for name, payload in listed["config"].items():
        plain = re.fullmatch(r"(weight|tensor)_\d+", payload["path_name"])
        if payload["use_pickle"] or not plain or not WORDS.fullmatch(name):
            raise _refused(path, f"'{name}' as a pickle")


def _check_graph(path: Path, key: str, value: Any) -> None:
    """Check all texts inside ``value``, which stands under ``key``."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if not WORDS.fullmatch(name):
                raise _refused(path, f"the name {name[:80]!r}")
            _check_graph(path, name, inner)
    elif isinstance(value, list):
        for inner in value:
            _check_graph(path, key, inner)
    elif isinstance(value, str):
        _check_text(path, key, value)


def _check_text(path: Path, key: str, text: str) -> None:
    if key == "target":
        if not TARGETS.fullmatch(text) or REFUSED.match(text):
            raise _refused(path, f"a call of {text[:80]!r}")
    elif key == "expr_str":
        if not SIZES.fullmatch(text):
            raise _refused(path, f"the size {text[:80]!r}")
    elif key in ("in_spec", "out_spec"):
        if not TREES.fullmatch(text):
            raise _refused(path, f"the inputs {text[:80]!r}")
    elif key not in ("as_string", "torch_version") and not WORDS.fullmatch(text):  # those two are never pasted
        raise _refused(path, f"the name {text[:80]!r}")


def _refused(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{path} holds {what}: no program that embodied has written does (torch {torch.__version__})",
        "do not load it; get the folder from where it was exported, or export the checkpoint again",
    )
