"""Episodes until success: a baseline that remembers starts against groups, where starts come again.

    python benchmarks/start_value_texts.py --out /tmp/sorter             # three seeds of each, then the report
    python benchmarks/start_value_texts.py --out /tmp/sorter --report    # the report of what is there

The task is that of docs/how_to/your_problems.md: a small language model sorts three digits, 900 problems to learn
from, 100 others to be judged by, greedily, every 5 of 120 iterations. Each iteration has 256 answers: 8 of each of 32
problems with ``grpo`` and ``sv8``, one of each of 256 with ``sv1``; the latter two are ``start_value``. All other keys
are equal. The report goes to benchmarks/results/start_value_texts.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _measure import machine, save
from quickstart import Steps, history

PAGE = Path(__file__).parents[1] / "docs" / "how_to" / "your_problems.md"
FILES = ("make_problems.py", "rewards.py", "my/experiment/problems.yaml")
LEVELS, LASTING = (0.7, 0.85), 30  # success; the last iterations whose evaluations are averaged
SEEDS = (1, 2, 3)
KINDS = {
    "grpo": (),
    "sv8": ("algorithm.adv_type=start_value",),
    "sv1": ("algorithm.adv_type=start_value", "algorithm.group_size=1"),
}
COMMON = ("--config-dir", "my", "experiment=problems")
SHOWN = (
    "data=train.jsonl", "runner.experiment_name=shown", "runner.max_epochs=1", "sft.steps_per_iteration=30",
    "actor.global_batch_size=64", "actor.micro_batch_size=64", "actor.optim.lr=1e-3",
)  # fmt: skip
TRAINED = (
    "runner.ckpt_path=runs/shown/checkpoints/000001", "runner.max_epochs=120", "runner.val_check_interval=5",
    "runner.val_before_train=true", "runner.save_interval=-1",
)  # fmt: skip


def block(name: str) -> str:
    """Returns the block of the page that is the file ``name``."""
    return (
        PAGE.read_text(encoding="utf-8")
        .partition(f"`{name}`:")[2]
        .partition("```")[2]
        .split("\n", 1)[1]
        .partition("```")[0]
    )


def prepare(steps: Steps) -> None:
    """Writes the page's files and shows the model some answers."""
    for name in FILES:
        path = steps.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block(name), encoding="utf-8")
    subprocess.run([sys.executable, FILES[0]], cwd=steps.out, check=True)
    steps.run("shown", "sft", *COMMON, *SHOWN)


def course(out: Path, name: str) -> dict[str, Any]:
    """Returns the evaluations of a run, and the training episodes before the first that reached each level."""
    rows = history(out, name)
    rates = {row["step"]: row["eval/success_rate"] for row in rows if "eval/success_rate" in row}
    each = next(row["rollout/episodes"] for row in rows if "rollout/episodes" in row)
    reached = {level: next((step * each for step, rate in rates.items() if rate >= level), None) for level in LEVELS}
    late = [rate for step, rate in rates.items() if step > max(rates) - LASTING]
    return {
        "evaluations": {step: round(rate, 3) for step, rate in rates.items()},
        "episodes_to": {f"{level:.0%}": episodes for level, episodes in reached.items()},
        "last": round(sum(late) / len(late), 4),
    }


def train(steps: Steps, keys_of: Callable[[str], Sequence[str]]) -> None:
    """Makes a training of each kind with each seed."""
    for seed in SEEDS:
        for kind in KINDS:
            name = f"{kind}-{seed}"
            steps.run(name, "train", *keys_of(kind), f"runner.experiment_name={name}", f"runner.seed={seed}")


def report(out: Path) -> dict[str, Any]:
    """Returns the courses of all runs that are there, by kind and seed."""
    runs = {kind: {seed: course(out, f"{kind}-{seed}") for seed in SEEDS if (out / "runs" / f"{kind}-{seed}").exists()}
            for kind in KINDS}  # fmt: skip
    for kind, found in runs.items():
        for seed, run in found.items():
            print(f"{kind:5} seed {seed}: {json.dumps(run['episodes_to'])}, last iterations {run['last']}")
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--report", action="store_true", help="only write the report")
    args = parser.parse_args()
    steps = Steps(args.out.resolve())
    if not args.report:
        prepare(steps)
        train(steps, lambda kind: (*COMMON, *TRAINED, *KINDS[kind]))
    facts = {**machine(["torch", "numpy"]), "command": "python benchmarks/start_value_texts.py"}
    print(save("start_value_texts", {"machine": facts, "runs": report(steps.out)}))


if __name__ == "__main__":
    main()
