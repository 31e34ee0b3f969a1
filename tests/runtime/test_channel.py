"""The rings of a channel, within one process and between two."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.errors import EmbodiedError
from embodied.runtime.channel import Channel, Command, Completion, Kind, Ring
from embodied.runtime.pool.pool import PoolConfig
from embodied.schema import EnvConfig, RolloutConfig


@pytest.fixture
def channel():
    channel = Channel.create("test", command_capacity=3, completion_capacity=5)
    yield channel
    channel.close()


FULL = Command(
    Kind.RESET, slot=2, row=3, next_row=2**40, task_id=6, init_state_id=7, seed=2**62, max_steps=9,
    ignore_terminations=True, video=True, attempt=2**41, perturbed=True, evaluation=True,
)  # fmt: skip


def test_every_field_of_a_message_arrives(channel):
    channel.commands.put(FULL)
    (got,) = channel.commands.take()
    assert got == FULL
    assert got.kind == Kind.RESET
    done = Completion(Kind.STEP, 1, 8, True, reset_s=0.1, step_s=0.2, render_s=0.3, video_s=0.4)
    channel.completions.put(done)
    assert channel.completions.take() == [done]


def test_what_a_message_does_not_name_is_no_row_no_start_and_no_time():
    command, done = Command(Kind.STEP, 0), Completion(Kind.RESET, 0)
    assert (command.row, command.next_row, command.task_id, command.init_state_id) == (-1, -1, -1, -1)
    assert (command.seed, command.max_steps, *command[8:]) == (0, 0, False, False, False, False, -1, False, False)
    assert (done.num_steps, done.ended, done.observed, done.finished) == (0, False, True, 0.0)


def test_a_ring_wraps_and_keeps_the_order(channel):
    sent: list[Command] = []
    got: list[Command | Completion] = []
    for n in range(20):
        for _ in range(1 + n % 3):
            sent.append(Command(Kind.STEP, slot=len(sent)))
            channel.commands.put(sent[-1])
        got += channel.commands.take()
    assert got == sent
    assert len(sent) > 10 * 3, "more messages than the ring has places"


def test_nothing_is_taken_from_an_empty_ring(channel):
    assert channel.commands.take() == []


def rings(ring):
    """How often the reader's bell has rung since the last look."""
    try:
        return os.eventfd_read(ring.event)
    except BlockingIOError:
        return 0


def test_messages_can_be_announced_together(channel):
    commands = [Command(Kind.STEP, slot) for slot in range(3)]
    for command in commands[:2]:
        channel.commands.put(command, announce=False)
    assert rings(channel.commands) == 0
    assert channel.commands.take() == []
    channel.commands.announce()
    channel.commands.announce()
    assert rings(channel.commands) == 1
    assert channel.commands.take() == commands[:2]
    channel.commands.put(commands[2], announce=False)
    channel.commands.put(commands[0])
    assert rings(channel.commands) == 1
    assert channel.commands.take() == [commands[2], commands[0]]
    channel.commands.announce()
    assert rings(channel.commands) == 0


def test_a_reader_that_asks_for_several_is_woken_once_they_are_there(channel):
    ring, done = channel.completions, [Completion(Kind.STEP, slot) for slot in range(5)]
    assert not ring.ask(3)
    assert ring.withheld
    rung = []
    for message in done[:4]:
        ring.put(message)
        rung.append(rings(ring))
    assert rung == [0, 0, 1, 1], "those after are not waited for, and cost nothing that they had not cost before"
    assert ring.take() == done[:4]
    assert not ring.ask(3), "counted from what has been taken"
    ring.put(done[4])
    assert rings(ring) == 0
    assert ring.take() == done[4:], "it may be looked for before it has rung"


def test_a_reader_that_asks_for_fewer_is_told_what_is_there_already(channel):
    ring = channel.completions
    ring.ask(4)
    for slot in range(2):
        ring.put(Completion(Kind.STEP, slot))
    assert not ring.ask(3)
    assert ring.ask(2)
    assert not ring.ask(2), "said once; the bell will not ring for it"
    assert ring.ask(1)
    assert not ring.withheld
    assert rings(ring) == 0
    ring.put(Completion(Kind.STEP, 2))
    assert rings(ring) == 1


def test_hushing_forgets_the_bells(channel):
    for slot in range(2):
        channel.completions.put(Completion(Kind.STEP, slot))
    channel.completions.hush()
    channel.completions.hush()
    assert rings(channel.completions) == 0
    assert len(channel.completions.take()) == 2


def test_a_completion_knows_when_it_was_finished():
    done = Completion(Kind.STEP, 0, began=100.0, step_s=1.0, render_s=0.5, video_s=0.25)
    assert done.finished == 101.75
    assert done._replace(round_s=3.0).finished == 103.0, "slots of a batch are finished together"


