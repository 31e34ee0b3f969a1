"""Machines of one kernel, for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import lab
import pytest


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Lab]:
    with lab.Lab(lab.interpreter(request), tmp_path_factory.mktemp("lab")) as made:
        yield made
