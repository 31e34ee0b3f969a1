"""What seeded runs give, recorded by one version of the code and compared with another, bit by bit.

    python tests/helpers/seeded_runs.py record ROOT OUT [NAME …]   run the code that lies in ROOT; results in OUT/runs
    python tests/helpers/seeded_runs.py compare OLD NEW            exit status 1 if they differ

Compared are the metrics without times, and every tensor of the last checkpoint. Names that only NEW has are no
difference. Both must be recorded on one machine: another processor rounds differently.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from logged import VARYING
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

CORRECTED = "rollout/action_bin_usage"  # of 16 bins where the fake policy acts, before as if it had 256
FAKE = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "runner.max_epochs=3", "runner.save_interval=1",
    "runner.val_check_interval=2", "env.eval.max_episode_steps=6", "env.eval.video_cfg.save_video=false",
)  # fmt: skip
RL = (*FAKE, "algorithm.rollout_epoch=4", "env.train.max_episode_steps=10", "env.train.reward_mode=dense")
SMALL_BATCHES = ("algorithm.update_epoch=2", "actor.global_batch_size=8", "actor.micro_batch_size=4")
SFT = (
    *FAKE, "data=demos", "sft.steps_per_iteration=5", "sft.val_samples=20", "actor.global_batch_size=16",
    "actor.micro_batch_size=8",
)  # fmt: skip
DEMOS = ("env=fake", "episodes=20", "noise_std=0.5", "demos.path=demos", "env.num_workers=1", "env.train.horizon=60")
SIMULATED = (
    "tracker=jsonl", "runner.device=cpu", "runner.max_epochs=2", "runner.save_interval=1",
    "runner.val_check_interval=2", "algorithm.group_size=2", "algorithm.rollout_epoch=2", "env.train.reward_mode=dense",
    "env.train.max_episode_steps=16", "env.eval.max_episode_steps=8", "env.eval.episodes_per_task=1",
    "env.eval.video_cfg.save_video=false",
)  # fmt: skip
RANKS = (*RL, *SMALL_BATCHES, "env.train.total_num_envs=4", "env.eval.total_num_envs=4")

TERMS = (
    "algorithm.kl_beta=0.1", "algorithm.entropy_bonus=0.01", "algorithm.kl_penalty_type=full",
    "algorithm.positive_nll_coef=0.1", "algorithm.off_policy_masking_delta=0.01", "algorithm.logprob_type=action_level",
)  # fmt: skip
AVERAGE = ("algorithm.kl_beta=0.1", "algorithm.use_kl_in_reward=true", "actor.optim.ema_decay=0.9")
REFILLS = ("algorithm.dynamic_sampling=true", "algorithm.max_sampling_rounds=3", "env.train.reward_mode=sparse")

RUNS: Mapping[str, tuple[int, str, tuple[str, ...]]] = {  # name → ranks, entry, overrides
    "grpo": (1, "train", RL),
    "ppo": (1, "train", (*RL, "algorithm=ppo", "algorithm.update_epoch=2")),
    "remax": (1, "train", (*RL, "algorithm.adv_type=remax")),
    "dynamic": (1, "train", (*RL, *REFILLS)),
    "tis": (1, "train", (*RL, "algorithm.loss_type=tis", *SMALL_BATCHES)),
    "gspo": (1, "train", (*RL, "algorithm.loss_type=gspo", *SMALL_BATCHES)),
    "ema": (1, "train", (*RL, *AVERAGE, *SMALL_BATCHES)),
    "beside": (1, "train", (*RL, *REFILLS, "algorithm.max_staleness=1", "algorithm.loss_type=tis", *SMALL_BATCHES)),
    "beside_ppo": (1, "train", (*RL, "algorithm=ppo", "algorithm.max_staleness=1", *AVERAGE[2:])),
    "terms": (1, "train", (*RL, *TERMS, *SMALL_BATCHES)),
    "oft": (1, "train", (*RL, "model=openvla_oft_tiny", "runner.max_epochs=2", *SMALL_BATCHES)),
    "sft": (1, "sft", SFT),
    "replicate": (2, "train", (*RANKS, "actor.fsdp_config.strategy=replicate")),
    "beside_ranks": (2, "train", (*RANKS, "algorithm.max_staleness=1", "actor.fsdp_config.strategy=replicate")),
    "fsdp2": (2, "train", (*RANKS, "actor.fsdp_config.strategy=fsdp2")),
    "libero": (1, "train", ("env=libero_object", *SIMULATED, "env.train.task_ids=[0]", "env.eval.task_ids=[0]")),
    "maniskill": (1, "train", ("env=maniskill_pickcube", *SIMULATED)),
}  # fmt: skip


def record(root: Path, out: Path, names: Sequence[str] = ()) -> None:
    """Run the commands of :data:`RUNS` (all, or ``names``) with the code below ``root``, in the folder ``out``.

    Raises:
        subprocess.CalledProcessError: a command failed; what it said stands in ``out/NAME.log``.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name, (ranks, entry, overrides) in RUNS.items():
        if names and name not in names:
            continue
        if entry == "sft" and not (out / "demos").exists():
            _run(root, out, "demos", 1, "tools.demos", DEMOS)
        _run(root, out, name, ranks, entry, (*overrides, "env.num_workers=1", f"runner.experiment_name={name}"))


