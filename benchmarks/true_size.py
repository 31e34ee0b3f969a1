"""Memory and time of true sizes without a GPU, and how far the prediction of ``runner.dry_run`` is off.

    python benchmarks/true_size.py                 # five small runs, 10 minutes
    python benchmarks/true_size.py --quarter       # the true widths in fp32, four layers of 32: 8 GB, five minutes
    python benchmarks/true_size.py --full          # 7.6 B parameters: 20 GB of memory, two CPU cores, 10 minutes
    python benchmarks/true_size.py --folder FOLDER # the same weights from such a folder (see --write), 15 GB of disk
    python benchmarks/true_size.py --write FOLDER  # writes one in the original layout, at random, shard by shard

Each run is two processes: one counts, the other runs and tells its fullest moment (VmHWM). Results are added to
results/true_size.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results" / "true_size.json"
FAKES = Path(__file__).parents[1] / "tests" / "config"
SHORT = (
    "tracker=jsonl", "runner.device=cpu", "runner.save_interval=-1", "runner.val_check_interval=-1",
    "runner.experiment_name=run", "env.eval.video_cfg.save_video=false", "env.num_workers=1",
)  # fmt: skip
FAKE = (
    *SHORT, "env=fake", "runner.max_epochs=2", "algorithm.rollout_epoch=4", "env.train.max_episode_steps=10",
)  # fmt: skip
TINY = ("model=openvla_oft_tiny",)
WIDE = ("actor.model.hidden_size=512", "actor.model.intermediate_size=1408")
SMALL = {
    "adapters": TINY,
    "adapters, recomputed": (*TINY, "+actor.model.gradient_checkpointing=true"),
    "all weights": (*TINY, *WIDE, "actor.model.is_lora=false"),
    "all weights, average and KL": (*TINY, *WIDE, "actor.model.is_lora=false", "actor.optim.ema_decay=0.9",
                                    "algorithm.kl_beta=0.1"),
    "value head": (*TINY, "algorithm=ppo"),
}  # fmt: skip
FULL = (
    *SHORT, "env=libero_spatial", "model=openvla_oft", "actor.model.unnorm_key=null", "runner.max_epochs=1",
    "env.train.total_num_envs=2", "env.train.max_episode_steps=8", "algorithm.group_size=2",
    "algorithm.rollout_epoch=1", "actor.global_batch_size=2", "actor.micro_batch_size=1", "rollout.policy_batch=1",
    "env.step_timeout_s=600", "runner.peak_tflops=measure", "actor.num_threads=2",
)  # fmt: skip
QUARTER = (
    *SHORT, "env=fake", "model=openvla_oft", "actor.model.model_path=null", "actor.model.unnorm_key=null",
    "+actor.model.num_hidden_layers=4", "actor.model.precision=fp32", "runner.max_epochs=1",
    "env.train.total_num_envs=2", "env.train.max_episode_steps=8", "algorithm.group_size=2",
    "algorithm.rollout_epoch=1", "actor.global_batch_size=2", "actor.micro_batch_size=1", "rollout.policy_batch=1",
    "env.step_timeout_s=600", "runner.num_threads=2", "algorithm.adv_type=raw",
)  # fmt: skip
COUNT = """
import json, sys
from dataclasses import asdict
from embodied.parallel.group import Group
from embodied.run.memory import plan
from embodied.run.preflight import check
from embodied.schema.compose import compose
found = plan(check(compose(sys.argv[2:], "train", [sys.argv[1]]), Group()))
print(json.dumps({**asdict(found.taken), "passes": asdict(found.counted.passes)}))
"""
RUN = """
import json, resource, sys, time
from embodied import train
began = time.time()
status = train.main([*sys.argv[2:], "--config-dir", sys.argv[1]])
fields = dict(line.split(":") for line in open("/proc/self/status") if line.startswith(("VmHWM", "Rss")))
print(json.dumps({"status": status, "seconds": time.time() - began,
                  **{name: int(value.split()[0]) * 1024 for name, value in fields.items()}}))
"""


def compare(overrides: tuple[str, ...]) -> dict[str, Any]:
    """Counts a run and makes it; bytes."""
    with tempfile.TemporaryDirectory() as folder:
        predicted = _child(COUNT, overrides, folder)
        ran = _child(RUN, overrides, folder)
        metrics = [json.loads(line) for line in Path(folder, "runs/run/metrics.jsonl").read_text().splitlines()]
    assert ran["status"] == 0, "the run failed"
    total = sum(predicted["device"].values()) + sum(predicted["host"].values())
    found = {"overrides": [o for o in overrides if "model_path=/" not in o], "predicted": total, "peak": ran["VmHWM"]}
    return {
        **found,
        "off": round(total / ran["VmHWM"] - 1, 4),
        "seconds": round(ran["seconds"], 1),
        "prediction": predicted,
        "times": {k: round(v, 3) for k, v in metrics[-1].items() if k.startswith("time/")},
    }


def _child(code: str, overrides: tuple[str, ...], folder: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", code, str(FAKES), *overrides], cwd=folder, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-4000:])
    return json.loads(done.stdout.splitlines()[-1])


def write_folder(folder: Path, size: str = "7b", shard_bytes: int = 5 * 10**9) -> dict[str, Any]:
    """Writes a folder in the layout of the released checkpoints, with random weights in bf16, a file at a time: more
    memory than one file takes is not needed."""
    from embodied.models.openvla_oft import build_policy
    from embodied.models.openvla_oft.dead import dead_tensors
    from embodied.models.openvla_oft.layout import write_layout
    from embodied.models.openvla_oft.processing import PixelProcessor
    from embodied.models.shared.files import INDEX, _shards, write_json
    from safetensors.torch import save_file

    from embodied.run.counting import without_memory
    from embodied.testing import FakeEnv

    began = time.perf_counter()
    folder.mkdir(parents=True)
    with (mode := without_memory())():
        policy = build_policy(size=size, model_path=None, precision="bf16", is_lora=True, lora_rank=1)
    policy.bind(FakeEnv().spec)
    net, settings = policy.model.net, policy.settings
    policy.pixels = PixelProcessor(net.image_size, settings.center_crop, None, settings.image_preset)  # with memory
    state = {n.replace(".base_layer.", "."): t for n, t in policy.model.state_dict().items() if ".lora_" not in n}
    with mode():
        state |= dead_tensors(None, net, state)
        state = {name: tensor.to(torch.bfloat16) for name, tensor in state.items()}
    shards = _shards(state, shard_bytes)
    generator = torch.Generator().manual_seed(0)
    where = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        drawn = {n: torch.randn(t.shape, generator=generator, dtype=torch.bfloat16) * 0.02 for n, t in shard.items()}
        save_file(drawn, str(folder / name), metadata={"format": "pt"})
        where |= dict.fromkeys(shard, name)
    total = sum(tensor.nbytes for tensor in state.values())
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": where})
    write_layout(policy, None, folder, torch.bfloat16)
    return {"files": len(shards), "bytes": total, "seconds": round(time.perf_counter() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--quarter", action="store_true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if given.write:
        print(json.dumps(write_folder(given.write)))
        return
    if given.full:
        results["7.6 B parameters at random"] = compare((*FULL, "actor.model.model_path=null"))
    elif given.quarter:
        results["true widths, four layers, fp32"] = compare(QUARTER)
    elif given.folder:
        results["7.6 B parameters from a folder"] = compare(
            (*FULL, f"actor.model.model_path={given.folder.absolute()}")
        )
    else:
        results["small"] = {name: compare((*FAKE, *more)) for name, more in SMALL.items()}
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
