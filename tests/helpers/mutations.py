"""Damages folders of checkpoints in every way that a disk, a copy or a stranger might."""

from __future__ import annotations

import json
import os
import pickle
import random
import resource
import shutil
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from embodied.learn.checkpoint.reading import METADATA, _parsed

OUT_OF_IT = (
    "../../outside",
    "/etc/hostname",
    "../outside",
    "sub/../../outside",
    "./x",
    "..",
    ".",
    "",
    "a\0b",
    "x" * 300,
)
ODD = (None, -1, 0, 2**70, 1e400, float("nan"), True, "x", "", [], {}, [[[]]], {"a": 1}, ["x"] * 3, "../../outside")
Mutation = Callable[[Path, random.Random], str]


@contextmanager
def limits(seconds: int, mebibytes: int) -> Iterator[None]:
    """Inside the block a hang raises TimeoutError, and an allocation of so much more memory fails."""

    def hung(*_: object) -> None:
        raise TimeoutError(f"it took longer than {seconds} s")

    used = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    memory, before = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGALRM, hung)
    signal.alarm(seconds)
    resource.setrlimit(resource.RLIMIT_AS, (used + mebibytes * 2**20, memory[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, memory)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "README.md")


# -- damage: each of these must be found -----------------------------------------------------------------------------


def truncated(folder: Path, draw: random.Random) -> str:
    file = draw.choice(files(folder))
    data = file.read_bytes()
    kept = draw.randrange(len(data))
    file.write_bytes(data[:kept])
    return f"{file.name} cut at {kept} of {len(data)}"


def flipped(folder: Path, draw: random.Random) -> str:
    file = draw.choice(files(folder))
    data = bytearray(file.read_bytes())
    places = [draw.randrange(len(data)) for _ in range(draw.choice((1, 1, 4, 64)))]
    for place in set(places):
        data[place] ^= draw.randrange(1, 256)
    if file.suffix == ".json" and _same_json(file, bytes(data)):
        data[0] ^= 1
    file.write_bytes(data)
    return f"{file.name} with other bytes at {places[:4]}"


def _same_json(file: Path, data: bytes) -> bool:
    """A space that became another one, say."""
    try:
        return json.loads(data) == json.loads(file.read_bytes())
    except ValueError:
        return False


def longer(folder: Path, draw: random.Random) -> str:
    file = draw.choice(files(folder))
    file.write_bytes(file.read_bytes() + draw.randbytes(draw.randrange(1, 100)))
    return f"{file.name} with more bytes behind"


def removed(folder: Path, draw: random.Random) -> str:
    file = draw.choice([path for path in files(folder) if path.name != "embodied.json"])
    file.unlink()
    return f"without {file.name}"


def renamed(folder: Path, draw: random.Random) -> str:
    file = draw.choice([path for path in files(folder) if path.name != "embodied.json"])
    file.rename(file.with_name(draw.choice(("x", "model.safetensors.bak", file.name.upper() + "_"))))
    return f"{file.name} renamed"


def exchanged(folder: Path, draw: random.Random) -> str:
    one, other = draw.sample(files(folder), 2)
    content = one.read_bytes()
    if content == other.read_bytes():
        return removed(folder, draw)
    shutil.copyfile(other, one)
    other.write_bytes(content)
    return f"{one.name} and {other.name} exchanged"


def linked(folder: Path, draw: random.Random) -> str:
    """A link that leaves the folder, to the very bytes that were there."""
    file = draw.choice(files(folder))
    outside = folder.parent / f"outside-{file.name}"
    shutil.copyfile(file, outside)
    file.unlink()
    file.symlink_to(draw.choice((outside, f"../outside-{file.name}")) if file.parent == folder else outside)
    return f"{file.name} is a link out of the folder"


def special(folder: Path, draw: random.Random) -> str:
    file = draw.choice(files(folder))
    file.unlink()
    kind = draw.choice(("pipe", "folder", "circle", "device", "nowhere"))
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to({"circle": file.name, "device": "/dev/zero", "nowhere": "not-there"}[kind])
    return f"{file.name} is a {kind}"


def json_changed(folder: Path, draw: random.Random) -> str:
    """One value in a JSON file, whose own checksum stays."""
    file = draw.choice([path for path in files(folder) if path.suffix == ".json"])
    return _change_json(file, draw)


def _change_json(file: Path, draw: random.Random) -> str:
    values = json.loads(file.read_text(encoding="utf-8"))
    places = [*_places(values)]
    owner, key = draw.choice(places)
    new = draw.choice([*ODD, *OUT_OF_IT])
    while new == owner[key] and type(new) is type(owner[key]):
        new = draw.choice(ODD)
    owner[key] = new
    file.write_text(json.dumps(values), encoding="utf-8")
    return f"{file.name}: {key} is {new!r:.40}"


def _places(values: Any) -> Iterator[tuple[Any, Any]]:
    pairs = values.items() if isinstance(values, dict) else enumerate(values)
    for key, value in pairs:
        yield values, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


DAMAGE: tuple[Mutation, ...] = (
    *(truncated, flipped, flipped, flipped, longer, removed, renamed, exchanged),
    *(linked, special, json_changed, json_changed),
)


# -- strangers: there are no checksums, or they fit ------------------------------------------------------------------


def without_checksums(folder: Path) -> None:
    (folder / "embodied.json").unlink(missing_ok=True)
    if (meta := folder / "meta.json").exists():
        values = json.loads(meta.read_text(encoding="utf-8"))
        meta.write_text(
            json.dumps({k: v for k, v in values.items() if k not in ("checksum", "checksums", "files")}),
            encoding="utf-8",
        )


def outside(folder: Path, file: Path) -> tuple[str, ...]:
    """Names of a copy that lies outside of the folder; reading it would succeed."""
    copied = folder.parent / f"outside-{file.name}"
    shutil.copyfile(file, copied)
    return f"../{copied.name}", str(copied), f"x/../../{copied.name}"


def index_out_of_it(folder: Path, draw: random.Random) -> str:
    file = folder / "model.safetensors.index.json"
    values = json.loads(file.read_text(encoding="utf-8"))
    key = draw.choice([*values["weight_map"]])
    old = values["weight_map"][key]
    odd = [one for one in ODD if one not in ([], {})]
    name = draw.choice([*outside(folder, folder / old), *OUT_OF_IT, *odd])
    same = [other for other, named in values["weight_map"].items() if named == old]
    values["weight_map"] |= dict.fromkeys(same if isinstance(name, str) else [key], name)
    file.write_text(json.dumps(values), encoding="utf-8")
    return f"the index names {name!r:.40}"


def header_out_of_bounds(folder: Path, draw: random.Random) -> str:
    """Sizes in the header of a safetensors file that nothing has."""
    file = draw.choice([path for path in files(folder) if path.suffix == ".safetensors" and path.parent == folder])
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    if draw.random() < 0.3:
        file.write_bytes(struct.pack("<Q", draw.choice((2**40, 2**63, 2**64 - 1, size + 9))) + data[8:])
        return f"{file.name}: another size of the header"
    header = json.loads(data[8 : 8 + size])
    name = draw.choice([key for key in header if key != "__metadata__"])
    huge = draw.choice(([2**40], [2**62, 2**62], [2**31, 2**31], [10**9, 10**6]))
    header[name] = {**header[name], draw.choice(("shape", "data_offsets")): (huge * 2)[:2]}
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    return f"{file.name}: {name} {header[name]}"


class Command:
    """In a pickle it is a call of any function."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/embodied-was-here",)


CHANGES = ("size", "path", "offset", "length", "code", "class", "type", "chunk")


def metadata_out_of_bounds(folder: Path, draw: random.Random, change: str | None = None) -> str:
    """Paths, sizes and code in the table of torch's checkpoint."""
    file = folder / METADATA
    metadata = _parsed(file)
    facts = draw.choice([*metadata.state_dict_metadata.values()])
    infos = [*metadata.storage_data.values()]
    change = change or draw.choice(CHANGES)
    if change == "size":
        facts.size = torch.Size([2**40] * draw.choice((1, 2)))
    elif change == "path":
        name = draw.choice([*outside(folder, folder / infos[0].relative_path), *OUT_OF_IT])
        for info in infos:
            info.relative_path = name
    elif change in ("offset", "length"):
        setattr(draw.choice(infos), change, draw.choice((-1, 2**60, "x", None, 1.5)))
    elif change == "type":
        facts.properties.dtype = draw.choice(("float32", None, 7))
    elif change == "chunk":
        facts.chunks[0].sizes = torch.Size([2**40] * max(1, len(facts.size)))
    kinds = {"code": Command(), "class": {"a": 1}}
    file.write_bytes(pickle.dumps(kinds.get(change, metadata)))
    return f"{METADATA}: {change}"


def broken_number(folder: Path, draw: random.Random) -> str:
    """NaN or infinity in a tensor, of whatever file."""
    file = draw.choice([path for path in files(folder) if path.suffix == ".safetensors" and path.parent == folder])
    state = load_file(file)
    name = draw.choice(sorted(state))
    value = draw.choice((float("nan"), float("inf"), float("-inf")))
    state[name].view(-1)[draw.randrange(state[name].numel())] = value
    save_file(state, file, metadata={"format": "pt"})
    return f"{file.name}: {value} in {name}"


def names_swapped(folder: Path, draw: random.Random) -> str:
    """Two tensors of different shapes under each other's names; of the language model, as all of it is run."""
    file = draw.choice([path for path in files(folder) if path.name.startswith("model") and path.suffix != ".json"])
    state = load_file(file)
    run = [name for name in sorted(state) if name.startswith("language_model.")]
    pairs = [(one, other) for one in run for other in run if state[one].shape != state[other].shape]
    if not pairs:
        return broken_number(folder, draw)
    one, other = draw.choice(pairs)
    state[one], state[other] = state[other], state[one]
    save_file(state, file, metadata={"format": "pt"})
    return f"{file.name}: {one} and {other} exchanged"


def stand_in(folder: Path, draw: random.Random) -> str:
    """What a failed download leaves."""
    needed = ("model", "config.json", "dataset_statistics.json", "policy.json", "tokenizer.json")
    file = draw.choice([path for path in files(folder) if path.name.startswith(needed)])
    file.write_bytes(draw.choice((b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", b"<html>", b"")))
    return f"{file.name} is a stand-in"


def cut_header(folder: Path, draw: random.Random) -> str:
    file = draw.choice([path for path in files(folder) if path.suffix == ".safetensors" and path.parent == folder])
    data = file.read_bytes()
    file.write_bytes(data[: draw.randrange(8 + struct.unpack("<Q", data[:8])[0])])
    return f"{file.name}: cut in its header"


STRANGE: dict[str, tuple[Mutation, ...]] = {
    "hf": (
        *(index_out_of_it, header_out_of_bounds, linked),
        *(broken_number, names_swapped, stand_in, cut_header),
    ),
    "run": (metadata_out_of_bounds, linked),
}
"""Which a folder of this kind must not survive, checksums or not."""
