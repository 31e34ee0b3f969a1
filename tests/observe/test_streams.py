"""Standard streams that take every text, whatever their encoding, and are there, whatever was closed."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from embodied.observe.terminal import streams

TEXT = "3 × 4 → 12 … ≥ é 去 ━━╸ │ ┏ █ ₂ ² ½ “a” —"


@pytest.fixture
def console(monkeypatch):
    """A standard output of some encoding, as the interpreter makes it."""

    def make(encoding: str) -> io.BytesIO:
        shown = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding=encoding, errors="strict"))
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
        return shown

    return make


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("ascii", 'x 4 -> 12 ... >= e \\u53bb --- | + # 2 2 1/2 "a" -'),
        ("iso-8859-1", '3 × 4 -> 12 ... >= é \\u53bb --- | + # 2 ² ½ "a" -'),
        ("gbk", "3 × 4 → 12 … ≥ é 去 ━━- │ ┏ █ 2 2 1/2 “a” —"),
        ("utf-8", TEXT),
    ],
)
def test_a_sign_that_is_not_there_becomes_one_that_is_near(console, encoding, expected):
    shown = console(encoding)
    streams.for_person()
    print(TEXT, flush=True)
    got = shown.getvalue().decode(encoding).strip()
    assert got.endswith(expected), got


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1", "gbk", "utf-8", "cp437"])
def test_every_sign_is_taken(console, encoding):
    shown = console(encoding)
    streams.for_person()
    everything = "".join(map(chr, range(1, 0x3000))) + "".join(map(chr, range(0xD800, 0xE000))) + "\U0001f916"
    print(everything, flush=True)
    print("end\udcc3\udca9", file=sys.stderr, flush=True)
    assert len(shown.getvalue()) >= len(everything)


def test_the_bytes_of_a_file_s_name_are_given_back(console):
    shown = console("ascii")
    streams.for_person()
    print(os.fsencode("é").decode("ascii", "surrogateescape"), flush=True)
    assert shown.getvalue() == "é\n".encode()


def test_a_log_is_utf_8(console):
    shown = console("ascii")
    streams.for_log()
    print("去 \udc80", flush=True)
    assert shown.getvalue().decode("utf-8") == "去 \\udc80\n"


CODE = """
import os, sys
from embodied.observe.terminal import streams
streams.{}()
opened = os.open("/dev/null", os.O_RDONLY)
print("shown ×", flush=True)
print("told ×", file=sys.stderr, flush=True)
sys.stdin.read()
sys.exit(opened)
"""


@pytest.mark.parametrize("how", ["for_person", "for_log"])
@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "0<&-", "0<&- 1>&- 2>&-"])
def test_a_stream_that_is_closed_leads_to_nowhere(how, closed, tmp_path):
    """A file that is opened then does not get its number, and so not the text."""
    done = subprocess.run(
        ["bash", "-c", f'"$0" -c "$1" {closed}', sys.executable, CODE.format(how)], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, encoding="utf-8", check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode > 2, done.stderr
    assert done.stdout == ("" if "1>" in closed else "shown ×\n")
    assert done.stderr == ("" if "2>" in closed else "told ×\n")
