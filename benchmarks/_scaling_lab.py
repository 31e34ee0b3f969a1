"""What is lost, and for how long, when a node, a link or the head of a Ray cluster is gone.

Nodes are network namespaces of this machine (tests/cluster/lab.py), so it takes root. A killed node is killed with all
that is in it, as when its power is cut.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import _scaling_runs as runs
from _measure import prioritised

sys.path += [str(runs.ROOT / "tests" / folder) for folder in ("cluster", "helpers")]
import lab

HERE = Path(__file__).parent
WAIT_S = 300.0
TWO = ("cluster.launcher=ray", "cluster.num_nodes=2", "cluster.num_gpus_per_node=1")
ONE = ("cluster.launcher=ray", "cluster.num_nodes=1", "cluster.num_gpus_per_node=1")
LASTS = (
    "runner.save_interval=1", "runner.max_epochs=500", "env.train.total_num_envs=4", "env.train.max_episode_steps=10",
    "env.train.step_s=0.05", "env.num_workers=1", "algorithm.rollout_epoch=2",
)  # fmt: skip


@contextmanager
def cluster(args: argparse.Namespace, *names: str) -> Iterator[lab.Lab]:
    """Ray nodes of these names, the first is the head; their processes have this one's priority."""
    with (
        tempfile.TemporaryDirectory() as folder,
        lab.Lab(args.ray_python, Path(folder)) as made,
        prioritised(lambda: [process.pid for process in made.nodes.values()]),
    ):
        for number, name in enumerate(names, 1):
            made.start(name, number, cpus=2)
        yield made


def needs(measure: Callable[[argparse.Namespace], dict[str, Any]]) -> Callable[[argparse.Namespace], dict[str, Any]]:
    """Says why a cell is not run, where there can be no nodes."""

    def measured(args: argparse.Namespace) -> dict[str, Any]:
        reason = lab.why_not() if args.ray_python else "--ray-python names no interpreter with Ray"
        return measure(args) if reason is None else {"found": f"not run: {reason}", "bars": {}}

    measured.__doc__ = measure.__doc__
    return measured


def when(holds: Callable[[], Any]) -> tuple[float, Any]:
    """Waits until something holds; returns the moment, and what it gave."""
    until = time.monotonic() + WAIT_S
    while not (found := holds()):
        if time.monotonic() > until:
            raise SystemExit(f"not within {WAIT_S:g} s")
        time.sleep(0.01)
    return time.monotonic(), found


class Run:
    """A training that a node launches, and what it has said so far."""

    def __init__(self, made: lab.Lab, node: str, *overrides: str, name: str = "run") -> None:
        self.made, self.folder, self.out = made, made.folder / "runs" / name, made.folder / f"{name}.out"
        words = [made.python, "-m", "embodied.train", *runs.RUN, *overrides, f"runner.experiment_name={name}",
                 "--config-dir", str(runs.FAKES)]  # fmt: skip
        with self.out.open("wb") as file:
            self.process = made.popen(node, words, stdout=file, stderr=file)

    def said(self) -> str:
        return self.out.read_text(encoding="utf-8", errors="replace")

    def rows(self) -> list[dict[str, float]]:
        file = self.folder / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []

    def at(self, holds: Callable[[], Any]) -> tuple[float, Any]:
        """As :func:`when`, while the run goes on."""
        return when(lambda: self._going(holds))

    def _going(self, holds: Callable[[], Any]) -> Any:
        found = holds()
        if not found and self.process.poll() not in (None, 0, 143):
            raise SystemExit(f"the run has ended:\n{self.said()[-3000:]}")
        return found

    def is_under_way(self) -> bool:
        return len(self.rows()) >= 3

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def is_saved(self) -> bool:
        return self.is_under_way() and (self.folder / "checkpoints" / "000002" / "meta.json").exists()


