"""HDF5 files of LIBERO, robomimic, robosuite and ManiSkill: each is read right, or refused with what is missing."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from embodied.data import reading
from embodied.data.demonstrations import Demonstrations, FieldSelection
from embodied.errors import DatasetError, EmbodiedError, SpecMismatchError
from embodied.learn.checksums import checksums_of

LIBERO = FieldSelection(["agentview", "robot0_eye_in_hand"])
LENGTH = 6
INFO = json.dumps({"language_instruction": "pick up the milk"})


def arrays(names: Sequence[str] = ("agentview_rgb", "eye_in_hand_rgb")) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shown = {f"obs/{name}": random.integers(0, 256, (LENGTH, 8, 8, 3), dtype=np.uint8) for name in names}
    state = {"obs/ee_states": random.normal(size=(LENGTH, 6)), "obs/gripper_states": random.normal(size=(LENGTH, 2))}
    return {"actions": random.uniform(-1, 1, (LENGTH, 7)), **shown, **state}


def write(
    path: Path, attributes: dict[str, Any], demos: Sequence[str] = ("demo_0",), values: Any = None, **how: Any
) -> Path:
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs.update(attributes)
        for demo in demos:
            group = data.create_group(demo)
            for name, array in (arrays() if values is None else values).items():
                group.create_dataset(name, data=array, **how)
    return path


def libero(path: Path, **changes: Any) -> Path:
    """A file with other arrays; None takes one out."""
    changed = {**arrays(), **{name.replace("__", "/"): array for name, array in changes.items()}}
    return write(path, {"problem_info": INFO}, values={k: v for k, v in changed.items() if v is not None})


def read(path: Path, wanted: FieldSelection = LIBERO) -> Demonstrations:
    return reading.read(path, wanted)


@pytest.mark.parametrize(
    "how", [{}, {"compression": "gzip"}, {"compression": "lzf", "shuffle": True}, {"chunks": True}]
)
@pytest.mark.parametrize("kind", [str, np.bytes_])
def test_compressed_arrays_and_attributes_of_bytes_are_read(tmp_path, how, kind):
    found = read(write(tmp_path / "a.hdf5", {"problem_info": kind(INFO)}, ("demo_10", "demo_2"), **how))
    assert [episode.where.rpartition(" ")[2] for episode in found.episodes] == ["demo_2", "demo_10"]
    (one, _), expected = found.episodes, arrays()
    assert one.instruction == "pick up the milk"
    assert np.array_equal(one.actions, expected["actions"].astype(np.float32))
    assert np.array_equal(one.pictures(3)[0], np.rot90(expected["obs/agentview_rgb"][3], 2))


def robomimic(path: Path, **attributes: Any) -> Path:
    values = arrays(("agentview_image", "robot0_eye_in_hand_image"))
    return write(path, {"env_args": json.dumps({"env_name": "Lift", "env_kwargs": {}}), **attributes}, values=values)


def test_a_file_of_robomimic_is_upright_and_has_no_instruction(tmp_path):
    path = robomimic(tmp_path / "image_v15.hdf5")
    with pytest.raises(DatasetError, match=r"image_v15.hdf5, demo_0 has no instruction") as refused:
        read(path)
    assert "data.instruction" in refused.value.remedy
    (episode,) = read(path, FieldSelection(LIBERO.cameras, instruction="lift the cube")).episodes
    assert episode.instruction == "lift the cube"
    shown = arrays(("agentview_image", "robot0_eye_in_hand_image"))
    assert np.array_equal(episode.pictures(2)[0], shown["obs/agentview_image"][2])
    assert np.array_equal(episode.pictures(2)[1], shown["obs/robot0_eye_in_hand_image"][2])


@pytest.mark.parametrize("name", ["can_demo.hdf5", "demo.hdf5", "low_dim.hdf5"])
def test_the_name_of_a_file_of_robomimic_is_no_instruction(tmp_path, name):
    with pytest.raises(DatasetError, match="has no instruction"):
        read(robomimic(tmp_path / name))


def test_pictures_of_unknown_origin_are_asked_for(tmp_path):
    values = arrays(("front", "wrist"))
    path = write(tmp_path / "own.hdf5", {}, values=values)
    keys = ["front", "wrist"]
    with pytest.raises(DatasetError, match="nothing says whether the pictures of 'front' are upright") as refused:
        read(path, FieldSelection(LIBERO.cameras, keys, instruction="go"))
    assert "data.rotate_images" in refused.value.remedy
    for turned in (True, False):
        (episode,) = read(path, FieldSelection(LIBERO.cameras, keys, instruction="go", rotate_images=turned)).episodes
        assert np.array_equal(episode.pictures(1)[0], np.rot90(values["obs/front"][1], 2 * turned))


def test_what_is_said_of_pictures_counts_more_than_their_origin(tmp_path):
    path = libero(tmp_path / "a.hdf5")
    (episode,) = read(path, FieldSelection(LIBERO.cameras, rotate_images=False)).episodes
    assert np.array_equal(episode.pictures(1)[0], arrays()["obs/agentview_rgb"][1])


@pytest.mark.parametrize(
    ("attributes", "fix"),
    [
        ({"problem_info": INFO}, "scripts/create_dataset.py --demo-file {path} --use-camera-obs (in LIBERO)"),
        ({"bddl_file_name": "a.bddl"}, "scripts/create_dataset.py --demo-file {path}"),
        ({"env_args": "{}"}, "dataset_states_to_obs.py --dataset {path} --output_name"),
        (
            {"env": "Lift", "env_info": "{}"},
            "convert_robosuite.py --dataset {path}, then python robomimic/",
        ),
        ({}, "for a task of LIBERO: python scripts/create_dataset.py"),
    ],
)
def test_a_file_without_observations_is_refused_with_the_script_that_adds_them(tmp_path, attributes, fix):
    only = {"actions": arrays()["actions"], "states": np.zeros((LENGTH, 71))}
    path = write(tmp_path / "raw_demo.hdf5", attributes, values=only)
    with pytest.raises(DatasetError, match=r"raw_demo.hdf5, demo_0 has no observations \(group 'obs'\)") as refused:
        read(path)
    assert fix.format(path=path) in refused.value.remedy


def infos(info: Any) -> Callable[[Path], Path]:
    return lambda folder: write(folder / "a.hdf5", {"problem_info": info})


def changed(**changes: Any) -> Callable[[Path], Path]:
    return lambda folder: libero(folder / "a.hdf5", **changes)


def demos(*names: str) -> Callable[[Path], Path]:
    return lambda folder: write(folder / "a.hdf5", {"problem_info": INFO}, names)


def raw(data: bytes) -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        (folder / "a.hdf5").write_bytes(data)
        return folder / "a.hdf5"

    return made


def cut(folder: Path) -> Path:
    path = libero(folder / "a.hdf5")
    path.write_bytes(path.read_bytes()[:-2000])
    return path


def edited(change: Callable[[h5py.File], Any]) -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        path = libero(folder / "a.hdf5")
        with h5py.File(path, "a") as file:
            change(file)
        return path

    return made


def replace(file: h5py.File, name: str, value: Any) -> None:
    del file[name]
    file[name] = value


BAD = np.where(np.arange(LENGTH)[:, None] == 2, np.nan, arrays()["actions"])
SHAPE = (LENGTH, 8, 8, 3)
REFUSED = {
    "no actions": (changed(actions=None), "demo_0 has no actions 'actions', only: obs/agentview_rgb"),
    "other actions": (changed(actions=None, actions_abs=np.zeros((6, 7))), "no actions 'actions', only: actions_abs"),
    "no demonstration": (demos(), "holds no demonstration"),
    "no steps": (changed(actions=np.zeros((0, 7))), "demo_0 has no step"),
    "names": (demos("demo_a", "demo_b"), "has 'demo_a' among its demonstrations"),
    "an array": (edited(lambda file: file["data"].create_dataset("demo_1", data=[1])), "has 'demo_1' among"),
    "no instruction": (infos('{"domain": "x"}'), "has problem_info without a language_instruction"),
    "info is no JSON": (infos("pick up"), "has problem_info without a language_instruction"),
    "info is empty": (infos(""), "has problem_info without"),
    "info is a list": (infos("[1]"), "has problem_info without"),
    "info is a number": (infos(3), "has problem_info without"),
    "info is null": (infos('{"language_instruction": null}'), "has problem_info without"),
    "info of numbers": (infos('{"language_instruction": [1, 2]}'), "has problem_info without"),
    "info is blank": (infos('{"language_instruction": " "}'), "has problem_info without"),
    "fewer pictures": (changed(obs__agentview_rgb=np.zeros((3, 8, 8, 3), np.uint8)), "3 pictures of .* 6 actions"),
    "more pictures": (changed(obs__eye_in_hand_rgb=np.zeros((9, 8, 8, 3), np.uint8)), "9 pictures of .* 6 actions"),
    "fewer states": (changed(obs__ee_states=np.zeros((4, 6))), "has 4 steps of 'ee_states', and 6 of 'gripper_states'"),
    "fewer actions": (changed(actions=np.zeros((5, 7))), "has 6 steps of 'state', and 5 actions"),
    "nan action": (changed(actions=BAD), "demo_0, step 2: number 0 of 'action' is nan"),
    "inf state": (changed(obs__gripper_states=np.full((LENGTH, 2), np.inf)), "step 0: number 6 of 'state' is inf"),
    "actions are texts": (changed(actions=np.full((LENGTH, 7), b"a")), "as 'actions', expected numbers"),
    "an action is a number": (changed(actions=np.zeros(())), "as 'actions', expected numbers"),
    "chunks of actions": (changed(actions=np.zeros((LENGTH, 4, 7))), r"actions of shape \[4, 7\]"),
    "actions of nothing": (changed(actions=np.zeros((LENGTH, 0))), "expected a list of numbers a step"),
    "float pictures": (changed(obs__agentview_rgb=np.zeros(SHAPE)), r"float64 \[6, 8, 8, 3\] as 'agentview_rgb'"),
    "uint16 pictures": (changed(obs__agentview_rgb=np.zeros(SHAPE, np.uint16)), "uint16"),
    "grey pictures": (changed(obs__agentview_rgb=np.zeros(SHAPE[:3], np.uint8)), r"uint8 \[6, 8, 8\]"),
    "RGBA": (changed(obs__agentview_rgb=np.zeros((6, 8, 8, 4), np.uint8)), r"uint8 \[6, 8, 8, 4\]"),
    "channels first": (changed(obs__agentview_rgb=np.zeros((6, 3, 8, 8), np.uint8)), r"uint8 \[6, 3, 8, 8\]"),
    "obs is an array": (edited(lambda file: replace(file, "data/demo_0/obs", [1])), "has no observations"),
    "obs is empty": (edited(lambda file: file["data/demo_0/obs"].clear()), "has no observations"),
    "obs leads nowhere": (
        edited(lambda file: replace(file, "data/demo_0/obs", h5py.SoftLink("/nothing"))), "has no observations",
    ),
    "actions in another file": (
        edited(lambda file: replace(file, "data/demo_0/actions", h5py.ExternalLink("gone.hdf5", "a"))),
        "has no actions",
    ),
    "no data": (edited(lambda file: file.move("data", "episodes")), "has no group 'data', only: episodes"),
    "data is an array": (edited(lambda file: replace(file, "data", [1])), "has no group 'data'"),
    "trajectories": (edited(lambda file: file.move("data", "traj_0")), "has no group 'data', only: traj_0"),
    "text": (raw(b"not yet downloaded\n"), "is no file of LIBERO demonstrations"),
    "empty": (raw(b""), "is no file of LIBERO demonstrations"),
    "git-lfs": (raw(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"), "is no file of LIBERO"),
    "cut": (cut, "is no file of LIBERO demonstrations: .*truncated"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_odd_is_refused(tmp_path, make, said):
    path = make(tmp_path)
    with pytest.raises(EmbodiedError, match=said) as refused:
        read(path)
    assert str(path) in refused.value.message
    assert refused.value.remedy


def test_an_instruction_can_be_given_to_a_file_without(tmp_path):
    path = infos('{"domain": "x"}')(tmp_path)
    assert read(path, FieldSelection(LIBERO.cameras, instruction="go")).episodes[0].instruction == "go"


def test_the_array_of_the_actions_can_be_named(tmp_path):
    absolute = np.ones((LENGTH, 7))
    path = libero(tmp_path / "a.hdf5", actions_abs=absolute)
    (episode,) = read(path, FieldSelection(LIBERO.cameras, action_key="actions_abs")).episodes
    assert np.array_equal(episode.actions, absolute)


def test_pictures_of_two_sizes_are_refused(tmp_path):
    path = libero(tmp_path / "a.hdf5", obs__eye_in_hand_rgb=np.zeros((LENGTH, 4, 4, 3), np.uint8))
    (episode,) = read(path).episodes
    with pytest.raises(DatasetError, match=r"a.hdf5, demo_0, step 0: the cameras' pictures have several sizes"):
        episode.pictures(0)


def test_demonstrations_of_two_dimensions_are_refused(tmp_path):
    path = libero(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        file.copy("data/demo_0", "data/demo_1")
        replace(file, "data/demo_1/actions", np.zeros((LENGTH, 4)))
    with pytest.raises(DatasetError, match=r"demo_1 has float32 \[4\] as 'action', and .*demo_0 has float32 \[7\]"):
        read(path)


def test_a_picture_that_was_changed_is_known_by_its_pixels(tmp_path):
    one, other = (libero(tmp_path / f"{name}.hdf5") for name in "ab")
    with h5py.File(other, "r+") as file:
        file["data/demo_0/obs/agentview_rgb"][LENGTH - 1, 0, 0, 0] ^= 1
    sums, changed = (checksums_of(read(path).episodes, pictures=True) for path in (one, other))
    assert (changed.numbers == sums.numbers, changed.pictures == sums.pictures) == (True, False)


def test_a_damaged_picture_is_named_when_it_is_read(tmp_path):
    path = write(tmp_path / "a.hdf5", {"problem_info": INFO}, compression="gzip", fletcher32=True)
    whole = path.read_bytes()
    with h5py.File(path) as file:
        place = file["data/demo_0/obs/agentview_rgb"].id.get_chunk_info(0)
    at = place.byte_offset + place.size // 2
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
    (episode,) = read(path).episodes
    with pytest.raises(DatasetError, match="demo_0, step 0: the picture of 'agentview_rgb' cannot be decoded"):
        episode.pictures(0)


def test_a_link_that_leads_nowhere_is_refused(tmp_path):
    (tmp_path / "a.hdf5").symlink_to(tmp_path / "gone.hdf5")
    with pytest.raises(DatasetError, match=r"no demonstrations at .*a.hdf5: it is a link to .*gone.hdf5"):
        read(tmp_path / "a.hdf5")
    with pytest.raises(DatasetError, match=r"a.hdf5 is no file of LIBERO demonstrations") as refused:
        read(tmp_path)
    assert "what the link leads to" in refused.value.remedy


def test_a_file_that_is_written_is_refused(tmp_path):
    path = libero(tmp_path / "a.hdf5")
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as HDF5 does for a file that it writes
        with pytest.raises(DatasetError, match=r"a.hdf5 is no file of LIBERO") as refused:
            read(path)
    assert refused.value.remedy == "wait for the program that writes it, or end it"


def test_a_folder_with_the_ending_is_refused(tmp_path):
    (tmp_path / "a.hdf5").mkdir()
    with pytest.raises(DatasetError, match=r"a.hdf5 is no file of LIBERO demonstrations|no demonstrations of a known"):
        read(tmp_path)
    with pytest.raises(DatasetError):
        read(tmp_path / "a.hdf5")


MANISKILL = FieldSelection(["base_camera"], instruction="pick up the cube")


def maniskill(path: Path, change: Callable[[h5py.File, dict[str, Any]], Any] = lambda file, said: None) -> Path:
    said: dict[str, Any] = {"env_info": {"env_id": "PickCube-v1"}, "episodes": []}
    with h5py.File(path, "w") as file:
        for number in range(2):
            group = file.create_group(f"traj_{number}")
            group["actions"] = np.full((5, 4), 0.5, np.float32)
            group["success"] = np.arange(5) == 4
            group["obs/sensor_data/base_camera/rgb"] = np.full((6, 8, 8, 3), number, np.uint8)
            group["obs/agent/qpos"] = np.ones((6, 9), np.float32)
            said["episodes"].append({"episode_id": number, "control_mode": "pd_ee_delta_pos"})
        change(file, said)
    path.with_suffix(".json").write_text(json.dumps(said), encoding="utf-8")
    return path


def rgb(*shape: int, kind: Any = np.uint8) -> Callable[[h5py.File, dict[str, Any]], Any]:
    return lambda file, said: replace(file, "traj_1/obs/sensor_data/base_camera/rgb", np.zeros(shape, kind))


ODD_TRAJECTORIES = {
    "missing in the file": (lambda file, said: file.pop("traj_1"), ".json has traj_1, and .*t.h5 does not"),
    "missing beside it": (lambda file, said: said["episodes"].pop(), "t.h5 has traj_1, and .*t.json does not"),
    "no episodes": (lambda file, said: said.pop("episodes"), "no pair of trajectory files"),
    "episodes are texts": (lambda file, said: said.update(episodes=["a"]), "no pair of trajectory files"),
    "no number": (lambda file, said: said["episodes"][0].update(episode_id="x"), "no pair of trajectory files"),
    "none solved": (
        lambda file, said: [replace(file, f"traj_{i}/success", np.zeros(5, bool)) for i in range(2)],
        "holds 2 trajectories, and none of them succeeded",
    ),
    "no actions": (lambda file, said: file["traj_1"].pop("actions"), "traj_1 has no actions 'actions', only: obs/"),
    "fewer pictures": (rgb(3, 8, 8, 3), "traj_1 has 3 observations 'base_camera' and 5 actions"),
    "as many pictures": (rgb(5, 8, 8, 3), "traj_1 has 5 observations 'base_camera' and 5 actions"),
    "float pictures": (rgb(6, 8, 8, 3, kind=np.float32), "float32"),
    "channels first": (rgb(6, 3, 8, 8), r"uint8 \[6, 3, 8, 8\]"),
    "nan": (
        lambda file, said: replace(file, "traj_1/actions", np.full((5, 4), np.nan)),
        "traj_1, step 0: number 0 of 'action' is nan",
    ),
    "fewer states": (
        lambda file, said: replace(file, "traj_1/obs/agent/qpos", np.ones((2, 9))),
        "traj_1 has 2 observations 'agent/qpos'",
    ),
    "no steps": (
        lambda file, said: [file["traj_1"].pop("actions"), file["traj_1"].create_dataset("actions", (0, 4))],
        "has 6 observations 'agent/qpos' and 0 actions",
    ),
    "obs is an array": (lambda file, said: replace(file, "traj_1/obs", np.zeros((6, 42))), "holds no pictures"),
    "no sensors": (lambda file, said: file["traj_1/obs"].pop("sensor_data"), "holds no pictures"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "said"), ODD_TRAJECTORIES.values(), ids=ODD_TRAJECTORIES)
def test_trajectories_that_are_odd_are_refused(tmp_path, change, said):
    with pytest.raises((DatasetError, SpecMismatchError), match=said) as refused:
        read(maniskill(tmp_path / "t.h5", change), MANISKILL)
    assert refused.value.remedy


def test_trajectories_without_pictures_are_read_for_an_env_without(tmp_path):
    path = maniskill(tmp_path / "t.h5", lambda file, said: [file[f"traj_{i}/obs"].pop("sensor_data") for i in range(2)])
    found = read(path, FieldSelection([], instruction="go"))
    assert [episode.pictures for episode in found.episodes] == [None, None]


@pytest.mark.parametrize("seed", range(16))
def test_bytes_that_are_changed_anywhere_end_in_no_traceback(tmp_path, seed):
    random = np.random.default_rng(seed)
    path = write(
        tmp_path / "a.hdf5", {"problem_info": INFO}, ("demo_0", "demo_1"), compression=["gzip", None][seed % 2]
    )
    data = bytearray(path.read_bytes())
    for place in random.integers(0, len(data), 1 + len(data) // 400):
        data[place] = int(random.integers(0, 256))
    path.write_bytes(data)
    try:
        for episode in read(path).episodes:
            assert np.isfinite(episode.actions).all()
            for t in range(len(episode)):
                assert episode.pictures(t).shape == (2, 8, 8, 3)
    except EmbodiedError:
        pass  # nothing else may be raised
