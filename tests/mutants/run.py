"""Apply the named mutants one at a time and show the test that fails with each.

    python tests/mutants/run.py [NAME …]

Works in a copy of the working tree. Exit status 1 if a mutant survives, cannot be applied, or fails before any test
runs, and if the tests fail without a mutant.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from named import MUTANTS, Mutant
from tree import copy_tree, run_tests

TESTS_FAILED = 1  # pytest's exit status


def main(names: Sequence[str]) -> int:
    known = {mutant.name: mutant for mutant in MUTANTS}
    if unknown := [name for name in names if name not in known]:
        print(f"no mutant is called {', '.join(unknown)}; there are: {', '.join(known)}")
        return 1
    chosen = [known[name] for name in names] or MUTANTS
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = copy_tree(Path(folder))
        if not passes(tree, chosen):
            return 1
        print(f"{'mutant':<34} {'s':>5}  first failing test")
        killed = [kill(tree, mutant) for mutant in chosen]
    print(f"{sum(killed)} of {len(killed)} mutants killed")
    return 0 if all(killed) else 1


def passes(tree: Path, mutants: Sequence[Mutant]) -> bool:
    """Whether the tests pass without a mutant; says so if not."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    status, failed, said = run_tests(tree, tests)
    if status:
        print(f"{said}\nthe tests fail without a mutant: {failed or f'pytest ended with {status}'}")
    return status == 0


def kill(tree: Path, mutant: Mutant) -> bool:
    """Apply ``mutant``, run its tests, restore the file; whether a test failed."""
    began = time.monotonic()
    try:
        text = mutant.apply(tree)
    except ValueError as error:
        print(error)
        return False
    status, failed, said = run_tests(tree, mutant.tests)
    (tree / mutant.file).write_text(text, encoding="utf-8")
    if status not in (0, TESTS_FAILED):
        print(said)
    shown = {0: "SURVIVED", TESTS_FAILED: failed}.get(status, f"NO TEST RAN (pytest ended with {status})")
    print(f"{mutant.name:<34} {time.monotonic() - began:>5.1f}  {shown}", flush=True)
    return status == TESTS_FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
