"""The rollout scheduler on real processes against what arithmetic allows.

    python benchmarks/scheduler.py --rounds 3

Envs and policy sleep, so that nothing but the scheduler's own doing can be lost: 16 env slots on 4 workers, one chunk
20 ms, a policy call of 16 rows ``r`` times what the workers need for them. The same durations are given to the
discrete-event model of pipeline_model.py, each longer by what a sleep takes too long on this machine (measured in
between); the closed forms know nothing of that. Cells:
- ``constant``: equal durations, against the closed forms.
- ``varied``: log-normal chunks (0.4).
- ``resets``: and resets of 50 to 300 ms between episodes of different lengths.
- ``episodes``: the time to 256 episodes of which 60 % succeed early, against a lockstep that runs all to the step
  limit and starts them together. A round takes about two minutes for each ``r``.
Schedules are measured in turn; figures are medians over rounds. What is to be kept is printed at the end (``BARS``).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _envs import CostEnv
from _measure import judge, machine, save, spread
from pipeline_model import (
    Length,
    lockstep_rate,
    policy_time,
    ready_rate,
    schedules,
    simulate,
    two_stage_rate,
)

from embodied.observe.timing import Sections
from embodied.random import Stream
from embodied.runtime.policy.policy_port import OnePass
from embodied.runtime.pool.pool import Deadlines, Pool, PoolConfig
from embodied.runtime.records import RecordStore
from embodied.runtime.rollout.rollout import Job, Rollout, Schedule
from embodied.runtime.slab import Slab, runtime_fields
from embodied.runtime.worker.reward import ShapedReward
from embodied.types import ArraySpec, Decision, Elements, EnvSpec, Episode, Noise, PolicySpec, Sampling, Start

ACTIONS = 7


class SleepingPolicy:
    """Answers with zeros after ``seconds(rows)``."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        fields = {"action_tokens": (ACTIONS,), "actions": (1, ACTIONS), "logprobs": (ACTIONS,)}
        kinds = {"action_tokens": "int32", "actions": "float32", "logprobs": "float32"}
        decision = {name: ArraySpec(shape, kinds[name]) for name, shape in fields.items()}
        self.spec = PolicySpec(1, decision, Elements((1, ACTIONS), action_axis=0), Noise((ACTIONS,)))
        self._seconds = seconds

    def bind(self, env: EnvSpec) -> None:
        pass

    def encode_instructions(self, texts: Sequence[str]) -> Mapping[str, torch.Tensor]:
        return {}

    def act(self, obs: Mapping[str, torch.Tensor], noise: torch.Tensor, sampling: Sampling) -> Decision:
        rows = len(noise)
        time.sleep(self._seconds(rows))
        kinds = {"int32": torch.int32, "float32": torch.float32}
        return Decision({n: torch.zeros(rows, *s.shape, dtype=kinds[s.dtype]) for n, s in self.spec.decision.items()})


def oversleep(count: int = 20, asked_s: float = 0.02) -> list[float]:
    """Seconds that sleeps took longer than asked."""
    found = []
    for _ in range(count):
        began = time.perf_counter()
        time.sleep(asked_s)
        found.append(time.perf_counter() - began - asked_s)
    return found


