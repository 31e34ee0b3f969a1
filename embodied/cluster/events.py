"""What keepers and the driver tell the launcher: one object a line of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Line:
    """A line that a rank has printed."""

    rank: int
    text: str


@dataclass(frozen=True)
class Ended:
    """A rank has ended."""

    rank: int
    status: int  # as subprocess has it; a negative one is a signal
    message: str = ""  # what it says of its own error (embodied.parallel.group.ended_by)
    tail: str = ""  # the end of what it has printed


@dataclass(frozen=True)
class Note:
    """A line of keeper or driver for the user."""

    text: str


@dataclass(frozen=True)
class HeadGone:
    """The head of the Ray cluster does not answer, and the ranks were asked to save and end."""

    address: str


@dataclass(frozen=True)
class Refused:
    """The run cannot begin on this cluster."""

    message: str
    remedy: str


@dataclass(frozen=True)
class Placed:
    """The ranks are about to start.

    Args:
        names: of the nodes, in the order of their ranks.
        counts: ranks on each.

    >>> placed = Placed(["a", "b"], [2, 1])
    >>> placed.ranks_of(1), placed.node_of(1), placed.node_of(2)
    (range(2, 3), 'a', 'b')
    """

    names: list[str]
    counts: list[int]

    def ranks_of(self, node: int) -> range:
        """Returns the ranks of a node, by its place in :attr:`names`."""
        first = sum(self.counts[:node])
        return range(first, first + self.counts[node])

    def node_of(self, rank: int) -> str:
        """Returns the name of a rank's node."""
        return next(name for place, name in enumerate(self.names) if rank in self.ranks_of(place))


@dataclass(frozen=True)
class Lost:
    """A node has gone with its ranks."""

    node: int  # place in Placed.names
    node_id: str
    reason: str


Event = Line | Ended | Note | HeadGone | Refused | Placed | Lost
Tell = Callable[[Event], None]
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Line, Ended, Note, HeadGone, Refused, Placed, Lost)
}  # fmt: skip


def as_line(event: Event) -> str:
    """
    >>> event_of(as_line(Ended(3, -9))) == Ended(3, -9)
    True
    """
    return json.dumps([type(event).__name__, asdict(event)]) + "\n"


def event_of(line: str) -> Event:
    kind, fields = json.loads(line)
    made: Event = _KINDS[kind](**fields)
    return made
