"""Memory and time of true sizes without a GPU, and how far the prediction of ``runner.dry_run`` is off.

    python benchmarks/true_size.py --small         # five small runs, 10 minutes
    python benchmarks/true_size.py --quarter       # the true widths in fp32, four layers of 32: 8 GB, five minutes
    python benchmarks/true_size.py --full          # 7.6 B parameters: 20 GB of memory, two CPU cores, 10 minutes
    python benchmarks/true_size.py --stopped       # the same, ended a minute after the weights are there
    python benchmarks/true_size.py --write FOLDER  # writes a folder in the original layout, at random, shard by shard
    python benchmarks/true_size.py --folder FOLDER # --full with the weights of that folder, 15 GB of disk
    python benchmarks/true_size.py --counted       # libero_24gb and libero_12gb, counted alone: 1 GB, six minutes
    python benchmarks/true_size.py --table         # the rows of benchmarks/README.md, from what was measured

Each run is two processes: one counts, the other runs. Its fullest moment is the kernel's (VmHWM); what that consists of
(RssAnon: its own memory, RssFile: pages of mapped files) is looked up 20 times a second. Each row is added to
results/true_size.json as soon as it is there, with its machine; rows of other commands stay.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parent))
from _measure import machine

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
    "env.step_timeout_s=600", "runner.peak_tflops=measure", "runner.num_threads=2", "actor.num_threads=2",
)  # fmt: skip
RANDOM = ("actor.model.model_path=null", "actor.model.unnorm_key=null")
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
import embodied.run.rl, embodied.train  # a dry run has imported its recipe before it counts
from embodied.parallel.group import Group
from embodied.run.memory.say import plan
from embodied.run.build.preflight import check
from embodied.schema.compose.compose import compose
checked = check(compose(sys.argv[2:], "train", [sys.argv[1]]), Group())
found = plan(checked.config, checked.sides, Group(), checked.demonstrations)
status = open("/proc/self/status", encoding="utf-8")
peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
print(json.dumps({**asdict(found.taken), "passes": asdict(found.counted.passes), "VmHWM": peak}))
"""
RUN = """
import json, sys, time
from contextlib import contextmanager
from embodied import train
from embodied.observe.terminal.console import PlainConsole
shown = PlainConsole.progress
@contextmanager
def progress(self, phase, *args, **kwargs):
    began = time.monotonic()
    with shown(self, phase, *args, **kwargs) as bar:
        yield bar
    with open("phases.jsonl", "a", encoding="utf-8") as file:
        print(json.dumps([phase, began, time.monotonic()]), file=file)
PlainConsole.progress = progress
status = train.main([*sys.argv[2:], "--config-dir", sys.argv[1]])
fields = dict(line.split(":") for line in open("/proc/self/status", encoding="utf-8"))
print(json.dumps({"status": status, "VmHWM": int(fields["VmHWM"].split()[0]) * 1024}))
"""
COUNTED = {
    "libero_24gb": (),
    "libero_24gb, micro-batch 2": ("actor.micro_batch_size=2",),
    "libero_24gb, value head": ("algorithm=ppo",),
    "libero_12gb": (),
    "libero_12gb, 8 bits": ("actor.model.quantization_bit=8",),
}
BUILT = "building the policy"  # the phase of a run at whose end the weights are there
ACTING_S = 60.0
INTERVAL_S = 0.05
BAR = 0.05  # of what a run takes; a row that is further off has missed it
KINDS = ("VmHWM", "VmRSS", "RssAnon", "RssFile", "RssShmem")


