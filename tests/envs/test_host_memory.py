"""What envs say of their simulators' memory, against what the benchmark has measured."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from embodied.envs.gym import GymEnv
from embodied.envs.libero import host_memory as libero
from embodied.envs.libero.files import MAX_STEPS
from embodied.envs.libero.rendering import Pictures
from embodied.envs.maniskill import host_memory as maniskill
from embodied.envs.text.env import MathEnv

from embodied.protocols import SaysMemory

MB = 2**20
RESULTS = json.loads(
    (Path(__file__).parents[2] / "benchmarks" / "results" / "simulator_memory.json").read_text(encoding="utf-8")
)
CAMERAS = ("agentview", "robot0_eye_in_hand")


def pictures(side: int = 256, cell: float = 0.0) -> Pictures:
    return Pictures(CAMERAS, side, side, cell)


@pytest.mark.parametrize("case", RESULTS["tasks"])
def test_a_suite_takes_what_was_measured(case):
    """Anonymous memory of a worker after each of its tasks, in MB."""
    row = RESULTS["tasks"][case]
    says = libero.host_memory(row["suite"], pictures(row["side"], row["mesh_cell"]), 10)
    assert says.imports == pytest.approx(row["imports"] * MB, rel=0.03)
    for count, measured in enumerate(row["measured"], 1):
        assert says.imports + says.with_tasks(count) == pytest.approx(measured * MB, rel=0.03), count
        assert says.addressed(count) >= 0.95 * row["addresses"][count - 1] * MB


@pytest.mark.parametrize("case", RESULTS["rebuilt"])
def test_tasks_that_come_and_go_take_what_was_measured(case):
    row = RESULTS["rebuilt"][case]
    says = libero.host_memory(row["suite"], pictures(), row["keeps"])
    assert says.imports + says.with_tasks(row["keeps"]) + says.rebuilding == pytest.approx(row["most"] * MB, rel=0.03)


@pytest.mark.parametrize("case", RESULTS["scenes"])
def test_a_scene_of_maniskill_takes_what_was_measured(case):
    row = RESULTS["scenes"][case]
    says = maniskill.host_memory(row["id"], row["side"] ** 2)
    taken = says.imports + says.with_tasks(1) + (row["slots"] - 1) * says.slot
    assert taken == pytest.approx(row["measured"] * MB, rel=0.03)


def test_each_suite_has_figures():
    for suite in MAX_STEPS:
        assert libero.host_memory(suite, pictures(), 3).with_tasks(3) > 400 * MB
    assert libero.host_memory("libero_10_lan", pictures(), 3) == libero.host_memory("libero_10", pictures(), 3)
    assert "was not" in maniskill.host_memory("Other-v1", 128**2).note


@pytest.mark.skipif(find_spec("gymnasium") is None, reason="needs gymnasium")
def test_a_gymnasium_env_says_what_it_took_when_it_was_tried(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    says = GymEnv("CartPole-v1", success="return>=475").host_memory()
    assert 10 * MB < says.imports < 200 * MB
    assert 0 <= says.with_tasks(1) < 200 * MB
    assert says.slot == says.with_tasks(1), "slots share nothing"
    apart = GymEnv("CartPole-v1", success="return>=475", vectorization="async").host_memory()
    assert apart.slot > apart.imports, "each has a process of its own"
    assert isinstance(GymEnv("CartPole-v1", success="return>=475"), SaysMemory)


def test_a_text_env_says_what_its_verifier_brings(tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text(json.dumps({"prompt": "1+2", "answer": "3"}) + "\n", encoding="utf-8")
    plain, loads = (MathEnv(str(file), [{"name": name}]).host_memory() for name in ("boxed", "math"))
    assert loads.imports > 2 * plain.imports > 30 * MB
