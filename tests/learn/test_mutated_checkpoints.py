"""Mutated folders of checkpoints: an explained error each; nothing hangs, is run, or is read elsewhere."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from embodied.models.openvla_oft import build_policy
from mutations import (
    CHANGES,
    DAMAGE,
    STRANGE,
    Mutation,
    broken_number,
    cut_header,
    limits,
    linked,
    metadata_out_of_bounds,
    names_swapped,
    outside,
    stand_in,
    without_checksums,
)
from saved_policies import ENV, LORA, SMALL, save

from embodied.errors import EmbodiedError
from embodied.learn.checkpoint.checkpoint import Checkpoints
from embodied.learn.checkpoint.exported import open_export
from embodied.learn.origin import Origin, restore
from embodied.lib.files import check_seal, sealed
from embodied.testing import FakeEnv, FakePolicy
from embodied.tools import export

FLAG = Path("/tmp/embodied-was-here")
KEYS = {**SMALL, "value_head": True, "unnorm_key": None}


@pytest.fixture(autouse=True)
def _no_flag() -> None:
    FLAG.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of a run, and a folder that an export has written, in several files."""
    from saved_policies import Learner

    made, policy = tmp_path_factory.mktemp("made"), FakePolicy()
    policy.bind(FakeEnv(**ENV).spec)
    origin = Origin("embodied.testing.FakePolicy", {}, (), 0, FakeEnv(**ENV).spec).as_json()
    run = Checkpoints(made / "run" / "checkpoints", 1, origin=origin).save(Learner(policy), 1)
    larger = save(made / "oft", **{k: v for k, v in LORA.items() if k != "lora_modules_to_save"}, value_head=True)
    given = ["--out", str(made / "hf"), "--shard-size", "300KB", "--observations", "0"]
    assert export.main([str(larger), *given]) == 0
    return {"run": run, "hf": made / "hf"}


def read_run(folder: Path) -> Any:
    return restore(folder)


def read_hf(folder: Path) -> Any:
    return open_export(folder)


def read_stranger(folder: Path) -> Any:
    return build_policy(**KEYS, model_path=str(folder))


def tried(source: Path, place: Path, seed: int, mutations: Sequence[Mutation], read: Callable[[Path], Any],
          prepare: Callable[[Path], None] = lambda folder: None) -> tuple[str, EmbodiedError | None]:  # fmt: skip
    """Copies the folder, mutates it, reads it: what was done, and the error, if there was one."""
    draw, folder = random.Random(seed), place / "copied" / "folder"
    shutil.rmtree(place / "copied", ignore_errors=True)
    shutil.copytree(source, folder)
    prepare(folder)
    done = f"seed {seed}: {draw.choice(list(mutations))(folder, draw)}"
    try:
        with limits(seconds=30, mebibytes=2048):
            read(folder)
    except EmbodiedError as error:
        return done, error
    except BaseException as error:
        raise AssertionError(f"{done}: {type(error).__name__}") from error
    finally:
        assert not FLAG.exists(), f"{done}: code of the file was run"
    return done, None


def check(folders: dict[str, Path], place: Path, seeds: Sequence[int]) -> None:
    for seed in seeds:
        for name, read in (("run", read_run), ("hf", read_hf)):
            done, error = tried(folders[name], place, seed, DAMAGE, read)
            assert error is not None, f"{done}: nothing was said"
        for name, read in (("run", read_run), ("hf", read_stranger)):
            done, error = tried(folders[name], place, seed, STRANGE[name], read, without_checksums)
            assert error is not None, f"{done}: nothing was said"
        # Without checksums other numbers cannot be told from the right ones: an explained error, or a policy.
        for name, read in (("run", read_run), ("hf", read_stranger)):
            tried(folders[name], place, seed, DAMAGE, read, without_checksums)


def test_the_folders_are_whole(folders, tmp_path):
    for name, read in (("run", read_run), ("hf", read_hf), ("hf", read_stranger)):
        shutil.copytree(folders[name], copied := tmp_path / f"{name}-{read.__name__}")
        if read is read_stranger:
            without_checksums(copied)
        with limits(seconds=60, mebibytes=2048):
            assert read(copied) is not None
    without_checksums(tmp_path / "run-read_run")
    restore(tmp_path / "run-read_run")


def test_sixty_mutated_folders_are_refused(folders, tmp_path):
    check(folders, tmp_path, range(10))


@pytest.mark.parametrize("mutation", [broken_number, names_swapped, stand_in, cut_header])
def test_broken_contents_are_refused_by_their_file(folders, tmp_path, mutation):
    """There are no checksums, as in the folders of other people."""
    for seed in range(3):
        done, error = tried(folders["hf"], tmp_path, seed, [mutation], read_stranger, without_checksums)
        assert error is not None, f"{done}: nothing was said"
        assert str(tmp_path) in error.message, f"{done}: {error.message}"


