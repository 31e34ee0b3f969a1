"""A robot is brought to a stand before its worker is killed, whatever ends it: real workers, real guardians."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rig import Rig
from robot_envs import state_of, stops, workers

from embodied import eval as evaluation
from embodied.errors import SafeStopError, SpecMismatchError, WorkerDiedError, WorkerHungError
from embodied.runtime.channel import Command, Kind
from embodied.runtime.plan import train_plan
from embodied.runtime.pool.pool import Deadlines
from embodied.testing import check_env

HERE = Path(__file__).parents[1]
SHORT = Deadlines(init=60.0, reset=1.0, step=1.0)


@pytest.fixture
def robot(make_rig: Callable[..., Rig], tmp_path: Path) -> Callable[..., Rig]:
    def make(safe_stop_s: float = 20.0, **options: object) -> Rig:
        return make_rig(
            slots=1, workers=1, max_restarts=3, target="robot_envs.Robot", folder=str(tmp_path), deadlines=SHORT,
            pool={"safe_stop_s": safe_stop_s}, num_tasks=1, **options,
        )  # fmt: skip

    return make


def collect(rig: Rig) -> None:
    plan = train_plan(rig.env.spec, seed=0, iteration=0, episodes=2, group_size=2)
    rig.rollout().collect(plan, rig.job(retry_safe=False))


def await_file(path: Path) -> None:
    until = time.monotonic() + 30
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert path.exists()


def test_a_worker_that_hangs_is_frozen_then_its_robot_stopped_then_it_is_killed(robot, tmp_path):
    rig = robot(fault="hang")
    with pytest.raises(WorkerHungError, match=r"did not answer for 1 s(.|\n)*the robot was stopped") as hung:
        collect(rig)
    assert "in _misbehave" in hung.value.detail, "its stack, as of any worker"
    assert stops(tmp_path) == ["T"]
    assert [state_of(pid) for pid in workers(tmp_path)] == ["gone"], "and no other worker has taken its place"
    rig.pool.close()
    assert stops(tmp_path) == ["T"]


@pytest.mark.parametrize("fault", ["kill", "exception"])
def test_the_robot_of_a_worker_that_died_is_stopped(robot, tmp_path, fault):
    with pytest.raises(WorkerDiedError, match="the robot was stopped"):
        collect(robot(fault=fault))
    assert stops(tmp_path) == ["gone"]
    assert len(workers(tmp_path)) == 1


def test_an_error_that_the_env_explains_stops_the_robot_and_stays_what_it_is(robot, tmp_path):
    with pytest.raises(SpecMismatchError, match="the gripper is not mounted"):
        collect(robot(refuses=True))
    assert len(stops(tmp_path)) == 1


def test_a_run_that_ends_in_order_stops_nothing_and_leaves_no_process(robot, tmp_path):
    rig = robot()
    collect(rig)
    guardian = rig.pool._workers[0].guardian._process.pid
    rig.pool.close()
    assert (tmp_path / "closed").exists()
    assert stops(tmp_path) == []
    assert state_of(guardian) == state_of(workers(tmp_path)[0]) == "gone"


def test_a_run_that_ends_while_its_worker_hangs_stops_the_robot_before_the_kill(robot, tmp_path):
    rig = robot(fault="hang")
    rig.pool.send(Command(Kind.RESET, 0, next_row=0, task_id=0, init_state_id=0, max_steps=9))
    rig.pool.recv(1)
    rig.slab.arrays["actions"][0] = 0
    rig.pool.send(Command(Kind.STEP, 0, row=0, next_row=1))
    rig.pool.flush()
    await_file(tmp_path / "misbehaves")
    rig.pool.close()
    assert stops(tmp_path) == ["T"]
    assert not (tmp_path / "closed").exists()


@pytest.mark.parametrize(("stop", "said"), [("raises", "the brake does not answer"), ("hangs", "no answer within 1 s")])
def test_a_stop_that_fails_is_said_loudly_and_ends_the_run(robot, tmp_path, stop, said):
    rig = robot(safe_stop_s=1.0, fault="hang", stop=stop)
    with pytest.raises(SafeStopError, match=rf"THE ROBOT MAY STILL MOVE(.|\n)*{said}(.|\n)*did not answer in time"):
        collect(rig)
    rig.pool.close()
    assert state_of(workers(tmp_path)[0]) == "gone"
    assert stops(tmp_path) == ["T"], "it was tried once"


def test_a_stop_that_fails_while_the_run_ends_is_an_error_of_the_close(robot, tmp_path):
    rig = robot(fault="kill", stop="raises")
    with pytest.raises(SafeStopError, match=r"the brake(.|\n)*was killed by SIGKILL"):
        collect(rig)
    rig.pool.close()


def test_without_what_stops_it_the_robot_s_worker_does_not_start(make_rig, tmp_path):
    with pytest.raises(SafeStopError, match=r"cannot be started(.|\n)*safe_stop"):
        make_rig(slots=1, workers=1, target="robot_envs.Unstoppable", pool={"safe_stop_s": 1.0})


KILLED = """
import sys
sys.path[:0] = [{here!r}]
from pathlib import Path
from rig import open_rig
from embodied.runtime.channel import Command, Kind
folder = Path(sys.argv[1])
with open_rig(folder / "logs", slots=1, workers=1, target="robot_envs.Robot", folder=str(folder), fault="hang",
              pool={{"safe_stop_s": 20.0}}) as rig:
    rig.pool.send(Command(Kind.RESET, 0, next_row=0, task_id=0, init_state_id=0, max_steps=9))
    rig.pool.recv(1)
    rig.pool.send(Command(Kind.STEP, 0, row=0, next_row=1))
    rig.pool.flush()
    print("moving", flush=True)
    sys.stdin.read()