def compare(overrides: tuple[str, ...]) -> dict[str, Any]:
    """Counts a run and makes it; bytes."""
    facts = here()
    with tempfile.TemporaryDirectory() as folder:
        predicted = _counted(overrides, folder)
        ran = _watched(overrides, folder)
        metrics = [
            json.loads(line) for line in Path(folder, "runs/run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
        ]
    total = sum(predicted["device"].values()) + sum(predicted["host"].values())
    return {
        "machine": facts,
        "overrides": [o for o in overrides if "model_path=/" not in o],
        "predicted": total,
        "peak": ran["peak"],
        "off": round(total / ran["peak"] - 1, 4),
        **{name: value for name, value in ran.items() if name != "peak"},
        "prediction": predicted,
        "times": {k: round(v, 3) for k, v in metrics[-1].items() if k.startswith("time/")},
    }


def stopped(overrides: tuple[str, ...]) -> dict[str, Any]:
    """Compares a process that has its weights, for machines on which a call of so large a policy does not end."""
    facts = here()
    with tempfile.TemporaryDirectory() as folder:
        predicted = _counted(overrides, folder)
        ran = _watched(overrides, folder, stop_after_s=ACTING_S)
    parts = ("weights", "trained weights", "value head")
    total = sum(predicted["device"].get(name, 0) for name in parts) + predicted["host"]["process"]
    return {
        "machine": facts,
        "overrides": list(overrides),
        "what": f"ended {ACTING_S:g} s after the weights were there: the process with them, without activations",
        "predicted": total,
        "resident": ran["acting"]["VmRSS"],
        "off": round(total / ran["acting"]["VmRSS"] - 1, 4),
        **ran,
    }


def counted(name: str, more: Sequence[str]) -> dict[str, Any]:
    """Counts an experiment for the GPU that it names; GiB."""
    facts, experiment = here(), name.partition(",")[0]
    shown = (f"experiment={experiment}", "env=libero_spatial", *more)
    with tempfile.TemporaryDirectory() as folder:
        began = os.times().children_user
        found = _counted((*shown, "actor.model.model_path=null", "actor.model.unnorm_key=null"), folder)
        seconds = os.times().children_user - began
    parts = {part: round(size / 2**30, 3) for part, size in found["device"].items() if size}
    return {
        "machine": facts,
        "overrides": list(shown),
        "GPU_GiB": {**parts, "in all": round(sum(found["device"].values()) / 2**30, 2)},
        "fullest": found["moment"],
        "passes": found["passes"],
        "counting": {"cpu_seconds": round(seconds, 1), "peak": found["VmHWM"]},
    }


def here() -> dict[str, Any]:
    """Facts of the machine, without its paths."""
    facts = machine(["torch", "transformers", "peft"])
    facts["command"] = " ".join("FOLDER" if part.startswith("/") else part for part in ["python", *_command()])
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {**facts, "memory": memory, "bf16_arithmetic": bool(torch.cpu._is_avx512_bf16_supported())}


def _command() -> list[str]:
    return [f"benchmarks/{Path(__file__).name}", *sys.argv[1:]]


def _counted(overrides: tuple[str, ...], folder: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", COUNT, str(FAKES), *overrides],
        cwd=folder,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    if done.returncode:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-4000:])
    return json.loads(done.stdout.splitlines()[-1])


def _watched(overrides: tuple[str, ...], folder: str, stop_after_s: float | None = None) -> dict[str, Any]:
    """Makes a run, and looks at its memory from outside.

    Args:
        stop_after_s: ends it so many seconds after its weights are there; None = it runs to its end.
    """
    phases, said = Path(folder, "phases.jsonl"), Path(folder, "said.txt")
    with said.open("w", encoding="utf-8") as out:
        began = time.monotonic()
        run = subprocess.Popen(
            [sys.executable, "-c", RUN, str(FAKES), *overrides], cwd=folder, stdout=out, stderr=subprocess.STDOUT
        )
        fullest, last, at, built = {"VmRSS": 0}, {"VmRSS": 0}, began, None
        while run.poll() is None:
            if (now := _status(run.pid)) and now["VmRSS"] > fullest["VmRSS"]:
                fullest, at = now, time.monotonic()
            last = now or last
            if stop_after_s is not None and built is None:
                built = next((end for name, _, end in _read(phases) if name == BUILT), None)
            if stop_after_s is not None and built is not None and time.monotonic() > built + stop_after_s:
                run.kill()
                run.wait()
            time.sleep(INTERVAL_S)
        seconds = time.monotonic() - began
    if run.returncode and stop_after_s is None:
        raise SystemExit(f"the run failed:\n{said.read_text(encoding='utf-8')[-6000:]}")
    spans = _read(phases)
    times = {name: round(end - start, 1) for name, start, end in spans if end - start >= 0.05}
    weights = next(end for name, _, end in spans if name == BUILT) - began
    found = {"seconds": round(seconds, 1), "seconds_until_weights": round(weights, 1), "phases": times}
    if stop_after_s is not None:
        return {**found, "acting": last}
    peak = json.loads(said.read_text(encoding="utf-8").splitlines()[-1])["VmHWM"]
    during = [name for name, start, end in spans if start <= at <= end]
    return {**found, "peak": peak, "fullest": {**fullest, "during": during[0] if during else "between phases"}}


def _status(pid: int) -> dict[str, int]:
    """Memory of a process by kind; empty once it has ended."""
    with suppress(OSError):
        lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines())
        return {parts[0][:-1]: int(parts[1]) * 1024 for parts in lines if parts and parts[0][:-1] in KINDS}
    return {}


def _read(phases: Path) -> list[tuple[str, float, float]]:
    return [json.loads(line) for line in phases.read_text(encoding="utf-8").splitlines()] if phases.exists() else []


