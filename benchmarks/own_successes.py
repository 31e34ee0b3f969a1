"""Progress from own successes against the sparse reward and the hand-written one: three tasks, three seeds each.

    python benchmarks/own_successes.py --out /tmp/own                 # all 27 trainings, then the report
    python benchmarks/own_successes.py --out /tmp/own --report        # the report of what is there

PPO with a small network on an env's numbers, from random weights, so a success is luck at first. The tasks: the fake
env's point that moves to a goal, by numbers and by one of eight directions; Fetch's arm, which reaches a point (pip
install 'embodied-rl[robotics]'). A run that is complete is not made again. What is compared is the share of training
episodes that succeed, and the episodes until it passes HALF, over the three seeds; the last evaluation is on starts of
its own. The report goes to benchmarks/results/own_successes.json, where tasks that were not run stay.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

from _measure import machine, save, stored
from quickstart import Steps, history, success

FAKES = Path(__file__).parents[1] / "tests" / "config"
HALF = 0.5  # success of an iteration's episodes
SEEDS = (1, 2, 3)
MODES = {
    "sparse": ("env.train.reward_mode=sparse", "env.train.use_rel_reward=false"),
    "progress": ("env.train.reward_mode=dense", "env.train.use_rel_reward=true"),
    "own_successes": ("env.train.reward_mode=own_successes", "env.train.use_rel_reward=false"),
}
COMMON = (
    "model=mlp", "algorithm=ppo", "tracker=jsonl", "runner.device=cpu", "runner.save_interval=-1",
    "algorithm.group_size=1", "algorithm.rollout_epoch=4",
    "algorithm.update_epoch=4", "algorithm.critic_warmup_steps=8", "env.train.total_num_envs=16",
    "env.eval.total_num_envs=16", "env.eval.episodes_per_task=100", "env.num_workers=2", "rollout.min_batch=8",
    "env.train.video_cfg.save_video=false", "env.eval.video_cfg.save_video=false", "actor.global_batch_size=256",
    "actor.micro_batch_size=256", "actor.optim.lr=1.0e-3", "rollout.trace=false",
)  # fmt: skip
FAKE = (
    "env=fake", "--config-dir", str(FAKES), "env.train.num_tasks=1", "env.train.num_init_states=100",
    "env.train.pictures=false", "env.train.success_distance=0.1",
)  # fmt: skip
TASKS = {  # with the iterations that it takes
    "point": (12, FAKE),
    "directions": (12, (*FAKE, "env.train.num_actions=8")),
    "fetch": (30, (
        "env=gym_fetchreach", "env.train.progress_features=[obs.achieved_goal,obs.desired_goal]",
    )),
}  # fmt: skip


def name_of(task: str, mode: str, seed: int) -> str:
    return f"{task}-{mode}-{seed}"


def learn(steps: Steps, task: str, mode: str, seed: int) -> None:
    name, (iterations, keys) = name_of(task, mode, seed), TASKS[task]
    steps.run(
        name, "train", *COMMON, *keys, *MODES[mode], f"runner.experiment_name={name}", f"runner.seed={seed}",
        f"runner.max_epochs={iterations}", f"runner.val_check_interval={iterations}",
    )  # fmt: skip


def course(out: Path, name: str) -> dict[str, Any]:
    """What a complete run did."""
    rows = [row for row in history(out, name) if "rollout/success_rate" in row]
    rates, episodes = [row["rollout/success_rate"] for row in rows], rows[0]["rollout/episodes"]
    passed = [number for number, rate in enumerate(rates, start=1) if rate >= HALF]
    return {
        "after": success(out, name), "successes": [round(rate, 3) for rate in rates],
        "mean_success": round(mean(rates), 4), "episodes_to_half": episodes * passed[0] if passed else None,
        "wall_s": json.loads((out / f"{name}.json").read_text(encoding="utf-8"))["wall_s"],
    }  # fmt: skip


def report(out: Path, tasks: list[str], seeds: list[int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for task in tasks:
        for mode in MODES:
            names = [name_of(task, mode, seed) for seed in seeds]
            runs = {name: course(out, name) for name in names if (out / f"{name}.json").exists()}
            if not runs:
                continue
            after = [run["after"]["success_rate"] for run in runs.values()]
            found[f"{task}, {mode}"] = {
                "after": after, "mean_success": round(mean(run["mean_success"] for run in runs.values()), 4),
                "episodes_to_half": [run["episodes_to_half"] for run in runs.values()], "runs": runs,
            }  # fmt: skip
            row = found[f"{task}, {mode}"]
            print(f"{task:8} {mode:14} after {after}, mean {row['mean_success']}, half {row['episodes_to_half']}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[*SEEDS])
    parser.add_argument("--at-once", type=int, default=1, help="runs at a time")
    parser.add_argument("--report", action="store_true", help="only write the report")
    args = parser.parse_args()
    steps = Steps(args.out.resolve())
    if not args.report:
        todo = [(task, mode, seed) for seed in args.seeds for task in args.tasks for mode in MODES]
        with ThreadPoolExecutor(args.at_once) as pool:
            list(pool.map(lambda one: learn(steps, *one), todo))
    facts = {**machine(["torch", "numpy", "gymnasium", "mujoco"]), "command": "python benchmarks/own_successes.py"}
    before = stored("own_successes").get("tasks", {})
    print(save("own_successes", {**facts, "tasks": before | report(steps.out, args.tasks, args.seeds)}))


if __name__ == "__main__":
    main()