"""


def test_the_robot_is_stopped_also_when_the_launcher_is_killed(tmp_path):
    command = [sys.executable, "-c", KILLED.format(here=str(HERE / "helpers")), str(tmp_path)]
    launcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    try:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "moving\n"
        await_file(tmp_path / "misbehaves")
        os.kill(launcher.pid, signal.SIGKILL)
    finally:
        launcher.kill()
        launcher.communicate()
    until = time.monotonic() + 30
    while state_of(workers(tmp_path)[0]) != "gone" and time.monotonic() < until:
        time.sleep(0.05)
    assert stops(tmp_path) == ["T"]
    assert state_of(workers(tmp_path)[0]) == "gone"


def test_other_envs_have_no_such_process(make_rig, tmp_path):
    rig = make_rig(slots=2, workers=2)
    assert [worker.guardian for worker in rig.pool._workers.values()] == [None, None]
    assert not list((tmp_path / "logs").glob("safe-stop*"))


RUN = (
    "env=fake", "model=fake", "runner.device=cpu", "env.eval.episodes_per_task=1", "env.eval.total_num_envs=1",
    "env.eval.video_cfg.save_video=false", "runner.experiment_name=run", "--config-dir", str(HERE / "config"),
)  # fmt: skip


def evaluated(target: str, *overrides: str) -> int:
    sides = [f"env.{side}._target_=robot_envs.{target}" for side in ("train", "eval")]
    return evaluation.main([*RUN, *sides, *overrides])


def test_a_robot_without_a_safe_stop_is_refused_before_anything_starts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert evaluated("Unstoppable") == 2
    assert "has no safe_stop()" in (said := capsys.readouterr().err)
    assert "embodied.protocols.SafeStop" in said
    folder = [f"env.{side}.folder={tmp_path}" for side in ("train", "eval")]
    assert evaluated("Robot", *folder, "env.start_method=forkserver") == 2
    assert "set env.start_method=spawn" in capsys.readouterr().err
    assert not (tmp_path / "workers").exists()


def test_an_evaluation_on_a_robot_that_hangs_stops_it_and_ends(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    hangs = [f"env.{side}.{key}" for side in ("train", "eval") for key in (f"folder={tmp_path}", "fault=hang")]
    assert evaluated("Robot", *hangs, "env.step_timeout_s=1", "env.safe_stop_timeout_s=20") == 2
    assert "the robot was stopped (safe_stop)" in capsys.readouterr().err
    assert stops(tmp_path) == ["T"]
    assert len(workers(tmp_path)) == 1


def test_the_check_of_an_env_stops_a_robot(tmp_path):
    from robot_envs import Robot, Unstoppable

    check_env(Robot(str(tmp_path)))
    assert stops(tmp_path) == ["R"], "in this process"
    with pytest.raises(SpecMismatchError, match=r"safe_stop\(\) of an env with retry_safe=False"):
        check_env(Unstoppable())
