"""The process of a simulator host: ``python -m embodied.runtime.remote.serve FD HOST`` reads key and job from its
standard input, writes the address at which it listens to the descriptor, and serves until it is told to end."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable

from embodied.observe.terminal import streams
from embodied.runtime.remote.host import Host
from embodied.runtime.remote.starter import Address, HostJob


def serve(job: HostJob, key: bytes, bind: Address, listening: Callable[[Address], None]) -> int:
    """Serves a rollout in this process; returns the exit status. The thread that calls this starts the workers, which
    the kernel ends with it.

    Args:
        bind: address to listen at; port 0 = any.
        listening: is given the address, before any simulator is built.
    """
    host = Host(job, key, bind)
    listening(host.address)
    return host.serve()


def main() -> int:
    streams.for_log()
    key, job = pickle.load(sys.stdin.buffer)  # from the process that has started this one
    return serve(job, key, Address(sys.argv[2], 0), lambda address: _report(int(sys.argv[1]), address))


def _report(descriptor: int, address: Address) -> None:
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        print(*address, file=file)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads at the door may be waiting for strangers
