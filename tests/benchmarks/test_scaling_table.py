"""benchmarks/scaling.py: its table, and what it says where nothing can be measured."""

from __future__ import annotations

import json

import benchmark_file
import pytest
from test_benchmarks_run import run


@pytest.fixture(scope="module")
def scaling():
    return benchmark_file.load("scaling")


def test_each_bar_has_a_row_that_says_whether_it_was_kept(scaling, tmp_path, monkeypatch):
    monkeypatch.setattr(scaling, "RESULTS", tmp_path)
    ratios = {text: {"median": 1.2} for text in scaling.LEAST.values()}
    (tmp_path / f"{scaling.STALENESS}.json").write_text(json.dumps({"ratios": ratios}), encoding="utf-8")
    cells = {
        "port": {
            "found": {"local": {"cpu_us_per_frame": {"median": 1000.0}}},
            "bars": {"1 host: rows/s": 999.0, "1 host: CPU ms a row more than local": 0.3},
        },
        "objects": {"bars": {"Ray objects: CPU ms a row": 5.0}},
    }
    rows = {row["what"]: row for row in scaling.table(scaling.with_others(cells))}
    assert len(rows) == len(scaling.BARS)
    assert (rows["1 host: rows/s"]["kept"], rows["1 host: rows/s"]["bar"]) == (False, ">= 1000")
    assert rows["1 host: CPU ms a row more than local"]["kept"] is True
    ray = rows["CPU more than local, over that of Ray objects"]
    assert (ray["cell"], ray["measured"], ray["kept"]) == ("objects", pytest.approx(0.3 / 4), True)
    assert rows["iteration with s = 1"]["kept"] is False
    assert (rows["longer, s"]["measured"], rows["longer, s"]["kept"]) == (None, None)


def test_a_cell_that_needs_ray_says_so(scaling, tmp_path, monkeypatch):
    monkeypatch.setattr(scaling, "save", lambda name, result: tmp_path)
    monkeypatch.setattr(scaling, "RESULTS", tmp_path)
    found = scaling.main(["--cells", "rank killed"])["cells"]["rank killed"]
    assert found["found"] == "not run: --ray-python names no interpreter with Ray"
    assert found["bars"] == {}


def test_hosts_are_measured_against_a_local_pool(tmp_path):
    small = ("--rounds", "1", "--seconds", "0.05", "--envs", "2", "--workers", "1", "--size", "16")
    found = run("scaling", tmp_path, "--cells", "port", *small)["cells"]["port"]
    assert found["bars"]["1 host: rows/s"] > 0
    assert 1 < found["bars"]["bytes received over those of the rows"] < 2
