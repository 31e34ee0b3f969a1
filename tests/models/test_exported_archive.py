"""Files of torch.export from strangers: whatever could run code is refused before torch reads it."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from embodied.models.shared.programs.archive import check_archive
from embodied.models.shared.programs.int8 import Int8Linear
from embodied.models.shared.programs.run import TracedProgram
from embodied.models.shared.programs.write import _save
from torch.export import Dim

from embodied.errors import CheckpointError

MODEL, SAMPLES = "models/model.json", "data/sample_inputs/model.pt"
WEIGHTS = "data/weights/model_weights_config.json"


class Small(torch.nn.Module):
    """As many outputs as a decision has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Int8Linear(torch.nn.Linear(3, 2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.layer(x), x.unflatten(0, (x.shape[0], 1)).sum(1), x.argmax(-1)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "program.pt2"
    shapes = ({0: Dim("batch", min=1, max=64)},)
    _save(torch.export.export(Small().eval(), (torch.zeros(3, 3),), dynamic_shapes=shapes, strict=False), path)
    return path


OUTPUTS = ("values", "sums", "logprobs")
"""Names of what the small program gives."""


class Evil:
    """Its pickle makes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def rewritten(source: Path, target: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """A copy of an archive with other contents, stored as torch stores them."""
    with zipfile.ZipFile(source) as archive:
        root = archive.namelist()[0].split("/")[0]
        files = {name.removeprefix(f"{root}/"): archive.read(name) for name in archive.namelist()}
    change(files)
    writer = torch._C.PyTorchFileWriter(str(target))
    for name, data in files.items():
        if name not in ("version", "byteorder", ".data/version", ".data/serialization_id"):
            writer.write_record(name, data, len(data))
    writer.write_end_of_file()
    return target


def edited(change: Callable[[Any], None], name: str = MODEL) -> Callable[[dict[str, bytes]], None]:
    def change_file(files: dict[str, bytes]) -> None:
        value = json.loads(files[name])
        change(value)
        files[name] = json.dumps(value).encode()

    return change_file


def first(value: Any, key: str) -> Any:
    """The first mapping inside ``value`` that has ``key``."""
    if isinstance(value, dict) and key in value:
        return value
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for one in inside if (found := first(one, key)) is not None), None)


def test_a_program_of_ours_passes_and_runs(written, tmp_path):
    check_archive(written)
    same = rewritten(written, tmp_path / "same.pt2", lambda files: None)
    x = torch.randn(5, 3)
    for path in (written, same):
        assert torch.equal(TracedProgram(path, OUTPUTS)({"x": x})["logprobs"], x.argmax(-1))
    content = b"".join(zipfile.ZipFile(written).read(name) for name in zipfile.ZipFile(written).namelist())
    assert str(Path(__file__).parent).encode() not in content  # no paths of this machine


def cases(trap: Path) -> dict[str, tuple[Callable[[dict[str, bytes]], None], str]]:
    code = f"__import__('os').mkdir({str(trap)!r})"
    evil = pickle.dumps(Evil(trap))

    def call(target: str) -> Callable[[dict[str, bytes]], None]:
        return edited(lambda model: first(model, "target").update(target=target))

    return {
        "pickled sample inputs": (lambda files: files.update({SAMPLES: evil}), "sample inputs"),
        "a pickled weight": (
            edited(lambda config: first(config, "use_pickle").update(use_pickle=True), WEIGHTS), "as a pickle"
        ),
        "an object": (lambda files: files.update({"data/constants/custom_obj_0": evil}), "a file"),
        "weights of the old format": (lambda files: files.update({"data/weights/model.pt": evil}), "a file"),
        "an older archive": (lambda files: files.update({"serialized_state_dict.pt": evil}), "a file"),
        "guards": (edited(lambda model: model.update(guards_code=[code])), "guards"),
        "a call of another function": (call("torch.hub.load"), "a call of 'torch.hub.load'"),
        "a file of the machine": (call("torch.ops.aten.from_file.default"), "a call of"),
        "code as a size": (edited(lambda model: first(model, "expr_str").update(expr_str=code)), "the size"),
        "a function as a size": (edited(lambda model: first(model, "expr_str").update(expr_str="exit(1)")), "the size"),
        "code as a name": (edited(lambda model: rename(model, f"x = {code}; y")), "the name"),
    }  # fmt: skip


def rename(model: Any, name: str) -> None:
    outputs = [output for node in first(model, "nodes")["nodes"] for output in node["outputs"]]
    next(output for output in outputs if "as_tensor" in output)["as_tensor"]["name"] = name


@pytest.mark.parametrize("name", [*cases(Path("x"))])
def test_what_could_run_code_is_refused(name, written, tmp_path):
    change, said = cases(tmp_path / "trap")[name]
    path = rewritten(written, tmp_path / "program.pt2", change)
    with pytest.raises(CheckpointError, match=said):
        TracedProgram(path, OUTPUTS)
    assert not (tmp_path / "trap").exists()


def test_the_trap_works(written, tmp_path):
    """Torch's own reader runs what the file says; else the test above would show nothing."""
    change, _ = cases(tmp_path / "trap")["pickled sample inputs"]
    path = rewritten(written, tmp_path / "program.pt2", change)
    with suppress(Exception):  # whatever comes after the trap
        torch.export.load(path)
    assert (tmp_path / "trap").exists()