class Bench:
    """A pool of sleeping envs, and the model of it."""

    def __init__(self, env: dict[str, Any], slots: int, workers: int, folder: Path) -> None:
        self._env, self._slots, self._workers = CostEnv(**env), slots, workers
        self._slab = Slab.create(
            {**self._env.spec.obs, **SleepingPolicy(float).spec.decision, **runtime_fields(1)}, 2 * slots
        )
        config = PoolConfig(
            slots, workers, "_envs.CostEnv", env, ShapedReward(), Deadlines(300, 300, 300), folder
        )  # fmt: skip
        self._pool = Pool(config, self._slab)
        self._oversleeps: list[float] = []

    @property
    def oversleep_s(self) -> float:
        """What a sleep took too long, as far as that was looked at: before each real run."""
        return median(self._oversleeps)

    def real(
        self, count: int, rule: Schedule, policy_s: Callable[[int], float], whole: bool = False
    ) -> tuple[float, int]:
        """``(seconds, records)`` of ``count`` episodes. ``whole``: to the step limit, started together."""
        self._oversleeps += oversleep()
        policy = SleepingPolicy(policy_s)
        batch, device = max(1, self._slots), torch.device("cpu")
        port = OnePass(policy, self._slab, self._env.spec, device, batch, fixed_shape=False)  # type: ignore[arg-type]
        rollout = Rollout(self._pool, port, RecordStore(self._slab), 1, rule, Sections())
        job = Job(
            Sampling(), 0, Stream.EVAL_NOISE, 0, self._env.spec.max_episode_steps, keep_records=False,
            num_slots=self._slots, ignore_terminations=whole, auto_reset=not whole,
        )  # fmt: skip
        plan = [Episode(i, i, Start(0, 0, i)) for i in range(count)]
        began = time.perf_counter()
        _, stats = rollout.collect(plan, job)
        return time.perf_counter() - began, stats.chunks

    def model(
        self, count: int, rule: Schedule, policy_s: Callable[[int], float], whole: bool = False
    ) -> tuple[float, int]:
        """The same of the model."""
        episodes, late = [], self.oversleep_s
        for seed in range(count):
            reset, steps, records = self._env.durations(seed)
            length = self._env.spec.max_episode_steps if whole else records
            episodes.append(Length(float(reset) + late if reset else 0.0, steps + late, length))
        outcome = simulate(
            episodes, self._slots, self._workers, rule, lambda rows: policy_s(rows) + late, auto_reset=not whole
        )
        return outcome.seconds, outcome.records

    def close(self) -> None:
        self._pool.close()
        self._slab.close()


@contextmanager
def opened(args: argparse.Namespace, **env: Any) -> Iterator[Bench]:
    usual = {"work": "sleep", "step_s": args.te, "size": 16, "cameras": 1, "horizon": args.records}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench({**usual, **env}, args.slots, args.workers, Path(folder))
        try:
            bench.real(args.slots, schedules(args.slots)["lockstep"], lambda rows: 0.0)  # warm
            yield bench
        finally:
            bench.close()


def policy_of(args: argparse.Namespace, r: float) -> Callable[[int], float]:
    return policy_time(r * args.slots * args.te / args.workers, args.slots, 0.2)


def rates(bench: Bench, args: argparse.Namespace, count: int, r: float) -> dict[str, dict[str, Any]]:
    """Schedule → records a second, real (over rounds) and of the model."""
    policy_s, found = policy_of(args, r), {name: [] for name in schedules(args.slots)}  # type: ignore[var-annotated]
    for _ in range(args.rounds):
        for name, rule in schedules(args.slots).items():
            seconds, records = bench.real(count, rule, policy_s)
            found[name].append(records / seconds)
    rows: dict[str, dict[str, Any]] = {}
    for name, rule in schedules(args.slots).items():
        seconds, records = bench.model(count, rule, policy_s)
        rows[name] = {"real": spread(found[name]), "model": records / seconds, "oversleep_s": bench.oversleep_s}
        rows[name]["real over model"] = median(found[name]) / rows[name]["model"]
        rows[name]["real over lockstep"] = median(found[name]) / median(found["lockstep"])
    for name, row in rows.items():
        real, model, lockstep = row["real"]["median"], row["real over model"], row["real over lockstep"]
        print(f"  policy/env {r:<4g} {name:9s} {real:7.1f} records/s", end="")
        print(f"  {model:.3f} of the model  {lockstep:.2f} times lockstep", flush=True)
    print(f"  sleeps took {1e3 * bench.oversleep_s:.2f} ms too long")
    return rows


def constant(args: argparse.Namespace) -> dict[str, Any]:
    forms = {"lockstep": lockstep_rate, "2-stage": two_stage_rate, "ready": ready_rate}
    with opened(args) as bench:
        rows = rates(bench, args, args.slots, 0.5)
    for name, row in rows.items():
        row["closed form"] = forms[name](args.slots, args.workers, args.te, policy_of(args, 0.5))
        row["real over closed form"] = row["real"]["median"] / row["closed form"]
        print(f"  {name:9s} {row['real over closed form']:.3f} of the closed form")
    return {"0.5": rows}


