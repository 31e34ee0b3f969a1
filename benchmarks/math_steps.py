"""Completion tokens a CPU-second of whole GRPO steps on math problems: ours against TRL's GRPOTrainer.

    python benchmarks/math_steps.py --out /tmp/math --peer-python /path/to/environment/with/trl/bin/python

Both train the same small Llama with a character tokenizer on the same file of problems, with groups of ``--group``
completions, in float32, one thread, one optimizer step a batch. The Llama is made from a fixed seed and cloned for a
short time on chains of 3 to 6 terms; the problems are longer chains. A step is generation, reward and update. A token
counts if the model made it, its completion's end of text included; padding does not count.

| cell | completions end | reward |
|---|---|---|
| ``natural`` | where the model ends them, after ``--most`` tokens at the latest | right or not; groups may be equal |
| ``forced`` | all after ``--forced`` tokens | differs within each group |

| side | what it is |
|---|---|
| ``ours`` | ``python -m embodied.train``, ``--batch`` episodes an iteration, ``--micro-batch`` a pass, one env worker |
| ``TRL`` | TRL with ``--batch`` completions a step, all else its default |
| ``TRL, default batch`` | the same with its default of 8 |

Ours leaves groups of equal rewards out of the update, TRL does not; the result says how many there were.

Each measurement is a process of its own, in turns; the first ``--warm-up`` completions do not count. CPU time is that
of the process and its children. Peak memory is the sum of their peaks, so that memory which they share counts several
times.

This file is not called math.py: as the folder of the benchmarks is searched first, Python would import it as ``math``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from _chains import prepare
from _measure import cpu_seconds, descendants, judge, machine, read_proc, save, spread

BENCHMARKS = Path(__file__).parent
TRL_SCRIPT, REWARDS = BENCHMARKS / "peers" / "trl_grpo.py", BENCHMARKS / "peers" / "trl_rewards.py"
TRL_DEFAULT_BATCH = 8
OURS, TRL, TRL_DEFAULT = "ours", "TRL", "TRL, default batch"
CELLS = ("natural", "forced")
POLL_S = 0.01
NAMES = {"rollout/tokens": "tokens", "rollout/return_mean": "reward", "rollout/zero_advantage_share": "equal"}
"""What our metrics and the lines of TRL's side call the same."""
BARS = {
    f"natural lengths, tokens a CPU-s: {OURS} / {TRL}": (">=", 1.5),
    f"forced lengths, tokens a CPU-s: {OURS} / {TRL}": (">=", 1.1),
    f"natural lengths, peak memory: {OURS} / {TRL}": ("<=", 1.0),
    f"forced lengths, peak memory: {OURS} / {TRL}": ("<=", 1.0),
    f"natural lengths, tokens a CPU-s: {OURS} / {TRL_DEFAULT}": (">=", 4.0),
}


# -- the sides ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One measurement."""

    side: str
    cell: str
    number: int  # of the round; also the seed
    folder: Path  # of what it writes

    def batch(self, args: argparse.Namespace) -> int:
        return TRL_DEFAULT_BATCH if self.side == TRL_DEFAULT else args.batch

    def lengths(self, args: argparse.Namespace) -> tuple[int, int]:
        """Shortest and longest completion, tokens."""
        return (args.forced, args.forced) if self.cell == "forced" else (0, args.most)


@dataclass
class Figures:
    """What the rounds of one side and cell gave."""

    tokens_per_cpu_s: list[float] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)
    peak_mb: list[float] = field(default_factory=list)
    length: list[float] = field(default_factory=list)  # mean of a completion, tokens
    reward: list[float] = field(default_factory=list)  # mean
    equal: list[float] = field(default_factory=list)  # share of groups whose rewards are all equal

    def spreads(self) -> dict[str, dict[str, float]]:
        return {name: spread(values) for name, values in vars(self).items()}


def their_command(job: Job, args: argparse.Namespace, steps: int) -> tuple[list[str], Path]:
    """The command, and the file that gets a line a step."""
    least, most = job.lengths(args)
    lines = job.folder / "steps.jsonl"
    given = {
        "model": args.out / "model", "problems": args.out / "problems.jsonl", "out": lines, "batch": job.batch(args),
        "group": args.group, "steps": steps, "least": least, "most": most, "seed": job.number,
        "reward": "varied" if job.cell == "forced" else "right_result",
    }  # fmt: skip
    return [args.peer_python, str(TRL_SCRIPT), *(f"--{name}={value}" for name, value in given.items())], lines


