"""Stop signals come as an exception, and only where nothing is half done."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import pytest

from embodied.runtime.signals import Stopped, StopSignal


def send(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_raises_at_once_outside_hold(number):
    with StopSignal(), pytest.raises(Stopped):
        send(number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_waits_until_the_held_block_is_done(number):
    done = []

    def work(stop):
        with stop.hold():
            send(number)
            done.append("held")
        done.append("after")

    with StopSignal() as stop, pytest.raises(Stopped):
        work(stop)
    assert done == ["held"]


def test_without_a_signal_hold_changes_nothing():
    with StopSignal() as stop:
        with stop.hold():
            pass
        with stop.hold(), stop.cut_short():
            pass


def test_an_error_in_the_held_block_comes_out_and_the_hold_ends():
    with StopSignal() as stop:
        with pytest.raises(ValueError, match="mine"), stop.hold():
            raise ValueError("mine")
        with pytest.raises(Stopped):
            send()


def test_a_block_that_may_be_cut_short_ends_alone():
    done = []

    def work(stop):
        with stop.hold():
            with suppress(Stopped), stop.cut_short():
                done.append("begun")
                send()
                done.append("never")
            assert stop.wanted
            send()
            with suppress(Stopped), stop.cut_short():
                done.append("never again")
            done.append("saved")

    with StopSignal() as stop, pytest.raises(Stopped):
        work(stop)
    assert done == ["begun", "saved"]


def test_a_second_ctrl_c_is_the_usual_one():
    def interrupt_twice(stop):
        with stop.hold():
            send(signal.SIGINT)
            send(signal.SIGINT)

    with StopSignal() as stop, pytest.raises(KeyboardInterrupt):
        interrupt_twice(stop)


def test_a_second_sigterm_changes_nothing():
    with StopSignal() as stop:
        with pytest.raises(Stopped):
            send()
        send()
        with pytest.raises(Stopped), stop.hold():
            send()


@pytest.mark.parametrize("signals", [0, 1, 2])
def test_held_from_now_on_only_what_may_be_cut_short_ends(signals):
    done = []
    with StopSignal() as stop:
        stop.hold_from_now()
        for _ in range(signals):
            send()
        done.append("saved")
        with suppress(Stopped), stop.cut_short():
            done.append("collected")
        with suppress(Stopped), stop.cut_short():
            send()
            done.append("never")
        send()
        done.append("closed")
        assert stop.wanted
    assert done == (["saved", "closed"] if signals else ["saved", "collected", "closed"])


def test_the_answer_of_a_held_signal(capfd):
    with StopSignal() as stop:
        stop.hold_from_now()
        send()
        assert stop.wanted
    assert capfd.readouterr().err.startswith("SIGTERM: stopping")


def test_handlers_are_given_back():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with StopSignal(), pytest.raises(Stopped):
        send(signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_exit_status_says_that_a_signal_came_whatever_was_done_by_then(number):
    with StopSignal() as stop:
        stop.hold_from_now()
        assert stop.status == 0
        send(number)
        assert stop.status == 128 + number


def test_the_exit_status_of_a_rank_that_another_one_has_ended():
    with StopSignal() as stop, stop.may_end():
        raise Stopped
    assert stop.status == 143
    assert not stop.wanted
