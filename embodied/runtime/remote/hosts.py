"""The remote pool: env slots on simulator hosts, as an :class:`embodied.runtime.ports.EnvPort`.

    Rollout ──▶ RemotePool ──▶ Fleet ──▶ Peer (one a host) ══ Link ══ Host ──▶ Pool ──▶ workers
                    │
               rows of the rollout's slab: observations are received straight into them

A host is to this pool what a worker is to a :class:`embodied.runtime.pool.pool.Pool`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from embodied.observe.video.video import Video
from embodied.perturbations import Draws
from embodied.runtime.channel import Command, Completion
from embodied.runtime.ports import Back, Event, Lost
from embodied.runtime.remote.fleet import Fleet
from embodied.runtime.remote.fleet import HostsConfig as HostsConfig
from embodied.runtime.remote.peer import Peer
from embodied.runtime.remote.starter import HostStarter
from embodied.runtime.remote.wire.frames import FrameKind
from embodied.runtime.slab import Slab
from embodied.types import WorkerFacts

ASK_S = 10.0  # seconds that a host may take to say how much memory its workers have


class RemotePool:
    """Env slots of simulator hosts. :mod:`embodied.runtime.remote.fleet` says what happens when one fails.

    Args:
        starter: starts the hosts, at first and in place of those that are lost.
        say: given one paragraph for each worker or host that failed and is replaced.

    Raises (from the constructor and ``recv``):
        EmbodiedError: as a :class:`embodied.runtime.pool.pool.Pool` does, and if hosts cannot be started or reached.
    """

    def __init__(
        self, config: HostsConfig, slab: Slab, starter: HostStarter, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self._batch, self.num_slots = config.pool.batch, config.pool.num_slots
        self._fleet = Fleet(config, slab, starter, say)

    @property
    def up(self) -> list[int]:
        """Slots that take commands, as far as :meth:`recv` has said."""
        untold = {event.slot for event in self._fleet.events if isinstance(event, Back)}
        return sorted(slot for peer in self._fleet.peers.values() for slot in peer.up if slot not in untold)

    @property
    def moving(self) -> AbstractSet[int]:
        """Slots with a command that will be answered whatever is sent or not."""
        return {slot for peer in self._fleet.peers.values() for slot in peer.moving}

    def group_of(self, slot: int) -> int:
        """A number of the slot's worker and its host if the worker steps its slots together, else 0."""
        peer = self._fleet.by_slot[slot]
        return peer.index * self.num_slots + peer.group_of(slot) if self._batch else 0

    def simulators_of(self, slot: int) -> int:
        """The first slot of the slot's worker if those share simulators, else the slot."""
        return self._fleet.by_slot[slot].simulators_of(slot)

    @property
    def restarts(self) -> int:
        """Workers and hosts that have failed and were replaced."""
        return (
            self._fleet.supervisor.total
            + self._fleet.restarts_before
            + sum(peer.restarts for peer in self._fleet.peers.values())
        )

    @property
    def facts(self) -> list[WorkerFacts]:
        """Facts that the serving workers found at their start."""
        return [facts for _, peer in sorted(self._fleet.peers.items()) for facts in peer.facts]

    @property
    def memory(self) -> int:
        """Bytes of the workers on all hosts; those of a host that does not say it in time are left out."""
        asked = self._fleet.ask(FrameKind.MEMORY)
        self._fleet.await_until(
            lambda: all(peer.memory is not None or self._fleet.is_gone(peer) for peer in asked), ASK_S
        )
        return sum(peer.memory or 0 for peer in asked)

    @property
    def traffic(self) -> Mapping[int, tuple[int, int]]:
        """Bytes that were sent to each host that serves, and received from it."""
        return {index: (peer.link.bytes_sent, peer.link.bytes_received) for index, peer in self._fleet.peers.items()}

    @property
    def hosts(self) -> list[Peer]:
        """The hosts that there are, started or starting."""
        return [peer for _, peer in sorted(self._fleet.peers.items())]

    def blame(self, lost: Lost, episode_id: int, count: int) -> None:
        """Report an episode that has been lost ``count`` times; raises ``lost.error`` if that is too often."""
        self._fleet.supervisor.episode_failed(lost.error, episode_id, count, lost.suspects)

    def forgive(self, slot: int) -> None:
        """Report that the episode that ended the slot's workers is given up."""
        peer = self._fleet.by_slot[slot]
        self._fleet.supervisor.finished_an_episode(peer.index)
        peer.forgive(slot)

    # -- serving -----------------------------------------------------------------------------------------------------

    def send(self, command: Command, video: Video | None = None, draws: Draws | None = None) -> None:
        """Give a slot its next command; the next :meth:`flush` or :meth:`recv` sends it."""
        self._fleet.by_slot[command.slot].give(command, video, draws)

    def flush(self) -> None:
        """Send what slots were given."""
        for peer in self._fleet.peers.values():
            peer.link.flush()

    def recv(self, min_ready: int, timeout: float | None = None) -> list[Event]:
        """Wait until ``min_ready`` slots have completed, a slot was lost or came back, ``timeout`` seconds have passed,
        or nothing is left to wait for. Returns all that has happened."""
        until = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            self._fleet.poll(0.0 if self._enough(min_ready, until) else until - time.monotonic())
            if self._enough(min_ready, until):
                events, self._fleet.events = self._fleet.events, []
                return events

    def _enough(self, min_ready: int, until: float) -> bool:
        events = self._fleet.events
        if len(events) >= min_ready or time.monotonic() >= until:
            return True
        if not all(isinstance(event, Completion) for event in events):
            return True
        return not any(peer.pending for peer in self._fleet.peers.values()) and self._fleet.num_up == self.num_slots

    # -- resting and ending ------------------------------------------------------------------------------------------

    def rest(self) -> None:
        """End the workers until :meth:`wake`, so that all that they hold is free. No command may be in flight."""
        asked = self._fleet.ask(FrameKind.REST)
        self._fleet.await_until(lambda: all(peer.rested or self._fleet.is_gone(peer) for peer in asked))
        self._fleet.events.clear()

    def wake(self) -> None:
        """Start the workers, unless they have been."""
        woken = [peer for peer in self._fleet.peers.values() if peer.rested]
        for peer in woken:
            peer.ask(FrameKind.WAKE)
            peer.rested = False

        def all_serve() -> bool:
            """Whether all hosts that are still there serve; one that was lost meanwhile may never come back."""
            there = [peer for peer in woken if not self._fleet.is_gone(peer)]
            return self._fleet.num_up > 0 and all(len(peer.up) == len(peer.slots) for peer in there)

        self._fleet.await_until(all_serve)
        self._fleet.events.clear()

    def close(self) -> None:
        """End the hosts and wait for them."""
        self._fleet.close()
