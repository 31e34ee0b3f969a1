"""Runs tests with the device, in a process of their own: torch asks for its CUDA once, when it is imported.

    python tests/stand_in_gpu/run.py FOLDER [pytest's arguments]

FOLDER keeps the compiled ``backend.cpp``. The exit status is pytest's, or 77 with a line that says why it cannot be.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE / "backend.cpp"
CANNOT = 77


def main(folder: str, *arguments: str) -> int:
    found = find_spec("torch")
    assert found is not None
    assert found.origin is not None
    torch = Path(found.origin).parent
    if list((torch / "lib").glob("libtorch_cuda*")):
        print("this torch has CUDA of its own")
        return CANNOT
    library = Path(folder) / f"torch-{version('torch')}.so"
    if not library.exists() or library.stat().st_mtime < SOURCE.stat().st_mtime:
        library.parent.mkdir(parents=True, exist_ok=True)
        try:
            subprocess.run(compiler(torch, library), check=True, capture_output=True, text=True, encoding="utf-8")
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", "").strip().splitlines()[-1:]
            print(f"backend.cpp cannot be compiled here: {error} {said}")
            return CANNOT
    for each in (torch / "lib" / "libtorch_cpu.so", library):
        ctypes.CDLL(str(each), ctypes.RTLD_GLOBAL)
    import pytest

    return int(pytest.main(["-p", "no:cacheprovider", *arguments]))


def compiler(torch: Path, library: Path) -> list[str]:
    """The command that compiles ``backend.cpp``, in some seconds."""
    include, lib = torch / "include", torch / "lib"
    return [
        os.environ.get("CXX", "c++"), "-shared", "-fPIC", "-std=c++20", "-w", str(SOURCE), "-o", str(library),
        f"-I{include}", f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}", f"-L{lib}", "-lc10", "-ltorch_cpu",
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
