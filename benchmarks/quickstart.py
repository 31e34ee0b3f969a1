"""The proof that a run learns: a cloned policy, a camera that was moved, then GRPO and PPO with three seeds each.

    python benchmarks/quickstart.py --out /tmp/quickstart            # everything, then the report
    python benchmarks/quickstart.py --out /tmp/quickstart --report   # the report of what is there

Each step is a command of docs/results/quickstart.md, printed before it runs, in a process of its own; a step that is
complete is not run again, one that was interrupted goes on. Trainings run one after the other, each with all cores. The
report is written to docs/results/ (curves, pictures of episodes, tables in quickstart.md) and benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _measure import machine, save

DOCS = Path(__file__).parents[1] / "docs" / "results"
BEGIN, END = "<!-- written by benchmarks/quickstart.py -->", "<!-- end -->"
ALGORITHMS = ("grpo", "ppo")
SEEDS = (1, 2, 3)
EPISODES = 200  # of the evaluations before and after
OTHER_STARTS = 10_000  # env.eval.seed of these: the settings were chosen by looking at the starts from 0 on
SHOWN = 8  # starts that are recorded before and after, for the pictures of episodes
ENV = "quickstart_pullcube"
DEMONSTRATIONS = 1500
CLONED = "quickstart-sft"


class Steps:
    """Runs commands in a folder and remembers how long each took."""

    def __init__(self, out: Path) -> None:
        self.out = out
        out.mkdir(parents=True, exist_ok=True)

    def run(self, name: str, module: str, *arguments: str) -> float:
        """Seconds of wall clock, now or when it was run; an error ends everything."""
        done = self.out / f"{name}.json"
        if done.exists():
            return float(json.loads(done.read_text(encoding="utf-8"))["wall_s"])
        command = [sys.executable, "-m", f"embodied.{module}", *arguments]
        print("$ python " + " ".join(command[1:]), flush=True)
        begun, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        with (self.out / f"{name}.log").open("w", encoding="utf-8") as log:
            status = subprocess.run(command, cwd=self.out, stdout=log, stderr=subprocess.STDOUT).returncode
        if status:
            raise SystemExit(f"{name} ended with status {status}: {self.out / name}.log")
        wall, now = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime  # of one run at a time
        facts = {"command": command[1:], "wall_s": wall, "cpu_s": cpu, "load": os.getloadavg()[1]}
        done.write_text(json.dumps(facts) + "\n", encoding="utf-8")
        return wall

    def evaluate(self, name: str, experiment: str, checkpoint: Path, episodes: int = EPISODES) -> None:
        self.run(
            name, "eval", f"experiment={experiment}", f"runner.experiment_name={name}",
            f"runner.ckpt_path={checkpoint}", f"env.eval.episodes_per_task={episodes}",
            f"env.eval.seed={OTHER_STARTS}", f"env.eval.video_cfg.max_videos={SHOWN}",
        )  # fmt: skip


def newest(run: Path) -> Path:
    return max((run / "checkpoints").iterdir())


def demonstrate(steps: Steps) -> None:
    """Demonstrations of the expert, the camera where it was."""
    steps.run("demos", "tools.demos", f"env={ENV}", f"episodes={DEMONSTRATIONS}", "noise_std=0.2")


def prepare(steps: Steps) -> Path:
    """Demonstrations and the cloned policy, evaluated before and after the camera moves; its checkpoint."""
    demonstrate(steps)
    steps.run(CLONED, "sft", "experiment=quickstart_sft", f"runner.experiment_name={CLONED}")
    checkpoint = newest(steps.out / "runs" / CLONED).relative_to(steps.out)
    steps.evaluate("unmoved", "quickstart_sft", checkpoint)
    steps.evaluate("before", "quickstart_grpo", checkpoint)
    return checkpoint


def learn(steps: Steps, algorithm: str, seed: int, checkpoint: Path) -> None:
    name = f"quickstart-{algorithm}-{seed}"
    steps.run(
        name, "train", f"experiment=quickstart_{algorithm}", f"runner.experiment_name={name}", f"runner.seed={seed}",
        f"runner.ckpt_path={checkpoint}",
    )  # fmt: skip
    steps.evaluate(f"{name}-after", f"quickstart_{algorithm}", newest(steps.out / "runs" / name).relative_to(steps.out))


# -- the report ------------------------------------------------------------------------------------------------------


def evaluation(out: Path, name: str) -> dict[str, Any]:
    """A run's last."""
    return json.loads(max((out / "runs" / name / "eval").glob("*.json")).read_text(encoding="utf-8"))


