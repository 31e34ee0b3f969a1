"""The barrier: shares of all processes, or a stop of all."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from ranks import on_ranks

from embodied.errors import Stopped
from embodied.parallel.barrier import gather_shares
from embodied.parallel.group import Group
from embodied.runtime.signals import StopSignal


def gathered(processes: Group, interrupted: int | None) -> dict[str, Any]:
    """What a process gets of two barriers, and what it is told; a signal comes in the work of rank ``interrupted``."""
    events: list[str] = []

    @contextmanager
    def waiting():
        events.append("waits")
        yield

    def work() -> str:
        if processes.rank == interrupted:
            os.kill(os.getpid(), signal.SIGTERM)
        events.append("worked")
        return f"share {processes.rank}"

    with StopSignal(20.0) as stop:
        stop.hold_from_now()
        try:
            found: Any = gather_shares(processes, stop, work, lambda: events.append("ended"), waiting)
        except Stopped:
            found = "stopped"
    return {"found": found, "events": events}


def test_every_process_gets_all_shares_by_rank():
    alike = {"found": ["share 0", "share 1"], "events": ["worked", "ended", "waits"]}
    assert on_ranks(gathered, None) == [alike, alike]


def test_a_signal_in_one_process_stops_all_and_the_others_do_their_share():
    first, second = on_ranks(gathered, 0)
    assert first == {"found": "stopped", "events": ["ended", "waits"]}
    assert second == {"found": "stopped", "events": ["worked", "ended", "waits"]}


def test_a_signal_from_before_lets_no_work_begin():
    with StopSignal(20.0) as stop:
        stop.hold_from_now()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Stopped):
            gather_shares(Group(), stop, pytest.fail, lambda: None, nullcontext)
