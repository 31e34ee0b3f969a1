"""A head by soft actor-critic around the quickstart's clone, which stands behind a server; its camera was moved.

    python benchmarks/served_head.py --out /tmp/served            # three seeds, then the report
    python benchmarks/served_head.py --out /tmp/served --report   # the report of what is there

The clone is made as benchmarks/quickstart.py makes it, and served by a process of its own. Each step is a command,
printed before it runs; a complete one is not run again, one that was interrupted goes on. The report is written to
docs/results/served.md, served.png and benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _measure import machine, save
from quickstart import BEGIN, DOCS, OTHER_STARTS, SEEDS, Steps, fill, history, newest, percent, prepare, success

EPISODES = 32  # of an iteration
WRITTEN = BEGIN.replace("quickstart", "served_head")


@contextmanager
def serving(checkpoint: Path, out: Path) -> Iterator[str]:
    """Serves a checkpoint in a process; its address."""
    words = [sys.executable, "-m", "embodied.tools.serve", str(checkpoint), "--port", "0", "--threads", "1"]
    with subprocess.Popen(words, cwd=out, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:
        try:
            assert process.stdout is not None
            ready = next(line for line in process.stdout if line.startswith("ready: "))
            yield ready.removeprefix("ready: ").split(",")[0]
        finally:
            process.terminate()


def learn(steps: Steps, seed: int, url: str) -> None:
    """Trains a head, and evaluates it on starts that nobody has seen."""
    name, base = f"head-{seed}", f"actor.model.base.url={url}"
    steps.run(
        name, "train", "experiment=quickstart_head", base, f"runner.seed={seed}", f"runner.experiment_name={name}"
    )
    steps.run(
        f"{name}-after", "eval", "experiment=quickstart_head", base, f"runner.experiment_name={name}-after",
        f"runner.ckpt_path={newest(steps.out / 'runs' / name).relative_to(steps.out)}",
        "env.eval.episodes_per_task=200", f"env.eval.seed={OTHER_STARTS}",
    )  # fmt: skip


def collect(out: Path) -> dict[str, Any]:
    """What the report shows, of the seeds that are complete."""
    runs = {}
    for seed in (seed for seed in SEEDS if (out / "runs" / f"head-{seed}-after" / "eval").is_dir()):
        rows = history(out, f"head-{seed}")
        greedy = {
            EPISODES * (place + 1): row["eval/success_rate"]
            for place, row in enumerate(rows)
            if "eval/success_rate" in row
        }
        runs[f"seed {seed}"] = {
            "after": success(out, f"head-{seed}-after"), "minutes": round(rows[-1]["minutes"], 1),
            "cpu_minutes": round(rows[-1]["time/run_cpu_s"] / 60, 1), "episodes": EPISODES * len(rows),
            "greedy": greedy, "sampled": [row["rollout/success_rate"] for row in rows],
        }  # fmt: skip
    return {"before": success(out, "before"), "runs": runs}


def table(found: dict[str, Any]) -> str:
    """Markdown: greedy success by episodes, and at the end on other starts."""
    counts = sorted({count for run in found["runs"].values() for count in run["greedy"]})
    lines = [
        f"| episodes | {' | '.join(map(str, counts))} | other 200 starts (95 % interval) | wall clock |",
        "|---" * (len(counts) + 3) + "|",
        f"| clone{' |' * (len(counts) + 1)} {percent(found['before'])} | |",
    ]
    for name, run in found["runs"].items():
        cells = [f"{run['greedy'][count]:.0%}" if count in run["greedy"] else "" for count in counts]
        lines.append(f"| {name} | {' | '.join(cells)} | {percent(run['after'])} | {run['minutes']:.0f} min |")
    return "\n".join(lines)


def draw(found: dict[str, Any], path: Path) -> None:
    """Success against episodes: thick points are greedy evaluations, thin lines sampled episodes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(6, 3.4))
    for color, (name, run) in zip(("C0", "C1", "C2"), found["runs"].items(), strict=False):
        counts = [EPISODES * (place + 1) for place in range(len(run["sampled"]))]
        panel.plot(counts, run["sampled"], color=color, alpha=0.4, linewidth=1)
        greedy = {0: found["before"]["success_rate"], **run["greedy"]}
        panel.plot([*greedy], [*greedy.values()], color=color, marker="o", markersize=4, label=name)
    panel.axhline(0.85, color="grey", linewidth=0.8, linestyle=":")
    panel.set(xlabel="episodes", ylabel="success rate", ylim=(0, 1.02))
    panel.grid(alpha=0.2)
    panel.legend(loc="lower right", frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def report(out: Path) -> None:
    facts = {**machine(["torch", "mani_skill"]), "command": "python benchmarks/served_head.py --out FOLDER"}
    found = collect(out)
    draw(found, DOCS / "served.png")
    fill(DOCS / "served.md", WRITTEN, table(found))
    print(table(found), save("served_head", json.loads(json.dumps({**facts, **found}))), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of data, runs and videos")
    parser.add_argument("--report", action="store_true", help="only write the report")
    args = parser.parse_args()
    steps = Steps(args.out.resolve())
    if not args.report:
        with serving(prepare(steps), steps.out) as url:
            for seed in SEEDS:
                learn(steps, seed, url)
    report(steps.out)


if __name__ == "__main__":
    main()
