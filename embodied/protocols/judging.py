"""When an env says that a task is solved."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class JudgesAtEnd(Protocol):
    """Interface of an env that may judge success only when an episode of its own has ended, such as by its return.
    An episode that is cut off before is never solved."""

    @property
    def judges_at_end(self) -> bool:
        """Whether it does."""
        ...
