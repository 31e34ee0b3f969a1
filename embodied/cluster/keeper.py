"""Keeps the ranks of a node alive while its agent is there, and longer: until they have saved.

    python -m embodied.cluster.keeper      order, then commands: standard input; events: standard output

| when | the ranks |
|---|---|
| a command says a signal | get it |
| a command says ``end`` | get SIGTERM, and SIGKILL after some seconds |
| standard input ends: the agent has gone | get SIGTERM, and SIGKILL after ``grace_s`` |
| the head does not answer for a while | get SIGTERM, before Ray ends the agent |

It is no child of the agent: Ray kills an actor's children with the actor.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import closing, suppress

from embodied.cluster.events import Event, HeadGone, Tell, as_line
from embodied.cluster.ranks import Order, Ranks
from embodied.observe.terminal import streams

RAY_ENDS_S = 60.0  # after the head's end Ray ends what it has started (gcs_rpc_server_reconnect_timeout_s)
PROBED_S = 1.0
END_S = 3.0


def main() -> int:
    streams.for_log()
    if os.fork():
        os._exit(0)  # the agent's child ends here; what goes on has another parent
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # Ray blocks Ctrl-C in its workers, and ranks would inherit that
    told = threading.Lock()

    def tell(event: Event) -> None:
        with told, suppress(OSError, ValueError):  # nobody reads any more; the ranks' logs go on
            sys.stdout.write(as_line(event))
            sys.stdout.flush()

    order = Order(**json.loads(sys.stdin.readline()))
    ranks = Ranks(order, tell)
    if order.head:
        threading.Thread(target=_watch_head, args=(order, ranks, tell), daemon=True, name="head").start()
    for line in sys.stdin:
        command = json.loads(line)
        if "signal" in command:
            ranks.signal(command["signal"])
        else:
            threading.Thread(target=ranks.end, args=(command["end"],), daemon=True, name="end").start()
    ranks.end(order.grace_s)
    ranks.close()
    return 0


def patience_of(grace_s: float) -> float:
    """Returns how long the head may be silent: then the ranks have ``grace_s`` to save before Ray ends the agents.

    >>> patience_of(30.0), patience_of(300.0)
    (30.0, 10.0)
    """
    return max(10.0, RAY_ENDS_S - grace_s)


def _watch_head(order: Order, ranks: Ranks, tell: Tell) -> None:
    answered = time.monotonic()
    while time.monotonic() - answered < patience_of(order.grace_s):
        time.sleep(PROBED_S)
        if answers(order.head):
            answered = time.monotonic()
    tell(HeadGone(order.head))
    ranks.signal(signal.SIGTERM)


def answers(address: str, timeout_s: float = 2.0) -> bool:
    """Returns whether somebody takes connections at ``HOST:PORT``."""
    host, _, port = address.rpartition(":")
    with suppress(OSError, ValueError), closing(socket.create_connection((host, int(port)), timeout_s)):
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
