"""Demonstrations of LIBERO and of ManiSkill, on small files in exactly their layouts."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from embodied.data import reading
from embodied.data.demonstrations import FieldSelection
from embodied.errors import DatasetError, SpecMismatchError

RANDOM = np.random.default_rng(0)
LIBERO = FieldSelection(["agentview", "robot0_eye_in_hand"])


def libero_file(path: Path, instruction: object = "turn on the stove", demos: int = 11) -> dict[str, np.ndarray]:
    """As scripts/create_dataset.py leaves it; returns what demo_10 holds."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        if instruction is not None:
            data.attrs["problem_info"] = json.dumps({"language_instruction": instruction})
        for i in range(demos):
            length = 4 + i
            demo = data.create_group(f"demo_{i}")
            arrays = {
                "actions": RANDOM.uniform(-1, 1, (length, 7)),
                "obs/agentview_rgb": RANDOM.integers(0, 256, (length, 8, 8, 3), dtype=np.uint8),
                "obs/eye_in_hand_rgb": RANDOM.integers(0, 256, (length, 8, 8, 3), dtype=np.uint8),
                "obs/ee_states": RANDOM.normal(size=(length, 6)),
                "obs/gripper_states": RANDOM.normal(size=(length, 2)),
                "obs/joint_states": RANDOM.normal(size=(length, 7)),
                "rewards": np.zeros(length, np.uint8),
                "dones": np.zeros(length, np.uint8),
            }
            for name, values in arrays.items():
                demo.create_dataset(name, data=values)
    return arrays


def test_libero_demonstrations_are_read_as_its_env_shows_them(tmp_path):
    last = libero_file(tmp_path / "one.hdf5")
    found = reading.read(tmp_path / "one.hdf5", LIBERO)
    assert [len(episode) for episode in found.episodes] == list(range(4, 15)), "demo_2 comes before demo_10"
    episode = found.episodes[10]
    assert episode.instruction == "turn on the stove"
    assert np.array_equal(episode.actions, last["actions"].astype(np.float32))
    assert np.array_equal(
        episode.fields["state"], np.hstack([last["obs/ee_states"], last["obs/gripper_states"]]).astype(np.float32)
    )
    first, wrist = episode.pictures(3)
    assert np.array_equal(first, np.rot90(last["obs/agentview_rgb"][3], 2))
    assert np.array_equal(wrist, np.rot90(last["obs/eye_in_hand_rgb"][3], 2))
    assert first.dtype == np.uint8


def test_a_folder_of_libero_files_is_one_set(tmp_path):
    libero_file(tmp_path / "KITCHEN_SCENE3_turn_on_the_stove_and_put_it_there_demo.hdf5", None, demos=2)
    libero_file(tmp_path / "pick_up_the_bowl_demo.hdf5", list('"pick up"'), demos=1)
    libero_file(tmp_path / "open_the_drawer_demo.hdf5", None, demos=1)
    found = reading.read(tmp_path, LIBERO)
    told = [episode.instruction for episode in found.episodes]
    assert told == ["turn on the stove and put it there"] * 2 + ["open the drawer", "pick up"]


def test_libero_files_that_do_not_fit_are_refused(tmp_path):
    libero_file(tmp_path / "one.hdf5", demos=1)
    with pytest.raises(SpecMismatchError, match="'frontview', only of: agentview_rgb, eye_in_hand_rgb"):
        reading.read(tmp_path / "one.hdf5", FieldSelection(["frontview"]))
    with pytest.raises(SpecMismatchError, match="has no nothing") as refused:
        reading.read(tmp_path / "one.hdf5", FieldSelection(["agentview"], state_keys=["nothing"]))
    assert "joint_states" in refused.value.remedy
    (tmp_path / "bad.hdf5").write_bytes(b"no")
    with pytest.raises(DatasetError, match=r"bad.hdf5 is no file of LIBERO demonstrations"):
        reading.read(tmp_path, LIBERO)


