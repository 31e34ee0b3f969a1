"""What videos cost a rollout: the same episodes with and without, in turn within one run, on the same workers.

    python benchmarks/videos.py --env libero
    python benchmarks/videos.py --env maniskill
    python benchmarks/videos.py --env quickstart --frame-interval 0 --episodes 64 --videos 10 --slots 16 --steps 28

Of ``--episodes`` episodes, ``--videos`` are recorded: a picture of each control step, with what is written under it,
encoded by ffmpeg. ``wall`` and ``CPU`` are ratios of medians, with videos over without. CPU time is that of the process
tree, with the encoders that have ended. The policy is the fake one of ``embodied.testing``, whose calls cost next to
nothing, so that the part of videos is the largest there can be; ``--env quickstart`` has env and policy of
``experiment=quickstart_grpo``, with random weights. ``share for 5 %`` is the share of episodes that may be
recorded for rollouts to take 5 % more CPU time. ``of a run`` is the ratio over all rollouts of a training that records
in every tenth iteration, the default of ``env.train.video_cfg.video_interval``. ``grid`` is what the grid takes after
the episodes.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _measure import cpu_seconds, descendants, judge, machine, read_proc, save, spread

from embodied.lib.targets import load_target
from embodied.observe.timing import Sections
from embodied.observe.video.grid import NAME, Tile, write_grid
from embodied.random import Stream
from embodied.runtime.plan import eval_plan, with_videos
from embodied.runtime.policy.policy_port import OnePass
from embodied.runtime.pool.pool import Deadlines, Pool, PoolConfig
from embodied.runtime.records import RecordStore
from embodied.runtime.rollout.rollout import Job, Rollout, Schedule
from embodied.runtime.slab import Slab, info_fields, runtime_fields
from embodied.runtime.worker.reward import ShapedReward
from embodied.runtime.worker.shown import Shown
from embodied.schema import target_kwargs
from embodied.schema.compose.compose import compose
from embodied.testing import FakePolicy
from embodied.types import Episode, EpisodeResult, Sampling

BAR = dict.fromkeys(("wall", "CPU", "wall of a run", "CPU of a run"), ("<=", 1.05))
INTERVAL = 10  # default of env.train.video_cfg.video_interval
QUICKSTART = "quickstart"
CAMERA = {"camera_heights": 224, "camera_widths": 224}
ENVS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "fake": ("embodied.testing.FakeEnv", {"step_s": 0.005, "success_distance": 0.0}, ()),
    "libero": (
        "embodied.envs.libero.LiberoEnv",
        {"task_suite_name": "libero_10", "task_ids": [0], "init_params": {"camera_names": ["agentview"], **CAMERA}},
        ("mujoco", "robosuite"),
    ),
    "maniskill": (
        "embodied.envs.maniskill.ManiSkillEnv",
        {"init_params": {"id": "PullCube-v1", "control_mode": "pd_ee_delta_pose", "shader_pack": "minimal",
                         "camera_names": ["base_camera"], **CAMERA}},
        ("mani-skill",),
    ),
}  # fmt: skip
"""Class, arguments, packages of the simulator."""


def tree_cpu_seconds() -> float:
    """CPU seconds of this process and all below it, with those of children that have ended."""
    tree = descendants(os.getpid())
    ended = 0
    for pid in tree:
        fields = read_proc(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
        ended += int(fields[13]) + int(fields[14]) if fields else 0
    return cpu_seconds(tree) + ended / os.sysconf("SC_CLK_TCK")


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Wall seconds, CPU seconds and result of ``work``."""
    cpu, began = tree_cpu_seconds(), time.perf_counter()
    result = work()
    return time.perf_counter() - began, tree_cpu_seconds() - cpu, result


