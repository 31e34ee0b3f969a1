"""Runs of this folder fork their env workers, as most of their time would be that of starting interpreters."""

import pytest


@pytest.fixture
def fresh_workers() -> None:
    """Env workers start as ``env.start_method`` says."""


@pytest.fixture(autouse=True)
def forked_unless_fresh(request: pytest.FixtureRequest) -> None:
    """``warm_workers`` for each test that does not ask for ``fresh_workers``."""
    if "fresh_workers" not in request.fixturenames:
        request.getfixturevalue("warm_workers")
