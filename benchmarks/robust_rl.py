"""Success by kind of LIBERO-Plus after cloning, RL, and RL under some kinds, of the policy of ``make train``.

    python benchmarks/robust_rl.py --out /tmp/robust                          # everything, then the table
    python benchmarks/robust_rl.py --out /tmp/robust --part clone             # one part alone
    python benchmarks/robust_rl.py --out /tmp/robust --part camera_noise --seeds 1
    python benchmarks/robust_rl.py --out /tmp/robust --report                 # the table of what is there

``plain`` is GRPO as ``make train`` does it. ``camera_noise`` and ``robot_layout`` start their episodes in variations of
these two kinds alone; the others are left out of training. All are evaluated on the same variations of the three tasks,
``--tasks`` of each kind, on LIBERO-PRO's suites of libero_object, and unvaried ones. ``--pro`` names other suites, also
of tasks that the policy does not know (``spatial_swap``). Each step is a command, printed before it runs; a complete
one is not run again, and a training that was interrupted goes on. Wall and CPU seconds of each stand beside its log,
from which the cost of all is estimated (``--report``).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from _measure import machine, save
from embodied.envs.libero import LiberoEnv
from quickstart import DOCS, Steps, fill, newest

from embodied.evaluation import compare_kinds
from embodied.evaluation.compare import compare, task_names
from embodied.evaluation.comparison_text import cells
from embodied.evaluation.results import read

WRITTEN = "<!-- written by benchmarks/robust_rl.py -->"
KINDS = ("camera", "robot", "noise", "layout")
TRAINED = {"plain": (), "camera_noise": ("camera", "noise"), "robot_layout": ("robot", "layout")}
PRO = ("object", "swap", "lan", "task")
UNKNOWN = tuple(f"{suite}_{how}" for suite in ("spatial", "goal", "10") for how in PRO)  # nobody trains on their tasks
SUITES = ("unvaried", "plus", *(f"pro_{how}" for how in (*PRO, *UNKNOWN)))
SEEDS = (1, 2, 3)
BEGINS = ("pick_up_the_alphabet_soup_and", "pick_up_the_salad_dressing_and", "pick_up_the_milk_and")
PICTURES = ("init_params.camera_names=[agentview,robot0_eye_in_hand]", "init_params.camera_heights=64",
            "init_params.camera_widths=64", "init_params.mesh_cell=0.01")  # fmt: skip
QUIET = ("env.eval.video_cfg.save_video=false", "runner.logger.report=false")


def varied(side: str, kinds: Sequence[str], each: int | None) -> list[str]:
    """Overrides for variations of the three tasks: all of ``kinds``, or ``each`` of them, evenly spread."""
    env = LiberoEnv("libero_plus_object", kinds=kinds, skip_missing=True, plain_instructions=True)
    found = env.task_kinds()
    assert found is not None
    chosen: list[int] = []
    for kind in kinds:
        own = [
            number for number, name in enumerate(found.names) if found.kinds[number] == kind and name.startswith(BEGINS)
        ]
        places = range(len(own)) if each is None else np.linspace(0, len(own) - 1, min(each, len(own))).astype(int)
        chosen += [own[place] for place in places]
    keys = (f"kinds=[{','.join(kinds)}]", "skip_missing=true", "plain_instructions=true", *PICTURES,
            f"task_ids=[{','.join(map(str, sorted(chosen)))}]")  # fmt: skip
    return [f"env@env.{side}=libero_plus_object", *(f"env.{side}.{key}" for key in keys)]


def of_pro(how: str, episodes: int) -> list[str]:
    """Overrides for a suite of LIBERO-PRO: the three tasks, or an unknown one's ten, together equally many episodes."""
    unknown = how in UNKNOWN
    tasks = range(10) if unknown else (0, 2, 7)
    keys = (f"task_ids=[{','.join(map(str, tasks))}]", f"episodes_per_task={max(1, episodes * 3 // len(tasks))}",
            *PICTURES)  # fmt: skip
    name = f"libero_pro_{how if unknown else 'object_' + how}"
    return [f"env@env.eval={name}", *(f"env.eval.{key}" for key in keys)]