def write_folder(folder: Path, size: str = "7b", shard_bytes: int = 5 * 10**9) -> dict[str, Any]:
    """Writes a folder in the layout of the released checkpoints, with random weights in bf16, a file at a time: more
    memory than one file takes is not needed."""
    from embodied.models.openvla_oft import build_policy
    from embodied.models.openvla_oft.export.layout import write_layout
    from embodied.models.openvla_oft.files.dead import dead_tensors
    from embodied.models.openvla_oft.tokens.processing import PixelProcessor
    from embodied.models.shared.files import INDEX, _shards, write_json
    from safetensors.torch import save_file

    from embodied import schema
    from embodied.run.memory.counting import without_memory
    from embodied.schema.compose.compose import compose
    from embodied.testing import FakeEnv

    began = time.perf_counter()
    folder.mkdir(parents=True)
    given = compose(["env=fake", "model=openvla_oft", f"actor.model.size={size}", *RANDOM], "train", [str(FAKES)])
    usual = {**schema.target_kwargs(given.config.actor.model, "actor.model")}
    del usual["lora_rank"]
    with (mode := without_memory())():
        policy = build_policy(**usual, lora_rank=1)
    policy.bind(FakeEnv().spec)
    net, settings = policy.model.net, policy.settings
    pixels = PixelProcessor(net.image_size, settings.center_crop, None, settings.image_preset)  # with memory
    state = {n.replace(".base_layer.", "."): t for n, t in policy.model.state_dict().items() if ".lora_" not in n}
    with mode():
        state |= dead_tensors(None, net, state)
        state = {name: tensor.to(torch.bfloat16) for name, tensor in state.items()}
    shards = _shards(state, shard_bytes)
    generator = torch.Generator().manual_seed(0)
    where: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        drawn = {n: torch.randn(t.shape, generator=generator, dtype=torch.bfloat16) * 0.02 for n, t in shard.items()}
        save_file(drawn, str(folder / name), metadata={"format": "pt"})
        where |= dict.fromkeys(shard, name)
    total = sum(tensor.nbytes for tensor in state.values())
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": where})
    write_layout(replace(policy.parts, pixels=pixels), None, folder, torch.bfloat16)
    return {"files": len(shards), "bytes": total, "seconds": round(time.perf_counter() - began, 1)}


def keep(name: str, row: Mapping[str, Any], within: str | None = None) -> None:
    """Adds a row to the results, or replaces it; others stay, those that another process wrote meanwhile too."""
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    (results if within is None else results.setdefault(within, {}))[name] = row
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(json.dumps({name: row}, indent=2), flush=True)


def table(results: Mapping[str, Any]) -> list[str]:
    """Rows of Markdown: what was said, what was taken, GB, and how far the first is off."""
    named = [(f"small: {name}", row) for name, row in results["small"].items()]
    named += [(name, row) for name, row in results.items() if "predicted" in row]
    rows = ["| run | said, GB | taken, GB | off | fullest | weights there after |", "|---|---|---|---|---|---|"]
    for name, row in named:
        off = f"{100 * row['off']:+.1f} %" + (", **missed**" if abs(row["off"]) >= BAR else "")
        where = row.get("fullest", {}).get("during", "–")
        after = f"{row['seconds_until_weights']:.0f} s" if "seconds_until_weights" in row else "–"
        taken = row.get("peak", row.get("resident"))
        rows.append(f"| {name} | {row['predicted'] / 1e9:.2f} | {taken / 1e9:.2f} | {off} | {where} | {after} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    for flag in ("--small", "--quarter", "--full", "--stopped", "--counted", "--table"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    if given.table:
        print("\n".join(table(json.loads(RESULTS.read_text(encoding="utf-8")))))
    if given.write:
        print(json.dumps(write_folder(given.write)))
    if given.small or not any(vars(given).values()):
        for name, more in SMALL.items():
            keep(name, compare((*FAKE, *more)), within="small")
    if given.quarter:
        keep("true widths, four layers, fp32", compare(QUARTER))
    if given.stopped:
        keep("7.6 B parameters at random, stopped while acting", stopped((*FULL, "actor.model.model_path=null")))
    if given.full:
        keep("7.6 B parameters at random", compare((*FULL, "actor.model.model_path=null")))
    if given.folder:
        found = compare((*FULL, f"actor.model.model_path={given.folder.absolute()}"))
        keep("7.6 B parameters from a folder", found)
    if given.counted:
        for name, more in COUNTED.items():
            if "12gb" in name and find_spec("bitsandbytes") is None:
                print(f"{name}: needs bitsandbytes (pip install 'embodied-rl[quantize]')")
                continue
            keep(name, counted(name, more), within="counted")


if __name__ == "__main__":
    main()
