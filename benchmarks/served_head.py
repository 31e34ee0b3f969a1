"""Heads by soft actor-critic around served clones, and GRPO on the weights of the same.

    python benchmarks/served_head.py --out /tmp/served               # three seeds of each, then the report
    python benchmarks/served_head.py --out /tmp/served --part grpo   # one of them alone
    python benchmarks/served_head.py --out /tmp/served --report      # the report of what is there

``head`` changes the actions of the quickstart's clone after its camera was moved, whose weights ``grpo`` trains;
``noise`` chooses the noise of a flow policy. ``libero`` and ``libero_grpo`` begin with the policy of LIBERO that comes
with the package. The other clones are made by the commands of docs/results/. What a head stands on is served by a
process of its own. Each step is a command, printed before it runs; a complete one is not run again, one that was
interrupted goes on. The report is written to docs/results/served.md, served.png, served_libero.png and
benchmarks/results/; runs that stand there and not in the folder stay, if they began with an equal clone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Part:
    """A kind of training."""

    experiment: str
    episodes: int  # of an iteration
    clone: str  # name of the evaluation of what it begins with
    color: str
    marker: str
    keys: tuple[str, ...] = ()
    unseen: bool = True  # evaluated on other starts at the end; a task of LIBERO has 50, and those held out are seen


SHIPPED = "package:embodied.models.openvla_oft/policies/libero_object"
TASK = ("env.train.task_ids=[7]", "env.eval.task_ids=[7]", "env.eval.episodes_per_task=20")  # each held-out state once
GREEDY = "algorithm.val_sampling_params.do_sample=false"
SAMPLED = "algorithm.val_sampling_params.temperature=0.5"  # where a policy of LIBERO is best (docs/results/libero.md)
OFTEN = ("runner.max_epochs=24", "runner.save_interval=12")
PARTS = {
    "head": Part("quickstart_head", 32, "before", "C0", "o"),
    "grpo": Part("quickstart_grpo", 128, "before", "C1", "s", (*OFTEN, "runner.val_check_interval=4")),
    "noise": Part("quickstart_flow_head", 32, "flow-before", "C2", "^"),
    "libero": Part("quickstart_libero_head", 32, "libero-before", "C0", "o", unseen=False),
    "libero_grpo": Part(
        "quickstart_libero", 64, "libero-sampled", "C1", "s",
        (*OFTEN, *TASK, SAMPLED, "runner.val_check_interval=2", "runner.val_before_train=false"), unseen=False,
    ),
}  # fmt: skip
"""Those with grpo in their names train the weights, the others a head."""
PICTURES = {"served": ("head", "grpo", "noise"), "served_libero": ("libero", "libero_grpo")}
WRITTEN = {name: BEGIN.replace("quickstart.py", f"served_head.py: {name}") for name in PICTURES}
CLONES = {
    "before": "clone", "flow-before": "flow policy's clone", "libero-before": "policy, greedy",
    "libero-sampled": "policy, sampled",
}  # fmt: skip


@contextmanager
def serving(checkpoint: Path | str, out: Path) -> Iterator[str]:
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


def prepare_libero(steps: Steps) -> str:
    """The policy that comes with the package, evaluated on one task; where it lies."""
    for name, how in (("libero-before", GREEDY), ("libero-sampled", SAMPLED)):
        steps.run(name, "eval", SHIPPED, "experiment=quickstart_libero", f"runner.experiment_name={name}", *TASK, how)
    return SHIPPED


PREPARE = {
    "before": prepare, "flow-before": prepare_flow, "libero-before": prepare_libero, "libero-sampled": prepare_libero,
}  # fmt: skip


def learn(steps: Steps, name: str, seed: int, *keys: str) -> None:
    """Trains a head or the weights, and evaluates them on starts that nobody has seen."""
    part, name = PARTS[name], f"{name}-{seed}"
    keys = (f"experiment={part.experiment}", *part.keys, *keys, "runner.logger.report=false")
    steps.run(name, "train", *keys, f"runner.seed={seed}", f"runner.experiment_name={name}")
    if not part.unseen:
        return
    steps.run(
        f"{name}-after", "eval", f"experiment={part.experiment}", f"runner.experiment_name={name}-after",
        *(key for key in keys if key.startswith("actor.model.base")),
        f"runner.ckpt_path={newest(steps.out / 'runs' / name).relative_to(steps.out)}",
        "env.eval.episodes_per_task=200", f"env.eval.seed={OTHER_STARTS}",
    )  # fmt: skip


def collect(out: Path) -> dict[str, Any]:
    """What the report shows, of the seeds that are complete."""
    runs = {}
    for (part, facts), seed in ((each, seed) for each in PARTS.items() for seed in SEEDS):
        name = f"{part}-{seed}"
        last = f"{name}-after" if facts.unseen else name
        if not (out / f"{last}.json").exists():
            continue
        rows = history(out, name)
        greedy = {
            facts.episodes * (place + 1): row["eval/success_rate"]
            for place, row in enumerate(rows)
            if "eval/success_rate" in row
        }
        runs[f"{part} {seed}"] = {
            "after": success(out, last), "minutes": round(rows[-1]["minutes"], 1),
            "cpu_minutes": round(rows[-1]["time/run_cpu_s"] / 60, 1), "episodes": facts.episodes * len(rows),
            "greedy": greedy, "sampled": [row["rollout/success_rate"] for row in rows],
        }  # fmt: skip
    clones = {name: success(out, name) for name in CLONES if (out / "runs" / name / "eval").is_dir()}
    return {"clones": clones, "runs": runs}


def with_earlier(found: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """Adds the runs of an earlier report that were not made again, if they began with an equal clone."""
    clones = {**earlier["clones"], **found["clones"]}
    kept = {
        name: run for name, run in earlier["runs"].items()
        if earlier["clones"][clone_of(name)] == clones[clone_of(name)]
    }  # fmt: skip
    runs = {**kept, **found["runs"]}
    order = [f"{part} {seed}" for part in PARTS for seed in SEEDS]
    return {"clones": clones, "runs": {name: runs[name] for name in order if name in runs}}


def clone_of(run: str) -> str:
    return PARTS[run.split()[0]].clone


def of_picture(found: dict[str, Any], picture: str) -> dict[str, Any]:
    """The runs that a picture and its table show, by name."""
    return {name: run for name, run in found["runs"].items() if name.split()[0] in PICTURES[picture]}


def table(found: dict[str, Any], picture: str) -> str:
    """Markdown: greedy success by episodes, and at the end on other starts."""
    runs = of_picture(found, picture)
    counts = sorted({int(count) for run in runs.values() for count in run["greedy"]})
    last = "other 200 starts" if picture == "served" else "at the end"
    lines = [
        f"| episodes | {' | '.join(map(str, counts))} | {last} (95 % interval) | wall clock |",
        "|---" * (len(counts) + 3) + "|",
    ]
    told = set[str]()
    for name, run in runs.items():
        if (clone := clone_of(name)) not in told:
            told.add(clone)
            lines.append(f"| {CLONES[clone]}{' |' * (len(counts) + 1)} {percent(found['clones'][clone])} | |")
        greedy = {int(count): rate for count, rate in run["greedy"].items()}  # JSON's keys are text
        cells = [f"{greedy[count]:.0%}" if count in greedy else "" for count in counts]
        lines.append(f"| {name} | {' | '.join(cells)} | {percent(run['after'])} | {run['minutes']:.0f} min |")
    return "\n".join(lines)


def draw(found: dict[str, Any], picture: str) -> None:
    """Success against episodes: thick points are greedy evaluations, thin lines sampled episodes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(7, 3.4))
    for name, run in of_picture(found, picture).items():
        part, seed = name.split()
        facts, before = PARTS[part], found["clones"][clone_of(name)]["success_rate"]
        if any(run["sampled"]):  # episodes that end before they can succeed say nothing
            counts = [facts.episodes * (place + 1) for place in range(len(run["sampled"]))]
            panel.plot(counts, run["sampled"], color=facts.color, alpha=0.15, linewidth=1)
        greedy = {0: before, **{int(count): rate for count, rate in run["greedy"].items()}}
        label = part if seed == str(SEEDS[0]) else None
        panel.plot(
            [*greedy], [*greedy.values()], color=facts.color, marker=facts.marker, markersize=4, label=label
        )  # fmt: skip
    panel.axhline(0.85, color="grey", linewidth=0.8, linestyle=":")
    panel.set(xlabel="episodes", ylabel="success rate", ylim=(0, 1.02))
    panel.grid(alpha=0.2)
    panel.legend(loc="lower right", frameon=False, ncols=3)
    figure.tight_layout()
    figure.savefig(DOCS / f"{picture}.png", dpi=110)


