"""Checkpoints and exports of every policy that commit 2b4d132 wrote: they resume, serve and evaluate to its numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from earlier_policies import EXPORTS, MEASURES, POLICIES, WRITTEN, unpack

from embodied import train

NUMBERS = json.loads((WRITTEN / "numbers.json").read_text(encoding="utf-8"))
CASES = [(name, measure) for name in POLICIES for measure in MEASURES if measure != "exports" or name in EXPORTS]


def differences(before: Any, now: Any, place: str = "") -> Iterator[str]:
    """Yields what differs, and where. Numbers may be rounded as another processor does; what only ``now`` has is no
    difference."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key, value in before.items():
            yield from differences(value, now.get(key, "nothing"), f"{place}/{key}")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for number, (value, other) in enumerate(zip(before, now, strict=True)):
            yield from differences(value, other, f"{place}/{number}")
    elif isinstance(before, float) and isinstance(now, float):
        if not math.isclose(before, now, rel_tol=1e-4, abs_tol=1e-6):
            yield f"{place} was {before}, is {now}"
    elif before != now:
        yield f"{place} was {before}, is {now}"


@pytest.mark.parametrize(("name", "measure"), CASES)
def test_its_numbers_are_those_of_then(name: str, measure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    unpack(name)
    assert [*differences(NUMBERS[name][measure], MEASURES[measure](name))] == []


@pytest.mark.parametrize("name", POLICIES)
def test_its_checkpoint_alone_is_evaluated_as_its_run_was(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    unpack(name)
    machine = ("runner.device=cpu", "tracker=jsonl", "env.num_workers=1", "env.eval.video_cfg.save_video=false")
    assert train.main([f"runs/{name}", *machine, "runner.experiment_name=brought"], "eval") == 0
    files = Path("runs", name, "eval", "000001.json"), Path("runs", "brought", "eval", "000000.json")
    then, now = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    assert [*differences(then["episodes"], now["episodes"])] == []
    assert [*differences({**then["conditions"], "weights": ""}, {**now["conditions"], "weights": ""})] == []
