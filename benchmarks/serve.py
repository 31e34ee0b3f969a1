"""The policy server on loopback: what it adds to a forward pass, what batching gains, and openpi's server beside it.

    python benchmarks/serve.py --rounds 5

Servers and clients are processes of their own. Cells that are compared take turns of ten requests, so that other work
on the machine meets all of them. An observation is two 224×224 pictures (raw, or JPEG at quality 90) and eight numbers.
Cells:

- ``noop``: a policy that returns zeros, so the latency is all the server's and the client's. ``openpi`` is the same
  policy behind a server with openpi's behaviour: ``websockets``, inference on the event loop, and the codec of
  openpi-client from the package index (its server is in no index). Both serve the same client.
- ``tiny``: the small OpenVLA-OFT, one thread. The overhead of a request is its latency at the client less the time of
  the policy's call, as the answer tells it. ``bare`` is the same call in a process without a server, which takes its
  turn: the two calls should take about as long.
- clients: answers a second to one client and to eight. ``device`` is a policy that waits 20 ms for a call of any size,
  as one on an accelerator does, so batching helps. The small OpenVLA-OFT on one core is computed row by row: what
  batching can gain there is eight calls of one row over one call of eight, which is measured beside.

Percentiles are of all requests of a cell, figures are medians over rounds; CPU time is that of server and client.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from _measure import cpu_seconds, judge, machine, save
from _serve_servers import SIDE, STATE, make_policy, serve_as_openpi, serve_ours

from embodied.client import wire

FEW = 10  # requests in a row
OPENPI = "openpi-client==0.1.2"
BARS = {
    "overhead p95, raw, ms": ("<=", 5.0),
    "overhead p95, JPEG, ms": ("<=", 5.0),
    "8 clients over 1, device": (">=", 3.0),
    "noop: latency over openpi's, median": ("<=", 1.0),
    "noop: latency over openpi's, p95": ("<=", 1.0),
}


# -- servers -----------------------------------------------------------------------------------------------------------


@contextmanager
def process(role: str, folder: Path) -> Iterator[tuple[int, int]]:
    """A server in a process of its own: its port and its pid."""
    environ = {**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}", "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, __file__, "--role", role], stdout=subprocess.PIPE, text=True, env=environ, encoding="utf-8"
    )
    try:
        assert server.stdout is not None
        yield int(server.stdout.readline()), server.pid
    finally:
        server.kill()
        server.wait()


# -- clients ---------------------------------------------------------------------------------------------------------


def request(jpeg: bool) -> bytes:
    """A frame with an observation. The pictures are smooth with noise, so that JPEG has something to do."""
    from PIL import Image

    random = np.random.default_rng(0)
    ramp = np.linspace(0, 200, SIDE)[:, None, None] + random.integers(0, 40, (2, SIDE, SIDE, 3))
    pictures: Any = ramp.astype(np.uint8)
    if jpeg:
        files = [io.BytesIO() for _ in pictures]
        for picture, file in zip(pictures, files, strict=True):
            Image.fromarray(picture).save(file, "JPEG", quality=90)
        pictures = [file.getvalue() for file in files]
    return wire.pack({"images": pictures, "state": np.zeros(STATE, np.float32), "prompt": "push the cube"})


def latencies(port: int, frame: bytes, count: int, seconds: float = 1e9) -> list[tuple[float, bytes]]:
    """Seconds of each of ``count`` requests, or of those that ``seconds`` allow, and the answers."""
    from websockets.sync.client import connect

    found: list[tuple[float, bytes]] = []
    with connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None, proxy=None) as socket:
        socket.recv()
        until = time.perf_counter() + seconds
        while len(found) < count and time.perf_counter() < until:
            began = time.perf_counter()
            socket.send(frame)
            reply = socket.recv()
            assert not isinstance(reply, str), reply
            found.append((time.perf_counter() - began, reply))
    return found


def client(port: int, frame: bytes, seconds: float, start: Any, counts: Any) -> None:
    start.wait()
    counts.put(len(latencies(port, frame, 10**9, seconds)))


def rate(port: int, frame: bytes, clients: int, seconds: float) -> float:
    """Answers a second to so many clients, each a process of its own."""
    context = multiprocessing.get_context("spawn")
    start, counts = context.Barrier(clients), context.Queue()
    jobs = [context.Process(target=client, args=(port, frame, seconds, start, counts)) for _ in range(clients)]
    for job in jobs:
        job.start()
    total = sum(counts.get(timeout=120) for _ in jobs)
    for job in jobs:
        job.join()
    return total / seconds


# -- cells -----------------------------------------------------------------------------------------------------------


class Cell:
    """Requests of one client to one server."""

    def __init__(self, server: tuple[int, int], frame: bytes) -> None:
        (self._port, self._pid), self._frame = server, frame
        self._answers: list[tuple[float, bytes]] = []
        self._cpu = [0.0, 0.0]  # of server and client
        latencies(self._port, frame, 20)

    def ask(self, count: int) -> None:
        before = cpu_seconds([self._pid]), time.process_time()
        self._answers += latencies(self._port, self._frame, count)
        self._cpu[0] += cpu_seconds([self._pid]) - before[0]
        self._cpu[1] += time.process_time() - before[1]

    def figures(self) -> dict[str, float]:
        """Percentiles of the latency and of what was added to the policy's call, and CPU time of a request."""
        found = [1000 * seconds for seconds, _ in self._answers]
        calls = [wire.unpack(reply)["server_timing"]["infer_ms"] for _, reply in self._answers]
        added = [latency - call for latency, call in zip(found, calls, strict=True)]
        return {
            "median_ms": median(found),
            "p95_ms": float(np.quantile(found, 0.95)),
            "call_median_ms": median(calls),
            "added_median_ms": median(added),
            "added_p95_ms": float(np.quantile(added, 0.95)),
            "server_cpu_ms": 1000 * self._cpu[0] / len(found),
            "client_cpu_ms": 1000 * self._cpu[1] / len(found),
        }