def test_a_full_ring_says_which_key_to_raise_and_keeps_what_it_holds(channel):
    commands = [Command(Kind.STEP, slot) for slot in range(3)]
    for command in commands:
        channel.commands.put(command)
    with pytest.raises(EmbodiedError, match="channel of 3 messages is full") as failed:
        channel.commands.put(Command(Kind.STEP, 9))
    assert "env.channel.queue_size" in failed.value.remedy
    assert channel.commands.take() == commands


@given(st.lists(st.integers(0, 4), max_size=40), st.integers(4, 6))
def test_any_pattern_of_puts_and_takes_keeps_every_message(bursts, capacity):
    memory = memoryview(bytearray(Ring.nbytes(Completion, capacity)))
    event = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        ring, sent, got = Ring(Completion, memory, capacity, event), 0, []
        for burst in bursts:
            for _ in range(burst):
                ring.put(Completion(Kind.STEP, sent))
                sent += 1
            got += [message.slot for message in ring.take()]
        assert got == list(range(sent))
    finally:
        os.close(event)


ECHO = """
import os, sys
from embodied.runtime.channel import *
memory, go, done = map(int, sys.argv[1:])
os.set_blocking(go, True)
channel = Channel(ChannelHandles(memory, go, done, 3, 5))
left = 100
while left:
    channel.commands.hush()
    for command in channel.commands.take():
        channel.completions.put(Completion(Kind.STEP, command.slot, num_steps=command.seed * 2))
        left -= 1
print("done", os.times().user)
"""


@contextmanager
def ended_on_failure(process):
    """Popen's own ``with`` waits for a process that nobody will answer any more."""
    try:
        yield
    except BaseException:
        process.kill()
        raise


def test_a_second_process_answers_and_sleeps_in_between(channel):
    handles = channel.handles
    fds = (handles.memory_fd, handles.go_fd, handles.done_fd)
    with (
        subprocess.Popen(
            [sys.executable, "-c", ECHO, *map(str, fds)],
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=fds,
            encoding="utf-8",
        ) as echo,
        ended_on_failure(echo),
    ):
        answers = []
        os.set_blocking(handles.done_fd, True)
        for n in range(100):
            channel.commands.put(Command(Kind.STEP, n % 3, seed=n))
            channel.completions.hush()  # blocks until it is woken
            answers += channel.completions.take()
            if n == 50:
                assert falls_asleep(echo.pid), "a reader that waits must not spin"
        assert echo.stdout.readline().startswith("done")
        assert echo.wait(5) == 0
    assert [(a.slot, a.num_steps) for a in answers] == [(n % 3, 2 * n) for n in range(100)]


ANSWERS = """
import os, sys
from embodied.runtime.channel import *
memory, go, done, rounds = map(int, sys.argv[1:])
os.set_blocking(go, True)
channel = Channel(ChannelHandles(memory, go, done, 3, 5))
for number in range(rounds):
    channel.commands.hush()
    channel.commands.take()
    for slot in range(5):
        channel.completions.put(Completion(Kind.STEP, slot, num_steps=number))
"""


ROUNDS = 3000


def test_no_bell_is_lost_between_a_reader_that_changes_its_mind_and_a_writer_that_goes_on(channel):
    """The reader asks for other numbers while the writer writes, and sleeps unless it was told that they are there: a
    bell that is left out would leave both asleep."""
    handles = channel.handles
    fds = (handles.memory_fd, handles.go_fd, handles.done_fd)
    process = subprocess.Popen([sys.executable, "-c", ANSWERS, *map(str, fds), str(ROUNDS)], pass_fds=fds)
    poll = select.poll()
    poll.register(handles.done_fd, select.POLLIN)
    ring, asleep = channel.completions, 0
    with process, ended_on_failure(process):
        for number in range(ROUNDS):
            channel.commands.put(Command(Kind.STEP, 0))
            got: list[Completion] = []
            while (left := 5 - len(got)) > 0:
                ring.ask(5)
                if not ring.ask(1 + number % left):
                    asleep += 1
                    assert poll.poll(20_000), f"nothing rang in round {number} with {left} messages to come"
                    ring.hush()
                got += ring.take()
            assert [(done.slot, done.num_steps) for done in got] == [(slot, number) for slot in range(5)]
        assert process.wait(20) == 0
    assert asleep >= ROUNDS / 2, "the reader was to sleep, else nothing was tried"


def falls_asleep(pid, samples=500):
    """Whether the kernel says at some moment that the process sleeps; one that spins runs, or waits for a core."""
    for _ in range(samples):
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            if file.read().rpartition(")")[2].split()[0] == "S":
                return True
        time.sleep(0.01)
    return False


def test_a_pool_that_is_told_nothing_has_the_channels_of_a_configuration_in_which_nothing_is_set():
    """Exports and demonstrations make pools without a configuration of them."""
    defaults = {field.name: field.default for field in fields(PoolConfig)}
    for name, section in (("env_channel", EnvConfig), ("rollout_channel", RolloutConfig)):
        channel = section.model_fields["channel"].default
        assert defaults[name] == (channel.name, channel.queue_name, channel.queue_size)
