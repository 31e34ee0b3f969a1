"""What domain randomisation buys on the quickstart task: GRPO with and without perturbed episodes, both then perturbed.

    python benchmarks/robustness.py --out /tmp/robustness                    # everything, then the report
    python benchmarks/robustness.py --out /tmp/robustness --checkpoint DIR   # begin with a cloned policy that is there
    python benchmarks/robustness.py --out /tmp/robustness --report           # the report of what is there

The cloned policy of the quickstart (benchmarks/quickstart.py), its camera unmoved, is trained on by GRPO for equally
many episodes: once as it is, once with +perturb=robot_random. Both, and the cloned policy itself, are evaluated with
+perturb=robot on starts that no training has. Each step is a command, printed before it runs; one that is complete is
not run again. The report is written to docs/results/robustness.md, with a picture, and to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _measure import machine, save
from quickstart import CLONED, DEMONSTRATIONS, DOCS, END, ENV, OTHER_STARTS, Steps, fill, newest

BEGIN = "<!-- written by benchmarks/robustness.py -->"
RUNS = {"plain": (), "randomised": ("+perturb=robot_random",)}  # name → what is added to the training
PAGE = f"""# Robustness: what domain randomisation buys

The small OpenVLA-OFT of the [quickstart](quickstart.md), cloned and with its camera where it was, is trained on by GRPO
for equally many episodes: once as it is, once with `+perturb=robot_random` (each group of episodes has a mild or medium
perturbation, one group in five none). Then all three policies are evaluated with `+perturb=robot`, on starts that no
training has; [robustness.md](../robustness.md) says what each perturbation is.

![success under perturbations](robustness.png)

{BEGIN}

{END}

`python benchmarks/robustness.py --out FOLDER` runs all of it and writes the table and the picture.
"""


def prepare(steps: Steps, checkpoint: Path | None) -> Path:
    """The cloned policy's checkpoint: the one that was given, or that of demonstrations and a run of its own."""
    if checkpoint is not None:
        return checkpoint.resolve()
    steps.run("demos", "tools.demos", f"env={ENV}", f"episodes={DEMONSTRATIONS}", "noise_std=0.2")
    steps.run(CLONED, "sft", "experiment=quickstart_sft", f"runner.experiment_name={CLONED}")
    return newest(steps.out / "runs" / CLONED)


def learn(steps: Steps, name: str, checkpoint: Path, iterations: int, more: Sequence[str]) -> Path:
    """Trains on from ``checkpoint``, the camera unmoved; returns the last checkpoint."""
    steps.run(
        name, "train", "experiment=quickstart_grpo", f"env={ENV}", f"runner.experiment_name={name}",
        f"runner.ckpt_path={checkpoint}", f"runner.max_epochs={iterations}", f"runner.save_interval={iterations}",
        "runner.val_check_interval=-1", *more,
    )  # fmt: skip
    return newest(steps.out / "runs" / name)


def evaluate(steps: Steps, name: str, checkpoint: Path, episodes: int, strengths: Sequence[str]) -> None:
    """Evaluates a checkpoint under the perturbations."""
    steps.run(
        name, "eval", "experiment=quickstart_grpo", f"env={ENV}", f"runner.experiment_name={name}",
        f"runner.ckpt_path={checkpoint}", f"env.eval.episodes_per_task={episodes}", f"env.eval.seed={OTHER_STARTS}",
        "env.eval.video_cfg.save_video=false", "+perturb=robot", f"env.eval.perturb.strengths=[{','.join(strengths)}]",
    )  # fmt: skip


# -- the report ------------------------------------------------------------------------------------------------------


def collect(out: Path) -> dict[str, Any]:
    """The comparisons that are there: name → numbers of ``robustness.json``, without single episodes."""
    found, outcomes = {}, {}
    for name in ("cloned", *RUNS):
        file = out / "runs" / f"{name}-perturbed" / "eval" / "robustness.json"
        if file.exists():
            read = json.loads(file.read_text(encoding="utf-8"))
            own = [episode["success"] for episode in read["unperturbed"]]
            rows = [{key: row[key] for key in row if key != "outcomes"} for row in read["conditions"]]
            found[name] = {"successes": sum(own), "episodes": len(own), "conditions": rows}
            # [condition, start]: the starts of all policies and conditions are the same, in the same order
            outcomes[name] = np.array(
                [[one["success"] for one in row["outcomes"]] for row in read["conditions"]], float
            )
    minutes = {
        name: round(json.loads((out / f"{name}.json").read_text(encoding="utf-8"))["wall_s"] / 60, 1)
        for name in RUNS
        if (out / f"{name}.json").exists()
    }
    pairs = [("cloned", "plain"), ("cloned", "randomised"), ("plain", "randomised")]
    differences = [
        {"first": first, "second": second, **difference(outcomes[first], outcomes[second])}
        for first, second in pairs
        if first in outcomes and second in outcomes
    ]
    return {"policies": found, "minutes": minutes, "differences": differences}


