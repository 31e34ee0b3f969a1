"""The proof that a language model learns: cloned from short chains, then reinforced on longer ones, three seeds.

    python benchmarks/math_quickstart.py --out /tmp/math            # everything, then the report
    python benchmarks/math_quickstart.py --out /tmp/math --report   # the report of what is there

Each step is a command of docs/text.md in a process of its own; one that is complete is not run again. The report is
written to docs/results/ (curve, and the table in math.md) and benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from _measure import machine, save
from quickstart import DOCS, Steps, history, newest

BEGIN, END = "<!-- written by benchmarks/math_quickstart.py -->", "<!-- end -->"
SEEDS = (1, 2, 3)
OTHER_PROBLEMS = 1  # their seed: the settings were chosen by looking at those of seed 0
PROBLEMS = 1000


def name_of(seed: int) -> str:
    return f"math-quickstart-{seed}"


def learn(steps: Steps, seed: int) -> None:
    """A training with the supervised run before it, and evaluations of both on other problems."""
    name = name_of(seed)
    steps.run(
        name, "train", "experiment=math_quickstart", f"runner.experiment_name={name}", f"runner.seed={seed}"
    )  # fmt: skip
    run = steps.out / "runs" / name
    for when, folder in (("before", run / "first"), ("after", run)):
        for how in ("greedy", "sampled"):
            steps.run(
                f"{name}-{when}-{how}", "eval", "experiment=math_quickstart", "runner.first=[]",
                f"runner.experiment_name={name}-{when}-{how}", f"runner.ckpt_path={newest(folder)}",
                f"env.eval.data_args.seed={OTHER_PROBLEMS}", f"env.eval.episodes_per_task={PROBLEMS}",
                f"algorithm.val_sampling_params.do_sample={str(how == 'sampled').lower()}",
            )  # fmt: skip


def accuracy(out: Path, name: str) -> dict[str, Any]:
    """Right answers, problems, share, low, high of an evaluation."""
    found = json.loads(max((out / "runs" / name / "eval").glob("*.json")).read_text())["tasks"][-1]
    return {key: found[key] for key in ("successes", "episodes", "success_rate", "low", "high")}


def collect(out: Path) -> dict[str, Any]:
    runs = {}
    for seed in SEEDS:
        name = name_of(seed)
        if not (out / f"{name}-after-sampled.json").exists():
            continue
        kept = ("step", "minutes", "rollout/success_rate", "eval/success_rate")
        runs[f"seed {seed}"] = {
            "wall_s": json.loads((out / f"{name}.json").read_text())["wall_s"],
            "evaluations": {
                f"{when} {how}": accuracy(out, f"{name}-{when}-{how}")
                for when in ("before", "after")
                for how in ("greedy", "sampled")
            },
            "iterations": [{key: row[key] for key in kept if key in row} for row in history(out, name)],
        }
    return {"runs": runs}


def table(result: dict[str, Any]) -> str:
    heads = ("before greedy", "after greedy", "before sampled", "after sampled")
    lines = [f"| run | {' | '.join(heads)} | cloning and training |", f"|{'---|' * (len(heads) + 2)}"]
    for name, run in result["runs"].items():
        cells = [_cell(run["evaluations"][head]) for head in heads]
        lines.append(f"| {name} | {' | '.join(cells)} | {run['wall_s'] / 60:.1f} min |")
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    return f"{row['success_rate']:.1%} ({row['low']:.1%} to {row['high']:.1%})"


def draw(result: dict[str, Any], path: Path) -> None:
    """Accuracy of sampled answers in training and of greedy ones in evaluations against iterations."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(6, 3.6))
    for number, (name, run) in enumerate(result["runs"].items()):
        rows, color = run["iterations"], f"C{number}"
        trained = [(row["step"], row["rollout/success_rate"]) for row in rows if "rollout/success_rate" in row]
        greedy = [(row["step"], row["eval/success_rate"]) for row in rows if "eval/success_rate" in row]
        panel.plot(*zip(*trained, strict=True), color=color, alpha=0.35, linewidth=1)
        panel.plot(*zip(*greedy, strict=True), color=color, marker="o", markersize=4, label=name)
    panel.set(xlabel="iterations of GRPO", ylabel="right answers", ylim=(0, None))
    panel.grid(alpha=0.2)
    panel.legend(loc="lower right", frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def report(out: Path) -> None:
    command = "python benchmarks/math_quickstart.py --out FOLDER"
    result = {**machine(["torch", "transformers", "numpy"]), "command": command, **collect(out)}
    draw(result, DOCS / "math.png")
    page = DOCS / "math.md"
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{table(result)}\n\n{END}{rest.partition(END)[2]}")
    print(save("math_quickstart", result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--report", action="store_true", help="only write the report")
    args = parser.parse_args()
    steps = Steps(args.out.resolve())
    for seed in SEEDS if not args.report else ():
        learn(steps, seed)
    report(steps.out)


if __name__ == "__main__":
    main()
