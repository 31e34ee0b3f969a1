"""Each benchmark of the runtime runs, for a second, and says what it is asked; the model agrees with arithmetic."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(name: str, folder: Path, *arguments: str, saved: str | None = None, limit_s: float = 900) -> dict:
    """The result that a benchmark saves, in ``folder`` instead of where results are kept.

    Args:
        saved: name of the result; None = that of the benchmark.
        limit_s: seconds that it may take.
    """
    code = (
        f"import pathlib, _measure; _measure.RESULTS = pathlib.Path({str(folder)!r}); "
        f"import {name}; {name}.main({[*arguments]!r})"
    )
    environment = {**os.environ, "PYTHONPATH": f"{BENCHMARKS}:{BENCHMARKS.parent}"}
    command = [sys.executable, "-c", code]
    subprocess.run(command, check=True, env=environment, timeout=limit_s, stdout=subprocess.DEVNULL)
    return json.loads((folder / f"{saved or name}.json").read_text(encoding="utf-8"))


def test_transport(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    small = ("--rounds", "1", "--seconds", "0.05", "--envs", "4", "--size", "16", "--sleepers", "2", "--records", "4")
    own = ["memory", "free", "busy", "sleep", "chunk"]
    cells = run("transport", tmp_path, *small, "--busy-s", "0.001", "--cells", *own)["cells"]
    assert list(cells) == own
    for cell in ("free", "busy", "sleep", "chunk"):
        for figures in cells[cell]["found"].values():
            assert figures["frames_per_s"]["median"] > 0
            assert figures["cpu_us_per_frame"]["median"] > 0
    assert cells["memory"]["bars"]["slab over the observations"] >= 1
    assert cells["memory"]["bars"]["PSS of all processes over the observations"] > 1


PEER = """
import dataclasses, json, pathlib, sys, _measure, peers, transport
_measure.RESULTS = pathlib.Path(sys.argv[1])
gym = dataclasses.replace(peers.PEERS[0], name="here", distribution="gymnasium", way=("stand_in", "Way"))
missing = dataclasses.replace(gym, name="not here", distribution="nothing-of-this-name", way=("no_such_module", "Way"))
peers.PEERS = (missing, gym)
transport.main(sys.argv[2:])
"""

STAND_IN = """
from _ways import GymWay
class Way(GymWay):
    def __init__(self, env, envs, workers, steps, chunk):
        super().__init__(env, envs, steps, chunk)
