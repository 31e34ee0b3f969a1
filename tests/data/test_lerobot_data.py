"""LeRobot data sets: what is written is read back, appended to, and refused when it cannot be right."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from embodied.data import pictures, reading
from embodied.data.demonstrations import FieldSelection, check_fit
from embodied.data.lerobot import writer as lerobot_writer
from embodied.errors import DatasetError, SpecMismatchError
from embodied.testing import FakeEnv
from embodied.types import Start

pa = pytest.importorskip("pyarrow", exc_type=ImportError)
pq = pytest.importorskip("pyarrow.parquet", exc_type=ImportError)
SPEC = FakeEnv(size=12).spec
WANTED = FieldSelection(SPEC.cameras)


def picture(episode: int, t: int, camera: int) -> np.ndarray:
    return np.random.default_rng([episode, t, camera]).integers(0, 256, (12, 12, 3), dtype=np.uint8)


def recording(number: int, length: int = 3, task: int = 0) -> lerobot_writer.Recording:
    random = np.random.default_rng(number)
    return lerobot_writer.Recording(
        Start(task, 2, 30 + number), attempt=2 * number,
        pictures=[[pictures.encode(picture(number, t, c)) for t in range(length)] for c in range(2)],
        fields={"state": random.normal(size=(length, 8)).astype(np.float32)},
        actions=random.uniform(-1, 1, (length, 7)).astype(np.float32),
        rewards=np.zeros(length, np.float32), successes=np.arange(length) == length - 1,
    )  # fmt: skip


def write(folder: Path, *recordings: lerobot_writer.Recording) -> lerobot_writer.Writer:
    writer = lerobot_writer.Writer(folder, SPEC, {"env": {"control_mode": "delta"}})
    for one in recordings:
        writer.append(one)
    writer.finish()
    return writer


def test_what_was_written_is_read_back_bit_by_bit(tmp_path):
    made = [recording(0), recording(1, length=5, task=1)]
    write(tmp_path, *made)
    found = reading.read(tmp_path, WANTED)
    assert found.made_with == {"control_mode": "delta", "camera_views": None}
    assert [episode.instruction for episode in found.episodes] == list(SPEC.tasks)
    for number, (episode, original) in enumerate(zip(found.episodes, made, strict=True)):
        assert np.array_equal(episode.actions, original.actions)
        assert episode.actions.dtype == np.float32
        assert np.array_equal(episode.fields["state"], original.fields["state"])
        for t in range(len(episode)):
            assert np.array_equal(episode.pictures(t), [picture(number, t, camera) for camera in range(2)])
    check_fit(found, SPEC, {"control_mode": "delta"})


def test_the_files_are_those_of_the_layout(tmp_path):
    write(tmp_path, recording(0), recording(1, length=5, task=1))
    info = json.loads((tmp_path / "meta/info.json").read_text(encoding="utf-8"))
    assert (info["codebase_version"], info["total_episodes"], info["total_frames"], info["fps"]) == ("v3.0", 2, 8, 20)
    assert info["splits"] == {"train": "0:2"}
    assert info["features"]["observation.images.camera0"]["dtype"] == "image"
    table = pq.read_table(tmp_path / info["data_path"].format(chunk_index=0, file_index=1))
    assert table["index"].to_pylist() == [3, 4, 5, 6, 7]
    assert table["task_index"].to_pylist() == [1] * 5
    assert table["timestamp"].to_pylist() == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])
    assert table["next.success"].to_pylist() == [False] * 4 + [True]
    row = pq.read_table(tmp_path / "meta/episodes/chunk-000/file-001.parquet").to_pylist()[0]
    assert (row["dataset_from_index"], row["dataset_to_index"], row["tasks"]) == (3, 8, [SPEC.tasks[1]])
    tasks = pq.read_table(tmp_path / "meta/tasks.parquet")
    assert tasks["__index_level_0__"].to_pylist() == list(SPEC.tasks)
    stats = json.loads((tmp_path / "meta/stats.json").read_text(encoding="utf-8"))
    assert stats["action"]["count"] == [8]
    assert len(stats["action"]["q99"]) == 7
    assert np.shape(stats["observation.images.camera1"]["mean"]) == (3, 1, 1)
    assert sorted(path.suffix for path in tmp_path.rglob("*") if path.is_file()) == [".json"] * 2 + [".parquet"] * 5


def test_a_writer_goes_on_after_the_last_whole_episode(tmp_path):
    write(tmp_path / "a", recording(0), recording(1), recording(2))
    write(tmp_path / "b", recording(0), recording(1))
    torn = tmp_path / "b/data/chunk-000/file-002.parquet"  # killed between the rows and meta/episodes
    torn.write_bytes(b"half of it")
    writer = lerobot_writer.Writer(tmp_path / "b", SPEC, {"env": {"control_mode": "delta"}})
    assert (len(writer), writer.attempts) == (2, [0, 2])
    writer.append(recording(2))
    writer.finish()
    files = {path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file()}
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def test_other_features_are_refused(tmp_path):
    write(tmp_path, recording(0))
    with pytest.raises(DatasetError, match=r"observation.images.camera0 \[12, 12, 3\]"):
        lerobot_writer.Writer(tmp_path, FakeEnv(size=16).spec, {})


def as_one_file(folder: Path) -> None:
    """The same data set with all episodes in one file, as LeRobot itself writes it."""
    for kind in ("data", "meta/episodes"):
        files = sorted((folder / kind).rglob("*.parquet"))
        table = pa.concat_tables([pq.read_table(file) for file in files])
        if kind == "meta/episodes":
            zeros = pa.array([0] * len(table))
            table = table.set_column(table.column_names.index("data/file_index"), "data/file_index", zeros)
        for file in files:
            file.unlink()
        pq.write_table(table, files[0])


def test_many_episodes_in_one_file_are_read_as_well(tmp_path):
    write(tmp_path, recording(0), recording(1, length=5), recording(2))
    before = reading.read(tmp_path, WANTED)
    as_one_file(tmp_path)
    after = reading.read(tmp_path, WANTED)
    for old, new in zip(before.episodes, after.episodes, strict=True):
        assert np.array_equal(old.actions, new.actions)
        assert np.array_equal(old.fields["state"], new.fields["state"])
        assert np.array_equal(old.pictures(2), new.pictures(2))


def test_cameras_and_state_may_have_other_names(tmp_path):
    write(tmp_path, recording(0))
    found = reading.read(
        tmp_path,
        FieldSelection(["top"], camera_keys=["observation.images.camera1"], state_keys=["action", "observation.state"]),
    )
    assert np.array_equal(found.episodes[0].pictures(0), [picture(0, 0, 1)])
    assert found.episodes[0].fields["state"].shape == (3, 15)


def edit_info(folder: Path, **changes: object) -> None:
    file = folder / "meta/info.json"
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **changes}), encoding="utf-8")


def test_what_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(DatasetError, match="no demonstrations at"):
        reading.read(tmp_path / "nowhere", WANTED)
    with pytest.raises(DatasetError, match="no demonstrations of a known layout"):
        reading.read(tmp_path, WANTED)
    write(tmp_path)
    with pytest.raises(DatasetError, match="holds no episode"):
        reading.read(tmp_path, WANTED)
    write(tmp_path, recording(0), recording(1))
    with pytest.raises(SpecMismatchError, match=r"camera 'wrist', only of: observation.images.camera0, obs"):
        reading.read(tmp_path, FieldSelection(["wrist"]))
    data = tmp_path / "data/chunk-000/file-001.parquet"
    pq.write_table(pq.read_table(data).slice(1), data)
    with pytest.raises(DatasetError, match="has 2 rows of episode 1, and meta/episodes says 3"):
        reading.read(tmp_path, WANTED)
    data.write_bytes(b"not parquet")
    with pytest.raises(DatasetError, match="cannot be read"):
        reading.read(tmp_path, WANTED)
    edit_info(tmp_path, codebase_version="v1.6")
    with pytest.raises(DatasetError, match=r"layout v1\.6, and v2.0, v2.1 and v3.x are read"):
        reading.read(tmp_path, WANTED)


def test_videos_are_refused(tmp_path):
    write(tmp_path, recording(0))
    info = json.loads((tmp_path / "meta/info.json").read_text(encoding="utf-8"))
    info["features"]["observation.images.camera0"]["dtype"] = "video"
    edit_info(tmp_path, features=info["features"])
    with pytest.raises(DatasetError, match="as videos"):
        reading.read(tmp_path, WANTED)


@pytest.mark.parametrize(
    ("env", "kwargs", "message"),
    [
        ({"size": 16}, {}, r"have \[2, 12, 12, 3\] as 'images', and the env gives \[2, 16, 16, 3\]"),
        ({"size": 12, "state_dim": 3}, {}, r"have \[8\] as 'state', and the env gives \[3\]"),
        ({"size": 12, "action_dim": 4}, {}, "have 7 numbers an action, and the env takes 4"),
        (
            {"size": 12},
            {"init_params": {"control_mode": "position"}},
            "made with control_mode delta, and the env has position",
        ),
        (
            {"size": 12},
            {"init_params": {"camera_views": {"top": {"fov": 0.6}}}},
            r"seen with init_params.camera_views None, and the env has \{'top': \{'fov': 0.6\}\}",
        ),
    ],
)
def test_demonstrations_of_another_env_are_refused(tmp_path, env, kwargs, message):
    write(tmp_path, recording(0))
    with pytest.raises(SpecMismatchError, match=message):
        check_fit(reading.read(tmp_path, WANTED), FakeEnv(**env).spec, kwargs)


def test_actions_in_other_units_are_refused(tmp_path):
    one = recording(0, length=50)
    one.actions[:] = 100 * one.actions
    write(tmp_path, one)
    with pytest.raises(SpecMismatchError, match=r"outside the env's range \[-1, 1\]"):
        check_fit(reading.read(tmp_path, WANTED), SPEC, {})
