"""How an update is watched from outside while it works: it says how far it is, and is told whether to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Passed = Callable[[int], bool]
"""Told after each pass how many records it finished; False = end here, because the run shall stop."""

Watch = Callable[[str, int], AbstractContextManager[Passed]]
"""``with watch("update", records) as passed: …``: watches work of ``records`` records."""


@contextmanager
def unwatched(name: str, total: int) -> Iterator[Passed]:
    """Nobody watches, and the work goes to its end."""
    yield lambda records: True
