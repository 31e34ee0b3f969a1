"""The named mutants: each can still be applied, and its tests fail with it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from mutants.named import MUTANTS

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_named_mutant_can_be_applied_and_has_its_tests(mutant, tmp_path):
    copy = tmp_path / mutant.file
    copy.parent.mkdir(parents=True)
    copy.write_text((ROOT / mutant.file).read_text(encoding="utf-8"), encoding="utf-8")
    before = mutant.apply(tmp_path)
    assert copy.read_text(encoding="utf-8") != before == (ROOT / mutant.file).read_text(encoding="utf-8")
    ast.parse(copy.read_text(encoding="utf-8"))
    for test in mutant.tests:
        file, _, name = test.partition("::")
        functions = {
            node.name
            for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef)
        }
        assert name.partition("[")[0] in functions, test


def test_names_of_mutants_are_their_own():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_a_mutant_whose_text_has_gone_is_refused(tmp_path):
    mutant = MUTANTS[0]
    (tmp_path / mutant.file).parent.mkdir(parents=True)
    (tmp_path / mutant.file).write_text("nothing of the kind\n", encoding="utf-8")
    with pytest.raises(ValueError, match="0 times, expected once"):
        mutant.apply(tmp_path)


def test_results_name_files_that_exist():
    """A result of a file that has gone says nothing of the code that there is."""
    rows = json.loads((ROOT / "tests/mutants/results.json").read_text(encoding="utf-8"))
    named = {row["file"] for row in rows} | {row["test"].partition("::")[0] for row in rows if "/" in row["test"]}
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
    assert not [row for row in rows if row["verdict"] == "survived"]
    assert all(row["why"] for row in rows if row["verdict"] == "equivalent")


def test_a_sample_has_each_room_s_code_and_its_tests(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests/mutants")
    from measure import ONLY, ROOMS, files_of
    from operators import faults_of
    from sample import room_of

    assert all((ROOT / room).is_dir() and files_of(room) for room in ROOMS)
    assert all([*(ROOT / room).rglob(f"{stem}.py")] for room, stems in ONLY.items() for stem in stems)
    assert [room_of(f"{room}/a.py") for room in ROOMS] == [*ROOMS]
    source = (ROOT / "embodied/algorithms/advantages/value.py").read_bytes()
    faults = [fault for some in faults_of(source).values() for fault in some]
    assert len(faults) > 20
    assert all(fault.apply(source) != source for fault in faults)


@pytest.mark.slow
def test_every_named_mutant_is_killed():
    done = subprocess.run(
        [sys.executable, "tests/mutants/run.py"], cwd=ROOT, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(MUTANTS)} of {len(MUTANTS)} mutants killed" in done.stdout
