"""Teams: processes that compute each text together (``actor.model.context_parallel_size``).

    processes 0 … N − 1 │ N … 2N − 1 │ …        team 0 │ team 1 │ …

All of a team make the same passes over the same records (:mod:`embodied.learn.ranks.teams`), each a part of a pass's
tokens.
What is added up over records is therefore added up over one process of each team: those at one place of their teams are
a group, whose ranks are the teams' numbers. Gradients are added up over all processes, since each has those of its own
tokens. Without teams each process is a team of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from embodied.errors import ConfigError
from embodied.parallel.group import Group
from embodied.protocols import Policy, SplitsTexts


@dataclass(frozen=True)
class Teams:
    """The context-parallel teams of a run, as one of its processes sees them: processes that compute each
    text together."""

    team: Group  # the processes of this one's team
    across: Group  # one process of each team, at the place that this one has in its team; ranks are teams

    def of(self, rank: int) -> int:
        """Returns the number of the team of the process ``rank``.

        >>> Teams(Group(0, 2), Group(0, 3)).of(5)
        2
        """
        return rank // self.team.size


def teams_of(policy: Policy, group: Group) -> Teams:
    """Divides the processes of a run into the teams that a policy asks for. A collective.

    Where the processes cannot be divided, each is a team of its own: runs that learn are refused before
    (:func:`check`), and others compute no text together.
    """
    size = policy.context_parallel_size if isinstance(policy, SplitsTexts) else 1
    if size == 1 or group.size % size:
        return Teams(Group(), group)
    own = group.part([range(first, first + size) for first in range(0, group.size, size)])
    return Teams(own, group.part([range(place, group.size, size) for place in range(size)]))


def check(size: int, group: Group) -> None:
    """Raises :class:`ConfigError` unless the processes of a run can be divided into teams of ``size``."""
    if group.size % size:
        raise ConfigError(
            f"actor.model.context_parallel_size is {size}: so many processes compute each text together, and the "
            f"{group.size} of the run cannot be divided into teams of {size}",
            f"start a multiple of {size} processes (torchrun --nproc-per-node={size}), or set "
            "actor.model.context_parallel_size=1",
        )
