"""Workers that fail while others work: replaced, their episodes redone, nothing else changed."""

from __future__ import annotations

import os
import re
import signal
from contextlib import contextmanager

import pytest
from rig import BOTH_STARTS, records

from embodied.errors import (
    AssetsMissingError,
    RendererUnavailableError,
    SpecMismatchError,
    WorkerDiedError,
    WorkerHungError,
)
from embodied.random import Stream
from embodied.runtime.channel import Command, Completion, Kind
from embodied.runtime.plan import eval_plan, train_plan, with_videos
from embodied.runtime.pool.pool import Back, Deadlines, Lost
from embodied.runtime.pool.supervise import Supervisor

NEAR = {"step_s": 0.0005, "success_distance": 0.6}
SHORT = Deadlines(init=30.0, reset=1.0, step=1.0)


def make_plan(rig, episodes=8, iteration=0):
    return train_plan(rig.env.spec, seed=0, iteration=iteration, episodes=episodes, group_size=2)


def collect(rig, job=None, plan=None, schedule=None):
    """``(records, returns and lengths, counts)`` of a rollout: what must not depend on failures."""
    results, stats = rig.rollout(**(schedule or {})).collect(plan or make_plan(rig), rig.job(**(job or {})))
    outcome = [(r.episode.episode_id, r.episode_return, r.success, r.num_steps, r.truncated) for r in results]
    return records(rig, results), outcome, (stats.env_steps, stats.chunks), stats.worker_restarts


def all_up(rig):
    """Wait until every worker serves."""
    while len(rig.pool.up) < rig.pool.num_slots:
        rig.pool.recv(1)


@pytest.fixture(scope="module")
def undisturbed(shared_rig):
    return collect(shared_rig(slots=4, workers=2, **NEAR))[:3]


@contextmanager
def on_send(rig, react):
    """``react(command, n)`` after the n-th command of a rollout was sent."""
    send, count = rig.pool.send, 0

    def sending(command, *rest):
        nonlocal count
        send(command, *rest)
        count += 1
        react(command, count)

    rig.pool.send = sending
    try:
        yield
    finally:
        del rig.pool.send


def at(number, signum=signal.SIGKILL, worker=0):
    """A reaction that sends a signal to a worker once."""

    def react(rig):
        def reacting(command, count):
            if count == number:
                os.kill(rig.pool.pids[worker], signum)

        return reacting

    return react


@pytest.mark.parametrize("schedule", [{"min_batch": 1}, {"lockstep": True}, {"lockstep": True, "stages": 2}])
@pytest.mark.parametrize("number", [1, 6, 15])
def test_a_killed_worker_changes_no_bit(make_rig, undisturbed, number, schedule):
    said: list[str] = []
    rig = make_rig(slots=4, workers=2, max_restarts=3, say=said.append, **NEAR)
    with on_send(rig, at(number)(rig)):
        *got, restarts = collect(rig, schedule=schedule)
    assert tuple(got) == undisturbed
    assert restarts == 1
    assert len(said) == 1
    for part in (r"env worker 0 \(pid \d+, slots \[0, 2\]\) was killed by SIGKILL", "1 of env.max_worker_restarts 3"):
        assert re.search(part, said[0])


@BOTH_STARTS
def test_a_stopped_worker_is_killed_at_its_deadline_and_replaced(make_rig, undisturbed):
    said: list[str] = []
    rig = make_rig(slots=4, workers=2, max_restarts=3, say=said.append, deadlines=SHORT, **NEAR)
    with on_send(rig, at(7, signal.SIGSTOP)(rig)):
        *got, restarts = collect(rig)
    assert tuple(got) == undisturbed
    assert restarts == 1
    assert "did not answer for 1 s" in said[0]


@pytest.mark.parametrize("fault", ["exception", "kill", "hang"])
@BOTH_STARTS
def test_an_env_that_fails_once_is_redone(make_rig, tmp_path, fault, undisturbed):
    said: list[str] = []
    rig = make_rig(
        slots=4, workers=2, max_restarts=3, say=said.append, deadlines=SHORT, target="broken_envs.FailsOnce",
        marker=str(tmp_path / "failed"), fault=fault, **NEAR,
    )  # fmt: skip
    *got, restarts = collect(rig)
    assert tuple(got) == undisturbed
    assert restarts == len(said) == 1
    expected = {"exception": "told to fail in step", "kill": "SIGKILL", "hang": "in _misbehave"}
    assert expected[fault] in said[0]


def test_rows_are_neither_leaked_nor_shared_after_failures(make_rig):
    rig = make_rig(slots=4, workers=2, rows=8 * 3, max_restarts=3, **NEAR)  # as many rows as the plan can take
    for number in (1, 5, 9):
        with on_send(rig, at(number)(rig)):
            got, *_ = collect(rig)
        assert len(got) > 8