def difference(first: np.ndarray, second: np.ndarray) -> dict[str, float]:
    """Mean of second − first over all conditions and starts, with its 95 % interval (bootstrap over the starts)."""
    starts = (second - first).mean(axis=0)
    drawn = np.random.default_rng(0).choice(starts, (10_000, len(starts))).mean(axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return {"mean": float(starts.mean()), "low": float(low), "high": float(high)}


def table(result: Mapping[str, Any]) -> str:
    """Markdown: success of each policy under each condition, with its 95 % interval."""
    policies = result["policies"]
    lines = ["| perturbation | strength | " + " | ".join(policies) + " |", "|---" * (2 + len(policies)) + "|"]
    own = [
        f"{one['successes']}/{one['episodes']} = {one['successes'] / one['episodes']:.0%}" for one in policies.values()
    ]
    lines.append(f"| none | | {' | '.join(own)} |")
    for rows in zip(*(one["conditions"] for one in policies.values()), strict=True):
        cells = [f"{row['success_rate']:.0%} ({row['low']:.0%} to {row['high']:.0%})" for row in rows]
        lines.append(f"| {rows[0]['kind']} | {rows[0]['strength']} | {' | '.join(cells)} |")
    means = [
        sum(row["success_rate"] for row in one["conditions"]) / len(one["conditions"]) for one in policies.values()
    ]
    lines.append(f"| mean of all perturbations | | {' | '.join(f'{mean:.0%}' for mean in means)} |")
    lines += ["", "Over all perturbations, paired by start (95 % interval by bootstrap over the starts):", ""]
    lines += [
        f"- {one['second']} − {one['first']}: {one['mean']:+.1%} ({one['low']:+.1%} to {one['high']:+.1%})"
        for one in result["differences"]
    ]
    took = ", ".join(f"{name} {minutes} min" for name, minutes in result["minutes"].items())
    return "\n".join([*lines, "", f"Wall clock of the trainings: {took}."])


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Success of each policy, a panel for each strength."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    policies = result["policies"]
    rows = next(iter(policies.values()))["conditions"]
    kinds, strengths = (list(dict.fromkeys(row[name] for row in rows)) for name in ("kind", "strength"))
    figure, panels = pyplot.subplots(
        1, len(strengths), figsize=(4.6 + 2.6 * len(strengths), 1.4 + 0.4 * len(kinds)), sharey=True, squeeze=False
    )
    for panel, strength in zip(panels[0], strengths, strict=True):
        for number, (name, one) in enumerate(policies.items()):
            chosen = [row for row in one["conditions"] if row["strength"] == strength]
            rates = [row["success_rate"] for row in chosen]
            below = [row["success_rate"] - row["low"] for row in chosen]
            above = [row["high"] - row["success_rate"] for row in chosen]
            places = [kinds.index(row["kind"]) + 0.2 * (number - 1) for row in chosen]
            style: dict[str, Any] = {"fmt": "o", "markersize": 4, "capsize": 2, "color": f"C{number}"}
            panel.errorbar(rates, places, xerr=[below, above], label=name, **style)
            panel.axvline(one["successes"] / one["episodes"], color=f"C{number}", linewidth=0.8, linestyle=":")
        panel.set(title=strength, xlabel="success", xlim=(-0.02, 1.02), ylim=(len(kinds) - 0.5, -0.5))
        panel.set_yticks(range(len(kinds)), [kind.replace("_", " ") for kind in kinds])
        panel.grid(axis="x", alpha=0.3)
    panels[0][-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)  # beside the figures
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def report(out: Path, page: Path = DOCS / "robustness.md") -> None:
    """Writes the page, its picture, and the numbers, of the policies that were evaluated."""
    result = {**machine(["torch", "mani_skill", "sapien", "numpy"]), **collect(out)}
    if not page.exists():
        page.write_text(PAGE, encoding="utf-8")
    draw(result, page.with_suffix(".png"))
    fill(page, BEGIN, table(result))
    print(save("robustness", result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of data and runs")
    parser.add_argument("--checkpoint", type=Path, help="a cloned policy's; without it one is made")
    parser.add_argument("--iterations", type=int, default=24, help="of each training")
    parser.add_argument("--episodes", type=int, default=100, help="starts of each evaluation")
    parser.add_argument("--strengths", nargs="+", default=["medium", "strong"])
    parser.add_argument("--report", action="store_true", help="only write the report")
    args = parser.parse_args()
    steps = Steps(args.out.resolve())
    if not args.report:
        checkpoint = prepare(steps, args.checkpoint)
        evaluate(steps, "cloned-perturbed", checkpoint, args.episodes, args.strengths)
        for name, more in RUNS.items():
            trained = learn(steps, name, checkpoint, args.iterations, more)
            evaluate(steps, f"{name}-perturbed", trained, args.episodes, args.strengths)
    report(steps.out)


if __name__ == "__main__":
    main()