def our_command(job: Job, args: argparse.Namespace, steps: int) -> tuple[list[str], Path]:
    """The command, and the file that gets a line a step."""
    least, most = job.lengths(args)
    problems, prompt = args.out / "problems.jsonl", 4 * args.terms[1]
    verifier = (
        f"{{name: custom, path: {REWARDS}, function: varied}}" if job.cell == "forced" else "{name: integer_after}"
    )
    sides = [
        f"env.{side}.{key}"
        for side in ("train", "eval")
        for key in (
            f"data={problems}", f"verifier=[{verifier}]", "reward_mode=dense", f"max_prompt_bytes={prompt}",
            f"max_response_bytes={4 * most}", f"total_num_envs={args.batch}",
        )
    ]  # fmt: skip
    return [
        sys.executable, "-m", "embodied.train", "experiment=null", "env=math", "model=causal_lm", "algorithm=grpo",
        "tracker=jsonl", "runner.task_type=math", "runner.device=cpu", f"runner.output_dir={job.folder}",
        "runner.experiment_name=run", f"runner.seed={job.number}", f"runner.max_epochs={steps}",
        "runner.val_check_interval=-1", "runner.save_interval=-1", "env.num_workers=1", *sides,
        "env.eval.video_cfg.save_video=false", f"actor.model.model_path={args.out / 'model'}",
        "actor.model.precision=fp32", "actor.model.is_lora=false", "actor.model.gradient_checkpointing=false",
        f"actor.model.max_prompt_tokens={prompt}", f"actor.model.max_new_tokens={most}", "actor.num_threads=1",
        "actor.optim.lr=1e-6", f"actor.global_batch_size={args.batch}",
        f"actor.micro_batch_size={min(args.micro_batch, args.batch)}",
        f"algorithm.group_size={args.group}", "algorithm.loss_agg_func=token-mean",
        f"algorithm.sampling_params.min_new_tokens={least}", *args.override,
    ], job.folder / "run" / "metrics.jsonl"  # fmt: skip


COMMANDS: dict[str, Callable[..., tuple[list[str], Path]]] = {
    OURS: our_command, TRL: their_command, TRL_DEFAULT: their_command
}  # fmt: skip


# -- measuring ---------------------------------------------------------------------------------------------------------


class Watched:
    """A process that adds a line to a file after each step."""

    def __init__(self, command: Sequence[str], lines: Path, log: Path) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        paths = (str(BENCHMARKS.parent), environment.get("PYTHONPATH", ""))
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        self._lines, self._log = lines, log
        with log.open("w", encoding="utf-8") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)

    def at(self, count: int) -> tuple[float, float]:
        """CPU seconds and wall clock when the file has ``count`` lines. An end before that ends the benchmark."""
        while not self._lines.exists() or self._lines.read_bytes().count(b"\n") < count:
            if self._process.poll() is not None:
                raise SystemExit(
                    f"a side ended too early:\n{self._log.read_text(encoding='utf-8')[-2000:]}\nall of it: {self._log}"
                )
            time.sleep(POLL_S)
        return cpu_seconds(descendants(self._process.pid)), time.perf_counter()

    def peak_mb(self) -> float:
        """Sum of the processes' peaks of resident memory."""
        status = [read_proc(Path(f"/proc/{pid}/status")).splitlines() for pid in descendants(self._process.pid)]
        return sum(int(line.split()[1]) for text in status for line in text if line.startswith("VmHWM:")) / 1024

    def rows(self) -> list[dict[str, float]]:
        return [json.loads(line) for line in self._lines.read_text(encoding="utf-8").splitlines()]

    def end(self) -> None:
        """Waits for the end: what a side does after its last step is not part of the measurement."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=60)
        self._process.kill()
        self._process.wait()


def measure(job: Job, args: argparse.Namespace, figures: Figures) -> None:
    """Runs one side of one cell and adds what it gave."""
    batch = job.batch(args)
    first = -(-args.warm_up // batch)
    steps = first + -(-args.completions // batch)
    job.folder.mkdir(parents=True)
    command, lines = COMMANDS[job.side](job, args, steps)
    watched = Watched(command, lines, job.folder / "log.txt")
    try:
        cpu_before, began = watched.at(first)
        cpu_after, ended = watched.at(steps)
        figures.peak_mb.append(watched.peak_mb())
    finally:
        watched.end()
    rows = watched.rows()[first:steps]
    tokens, rewards, equal = (
        [row[ours] if ours in row else row[theirs] for row in rows] for ours, theirs in NAMES.items()
    )
    figures.tokens_per_cpu_s.append(sum(tokens) / (cpu_after - cpu_before))
    figures.tokens_per_s.append(sum(tokens) / (ended - began))
    figures.length.append(sum(tokens) / (len(rows) * batch))
    figures.reward.append(sum(rewards) / len(rows))
    figures.equal.append(sum(equal) / len(rows))


def trl_versions(python: str) -> dict[str, str]:
    """Versions of what TRL's side runs on; empty if that interpreter has no TRL."""
    names = ("trl", "torch", "transformers", "accelerate", "datasets")
    code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {names}}}))"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, encoding="utf-8")
    return json.loads(found.stdout) if found.returncode == 0 else {}