@pytest.mark.slow
def test_a_thousand_mutated_folders_are_refused(folders, tmp_path):
    check(folders, tmp_path, range(10, 180))


def test_a_link_within_the_folder_and_a_download_folder_are_fine(folders, tmp_path):
    """As hf download leaves it in its cache: the files lie beside the snapshots."""
    snapshot, blobs = tmp_path / "models--x" / "snapshots" / "1", tmp_path / "models--x" / "blobs"
    shutil.copytree(folders["hf"], snapshot)
    blobs.mkdir()
    for number, file in enumerate(path for path in sorted(snapshot.iterdir()) if path.is_file()):
        shutil.move(file, blobs / str(number))
        file.symlink_to(f"../../blobs/{number}")
    assert open_export(snapshot)
    (snapshot / "tokenizer.json").rename(snapshot / "other.json")
    (snapshot / "tokenizer.json").symlink_to("other.json")
    assert open_export(snapshot)


def test_an_edit_is_found_and_may_be_meant(folders, tmp_path):
    shutil.copytree(folders["run"], copied := tmp_path / "copied")
    values = json.loads((copied / "meta.json").read_text(encoding="utf-8"))
    (copied / "meta.json").write_text(json.dumps({**values, "iteration": 7}), encoding="utf-8")
    with pytest.raises(EmbodiedError, match="damaged or was edited"):
        restore(copied)
    del values["checksum"]
    (copied / "meta.json").write_text(json.dumps({**values, "iteration": 7}), encoding="utf-8")
    restore(copied)
    assert check_seal(copied, sealed({"a": [1.5, None, "ü"]})) == {"a": [1.5, None, "ü"]}


def test_a_folder_may_not_name_any_function(folders, tmp_path):
    shutil.copytree(folders["hf"], copied := tmp_path / "copied")
    values = json.loads((copied / "embodied.json").read_text(encoding="utf-8"))
    del values["checksum"]
    values["model"] = {"_target_": "os.system", "command": f"touch {FLAG}"}
    (copied / "embodied.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(EmbodiedError, match=r"'os\.system' to be imported and called"):
        open_export(copied)
    assert not FLAG.exists()


def test_a_folder_may_not_say_that_it_is_trusted(folders, tmp_path):
    shutil.copytree(folders["hf"], copied := tmp_path / "copied")
    values = json.loads((copied / "embodied.json").read_text(encoding="utf-8"))
    del values["checksum"]
    values["model"] = {"_target_": "embodied.models.exported.build_policy", "model_path": ".", "trust": True}
    (copied / "embodied.json").write_text(json.dumps(values), encoding="utf-8")
    for trust in (False, True):
        with pytest.raises(EmbodiedError, match="says of itself that it is to be trusted") as caught:
            open_export(copied, trust=trust)
        assert "--trust" not in caught.value.remedy, "which would not help"


NUMBER = "whole number of 0|ends at byte"
SAYS = {
    "size": "its tensors have",
    "path": "expected one that lies in this folder",
    "offset": NUMBER,
    "length": NUMBER,
    "code": r"it names posix\.system",
    "class": "it holds a dict",
    "type": "a tensor has the type",
    "chunk": "a part of a tensor ends at",
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_table_of_a_checkpoint_is_not_believed(folders, tmp_path, change):
    """Torch's own reader runs the code in it, opens the paths, and allocates the sizes."""

    def mutated(folder: Path, draw: random.Random) -> str:
        return metadata_out_of_bounds(folder, draw, change)

    done, error = tried(folders["run"], tmp_path, 1, [mutated], read_run, without_checksums)
    assert error is not None, done
    assert re.search(SAYS[change], error.message), error.message


@pytest.mark.parametrize("number", range(3))
def test_an_index_that_leaves_the_folder_is_refused(folders, tmp_path, number):
    """The file that it names is there and fits."""
    shutil.copytree(folders["hf"], copied := tmp_path / "copied")
    without_checksums(copied)
    index = copied / "model.safetensors.index.json"
    values = json.loads(index.read_text(encoding="utf-8"))
    old = next(iter(values["weight_map"].values()))
    name = outside(copied, copied / old)[number]
    (copied / "x").mkdir()
    values["weight_map"] = {k: name if v == old else v for k, v in values["weight_map"].items()}
    index.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(EmbodiedError, match="expected one that lies in this folder"):
        read_stranger(copied)


@pytest.mark.parametrize(("name", "read"), [("run", read_run), ("hf", read_stranger)])
def test_a_link_that_leaves_the_folder_is_refused(folders, tmp_path, name, read):
    """What it leads to is what was there."""
    done, error = tried(folders[name], tmp_path, 2, [linked], read, without_checksums)
    assert error is not None, done
    assert "is a link to" in error.message
