"""The barrier at which processes gather their shares of some work, and agree on a stop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Protocol, TypeVar

from embodied.errors import Stopped
from embodied.parallel.group import Group

T = TypeVar("T")
V = TypeVar("V")


class Interruptible(Protocol):
    """A stop signal that may end a block early (:class:`embodied.runtime.signals.StopSignal`)."""

    def cut_short(self) -> AbstractContextManager[None]:
        """Context that a stop signal ends at once with :class:`Stopped`."""
        ...


class Gathers(Protocol):
    """Processes that gather values by rank, such as :class:`embodied.parallel.group.Group`."""

    def gather(self, value: V) -> list[V]:
        """Returns the values of all processes, by rank. A collective."""
        ...


def gather_shares(
    group: Gathers, stop: Interruptible, work: Callable[[], T], ended: Callable[[], None],
    waiting: Callable[[], AbstractContextManager[object]],
) -> list[T]:  # fmt: skip
    """Runs ``work`` in every process and gathers the results by rank; a stop signal in one ends it in all.

    Args:
        stop: held by the caller. A signal ends ``work`` in the process where it comes.
        ended: called once ``work`` has ended, also by a signal, before this process waits for the others: they may wait
            for something that it had no occasion to give.
        waiting: entered while this process waits for the others.

    Raises:
        Stopped: in all processes, after ``work`` was ended in one of them: none waits for one that has left.
    """
    done: tuple[T] | None = None
    with suppress(Stopped), stop.cut_short():
        done = (work(),)
    ended()
    with waiting():
        every = group.gather(done)
    if any(one is None for one in every):
        raise Stopped
    return [one[0] for one in every if one is not None]


def agree_to_go_on(group: Group, stop: Interruptible) -> None:
    """Agrees, between two steps that all processes make together, whether to go on: raises :class:`Stopped` in all if
    one has a stop signal. A collective.

    Raises:
        Stopped: in all processes; a signal has come in one.
    """
    gather_shares(group, stop, lambda: None, lambda: None, nullcontext)