def in_turn(cells: Mapping[str, Cell], count: int) -> dict[str, dict[str, float]]:
    """Ask ``count`` times in each cell, a few requests in each at a time: other work of the machine meets all alike."""
    for _ in range(-(-count // FEW)):
        for cell in cells.values():
            cell.ask(FEW)
    return {name: cell.figures() for name, cell in cells.items()}


class Bare:
    """The policy without a server."""

    def __init__(self) -> None:
        import torch

        self._torch, self._policy = torch, make_policy("tiny")
        self._images = np.zeros((8, 2, SIDE, SIDE, 3), np.uint8)
        self.call(1), self.call(8)

    def call(self, rows: int) -> float:
        """Seconds of a call for so many observations."""
        from embodied.types import Sampling

        torch = self._torch
        began = time.perf_counter()
        told = self._policy.encode_instructions(["push the cube"] * rows)
        obs = {"images": torch.from_numpy(self._images[:rows]), "state": torch.zeros(rows, STATE), **told}
        with torch.inference_mode():
            self._policy.act(obs, torch.zeros(rows, *self._policy.spec.noise.shape), Sampling(do_sample=False))
        return time.perf_counter() - began

    def block(self, count: int) -> dict[str, float]:
        before = time.process_time()
        found = [self.call(1) for _ in range(count)]
        used = time.process_time() - before
        eight = [self.call(8) for _ in range(max(3, count // 8))]
        return {
            "median_ms": 1000 * median(found),
            "p95_ms": 1000 * float(np.quantile(found, 0.95)),
            "cpu_ms": 1000 * used / count,
            "batch_of_8_ms": 1000 * median(eight),
        }


def measure(rounds: int, count: int, seconds: float) -> list[dict[str, Any]]:
    """The cells of each round."""
    raw, jpeg = request(False), request(True)
    found = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, OPENPI]
        subprocess.run(pip, check=True, capture_output=True)  # its pin of numpy would change the environment
        noop = opened.enter_context(process("noop", Path(folder)))
        openpi = opened.enter_context(process("openpi", Path(folder)))
        tiny = opened.enter_context(process("tiny", Path(folder)))
        device = opened.enter_context(process("device", Path(folder)))
        bare = Bare()
        for number in range(rounds):
            done: dict[str, Any] = in_turn(
                {"noop": Cell(noop, raw), "openpi": Cell(openpi, raw), "noop JPEG": Cell(noop, jpeg)}, count
            )
            done |= in_turn({"tiny raw": Cell(tiny, raw), "tiny JPEG": Cell(tiny, jpeg)}, count)
            done["bare"] = bare.block(count)
            rates = {(name, n): server for n in (1, 8) for name, server in (("device", device), ("tiny", tiny))}
            for name, clients in rates if number % 2 else reversed(rates):
                port = rates[name, clients][0]
                done[f"{name}, {clients} client{'s' * (clients > 1)}"] = rate(port, raw, clients, seconds)
            found.append(done)
            print(f"round {number + 1}: " + ", ".join(f"{n} {_short(v)}" for n, v in done.items()), flush=True)
    return found


def _short(value: Any) -> str:
    return f"{value['median_ms']:.2f}/{value['p95_ms']:.2f} ms" if isinstance(value, dict) else f"{value:.0f}/s"


def figures(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Medians over the rounds."""

    def middle(get: Any) -> float:
        return median(get(one) for one in rounds)

    return {
        "overhead p95, raw, ms": middle(lambda r: r["tiny raw"]["added_p95_ms"]),
        "overhead p95, JPEG, ms": middle(lambda r: r["tiny JPEG"]["added_p95_ms"]),
        "overhead median, raw, ms": middle(lambda r: r["tiny raw"]["added_median_ms"]),
        "overhead median, JPEG, ms": middle(lambda r: r["tiny JPEG"]["added_median_ms"]),
        "tiny: call behind the server over a bare one, median": middle(
            lambda r: r["tiny raw"]["call_median_ms"] / r["bare"]["median_ms"]
        ),
        "noop: latency p95, JPEG, ms": middle(lambda r: r["noop JPEG"]["p95_ms"]),
        "noop: latency p95, ms": middle(lambda r: r["noop"]["p95_ms"]),
        "noop: latency over openpi's, median": middle(lambda r: r["noop"]["median_ms"] / r["openpi"]["median_ms"]),
        "noop: latency over openpi's, p95": middle(lambda r: r["noop"]["p95_ms"] / r["openpi"]["p95_ms"]),
        "noop: server CPU over openpi's": middle(lambda r: r["noop"]["server_cpu_ms"] / r["openpi"]["server_cpu_ms"]),
        "8 clients over 1, device": middle(lambda r: r["device, 8 clients"] / r["device, 1 client"]),
        "8 clients over 1, tiny": middle(lambda r: r["tiny, 8 clients"] / r["tiny, 1 client"]),
        "8 calls of one row over one of eight, tiny": middle(
            lambda r: 8 * r["bare"]["median_ms"] / r["bare"]["batch_of_8_ms"]
        ),
        "a batch of eight over 3 calls of one row, tiny": middle(
            lambda r: r["bare"]["batch_of_8_ms"] / (3 * r["bare"]["median_ms"])
        ),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=300, help="of a cell")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a cell that counts answers")
    parser.add_argument("--role", choices=("noop", "device", "tiny", "openpi"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.role is not None:
        return serve_as_openpi() if args.role == "openpi" else serve_ours(args.role)
    facts = machine(["torch", "aiohttp", "websockets", "numpy", "msgpack"])
    rounds = measure(args.rounds, args.requests, args.seconds)
    values = figures(rounds)
    kept = judge(values, BARS)
    load = os.getloadavg()[0]
    print(save("serve", {**facts, "load_after": load, "figures": values, "bars_kept": kept, "rounds": rounds}))


if __name__ == "__main__":
    main()
