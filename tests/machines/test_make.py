"""``make`` beside another package manager: its locks are waited for, and nothing else is."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKED = {
    "lists": "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)",
    "frontend": "E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), is another using it?",
    "archives": "E: Unable to lock directory /var/cache/apt/archives/",
    "nothing": "E: Unable to locate package libegl1",
}
APT = """#!/bin/sh
echo "$*" >> calls
for word in "$@"; do test "$word" != {command} || what=1; done
test -n "$what" || exit 0
echo x >> tries
test "$(wc -l < tries)" -gt {times} && exit 0
echo "{said}" >&2
exit 100
"""


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A machine whose apt-get finds a lock so many times, and says what it was asked."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")

    def make(command: str, said: str, times: int, wait_s: int = 20) -> tuple[int, str, list[str]]:
        programs = {"apt-get": APT.format(command=command, said=said, times=times), "id": "#!/bin/sh\necho 0\n"}
        programs["sleep"] = "#!/bin/sh\necho slept >> slept\n"  # and the clock goes on
        programs["date"] = "#!/bin/sh\necho $((2 * $(cat slept 2>/dev/null | wc -l)))\n"
        for name, text in programs.items():
            (tmp_path / "bin").mkdir(exist_ok=True)
            (tmp_path / "bin" / name).write_text(text, encoding="utf-8")
            (tmp_path / "bin" / name).chmod(0o755)
        done = subprocess.run(
            ["make", "-f", ROOT / "Makefile", "renderer", "RENDERER_LIBRARIES=libnone.so.9", f"APT_WAIT_S={wait_s}"],
            cwd=tmp_path, capture_output=True, text=True, encoding="utf-8", check=False,
            env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr, (tmp_path / "calls").read_text(encoding="utf-8").splitlines()

    return make


@pytest.mark.parametrize("command", ["update", "install"])
@pytest.mark.parametrize("which", ["lists", "frontend", "archives"])
def test_a_lock_is_waited_for(system, command, which):
    status, said, calls = system(command, LOCKED[which], times=3)
    assert status == 0, said
    assert said.count("another package manager is at work") == 1
    assert [f" {command} " in f"{call} " for call in calls].count(True) == 4
    assert all("DPkg::Lock::Timeout=20" in call for call in calls)
    assert " install -y libegl1" in calls[-1]


def test_a_lock_that_stays_is_said_and_ends_it(system):
    status, said, calls = system("update", LOCKED["lists"], times=99, wait_s=6)
    assert status != 0
    assert LOCKED["lists"] in said
    assert len(calls) == 4, "nothing is installed from old lists"


def test_another_failure_is_not_waited_for(system):
    status, said, calls = system("install", LOCKED["nothing"], times=99)
    assert status != 0
    assert LOCKED["nothing"] in said
    assert "at work" not in said
    assert len(calls) == 2