def outcome(results: Sequence[EpisodeResult]) -> list[tuple[int, float, bool, int]]:
    found = [(one.episode.episode_id, one.episode_return, one.success, one.num_steps) for one in results]
    return sorted(found)


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    target, kwargs, policy = _of_quickstart() if args.env == QUICKSTART else (*ENVS[args.env][:2], None)
    env = load_target(target, "env")(**kwargs)
    spec = env.spec
    policy = policy or FakePolicy(action_dim=spec.action_dim, num_action_chunks=args.chunk)
    policy.bind(spec)
    slots, chunk = args.slots or args.workers, policy.spec.num_action_chunks
    fields = {**spec.obs, **policy.spec.decision, **runtime_fields(chunk), **info_fields(spec.info)}
    slab = Slab.create(fields, 4 * slots)
    pool = Pool(
        PoolConfig(
            slots, args.workers, target, kwargs, ShapedReward("dense"), Deadlines(180, 300, 300), folder,
            shown=Shown.of(policy.spec, value=True),
        ),
        slab, print,
    )  # fmt: skip
    try:
        port = OnePass(policy, slab, spec, torch.device("cpu"), min(8, slots))
        rollout = Rollout(pool, port, RecordStore(slab), chunk, Schedule(False, max(1, slots // 2)), Sections())
        job = Job(
            Sampling(), 7, Stream.EVAL_NOISE, 0, args.steps, keep_records=False, num_slots=slots,
            ignore_terminations=True, frame_interval=args.frame_interval or None,
        )  # fmt: skip
        plan = eval_plan(
            spec, episodes_per_task=-(-args.episodes // len(spec.tasks)), env_seed=0, fixed_states=True, seed=0,
            group_size=1, held_out=0,
        )[: args.episodes]  # fmt: skip
        ways: dict[str, Sequence[Episode]] = {
            "without": plan, "with": with_videos(plan, folder / "videos", args.videos),
        }  # fmt: skip
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        same = []
        for number in range(args.rounds + 1):  # the first warms up
            for way in sorted(ways, reverse=number % 2 == 0):
                wall, cpu, (results, stats) = timed(partial(rollout.collect, ways[way], job))
                same.append(outcome(results))
                print(
                    f"round {number}  {way:8s} {wall:6.2f} s  CPU {cpu:6.2f} s  videos {stats.video_s:5.2f} s",
                    flush=True,
                )
                if number:
                    found[way].append((wall, cpu))
        assert all(one == same[0] for one in same), "videos have changed the episodes"
        tiles = [Tile(Path(one.video), bool(number % 2), "") for number, one in enumerate(ways["with"]) if one.video]
        wall, cpu, _ = timed(lambda: write_grid(tiles, folder / "videos" / NAME))
        size = (folder / "videos" / NAME).stat().st_size
    finally:
        pool.close()
        slab.close()
    return {"rounds": found, "grid": {"wall_s": wall, "cpu_s": cpu, "bytes": size, "videos": len(tiles)}}


def _of_quickstart() -> tuple[str, dict[str, Any], Any]:
    """Class and arguments of the quickstart's env, and its policy."""
    torch.set_num_threads(1)
    config = compose(["experiment=quickstart_grpo"], "train").config
    side, model = config.env.train, config.actor.model
    policy = load_target(model.target, "actor.model._target_")(**target_kwargs(model, "actor.model"))
    return side.target, target_kwargs(side, "env.train"), policy


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=[*ENVS, QUICKSTART], default="libero")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--slots", type=int, help="env slots; one a worker by default")
    parser.add_argument("--episodes", type=int, default=32, help="of a rollout")
    parser.add_argument("--videos", type=int, default=4, help="recorded episodes of a rollout")
    parser.add_argument("--steps", type=int, default=48, help="control steps of an episode")
    parser.add_argument("--chunk", type=int, default=8, help="control steps of a chunk")
    parser.add_argument("--frame-interval", type=int, default=1, help="control steps between two pictures; 0: chunk")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args(arguments)
    facts = machine(["imageio-ffmpeg", *ENVS["maniskill" if args.env == QUICKSTART else args.env][2]])
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(args, Path(folder))
    rounds = measured["rounds"]
    wall, cpu = ({way: [one[kind] for one in own] for way, own in rounds.items()} for kind in (0, 1))
    ratios = {name: median(one["with"]) / median(one["without"]) for name, one in (("wall", wall), ("CPU", cpu))}
    more = median(cpu["with"]) - median(cpu["without"])
    values = {
        **ratios,
        **{f"{name} of a run": 1 + (ratio - 1) / INTERVAL for name, ratio in ratios.items()},
        "ms CPU a recorded control step": 1000 * more / (args.videos * (args.steps + 1)),
        "ms CPU a control step without": 1000 * median(cpu["without"]) / (args.episodes * args.steps),
        "share for 5 %": 0.05 * args.videos / args.episodes / (ratios["CPU"] - 1) if ratios["CPU"] > 1 else 1.0,
    }
    kept = judge(values, BAR)
    print(f"  grid: {measured['grid']}")
    result = {
        "machine": facts, "settings": vars(args), "values": values, "bars": kept, "grid": measured["grid"],
        "wall_s": {way: spread(own) for way, own in wall.items()},
        "cpu_s": {way: spread(own) for way, own in cpu.items()},
    }  # fmt: skip
    every = {0: "_chunk", 1: ""}.get(args.frame_interval, f"_every_{args.frame_interval}")
    print("wrote", save(f"videos_{args.env}{every}", result))


if __name__ == "__main__":
    main()
