"""Heads by soft actor-critic around served clones, and GRPO on the weights of one, after their cameras were moved.

    python benchmarks/served_head.py --out /tmp/served               # three seeds of each, then the report
    python benchmarks/served_head.py --out /tmp/served --part grpo   # one of them alone
    python benchmarks/served_head.py --out /tmp/served --report      # the report of what is there

``head`` changes the actions of the quickstart's clone, whose weights ``grpo`` trains; ``noise`` chooses the noise of a
flow policy. Clones are made by the commands of docs/results/, and served by a process of their own. Each step is a
command, printed before it runs; a complete one is not run again, one that was interrupted goes on. The report is
written to docs/results/served.md, served.png and benchmarks/results/; runs that stand there and not in the folder stay,
if they began with an equal clone.
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
from quickstart import (
    BEGIN,
    DOCS,
    OTHER_STARTS,
    SEEDS,
    Steps,
    demonstrate,
    fill,
    history,
    newest,
    percent,
    prepare,
    success,
)  # fmt: skip

EPISODES = {"head": 32, "grpo": 128, "noise": 32}  # of an iteration
EXPERIMENTS = {"head": "quickstart_head", "grpo": "quickstart_grpo", "noise": "quickstart_flow_head"}
BEFORE = {"head": "before", "grpo": "before", "noise": "flow-before"}  # evaluation of the clone
COLORS, MARKERS = {"head": "C0", "grpo": "C1", "noise": "C2"}, {"head": "o", "grpo": "s", "noise": "^"}
ITERATIONS = 24  # of GRPO: three times the episodes after which the heads are compared with it
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


def prepare_flow(steps: Steps) -> Path:
    """The flow policy's clone, evaluated after the camera moved; its checkpoint."""
    name = "quickstart-flow-sft"
    demonstrate(steps)
    steps.run(name, "sft", "experiment=quickstart_flow_sft", "runner.logger.report=false")
    checkpoint = newest(steps.out / "runs" / name).relative_to(steps.out)
    steps.evaluate("flow-before", "quickstart_flow_grpo", checkpoint)
    return checkpoint


def learn(steps: Steps, part: str, seed: int, *keys: str) -> None:
    """Trains a head or the weights, and evaluates them on starts that nobody has seen."""
    name, experiment = f"{part}-{seed}", f"experiment={EXPERIMENTS[part]}"
    steps.run(name, "train", experiment, f"runner.seed={seed}", f"runner.experiment_name={name}", *keys)
    steps.run(
        f"{name}-after", "eval", experiment, f"runner.experiment_name={name}-after",
        *(key for key in keys if key.startswith("actor.model.base")),
        f"runner.ckpt_path={newest(steps.out / 'runs' / name).relative_to(steps.out)}",
        "env.eval.episodes_per_task=200", f"env.eval.seed={OTHER_STARTS}",
    )  # fmt: skip


def collect(out: Path) -> dict[str, Any]:
    """What the report shows, of the seeds that are complete."""
    runs = {}
    for part, seed in ((part, seed) for part in EPISODES for seed in SEEDS):
        name = f"{part}-{seed}"
        if not (out / "runs" / f"{name}-after" / "eval").is_dir():
            continue
        rows = history(out, name)
        greedy = {
            EPISODES[part] * (place + 1): row["eval/success_rate"]
            for place, row in enumerate(rows)
            if "eval/success_rate" in row
        }
        runs[f"{part} {seed}"] = {
            "after": success(out, f"{name}-after"), "minutes": round(rows[-1]["minutes"], 1),
            "cpu_minutes": round(rows[-1]["time/run_cpu_s"] / 60, 1), "episodes": EPISODES[part] * len(rows),
            "greedy": greedy, "sampled": [row["rollout/success_rate"] for row in rows],
        }  # fmt: skip
    clones = {name: success(out, name) for name in set(BEFORE.values()) if (out / "runs" / name / "eval").is_dir()}
    return {"clones": clones, "runs": runs}


