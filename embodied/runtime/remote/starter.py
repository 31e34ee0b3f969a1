"""Starts simulator hosts: what a host is told, and what somebody who starts hosts must offer.

    RemotePool ── start(index, job, key, avoid) ──▶ HostStarter ──▶ a process on some node: serve(job, key, …)
    RemotePool ◀── StartedHost: node, address ───── HostStarter       (embodied.runtime.remote.serve)
    RemotePool ◀══════════════ TCP, opened with the key ═════════════ host

:class:`embodied.runtime.remote.local.LocalStarter` starts child processes of this machine. Another starter (Ray, a
batch system) runs :func:`embodied.runtime.remote.serve.serve` in a process of another node and returns its address. The
job and the key travel by the starter's own means, which must be trusted: the job is pickled, and the key opens the
host.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from embodied.runtime.pool.placement import Gpu
from embodied.runtime.pool.process import PoolConfig
from embodied.types import ArraySpec

KEY_BYTES = 32


class Address(NamedTuple):
    """Where a host listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class HostJob:
    """All that a host is told at its start; it can be pickled.

    Args:
        pool: of the host's own slots, numbered from 0. ``num_workers`` 0: one a slot, at most one a core of its node.
            ``log_dir`` is used if the node sees it, else a temporary folder of the node.
        fields: of a slab's row.
        obs: names of those fields that are an observation.
        gpus: on which its workers render; None = those that its process may use.
        forks: its workers are forked by a server that it starts.
        silence_s: seconds of silence after which the host ends itself (``cluster.node_timeout_s``).
        proof: name of a file in ``log_dir``. A node that finds it sees the run's folder.
        sys_path: the launcher's; folders in which a user's env class is looked for, too.
    """

    pool: PoolConfig
    fields: Mapping[str, ArraySpec]
    obs: tuple[str, ...]
    gpus: tuple[Gpu, ...] | None
    forks: bool
    silence_s: float
    proof: str
    sys_path: tuple[str, ...]


class StartedHost(Protocol):
    """A host that listens."""

    @property
    def node(self) -> str:
        """The node's name, for texts and for :meth:`HostStarter.start`."""
        ...

    @property
    def address(self) -> Address: ...

    def tail(self) -> str:
        """Returns the end of what its process has printed, or one sentence if that cannot be had. Must not block for
        long: the node may be gone."""
        ...

    def stop(self) -> None:
        """Ends the process if it runs, and what it has started. Must not block if the node is gone, and may be called
        again."""
        ...


class HostStarter(Protocol):
    """Starts hosts on nodes."""

    def start(self, index: int, job: HostJob, key: bytes, avoid: AbstractSet[str]) -> StartedHost:
        """Starts host ``index`` and waits until it listens, which is before its simulators are built.

        Called by a thread of its own for each host, also while other hosts serve.

        Args:
            key: :data:`KEY_BYTES` random bytes; it opens the host's port. Not to be shown or logged.
            avoid: nodes that were lost a moment ago. Another node is to be taken if one has room; else one of these.

        Raises:
            EmbodiedError: there is no room, or the process does not listen in time. The caller tries again later if
                other hosts serve.
        """
        ...

    def finish(self) -> None:
        """Waits until hosts that were stopped have given back what they had. Must not block for long: a node may be
        gone."""
        ...