def learn(steps: Steps, part: str, seed: int, args: argparse.Namespace) -> Path:
    """Trains a part with a seed; returns its last checkpoint, relative to the folder."""
    name = f"{part}-{seed}"
    under = varied("train", TRAINED[part], args.train_tasks) if TRAINED[part] else []
    steps.run(
        name, "train", "experiment=quickstart_libero", *under, f"runner.experiment_name={name}", f"runner.seed={seed}",
        f"runner.max_epochs={args.iterations}", f"runner.save_interval={args.iterations}",
        "runner.val_check_interval=-1", "runner.val_before_train=false", *QUIET, *args.train,
    )  # fmt: skip
    return newest(steps.out / "runs" / name).relative_to(steps.out)


def measure(steps: Steps, name: str, checkpoint: Path | None, args: argparse.Namespace) -> None:
    """Evaluates weights on LIBERO-Plus by kind, and on LIBERO-PRO's suites; ``None``: the shipped policy's."""
    weights = [f"runner.ckpt_path={checkpoint}"] if checkpoint else []
    suites = {
        "plus": [*varied("eval", KINDS, args.tasks), "env.eval.episodes_per_task=1"],
        **{f"pro_{how}": of_pro(how, args.episodes) for how in args.pro},
        # the tasks of the training, from initial states that it has not seen
        "unvaried": [f"env.eval.episodes_per_task={args.episodes}"],
    }
    for suite, overrides in suites.items():
        steps.run(
            f"{name}-{suite}", "eval", "experiment=quickstart_libero", *overrides, *weights, *QUIET,
            f"runner.experiment_name={name}-{suite}", *args.evaluation,
        )  # fmt: skip


def names(out: Path) -> Iterator[str]:
    """Weights whose evaluations are there, the shipped policy's first."""
    wanted = ["clone", *(f"{part}-{seed}" for part in TRAINED for seed in SEEDS)]
    yield from (name for name in wanted if (out / f"{name}-plus.json").exists())