def varied(args: argparse.Namespace) -> dict[str, Any]:
    with opened(args, sigma=0.4) as bench:
        return {str(r): rates(bench, args, args.slots, r) for r in args.r}


def resets(args: argparse.Namespace) -> dict[str, Any]:
    with opened(args, sigma=0.4, reset_s=(2.5 * args.te, 15 * args.te), ends_early=1.0) as bench:
        return {str(r): rates(bench, args, 4 * args.slots, r) for r in args.r}


def episodes(args: argparse.Namespace) -> dict[str, Any]:
    count, rules, found = args.episodes, schedules(args.slots), {}
    with opened(args, sigma=0.4, reset_s=(2.5 * args.te, 15 * args.te), ends_early=0.6) as bench:
        for r in args.r:
            policy_s = policy_of(args, r)
            fixed, ours = [], []
            for _ in range(args.rounds):
                fixed.append(bench.real(count, rules["lockstep"], policy_s, whole=True)[0])
                ours.append(bench.real(count, rules["ready"], policy_s)[0])
            model = bench.model(count, rules["lockstep"], policy_s, whole=True)[0]
            model /= bench.model(count, rules["ready"], policy_s)[0]
            gain = median(fixed) / median(ours)
            row = {
                "fixed horizon s": spread(fixed), "ready s": spread(ours), "model": model,
                "gain": gain, "real over model": gain / model,
            }  # fmt: skip
            print(f"  policy/env {r:<4g} {count} episodes {gain:.2f} times as fast (model {model:.2f})", flush=True)
            found[str(r)] = row
    return found


CELLS = {"constant": constant, "varied": varied, "resets": resets, "episodes": episodes}


BARS = {
    "lockstep over its closed form": (">=", 0.95),
    "2-stage over its closed form": (">=", 0.93),
    "ready over lockstep, no resets": (">=", 1.5),
    "ready over lockstep, resets at different times": (">=", 1.6),
    "2-stage over lockstep, no resets": (">=", 1.4),
    "whole episodes, ready over a lockstep to the step limit": (">=", 1.8),
    "largest error of the model": ("<=", 0.07),
}
"""What is to be kept, where the policy takes half as long as the envs; the error is that of all rows."""


def summary(cells: dict[str, Any]) -> dict[str, float]:
    """What the bars speak of, as far as it was measured."""
    values: dict[str, float] = {}
    if "constant" in cells:
        rows = cells["constant"]["0.5"]
        values |= {
            f"{name} over its closed form": rows[name]["real over closed form"] for name in ("lockstep", "2-stage")
        }
    for cell, what in (("varied", "no resets"), ("resets", "resets at different times")):
        rows = cells.get(cell, {}).get("0.5", {})
        values |= {
            f"{n} over lockstep, {what}": rows[n]["real over lockstep"] for n in ("ready", "2-stage") if n in rows
        }
    if "0.5" in cells.get("episodes", {}):
        gain = cells["episodes"]["0.5"]["gain"]
        values["whole episodes, ready over a lockstep to the step limit"] = gain
    rates = [
        row
        for cell in ("constant", "varied", "resets")
        for rows in cells.get(cell, {}).values()
        for row in rows.values()
    ]
    if rates:
        values["largest error of the model"] = max(abs(row["real over model"] - 1) for row in rates)
    return values


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", default=[*CELLS], choices=[*CELLS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--te", type=float, default=0.02, help="seconds of a chunk")
    parser.add_argument("--records", type=int, default=32, help="of an episode, at most")
    parser.add_argument("--episodes", type=int, default=256, help="of the episodes cell")
    parser.add_argument("--r", type=float, nargs="+", default=[0.5, 1.0])
    parser.add_argument("--name", default="scheduler", help="of the result's file")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    args = arguments(argv)
    result: dict[str, Any] = {"machine": machine(["numpy", "torch"]), "settings": vars(args), "cells": {}}
    for cell in args.cells:
        print(cell)
        result["cells"][cell] = CELLS[cell](args)
    result["bars"] = summary(result["cells"])
    result["kept"] = judge(result["bars"], BARS)
    result["load_after"] = os.getloadavg()[0]
    print("wrote", save(args.name, result))
    return result


if __name__ == "__main__":
    main()
