"""Real processes that meet over gloo, for tests of what several ranks do."""

from __future__ import annotations

import os
import pickle
import socket
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from multiprocessing import get_context
from multiprocessing.connection import wait
from typing import Any

import torch

from embodied.parallel.group import Group

DEADLINE_S = 120.0
FORKS = get_context("forkserver")
"""Ranks are forks of a process that has imported torch, once for all tests of this process."""
FORKS.set_forkserver_preload(["torch", "embodied.learn.trainer", "embodied.run.rl", "torch._dynamo", "ranks"])


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def on_ranks(
    work: Callable[..., Any], *arguments: Any, size: int = 2, leaves: Sequence[int] = (), connects: bool = True
) -> list[Any]:
    """``work(world, *arguments)`` in ``size`` processes; what each gave back, by rank. A function of a module's top.

    Args:
        leaves: ranks that end without a result; theirs is None.
        connects: False: the processes are left to connect themselves (:func:`connected`), more than once if they like.
    """
    port = free_port()
    pipes, processes = [], []
    for rank in range(size):
        ours, theirs = FORKS.Pipe()
        place = (dict(os.environ), os.getcwd())
        process = FORKS.Process(target=_rank, args=(theirs, work, arguments, rank, size, port, connects, place))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        return _results(pipes, leaves)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _results(pipes: list[Any], leaves: Sequence[int]) -> list[Any]:
    got: dict[int, Any] = dict.fromkeys(leaves)
    while len(got) < len(pipes):
        waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in got]
        ready = wait(waiting, DEADLINE_S)
        assert ready, f"ranks {[rank for rank in range(len(pipes)) if rank not in got]} are still at work"
        for pipe in ready:
            error, value = pickle.loads(pipe.recv_bytes())
            assert not error, error
            got[pipes.index(pipe)] = value
    return [got[rank] for rank in range(len(pipes))]


def connected(world: Group) -> AbstractContextManager[None]:
    """Connects the processes over gloo."""
    return world.connected(on_gpu=False, timeout_s=60.0)


def _rank(
    pipe: Any, work: Callable[..., Any], arguments: tuple[Any, ...], rank: int, size: int, port: int, connects: bool,
    place: tuple[dict[str, str], str],
) -> None:  # fmt: skip
    os.environ.clear()  # the server's are those of the first test
    os.environ |= place[0] | {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    os.chdir(place[1])
    torch.set_num_threads(1)
    world = Group.from_environment()
    try:
        with connected(world) if connects else nullcontext():
            pipe.send_bytes(pickle.dumps(("", work(world, *arguments))))
    except BaseException:  # noqa: BLE001
        pipe.send_bytes(pickle.dumps((f"rank {rank}:\n{traceback.format_exc()}", None)))
