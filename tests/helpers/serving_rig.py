"""Servers in a thread of the tests' process, with the fake policy behind them; requests for them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from websockets.sync.client import ClientConnection, connect

from embodied.client import wire
from embodied.errors import SpecMismatchError
from embodied.learn.checkpoint.exported import ExportFile, with_files
from embodied.lib.spec_json import to_json
from embodied.serving.build import build_server
from embodied.serving.limits import ServerLimits
from embodied.serving.server import Server
from embodied.testing import FakeEnv, FakePolicy
from embodied.types import Decision, EnvSpec, Sampling

ENV = FakeEnv().spec  # two cameras of 16 × 16 pixels, a state of 8 numbers, actions [4, 7]
FAST = ServerLimits(rate=1e6, burst=10**6)


class Served:
    """A server that runs in a thread."""

    def __init__(self, server: Server, port: int, loop: asyncio.AbstractEventLoop) -> None:
        self.server, self.port, self.loop = server, port, loop

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def connect(self, path: str = "/", **options: Any) -> ClientConnection:
        return connect(f"ws://{self.address}{path}", compression=None, max_size=None, proxy=None, **options)

    def opened(self, **options: Any) -> ClientConnection:
        """A connection that the test closes itself."""
        return self.connect(**options).__enter__()

    def metric(self, name: str, labels: Mapping[str, str] | None = None) -> float:
        return self.server.metrics.registry.get_sample_value(f"embodied_serve_{name}", dict(labels or {})) or 0.0

    def drain(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.drain(), self.loop).result(60)


@contextmanager
def serving(policy: Any = None, env: EnvSpec = ENV, limits: ServerLimits = FAST, **options: Any) -> Iterator[Served]:
    if policy is None:
        policy = FakePolicy()
        policy.bind(env)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> Served:
        server = build_server(policy, env, limits, **options)
        return Served(server, await server.start("127.0.0.1", 0), loop)

    served = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    try:
        yield served
    finally:
        served.drain()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def observation(seed: int = 0, env: EnvSpec = ENV) -> dict[str, Any]:
    """A request as the env's fields are named."""
    random = np.random.default_rng(seed)
    pictures = random.integers(0, 256, env.obs["images"].shape, np.uint8)
    state = random.standard_normal(env.obs["state"].shape).astype(np.float32)
    return {"images": pictures, "state": state, "prompt": env.tasks[0]}


def ask(socket: ClientConnection, message: Mapping[str, Any]) -> Any:
    """The answer to a request: a map, or the text of an error."""
    socket.send(wire.pack(message))
    frame = socket.recv(timeout=30)
    return frame if isinstance(frame, str) else wire.unpack(frame)


class SlowPolicy(FakePolicy):
    """Answers when it is let, and notes how many rows each call had. Prompts with ``fail`` in them make it fail.

    Args:
        paced: calls wait for :attr:`go`, from the first request on.
    """

    def __init__(self, env: EnvSpec = ENV, paced: bool = False) -> None:
        super().__init__()
        self.go, self.began = threading.Event(), threading.Semaphore(0)
        self.batches: list[int] = []
        self._paced = paced
        self.bind(env)

    def encode_instructions(self, texts: Sequence[str]) -> Mapping[str, Tensor]:
        if any("fail" in text for text in texts):
            raise SpecMismatchError("no such thing", "say something else")
        if any("break" in text for text in texts):
            raise RuntimeError("/secret/path is broken")
        return super().encode_instructions(texts)

    def act(self, obs: Mapping[str, Tensor], noise: Tensor, sampling: Sampling) -> Decision:
        self.batches.append(len(noise))
        self.began.release()
        if self._paced and obs["state"].any():  # not while it is warmed up
            assert self.go.wait(30)
        decision = super().act(obs, noise, sampling)
        if obs["state"].abs().max() > 1e6:
            decision.fields["actions"][obs["state"].abs().amax(1) > 1e6] = torch.nan
        return decision


@contextmanager
def listening(
    words: Sequence[str], environ: Mapping[str, str], stderr: int = subprocess.STDOUT
) -> Iterator[tuple[subprocess.Popen, int]]:
    """A command that serves, in a process, and its port once it is ready."""
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environ, encoding="utf-8"
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("ready: "):
                yield process, int(line.split(",")[0].rpartition(":")[2])
                return
        raise AssertionError((said, process.communicate()[1]))
    finally:
        process.kill()
        process.communicate()


def export(folder: Path, seed: int) -> Path:
    """A folder as an export writes it, of the fake policy."""
    folder.mkdir(exist_ok=True)
    facts = ExportFile("hf", "fp32", to_json(ENV), {}, {"_target_": "embodied.testing.FakePolicy", "seed": seed}, {})
    (folder / "embodied.json").write_text(json.dumps(with_files(facts, folder)), encoding="utf-8")
    return folder