def _run(root: Path, out: Path, name: str, ranks: int, entry: str, overrides: Sequence[str]) -> None:
    launch = [sys.executable, "-m"]
    if ranks > 1:
        launch += ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
    command = [*launch, f"embodied.{entry}", *overrides, "--config-dir", str(root / "tests" / "config")]
    environment = {**os.environ, "PYTHONPATH": str(root), **({"OMP_NUM_THREADS": "1"} if ranks > 1 else {})}
    with (out / f"{name}.log").open("w", encoding="utf-8") as log:
        subprocess.run(command, cwd=out, env=environment, stdout=log, stderr=log, check=True, timeout=900)


def compare(old: Path, new: Path) -> list[str]:
    """What differs between two recordings; empty if nothing does."""
    found: list[str] = []
    names = sorted(path.name for path in (old / "runs").iterdir())
    for name in names:
        if not (new / "runs" / name).exists():
            found.append(f"{name}: was not run")
            continue
        before, after = metrics(old / "runs" / name), metrics(new / "runs" / name)
        if len(before) != len(after):
            found.append(f"{name}: {len(before)} rows of metrics, now {len(after)}")
        for number, (row, other) in enumerate(zip(before, after, strict=False)):
            changed = [key for key in row if (key not in other or row[key] != other[key]) and not _corrected(name, key)]
            found += [f"{name}: row {number}: {key} was {row[key]}, is {other.get(key)}" for key in changed]
        found += [f"{name}: {text}" for text in _different(tensors(old / "runs" / name), tensors(new / "runs" / name))]
    return found or ([] if names else [f"{old} has no runs"])


def _corrected(name: str, key: str) -> bool:
    return key == CORRECTED and "model=fake" in RUNS[name][2] if name in RUNS else False


def metrics(run: Path) -> list[dict[str, float]]:
    """The run's metrics without those that a second run need not repeat."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [{key: value for key, value in row.items() if not VARYING.match(key)} for row in rows]


def tensors(run: Path) -> dict[str, torch.Tensor]:
    """Every tensor of the run's last checkpoint."""
    path = max((run / "checkpoints").iterdir())
    known = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    state = {
        name: torch.empty(found.size, dtype=found.properties.dtype)
        for name, found in known.items()
        if isinstance(found, TensorStorageMetadata)
    }
    dcp.load(state, checkpoint_id=path, no_dist=True)
    return state


def _different(old: Mapping[str, torch.Tensor], new: Mapping[str, torch.Tensor]) -> list[str]:
    missing = [f"tensor {name} is gone" for name in old if name not in new]
    return missing + [f"tensor {name} differs" for name in old if name in new and not torch.equal(old[name], new[name])]


def main(arguments: Sequence[str]) -> int:
    verb, first, second, *names = arguments
    if verb == "record":
        record(Path(first).resolve(), Path(second).resolve(), names)
        return 0
    different = compare(Path(first), Path(second))
    print("\n".join(different) if different else "no difference")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
