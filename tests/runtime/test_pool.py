"""Worker processes that work, fail, hang, are killed or lose their launcher."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rig import BOTH_STARTS, FAST

from embodied.errors import EmbodiedError, RendererUnavailableError, WorkerDiedError, WorkerHungError
from embodied.observe.video.video import Video
from embodied.perturbations import Draws, Perturbation
from embodied.random import Stream
from embodied.runtime.channel import Command, Kind
from embodied.runtime.messages import Outbox
from embodied.runtime.pool.pool import Deadlines, num_workers

IMPATIENT = Deadlines(init=30.0, reset=10.0, step=0.5)


def reset(rig, slot, row, max_steps=100, task_id=0):
    rig.pool.send(Command(Kind.RESET, slot, next_row=row, task_id=task_id, init_state_id=0, max_steps=max_steps))


def step(rig, slot, row, next_row):
    rig.pool.send(Command(Kind.STEP, slot, row=row, next_row=next_row))


def started(rig):
    """Slot 0 has been reset into row 0."""
    reset(rig, 0, 0)
    assert [done.kind for done in rig.pool.recv(1)] == [Kind.RESET]
    return rig


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def alive(pid):
    """Whether a process runs; a zombie that nobody has reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second where it ends while its file is read
        return False


def descendants(pid=None):
    """Those of this process: workers, and those of a fork server."""
    tasks = Path(f"/proc/{pid or os.getpid()}/task").glob("*/children")
    children = {int(child) for task in tasks for child in task.read_text(encoding="utf-8").split()}
    return children.union(*map(descendants, children))


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_a_slot_resets_steps_and_ends(make_rig, monkeypatch):
    rig = make_rig(slots=3, workers=2)
    monkeypatch.setattr(rig.pool, "_post", None)  # nothing goes over the sockets
    for slot in range(3):
        reset(rig, slot, slot, max_steps=6, task_id=slot % 2)
    assert sorted(done.slot for done in rig.pool.recv(3)) == [0, 1, 2]
    rig.slab.arrays["actions"][:] = 0.5
    step(rig, 1, 1, 4)
    (done,) = rig.pool.recv(1)
    assert (done.kind, done.slot, done.num_steps, done.ended) == (Kind.STEP, 1, 4, False)
    step(rig, 1, 4, -1)
    (done,) = rig.pool.recv(1)
    assert (done.num_steps, done.ended) == (2, True)
    arrays = rig.slab.arrays
    assert bool(arrays["truncated"][4])
    assert not bool(arrays["terminated"][4])
    assert (arrays["rewards"][1] != 0).all()
    assert (arrays["rewards"][4] != 0).tolist() == [True, True, False, False]
    assert arrays["images"][4, 0, 0, 0, 1] == 4, "the picture of row 4 was taken after 4 steps"


@BOTH_STARTS
def test_facts_and_pids_are_those_of_the_workers(make_rig):
    rig = make_rig()
    assert [fact.pid for fact in rig.pool.facts] == rig.pool.pids
    assert rig.pool.facts[0].renderer == "none"
    assert len(set(rig.pool.pids)) == 2


def test_recv_returns_what_there_is_when_fewer_are_busy_than_wanted(make_rig):
    rig = make_rig()
    assert rig.pool.recv(2) == []
    reset(rig, 0, 0)
    assert len(rig.pool.recv(2)) == 1


@BOTH_STARTS
def test_an_exception_arrives_with_its_traceback(make_rig):
    rig = started(make_rig(workers=1, fault="exception"))
    step(rig, 0, 0, 1)
    with pytest.raises(WorkerDiedError) as failed:
        rig.pool.recv(1)
    assert "RuntimeError: the fake env was told to fail in step" in failed.value.detail
    assert "_misbehave" in str(failed.value)
    assert "ended with status 1" in failed.value.message


@BOTH_STARTS
def test_a_killed_worker_is_named_at_once(make_rig):
    rig = started(make_rig(workers=2, fault="hang"))
    pid = rig.pool.pids[0]
    step(rig, 0, 0, 1)
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError) as failed:
        rig.pool.recv(1)
    assert time.monotonic() - began < FAST.step / 2  # by its death, not by the deadline
    for part in ("env worker 0", str(pid), "slots [0]", "SIGKILL"):
        assert part in failed.value.message
    assert "out of memory" in failed.value.remedy


@BOTH_STARTS
def test_a_worker_that_kills_itself_is_named(make_rig):
    rig = started(make_rig(workers=1, fault="kill"))
    step(rig, 0, 0, 1)
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        rig.pool.recv(1)


@BOTH_STARTS
def test_a_worker_that_died_is_named_when_a_video_is_announced_to_it(make_rig):
    rig = started(make_rig(workers=1))
    os.kill(rig.pool.pids[0], signal.SIGKILL)
    assert wait_until(lambda: not alive(rig.pool.pids[0]), 5)
    command = Command(Kind.RESET, 0, next_row=0, max_steps=4, video=True)
    rig.pool.send(command, video=Video("somewhere.mp4"))
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        rig.pool.recv(1)


