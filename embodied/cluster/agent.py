"""The actor of a node: starts the keeper of its ranks and hands on what that tells. Knows nothing of Ray's classes."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from typing import Any

from embodied.cluster.ranks import Order, free_port

BATCH = 1000  # most lines that one answer carries
SIOCGIFADDR = 0x8915


class Agent:
    """Calls of it run in threads: :meth:`events` waits while others answer.

    Args:
        address: of this node in the cluster.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._lines: list[str] = []
        self._forgotten = 0  # lines before these
        self._more = threading.Condition()
        self._over = False  # the keeper has ended
        self._keeper: subprocess.Popen[str] | None = None

    def clock(self) -> float:
        return time.time()

    def port(self) -> int:
        """Returns a free port, for the ranks to meet."""
        return free_port(self._address)

    def start(self, order: dict[str, Any]) -> None:
        """Starts the node's ranks (:class:`Order`)."""
        command = [sys.executable, "-m", "embodied.cluster.keeper"]
        self._keeper = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
            env=_environment(self._address), cwd=order["folder"], start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._read, args=(self._keeper,), daemon=True, name="keeper").start()
        self.send(asdict(Order(**order)))

    def send(self, command: dict[str, Any]) -> None:
        """Hands a command to the keeper, if it is still there."""
        assert self._keeper is not None, "start is called first"
        assert self._keeper.stdin is not None
        try:
            self._keeper.stdin.write(json.dumps(command) + "\n")
            self._keeper.stdin.flush()
        except OSError:  # its ranks have ended
            return

    def _read(self, keeper: subprocess.Popen[str]) -> None:
        assert keeper.stdout is not None
        for line in keeper.stdout:
            with self._more:
                self._lines.append(line)
                self._more.notify_all()
        with self._more:
            self._over = True
            self._more.notify_all()

    def events(self, first: int, wait_s: float) -> list[str]:
        """Returns what the ranks have told from the ``first``-th line on, as soon as there is one, or nothing after
        ``wait_s`` seconds. A call whose answer was lost on the way can be made again; lines before are forgotten.

        Raises:
            RuntimeError: the keeper has ended, and all that it told was asked for.
        """
        with self._more:
            del self._lines[: max(0, first - self._forgotten)]
            self._forgotten = max(first, self._forgotten)
            self._more.wait_for(lambda: self._lines or self._over, wait_s)
            if self._over and not self._lines:
                raise RuntimeError("the keeper of the ranks has ended")
            return self._lines[:BATCH]


def _environment(address: str) -> dict[str, str]:
    """Returns this process's variables with the interface by which gloo reaches the other nodes. It would take that of
    the host's name, which on many machines is the loopback interface."""
    variables = dict(os.environ)
    if (interface := interface_of(address)) is not None:
        variables.setdefault("GLOO_SOCKET_IFNAME", interface)
    return variables


def interface_of(address: str) -> str | None:
    """Returns the network interface that has an IPv4 address; None if none has.

    >>> interface_of("127.0.0.1")
    'lo'
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                got = fcntl.ioctl(asked, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(got[20:24]) == address:
                return name
    return None
