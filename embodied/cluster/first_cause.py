"""Which of the things that ended a run was first, and how it is said. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from embodied.cluster.events import Ended, HeadGone, Lost, Placed
from embodied.errors import RankError
from embodied.lib.child import how_it_ended

STOPPED = (130, 143)
"""Exit statuses of a rank that saved what it could after Ctrl-C or SIGTERM."""

FIX = "\n  fix: "
EXPLAINED = 2
"""Exit status of a rank with an error that would come again."""


@dataclass(frozen=True)
class Cause:
    """What ended a run that was not to end.

    Args:
        text: what happened, with node and rank.
        detail: what the rank has said, or the end of what it has printed.
        fix: that the rank itself has said.
        again: another start may get further.
        node_id: of the node that was lost; "" = none was.
    """

    text: str
    detail: str = ""
    fix: str = ""
    again: bool = True
    node_id: str = ""

    def error(self) -> RankError:
        usual = "the same command goes on from the newest checkpoint" + (
            "; cluster.max_restarts does that by itself" if self.again else ", once the cause is gone"
        )
        return RankError("\n".join(filter(None, (self.text, self.detail))), self.fix or usual)


def cause_of(event: Ended | Lost, placed: Placed) -> Cause | None:
    """Returns the cause that an event is; None if a rank has ended in order."""
    if isinstance(event, Lost):
        ranks = ranks_told(placed.ranks_of(event.node))
        return Cause(f"node {placed.names[event.node]} with {ranks} is lost: {event.reason}", node_id=event.node_id)
    if event.status in (0, *STOPPED):
        return None
    who = f"rank {event.rank} on node {placed.node_of(event.rank)}"
    how = how_it_ended(event.status)
    if event.message:
        said, _, fix = event.message.rpartition(FIX) if FIX in event.message else (event.message, "", "")
        return Cause(f"{who} {how}:", said.rstrip(), fix, again=event.status != EXPLAINED)
    return Cause(f"{who} {how}, and the end of its log is:", event.tail or "(it has printed nothing)")


def ranks_told(ranks: range) -> str:
    """
    >>> ranks_told(range(1, 2)), ranks_told(range(8, 16))
    ('rank 1', 'ranks 8 to 15')
    """
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"


def stopped_text(event: HeadGone) -> str:
    return f"the head ({event.address}) is gone: the ranks save and end"