@pytest.mark.parametrize("batch", [False, True])
def test_a_busy_worker_gets_all_that_its_resets_need(make_rig, tmp_path, batch):
    """It reads nothing for a while, and its socket holds less: of many messages, or of a large one."""
    options = {"target": "embodied.testing.FakeBatchEnv", "pool": {"batch": True}} if batch else {}
    rig = make_rig(slots=80, workers=1, rows=80, **options)
    connection = rig.pool._by_slot[0].socket
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    os.kill(rig.pool.pids[0], signal.SIGSTOP)
    began = time.monotonic()
    for slot in range(80):
        command = Command(Kind.RESET, slot, next_row=slot, task_id=0, init_state_id=0, max_steps=4, perturbed=True)
        draws = Draws(Perturbation(brightness=slot / 100, latency=1), 0, int(Stream.EVAL_PERTURBATION), 0)
        rig.pool.send(command._replace(video=slot == 60), Video(str(tmp_path / "a.mp4")) if slot == 60 else None, draws)
        if not batch or slot == 79:
            rig.pool.flush()
    assert time.monotonic() - began < 10, "it did not wait for the worker, which reads nothing"
    assert connection.fileno() in rig.pool._by_fd, "some of it waits"
    os.kill(rig.pool.pids[0], signal.SIGCONT)
    answered = []
    while len(answered) < 80:
        answered += [done.slot for done in rig.pool.recv(1)]
    assert sorted(answered) == [*range(80)]
    steps = np.diff(rig.slab.arrays["images"].astype(int).mean(axis=(1, 2, 3, 4)))
    assert (steps > 0).all() or (steps < 0).all(), "each slot has its own perturbation"
    assert connection.fileno() not in rig.pool._by_fd


def test_what_a_reset_needs_is_sent_without_waiting():
    asked = []

    class Connection:
        timeout, room = 1.0, 0

        def gettimeout(self):
            return self.timeout

        def setblocking(self, value):
            asked.append(value)
            self.timeout = 0.0

        def send(self, data):
            if not self.room:
                raise BlockingIOError
            return min(len(data), self.room)

    connection = Connection()
    outbox = Outbox(connection)
    assert not outbox
    outbox.put("a.mp4")
    for room, sent in ((0, False), (0, False), (5, True)):
        assert outbox
        connection.room = room
        assert outbox.flush() is sent
    assert not outbox
    assert asked == [False], "once"


@BOTH_STARTS
def test_a_hung_step_shows_where_it_stands(make_rig):
    rig = started(make_rig(workers=1, fault="hang", deadlines=IMPATIENT))
    step(rig, 0, 0, 1)
    began = time.monotonic()
    with pytest.raises(WorkerHungError) as failed:
        rig.pool.recv(1)
    assert 0.5 <= time.monotonic() - began < 20
    assert "_misbehave" in failed.value.detail
    assert "0.5 s while stepping" in failed.value.message
    assert "env.step_timeout_s" in failed.value.remedy


@BOTH_STARTS
def test_a_stopped_worker_counts_as_hung(make_rig):
    rig = started(make_rig(workers=1, deadlines=IMPATIENT))
    pid = rig.pool.pids[0]
    os.kill(pid, signal.SIGSTOP)
    step(rig, 0, 0, 1)
    with pytest.raises(WorkerHungError, match=str(pid)):
        rig.pool.recv(1)
    rig.pool.close()
    assert not alive(pid)


def test_a_slow_slot_does_not_hold_back_what_a_quick_one_has_done(make_rig, tmp_path):
    """Slots 0 and 1 are on one worker; 1 is told to wait for a file that comes when 0 has been heard of."""
    rig = make_rig(slots=2, workers=1, target="broken_envs.WaitsForFile", file=str(tmp_path / "go"))
    reset(rig, 0, 0, task_id=0)
    rig.pool.recv(1)
    step(rig, 0, 0, 1)
    reset(rig, 1, 2, task_id=1)
    assert [done.slot for done in rig.pool.recv(1)] == [0]
    (tmp_path / "go").touch()
    assert [done.slot for done in rig.pool.recv(1)] == [1]


def test_each_slot_of_a_worker_has_the_whole_deadline(make_rig):
    rig = make_rig(slots=3, workers=1, deadlines=Deadlines(30.0, 10.0, 0.6), step_s=0.1)
    for slot in range(3):
        reset(rig, slot, slot)
    rig.pool.recv(3)
    for slot in range(3):  # 3 chunks of 4 steps of 0.05 to 0.15 s: longer together than one deadline
        step(rig, slot, slot, 3 + slot)
    assert len(rig.pool.recv(3)) == 3


def test_the_time_of_a_command_begins_when_it_is_given(make_rig):
    """However long the worker had nothing to do before."""
    rig = started(make_rig(workers=1, deadlines=Deadlines(30.0, 10.0, 1.5), step_s=0.1))
    time.sleep(1.8)
    step(rig, 0, 0, 1)
    assert [done.num_steps for done in rig.pool.recv(1)] == [4]