def success(out: Path, name: str) -> dict[str, Any]:
    """Successes, episodes, rate, low, high of a run's last evaluation."""
    row = evaluation(out, name)["tasks"][-1]
    return {key: row[key] for key in ("successes", "episodes", "success_rate", "low", "high")}


def fill(page: Path, begin: str, text: str) -> None:
    """Writes what stands between ``begin`` and ``END`` of a page anew."""
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def history(out: Path, name: str) -> list[dict[str, float]]:
    """Metrics of each iteration, and the minutes since the run began."""
    rows = [
        json.loads(line) for line in (out / "runs" / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    minutes = 0.0
    for row in rows:
        minutes += row.get("time/iteration_s", 0.0) / 60
        row["minutes"] = minutes
    return rows


def complete(out: Path, algorithm: str) -> list[str]:
    """The runs of an algorithm that are complete and evaluated."""
    names = [f"quickstart-{algorithm}-{seed}" for seed in SEEDS]
    return [name for name in names if (out / f"{name}-after.json").exists()]


def collect(out: Path) -> dict[str, Any]:
    """What the report shows, of the runs that are complete."""
    runs = {}
    for name in [name for algorithm in ALGORITHMS for name in complete(out, algorithm)]:
        runs[name.removeprefix("quickstart-").replace("-", " ")] = {
            "after": success(out, f"{name}-after"),
            **{key: json.loads((out / f"{name}.json").read_text(encoding="utf-8"))[key] for key in ("wall_s", "load")},
            "iterations": [_short(row) for row in history(out, name)],
        }
    prepared = {
        name: json.loads((out / f"{name}.json").read_text(encoding="utf-8"))["wall_s"] for name in ("demos", CLONED)
    }
    evaluated = {name: success(out, name) for name in ("unmoved", "before")}
    return {"prepared_s": prepared, **evaluated, "runs": runs}


def _short(row: dict[str, float]) -> dict[str, float]:
    kept = (
        "minutes", "rollout/success_rate", "eval/success_rate", "rollout/episode_length_mean", "train/approx_kl",
        "train/entropy", "rollout/env_steps_per_s", "time/rollout_s", "time/train_s",
    )  # fmt: skip
    return {key: round(row[key], 4) for key in kept if key in row}


def percent(row: dict[str, Any]) -> str:
    return f"{row['successes']}/{row['episodes']} = {row['success_rate']:.0%} ({row['low']:.0%} to {row['high']:.0%})"


def tables(result: dict[str, Any]) -> str:
    """Markdown: success before and after, then each iteration's success in training."""
    lines = [
        "| run | greedy success on other starts (95 % interval) | wall clock | iterations |",
        "|---|---|---|---|",
        f"| cloned, camera as in the demonstrations | {percent(result['unmoved'])} | | |",
        f"| cloned, camera moved | {percent(result['before'])} | | |",
    ]
    for name, run in result["runs"].items():
        minutes, count = run["wall_s"] / 60, len(run["iterations"])
        lines.append(f"| {name} | {percent(run['after'])} | {minutes:.1f} min | {count} |")
    lines += [
        "",
        "Success of an iteration's sampled episodes, %; in brackets: greedy, on the run's own 100 evaluation starts.",
        "",
    ]
    lines += ["| iteration | " + " | ".join(result["runs"]) + " |", "|---" * (len(result["runs"]) + 1) + "|"]
    longest = max((len(run["iterations"]) for run in result["runs"].values()), default=0)
    for index in range(longest):
        cells = [_cell(run["iterations"], index) for run in result["runs"].values()]
        lines.append(f"| {index + 1} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(iterations: Sequence[dict[str, float]], index: int) -> str:
    if index >= len(iterations):
        return ""
    row = iterations[index]
    greedy = f" ({100 * row['eval/success_rate']:.0f})" if "eval/success_rate" in row else ""
    return f"{100 * row['rollout/success_rate']:.0f}{greedy}"


def draw(result: dict[str, Any], path: Path) -> None:
    """Success in training and in evaluations against minutes, a panel for each algorithm."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(ALGORITHMS), figsize=(9, 3.4), sharey=True)
    for panel, algorithm in zip(panels, ALGORITHMS, strict=True):
        of_it = {name: run for name, run in result["runs"].items() if name.startswith(algorithm)}
        for color, (name, run) in zip(("C0", "C1", "C2"), of_it.items(), strict=False):
            rows = run["iterations"]
            panel.plot(
                [row["minutes"] for row in rows], [row["rollout/success_rate"] for row in rows],
                color=color, alpha=0.45, linewidth=1,
            )  # fmt: skip
            greedy = [(row["minutes"], row["eval/success_rate"]) for row in rows if "eval/success_rate" in row]
            greedy = [(0.0, result["before"]["success_rate"]), *greedy]
            label = f"seed {name.split()[1]}"
            panel.plot(*zip(*greedy, strict=True), color=color, marker="o", markersize=4, label=label)
        panel.axhline(0.85, color="grey", linewidth=0.8, linestyle=":")
        panel.set(title=algorithm.upper(), xlabel="minutes on two cores", ylim=(0, 1))
        panel.grid(alpha=0.2)
        if of_it:
            panel.legend(loc="lower right", frameon=False)
    panels[0].set_ylabel("success rate")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def record(steps: Steps) -> list[str]:
    """Evaluations of the first starts, all recorded: before, and after the first complete seed of each algorithm."""
    checkpoints = {"before": newest(steps.out / "runs" / CLONED)}
    for names in (complete(steps.out, algorithm) for algorithm in ALGORITHMS):
        checkpoints |= {name: newest(steps.out / "runs" / name) for name in names[:1]}
    for name, checkpoint in checkpoints.items():
        steps.evaluate(f"{name}-shown", "quickstart_grpo", checkpoint.relative_to(steps.out), SHOWN)
    return [f"{name}-shown" for name in checkpoints]


def strips(out: Path, names: Sequence[str], path: Path) -> None:
    """Eight moments of two starts, as each of these recorded them: the first at which the first of them fails and the
    others do not, and the first that all solve."""
    import imageio.v3 as iio
    import numpy as np

    solved = np.array([[episode["success"] for episode in evaluation(out, name)["episodes"]] for name in names])
    regained, kept = ~solved[0] & solved[1:].all(axis=0), solved.all(axis=0)
    rows = []
    for start in (int(found.argmax()) for found in (regained, kept) if found.any()):
        for name in names:
            frames = iio.imread(out / evaluation(out, name)["episodes"][start]["video"])
            picks = np.linspace(0, min(len(frames) - 1, 14), 8).astype(int)
            rows.append(np.concatenate([frames[i] for i in picks], axis=1))
    if rows:
        iio.imwrite(path, np.concatenate(rows)[::2, ::2])


def report(steps: Steps) -> None:
    out = steps.out
    facts = {
        **machine(["torch", "mani_skill", "sapien", "numpy"]),
        "command": "python benchmarks/quickstart.py --out FOLDER",
    }
    result = {**facts, **collect(out)}
    DOCS.mkdir(parents=True, exist_ok=True)
    draw(result, DOCS / "quickstart.png")
    strips(out, record(steps), DOCS.parent / "images" / "quickstart_episodes.png")
    fill(DOCS / "quickstart.md", BEGIN, tables(result))
    print(save("quickstart", result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of data, runs and videos")
    parser.add_argument("--report", action="store_true", help="only write the report")
    args = parser.parse_args()
    steps = Steps(args.out.resolve())
    if not args.report:
        checkpoint = prepare(steps)
        for seed in SEEDS:
            for algorithm in ALGORITHMS:
                learn(steps, algorithm, seed, checkpoint)
    report(steps)


if __name__ == "__main__":
    main()
