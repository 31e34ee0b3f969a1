"""The named mutants: each can still be applied, and its tests fail with it."""

from __future__ import annotations

import ast
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


@pytest.mark.slow
def test_every_named_mutant_is_killed():
    done = subprocess.run(
        [sys.executable, "tests/mutants/run.py"], cwd=ROOT, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(MUTANTS)} of {len(MUTANTS)} mutants killed" in done.stdout
