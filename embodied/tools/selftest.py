"""``embodied selftest --gpu``: whether the device computes, learns, draws and simulates as the CPU does, in 20 minutes.

Each part runs in a process of its own with a time limit, the cheap ones first, so that one that fails, crashes or hangs
costs only itself. Nothing is downloaded. ``selftest.json`` and ``selftest.html`` are written into ``--out``. Without
``--gpu`` the CPU is tested. The status is 0 if nothing failed, 1 if a part did, 2 for wrong usage or without a GPU, 130
after Ctrl-C, which writes what there is.

``python -m embodied.eval … selftest=true`` is another test: it repeats an evaluation under what must not change it.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from embodied.cli import piped
from embodied.errors import ConfigError, EmbodiedError, RunFolderError, printed, unknown_name
from embodied.selftest import machine, page, record
from embodied.selftest.parts import PARTS, Part
from embodied.selftest.running import Result, Runner

COMMAND = ("embodied", "selftest")
MACHINE = Part("machine", "versions and devices", 120, "embodied.selftest.machine:machine")
ALONE = "alone"  # folder within that of the results, for a part that is repeated
WITHOUT = "embodied selftest, without --gpu, runs all parts that a CPU can run; embodied doctor says what CUDA lacks"
LEAST = 1.0  # minutes: torch alone takes some seconds to start


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    given = _arguments().parse_args(argv)
    before = {number: signal.signal(number, _end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return _Test(given).run()
    except EmbodiedError as error:
        print(printed(error), file=sys.stderr)
        return 2
    except KeyboardInterrupt as stopped:
        return 128 + (stopped.args[0] if stopped.args else signal.SIGINT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    for one in (signal.SIGINT, signal.SIGTERM):  # the end itself is not interrupted
        signal.signal(one, signal.SIG_IGN)
    raise KeyboardInterrupt(number)


class _Test:
    """One self-test: what was asked, and what is known so far."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.device = device_of(given.device, given.gpu)
        self.parts = parts_of(given.parts)
        if not (math.isfinite(given.minutes) and given.minutes >= LEAST):
            raise ConfigError(
                f"--minutes is {given.minutes:g}, expected {LEAST:g} or more",
                "give the minutes of all parts together, e.g. 20",
            )
        self.minutes, self.out = given.minutes, Path(given.out)
        self.vllm_python = python_of(given.vllm_python)
        self.began, self.results = time.monotonic(), list[Result]()
        self.facts: dict[str, Any] = {}

    def run(self) -> int:
        """Runs all parts; returns the exit status."""
        if self.device != "cpu" and not machine.shows_gpu():
            raise ConfigError("no driver shows a GPU on this machine", WITHOUT)
        more = ["--vllm-python", self.vllm_python] if self.vllm_python else []
        alone = [*COMMAND, "--gpu", "--device", self.device, *more, "--out", str(self.out / ALONE), "--parts"]
        self.facts = machine.of_command()
        self._write("running")
        runner = Runner(self.device, self.minutes, alone, self.vllm_python)
        try:
            self.facts |= self._asked(runner)
        except (EmbodiedError, KeyboardInterrupt) as error:
            self._write("interrupted" if isinstance(error, KeyboardInterrupt) else "refused")
            raise
        print(f"self-test of {self.facts.get('GPU', self.device)}: {len(self.parts)} parts", flush=True)
        try:
            runner.run_all(self.parts, self._done)
        except KeyboardInterrupt:
            self._close("interrupted")
            raise
        self._close("complete")
        return int(any(result.status == "failed" for result in self.results))

    def _asked(self, runner: Runner) -> Mapping[str, Any]:
        """Asks torch. Raises :class:`ConfigError` if it finds no such device, or cannot be asked."""
        found = runner.run(MACHINE)
        if found.status != "passed":
            raise ConfigError("; ".join(filter(None, (found.reason, found.tail[-500:]))), WITHOUT)
        return {one.what: f"{page.number(one.found)} {one.unit}".strip() for one in found.measured}

    def _done(self, result: Result) -> None:
        self.results.append(result)
        print(*page.line(result), sep="\n", flush=True)
        try:
            self._write("running")
        except RunFolderError as error:  # the end of the test writes again, and says it if it fails
            print(printed(error), file=sys.stderr)

    def _write(self, ended: str) -> None:
        asked = {"device": self.device, "minutes": self.minutes, "parts": [part.name for part in self.parts]}
        self.plain = record.as_plain(asked, self.facts, self.results, time.monotonic() - self.began, ended)
        record.write(self.out / record.JSON, record.as_text(self.plain))

    def _close(self, ended: str) -> None:
        self._write(ended)
        record.write(self.out / record.HTML, page.html(self.plain))
        counts = ", ".join(f"{count} {status}" for status, count in self.plain["counts"].items())
        print(f"{ended}: {counts}; {self.plain['seconds']} s; {self.out / record.JSON}, {self.out / record.HTML}")


def device_of(option: str | None, gpu: bool) -> str:
    """Chooses the device by the option ``--device``, else a GPU if ``gpu``. Raises :class:`ConfigError`."""
    name = option if option is not None else "cuda" if gpu else "cpu"
    if not re.fullmatch(r"cpu|cuda(:(0|[1-9][0-9]{0,2}))?", name):
        raise ConfigError(f"--device is {name}, expected cpu, cuda or cuda:1", "name one of these")
    return name


def python_of(option: str | None) -> str:
    """Resolves the interpreter that ``--vllm-python`` names to an absolute path; empty if none is named. Raises
    :class:`ConfigError`."""
    if option is None:
        return ""
    if (found := shutil.which(os.path.expanduser(option))) is None:
        raise ConfigError(
            f"--vllm-python is {option!r}, which is no program",
            "name an interpreter, e.g. --vllm-python ENV/bin/python",
        )
    return os.path.abspath(found)


def parts_of(option: str | None) -> list[Part]:
    """Parses the parts that are named, with commas between them, into their own order; all without names.

    Raises:
        UnknownNameError: there is no such part.
    """
    if option is None:
        return [*PARTS.values()]
    names = [name.strip() for name in option.split(",") if name.strip()]
    for name in names:
        if name not in PARTS:
            raise unknown_name("part", name, [*PARTS], "--parts")
    if not names:
        raise ConfigError("--parts names no part", f"name some of: {', '.join(PARTS)}")
    return [part for part in PARTS.values() if part.name in names]


def _arguments() -> argparse.ArgumentParser:
    width = max(map(len, PARTS))
    parser = argparse.ArgumentParser(
        prog=" ".join(COMMAND), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="parts:\n" + "\n".join(f"  {one.name:<{width}}  {one.meaning}" for one in PARTS.values()),
    )  # fmt: skip
    parser.add_argument("--gpu", action="store_true", help="test the GPU (cuda)")
    parser.add_argument("--device", help="cpu, cuda or cuda:1; wins over --gpu")
    parser.add_argument("--out", default="selftest", help="folder of the results (default: selftest)")
    parser.add_argument("--parts", help="some parts alone, e.g. numbers,graphs")
    parser.add_argument("--vllm-python", metavar="PYTHON", help="of an environment that has vLLM, e.g. ENV/bin/python")
    parser.add_argument("--minutes", type=float, default=20.0, help="for all parts together (default: 20)")
    return parser


if __name__ == "__main__":
    sys.exit(piped(main))
