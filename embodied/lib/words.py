"""Numbers of things, in words."""

from __future__ import annotations


def counted(number: int, one: str, several: str | None = None) -> str:
    """Returns a number with its noun.

    >>> counted(1, "machine"), counted(2, "machine"), counted(0, "process", "processes")
    ('1 machine', '2 machines', '0 processes')
    """
    return f"{number} {one if number == 1 else several or f'{one}s'}"
