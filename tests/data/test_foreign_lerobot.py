"""LeRobot data sets of others: each is read right, or refused with its file, episode and step."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from foreign_lerobot import (
    CAMERA,
    FIRST,
    as_v2,
    at,
    by_step,
    drawn,
    each,
    in_one_file,
    info,
    picture,
    picture_bytes,
    put,
    rename_action,
    rows,
    tasks_of,
    turned,
    two_tasks,
)
from PIL import Image

from embodied import sft
from embodied.data import reading
from embodied.data.demonstrations import FieldSelection, check_fit
from embodied.errors import DatasetError, EmbodiedError, SpecMismatchError
from embodied.learn.checksums import checksums_of
from embodied.testing import FakeEnv
from embodied.tools import demos

CONFIG = str(Path(__file__).parents[1] / "config")
SPEC = FakeEnv().spec
WANTED = FieldSelection(SPEC.cameras)
ENV = ("env=fake", "env.num_workers=1", "env.train.horizon=60", "runner.seed=3", "--config-dir", CONFIG)
INF = float("inf")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "set"
    assert demos.main([*ENV, "episodes=4", f"demos.path={folder}"]) == 0
    return folder


@pytest.fixture
def folder(recorded, tmp_path) -> Path:
    for part in ("meta", "data"):
        shutil.copytree(recorded / part, tmp_path / "copy" / part)
    return tmp_path / "copy"


def assert_equal(found, expected, instruction: bool = True) -> None:
    assert len(found.episodes) == len(expected.episodes) == 4
    for one, other in zip(found.episodes, expected.episodes, strict=True):
        assert np.array_equal(one.actions, other.actions)
        assert np.array_equal(one.fields["state"], other.fields["state"])
        assert all(np.array_equal(one.pictures(t), other.pictures(t)) for t in range(len(other)))
        assert not instruction or one.instruction == other.instruction


@pytest.mark.parametrize(
    "change",
    [in_one_file(by_step), in_one_file(drawn), in_one_file(lambda table: range(len(table))[::-1]), turned, as_v2],
    ids=["interleaved", "shuffled", "turned-in-one", "turned", "v2.1"],
)
def test_rows_are_those_of_their_episode_wherever_they_stand(recorded, folder, change):
    expected = reading.read(recorded, WANTED)
    change(folder)
    assert_equal(reading.read(folder, WANTED), expected)


@pytest.mark.parametrize("chunks", [1, 2])
def test_the_chunks_of_v2_are_found(recorded, folder, chunks):
    as_v2(folder)
    info(lambda said: said.update(chunks_size=chunks))(folder)
    for number in range(4):
        place = folder / f"data/chunk-{number // chunks:03d}"
        place.mkdir(exist_ok=True)
        (folder / f"data/chunk-000/episode_{number:06d}.parquet").rename(place / f"episode_{number:06d}.parquet")
    assert_equal(reading.read(folder, WANTED), reading.read(recorded, WANTED))


def test_other_ways_to_store_the_same_are_read(recorded, folder):
    """Lists of any length, wider numbers, opaque or palette pictures, names of pandas."""
    expected = reading.read(recorded, WANTED)
    each(folder, put("action", lambda table: table["action"].to_pylist(), pa.large_list(pa.float64())))
    each(folder, put("observation.state", lambda table: table["observation.state"].to_pylist(), pa.list_(pa.float32())))
    each(folder, put("episode_index", lambda table: table["episode_index"].to_pylist(), pa.int32()))
    picture(lambda image: image.convert("RGBA"))(folder)
    tasks = pq.read_table(folder / "meta/tasks.parquet")
    pq.write_table(pa.table({"task": tasks["__index_level_0__"], "task_index": tasks["task_index"]}),
                   folder / "meta/tasks.parquet")  # fmt: skip
    assert_equal(reading.read(folder, WANTED), expected)


def test_a_picture_that_was_changed_is_known_by_its_file(recorded, folder, monkeypatch):
    before = checksums_of(reading.read(recorded, WANTED).episodes, pictures=True)
    assert before == checksums_of(reading.read(folder, WANTED).episodes, pictures=True)
    picture(lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT))(folder)
    changed = checksums_of(reading.read(folder, WANTED).episodes, pictures=True)
    assert (changed.numbers == before.numbers, changed.pictures == before.pictures) == (True, False)
    monkeypatch.setattr("embodied.data.pictures.decode", lambda data: np.zeros((16, 16, 3), np.uint8))
    assert checksums_of(reading.read(recorded, WANTED).episodes, pictures=True) == before, "whatever decodes them"


def test_actions_of_another_name_are_named(recorded, folder):
    rename_action(folder)
    with pytest.raises(DatasetError, match=r"has no actions 'action', only: .*observation.state.*actions") as refused:
        reading.read(folder, WANTED)
    assert refused.value.remedy.endswith("data.action_key, which may be actions")
    found = reading.read(folder, FieldSelection(SPEC.cameras, action_key="actions"))
    assert_equal(found, reading.read(recorded, WANTED))


def test_each_step_has_the_instruction_of_its_task(folder):
    two_tasks(folder)
    found = reading.read(folder, WANTED)
    first, second = tasks_of(folder)[:2]
    for episode in found.episodes:
        half = (len(episode) + 1) // 2
        said = [episode.instruction_at(t) for t in range(len(episode))]
        assert said == [first] * half + [second] * (len(episode) - half)
        assert episode.instructions == (first, second)
    check_fit(found, SPEC, {})


def no_task_index(folder: Path) -> None:
    two_tasks(folder)
    each(folder, lambda table: table.drop_columns(["task_index"]))


def gone(path: str):
    return lambda folder: (folder / path).unlink()


def cut(path: str, size: int = 300):
    return lambda folder: (folder / path).write_bytes((folder / path).read_bytes()[:-size])


def write(path: str, text: str):
    return lambda folder: (folder / path).write_text(text, encoding="utf-8")


def listed_twice(folder: Path) -> None:
    listed = folder / "meta/episodes/chunk-000"
    shutil.copy(listed / "file-001.parquet", listed / "file-009.parquet")


def feature(name: str, **changes):
    return info(lambda said: said["features"][name].update(changes))


STEP = r"file-000.parquet, episode 0, step 1"
NOWHERE = "observation.state"
REFUSED = {
    "null action": (at("action", 1, None), STEP + ": 'action' is null"),
    "null in an action": (at("action", 1, [None] * 7, pa.list_(pa.float32())), STEP + ": 'action' is null"),
    "null state": (at(NOWHERE, 1, None), STEP + f": '{NOWHERE}' is null"),
    "nan action": (at("action", -1, [0.0] * 6 + [float("nan")]), r"step \d+: number 6 of 'action' is nan"),
    "inf action": (at("action", 1, [INF] * 7), STEP + ": number 0 of 'action' is inf"),
    "inf state": (at(NOWHERE, 1, [-INF] * 8), STEP + ": number 0 of 'state' is -inf"),
    "beyond float32": (at("action", 1, [1e300] * 7, pa.list_(pa.float64())), "of 'action' is inf"),
    "short action": (at("action", 1, [0.0], pa.list_(pa.float32())), STEP + ": 'action' has 1 values, and 7 in step 0"),
    "wrong shape": (feature("action", shape=[3]), r"has 7 numbers a step as 'action', and .* says the shape \[3\]"),
    "text action": (
        lambda f: each(f, put("action", lambda t: ["a"] * len(t), pa.string())), "has string as 'action'",
    ),
    "frame twice": (at("frame_index", 2, 1), "episode 0 has frame_index 1 twice"),
    "frame missing": (at("frame_index", -1, 999), "episode 0 has no row with frame_index"),
    "frame null": (at("frame_index", 1, None), STEP + ": 'frame_index' is null"),
    "index jumps": (at("index", 1, 77), STEP + ": 'index' is 77, expected 1"),
    "time jumps": (at("timestamp", 1, 5.0), STEP + ": the timestamp is 5 s after 0 s, and .* 20 control steps"),
    "time nan": (at("timestamp", 1, float("nan")), STEP + ": the timestamp is nan"),
    "time null": (at("timestamp", 1, None), STEP + ": 'timestamp' is null"),
    "fps": (info(lambda said: said.update(fps=50)), "50 control steps a second"),
    "fps 0": (info(lambda said: said.update(fps=0)), "says fps 0, expected a number above 0"),
    "fps null": (info(lambda said: said.update(fps=None)), "says fps None"),
    "episode null": (at("episode_index", 1, None), "'episode_index' is null"),
    "episode unknown": (at("episode_index", 1, 9), "has rows of episode 9, which meta/episodes does not list"),
    "length": (rows("length", lambda table: [2] * len(table)), "rows of episode 0, and meta/episodes says 2"),
    "length null": (rows("length", lambda table: [None] * len(table)), "episode 0 has the length None"),
    "no file index": (rows("data/file_index", lambda t: [None] * len(t)), "'data/file_index' None"),
    "listed twice": (listed_twice, "lists episode 1 more than once"),
    "no tasks": (
        rows("tasks", lambda table: [[]] * len(table), pa.list_(pa.string())), "episode 0 has no task in meta/episodes",
    ),
    "null tasks": (rows("tasks", lambda table: [None] * len(table)), "episode 0 has no task"),
    "blank tasks": (rows("tasks", lambda table: [["  "]] * len(table)), "episode 0 has no task"),
    "tasks column gone": (
        lambda f: each(f, lambda table: table.drop_columns(["tasks"]), "meta/episodes"), "episode 0 has no task",
    ),
    "task unknown": (at("task_index", 1, 55), STEP + ": task_index 55 is no task"),
    "task disagrees": (rows("tasks", lambda table: [["sing"]] * len(table)), "and meta/episodes says 'sing'"),
    "two tasks, no index": (no_task_index, "episode 0 has 2 tasks, and nothing says which step"),
    "no features": (info(lambda said: said.pop("features") and None), "info.json has no 'features'"),
    "features a list": (info(lambda said: said.update(features=["action"])), "has no 'features'"),
    "feature a text": (info(lambda said: said["features"].update(action="float32")), "describes the feature 'action'"),
    "shape a text": (feature("action", shape="7"), "describes the feature 'action'"),
    "info a list": (info(lambda said: [said]), "holds a JSON list, expected an object"),
    "info cut": (cut("meta/info.json"), "info.json cannot be read"),
    "data path": (info(lambda said: said.update(data_path="data/{nothing}")), r"data_path 'data/\{nothing\}'"),
    "no data path": (info(lambda said: said.pop("data_path") and None), "data_path None does not lead to files"),
    "data file gone": (gone(FIRST), "file-000.parquet cannot be read"),
    "data file cut": (cut(FIRST), "file-000.parquet cannot be read"),
    "data file text": (lambda f: (f / FIRST).write_text("<html>", encoding="utf-8"), "file-000.parquet cannot be read"),
    "meta file gone": (gone("meta/episodes/chunk-000/file-002.parquet"), "says 4 episodes, and 3 are listed"),
    "meta file cut": (cut("meta/episodes/chunk-000/file-002.parquet"), "file-002.parquet cannot be read"),
    "tasks file cut": (cut("meta/tasks.parquet"), "tasks.parquet cannot be read"),
    "column gone": (
        lambda f: each(f, lambda table: table.drop_columns(["action"])), "has no column 'action', only: .*observation",
    ),
    "no episode column": (
        lambda f: each(f, lambda table: table.drop_columns(["episode_index"])), "has no column 'episode_index'",
    ),
    "picture null": (picture_bytes(lambda data: None), STEP + f": the picture of '{CAMERA}' is not in the parquet"),
    "picture struct null": (at(CAMERA, 1, None), STEP + ".*'observation.images.camera0'"),
    "pictures are numbers": (
        lambda f: each(f, put(CAMERA, lambda t: [1.0] * len(t), pa.float32())), "has float as .*expected picture files",
    ),
    "another dimension": (
        lambda f: _widen(f), "has float32 \\[9\\] as 'action', and .*episode 0 has float32 \\[7\\]|9 numbers a step",
    ),
}  # fmt: skip


def _widen(folder: Path) -> None:
    file = folder / "data/chunk-000/file-001.parquet"
    wide = put("action", lambda t: [[0.0] * 9] * len(t), pa.list_(pa.float32()))
    pq.write_table(wide(pq.read_table(file)), file)


@pytest.mark.parametrize(("change", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_odd_is_refused(folder, change, said):
    reading.read(folder, WANTED)
    change(folder)
    with pytest.raises(DatasetError, match=said) as refused:
        reading.read(folder, WANTED)
    assert str(folder) in refused.value.message
    assert refused.value.remedy


@pytest.mark.parametrize("without", ["no tasks", "null tasks", "blank tasks", "tasks column gone"])
def test_an_instruction_can_be_given_to_episodes_without(recorded, folder, without):
    REFUSED[without][0](folder)
    found = reading.read(folder, FieldSelection(SPEC.cameras, instruction="go"))
    assert [episode.instruction for episode in found.episodes] == ["go"] * 4
    assert_equal(found, reading.read(recorded, WANTED), instruction=False)


V2_REFUSED = {
    "episodes cut": (cut("meta/episodes.jsonl", 10), r"episodes.jsonl, line 4 is no JSON"),
    "tasks cut": (cut("meta/tasks.jsonl", 10), r"tasks.jsonl, line \d is no JSON"),
    "episodes gone": (gone("meta/episodes.jsonl"), "episodes.jsonl cannot be read"),
    "a list": (write("meta/episodes.jsonl", "[1]\n"), "episodes.jsonl, row 0 has the episode_index None"),
    "a number": (write("meta/tasks.jsonl", "7\n"), "tasks.jsonl, row 0 is 7"),
    "data gone": (gone("data/chunk-000/episode_000002.parquet"), "episode_000002.parquet cannot be read"),
    "nan": (at("action", 1, [float("nan")] * 7), "000000.parquet, episode 0, step 1: number 0 of 'action' is nan"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "said"), V2_REFUSED.values(), ids=V2_REFUSED)
def test_what_is_odd_in_v2_is_refused(folder, change, said):
    as_v2(folder)
    reading.read(folder, WANTED)
    change(folder)
    with pytest.raises(DatasetError, match=said):
        reading.read(folder, WANTED)


def flip_byte(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]


PICTURES = {
    "grey": (picture(lambda image: image.convert("L")), "has the mode L"),
    "uint16": (picture(lambda image: Image.fromarray(np.zeros((16, 16), np.uint16))), "has the mode I;16"),
    "transparent": (picture(lambda image: image.convert("RGBA").point(lambda v: v // 2)), "is transparent"),
    "other size": (picture(lambda image: image.resize((16, 9))), "is 9×16, and the others of this camera are 16×16"),
    "cut": (picture_bytes(lambda data: data[: len(data) // 2]), "cannot be decoded"),
    "flipped": (picture_bytes(flip_byte), "cannot be decoded"),
    "empty": (picture_bytes(lambda data: b""), "cannot be decoded"),
    "text": (picture_bytes(lambda data: b"<html>"), "cannot be decoded"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "said"), PICTURES.values(), ids=PICTURES)
def test_a_picture_that_is_none_is_named_when_it_is_decoded(folder, change, said):
    change(folder)
    episode = reading.read(folder, WANTED).episodes[0]
    episode.pictures(0)
    with pytest.raises(DatasetError, match=rf"{STEP}: the picture of '{CAMERA}' {said}"):
        episode.pictures(1)


def test_a_declared_size_that_is_another_is_refused(folder):
    feature(CAMERA, shape=[9, 9, 3])(folder)
    with pytest.raises(DatasetError, match="is 16×16, and the others of this camera are 9×9"):
        check_fit(reading.read(folder, WANTED), SPEC, {})


def test_a_size_that_is_declared_with_channels_first_is_understood(folder):
    feature(CAMERA, shape=[3, 16, 16], names=["channels", "height", "width"])(folder)
    check_fit(reading.read(folder, WANTED), SPEC, {})


def test_as_many_names_of_cameras_as_cameras(folder):
    with pytest.raises(SpecMismatchError, match=r"data.camera_keys names 1 cameras, and the env has 2"):
        reading.read(folder, FieldSelection(SPEC.cameras, camera_keys=["camera0"]))


def test_an_empty_list_of_arrays_is_the_layouts_own(recorded):
    found = reading.read(recorded, FieldSelection(SPEC.cameras, state_keys=[]))
    assert_equal(found, reading.read(recorded, WANTED))


def test_an_action_that_is_no_choice_of_the_env_is_refused(tmp_path):
    spec = FakeEnv(num_actions=8).spec
    folder = tmp_path / "discrete"
    keys = ["+env.train.num_actions=8", "+env.eval.num_actions=8"]
    assert demos.main([*ENV, *keys, "episodes=2", f"demos.path={folder}"]) == 0
    check_fit(reading.read(folder, WANTED), spec, {})
    kind = pq.read_table(folder / FIRST)["action"].type
    at("action", 1, [-1], kind)(folder)
    with pytest.raises(SpecMismatchError, match=r"have an action -1, and the env's are 0 to 7 \(.*episode 0"):
        check_fit(reading.read(folder, WANTED), spec, {})


FAST = (
    "model=fake", "tracker=jsonl", "runner.device=cpu", "runner.max_epochs=1", "runner.val_check_interval=-1",
    "runner.save_interval=-1", "sft.steps_per_iteration=4", "sft.val_samples=8", "actor.global_batch_size=16",
    "actor.micro_batch_size=16", "env.eval.video_cfg.save_video=false",
)  # fmt: skip


def train(folder: Path, *more: str) -> int:
    return sft.main([*ENV, *FAST, f"data={folder}", *more])


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_picture_that_is_damaged_ends_a_training_with_its_name(folder, tmp_path, monkeypatch, capsys, ahead):
    monkeypatch.chdir(tmp_path)
    PICTURES["cut"][0](folder)
    assert train(folder, f"data.prefetch_factor={ahead}") == 2
    said = capsys.readouterr().err
    assert "step 1: the picture of 'observation.images.camera0' cannot be decoded" in said
    assert "Traceback" not in said


def test_episodes_of_two_tasks_are_learned(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    two_tasks(folder)
    assert train(folder) == 0


def test_demonstrations_that_are_named_twice_are_refused(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(folder)
    assert train(folder, f"data.train_data_paths=[{folder},{tmp_path / 'link'}]") == 2
    assert "has demonstrations twice" in capsys.readouterr().err


@pytest.mark.parametrize("seed", range(12))
def test_bytes_that_are_changed_anywhere_end_in_no_traceback(folder, seed):
    """Whatever a file holds, it is read or refused; in the latter case with what to do."""
    random = np.random.default_rng(seed)
    file = random.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    data = bytearray(Path(file).read_bytes())
    for place in random.integers(0, len(data), 1 + len(data) // 200):
        data[place] = int(random.integers(0, 256))
    Path(file).write_bytes(data)
    try:
        found = reading.read(folder, WANTED)
        for episode in found.episodes:
            assert np.isfinite(episode.actions).all()
            for t in range(len(episode)):
                assert episode.pictures(t).shape == (2, 16, 16, 3)
    except EmbodiedError:
        pass  # nothing else may be raised
