"""A worker whose env is another than the launcher's, on this machine and on a simulator host, does not serve."""

from __future__ import annotations

import os
import platform
import signal
import time
from dataclasses import replace
from typing import Any

import pytest
from filed_env import FILE, TASKS, FiledEnv, write
from host_rig import Nodes

from embodied.errors import EnvsDifferError
from embodied.parallel.placement.table import NodeSoftware
from embodied.runtime.remote.local import LocalStarter
from embodied.runtime.worker.declared import Declared
from embodied.testing import FakeBatchEnv, FakeEnv

SHAPE: dict[str, Any] = {"slots": 2, "workers": 1, "rows": 32, "target": "filed_env.FiledEnv", "max_restarts": 5}
FAR = 60.0  # seconds
OTHERS = [
    (
        {"tasks": (TASKS[0], TASKS[2], TASKS[1])},
        'tasks: 2 of 3 differ: task 1 has "pick up the soup" for the launcher, "open the drawer" for the worker;',
    ),
    ({"tasks": TASKS[:2], "num_init_states": (4, 4)}, "tasks: 3 for the launcher, 2 for the worker"),
    (
        {"num_init_states": (4, 4, 50)},
        "num_init_states: 1 of 3 differ: task 2 has 4 for the launcher, 50 for the worker",
    ),
    ({"states": "0 1 3"}, "files: 1 of 2 differ: tasks.init"),
    ({"max_episode_steps": 25}, "max_episode_steps: 24 for the launcher, 25 for the worker"),
    (
        {"cameras": ("wrist", "front")},
        'cameras: ["camera0", "camera1"] for the launcher, ["wrist", "front"] for the worker',
    ),
]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The launcher's file."""
    path = write(tmp_path / "here")
    monkeypatch.setenv(FILE, path)
    return path


def declared() -> dict[str, Declared]:
    return {"declared": Declared.of(FiledEnv())}


def until_all_serve(rig) -> None:
    end = time.monotonic() + FAR / 2
    while time.monotonic() < end and not (rig.pool.recv(1, timeout=1.0) and rig.pool.up == [0, 1]):
        pass


def refused(make_rig, **more: Any) -> EnvsDifferError:
    began = time.monotonic()
    with pytest.raises(EnvsDifferError) as found:
        make_rig(**{**SHAPE, "pool": declared(), **more})
    assert time.monotonic() - began < FAR / 2, "it is not tried again and again"
    return found.value


@pytest.mark.parametrize(("other", "said"), OTHERS)
def test_a_worker_of_this_machine_with_another_env_ends(make_rig, here, tmp_path, monkeypatch, other, said):
    launcher = declared()
    monkeypatch.setenv(FILE, write(tmp_path / "there", **other))
    error = refused(make_rig, kind=FiledEnv, pool=launcher)
    assert said in error.message
    assert error.message.startswith("env worker 0 (pid ")
    assert f"on {platform.node()} has another filed_env.FiledEnv than the launcher" in error.message
    assert len(error.message.splitlines()) == 1 + len(other), "it says nothing else"


@pytest.mark.parametrize(("other", "said"), OTHERS[:1])
@pytest.mark.parametrize("slots", [1, 4])
def test_a_host_with_other_files_ends_the_start_with_what_differs(make_rig, here, tmp_path, other, said, slots):
    elsewhere = NodeSoftware(variables={FILE: write(tmp_path / "there", **other)})
    error = refused(make_rig, slots=slots, kind=FiledEnv, hosts=1, starter=LocalStarter(software=elsewhere))
    assert said in error.message
    assert f"on {platform.node()} has another filed_env.FiledEnv" in error.message
    assert "install the same versions and files" in error.remedy


@pytest.mark.parametrize("hosts", [0, 1])
def test_what_depends_on_the_device_may_differ(make_rig, here, tmp_path, monkeypatch, hosts):
    pool = declared()
    monkeypatch.setenv(FILE, write(tmp_path / "there", gpu=True))
    rig = make_rig(**SHAPE, kind=FiledEnv, pool=pool, **({"hosts": hosts} if hosts else {}))
    assert rig.pool.up == [0, 1]


def test_a_worker_that_takes_anothers_place_is_compared_too(make_rig, here, tmp_path):
    rig = make_rig(**SHAPE, kind=FiledEnv, pool=declared())
    write(tmp_path / "here", tasks=TASKS[::-1])
    os.kill(rig.pool.pids[0], signal.SIGKILL)
    with pytest.raises(EnvsDifferError, match="2 of 3 differ: task 0 has"):
        until_all_serve(rig)
    assert rig.pool.restarts == 1, "the one that was killed; the other one's end is final"


def test_a_host_that_takes_anothers_place_is_compared_too(make_rig, here, tmp_path):
    nodes = Nodes("this")
    rig = make_rig(**SHAPE, kind=FiledEnv, pool=declared(), hosts=1, starter=nodes)
    write(tmp_path / "here", states="another")
    nodes._on["this"][0]._process.kill()
    with pytest.raises(EnvsDifferError, match=r"files: 1 of 2 differ: tasks.init"):
        until_all_serve(rig)
    assert len(nodes.starts) == 2


def test_what_is_declared_is_the_spec_with_files_and_batches():
    env, batch = FakeEnv(), FakeBatchEnv()
    assert Declared.of(FakeEnv()).digest == Declared.of(env).digest
    assert Declared.of(FakeEnv(restorable=False, repeatable=False)).digest == Declared.of(env).digest
    assert Declared.of(batch).digest != Declared.of(env).digest
    said = Declared.of(env).differs("worker 1", "a.Env", replace(Declared.of(batch), host="n7")).message.splitlines()
    assert said[0].startswith("worker 1 on n7 has another a.Env than the launcher")
    assert "  batched: false for the launcher, true for the worker" in said[1:]


def test_ten_thousand_tasks_are_compared_in_milliseconds():
    env = FakeEnv()
    words = "pick up the black bowl between the plate and the ramekin and place it on the plate"
    env._spec = replace(
        env._spec, tasks=tuple(f"{words} light {n}" for n in range(10_030)), num_init_states=(50,) * 10_030
    )
    took = []
    for _ in range(5):
        began = time.thread_time()
        assert len(Declared.of(env).digest) == 64
        took.append(time.thread_time() - began)
    assert min(took) < 0.02
