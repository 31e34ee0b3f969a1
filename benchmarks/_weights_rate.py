"""One of two processes that send weights as split placements do, and bare broadcasts of as many bytes, in turn.

The tensors are adapters of a 7B model (rank 32, q, k, v and o of 32 layers, float32). What is timed begins and ends
with both processes at a barrier; rank 0 prints seconds as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from embodied.learn.ranks.weights import Receiver, Sender
from embodied.parallel.group import Group


class Adapters(nn.Module):
    def __init__(self, layers: int = 32, rank: int = 32, width: int = 4096) -> None:
        super().__init__()
        for number in range(4 * layers):
            self.register_parameter(f"a{number}", nn.Parameter(torch.randn(rank, width)))
            self.register_parameter(f"b{number}", nn.Parameter(torch.randn(width, rank)))


def received(receiver: Receiver, version: int) -> None:
    assert receiver.receive() == version


def main(rounds: int) -> None:
    torch.set_num_threads(1)
    world, policy = Group.from_environment(), Adapters()
    own: dict[str, Tensor] = {name: p.detach() for name, p in policy.named_parameters()}
    size = sum(tensor.nbytes for tensor in own.values())
    with world.connected(on_gpu=False, timeout_s=120):
        flat, beside = torch.zeros(size // 4), world.beside()
        ways: dict[str, Callable[[int], object]] = {"bare": lambda version: world.broadcast(flat)}
        for name, checks in (("weights", True), ("weights, not compared", False)):
            if world.rank == 0:
                sender = Sender(world, beside, {name: tensor.dtype for name, tensor in own.items()}, checks)
                ways[name] = partial(sender.send, own)
            else:
                receiver = Receiver(world, beside, policy, checks)  # type: ignore[arg-type]
                ways[name] = partial(received, receiver)
        found: dict[str, list[float]] = {name: [] for name in ways}
        for version in range(1, rounds + 2):
            for name, way in ways.items():
                world.gather(None)
                began = time.perf_counter()
                way(version)
                world.gather(None)
                if version > 1:
                    found[name].append(time.perf_counter() - began)
    if world.rank == 0:
        print(json.dumps({"bytes": size, "seconds": found}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