"""


def test_a_peer_is_measured_and_one_that_is_not_installed_is_named_and_left_out(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    (tmp_path / "peers").mkdir()
    (tmp_path / "peers" / "stand_in.py").write_text(STAND_IN, encoding="utf-8")
    extend = f"import peers; peers.__path__.append({str(tmp_path / 'peers')!r})\n"
    environment = {**os.environ, "PYTHONPATH": f"{BENCHMARKS}:{BENCHMARKS.parent}"}
    small = ("--rounds", "1", "--seconds", "0.05", "--envs", "2", "--size", "16", "--peers", "here", "not here")
    command = [sys.executable, "-c", extend + PEER, str(tmp_path), "--cells", "peers-free", "peers-chunk", *small]
    said = subprocess.run(
        command, check=True, env=environment, timeout=900, capture_output=True, text=True, encoding="utf-8"
    ).stdout
    assert "without nothing-of-this-name" in said
    assert "pip install nothing-of-this-name" in said
    cells = json.loads((tmp_path / "transport.json").read_text(encoding="utf-8"))["cells"]
    for cell, ways in (("peers-free", ["here"]), ("peers-chunk", ["here", "here, chunk in env"])):
        assert list(cells[cell]["how"]) == ["here"]
        assert cells[cell]["versions"] == {"gymnasium": importlib.metadata.version("gymnasium")}
        assert all(cells[cell]["found"][way]["frames_per_s"]["median"] > 0 for way in ways)
        assert set(cells[cell]["fastest"].values()) <= set(cells[cell]["found"])
        assert not any("not here" in way for way in cells[cell]["found"])


def test_scheduler(tmp_path: Path) -> None:
    small = ("--rounds", "1", "--slots", "4", "--workers", "2", "--te", "0.002", "--records", "6", "--r", "0.5")
    result = run("scheduler", tmp_path, *small, "--episodes", "16")
    cells = result["cells"]
    assert list(cells) == ["constant", "varied", "resets", "episodes"]
    for cell in ("constant", "varied", "resets"):
        assert set(cells[cell]["0.5"]) == {"lockstep", "2-stage", "ready"}
        assert all(row["real"]["median"] > 0 and row["model"] > 0 for row in cells[cell]["0.5"].values())
    assert cells["episodes"]["0.5"]["gain"] > 0
    assert len(result["kept"]) == 7, "each bar is judged"


def test_start(tmp_path: Path) -> None:
    cells = run("start", tmp_path, "--rounds", "1", "--envs", "fake", "--workers", "1")["cells"]
    assert list(cells["fake"]["1"]) == ["spawn", "forkserver"]
    for figures in cells["fake"]["1"].values():
        assert {"ready_s", "cpu_s", "again_s", "detect_ms", "replaced_s", "pss_mb"} <= figures.keys()
        assert all(figure["median"] >= 0 for figure in figures.values())


def test_math_steps(tmp_path: Path) -> None:
    """Ours beside TRL where that is installed, else alone."""
    small = ("--rounds", "1", "--batch", "8", "--group", "2", "--warm-up", "8", "--completions", "16", "--forced", "5")
    made = ("--problems", "16", "--clone-steps", "2", "--clone-batch", "4", "--cells", "forced")
    sides = ("--out", str(tmp_path / "out"), "--sides", "ours", "TRL")
    result = run("math_steps", tmp_path, *sides, *small, *made, saved="math")
    with_trl = importlib.util.find_spec("trl") is not None
    assert list(result["cells"]["forced"]) == (["ours", "TRL"] if with_trl else ["ours"])
    for figures in result["cells"]["forced"].values():
        assert figures["tokens_per_cpu_s"]["median"] > 0
        assert figures["peak_mb"]["median"] > 100
        assert figures["length"]["median"] == 5, "tokens are those that the model made"
        assert 0 < figures["reward"]["median"] < 1
        assert figures["equal"]["median"] < 0.5
    assert len(result["kept"]) == (2 if with_trl else 0), "each bar of the cell is judged"


@pytest.fixture(scope="module")
def model() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pipeline_model", BENCHMARKS / "pipeline_model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("r", [0.25, 0.5, 1.0, 2.0])
def test_the_model_is_the_closed_form_where_there_is_one(model: ModuleType, r: float) -> None:
    slots, workers, te = 16, 4, 0.02
    policy_s = model.policy_time(r * slots * te / workers, slots, 0.0)
    episodes = [model.Length(0.0, np.array([te]), 400) for _ in range(slots)]
    got = {
        name: model.simulate(episodes, slots, workers, rule, policy_s).records_per_s
        for name, rule in model.schedules(slots).items()
    }
    assert got["lockstep"] == pytest.approx(model.lockstep_rate(slots, workers, te, policy_s), rel=1e-9)
    assert got["2-stage"] == pytest.approx(model.two_stage_rate(slots, workers, te, policy_s), rel=0.01)
    assert got["ready"] <= model.ready_rate(slots, workers, te, policy_s) * (1 + 1e-9)
    assert got["ready"] >= got["lockstep"]


def test_the_model_counts_what_it_is_given(model: ModuleType) -> None:
    """Two slots on one worker, by hand: resets 1 and 2 s, one record of 3 s each, the policy answers both in 4 s."""
    episodes = [model.Length(1.0, np.array([3.0]), 1), model.Length(2.0, np.array([3.0]), 1)]
    lockstep = model.simulate(episodes, 2, 1, model.SCHEDULES["lockstep"], lambda rows: 4.0)
    assert (lockstep.seconds, lockstep.records, lockstep.policy_calls) == (3.0 + 4.0 + 6.0, 2, 1)
    ready = model.simulate(episodes, 2, 1, model.schedules(2)["ready"], lambda rows: 4.0)
    assert (ready.seconds, ready.records, ready.policy_calls) == (1.0 + 4.0 + 4.0 + 3.0, 2, 2)


@pytest.mark.slow
def test_serve(tmp_path: Path) -> None:
    """Needs the package index, for openpi's client."""
    result = run("serve", tmp_path, "--rounds", "1", "--requests", "20", "--seconds", "0.5")
    assert set(result["bars_kept"]) <= set(result["figures"])
    assert all(value > 0 for value in result["figures"].values())
    assert len(result["rounds"]) == 1


@pytest.mark.slow
def test_panel(tmp_path: Path) -> None:
    cells = run("panel", tmp_path, "--seconds", "0.7", "--rounds", "1")["cells"]
    assert 0 < cells["panel"]["threads_share"]["median"] < 0.3
    assert cells["panel"]["draw_ms"]["median"] > 0
    assert cells["bars"]["threads_share"]["median"] > 0


def test_report(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    found = run("report", tmp_path, "--rounds", "1", "--iterations", "20", "--per-task", "2")
    assert found["episodes"] == 8
    assert found["cell"]["cpu_s"]["median"] > 0
    assert 0.9 < found["cell"]["mb"]["median"] < 30, "the charting library and eight videos"
    assert found["bars_kept"]["mb"]


@pytest.mark.slow
def test_doctor(tmp_path: Path) -> None:
    found = run("doctor", tmp_path, "--rounds", "1", "--warm-up", "0", "--cases", "machine", limit_s=400)
    cell = found["cells"]["machine"]
    assert cell["findings"]["ok"] > 5
    assert cell["cpu_s"]["median"] > 0
    assert found["cores"] > 0


def test_no_benchmark_hides_a_package() -> None:
    """A script's folder comes first where modules are looked for: benchmarks/libero.py would be found as ``libero``."""
    packages = {name.partition(".")[0] for name in importlib.metadata.packages_distributions()}
    files = {path.stem for path in BENCHMARKS.glob("*.py")}
    assert packages & files == set()
    assert sys.stdlib_module_names & files == set()
