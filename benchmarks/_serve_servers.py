"""The servers that ``benchmarks/serve.py`` asks, and their policies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

CHUNK, ACTIONS, STATE, SIDE = 8, 7, 8, 224


def env_spec() -> Any:
    from embodied.types import ArraySpec, ContinuousAction, EnvSpec

    obs = {"images": ArraySpec((2, SIDE, SIDE, 3), "uint8"), "state": ArraySpec((STATE,), "float32")}
    action = ContinuousAction((-1.0,) * ACTIONS, (1.0,) * ACTIONS)
    return EnvSpec(obs, ("front", "wrist"), action, ("push the cube",), (1,), 100, 20.0)


def make_policy(kind: str) -> Any:
    import torch

    from embodied.types import ArraySpec, Decision, Elements, Noise, PolicySpec

    class Noop:
        """Returns zeros, after ``wait_s`` seconds."""

        wait_s = 0.02 if kind == "device" else 0.0
        spec = PolicySpec(
            CHUNK, {"actions": ArraySpec((CHUNK, ACTIONS), "float32")}, Elements((CHUNK, ACTIONS), 0), Noise((1,))
        )

        def encode_instructions(self, texts: Sequence[str]) -> Mapping[str, torch.Tensor]:
            return {}

        def act(self, obs: Any, noise: torch.Tensor, sampling: Any) -> Decision:
            if self.wait_s:
                time.sleep(self.wait_s)
            return Decision({"actions": torch.zeros(len(noise), CHUNK, ACTIONS)})

        def describe(self) -> Mapping[str, str]:
            return {"model": "no-op"}

    torch.set_num_threads(1)
    if kind in ("noop", "device"):
        return Noop()
    from embodied.models.openvla_oft import build_policy

    policy = build_policy(
        size="tiny", image_size=[64, 64], num_images_in_input=2, use_proprio=True, proprio_dim=STATE,
        action_dim=ACTIONS, num_action_chunks=CHUNK, center_crop=False, policy_setup="none",
        attention="bidirectional", stop_token=True,
    )  # fmt: skip
    policy.bind(env_spec())
    return policy


def serve_ours(kind: str) -> None:
    """Serve until the process is killed. Prints the port."""
    from embodied.serving.build import build_server
    from embodied.serving.limits import ServerLimits

    async def run() -> None:
        server = build_server(make_policy(kind), env_spec(), ServerLimits(rate=1e9, burst=10**9))
        print(await server.start("127.0.0.1", 0), flush=True)
        await asyncio.Event().wait()

    asyncio.run(run())


def serve_as_openpi() -> None:
    """A server with the behaviour of openpi's: its codec, one task for each connection, inference on the event loop."""
    import websockets.asyncio.server
    from openpi_client import msgpack_numpy

    async def converse(socket: Any) -> None:
        packer, before = msgpack_numpy.Packer(), None
        await socket.send(packer.pack({}))
        async for frame in socket:
            began = time.monotonic()
            obs = msgpack_numpy.unpackb(frame)
            assert obs["images"].shape == (2, SIDE, SIDE, 3)
            asked = time.monotonic()
            actions = np.zeros((CHUNK, ACTIONS), np.float32)
            timing = {"infer_ms": 1000 * (time.monotonic() - asked)}
            if before is not None:
                timing["prev_total_ms"] = 1000 * before
            await socket.send(packer.pack({"actions": actions, "server_timing": timing}))
            before = time.monotonic() - began

    async def run() -> None:
        server = await websockets.asyncio.server.serve(converse, "127.0.0.1", 0, compression=None, max_size=None)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.wait_closed()

    asyncio.run(run())
