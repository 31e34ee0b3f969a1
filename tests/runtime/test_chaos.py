"""Workers are killed and stopped at random while the rollout works: the results are those of an undisturbed run."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from rig import BOTH_STARTS, records

from embodied.runtime.plan import train_plan
from embodied.runtime.pool.pool import Deadlines

TESTS = Path(__file__).parents[1]
PATIENT = Deadlines(init=60.0, reset=2.0, step=2.0)
SHAPE = {"slots": 6, "workers": 3, "rows": 256, "step_s": 0.002, "success_distance": 0.5}


def collect(rig, iteration, **schedule):
    plan = train_plan(rig.env.spec, seed=3, iteration=iteration, episodes=24, group_size=2)
    results, stats = rig.rollout(**schedule).collect(plan, rig.job(max_steps=20))
    outcome = [(r.episode.episode_id, r.episode_return, r.num_steps) for r in results]
    return records(rig, results), outcome, (stats.env_steps, stats.chunks), stats.worker_restarts


@contextmanager
def disturbed(rig, seed, signals=(signal.SIGKILL, signal.SIGSTOP)):
    """Meanwhile a thread sends signals to workers that serve, one every few hundredths of a second."""
    over, choose = threading.Event(), random.Random(seed)

    def disturb():
        while not over.wait(choose.uniform(0.05, 0.3)):
            with suppress(ProcessLookupError, IndexError):  # it is being replaced
                os.kill(choose.choice(rig.pool.pids), choose.choice(signals))

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)


BATCH = {"target": "embodied.testing.FakeBatchEnv", "pool": {"batch": True}}


@pytest.mark.parametrize(
    ("schedule", "start_method", "hosting"),
    [
        ({"min_batch": 2}, "spawn", {}),
        ({"lockstep": True, "stages": 2}, "spawn", {}),
        ({"min_batch": 2}, "forkserver", {}),
        ({"min_batch": 4}, "spawn", BATCH),
        ({"lockstep": True, "stages": 3}, "spawn", BATCH),
    ],
    ids=["ready", "two stages", "ready, forked", "batches", "batches in stages"],
    indirect=["start_method"],
)
def test_random_kills_and_stops_change_no_bit(make_rig, schedule, hosting):
    calm = make_rig(**SHAPE)
    expected = [collect(calm, iteration)[:3] for iteration in range(2)]
    calm.pool.close()
    rig = make_rig(**SHAPE, **hosting, max_restarts=1000, deadlines=PATIENT)
    restarts = []
    with disturbed(rig, seed=len(schedule)):
        while len(restarts) < 2 or (sum(restarts) < 2 and len(restarts) < 20):  # on fast cores few are hit in two
            iteration = len(restarts) % 2
            *got, failed = collect(rig, iteration, **schedule)
            assert tuple(got) == expected[iteration]
            restarts.append(failed)
    assert sum(restarts) >= 2


def zombies(parents):
    children = [
        p.read_text(encoding="utf-8").split()
        for parent in parents
        for p in Path(f"/proc/{parent}/task").glob("*/children")
    ]
    states = [
        Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        for group in children
        for pid in group
    ]
    return states.count("Z")


def descriptors(parents):
    return [len(os.listdir(f"/proc/{parent}/fd")) for parent in parents]


@BOTH_STARTS
def test_a_hundred_iterations_with_failures_leave_nothing(make_rig, start_method, request):
    """No zombie, file descriptor, thread or shared memory more than before; a worker is killed every tenth time."""
    rig = make_rig(slots=2, workers=2, rows=32, max_restarts=3)
    parents = [os.getpid()]
    if start_method == "forkserver":
        parents.append(request.getfixturevalue("fork_server").pid)
    before = zombies(parents)  # other tests of this process may have left some
    plan = train_plan(rig.env.spec, seed=3, iteration=0, episodes=2, group_size=2)
    counts, rollout = [], rig.rollout()
    for iteration in range(100):
        if iteration % 10 == 5:
            os.kill(rig.pool.pids[iteration // 10 % 2], signal.SIGKILL)
        rollout.collect(plan, rig.job(max_steps=4))
        rollout.records.keep()
        if iteration % 10 == 9:
            while len(rig.pool.up) < 2:
                rig.pool.recv(1)
            rollout.collect(plan, rig.job(max_steps=4))  # forgives both
            rollout.records.keep()
            gc.collect()
            counts.append((*descriptors(parents), threading.active_count(), zombies(parents)))
    assert rig.pool.restarts == 10
    assert set(counts) == {counts[0]}
    assert counts[0][-1] <= before


LAUNCHER = """
import sys
from pathlib import Path
from rig import open_rig
from embodied.runtime.pool.fork_server import ForkServer
from embodied.runtime.plan import train_plan
folder = Path(sys.argv[1])
server = ForkServer([("embodied.testing.FakeEnv", {})], folder, 60.0) if sys.argv[2] == "forkserver" else None
with open_rig(folder, slots=4, workers=2, max_restarts=9, step_s=0.01, pool={"server": server}) as rig:
    plan = train_plan(rig.env.spec, seed=3, iteration=0, episodes=16, group_size=2)
    print(*rig.pool.pids, *([server.pid] if server else []), flush=True)
    while True:
        rig.rollout().collect(plan, rig.job(max_steps=8))
        print("collected", flush=True)
"""


def users_of(memory):
    """Processes that have a memfd called ``memory`` mapped or open."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            links = [os.readlink(fd) for fd in (folder / "fd").iterdir()]
            if any(memory in text for text in [(folder / "maps").read_text(encoding="utf-8"), *links]):
                found.append(folder.name)
        except OSError:
            continue
    return found


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def launch(tmp_path, start_method, *wrapper):
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS / 'helpers'}"}
    command = [*wrapper, sys.executable, "-c", LAUNCHER, str(tmp_path / "logs"), start_method]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, encoding="utf-8"
    )


@BOTH_STARTS
def test_a_killed_launcher_leaves_no_worker_and_no_memory(tmp_path, start_method):
    before = set(os.listdir("/dev/shm"))
    with launch(tmp_path, start_method) as launcher:
        pids = [int(pid) for pid in launcher.stdout.readline().split()]
        workers = pids[:2]
        assert len(pids) == (3 if start_method == "forkserver" else 2)
        assert launcher.stdout.readline() == "collected\n"
        held = {str(pid) for pid in (launcher.pid, *workers)}
        assert held <= set(users_of("memfd:slab")), "launcher and workers share the slab"
        assert set(os.listdir("/dev/shm")) == before, "it has no name there"
        launcher.kill()
    deadline = time.monotonic() + 60
    while (any(map(running, pids)) or held & set(users_of("memfd:"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(running, pids))
    assert not held & set(users_of("memfd:"))
    assert set(os.listdir("/dev/shm")) == before


SMALL_SHM = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"'


def may_unshare():
    probe = ["unshare", "--mount", "--map-root-user", "bash", "-c", SMALL_SHM, "-", "true"]
    return subprocess.run(probe, capture_output=True).returncode == 0


@pytest.mark.skipif(not may_unshare(), reason="no mount namespace may be made here")
@BOTH_STARTS
def test_a_tiny_dev_shm_does_not_matter(tmp_path, start_method):
    """The slab of this run is larger than the /dev/shm that it sees."""
    with launch(
        tmp_path, start_method, "unshare", "--mount", "--map-root-user", "bash", "-c", SMALL_SHM, "-"
    ) as launcher:
        try:
            lines = [launcher.stdout.readline() for _ in range(3)]
        finally:
            launcher.kill()
    assert lines[1:] == ["collected\n", "collected\n"], "".join(lines)
