"""Fixtures that several folders share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from rig import Rig, open_rig

from embodied.build import reproducible_arithmetic

CONFIG_DIR = Path(__file__).parent / "config"


# What a run does before its policy's first product. Not in a fixture: a test module that computes something when it is
# collected would come first. More threads are slower beside busy workers.
reproducible_arithmetic()
torch.set_num_threads(1)


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """:func:`rig.open_rig`, closed after the test."""
    with ExitStack() as opened:
        yield lambda **options: opened.enter_context(open_rig(tmp_path / "logs", **options))


@pytest.fixture(scope="module")
def shared_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Rig]]:
    """Rigs that the tests of a module share: one for each set of options."""
    with ExitStack() as opened:
        rigs: dict[str, Rig] = {}

        def get(**options: object) -> Rig:
            key = repr(sorted(options.items()))
            if key not in rigs:
                rigs[key] = opened.enter_context(open_rig(tmp_path_factory.mktemp("logs"), **options))  # type: ignore[arg-type]
            return rigs[key]

        yield get
