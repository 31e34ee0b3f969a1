"""Work of a part that needs a process of its own, because a process has one renderer and one kind of simulation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from embodied.errors import AssetsMissingError, EmbodiedError, RendererUnavailableError, WorkerDiedError
from embodied.lib.child import how_it_ended
from embodied.runtime.pool.placement import egl_indices, render_environment, visible_gpus

REFUSED = 3  # exit status: the last line of what was printed is an error as JSON


def ask(module: str, name: str, file: Path, device: str) -> None:
    """Runs ``python -m MODULE WHAT FILE`` in a child process, which writes its result to the file (:func:`answer`).

    Args:
        device: that is tested: what draws or simulates on a GPU takes this one.

    Raises:
        EmbodiedError: what was refused there, or how the process ended; what it printed goes to standard error.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, name, str(file)], capture_output=True, text=True, encoding="utf-8",
        errors="replace", env={**os.environ, **placed(device, visible_gpus())},
    )  # fmt: skip
    lines = done.stderr.strip().splitlines()
    if done.returncode == REFUSED:
        with suppress(ValueError, IndexError, KeyError):
            said = json.loads(lines[-1])
            kinds = {kind.__name__: kind for kind in (RendererUnavailableError, AssetsMissingError)}
            raise kinds.get(said["kind"], EmbodiedError)(said["error"], said["fix"])
    if done.returncode or not file.exists():
        print(done.stdout[-2000:], done.stderr[-4000:], sep="\n", file=sys.stderr)
        raise WorkerDiedError(
            f"the process for {name} {how_it_ended(done.returncode)}: {lines[-1] if lines else 'no word'}",
            f"see all that it says: python -m {module} {name} /tmp/{file.name}",
        )


def placed(device: str, gpus: Sequence[int]) -> dict[str, str]:
    """Returns the environment variables by which an env's process finds a GPU (:mod:`embodied.runtime.pool.placement`).

    Args:
        gpus: those that this process may use, as nvidia-smi counts.
    """
    index = int(device.partition(":")[2] or 0)
    if device == "cpu" or index >= len(gpus):
        return {}
    return render_environment(gpus[index], egl_indices(), os.environ)


def answer(work: Callable[[str, Path], None], argv: Sequence[str]) -> int:
    """Runs ``work`` in the child process that :func:`ask` started; returns its exit status."""
    try:
        work(argv[0], Path(argv[1]))
    except EmbodiedError as error:
        said = {"kind": type(error).__name__, "error": error.message, "fix": error.remedy}
        print(json.dumps(said), file=sys.stderr)
        return REFUSED
    return 0
