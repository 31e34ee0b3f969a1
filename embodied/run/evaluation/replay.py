"""The command that plays an episode of an evaluation again (``embodied play``)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied.run.folder.saves import due
from embodied.schema.compose.compose import Composed

KEPT = ("runner.seed", "runner.device", "runner.num_threads")
"""Keys of the runner on which an episode may depend; all others are of the run alone."""

DRAWN = "algorithm.val_sampling_params.do_sample"

LEFT_OUT = ("runner", "data", "demos", "episodes", "noise_std", "sft", "tracker", "hydra", "perturb")
"""Beginnings of words that say nothing of an episode without perturbations."""


def commands(
    composed: Composed, folder: Path, iteration: int, shown: Sequence[Mapping[str, Any]]
) -> list[str]:  # fmt: skip
    """Returns a command for each episode without a video. None where nobody has the weights: after an iteration that
    leaves no checkpoint; or the command line is not known.

    Args:
        folder: the run's.
        iteration: iterations before the evaluation.
    """
    runner, trail = composed.config.runner, composed.trail
    saved = due(iteration, runner.save_interval, runner.max_epochs, always_last=True)
    if trail is None or not (runner.only_eval or iteration == 0 or saved):
        return []
    words = [word for word in trail.overrides if _is_kept(word)]
    if any(word.lstrip("+").startswith(f"{DRAWN}=") for word in trail.overrides):
        words.append(f"{DRAWN}={str(composed.config.algorithm.val_sampling_params.do_sample).lower()}")
    words += [part for one in trail.config_dirs for part in ("--config-dir", one)]
    weights = (
        runner.ckpt_path if runner.only_eval or iteration == 0 else str(folder / "checkpoints" / f"{iteration:06d}")
    )
    common = shlex.join(["embodied", "play", *words, *([weights] if weights else [])])
    return [f"{common} {_start(one['start'])}" for one in shown if not one["video"]]


def _is_kept(word: str) -> bool:
    """Whether a word of the command line is one of the episode. How actions are drawn is said by :func:`commands`."""
    key = word.lstrip("+~").partition("=")[0]
    if key.startswith(("env.train.perturb", "env.eval.perturb")) or key == DRAWN:
        return False
    return key in KEPT or key.partition("@")[0].partition(".")[0] not in LEFT_OUT


def _start(start: Mapping[str, int]) -> str:
    return f"--task {start['task_id']} --state {start['init_state_id']} --seed {start['seed']}"
