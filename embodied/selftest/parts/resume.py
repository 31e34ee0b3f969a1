"""The command that users type: a training that goes on from a checkpoint against one that was not stopped."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from embodied.lib.child import how_it_ended
from embodied.selftest import learning, twice
from embodied.selftest.measured import Measured, none_of
from embodied.selftest.place import Place
from embodied.selftest.policies import COMMON, FOLDER, MLP, OFT

KINDS: Mapping[str, tuple[str, ...]] = {"mlp": MLP, "openvla_oft": OFT}
STEPS = (
    "runner.max_epochs=3", "runner.save_interval=1", "runner.val_check_interval=-1", "runner.checkpoint.max_keep=-1",
    "env.train.reward_mode=dense", "actor.global_batch_size=8", "actor.micro_batch_size=4", "env.num_workers=1",
    "runner.experiment_name=run",
)  # fmt: skip


def resume(place: Place) -> Iterator[Measured]:
    """Measures how far the weights and metrics of an interrupted and resumed training are from an uninterrupted one."""
    for name, keys in KINDS.items():
        whole, stopped = place.folder / name / "whole", place.folder / name / "stopped"
        train(whole, place.device, keys)
        shutil.copytree(whole, stopped)
        for later in ("000002", "000003"):
            shutil.rmtree(stopped / "runs" / "run" / "checkpoints" / later)
        train(stopped, place.device, keys)
        wanted, found = (tensors(folder / "runs" / "run" / "checkpoints" / "000003") for folder in (whole, stopped))
        began = tensors(whole / "runs" / "run" / "checkpoints" / "000001")
        yield from _compared(name, place, found, wanted, began)
        steps = len((stopped / "runs" / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        yield none_of(f"{name}: rows of metrics too few or too many", abs(steps - 3), 3)


def _compared(
    name: str, place: Place, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], began: Mapping[str, Tensor]
) -> Iterator[Measured]:
    moved = learning.unequal(began, wanted)
    yield none_of(f"{name}: whether the later iterations learned nothing", int(moved == 0), 1)
    yield from twice.weights(f"{name}: last checkpoint", found, wanted, began, place.on_gpu)


def train(folder: Path, device: str, keys: Sequence[str]) -> None:
    """Runs a training in a child process, in ``folder``. Raises :class:`RuntimeError` with what it printed
    if it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "embodied.train", *COMMON, *keys, *STEPS, f"runner.device={device}"]
    done = subprocess.run(
        [*command, "--config-dir", FOLDER], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        encoding="utf-8", errors="replace",
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{json.dumps(command[1:])} {how_it_ended(done.returncode)}:\n{done.stdout[-3000:]}")


def tensors(checkpoint: Path) -> dict[str, Tensor]:
    """Reads every floating-point tensor of the policy in a checkpoint."""
    known = dcp.FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    state = {
        name: torch.empty(facts.size, dtype=facts.properties.dtype)
        for name, facts in known.items()
        if isinstance(facts, TensorStorageMetadata) and name.startswith("policy/")
    }
    dcp.load(state, checkpoint_id=checkpoint, no_dist=True)
    return state
