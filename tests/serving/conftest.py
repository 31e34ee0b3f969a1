"""Fixtures for the tests of the policy server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from serving_rig import Served, serving


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Starts servers that are drained after the test."""
    with ExitStack() as opened:
        yield lambda *arguments, **options: opened.enter_context(serving(*arguments, **options))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """One server for the tests of a module that do not harm it."""
    with serving() as one:
        yield one
