"""Which layout a path has, what is said of a path beside a data set, and several data sets that are learned at once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from embodied import sft
from embodied.data import reading
from embodied.data.demonstrations import FieldSelection
from embodied.errors import DatasetError, EmbodiedError, SpecMismatchError
from embodied.testing import FakeEnv
from embodied.tools import demos

h5py = pytest.importorskip("h5py", exc_type=ImportError)
pa = pytest.importorskip("pyarrow", exc_type=ImportError)
foreign = pytest.importorskip("foreign_lerobot", exc_type=ImportError)
SPEC = FakeEnv().spec
WANTED = FieldSelection(SPEC.cameras)
LIBERO = FieldSelection(["agentview"])
CONFIGS = str(Path(__file__).parents[1] / "config")
ENV = ["env=fake", "--config-dir", CONFIGS, "env.train.total_num_envs=2", "env.eval.total_num_envs=2"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "demos"
    assert demos.main([*ENV, "episodes=2", f"demos.path={folder}"]) == 0
    return folder


@pytest.fixture
def folder(recorded, tmp_path) -> Path:
    """Its name has a blank."""
    return Path(shutil.copytree(recorded, tmp_path / "my demos"))


def libero(path: Path, state: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["problem_info"] = np.bytes_(json.dumps({"language_instruction": "pick up the milk"}))
        for number in (0, 10, 2):
            demo = data.create_group(f"demo_{number}")
            demo["actions"] = np.full((4, 7), number / 10)
            demo["obs/agentview_rgb"] = np.zeros((4, 8, 8, 3), np.uint8)
            if state:
                demo["obs/ee_states"], demo["obs/gripper_states"] = np.zeros((4, 6)), np.zeros((4, 2))
    return path


@pytest.mark.parametrize("name", ["a b_demo.hdf5", "a_demo.HDF5", "a_demo.h5", "A_demo.H5"])
def test_a_file_of_robomimics_layout_is_found_whatever_its_ending(tmp_path, name):
    found = reading.read(libero(tmp_path / name), LIBERO)
    assert [episode.actions[0, 0] for episode in found.episodes] == [0, np.float32(0.2), 1]


def test_a_file_without_state_names_no_empty_choice(tmp_path):
    with pytest.raises(SpecMismatchError, match="has no ee_states") as raised:
        reading.read(libero(tmp_path / "a_demo.hdf5", state=False), LIBERO)
    assert "pictures and actions alone" in raised.value.remedy


@pytest.mark.parametrize("part", ["meta", "data", "meta/info.json", "data/chunk-000"])
def test_a_path_within_a_data_set_names_the_data_set(folder, part):
    with pytest.raises(DatasetError, match="no demonstrations of a known layout") as raised:
        reading.read(folder / part, WANTED)
    assert f"give {folder};" in raised.value.remedy


def test_a_folder_of_data_sets_names_them(folder, tmp_path):
    libero(tmp_path / "suites" / "libero_object" / "a_demo.hdf5")
    with pytest.raises(DatasetError) as raised:
        reading.read(tmp_path, WANTED)
    assert f"give {folder} or {tmp_path / 'suites' / 'libero_object'};" in raised.value.remedy


def test_a_folder_without_any_names_the_layouts(tmp_path):
    (tmp_path / "notes.txt").write_text("hello", encoding="utf-8")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(EmbodiedError) as raised:
            reading.read(path, WANTED)
        assert raised.value.remedy.startswith("give a LeRobot folder (with meta/info.json)")


@pytest.mark.parametrize("sign", ["\u2028", "\u0085"])
def test_an_instruction_may_have_a_sign_that_ends_lines_elsewhere(folder, sign):
    foreign.as_v2(folder)
    for name in ("episodes", "tasks"):
        file = folder / "meta" / f"{name}.jsonl"
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for row in rows:
            for key in ("tasks", "task"):
                if key in row:
                    row[key] = [f"a{sign}b"] if key == "tasks" else f"a{sign}b"
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        file.write_text(text, encoding="utf-8")
    assert {episode.instruction for episode in reading.read(folder, WANTED).episodes} == {f"a{sign}b"}


def test_a_blank_behind_a_task_is_no_other_task(folder):
    foreign.as_v2(folder)
    file = folder / "meta" / "tasks.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    file.write_text("".join(json.dumps({**r, "task": r["task"] + " "}) + "\n" for r in rows), encoding="utf-8")
    assert len(reading.read(folder, WANTED).episodes) == 2


def with_forces(folder: Path) -> None:
    """A field that the env does not have."""
    column = pa.array([[0.5, 0.5]], pa.list_(pa.float32(), 2))
    foreign.info(lambda said: said["features"].update({"observation.force": {"dtype": "float32", "shape": [2]}}))(
        folder
    )
    foreign.each(folder, lambda t: t.append_column("observation.force", pa.concat_arrays([column] * len(t))))


@pytest.mark.parametrize("first", [True, False])
def test_data_sets_with_different_fields_are_learned_at_once(recorded, folder, tmp_path, monkeypatch, capsys, first):
    """Of each the fields of the env are taken, whichever comes first."""
    monkeypatch.chdir(tmp_path)
    with_forces(folder)
    paths = [folder, recorded] if first else [recorded, folder]
    fast = [
        "model=fake", "tracker=jsonl", "runner.device=cpu", "runner.max_epochs=1", "runner.val_check_interval=-1",
        "runner.save_interval=-1", "sft.steps_per_iteration=4", "sft.val_samples=8", "actor.global_batch_size=16",
        "actor.micro_batch_size=16", "env.eval.video_cfg.save_video=false", "data.prefetch_factor=0",
    ]  # fmt: skip
    shown = ",".join(f"'{path}'" for path in paths)
    assert sft.main([*ENV, *fast, f"data.train_data_paths=[{shown}]"]) == 0, capsys.readouterr().err
