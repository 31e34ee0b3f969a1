"""Plays the beginning of LIBERO-Plus's tasks by the package's own env, in an interpreter that has its requirements.

``python libero_plus_original.py IN OUT``, both pickles. IN: ``suite``, ``tasks`` (names), ``seeds`` [tasks, 1 + T] of
each picture's noise, and ``play``: ``size``, ``wait_steps``, ``actions`` [T, 7]. OUT: ``languages`` of all tasks of the
suite, and ``played``: of each task what :func:`play` returns.
"""

import io
import os
import pickle
import sys
import types
import zipfile
from pathlib import Path

import numpy as np
from libero_original import PICTURES, ROBOT, Eyes, physics


def main(source: str, target: str) -> None:
    given = pickle.loads(Path(source).read_bytes())
    sys.modules["torch"] = stand_in_for_torch()
    if not has_magick():
        sys.modules |= stand_ins_for_wand()
    from liberoplus.liberoplus.benchmark import get_benchmark

    del sys.modules["torch"]  # SciPy asks it for its types
    suite, eyes = get_benchmark(given["suite"])(), Eyes()
    numbers = {task.name: number for number, task in enumerate(suite.tasks)}
    tasks = zip(given["tasks"], given["seeds"], strict=True)
    played = [play(suite, eyes, numbers[name], seeds=seeds, **given["play"]) for name, seeds in tasks]
    languages = {task.name: task.language for task in suite.tasks}
    Path(target).write_bytes(pickle.dumps({"played": played, "languages": languages}))


def has_magick() -> bool:
    try:
        import wand.image  # noqa: F401
    except ImportError:
        return False
    return True


def stand_ins_for_wand() -> dict[str, types.ModuleType]:
    """The package draws motion blur alone by ImageMagick, and imports it for all else."""
    api, image = types.ModuleType("wand.api"), types.ModuleType("wand.image")
    api.library = types.SimpleNamespace(MagickMotionBlurImage=types.SimpleNamespace())
    image.Image = object
    return {"wand": types.ModuleType("wand"), "wand.api": api, "wand.image": image}


def stand_in_for_torch() -> types.ModuleType:
    """The package reads its initial states by ``torch.load``, and needs nothing else of it: they are pickled numpy
    arrays in a zip."""

    def load(path, **_):
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            return pickle.load(io.BytesIO(archive.read(name)))

    module = types.ModuleType("torch")
    module.load = load
    return module


def play(
    suite, eyes: Eyes, number: int, size: int, wait_steps: int, actions: np.ndarray, seeds: list[int]
) -> dict[str, list]:
    """Plays as OpenVLA's evaluation does. Returns, of the settled state and after each step, ``physics``, ``robot``,
    ``pictures`` and ``done``; and the task's initial ``states``."""
    from liberoplus.liberoplus.envs import OffScreenRenderEnv

    path = suite.get_task_bddl_file_path(number)
    env = OffScreenRenderEnv(bddl_file_name=path, camera_heights=size, camera_widths=size)
    env.seed(0)
    env.reset()
    states = suite.get_task_init_states(number)
    env.set_init_state(states[0])
    seen: dict = {"states": states, "physics": [], "robot": [], "pictures": [], "done": []}
    for step, action in enumerate([*[[0, 0, 0, 0, 0, 0, -1]] * wait_steps, *actions], start=1 - wait_steps):
        eyes.open = step >= 0
        np.random.seed(seeds[max(step, 0)])  # the package draws noise from a generator that nobody seeds
        obs, _, done, _ = env.step(action)
        if step >= 0:
            seen["physics"].append(physics(env.env.sim))
            seen["robot"].append([obs[name] for name in ROBOT])
            seen["pictures"].append([np.asarray(obs[name]) for name in PICTURES])
            seen["done"].append(bool(done))
    env.close()
    return seen


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # robosuite's GL contexts complain when the interpreter ends