def report(out: Path) -> None:
    facts = {**machine(["torch", "mani_skill"]), "command": "python benchmarks/served_head.py --out FOLDER"}
    kept = Path(__file__).with_name("results") / "served_head.json"
    found = with_earlier(collect(out), json.loads(kept.read_text(encoding="utf-8")))
    for picture in PICTURES:
        draw(found, picture)
        fill(DOCS / "served.md", WRITTEN[picture], table(found, picture))
        print(table(found, picture))
    print(save("served_head", json.loads(json.dumps({**facts, **found}))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of data, runs and videos")
    parser.add_argument("--part", choices=PARTS, help="this part alone")
    parser.add_argument("--report", action="store_true", help="only write the report")
    args = parser.parse_args()
    steps = Steps(args.out.resolve())
    parts = () if args.report else (args.part,) if args.part else PARTS
    for part in parts:
        clone = PREPARE[PARTS[part].clone](steps)
        if part.endswith("grpo"):
            begins = "actor.model.model_path" if clone == SHIPPED else "runner.ckpt_path"
            for seed in SEEDS:
                learn(steps, part, seed, f"{begins}={clone}")
            continue
        with serving(clone, steps.out) as url:
            for seed in SEEDS:
                learn(steps, part, seed, f"actor.model.base.url={url}")
    report(steps.out)


if __name__ == "__main__":
    main()