def test_evaluation_survives_a_failure(make_rig):
    rig = make_rig(slots=2, workers=2, rows=4, max_restarts=3, **NEAR)
    usual = collect(rig, {"keep_records": False})[1]
    with on_send(rig, at(8)(rig)):
        _, outcome, _, restarts = collect(rig, {"keep_records": False})
    assert outcome == usual
    assert restarts == 1


def test_final_values_survive_a_failure(make_rig):
    rig = make_rig(slots=4, workers=2, max_restarts=3, policy={"value_head": True}, **NEAR)
    usual = collect(rig, {"value_truncated": True})[:3]
    with on_send(rig, at(10)(rig)):
        *got, restarts = collect(rig, {"value_truncated": True})
    assert (tuple(got), restarts) == (usual, 1)


def test_the_video_of_a_redone_episode_is_whole(make_rig, tmp_path):
    import imageio.v3 as iio

    rig = make_rig(slots=1, workers=1, max_restarts=3)
    plan = with_videos(make_plan(rig, episodes=2), tmp_path / "videos", 2)
    with on_send(rig, at(3)(rig)):
        collect(rig, plan=plan)
    for episode in plan:
        assert iio.imread(episode.video).shape[0] == 11  # the start and ten steps
    assert len(list((tmp_path / "videos").iterdir())) == 2


def test_other_slots_go_on_while_a_replacement_starts(make_rig, tmp_path):
    """The replacement hangs at its start: the whole plan is done by the other worker meanwhile."""
    rig = make_rig(
        slots=2, workers=2, max_restarts=3, target="broken_envs.StartsOnlyAtFirst", marker=str(tmp_path / "starts"),
        first_starts=2, deadlines=Deadlines(60.0, 10.0, 10.0), **NEAR,
    )  # fmt: skip
    with on_send(rig, at(2)(rig)):
        got, *_, restarts = collect(rig)
    assert len(got) > 8
    assert restarts == 1
    assert rig.pool.up == [1], "the replacement has not come"


@BOTH_STARTS
def test_close_does_not_wait_for_a_worker_that_is_starting(make_rig, tmp_path, monkeypatch):
    rig = make_rig(
        slots=2, workers=2, max_restarts=3, target="broken_envs.StartsOnlyAtFirst", marker=str(tmp_path / "starts"),
        first_starts=2, **NEAR,
    )  # fmt: skip
    with on_send(rig, at(2)(rig)):
        collect(rig)
    starting = rig.pool._workers[0]
    rig.pool.close()
    assert starting.process.returncode == -signal.SIGKILL


def test_a_replacement_that_dies_while_starting_is_replaced_in_turn(make_rig, tmp_path, undisturbed):
    rig = make_rig(
        slots=4, workers=2, max_restarts=3, target="broken_envs.DiesAtStart", marker=str(tmp_path / "starts"),
        dies=(3, 4), **NEAR,
    )  # fmt: skip
    with on_send(rig, at(2)(rig)):
        *got, _ = collect(rig)
        all_up(rig)
    assert tuple(got) == undisturbed
    assert rig.pool.restarts == 3


@BOTH_STARTS
def test_a_worker_killed_between_two_rollouts_is_replaced_in_the_next(make_rig, undisturbed):
    rig = make_rig(slots=4, workers=2, max_restarts=3, **NEAR)
    for _ in range(2):
        all_up(rig)  # else the rollout may be over before one that was starting is dead
        os.kill(rig.pool.pids[1], signal.SIGKILL)
        *got, restarts = collect(rig)
        assert (tuple(got), restarts) == (undisturbed, 1)


def test_too_many_failures_in_a_row_end_the_run_with_the_traceback(make_rig):
    said: list[str] = []
    rig = make_rig(slots=2, workers=1, max_restarts=2, say=said.append, fault="exception", fault_step=1)
    with pytest.raises(WorkerDiedError, match="worker 0 has failed 3 times in a row") as failed:
        collect(rig)
    assert "told to fail in step" in failed.value.detail
    assert "env.max_worker_restarts" in failed.value.remedy
    assert len(said) == 2


def test_an_episode_that_ends_every_worker_ends_the_run(make_rig):
    """Between its attempts the workers finish others, so that no worker fails often in a row."""
    rig = make_rig(slots=4, workers=4, max_restarts=1, fault="kill", fault_task=1, num_init_states=8)
    plan = [e for e in make_plan(rig, episodes=16) if e.start.task_id == 0]
    bad = next(e for e in make_plan(rig, episodes=16) if e.start.task_id == 1)
    with pytest.raises(WorkerDiedError, match=rf"episode {bad.episode_id} has ended 2 workers|failed 2 times in a row"):
        collect(rig, plan=[*plan[:4], bad, *plan[4:]])


def test_of_a_batch_any_episode_may_have_ended_the_workers():
    supervisor, error = Supervisor(1, print), WorkerDiedError("it died", "mend it")
    supervisor.episode_failed(error, episode=7, count=1, suspects=3)
    with pytest.raises(
        WorkerDiedError, match="episode 7, or one of the 2 stepped with it at last, has ended 2 workers"
    ):
        supervisor.episode_failed(error, episode=7, count=2, suspects=3)


