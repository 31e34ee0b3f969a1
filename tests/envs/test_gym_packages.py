"""The example configurations of packages, each in an environment of its own that has the package and shares the rest.

Run with: pytest -m slow tests/envs/test_gym_packages.py; pip's cache makes a second run quick.
"""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path

import pytest
from environments import python_with

from embodied import train
from embodied.tools import demos

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = {"gym_fetchreach": "robotics", "gym_pusht": "pusht", "gym_aloha": "aloha", "gym_metaworld": "metaworld"}
CHECK = """
import json, sys
from embodied.envs.gym import GymEnv
from embodied.testing import check_env
env = GymEnv(**json.loads(sys.argv[1]))
check_env(env)
print("checked", len(env.spec.tasks), sorted(env.spec.obs))
"""
pytestmark = [pytest.mark.slow, pytest.mark.sim]


@pytest.fixture(scope="module")
def pythons(pytestconfig):
    """The interpreter of an environment with an extra's packages; all others are those of this one."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    folder = pytestconfig.cache.mkdir("gym-packages")
    return lambda extra: python_with(extras[extra], folder / extra, shares=True)


def kwargs_of(name: str, python: str) -> dict[str, object]:
    """The keyword arguments that a configuration gives to GymEnv; ``python`` is left to the process itself."""
    from embodied import schema
    from embodied.schema.compose.compose import compose

    side = compose([f"env={name}", f"env.python={python}"]).config.env.train
    return {**schema.target_kwargs(side, "env.train"), "python": None}


@pytest.mark.parametrize("name", EXTRAS)
def test_the_shipped_configuration_keeps_the_promises_of_an_env(name, pythons):
    python = pythons(EXTRAS[name])
    done = subprocess.run(
        [python, "-W", "ignore", "-c", CHECK, json.dumps(kwargs_of(name, python))],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(Path.home())},
        capture_output=True, text=True, timeout=500, check=False,
    encoding="utf-8")  # fmt: skip
    assert "checked 1" in done.stdout, done.stderr[-2000:]


def test_meta_world_s_experts_demonstrate_from_another_interpreter(tmp_path, monkeypatch, pythons):
    monkeypatch.chdir(tmp_path)
    env = ("env=quickstart_metaworld", f"env.python={pythons('metaworld')}")
    assert demos.main((*env, "episodes=4", "demos.path=shown", "env.num_workers=1", "noise_std=0.1")) == 0
    sft = (
        *env, "model=mlp", "tracker=jsonl", "runner.device=cpu", "data=shown", "env.num_workers=1",
        "runner.max_epochs=1", "sft.steps_per_iteration=30", "sft.val_samples=16", "actor.global_batch_size=32",
        "actor.micro_batch_size=32", "runner.experiment_name=sft", "runner.val_check_interval=1",
        "env.eval.episodes_per_task=1",
    )  # fmt: skip
    assert train.main(sft, "sft") == 0
    (row,) = map(json.loads, Path("runs/sft/metrics.jsonl").read_text(encoding="utf-8").splitlines())
    assert "eval/success_rate" in row
    assert [*Path("videos/sft").rglob("*.mp4")]


def test_ml10_has_ten_tasks_with_pictures_and_hidden_goals(pythons):
    python = pythons("metaworld")
    code = CHECK.replace("check_env(env)", "env.prepare()") + (
        "import numpy as np\n"
        "from embodied.types import Start\n"
        "first = []\n"
        "for task, seed in ((0, 1), (9, 1), (0, 1), (0, 2)):\n"
        "    env.reset(Start(task, 0, seed))\n"
        "    out = {name: np.zeros(field.shape, field.dtype) for name, field in env.spec.obs.items()}\n"
        "    env.observe(out)\n"
        "    first.append(out['images'].tobytes())\n"
        "    assert not env._sim.values['obs'][-3:].any()\n"
        "assert first[0] == first[2] and len(set(first)) == 3\n"
        "print('drawn')\n"
    )
    done = subprocess.run(
        [python, "-W", "ignore", "-c", code, json.dumps(kwargs_of("gym_metaworld_ml10", python))],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(Path.home())},
        capture_output=True, text=True, timeout=500, check=False,
    encoding="utf-8")  # fmt: skip
    assert "checked 10 ['images', 'state']" in done.stdout, done.stderr[-2000:]
    assert "drawn" in done.stdout, done.stderr[-2000:]
