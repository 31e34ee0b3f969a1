"""Fixtures that several folders share."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from absent import ABSENT, absent_in
from hypothesis import settings
from rig import Rig, open_rig

from embodied.run.build.policy import reproducible_arithmetic
from embodied.runtime.pool.fork_server import ForkServer

CONFIG_DIR = Path(__file__).parent / "config"

# Collecting garbage takes a third of the time in which tests are collected, and then a second whenever it passes over
# the tests and modules, which stay to the end.
gc.disable()


def pytest_collection_finish() -> None:
    """Leaves what has been made so far out of every later collection of garbage."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # collected so seldom, a composition takes a tenth less time
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Skips a test that fails for a package of an extra which is not installed, and says which."""
    report = yield
    if report.failed and (name := absent_in(f"{report.longreprtext}\n{report.capstdout}\n{report.capstderr}", ABSENT)):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1], f"Skipped: {name} is not installed")
    return report


settings.register_profile("any speed", deadline=None)  # a machine may be slow, or busy
settings.load_profile("any speed")

# What a run does before its policy's first product. Not in a fixture: a test module that computes something when it is
# collected would come first. More threads are slower beside busy workers.
reproducible_arithmetic()
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """One for all tests that do not harm it."""
    server = ForkServer([("embodied.testing.FakeEnv", {})], tmp_path_factory.mktemp("fork-server"), 60.0)
    yield server
    server.close()


@pytest.fixture
def start_method(request: pytest.FixtureRequest) -> str:
    """Of the workers of ``make_rig``; :data:`rig.BOTH_STARTS` gives another."""
    return getattr(request, "param", "spawn")


@pytest.fixture
def make_rig(tmp_path: Path, start_method: str, request: pytest.FixtureRequest) -> Iterator[Callable[..., Rig]]:
    """:func:`rig.open_rig`, closed after the test."""
    forks = {"server": request.getfixturevalue("fork_server")} if start_method == "forkserver" else {}
    with ExitStack() as opened:

        def make(pool: Mapping[str, Any] | None = None, **options: Any) -> Rig:
            return opened.enter_context(open_rig(tmp_path / "logs", pool={**forks, **(pool or {})}, **options))

        yield make


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


@pytest.fixture
def often_switching() -> Iterator[None]:
    """Threads take turns 500 times as often as usual: what two must not do at the same time is soon seen."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 500)
    yield
    sys.setswitchinterval(usual)
