"""Command and environment of an inference engine's process, checked before it starts. Needs no torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from embodied import schema
from embodied.errors import AssetsMissingError, ConfigError
from embodied.parallel.group import Group
from embodied.runtime.engine import child

SERVE = Path(child.__file__).with_name("serve.py")
FIND = """\
import sys
sys.path[:] = filter(None, sys.path)
from importlib.util import find_spec
sys.exit(find_spec(sys.argv[1]) is None)
"""
"""Looks for a package, but not in the folder where the run was started: the engine does not look there either."""


def check(config: schema.Config, processes: Group) -> None:
    """Refuses an engine that is not installed, or that several processes cannot share.

    Raises:
        AssetsMissingError: the interpreter cannot import the engine.
        ConfigError: each process would need several GPUs, or the interpreter is none.
    """
    rollout = config.rollout
    if rollout.backend == "native":
        return
    if config.runner.answers is not None:
        raise ConfigError(
            f"answers of a file need no engine, and rollout.backend is {rollout.backend}", "leave out rollout.backend"
        )
    if rollout.tensor_parallel_size > 1 and processes.size > 1:
        raise ConfigError(
            f"rollout.tensor_parallel_size {rollout.tensor_parallel_size} with {processes.size} processes: each has an "
            "engine on its own GPU",
            "set rollout.tensor_parallel_size=1, or start one process",
        )
    if not _has_package(rollout):
        raise AssetsMissingError(
            f"rollout.backend is {rollout.backend}, and {interpreter(rollout)} has no package {rollout.backend}",
            remedy(rollout),
        )


def _has_package(rollout: schema.RolloutConfig) -> bool:
    """Returns whether the engine's interpreter has the engine, when it is started as it will be."""
    asked = [interpreter(rollout), "-c", FIND, rollout.backend]
    try:
        return subprocess.run(asked, capture_output=True, env=environment(rollout, None)).returncode == 0
    except OSError as error:
        raise ConfigError(
            f"rollout.python is {interpreter(rollout)}, which cannot be run: {error}",
            f"set it to the interpreter of an environment that has {rollout.backend}, e.g. ENV/bin/python",
        ) from error


def interpreter(rollout: schema.RolloutConfig) -> str:
    """Returns the Python interpreter that the inference engine runs in."""
    return rollout.python or sys.executable


def command(rollout: schema.RolloutConfig) -> tuple[str, ...]:
    """Returns the command line that starts the inference engine's process."""
    return interpreter(rollout), str(SERVE), rollout.backend


def remedy(rollout: schema.RolloutConfig) -> str:
    """Returns the fix for an inference engine that does not start."""
    package = rollout.backend
    return (
        f"read the error above; if {package} is missing or does not fit its environment, install it in one of its own "
        f"(python -m venv ENV; ENV/bin/pip install {package}, or "
        f"{package}-cpu without a GPU) and set rollout.python=ENV/bin/python"
    )


def environment(rollout: schema.RolloutConfig, gpu: int | None) -> dict[str, str]:
    """Returns the environment variables of the inference engine's process.

    Args:
        gpu: which of the visible GPUs this process computes on; None = leave them as they are. An engine that splits
            its layers over several GPUs sees all of them.
    """
    found = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if (flashinfer := rollout.vllm.use_flashinfer_sampler) is not None:
        found["VLLM_USE_FLASHINFER_SAMPLER"] = str(int(flashinfer))
    if rollout.python is not None:  # these are about the launcher's interpreter
        for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
            found.pop(name, None)
    if gpu is not None and rollout.tensor_parallel_size == 1:
        visible = [name for name in found.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        found["CUDA_VISIBLE_DEVICES"] = visible[gpu] if gpu < len(visible) else str(gpu)
    return found