def maniskill_file(path: Path, pictures: bool = True, modes: tuple[str, ...] = ("pd_ee_delta_pos",) * 3) -> None:
    """As RecordEpisode leaves it: L + 1 observations, some trajectories not solved."""
    episodes = []
    with h5py.File(path, "w") as file:
        for i, mode in enumerate(modes):
            group = file.create_group(f"traj_{i}")
            group.create_dataset("actions", data=np.full((5, 4), i / 10, np.float32))
            group.create_dataset("success", data=np.arange(5) == (4 if i != 1 else 9))
            if pictures:
                group.create_dataset("obs/sensor_data/base_camera/rgb", data=np.full((6, 8, 8, 3), i, np.uint8))
                group.create_dataset("obs/agent/qpos", data=np.tile(np.arange(9, dtype=np.float32), (6, 1)))
                group.create_dataset("obs/extra/tcp_pose", data=np.ones((6, 7), np.float32))
            episodes.append({"episode_id": i, "control_mode": mode, "elapsed_steps": 5})
    path.with_suffix(".json").write_text(
        json.dumps({"env_info": {"env_id": "PickCube-v1"}, "episodes": episodes}), encoding="utf-8"
    )


def test_maniskill_trajectories_are_read_without_those_that_failed(tmp_path):
    maniskill_file(tmp_path / "t.h5")
    found = reading.read(tmp_path / "t.h5", FieldSelection(["base_camera"], instruction="pick up the cube"))
    assert found.made_with == {"control_mode": "pd_ee_delta_pos"}
    assert [episode.actions[0, 0] for episode in found.episodes] == pytest.approx([0, 0.2])
    second = found.episodes[1]
    assert (second.instruction, len(second)) == ("pick up the cube", 5)
    assert second.pictures(4).shape == (1, 8, 8, 3)
    assert second.pictures(4).max() == 2
    assert np.array_equal(second.fields["state"], np.tile(np.arange(9, dtype=np.float32), (5, 1)))
    wanted = FieldSelection(
        ["base_camera"], state_keys=["agent/qpos", "extra/tcp_pose"], instruction="pick up the cube"
    )
    assert reading.read(tmp_path / "t.h5", wanted).episodes[0].fields["state"].shape == (5, 16)


def test_maniskill_files_that_do_not_fit_are_refused(tmp_path):
    wanted = FieldSelection(["base_camera"], instruction="pick up the cube")
    maniskill_file(tmp_path / "a.h5", pictures=False)
    with pytest.raises(DatasetError, match="holds no pictures") as refused:
        reading.read(tmp_path / "a.h5", wanted)
    assert "replay_trajectory" in refused.value.remedy
    maniskill_file(tmp_path / "b.h5", modes=("pd_ee_delta_pos", "pd_joint_pos"))
    with pytest.raises(DatasetError, match="mixes control modes: pd_ee_delta_pos, pd_joint_pos"):
        reading.read(tmp_path / "b.h5", wanted)
    maniskill_file(tmp_path / "c.h5")
    with pytest.raises(SpecMismatchError, match="'hand_camera', only of: base_camera"):
        reading.read(tmp_path / "c.h5", FieldSelection(["hand_camera"], instruction="x"))
    with pytest.raises(SpecMismatchError, match="no agent/qvel") as missing:
        reading.read(tmp_path / "c.h5", FieldSelection(["base_camera"], state_keys=["agent/qvel"], instruction="x"))
    assert missing.value.remedy == "choose data.state_keys from: agent/qpos, extra/tcp_pose"
    with pytest.raises(SpecMismatchError, match="no instructions"):
        reading.read(tmp_path / "c.h5", FieldSelection(["base_camera"]))
    (tmp_path / "c.json").unlink()
    with pytest.raises(DatasetError, match="no pair of trajectory files"):
        reading.read(tmp_path / "c.h5", wanted)
