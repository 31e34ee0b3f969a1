"""Measures seconds by section name, cheaply enough to leave on."""

from __future__ import annotations

from time import perf_counter
from types import TracebackType
from typing import Any, Protocol


class Marks(Protocol):
    """Interface that marks ranges of time for a profiler, such as ``torch.cuda.nvtx``. Ranges end in the order in which
    they lie."""

    def range_push(self, msg: str) -> Any:
        """Begins a range called ``msg``."""

    def range_pop(self) -> Any:
        """Ends the range that began last."""


class Sections:
    """Adds up the wall time spent under each name, since construction or the last :meth:`reset`.

    ``with sections("rollout/policy"): …`` costs about half a microsecond. Any name will do; a slash has no meaning.
    Sections may nest, also a name in itself (the outermost counts). Use it from one thread only.

    Args:
        marks: is told of each section, too.
    """

    def __init__(self, marks: Marks | None = None) -> None:
        self._sections: dict[str, _Section] = {}
        self._marks = marks
        self._began = perf_counter()

    def __call__(self, name: str) -> _Section:
        """Section called ``name``, to be entered by ``with``."""
        section = self._sections.get(name)
        if section is None:
            section = self._sections[name] = _Section() if self._marks is None else _Marked(name, self._marks)
        return section

    @property
    def elapsed(self) -> float:
        """Seconds since construction or the last reset."""
        return perf_counter() - self._began

    def seconds(self, name: str) -> float:
        """Seconds in finished sections called ``name``; 0 for an unused name."""
        section = self._sections.get(name)
        return section.seconds if section else 0.0

    def share(self, name: str, of: str | None = None) -> float:
        """``seconds(name)`` as a share of ``seconds(of)`` or of :attr:`elapsed`; 0/0 is 0."""
        total = self.elapsed if of is None else self.seconds(of)
        return self.seconds(name) / total if total > 0 else 0.0

    def shares(self, of: str | None = None) -> dict[str, float]:
        """Returns the share of time of every name, in order of first use."""
        return {name: self.share(name, of) for name in self._sections}

    def reset(self) -> None:
        """Forget everything. An open section goes on counting from now."""
        self._began = perf_counter()
        for section in self._sections.values():
            section.seconds, section.started = 0.0, self._began


class _Section:
    __slots__ = ("depth", "seconds", "started")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.started = 0.0
        self.depth = 0

    def __enter__(self) -> None:
        if self.depth == 0:
            self.started = perf_counter()
        self.depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.seconds += perf_counter() - self.started


class _Marked(_Section):
    __slots__ = ("marks", "name")

    def __init__(self, name: str, marks: Marks) -> None:
        super().__init__()
        self.name, self.marks = name, marks

    def __enter__(self) -> None:
        super().__enter__()
        self.marks.range_push(self.name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.marks.range_pop()
        super().__exit__(kind, error, where)
