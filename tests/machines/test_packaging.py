"""The wheel, in an environment of its own, used from a folder whose own ``models/`` and ``envs/`` must not be taken."""

import email
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder

import embodied

ROOT = Path(__file__).resolve().parents[2]


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
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project with packages of the names that ours have at the top of the repository."""
    for decoy in ("models", "envs", "config"):
        (tmp_path / decoy).mkdir()
        (tmp_path / decoy / "__init__.py").write_text(
            "raise RuntimeError('the decoy was imported')\n", encoding="utf-8"
        )
    return tmp_path


def run(command: list, folder: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # it comes before the wheel
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=300, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def packed() -> set[str]:
    """The files of the working tree that belong into a wheel, with the names that they have there."""
    found = set()
    for room, place in (("embodied", ""), ("envs", "envs/"), ("models", "models/"), ("config", "config/")):
        files = [file for file in (ROOT / room).rglob("*") if file.is_file() and "__pycache__" not in file.parts]
        found |= {f"embodied/{place}{file.relative_to(ROOT / room)}" for file in files}
    return found


def files_of(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_wheel_holds_everything_under_one_package(wheel: Path) -> None:
    wanted = packed()
    for file in ("envs/libero/env.py", "models/shared/lora.py", "config/env/libero_10.yaml", "report/assets/page.html"):
        assert f"embodied/{file}" in wanted
    assert files_of(wheel) == wanted
    assert any(name.endswith("licenses/LICENSE") for name in zipfile.ZipFile(wheel).namelist())


def tree() -> set[str]:
    """The files of the working tree that git knows; not those that only git reads."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True, encoding="utf-8"
    ).stdout
    return set(listed.split()) - {".gitignore"}


def test_the_source_archive_holds_the_working_tree() -> None:
    included = {file.distribution_path for file in SdistBuilder(str(ROOT)).recurse_included_files()}
    assert tree() - included == set()


def test_version_is_the_same_everywhere(wheel: Path) -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (\S+)", changes, re.MULTILINE)
    assert headings[:2] == ["Unreleased", embodied.__version__]
    entries = re.split(r"\n(?=- |#)", changes)
    twice = [one for one, count in Counter([*headings, *entries]).items() if count > 1 and not one.startswith("###")]
    assert twice == []
    assert f"version: {embodied.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    archive = zipfile.ZipFile(wheel)
    metadata = email.message_from_bytes(archive.read(next(n for n in archive.namelist() if n.endswith("/METADATA"))))
    assert metadata["Version"] == embodied.__version__


def test_train_from_a_folder_with_decoys(environment: Path, project: Path) -> None:
    arguments = ["--config-dir", ROOT / "tests" / "config", "env=fake", "model=fake", "runner.max_epochs=1"]
    out = run([environment, "-m", "embodied.train", *arguments], project)
    assert "1 iteration done" in out
    assert (project / "runs" / "fake-fake-grpo" / "checkpoints" / "000001" / "meta.json").is_file()


def test_envs_and_models_come_from_the_wheel(environment: Path, project: Path) -> None:
    code = (
        "import embodied, embodied.envs.libero as l, embodied.models.openvla_oft as m, embodied.config as c;"
        "print(embodied.__file__, l.__file__, m.__file__, c.__file__)"
    )
    for file in run([environment, "-c", code], project).split():
        assert "site-packages/embodied/" in file
        assert not file.startswith(str(ROOT))


def test_the_command_answers(environment: Path, project: Path) -> None:
    command = environment.parent / "embodied"
    assert "train" in run([command, "--help"], project)
    said = run([command, "explain", "algorithm.clip_ratio_c"], project)
    assert "clip_ratio_c" in said


@pytest.mark.slow
def test_both_archives_pass_twine_and_hold_the_same(wheel: Path, tmp_path: Path) -> None:
    run([sys.executable, "-m", "venv", tmp_path / "venv"], tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    done = subprocess.run(
        [python, "-m", "pip", "install", "-q", "build", "twine"], capture_output=True, text=True, encoding="utf-8"
    )
    if done.returncode:
        pytest.skip(f"build and twine cannot be installed: {done.stderr[-500:]}")
    run([python, "-m", "build", "-o", tmp_path / "dist", ROOT], tmp_path)  # the wheel from the sdist
    archives = sorted((tmp_path / "dist").iterdir())
    assert [file.suffix for file in archives] == [".whl", ".gz"]
    run([python, "-m", "twine", "check", "--strict", *archives], tmp_path)
    assert files_of(archives[0]) == files_of(wheel)
    with tarfile.open(archives[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert tree() - names == set()
