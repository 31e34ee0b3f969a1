"""Keeps a panel at the bottom of a terminal without ever holding up who prints there.

    run:     print, phases ─▶ rich ─▶ Outlet: a queue ─▶ thread: the terminal, which may be slow or stopped (Ctrl-S)
    thread:  every half second, at most 1 % of a core ─▶ the panel is drawn anew

The cursor is never hidden, so that a terminal can be used as before after any end, also by SIGKILL.
"""

from __future__ import annotations

import io
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from time import monotonic, thread_time
from types import TracebackType
from typing import Any, TextIO, cast

from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.progress import Progress

from embodied.observe.terminal.panel import Panel

DRAW_S = 0.5  # pause between two drawings
LOOK_S = 2.0  # pause between two looks at the disk
SHARE = 0.008  # largest share of a core for drawings and looks; the rest of the 1 % is for writing
END_S = 2.0  # how long a terminal that does not take text is waited for at the end
MOST = 1 << 20  # characters that wait for such a terminal; more are left out

Look = Callable[[], Mapping[str, Path]]
"""Returns the newest file of each kind. It is called by the drawing thread."""


class Terminal(RichConsole):
    """A rich console that never leaves the terminal's cursor hidden."""

    turn: AbstractContextManager[object] = nullcontext()
    """Held while something is printed above a panel or the panel is drawn. Rich counts the lines to erase before it
    writes; a panel that another thread draws higher in between would leave its first lines behind."""

    def print(self, *objects: Any, **options: Any) -> None:
        with self.turn:
            super().print(*objects, **options)

    def show_cursor(self, show: bool = True) -> bool:
        return False


class Outlet(io.TextIOBase):
    """A stream that takes text at once and hands it to ``stream`` from a thread. A stream that breaks loses it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._waiting = stream, deque[str]()
        self._size, self._writing, self._closed = 0, False, False
        self._changed = threading.Condition()
        try:
            stream.flush()
            self._fd: int | None = stream.fileno()
        except (OSError, ValueError):
            self._fd = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="terminal")
        self._thread.start()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding or "utf-8"

    def isatty(self) -> bool:
        return self._stream.isatty()

    @property
    def busy(self) -> bool:
        """Whether the terminal has not taken everything yet."""
        return self._writing or bool(self._waiting)

    def write(self, text: str) -> int:
        with self._changed:
            if self._size + len(text) <= MOST:
                self._waiting.append(text)
                self._size += len(text)
                self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        pass

    def finish(self, timeout_s: float) -> None:
        """Waits until the terminal has taken everything, at most so long; what it has not taken then is dropped."""
        with self._changed:
            self._changed.wait_for(lambda: not self.busy, timeout_s)
            self._waiting.clear()
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                text = "".join(self._waiting)
                self._waiting.clear()
                self._size, self._writing = 0, True
            with suppress(OSError, ValueError):  # the terminal is gone, or the stream closed
                self._hand_on(text)
            with self._changed:
                self._writing = False
                self._changed.notify_all()

    def _hand_on(self, text: str) -> None:
        data = text.encode(self.encoding, errors="replace")
        if self._fd is None:
            self._stream.write(data.decode(self.encoding))
            self._stream.flush()
            return
        while data:  # not through the stream: its lock, held by a thread that waits, would break the interpreter's end
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                select.select([], [self._fd], [], 1.0)


class Screen:
    """Shows ``panel`` and, below it, ``bars`` while it is entered; text goes above them.

    Args:
        terminal: where; nobody else may have a live display there.
        bars: not started.
        look: finds the newest files.
    """

    def __init__(self, terminal: Terminal, panel: Panel, bars: Progress, look: Look) -> None:
        self._terminal, self._panel, self._look = terminal, panel, look
        self._live = Live(console=terminal, auto_refresh=False, transient=True,
                          get_renderable=lambda: Group(panel, bars.get_renderable()))  # fmt: skip
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._draw, daemon=True, name="panel")
        self._said = False
        self.cpu_s = 0.0
        """CPU seconds of the drawing thread so far."""

    def __enter__(self) -> Screen:
        self._stream = self._terminal.file
        self._outlet = Outlet(cast(TextIO, self._stream))
        self._terminal.file = cast(TextIO, self._outlet)
        self._terminal.turn = threading.RLock()  # a signal's handler may print while its thread prints
        try:
            self._live.start()
            self._thread.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        try:
            if self._thread.ident is not None:
                self._thread.join(END_S)
            with suppress(Exception), self._terminal.turn:  # a display ends no run
                self._live.stop()
        finally:
            self._terminal.turn = nullcontext()
            self._outlet.finish(END_S)
            self._terminal.file = self._stream

    def _draw(self) -> None:
        pause, looked = 0.0, -LOOK_S
        while not self._ended.wait(pause):
            began = thread_time()
            try:
                if monotonic() - looked >= LOOK_S:
                    looked = monotonic()
                    self._panel.set_files(self._look())
                if not self._outlet.busy:
                    with self._terminal.turn:
                        self._panel.outdated()
                        self._live.refresh()
            except Exception as failed:  # noqa: BLE001 (a display ends no run)
                self._panel.failed = self._panel.failed or failed
            self._say_failure()
            self.cpu_s = thread_time()
            pause = max(DRAW_S, (self.cpu_s - began) / SHARE)

    def _say_failure(self) -> None:
        failed = self._panel.failed
        if failed is None or self._said:
            return
        self._said = True
        with suppress(Exception):
            self._terminal.print(f"the panel is not drawn any more: {type(failed).__name__}: {failed}; the run goes on")
