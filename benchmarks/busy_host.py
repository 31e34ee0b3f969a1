"""Seconds of a training step while other processes take the cores: OpenMP threads that spin for milliseconds while they
wait for each other (its default) against threads that soon sleep (what the entries of this project ask for), against
such that sleep at once, and against one thread.

    python benchmarks/busy_host.py

Each variant is a process that makes optimizer steps on random records with the small OpenVLA-OFT, all of whose weights
are trained as in supervised training: forward, backward, AdamW. They take turns, a step each, while none, one and two
other processes compute without a pause. ``over idle`` is a step's wall time over that of the same variant on the idle
machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from _measure import machine, save, spread

from embodied.runtime.wait_policy import SPINS

OURS = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": str(SPINS)}
VARIANTS: dict[str, tuple[Mapping[str, str], int]] = {
    "2 threads, OpenMP's default": ({}, 2),
    "2 threads, asleep at once": ({"OMP_WAIT_POLICY": "PASSIVE"}, 2),
    "2 threads, as embodied asks": (OURS, 2),
    "1 thread": (OURS, 1),
}
"""Environment variables and number of threads."""
BUSY = "while True: pass"


def work(threads: int, size: int) -> None:
    """A variant's process: a step for each line of standard input, its wall and CPU seconds on standard output."""
    import torch
    from embodied.models.openvla_oft import Settings
    from embodied.models.openvla_oft.build import build

    from embodied.types import ArraySpec, ContinuousAction, EnvSpec, Sampling

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    policy = build(Settings.from_kwargs({"size": "tiny", "is_lora": False}), torch.device("cpu"))
    policy.bind(
        EnvSpec(
            obs={"images": ArraySpec((1, 64, 64, 3), "uint8")}, cameras=("front",),
            action=ContinuousAction((-1.0,) * 7, (1.0,) * 7), tasks=("pull the cube",), num_init_states=(1,),
            max_episode_steps=50, control_hz=20.0,
        )
    )  # fmt: skip
    records = {
        "images": torch.randint(0, 256, (size, 1, 64, 64, 3), dtype=torch.uint8),
        "prompt": torch.zeros(size, dtype=torch.long),
    }
    noise = torch.rand(size, *policy.spec.noise.shape)
    records["action_tokens"] = policy.act(records, noise, Sampling()).fields["action_tokens"]
    optimizer = torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad], lr=1e-5)
    print("ready", flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        (-policy.evaluate(records, Sampling()).logprobs.mean()).backward()
        optimizer.step()
        print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]), flush=True)


@dataclass
class Variant:
    """A process that makes a step when it is told to."""

    process: subprocess.Popen[str]
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def step(self, counts: bool) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        wall, cpu = json.loads(self.process.stdout.readline())
        if counts:
            self.wall.append(wall)
            self.cpu.append(cpu)


@contextmanager
def started(variables: Mapping[str, str], threads: int, size: int) -> Iterator[Variant]:
    environment = {name: value for name, value in os.environ.items() if name not in OURS}
    command = [sys.executable, __file__, "--work", str(threads), "--records", str(size)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**environment, **variables},
    encoding="utf-8") as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield Variant(process)
        finally:
            process.kill()


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Meanwhile so many other processes compute."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measure(args: argparse.Namespace, count: int) -> dict[str, Any]:
    """Beside ``count`` busy processes."""
    with busy(count), ExitStack() as stack:
        variants = {
            name: stack.enter_context(started(variables, threads, args.records))
            for name, (variables, threads) in VARIANTS.items()
        }
        for number in range(args.rounds + 1):  # the first warms up
            for variant in variants.values():
                variant.step(counts=number > 0)
    return {name: {"wall_s": spread(v.wall), "cpu_s": spread(v.cpu), "steps": v.wall} for name, v in variants.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="steps of each variant")
    parser.add_argument("--records", type=int, default=32, help="of a step")
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2], help="numbers of busy processes")
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work, args.records)
        return
    facts, found = machine(["torch"]), {}
    for count in args.busy:
        found[str(count)] = rows = measure(args, count)
        for name, row in rows.items():
            row["over idle"] = row["wall_s"]["median"] / median(found[str(args.busy[0])][name]["steps"])
            print(
                f"{count} busy, {name}: {1000 * row['wall_s']['median']:.0f} ms "
                f"({1000 * row['wall_s']['min']:.0f} to {1000 * row['wall_s']['max']:.0f}), "
                f"CPU {1000 * row['cpu_s']['median']:.0f} ms, {row['over idle']:.2f} times idle",
                flush=True,
            )
    for rows in found.values():
        for row in rows.values():
            del row["steps"]
    print(save("busy_host", {"machine": facts, "busy": found}))


if __name__ == "__main__":
    main()
