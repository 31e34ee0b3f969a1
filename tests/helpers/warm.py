"""Runs ``python`` as forks of a process that has imported torch and what runs import: 4 CPU seconds less a program.

For tests of what programs do. How they start, what they import and which paths they see is for real interpreters.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from ranks import FORKS


class Program:
    """``python -m MODULE …``, ``python -c CODE …`` or ``python FILE …``, which runs; used as ``subprocess.Popen`` is.

    Args:
        cwd: its folder; None = the current one.
        env: variables beside those of this process. Of them, PYTHONPATH and OMP_NUM_THREADS count from the start.
        files: where its standard output and standard error go; None = kept for :meth:`communicate`.
        new_session: it leads a session and a process group, which a signal can be sent to.
    """

    def __init__(
        self, words: Sequence[str | Path], cwd: Path | None = None, env: Mapping[str, str] | None = None,
        files: tuple[Path, Path] | None = None, new_session: bool = False,
    ) -> None:  # fmt: skip
        self.words = [*map(str, words)]
        self._kept = TemporaryDirectory()
        self._files = [
            path.resolve() for path in files or (Path(self._kept.name, "out"), Path(self._kept.name, "error"))
        ]
        variables = {**os.environ, **(env or {})}
        arguments = (self.words, str(cwd or Path.cwd()), variables, self._files, new_session)
        self._process = FORKS.Process(target=_run, args=arguments)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Raises :class:`subprocess.TimeoutExpired`: it has not ended in time, and runs on."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self.words, timeout or 0.0, self._printed(0), self._printed(1))
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits for its end. Returns what it wrote to standard output and standard error."""
        self.wait(timeout)
        return self._printed(0), self._printed(1)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._process.join()
        self._kept.cleanup()

    def _printed(self, number: int) -> str:
        file = self._files[number]
        return file.read_text(encoding="utf-8") if file.exists() else ""


def python(
    words: Sequence[str | Path], cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout_s: float = 300.0
) -> subprocess.CompletedProcess[str]:
    """Runs a :class:`Program` to its end.

    Raises:
        subprocess.TimeoutExpired: it did not end in time, and was killed.
    """
    with Program(words, cwd, env) as program:
        out, error = program.communicate(timeout_s)
        return subprocess.CompletedProcess(program.words, program.wait(), out, error)


def _run(words: Sequence[str], cwd: str, env: Mapping[str, str], files: Sequence[Path], new_session: bool) -> None:
    if new_session:
        os.setsid()
    for number, file in enumerate(files, start=1):
        with file.open("wb") as opened:
            os.dup2(opened.fileno(), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ |= env
    sys.path[:0] = [cwd, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    if "OMP_NUM_THREADS" in env:
        torch.set_num_threads(int(env["OMP_NUM_THREADS"]))
    program, *arguments = words[1:] if words[0] in ("-m", "-c") else words
    sys.argv[:] = [words[0], *arguments]
    try:
        if words[0] == "-m":
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_path(program, run_name="__main__")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