def test_a_finished_episode_forgives(make_rig, undisturbed):
    rig = make_rig(slots=4, workers=2, max_restarts=1, **NEAR)
    for _ in range(3):
        with on_send(rig, at(6)(rig)):
            *got, restarts = collect(rig)
        assert (tuple(got), restarts) == (undisturbed, 1)
        all_up(rig)
        assert collect(rig)[3] == 0


def test_an_error_that_is_explained_is_not_retried(make_rig):
    rig = make_rig(slots=2, workers=2, max_restarts=3, target="broken_envs.NoRendererInReset")
    with pytest.raises(RendererUnavailableError, match="no renderer in this reset"):
        collect(rig)


@pytest.mark.parametrize("more", [{}, {"hosts": 1}])
def test_an_error_that_is_explained_is_of_the_start_that_an_evaluation_went_to(make_rig, more):
    """The others go on; whoever asks for no more than that gets the error."""
    rig = make_rig(slots=2, workers=1, max_restarts=1, target="broken_envs.NoFilesOfATask", num_tasks=5, **more)
    plan = eval_plan(rig.env.spec, episodes_per_task=1)
    evaluation = {"stream": Stream.EVAL_NOISE, "keep_records": False}
    ended = []
    results, stats = rig.rollout().collect(plan, rig.job(**evaluation, gives_up_after=3), ended.append)
    assert [result.not_run for result in results] == ["", "its file is damaged", "", "", ""]
    assert {id(result) for result in ended} == {id(result) for result in results}, "each is told, once"
    assert len(ended) == 5
    assert stats.worker_restarts == 1, "it is tried once"
    all_up(rig)
    with pytest.raises(AssetsMissingError, match="its file is damaged"):
        rig.rollout().collect(plan, rig.job(**evaluation))


def test_a_reward_that_is_not_finite_ends_the_rollout_with_its_step(make_rig):
    rig = make_rig(slots=2, workers=2, max_restarts=3, target="broken_envs.RewardIsNan")
    with pytest.raises(SpecMismatchError, match=r"reward of control step 1 is nan \(task \d, seed \d+\)"):
        collect(rig)


@pytest.mark.parametrize(("target", "value", "steps"), [("StateIsNan", "nan", 0), ("StateIsNanLater", "-inf", r"\d")])
def test_an_observation_that_is_not_finite_ends_the_rollout_with_its_place(make_rig, target, value, steps):
    """The second one's slots are hosted as a batch. A policy would answer with an action of no meaning, or crash."""
    rig = make_rig(slots=2, workers=1, max_restarts=3, target=f"broken_envs.{target}")
    said = rf"number 1 of the observation's state is {value} after {steps} control steps \(task \d, seed \d+\)"
    with pytest.raises(SpecMismatchError, match=said):
        collect(rig)


def test_the_first_start_is_not_retried(make_rig, tmp_path):
    with pytest.raises(WorkerDiedError, match="told to fail in prepare"):
        make_rig(max_restarts=3, fault="prepare_exception")
    with pytest.raises(WorkerHungError, match="while starting"):
        make_rig(workers=1, max_restarts=3, target="broken_envs.HangsInPrepare", deadlines=Deadlines(2.5, 1.0, 1.0))


def test_every_attempt_keeps_its_log(make_rig, tmp_path):
    rig = make_rig(slots=1, workers=1, max_restarts=3)
    with on_send(rig, at(2)(rig)):
        collect(rig)
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"worker-00.log", "worker-00.1.log"}


@BOTH_STARTS
def test_events_of_a_failure_come_in_order(make_rig):
    rig = make_rig(slots=2, workers=1, max_restarts=1)
    for slot in (0, 1):
        rig.pool.send(Command(Kind.RESET, slot, next_row=slot, task_id=0, init_state_id=0, max_steps=9))
    assert all(isinstance(event, Completion) for event in rig.pool.recv(2))
    os.kill(rig.pool.pids[0], signal.SIGKILL)
    rig.pool.send(Command(Kind.STEP, 1, row=1, next_row=2))
    lost = rig.pool.recv(1)
    assert [(event.slot, event.suspects) for event in lost if isinstance(event, Lost)] == [(0, 0), (1, 1)]
    assert rig.pool.up == []
    assert [event.slot for event in rig.pool.recv(2) if isinstance(event, Back)] == [0, 1]
    assert rig.pool.up == [0, 1]


def test_an_episode_that_may_not_be_redone_ends_the_rollout_when_it_is_lost(make_rig):
    rig = make_rig(slots=2, workers=2, max_restarts=3, fault="kill", fault_step=5, fault_task=0, **NEAR)
    with pytest.raises(WorkerDiedError, match=r"may not be redone without asking(.|\n)*retry_safe") as failed:
        collect(rig, job={"retry_safe": False})
    assert isinstance(failed.value.__cause__, WorkerDiedError)