def with_earlier(found: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """Adds the runs of an earlier report that were not made again, if they began with an equal clone."""
    clones = {**earlier["clones"], **found["clones"]}
    kept = {
        name: run for name, run in earlier["runs"].items()
        if earlier["clones"][BEFORE[name.split()[0]]] == clones[BEFORE[name.split()[0]]]
    }  # fmt: skip
    runs = {**kept, **found["runs"]}
    order = [f"{part} {seed}" for part in EPISODES for seed in SEEDS]
    return {"clones": clones, "runs": {name: runs[name] for name in order if name in runs}}


def table(found: dict[str, Any]) -> str:
    """Markdown: greedy success by episodes, and at the end on other starts."""
    counts = sorted({int(count) for run in found["runs"].values() for count in run["greedy"]})
    lines = [
        f"| episodes | {' | '.join(map(str, counts))} | other 200 starts (95 % interval) | wall clock |",
        "|---" * (len(counts) + 3) + "|",
    ]
    told = set[str]()
    for name, run in found["runs"].items():
        if (clone := BEFORE[name.split()[0]]) not in told:
            told.add(clone)
            what = "clone" if clone == "before" else "flow policy's clone"
            lines.append(f"| {what}{' |' * (len(counts) + 1)} {percent(found['clones'][clone])} | |")
        greedy = {int(count): rate for count, rate in run["greedy"].items()}  # JSON's keys are text
        cells = [f"{greedy[count]:.0%}" if count in greedy else "" for count in counts]
        lines.append(f"| {name} | {' | '.join(cells)} | {percent(run['after'])} | {run['minutes']:.0f} min |")
    return "\n".join(lines)


def draw(found: dict[str, Any], path: Path) -> None:
    """Success against episodes: thick points are greedy evaluations, thin lines sampled episodes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(7, 3.4))
    for name, run in found["runs"].items():
        part, seed = name.split()
        color, before = COLORS[part], found["clones"][BEFORE[part]]["success_rate"]
        counts = [EPISODES[part] * (place + 1) for place in range(len(run["sampled"]))]
        panel.plot(counts, run["sampled"], color=color, alpha=0.15, linewidth=1)
        greedy = {0: before, **{int(count): rate for count, rate in run["greedy"].items()}}
        label = part if seed == str(SEEDS[0]) else None
        panel.plot([*greedy], [*greedy.values()], color=color, marker=MARKERS[part], markersize=4, label=label)
    panel.axhline(0.85, color="grey", linewidth=0.8, linestyle=":")
    panel.set(xlabel="episodes", ylabel="success rate", ylim=(0, 1.02))
    panel.grid(alpha=0.2)
    panel.legend(loc="lower right", frameon=False, ncols=3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def report(out: Path) -> None:
    facts = {**machine(["torch", "mani_skill"]), "command": "python benchmarks/served_head.py --out FOLDER"}
    kept = Path(__file__).with_name("results") / "served_head.json"
    found = with_earlier(collect(out), json.loads(kept.read_text(encoding="utf-8")))
    draw(found, DOCS / "served.png")
    fill(DOCS / "served.md", WRITTEN, table(found))
    print(table(found), save("served_head", json.loads(json.dumps({**facts, **found}))), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of data, runs and videos")
    parser.add_argument("--part", choices=EPISODES, help="this part alone")
    parser.add_argument("--report", action="store_true", help="only write the report")
    args = parser.parse_args()
    steps = Steps(args.out.resolve())
    parts = () if args.report else (args.part,) if args.part else EPISODES
    for part in parts:
        clone = prepare(steps) if part != "noise" else prepare_flow(steps)
        if part == "grpo":
            for seed in SEEDS:
                learn(
                    steps, part, seed, f"runner.ckpt_path={clone}", f"runner.max_epochs={ITERATIONS}",
                    "runner.save_interval=12", "runner.val_check_interval=4", "runner.logger.report=false",
                )  # fmt: skip
            continue
        with serving(clone, steps.out) as url:
            for seed in SEEDS:
                learn(steps, part, seed, f"actor.model.base.url={url}")
    report(steps.out)


if __name__ == "__main__":
    main()
