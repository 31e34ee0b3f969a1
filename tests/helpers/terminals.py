"""A real pseudo-terminal for a command, and what a person would see on it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

ROWS, COLUMNS = 40, 100
_SHOWN_AS_NOTHING = b"\x03"  # how a terminal repeats Ctrl-C where it is set to show no ``^C``
_PIECE = re.compile(r"\x1b\[(\?25)?([0-9;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


@dataclass
class Screen:
    """Lines of a terminal without end, from the codes that displays here write."""

    lines: list[str] = field(default_factory=lambda: [""])
    row: int = 0
    column: int = 0
    cursor: bool = True

    def take(self, text: str) -> None:
        for private, number, code, end, plain in _PIECE.findall(text):
            if end == "\r":
                self.column = 0
            elif end == "\n":
                self.row += 1
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif plain:
                before = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = before[: self.column] + plain + before[self.column + len(plain) :]
                self.column += len(plain)
            elif private:
                self.cursor = code == "h"
            elif code == "A":
                self.row = max(0, self.row - int(number or 1))
            elif code == "K":
                self.lines[self.row] = ""
            elif code != "m":
                raise ValueError(f"the terminal got a code that this one does not know: {number}{code}")

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines)


@dataclass
class Shown:
    status: int  # exit status; minus the signal
    screen: Screen  # at the end
    seen: str  # on the screen when ``interrupt`` first said yes
    sane: bool  # the terminal's settings are as they were
    output: str  # everything that was written


def run_on_terminal(
    command: Sequence[str], environment: Mapping[str, str], interrupt: Callable[[str], bool] = lambda seen: False,
    limit_s: float = 120.0,
) -> Shown:  # fmt: skip
    """Runs a command on a terminal; presses Ctrl-C once when ``interrupt``, given what stands there, says so."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    before = termios.tcgetattr(theirs)
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        os.login_tty(theirs) if hasattr(os, "login_tty") else become_owner(theirs)
        os.execve(command[0], list(command), dict(environment))
    screen, seen, output, until = Screen(), "", "", time.monotonic() + limit_s
    waiting = b""
    status: int | None = None
    while status is None or select.select([ours], [], [], 0)[0]:
        if select.select([ours], [], [], 0.1)[0]:
            waiting += os.read(ours, 1 << 16).replace(_SHOWN_AS_NOTHING, b"")
            whole, waiting = _whole(waiting)
            output += whole
            screen.take(whole)
            if not seen and interrupt(screen.text):
                seen = screen.text
                os.write(ours, b"\x03")
        elif status is None:
            done, code = os.waitpid(pid, os.WNOHANG)
            status = os.waitstatus_to_exitcode(code) if done else None
        if time.monotonic() > until and status is None:
            os.killpg(pid, 9)
            until = float("inf")
    same = termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)
    return Shown(status, screen, seen, same, output)


def become_owner(terminal: int) -> None:
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for number in range(3):
        os.dup2(terminal, number)


def _whole(data: bytes) -> tuple[str, bytes]:
    """Text up to the last whole code and character, and the rest."""
    cut = data.rfind(b"\x1b")
    if cut >= 0 and not re.match(rb"\x1b\[\??[0-9;]*[A-Za-z]", data[cut:]):
        data, rest = data[:cut], data[cut:]
    else:
        rest = b""
    for end in range(len(data), max(-1, len(data) - 4), -1):
        try:
            return data[:end].decode(), data[end:] + rest
        except UnicodeDecodeError:
            continue
    raise ValueError("what stands on the terminal is no text")