def table(out: Path) -> str:
    """Markdown: each training against the shipped policy, paired by start, with 95 % intervals."""
    lines = ["| weights | kind | clone | 95 % interval | after | 95 % interval | difference | 95 % interval |",
             "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for name in names(out):
        for suite in SUITES:
            if not (out / f"{name}-{suite}.json").exists() or not (out / f"clone-{suite}.json").exists():
                continue
            both = compare(read(str(out / "runs" / f"clone-{suite}")), read(str(out / "runs" / f"{name}-{suite}")))
            rows = [cells(row.success) for row in compare_kinds.by_kind(both) if row.strength == "all"]
            whole = "LIBERO-Plus, all" if suite == "plus" else suite.replace("pro_", "LIBERO-PRO ")
            rows += [[whole, *cells(both.over_all)[1:]]]
            trained = TRAINED.get(name.rpartition("-")[0], ())
            lines += [
                f"| {name} | {' | '.join([row[0] + ' (trained)' * (row[0] in trained), *row[1:]])} |" for row in rows
            ]
    return "\n".join(lines)


def outcomes(out: Path, suite: str, name: str) -> list[dict[str, list[float]]]:
    """Returns success of the shipped policy and of other weights, by kind of tasks, of the starts that both have."""
    both = compare(read(str(out / "runs" / f"clone-{suite}")), read(str(out / "runs" / f"{name}-{suite}")))
    kinds, names = both.first.task_kinds, task_names(both.first, both.second)[0]
    named = {text: kinds[task] if kinds else suite for task, text in names.items()}
    sides: list[dict[str, list[float]]] = [{}, {}]
    for side, found in zip(sides, both.outcomes, strict=True):
        for key in sorted(both.outcomes[0].keys() & both.outcomes[1].keys()):
            side.setdefault(named[key[0]], []).append(float(np.mean(found[key])))
    return sides


def changes(out: Path, suite: str, part: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns success [starts] of the shipped policy, and of a part's seeds [seeds, starts], by kind of tasks."""
    before, after = dict[str, list[float]](), list[dict[str, list[float]]]()
    for name in (f"{part}-{seed}" for seed in SEEDS if (out / f"{part}-{seed}-{suite}.json").exists()):
        before, side = outcomes(out, suite, name)
        after.append(side)
    return (
        {kind: np.array(own) for kind, own in before.items()},
        {kind: np.array([side[kind] for side in after]) for kind in before},
    )


def with_interval(before: np.ndarray, after: np.ndarray, draws: int = 5000) -> tuple[float, float, float]:
    """Returns the mean change [seeds, starts] and its 95 % interval by bootstrap over seeds and starts."""
    random, change = np.random.default_rng(0), after - before
    seeds, starts = change.shape
    means = [
        change[random.integers(seeds, size=seeds)][:, random.integers(starts, size=starts)].mean() for _ in range(draws)
    ]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(change.mean()), float(low), float(high)


def summary(out: Path) -> str:
    """Markdown: a row for each kind of tasks, a column for each part, whose seeds are taken together."""
    lines = [f"| evaluated on | clone | {' | '.join(TRAINED)} |", "|---" * (2 + len(TRAINED)) + "|"]
    for suite in SUITES:
        parts = {part: changes(out, suite, part) for part in TRAINED}
        if not (out / f"clone-{suite}.json").exists():
            continue
        for kind, own_outcomes in outcomes(out, suite, "clone")[0].items():
            clone = np.array(own_outcomes)
            cells_of = []
            for part, (own, after) in parts.items():
                if kind not in own:
                    cells_of.append("–")
                    continue
                mean, low, high = with_interval(own[kind], after[kind])
                share = f"{after[kind].mean():.0%}: {100 * mean:+.0f} ({100 * low:+.0f} to {100 * high:+.0f})"
                cells_of.append(f"**{share}**" if kind in TRAINED[part] else share)
            name = f"LIBERO-PRO {suite[4:].replace('_', ' ')}" if suite.startswith("pro_") else kind
            lines.append(f"| {name} | {clone.mean():.0%} of {len(clone)} | {' | '.join(cells_of)} |")
    return "\n".join(lines)


def report(out: Path) -> None:
    """Prints the tables and what each step took, and saves them."""
    costs = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(out.glob("*.json"))}
    text = table(out)
    print(summary(out), text, sep="\n\n")
    for name, cost in costs.items():
        print(f"{name}: {cost['wall_s'] / 60:.1f} min, {cost['cpu_s'] / 60:.1f} CPU min")
    (out / "robust_rl.md").write_text(text + "\n", encoding="utf-8")
    fill(DOCS / "robust_rl.md", WRITTEN, summary(out))
    found = {"summary": summary(out).splitlines(), "table": text.splitlines(), "steps": costs}
    print(save("robust_rl", {"machine": machine(["mujoco", "torch"]), **found}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", choices=["clone", *TRAINED], help="this part alone")
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS, choices=SEEDS)
    parser.add_argument("--tasks", type=int, default=60, help="variations of each kind that are evaluated")
    parser.add_argument("--train-tasks", type=int, help="variations of each kind to train on; none: all")
    parser.add_argument("--episodes", type=int, default=20, help="episodes of each task of LIBERO-PRO")
    parser.add_argument("--iterations", type=int, default=10, help="of each training")
    parser.add_argument("--pro", nargs="*", default=PRO, choices=[*PRO, *UNKNOWN])
    parser.add_argument("--train", nargs="*", default=[], help="further keys of the trainings")
    parser.add_argument("--evaluation", nargs="*", default=[], help="further keys of the evaluations")
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    steps = Steps(args.out.resolve())
    if not args.report:
        if args.part in (None, "clone"):
            measure(steps, "clone", None, args)
        for seed in args.seeds:
            for part in [args.part] if args.part in TRAINED else [] if args.part else TRAINED:
                measure(steps, f"{part}-{seed}", learn(steps, part, seed, args), args)
    report(steps.out)


if __name__ == "__main__":
    main()
