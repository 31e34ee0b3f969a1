"""Sets a terminal so that Ctrl-C destroys nothing of what is drawn on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

try:
    import termios
except ImportError:  # Windows has no such settings
    termios = None  # type: ignore[assignment]

_LOCAL = 3  # index of the local modes in what termios returns


@contextmanager
def drawing(stream: IO[str]) -> Iterator[None]:
    """Context that keeps Ctrl-C from destroying what is being drawn on a terminal.

    A terminal drops what it has not shown yet at Ctrl-C (``NOFLSH`` of termios(3)) and writes ``^C`` where its cursor
    stands. Half of a drawing is then lost, the next one moves up by lines that were never shown, and the rest of a
    panel stays for ever. Only these two settings change, and neither is seen if the process is killed. A stream that is
    no terminal, or whose terminal belongs to another process, is left as it is.
    """
    before = _modes(stream)
    if before is None:
        yield
        return
    _change(stream, (before | termios.NOFLSH) & ~termios.ECHOCTL)
    try:
        yield
    finally:
        _change(stream, before)


def _modes(stream: IO[str]) -> int | None:
    try:
        return int(termios.tcgetattr(stream.fileno())[_LOCAL]) if _is_ours(stream) else None
    except (OSError, ValueError, termios.error):
        return None


def _is_ours(stream: IO[str]) -> bool:
    """Whether this process is in the foreground: one in the background is stopped when it changes a setting."""
    return termios is not None and stream.isatty() and os.tcgetpgrp(stream.fileno()) == os.getpgrp()


def _change(stream: IO[str], modes: int) -> None:
    """Sets the two modes as they are in ``modes``, and leaves all others as they are now."""
    ours = termios.NOFLSH | termios.ECHOCTL
    with suppress(OSError, ValueError, termios.error):  # the terminal may be gone
        if _is_ours(stream):
            now = termios.tcgetattr(stream.fileno())
            now[_LOCAL] = now[_LOCAL] & ~ours | modes & ours
            termios.tcsetattr(stream.fileno(), termios.TCSANOW, now)