# -- the result --------------------------------------------------------------------------------------------------------


def values_of(cells: dict[str, dict[str, Figures]]) -> dict[str, float]:
    """The ratios that have a bar: medians over rounds of the ratio within a round."""
    found = {}
    for name in BARS:
        cell, _, rest = name.partition(" lengths, ")
        what, _, pair = rest.partition(": ")
        quantity = "peak_mb" if what == "peak memory" else "tokens_per_cpu_s"
        pairs = [cells[cell][side] for side in pair.split(" / ") if side in cells.get(cell, {})]
        if len(pairs) == 2:
            one, other = (getattr(figures, quantity) for figures in pairs)
            found[name] = median(a / b for a, b in zip(one, other, strict=True))
    return found


def run(args: argparse.Namespace, sides: Sequence[str]) -> dict[str, dict[str, Figures]]:
    """All rounds; the order of the sides turns from round to round."""
    cells = {cell: {side: Figures() for side in sides} for cell in args.cells}
    for number in range(args.rounds):
        for cell in args.cells:
            for side in sides if number % 2 == 0 else reversed(sides):
                job = Job(side, cell, number, args.out / "runs" / f"{number}-{cell}-{sides.index(side)}")
                figures = cells[cell][side]
                measure(job, args, figures)
                print(
                    f"round {number}  {cell:8s} {side:18s} {figures.tokens_per_cpu_s[-1]:8.0f} tokens a CPU-s  "
                    f"{figures.peak_mb[-1]:6.0f} MB  {figures.length[-1]:5.1f} tokens a completion  "
                    f"reward {figures.reward[-1]:.2f}  equal groups {figures.equal[-1]:.2f}",
                    flush=True,
                )
    return cells


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of model, problems and runs")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has TRL")
    parser.add_argument("--cells", nargs="*", choices=CELLS, default=list(CELLS))
    parser.add_argument("--sides", nargs="*", choices=list(COMMANDS), default=list(COMMANDS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=256, help="completions of a step")
    parser.add_argument("--micro-batch", type=int, default=64, help="ours: completions of a pass of the update")
    parser.add_argument("--group", type=int, default=8, help="completions of a problem")
    parser.add_argument("--warm-up", type=int, default=512, help="completions before the measurement")
    parser.add_argument("--completions", type=int, default=2560, help="completions of a measurement")
    parser.add_argument("--most", type=int, default=32, help="natural: longest completion, tokens")
    parser.add_argument("--forced", type=int, default=24, help="forced: length of each completion, tokens")
    parser.add_argument("--terms", type=int, nargs=2, default=[7, 7], help="fewest and most terms of a problem")
    parser.add_argument("--problems", type=int, default=4096)
    parser.add_argument("--clone-steps", type=int, default=800)
    parser.add_argument("--clone-batch", type=int, default=128)
    parser.add_argument("--override", nargs="*", default=[], help="more keys of our side, e.g. rollout.policy_batch=64")
    args = parser.parse_args(given)
    args.out = args.out.resolve()
    return args


def main(given: Sequence[str] | None = None) -> None:
    args = arguments(given)
    if (args.out / "runs").exists():
        raise SystemExit(f"{args.out / 'runs'} is there already: give another --out, or remove it")
    versions = trl_versions(args.peer_python)
    if not versions:
        print(f"  without TRL: {args.peer_python} has none (pip install trl, and --peer-python)")
    facts = {**machine(["torch", "transformers"]), "peer_versions": versions}
    prepare(args.out, args.terms, args.problems, args.clone_steps, args.clone_batch)
    cells = run(args, [side for side in args.sides if side == OURS or versions])
    values = values_of(cells)
    result = {
        "machine": facts,
        "settings": {name: value for name, value in vars(args).items() if name not in ("out", "peer_python")},
        "cells": {cell: {side: one.spreads() for side, one in sides.items()} for cell, sides in cells.items()},
        "ratios": values,
        "kept": judge(values, BARS),
    }  # fmt: skip
    print("wrote", save("math", result))


if __name__ == "__main__":
    main()
