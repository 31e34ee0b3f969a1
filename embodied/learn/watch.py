"""Watches long work: it reports its progress after each pass, and is told whether to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Passed = Callable[[int], bool]
"""Takes the number of records that a pass has finished. Gives False if the work should end, because the run stops."""

Watch = Callable[[str, int], AbstractContextManager[Passed]]
"""``with watch("update", records) as passed: …``: watches work of ``records`` records."""


@contextmanager
def unwatched(name: str, total: int) -> Iterator[Passed]:
    """Context of an update that nobody may interrupt: the function that it yields always says to go on."""
    yield lambda records: True