@needs
def host_killed(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds until a lost host is said, and until its slots are back on a spare node."""
    with cluster(args, "a", "b", "c") as made:
        words = [made.python, str(HERE / "_host_lost.py"), "198.18.0.1", lab.HEAD, str(made.folder)]
        log = made.folder / "out"
        with log.open("wb") as file, (made.folder / "err").open("wb") as errors:
            process = made.popen("a", words, stdout=file, stderr=errors)

        def event(what: str) -> Callable[[], Any]:
            def found() -> Any:
                if process.poll() is not None:
                    raise SystemExit((made.folder / "err").read_text(encoding="utf-8")[-3000:])
                lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line[-1] == "}"]
                return next((line for line in lines if line["what"] == what), None)

            return found

        try:
            _, up = when(event("up"))
            time.sleep(3.0)
            killed = time.monotonic()
            made.cut_power(up["node"])
            said, back = when(event("said"))[1], when(event("back"))[1]
            start_s = when(event("pool"))[1]["seconds"]
        finally:
            process.kill()
            process.wait()
    found = {"node lost": up["node"], "node taken": back["node"], "said": said["text"].splitlines()[0],
             "a simulator's start, s": start_s, "slots back after, s": back["at"] - killed}  # fmt: skip
    bars = {"lost host said after, s": said["at"] - killed,
            "slots back after, less the simulator's start, s": back["at"] - killed - start_s}  # fmt: skip
    return {"found": found, "bars": bars}


CUT_S = 10.0


@needs
def link_cut(args: argparse.Namespace) -> dict[str, Any]:
    """Episodes lost and seconds that a run takes longer because the link to its simulator host stands still."""
    options = (*ONE, *LASTS, "runner.max_epochs=12", "env.num_workers=4", "cluster.simulator_hosts=1")
    with cluster(args, "a", "b") as made:
        took = {}
        for name in ("whole", "cut"):
            run = Run(made, "a", *options, name=name)
            run.at(run.is_under_way)
            if name == "cut":
                host = "b" if made.pids("b", "embodied.runtime.remote.serve") else "a"
                for way in ("down", "up"):
                    lab.ip("-n", made._hub, "link", "set", "dev", host, way)
                    time.sleep(CUT_S if way == "down" else 0.0)
            run.at(run.is_over)
            rows = run.rows()
            took[name] = sum(row["time/iteration_s"] for row in rows[1:])
            lost = sum(row["rollout/worker_restarts"] for row in rows)
    found = {"host on": host, "link cut for, s": CUT_S, "run, s": took["whole"], "run with the cut, s": took["cut"]}
    return {"found": found, "bars": {"hosts and workers lost": lost, "longer, s": took["cut"] - took["whole"]}}


@needs
def rank_killed(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds until a run whose node was killed has ended with its name, and until it goes on from its checkpoint."""
    with cluster(args, "a", "b") as made:
        run = Run(made, "a", *TWO, *LASTS, "cluster.max_restarts=1")
        try:
            run.at(run.is_saved)
            old = [pid for pid in made.pids("a", "embodied.train") if b"RANK=0" in environment_of(pid)]
            killed, done = time.monotonic(), len(run.rows())
            made.cut_power("b")
            named, _ = run.at(lambda: re.search(r"node b .* is lost: .*", run.said()))
            ended, _ = run.at(lambda: not any(Path(f"/proc/{pid}").exists() for pid in old))
            restarted, _ = run.at(lambda: "restart 1 of 1" in run.said())
            done = len(run.rows())
            going, _ = run.at(lambda: len(run.rows()) > done)
        finally:
            run.process.kill()
            run.process.wait()
    found = {"named after, s": named - killed, "ranks ended after, s": ended - killed,
             "restart after, s": restarted - killed, "iterations when it was killed": done}  # fmt: skip
    bars = {"ended and named after, s": max(named, ended) - killed, "first new iteration after, s": going - killed}
    return {"found": found, "bars": bars}


def environment_of(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


@needs
def head_killed(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds until a run whose cluster has lost its head has saved and ended."""
    with cluster(args, "a", "b") as made:
        run = Run(made, "b", *TWO, *LASTS)
        try:
            run.at(run.is_saved)
            (gcs,) = made.pids("a", "gcs/gcs_server")
            killed = time.monotonic()
            os.kill(gcs, signal.SIGKILL)
            ended, _ = run.at(run.is_over)
            status = run.process.returncode
        finally:
            run.process.kill()
            run.process.wait()
        saved, iterations = max(path.name for path in (run.folder / "checkpoints").glob("0*")), len(run.rows())
        named = re.search(r"the head \(\S+\) is gone", run.said())
    found = {"said": named and named.group(), "last checkpoint": saved, "iterations": iterations}
    bars = {"checkpoint and end after, s": ended - killed, "exit status": status}
    return {"found": found, "bars": bars}


CELLS = {"host killed": host_killed, "link cut": link_cut, "rank killed": rank_killed, "head killed": head_killed}
