"""A test that fails for a package which is not installed is skipped, and no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from absent import absent_in

ABSENT = ["libero", "math_verify", "pyarrow"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("E  ModuleNotFoundError: No module named 'libero'", "libero"),
        ("E  ModuleNotFoundError: No module named 'libero.libero'", "libero"),
        ("error: LIBERO needs the Python package 'libero', which is not installed", "libero"),
        ("embodied.errors.AssetsMissingError: math-verify cannot be imported: No module", "math_verify"),
        ("AssetsMissingError: a.parquet needs the Python package 'pyarrow', which is not installed", "pyarrow"),
        ("E  AssertionError: assert 2 == 0", None),
        ("E  ModuleNotFoundError: No module named 'numpy'", None),
        ("tests/envs/test_libero_run.py: AssertionError: libero_10 has 10 tasks", None),
        ("E  ModuleNotFoundError: No module named 'liberoes'", None),
    ],
)
def test_what_is_missing_is_read_from_the_failure(text, name):
    assert absent_in(text, ABSENT) == name
    assert absent_in(text, []) is None


def test_the_hook_skips_and_says_why(pytester_like):
    outcomes = pytester_like("import pytest\ndef test_a():\n    import no_such_package\ndef test_b():\n    assert 0\n")
    assert "1 failed" in outcomes
    assert "1 skipped" in outcomes
    assert "no_such_package is not installed" in outcomes


@pytest.fixture
def pytester_like(tmp_path):
    """Runs pytest on a file, with the hook of this suite and a package that is not there."""
    suite = Path(__file__).resolve().parents[1]
    own = "import conftest_of_all\nfrom conftest_of_all import pytest_runtest_makereport\n"
    own += "conftest_of_all.ABSENT.append('no_such_package')\n"
    (tmp_path / "conftest.py").write_text(own, encoding="utf-8")
    (tmp_path / "conftest_of_all.py").write_text((suite / "conftest.py").read_text(encoding="utf-8"), encoding="utf-8")

    def run(source: str) -> str:
        (tmp_path / "test_it.py").write_text(source, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "test_it.py"], cwd=tmp_path,
            capture_output=True, text=True, encoding="utf-8", check=False,
            env={"PYTHONPATH": f"{tmp_path}:{suite / 'helpers'}:{suite.parent}",
                 "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        )  # fmt: skip
        return done.stdout + done.stderr

    return run
