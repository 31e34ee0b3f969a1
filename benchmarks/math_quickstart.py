"""The proof that a language model learns: cloned from a few answers, then reinforced on harder problems, several seeds.

    python benchmarks/math_quickstart.py --out /tmp/math --together 2                   # everything, then the report
    python benchmarks/math_quickstart.py --out /tmp/math --report                       # the report of what is there
    python benchmarks/math_quickstart.py --out /tmp/smollm --experiment math_smollm     # a released model
    python benchmarks/math_quickstart.py --out /tmp/calculator --experiment math_calculator

Each step is a command of docs/text.md in a process of its own; one that is complete is not run again. A small network
uses one core, so --together 2 runs two steps side by side. The report is written to docs/results/ (curve, and the
tables in the experiment's page) and benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import _calls
from _measure import machine, save
from quickstart import DOCS, Steps, fill, history, newest, success

from embodied.observe.statistics import wilson

BEGIN = "<!-- written by benchmarks/math_quickstart.py -->"
HOW = {
    "greedy": ("algorithm.val_sampling_params.do_sample=false",),
    "sampled": ("algorithm.val_sampling_params.do_sample=true",),
}
EVALUATIONS = [(when, how) for when in ("before", "after") for how in HOW]


@dataclass(frozen=True)
class Control:
    """The same training with something taken away."""

    seeds: tuple[int, ...]
    cloning: tuple[str, ...]  # overrides of the supervised run
    both: tuple[str, ...] = ()  # of training and evaluations


@dataclass(frozen=True)
class Proof:
    """An experiment, and what it is judged by.

    Args:
        page: of docs/results, without its ending; the curve is a picture of that name.
        other: chooses other evaluation problems: the settings were chosen by looking at the experiment's own.
        untrained: overrides of evaluations of the network as it comes, by name; they are of no seed.
        shown: gives the prompts that learning may see, where evaluation problems may be among them. The table then
            counts the others alone.
        calls: count calls of the calculator.
    """

    experiment: str
    page: str
    seeds: tuple[int, ...] = (1, 2, 3)
    problems: int = 1000
    other: str = "env.eval.data_args.seed=1"
    untrained: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shown: Callable[[], frozenset[str]] | None = None
    controls: Mapping[str, Control] = field(default_factory=dict)
    calls: bool = False

    @property
    def name(self) -> str:
        return self.experiment.replace("_", "-")

    def runs(self) -> list[tuple[str, int, Control | None]]:
        """Name, seed and control of each training."""
        wanted = [(f"{self.name}-{seed}", seed, None) for seed in self.seeds]
        return wanted + [
            (f"{self.name}-{control}-{seed}", seed, parts)
            for control, parts in self.controls.items()
            for seed in parts.seeds
        ]

    def evaluate(self, steps: Steps, name: str, *options: str) -> None:
        """Evaluates on the other problems."""
        steps.run(
            name, "eval", f"experiment={self.experiment}", "runner.first=[]", f"runner.experiment_name={name}",
            self.other, f"env.eval.episodes_per_task={self.problems}",
            f"runner.logger.log_val_generations={self.problems}", *options,
        )  # fmt: skip


def demonstrated_and_trained() -> frozenset[str]:
    """All questions of the demonstrations and of the training of math_smollm."""
    from embodied.envs.text.reasoning import demonstrations

    from embodied.schema.compose.compose import compose

    cloned = compose(["experiment=math_smollm_sft"], "sft").resolved["data"]["options"]
    trained = compose(["experiment=math_smollm"]).resolved["env"]["train"]
    kept = {key: trained[key] for key in ("tasks", "count", "dataset_seed")}
    return frozenset(row["prompt"] for options in (cloned, kept) for row in demonstrations(**options))


NO_RESULTS = ("env.train.results=false", "env.eval.results=false")
LENIENT = "env.eval.verifier=[{name: gsm8k}]"  # the last number of a response counts, whatever stands around it
LONG = "actor.model.max_new_tokens=32"  # an untrained network explains its answer
PROOFS = {
    "math_quickstart": Proof("math_quickstart", "math"),
    "math_calculator": Proof(
        "math_calculator", "calculator", calls=True,
        controls={
            "without-results": Control((1,), ("data.options.results=false", *NO_RESULTS), NO_RESULTS),
            "without-calls": Control((1,), ("data.options.call_share=0",)),
        },
    ),
    "math_smollm": Proof(
        "math_smollm", "math_smollm", (1, 2), problems=700, other="env.eval.dataset_seed=1000000",
        untrained={"as it comes": (*HOW["greedy"], LONG), "as it comes, last number": (*HOW["greedy"], LONG, LENIENT)},
        shown=demonstrated_and_trained,
    ),
}  # fmt: skip


def learn(steps: Steps, proof: Proof, name: str, seed: int, control: Control | None) -> None:
    """A training with the supervised run before it."""
    own: tuple[str, ...] = ()
    if control is not None:
        own = (*control.both, f"runner.first={json.dumps([f'experiment={proof.experiment}_sft', *control.cloning])}")
    steps.run(
        name, "train", f"experiment={proof.experiment}", f"runner.experiment_name={name}", f"runner.seed={seed}", *own
    )


def judge(steps: Steps, proof: Proof, name: str, control: Control | None, when: str, how: str) -> None:
    """An evaluation on other problems, of the policy as cloned or as trained."""
    run = steps.out / "runs" / name
    checkpoint = newest(run / "first" if when == "before" else run)
    both = () if control is None else control.both
    proof.evaluate(steps, f"{name}-{when}-{how}", f"runner.ckpt_path={checkpoint}", *HOW[how], *both)


def everything(steps: Steps, proof: Proof, together: int) -> None:
    """All trainings, then all evaluations, ``together`` of them at a time."""
    pool = ThreadPoolExecutor(together)
    trained = {name: pool.submit(learn, steps, proof, name, seed, control) for name, seed, control in proof.runs()}

    def judged(name: str, control: Control | None, when: str, how: str) -> None:
        trained[name].result()
        judge(steps, proof, name, control, when, how)

    work: list[Future[None]] = [
        pool.submit(judged, name, control, when, how) for name, _, control in proof.runs() for when, how in EVALUATIONS
    ]
    work += [
        pool.submit(proof.evaluate, steps, untrained_name(proof, what), *options)
        for what, options in proof.untrained.items()
    ]
    try:
        for step in (*trained.values(), *work):
            step.result()
    finally:
        pool.shutdown(cancel_futures=True)


def untrained_name(proof: Proof, what: str) -> str:
    return f"{proof.name}-{what.replace(', ', '-').replace(' ', '-')}"


# -- the report --------------------------------------------------------------------------------------------------------


def accuracy(out: Path, name: str, shown: frozenset[str] | None) -> dict[str, Any]:
    """Right answers, problems, share, low, high of an evaluation, without the problems in ``shown``."""
    if shown is None:
        return success(out, name)
    rows = map(
        json.loads, max((out / "runs" / name / "generations").glob("*.jsonl")).read_text(encoding="utf-8").splitlines()
    )
    right = [row["success"] for row in rows if row["prompt"] not in shown]
    low, high = wilson(sum(right), len(right))
    rate = sum(right) / len(right)
    return {"successes": sum(right), "episodes": len(right), "success_rate": rate, "low": low, "high": high}


def collect(out: Path, proof: Proof) -> dict[str, Any]:
    """What the report shows, of the steps that are complete."""
    shown = None if proof.shown is None else proof.shown()
    whole = [name for name, _, _ in proof.runs() if (out / f"{name}-after-sampled.json").exists()]
    found: dict[str, Any] = {"runs": {title(proof, name): _run(out, proof, name, shown) for name in whole}}
    untrained = {what: untrained_name(proof, what) for what in proof.untrained}
    rows = {what: accuracy(out, name, shown) for what, name in untrained.items() if (out / f"{name}.json").exists()}
    return found | ({"untrained": rows} if rows else {})


def _run(out: Path, proof: Proof, name: str, shown: frozenset[str] | None) -> dict[str, Any]:
    kept = ("step", "minutes", "rollout/success_rate", "rollout/episode_length_mean", "eval/success_rate")
    evaluations = {f"{when} {how}": f"{name}-{when}-{how}" for when, how in EVALUATIONS}
    run: dict[str, Any] = {
        "wall_s": json.loads((out / f"{name}.json").read_text(encoding="utf-8"))["wall_s"],
        "evaluations": {key: accuracy(out, one, shown) for key, one in evaluations.items()},
        "iterations": [{key: row[key] for key in kept if key in row} for row in history(out, name)],
    }
    if proof.calls:
        run["calls"] = {key: _calls.measured(out / "runs" / one) for key, one in evaluations.items()}
    return run


def title(proof: Proof, name: str) -> str:
    """``seed 1``, or ``without results, seed 1``."""
    control, _, seed = name.removeprefix(proof.name).rpartition("-")
    return f"{control.strip('-').replace('-', ' ')}, seed {seed}".removeprefix(", ")


def tables(result: dict[str, Any], proof: Proof) -> str:
    """Right answers of the runs, what they called, and right answers of the untrained network."""
    heads = [f"{when} {how}" for how in HOW for when in ("before", "after")]
    lines = [f"| run | {' | '.join(heads)} | cloning and training |", f"|{'---|' * (len(heads) + 2)}"]
    for name, run in result["runs"].items():
        cells = [_cell(run["evaluations"][head]) for head in heads]
        lines.append(f"| {name} | {' | '.join(cells)} | {run['wall_s'] / 60:.1f} min |")
    if untrained := result.get("untrained"):
        lines += ["", "| network | right |", "|---|---|"]
        lines += [f"| {what} | {_cell(row)} |" for what, row in untrained.items()]
    if proof.calls:
        rows = {f"{name} | {when}": row for name, run in result["runs"].items() for when, row in run["calls"].items()}
        lines += ["", _calls.table(rows, ("run", "evaluation"))]
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


def report(out: Path, proof: Proof) -> None:
    command = f"python benchmarks/math_quickstart.py --out FOLDER --experiment {proof.experiment}"
    result = {**machine(["torch", "transformers", "numpy"]), "command": command, **collect(out, proof)}
    draw(result, DOCS / f"{proof.page}.png")
    fill(DOCS / f"{proof.page}.md", BEGIN, tables(result, proof))
    print(save(proof.experiment, result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--experiment", choices=PROOFS, default="math_quickstart", help="what is shown")
    parser.add_argument("--together", type=int, default=1, help="steps that run at the same time (default: 1)")
    parser.add_argument("--report", action="store_true", help="only write the report")
    args = parser.parse_args()
    proof, steps = PROOFS[args.experiment], Steps(args.out.resolve())
    if not args.report:
        begun = time.monotonic()
        everything(steps, proof, args.together)
        print(f"{(time.monotonic() - begun) / 60:.1f} minutes")
    report(steps.out, proof)


if __name__ == "__main__":
    main()
