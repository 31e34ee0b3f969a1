"""Where one process of a run stands in the table, and which devices it sees. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence

from embodied.parallel.placement.launcher import Launcher
from embodied.parallel.placement.table import PlacementTable, Rank

ABSENT = -1  # rank of this process in a group of others


class Seat:
    """The part of :class:`embodied.parallel.group.Group` that knows machines and devices.

    Attributes:
        table: where all processes of the run are; None: nobody has said it, and machines have equally many.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    launcher: Launcher
    members: tuple[int, ...]
    table: PlacementTable | None = None

    @property
    def here(self) -> bool:
        """True if this process is one of the group."""
        return self.rank != ABSENT

    @property
    def placed(self) -> Rank | None:
        """This process in the table; None: there is no table, or the process is not of the group."""
        return None if self.table is None or not self.here else self.table.ranks[self.members[self.rank]]

    @property
    def device(self) -> int:
        """Number of this process's device among those that it sees."""
        own = self.placed
        return self.local_rank if own is None else self.seen((own.device,))[0]

    def seen(self, devices: Sequence[int]) -> tuple[int, ...]:
        """Returns the numbers of some devices of this process's machine among those that it sees. Ray shows the devices
        that the run has there, and no others."""
        own = self.placed
        if own is None or self.table is None or self.launcher != "ray":
            return tuple(devices)
        return tuple(map(self.table.devices_of(own.node).index, devices))

    @property
    def num_nodes(self) -> int:
        """Machines with processes of the run."""
        return -(-self.size // self.local_size) if self.table is None else len({one.node for one in self.table.ranks})

    def node_of(self, rank: int) -> str:
        """Returns the machine of a process, by its rank in the run."""
        return f"node-{rank // self.local_size}" if self.table is None else self.table.ranks[rank].node
