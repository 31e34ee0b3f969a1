"""A supervised run that comes first (``runner.first``): reinforcement learning then begins with its last weights.

    python -m embodied.train experiment=NAME
        └─▶ python -m embodied.sft …  in <run>/first       (not if this run has a checkpoint of its own)
            └─▶ <run>/first/checkpoints/NNNNNN ─▶ runner.ckpt_path

The first run is a process of its own with a folder of its own, so it is resumed, logged and evaluated like any other.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from signal import SIGINT, SIGTERM

from embodied.errors import ConfigError, EmbodiedError, RunFolderError, Stopped
from embodied.lib.child import Child
from embodied.parallel.group import Group
from embodied.run.folder.folder import FIRST
from embodied.runtime.signals import StopSignal
from embodied.schema.compose.compose import Composed

POLL_S = 0.2


def run(composed: Composed, folders: Sequence[str], processes: Group, stop: StopSignal) -> Composed:
    """Runs the supervised training that comes before reinforcement learning, if one is configured; returns the
    configuration with ``runner.ckpt_path`` set to its result.

    Args:
        folders: those with more group files, for the first run as well. It has the seed and the device of this one.

    Raises:
        ConfigError: several processes, or another ``runner.ckpt_path`` is given as well.
        EmbodiedError: the first run has failed, and has said why; or its checkpoints are gone.
        Stopped: a signal came; the same command goes on.
    """
    runner = composed.config.runner
    if not runner.first or runner.only_eval or runner.dry_run or not runner.task.by_rewards:
        return composed
    if runner.ckpt_path is not None:
        raise ConfigError(
            f"runner.ckpt_path is {runner.ckpt_path}, and runner.first makes the weights to begin with",
            "set runner.first=[] to begin with those of runner.ckpt_path",
        )
    folder = Path(runner.logger.log_path) / FIRST
    begun = _checkpoints(folder.parent)
    if processes.size > 1 and not begun:
        raise ConfigError(
            f"runner.first makes a run in one process, and WORLD_SIZE is {processes.size}",
            f"run python -m embodied.sft {' '.join(runner.first)} before it, and set runner.first=[] and "
            "runner.ckpt_path=… to its last checkpoint",
        )
    if not begun:
        own = f"runner.logger.log_path={folder.absolute()}"  # whatever hydra.run.dir its experiment has
        same = [f"runner.seed={runner.seed}", f"runner.device={runner.device}", own]
        given = [part for one in folders for part in ("--config-dir", one)]
        _make([*same, *runner.first, *given], stop)
    return _beginning_with(composed, folder, begun)


def _make(overrides: Sequence[str], stop: StopSignal) -> None:
    command = [sys.executable, "-m", "embodied.sft", *overrides]
    process = Child(command, session=False, death=SIGTERM, stdin=None, stdout=None, stderr=None)  # it has the terminal
    told = False
    try:
        with stop.hold():  # a signal raises Stopped at its end, when the first run has saved and is gone
            while process.poll() is None:
                time.sleep(POLL_S)
                if stop.wanted and not told:
                    process.terminate()
                    told = True
    finally:
        if process.poll() is None:
            process.terminate()
        status = process.wait()
    if status in (128 + SIGINT, 128 + SIGTERM):
        raise Stopped
    if status:
        raise EmbodiedError(
            f"the run that comes first ended with status {status}: python -m embodied.sft {' '.join(overrides)}",
            "it has said why above; correct that and give the same command again",
        )


def _beginning_with(composed: Composed, folder: Path, begun: Sequence[Path]) -> Composed:
    found = _checkpoints(folder)
    if not found and (not begun or composed.config.algorithm.kl_beta):
        raise RunFolderError(
            f"{folder} holds no checkpoint of the run that comes first",
            "restore the folder, or set runner.experiment_name to another name to begin anew",
        )
    if not found:
        return composed  # it goes on from a checkpoint of its own
    runner = composed.config.runner.model_copy(update={"ckpt_path": str(found[-1])})
    origins = None if composed.origins is None else composed.origins.begun_with(found[-1])
    return replace(composed, config=composed.config.model_copy(update={"runner": runner}), origins=origins)


def _checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints of a run that is whole iterations, oldest first. (``learn.checkpoint`` needs torch.)"""
    found = (path.parent for path in (folder / "checkpoints").glob("[0-9]*/meta.json"))
    return sorted(path for path in found if "+" not in path.name)
