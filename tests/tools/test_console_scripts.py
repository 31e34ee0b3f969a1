"""Console scripts see the code of the current folder, as ``python -m`` does, in all of their processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from embodied.tools.export import verify_last

pytest.importorskip("gymnasium")
ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(sys.executable).parent
ENV = """
import gymnasium
import numpy as np


class Arm(gymnasium.Env):
    def __init__(self):
        self.observation_space = gymnasium.spaces.Dict({"joint": gymnasium.spaces.Box(-1, 1, (2,))})
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.joint = self.np_random.uniform(-0.8, 0.8, 2).astype(np.float32)
        return {"joint": self.joint}, {}

    def step(self, action):
        self.joint = np.clip(self.joint + 0.2 * action, -1, 1).astype(np.float32)
        gap = float(np.linalg.norm(self.joint))
        return {"joint": self.joint}, -gap, False, False, {"is_success": gap < 0.2}


class Expert:
    def __init__(self, env):
        pass

    def get_action(self, obs):
        return np.clip(-5 * obs["joint"], -1, 1)


gymnasium.register("Arm-v0", entry_point=Arm, max_episode_steps=8)
"""
GROUP = """
defaults: [gym, _self_]
imports: [arm_env]
id: Arm-v0
state: [obs.joint]
success: info.is_success
progress: reward
progress_range: [-2, 0]
expert: arm_env.Expert
"""
NO_SIMULATOR = "import sys\nsys.modules |= {'libero': None, 'mani_skill': None}\n"
"""They are found by nobody: the doctor would try them, which takes longer than all that is tested here."""
TRAIN = (
    "env=arm model=mlp env.train.total_num_envs=4 env.eval.total_num_envs=2 env.eval.episodes_per_task=2 "
    "runner.max_epochs=1 algorithm.rollout_epoch=1 algorithm.group_size=2 actor.global_batch_size=8 "
    "actor.micro_batch_size=8 runner.experiment_name=arm runner.logger.report=false"
)

EVAL = "env=arm model=mlp env.eval.total_num_envs=2 env.eval.episodes_per_task=2"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    (folder / "arm_env.py").write_text(ENV, encoding="utf-8")
    (folder / "my" / "env").mkdir(parents=True)
    (folder / "my" / "env" / "arm.yaml").write_text(GROUP, encoding="utf-8")
    (folder / "start").mkdir()
    (folder / "start" / "sitecustomize.py").write_text(NO_SIMULATOR, encoding="utf-8")
    return folder


def run(command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a console script; this tree is on the path for the package alone."""
    name, *words = command.split()
    if not (SCRIPTS / name).exists():
        pytest.skip(f"{name} is not installed beside {sys.executable}")
    paths = os.pathsep.join(filter(None, [str(ROOT), str(folder / "start"), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [str(SCRIPTS / name), *words], cwd=folder, env={**os.environ, "PYTHONPATH": paths, **variables},
        capture_output=True, text=True, timeout=300, check=False, encoding="utf-8",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (f"embodied train --config-dir my {TRAIN} runner.dry_run=true", "state float32[2]"),
        (f"embodied train --config-dir my {TRAIN}", "1 iteration done"),
        pytest.param(
            f"embodied-train --config-dir my {TRAIN} env.start_method=forkserver",
            "1 iteration done",
            marks=pytest.mark.slow,
        ),
        (f"embodied eval --config-dir my {EVAL}", "success"),
        pytest.param(f"embodied-eval --config-dir my {EVAL}", "success", marks=pytest.mark.slow),
        ("embodied demos --config-dir my env=arm episodes=2 demos.path=shown", "2 of 2 demonstrations"),
        (f"embodied doctor --config-dir my {TRAIN}", "arm"),
    ],
)
def test_a_console_script_sees_the_current_folder(project, command, said):
    done = run(command, project)
    assert said in done.stdout + done.stderr
    assert "cannot import 'arm_env'" not in done.stdout + done.stderr
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_export_would_be_verified_on_an_env_of_the_current_folder(project):
    """The env is asked before the checkpoint is opened, which is none here."""
    done = run("embodied export nothing --out out --verify --config-dir my env=arm episodes=2", project)
    assert done.returncode == 2
    assert "arm_env" not in done.stderr
    assert "nothing" in done.stderr


def test_who_asks_for_a_safe_path_gets_one_and_the_dry_run_says_so(project):
    done = run(f"embodied train --config-dir my {TRAIN} runner.dry_run=true", project, PYTHONSAFEPATH="1")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "cannot import 'arm_env'" in done.stderr
    assert "start where it lies or put its folder into PYTHONPATH" in done.stderr


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("C --out D --verify env=x episodes=4", "C --out D --verify env=x episodes=4"),
        ("C --out D --verify --config-dir my env=x", "C --out D --config-dir my --verify env=x"),
        ("--verify env=x C --out=D episodes=4", "C --out=D --verify env=x episodes=4"),
        ("C --out D a=b", "C --out D a=b"),
    ],
)
def test_other_options_may_stand_among_the_words_of_verify(given, wanted):
    assert verify_last(given.split()) == wanted.split()
