"""A policy server asked directly, beside the same server asked through the proxy of a head.

    python benchmarks/head_proxy.py --requests 300

    client ─▶ server of the base            client ─▶ proxy: head ─▶ server of the base

Both servers are ``embodied.tools.serve`` in processes of their own, on loopback. An observation has two 224×224
pictures and eight numbers; the base answers at once, so that the figures are what the proxy adds. Requests take turns,
one of each way; the overhead of a pair is the difference of its two times.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measure import judge, machine, save
from embodied.models.head import around_base

from embodied.client import Client
from embodied.learn.checkpoint.checkpoint import Checkpoints
from embodied.learn.checkpoint.exported import ExportFile, with_files
from embodied.learn.origin import Origin
from embodied.lib.spec_json import to_json
from embodied.testing import FakeEnv
from embodied.types import EnvSpec

P95 = "overhead of the proxy, ms, 95th percentile of pairs"
BARS = {P95: ("<=", 3.0)}


class _Untrained:
    """What is saved of a head that has not learnt."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.optimizer = torch.optim.SGD([p for p in policy.parameters() if p.requires_grad])

    def state_dict(self) -> dict[str, Any]:
        return {"weight_version": 1}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError


@contextmanager
def served(*words: str) -> Iterator[tuple[str, int]]:
    """The server's address and its process's id, while it runs."""
    command = [sys.executable, "-m", "embodied.tools.serve", *words, "--port", "0", "--threads", "1", "--rate", "1e6"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, encoding="utf-8")
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("ready: "):
                yield line.removeprefix("ready: ").split(",")[0], process.pid
                return
        raise SystemExit("a server did not start")
    finally:
        process.kill()
        process.wait()


def export(folder: Path, env: EnvSpec) -> Path:
    """Writes the base: the fake policy, as an exported folder."""
    folder.mkdir()
    facts = ExportFile("hf", "fp32", to_json(env), {}, {"_target_": "embodied.testing.FakePolicy"}, {})
    (folder / "embodied.json").write_text(json.dumps(with_files(facts, folder)), encoding="utf-8")
    return folder


def head_around(url: str, folder: Path, env: EnvSpec) -> Path:
    """Writes the checkpoint of a head around the policy behind ``url``."""
    keys = {"base": {"url": url}}
    policy = around_base(**keys)
    policy.bind(env)
    origin = Origin("embodied.models.head.around_base", keys, (), 0, env)
    return Checkpoints(folder, 1, origin=origin.as_json()).save(_Untrained(policy), 1)


def cpu_ms(pid: int) -> float:
    """Returns the CPU time of a process's threads so far, ms, by its own clock (Linux: ``clock_getcpuclockid``)."""
    return 1000 * time.clock_gettime(((~pid) << 3) | 2)


def measure(ways: Mapping[str, Client], obs: Mapping[str, Any], requests: int, warm: int) -> dict[str, np.ndarray]:
    """Returns the times of the requests of each way, ms [requests]."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(warm + requests):
        order = [*ways] if number % 2 else [*ways][::-1]
        for name in order:
            began = time.perf_counter()
            ways[name].infer(dict(obs))
            times[name].append(1000 * (time.perf_counter() - began))
    return {name: np.array(found[warm:]) for name, found in times.items()}


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, and writes ``results/head_proxy.json``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=300, help="of each way")
    parser.add_argument("--warm", type=int, default=30, help="requests that are not counted")
    parser.add_argument("--size", type=int, default=224, help="pixels of a side of the two pictures")
    parser.add_argument("--name", default="head_proxy", help="of the result")
    args = parser.parse_args(argv)
    facts, env = machine(["torch", "numpy", "websockets", "aiohttp", "msgpack"]), FakeEnv(size=args.size).spec
    random = np.random.default_rng(0)
    obs = {
        "images": random.integers(0, 256, env.obs["images"].shape, np.uint8),
        "state": random.standard_normal(env.obs["state"].shape).astype(np.float32), "prompt": env.tasks[0],
    }  # fmt: skip
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        base, base_pid = stack.enter_context(served(str(export(folder / "base", env))))
        head = head_around(base, folder / "checkpoints", env)
        proxy, proxy_pid = stack.enter_context(served(str(head), "--base", base))
        ways = {name: stack.enter_context(Client(url)) for name, url in (("direct", base), ("proxy", proxy))}
        measure(ways, obs, 1, args.warm)
        before = cpu_ms(base_pid), cpu_ms(proxy_pid)
        times = measure(ways, obs, args.requests, 0)
        spent = cpu_ms(base_pid) - before[0], cpu_ms(proxy_pid) - before[1]
    added = times["proxy"] - times["direct"]
    values = {
        **{f"{name}, ms, {what}": float(np.percentile(found, share)) for name, found in times.items()
           for what, share in (("median", 50), ("95th percentile", 95))},
        "overhead of the proxy, ms, median of pairs": float(np.median(added)),
        "CPU of a request, ms, server of the base": spent[0] / (2 * args.requests),
        "CPU of a request, ms, proxy": spent[1] / args.requests,
        P95: float(np.percentile(added, 95)),
    }  # fmt: skip
    bars = judge(values, BARS)
    settings = {"requests": args.requests, "warm": args.warm, "size": args.size}
    save(args.name, {
        "machine": facts, "load_after": os.getloadavg()[0], "settings": settings, "figures": values, "bars": bars,
    })  # fmt: skip


if __name__ == "__main__":
    main()
