"""Equal, bit by bit, to the original: physics and reward of each step, pictures and robot state at chunk ends."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from embodied.envs.libero import LiberoEnv

from embodied.types import Start

pytestmark = pytest.mark.sim
SIZE, CHUNK = 96, 8


def original(folder: Path, bddl: Path, init_state: np.ndarray, given: np.ndarray, look_at: list[int]) -> dict:
    """The original's episode, in a process of its own; the worker's variables are in this process's environment."""
    source, target = folder / "in.npz", folder / "out.npz"
    np.savez(source, bddl=str(bddl), init_state=init_state, wait_steps=10, actions=given, look_at=look_at, size=SIZE)
    script = Path(__file__).parent / "libero_original.py"
    subprocess.run([sys.executable, script, source, target], check=True, env=dict(os.environ), capture_output=True)
    return dict(np.load(target))


def axis_angle(quaternion: np.ndarray) -> np.ndarray:
    """As openvla-oft's ``quat2axisangle``, (x, y, z, w)."""
    w = np.clip(quaternion[3], -1, 1)
    return quaternion[:3] * 2.0 * np.arccos(w) / np.sqrt(1.0 - w * w)


def play_ours(env: LiberoEnv, look, given: np.ndarray, look_at: list[int]) -> dict:
    simulator = env._current._domain.sim
    states, rewards, seen = [simulator.get_state().flatten()], [], {0: look(env)}
    for step, action in enumerate(given, start=1):
        rewards.append(float(env.step(action).success))
        states.append(simulator.get_state().flatten())
        if step in look_at:
            seen[step] = look(env)
    return {"states": np.stack(states), "rewards": rewards, "seen": [seen[i] for i in look_at]}


def compare(tmp_path: Path, look, env: LiberoEnv, init: int, given: np.ndarray) -> None:
    look_at = sorted({*range(0, len(given) + 1, CHUNK), len(given)})
    env.reset(Start(0, init, 0))
    ours = play_ours(env, look, given, look_at)
    theirs = original(tmp_path, env._tasks[0].bddl_file, env._init_states[0][init], given, look_at)
    assert np.array_equal(ours["states"], theirs["states"])
    assert np.array_equal(ours["rewards"], theirs["rewards"])
    for index, seen in enumerate(ours["seen"]):
        for camera, name in enumerate(("agentview_image", "robot0_eye_in_hand_image")):
            assert np.array_equal(seen["images"][camera], theirs[name][index][::-1, ::-1]), (look_at[index], name)
        position, quaternion = theirs["robot0_eef_pos"][index], theirs["robot0_eef_quat"][index]
        robot = np.concatenate([position, axis_angle(quaternion), theirs["robot0_gripper_qpos"][index]])
        np.testing.assert_array_max_ulp(seen["state"], robot.astype(np.float32), maxulp=1)


def make(suite: str, task: int) -> LiberoEnv:
    params = {"camera_heights": SIZE, "camera_widths": SIZE}
    env = LiberoEnv(suite, task_ids=[task], init_params=params)
    env.prepare()
    env.reset(Start(0, 9, 0))
    for action in random_actions(11, seed=9):  # an earlier episode must not show
        env.step(action)
    return env


def random_actions(steps: int, seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).uniform(-1, 1, (steps, 7))
    drawn[:, 2] -= 0.6  # downwards, so that there is contact
    return drawn.clip(-1, 1).astype(np.float32)


def test_equals_the_original(sim, tmp_path, look):
    env = make("libero_spatial", 0)
    compare(tmp_path, look, env, init=3, given=random_actions(20, seed=0))
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suite", "task"), [("libero_object", 2), ("libero_goal", 0), ("libero_10", 2), ("libero_10", 9), ("libero_90", 46)]
)
def test_every_suite_equals_the_original(sim, tmp_path, look, suite, task):
    env = make(suite, task)
    compare(tmp_path, look, env, init=5, given=random_actions(40, seed=task))
    env.close()


@pytest.mark.slow
def test_a_whole_successful_episode_equals_the_original(sim, tmp_path, look):
    """With grasp, transport and release, up to the rewarded step and a little beyond."""
    env = make("libero_object", 0)
    env.reset(Start(0, 0, 0))
    given = []
    for action in env.expert():
        given.append(action)
        if env.step(action).success or len(given) == 280:
            break
    given += [given[-1]] * 20
    assert len(given) < 220
    compare(tmp_path, look, env, init=0, given=np.stack(given))
    env.close()


@pytest.mark.slow
def test_a_burner_that_is_on_is_seen_as_in_the_original_and_off_again_after_the_next_reset(sim, tmp_path, look):
    env = make("libero_goal", 7)  # turn on the stove
    env.reset(Start(0, 0, 0))
    dark = look(env)
    model = env._current._model
    knob = next(i for i in range(model.njnt) if "flat_stove" in model.joint(i).name)
    env._init_states[0][1, 1 + model.jnt_qposadr[knob]] = 1.5
    env._current._settled.clear()
    compare(tmp_path, look, env, init=1, given=random_actions(8, seed=0))
    assert env.step(np.zeros(7, np.float32)).success
    assert env.get_state()["simulator"]["lit_sites"]["flat_stove_1"]["burner"][1]
    env.reset(Start(0, 0, 0))
    assert all(np.array_equal(look(env)[name], dark[name]) for name in dark)
    env.close()
