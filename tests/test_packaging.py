"""The wheel, in an environment of its own, used from a folder whose own ``models/`` and ``envs/`` must not be taken."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", folder, ROOT], ROOT)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment: the wheel is installed there, the dependencies are borrowed from that of the tests
    (only their folder: files like the editable install's are not followed)."""
    folder = tmp_path_factory.mktemp("venv")
    run([sys.executable, "-m", "venv", "--without-pip", folder], ROOT)
    python = folder / "bin" / "python"
    run([sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", wheel], ROOT)
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project with packages of the names that ours have at the top of the repository."""
    for decoy in ("models", "envs", "config"):
        (tmp_path / decoy).mkdir()
        (tmp_path / decoy / "__init__.py").write_text("raise RuntimeError('the decoy was imported')\n")
    return tmp_path


def run(command: list, folder: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # it comes before the wheel
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_wheel_holds_everything_under_one_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert {t for t in top if not t.endswith(".dist-info")} == {"embodied"}
    for file in (
        "envs/libero/env.py",
        "envs/shared/machine.py",
        "models/openvla_oft/__init__.py",
        "models/shared/lora.py",
        "config/train.yaml",
        "config/env/libero_10.yaml",
        "report/assets/page.html",
    ):
        assert f"embodied/{file}" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_train_from_a_folder_with_decoys(environment: Path, project: Path) -> None:
    arguments = ["--config-dir", ROOT / "tests" / "config", "env=fake", "model=fake", "runner.max_epochs=1"]
    out = run([environment, "-m", "embodied.train", *arguments], project)
    assert "1 iterations done" in out
    assert (project / "runs" / "fake-fake-grpo" / "checkpoints" / "000001" / "meta.json").is_file()


def test_envs_and_models_come_from_the_wheel(environment: Path, project: Path) -> None:
    code = (
        "import embodied, embodied.envs.libero as l, embodied.models.openvla_oft as m, embodied.config as c;"
        "print(embodied.__file__, l.__file__, m.__file__, c.__file__)"
    )
    for file in run([environment, "-c", code], project).split():
        assert "site-packages/embodied/" in file
        assert not file.startswith(str(ROOT))
