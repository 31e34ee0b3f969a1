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

from ranks import FORKS


def python(
    words: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None, timeout_s: float = 300.0
) -> subprocess.CompletedProcess[str]:
    """Runs ``python -m MODULE …``, ``python -c CODE …`` or ``python FILE …``.

    Raises:
        TimeoutError: it did not end in time, and was killed.
    """
    with TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("out", "error")]
        work = FORKS.Process(target=_run, args=([*words], str(cwd), {**os.environ, **(env or {})}, files))
        work.start()
        work.join(timeout_s)
        said = [file.read_text(encoding="utf-8") if file.exists() else "" for file in files]
        if work.exitcode is None:
            work.kill()
            work.join()
            raise TimeoutError(f"{words} took more than {timeout_s:g} s: {''.join(said)}")
        return subprocess.CompletedProcess([*words], work.exitcode, *said)


def _run(words: Sequence[str], cwd: str, env: Mapping[str, str], files: Sequence[Path]) -> None:
    for number, file in enumerate(files, start=1):
        with file.open("wb") as opened:
            os.dup2(opened.fileno(), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ |= env
    sys.path.insert(0, cwd)
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