def test_a_hung_reset_names_its_own_key(make_rig):
    rig = make_rig(workers=1, target="broken_envs.HangsInReset", deadlines=Deadlines(30.0, 0.3, 10.0))
    reset(rig, 0, 0)
    with pytest.raises(WorkerHungError) as failed:
        rig.pool.recv(1)
    assert "0.3 s while resetting" in failed.value.message
    assert "in reset" in failed.value.detail
    assert "env.reset_timeout_s" in failed.value.remedy


@pytest.mark.parametrize(
    ("options", "expected", "text"),
    [
        ({"fault": "prepare_exception"}, WorkerDiedError, "told to fail in prepare"),
        ({"target": "broken_envs.NoRenderer"}, RendererUnavailableError, "no renderer in this test"),
        ({"target": "broken_envs.ExitsInPrepare"}, WorkerDiedError, "the last words of the simulator"),
        ({"target": "broken_envs.NoSuchEnv"}, EmbodiedError, "broken_envs.NoSuchEnv"),
        (
            {"workers": 1, "target": "broken_envs.HangsInPrepare", "deadlines": Deadlines(2.5, 1.0, 1.0)},
            WorkerHungError,
            "in prepare",
        ),
    ],
)
@BOTH_STARTS
def test_a_worker_that_cannot_start_says_why_and_none_stays(make_rig, options, expected, text):
    before = descendants()
    with pytest.raises(expected) as failed:
        make_rig(**options)
    assert type(failed.value) is expected or expected is EmbodiedError
    assert text in str(failed.value)
    assert descendants() == before


@BOTH_STARTS
def test_close_leaves_no_process_and_no_file_descriptor(make_rig):
    gc.collect()
    fds, before = set(os.listdir("/proc/self/fd")), descendants()
    rig = started(make_rig())
    assert len(descendants() - before) == 2
    rig.pool.close()
    rig.slab.close()
    rig.slab.close = lambda: None  # the fixture closes again
    assert descendants() == before
    del rig
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= len(fds)


@BOTH_STARTS
def test_idle_workers_use_no_cpu(make_rig):
    rig = started(make_rig())
    before = [cpu_seconds(pid) for pid in rig.pool.pids]
    time.sleep(1.0)
    used = [cpu_seconds(pid) - was for pid, was in zip(rig.pool.pids, before, strict=True)]
    assert max(used) <= 0.02


def test_a_launcher_that_waits_uses_no_cpu_after_an_answer_either(make_rig):
    rig = started(make_rig(workers=1, step_s=0.2))
    step(rig, 0, 0, 1)
    before = time.process_time()
    assert len(rig.pool.recv(1)) == 1
    assert time.process_time() - before < 0.2, "of 0.8 s"


@BOTH_STARTS
def test_stop_signals_are_left_to_the_launcher(make_rig):
    rig = started(make_rig(workers=1))
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(rig.pool.pids[0], number)
    step(rig, 0, 0, 1)
    assert rig.pool.recv(1)[0].num_steps == 4


LAUNCHER = """
import sys, time
from pathlib import Path
from rig import open_rig
with open_rig(Path(sys.argv[1]), fault="hang") as rig:
    from embodied.runtime.channel import Command, Kind
    rig.pool.send(Command(Kind.RESET, 0, next_row=0, task_id=0, init_state_id=0, max_steps=100))
    rig.pool.recv(1)
    rig.pool.send(Command(Kind.STEP, 0, row=0, next_row=1))  # one worker hangs in its simulator, the other waits
    print(*rig.pool.pids, flush=True)
    time.sleep(600)
"""


def test_workers_end_with_a_launcher_that_is_killed(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "helpers")}
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        encoding="utf-8",
    ) as launcher:
        pids = [int(pid) for pid in launcher.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(alive, pids))
        launcher.kill()
    assert wait_until(lambda: not any(map(alive, pids)), 5)


def test_num_workers():
    assert num_workers(None, 1) == 1
    assert num_workers(None, 10_000) == os.cpu_count()
    assert num_workers(3, 8) == 3
    assert num_workers(8, 3) == 3


@BOTH_STARTS
def test_a_log_holds_what_the_simulator_printed(make_rig, tmp_path):
    with pytest.raises(WorkerDiedError):
        make_rig(workers=1, target="broken_envs.ExitsInPrepare")
    assert "the last words" in (tmp_path / "logs" / "worker-00.log").read_text(encoding="utf-8")


def test_an_env_sees_equal_chunks_as_equal_whatever_ran_before(make_rig):
    """Two slots of one worker, the same start: one after another episode, one fresh."""
    rig = make_rig(slots=2, workers=1, deadlines=FAST)
    rig.slab.arrays["actions"][:] = 0.3
    reset(rig, 0, 0, task_id=1)
    rig.pool.recv(1)
    step(rig, 0, 0, 1)
    rig.pool.recv(1)
    for slot in (0, 1):
        reset(rig, slot, 2 + slot)
    rig.pool.recv(2)
    for slot in (0, 1):
        step(rig, slot, 2 + slot, 4 + slot)
    rig.pool.recv(2)
    for name in ("images", "state"):
        assert np.array_equal(rig.slab.arrays[name][4], rig.slab.arrays[name][5])
    assert np.array_equal(rig.slab.arrays["rewards"][2], rig.slab.arrays["rewards"][3])
