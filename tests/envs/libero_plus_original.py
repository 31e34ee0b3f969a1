"""Plays the beginning of LIBERO-Plus's tasks by the package's own env, in an interpreter of its own.

``python libero_plus_original.py IN OUT``, both pickles. IN: ``states`` (initial state by task) is not given: they are
the package's own. ``suite``, ``size``, ``tasks`` (names), ``wait_steps``, ``actions`` [T, 7], ``seeds`` [1 + T] (of the
noise of each picture). OUT: for each task its instruction, the initial states, and of the settled state and after each
action the physics, the robot, both pictures and success.
"""

import os
import pickle
import sys
import types
from pathlib import Path

import numpy as np

ROBOT = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
PICTURES = ("agentview_image", "robot0_eye_in_hand_image")


def main(source: str, target: str) -> None:
    given = pickle.loads(Path(source).read_bytes())
    sys.modules["torch"] = without_torch()
    from liberoplus.liberoplus.benchmark import get_benchmark

    del sys.modules["torch"]  # SciPy asks for it
    suite = get_benchmark(given["suite"])()
    numbers = {task.name: number for number, task in enumerate(suite.tasks)}
    played = [play(suite, numbers[name], **given["play"]) for name in given["tasks"]]
    languages = {task.name: task.language for task in suite.tasks}
    Path(target).write_bytes(pickle.dumps({"played": played, "languages": languages}))


def without_torch() -> types.ModuleType:
    """The package loads its initial states by ``torch.load``: pickled numpy arrays in a zip."""
    import io
    import zipfile

    def load(path, **_):
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            return pickle.load(io.BytesIO(archive.read(name)))

    module = types.ModuleType("torch")
    module.load = load
    return module


def play(suite, number: int, size: int, wait_steps: int, actions: np.ndarray, seeds: list[int]) -> dict:
    from liberoplus.liberoplus.envs import OffScreenRenderEnv

    path = suite.get_task_bddl_file_path(number)
    env = OffScreenRenderEnv(bddl_file_name=path, camera_heights=size, camera_widths=size)
    env.seed(0)
    env.reset()
    states = suite.get_task_init_states(number)
    obs = env.set_init_state(states[0])
    seen: dict = {"states": states, "physics": [], "robot": [], "pictures": [], "done": []}
    for step, action in enumerate([*[[0, 0, 0, 0, 0, 0, -1]] * wait_steps, *actions], start=1 - wait_steps):
        np.random.seed(seeds[max(step, 0)])
        obs, _, done, _ = env.step(action)
        if step >= 0:
            seen["physics"].append(physics(env.env.sim))
            seen["robot"].append([obs[name] for name in ROBOT])
            seen["pictures"].append([np.asarray(obs[name]) for name in PICTURES])
            seen["done"].append(bool(done))
    env.close()
    return seen


def physics(sim) -> np.ndarray:
    """Time, positions, velocities, activations, controls, the solver's warm start."""
    import mujoco

    model, data, everything = sim.model._model, sim.data._data, mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(model, everything))
    mujoco.mj_getState(model, data, state, everything)
    return state


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # robosuite's GL contexts complain when the interpreter ends
