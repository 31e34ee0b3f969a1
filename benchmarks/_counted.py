"""A training whose processes count the bytes of their connections: ``_counted.py FOLDER OVERRIDE …``

After each iteration a process writes a line into FOLDER/RANK: bytes that it has received over all its TCP connections,
as the kernel counts them, and of these those from simulator hosts. A dry run writes the links that it predicts into
FOLDER/links.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from embodied import train
from embodied.run.placement import traffic
from embodied.run.training.iteration import Synchronous

RECEIVED_AT = 128  # tcpi_bytes_received in struct tcp_info
INFO = 232


def received() -> int:
    """Bytes that this process's TCP connections have received so far, without headers."""
    total = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if os.readlink(link).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(link.name))) as one:
                    if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                        info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO)
                        total += struct.unpack_from("Q", info, RECEIVED_AT)[0]
    return total


def count(folder: Path) -> None:
    """Writes what this process's iterations, or its dry run, count."""
    rank, iteration, links = os.environ.get("RANK", "0"), Synchronous.iteration, traffic.links

    def counted(self: Synchronous, *given: Any) -> dict[str, float]:
        found = iteration(self, *given)
        pool = getattr(self._collector.workers, "pool", None)
        hosts = sum(up for _, up in getattr(pool, "traffic", {}).values())
        with (folder / rank).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"received": received(), "of_hosts": hosts}) + "\n")
        return found

    def predicted(*given: Any) -> Any:
        found = links(*given)
        (folder / "links").write_text(json.dumps({link.name: link.total for link in found}), encoding="utf-8")
        return found

    Synchronous.iteration, traffic.links = counted, predicted  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    count(Path(sys.argv[1]))
    sys.exit(train.main(sys.argv[2:]))
