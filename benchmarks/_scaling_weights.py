"""What it takes to give weights to processes that only collect: the rate, and whether a rollout waits for it.

Rates are taken between two processes of this machine, and between two in network namespaces of their own, which a veth
pair connects as a cable does two machines.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import _scaling_runs as runs
from _measure import spread

sys.path += [str(runs.ROOT / "tests" / folder) for folder in ("cluster", "helpers")]
import lab

RATE = str(Path(__file__).parent / "_weights_rate.py")
PORT = "29511"
PLACES = {"one machine": None, "two namespaces": 0, "10 Gb/s between two namespaces": 10_000}
HIDDEN = (
    "env.train.total_num_envs=4", "env.train.max_episode_steps=24", "env.train.step_s=0.05", "algorithm.group_size=4",
    "env.num_workers=4", "algorithm.rollout_epoch=2", "algorithm.max_staleness=1", "runner.max_epochs=8",
    "+actor.model.num_tasks=250000", "cluster.component_placement={actor:0,rollout:1}",
)  # fmt: skip


def rate(args: argparse.Namespace) -> dict[str, Any]:
    """Bytes a second of a transfer over those of a bare broadcast."""
    found: dict[str, Any] = {}
    bars = {}
    for place, mbits in PLACES.items():
        if mbits is not None and (reason := lab.why_not()) is not None:
            found[place] = f"not run: {reason}"
            continue
        got = json.loads(_measured([RATE, str(args.transfers)], mbits).splitlines()[-1])
        bare = got["seconds"]["bare"]
        found[place] = {
            way: {"MB_per_s": spread([got["bytes"] / 1e6 / one for one in seconds])}
            for way, seconds in got["seconds"].items()
        }
        for way in ("weights", "weights, not compared"):
            pairs = zip(bare, got["seconds"][way], strict=True)
            bars[f"{place}: rate of {way} over a bare broadcast's"] = median(one / other for one, other in pairs)
    return {"found": found, "bars": bars}


def _measured(script: Sequence[str], mbits: int | None) -> str:
    """Returns what rank 0 of a script prints.

    Args:
        mbits: None: without namespaces; 0: between two, as fast as they are.
    """
    if mbits is not None:
        with _two_machines(mbits) as made:
            return _between(made, script)

    def started(rank: int, words: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        return subprocess.Popen([*words], env=runs.environment(WORLD_SIZE="2", MASTER_PORT=PORT, **variables), **how)

    with tempfile.TemporaryDirectory() as folder:
        return _ranks(started, script, Path(folder, "log"))


@contextmanager
def _two_machines(mbits: int) -> Iterator[lab.Lab]:
    """Machines a and b in namespaces, which send at most at a rate; 0: as fast as they can."""
    with tempfile.TemporaryDirectory() as folder, lab.Lab(sys.executable, Path(folder)) as made:
        for number, name in enumerate("ab", 1):
            made.machine(name, number)
            if mbits:
                limit = ["rate", f"{mbits}mbit", "burst", f"{max(256, mbits)}kb", "latency", "100ms"]
                made.run(name, ["tc", "qdisc", "add", "dev", "e0", "root", "tbf", *limit]).check_returncode()
        yield made


def _ranks(started: Callable[..., subprocess.Popen[bytes]], script: Sequence[str], log: Path) -> str:
    """Runs a Python script as two ranks; returns what rank 0 prints."""
    with log.open("w", encoding="utf-8") as errors:
        words = [sys.executable, *script]
        both = [started(rank, words, stdout=subprocess.PIPE, stderr=errors) for rank in range(2)]
        said = [process.communicate()[0].decode() for process in both]
    if any(process.returncode for process in both):
        raise SystemExit(f"a rank failed:\n{log.read_text(encoding='utf-8')[-3000:]}\n{said}")
    return said[0]


def _between(made: lab.Lab, script: Sequence[str]) -> str:
    """Runs a Python script as two ranks, one on each machine."""
    variables = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "198.18.0.1",
                 "MASTER_PORT": PORT, "GLOO_SOCKET_IFNAME": "e0"}  # fmt: skip

    def started(rank: int, words: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
        return made.popen("ab"[rank], words, env={**variables, "RANK": str(rank)}, **how)

    return _ranks(started, script, made.folder / "log")


def hidden(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of an iteration over those of its longer half, where a transfer takes a good part of these."""
    if (reason := lab.why_not()) is not None:
        return {"found": f"not run: {reason}", "bars": {}}
    with _two_machines(args.mbits) as made:
        _between(made, ["-m", "embodied.train", *runs.RUN, *HIDDEN, "--config-dir", str(runs.FAKES)])
        rows = runs.rows(made.folder)[2:-1]
    names = ("time/iteration_s", "time/rollout_s", "time/train_s", "time/weight_transfer_s")
    found = {name: [row[name] for row in rows] for name in names}
    longer = [max(row["time/rollout_s"], row["time/train_s"]) for row in rows]
    iteration = sum(found["time/iteration_s"]) / sum(longer)
    return {
        "found": {name: spread(values) for name, values in found.items()},
        "bars": {
            "iteration over its longer half": iteration,
            "transfer over the longer half": sum(found["time/weight_transfer_s"]) / sum(longer),
        },
    }
