"""Which episode a slot takes, and which one is given up, event by event: nothing runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from embodied.errors import AssetsMissingError, WorkerDiedError
from embodied.observe.timeline import Timeline
from embodied.random import Stream
from embodied.runtime.channel import Command, Completion, Kind
from embodied.runtime.policy.policy_port import Request
from embodied.runtime.ports import Back, Lost
from embodied.runtime.records import RecordStore
from embodied.runtime.rollout.episodes import Episodes, Job
from embodied.runtime.rollout.giving_up import GIVEN_UP_IN_A_ROW
from embodied.runtime.rollout.rollout import BuiltTasks, Run
from embodied.runtime.rollout.schedule import Schedule
from embodied.runtime.slab import Slab, runtime_fields
from embodied.testing import FakeEnv, FakePolicy
from embodied.types import Episode, Sampling, Start


class Port:
    """Notes what slots are told, and what they are blamed for and forgiven."""

    def __init__(self, slots: int, shares: bool) -> None:
        self.num_slots, self.up, self.restarts, self.moving = slots, [*range(slots)], 0, set[int]()
        self.sent: list[Command] = []
        self.blamed: list[tuple[int, int]] = []
        self.forgiven: list[int] = []
        self._shares = shares

    def group_of(self, slot: int) -> int:
        return 0

    def simulators_of(self, slot: int) -> int:
        return 0 if self._shares else slot

    def send(self, command: Command, video: Any = None, draws: Any = None) -> None:
        self.sent.append(command)

    def flush(self) -> None:
        pass

    def blame(self, lost: Lost, episode_id: int, count: int) -> None:
        self.blamed.append((episode_id, count))

    def forgive(self, slot: int) -> None:
        self.forgiven.append(slot)


class Prompt:
    """A policy port that decides at once, and notes which values it is asked for."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.valued: list[int] = []

    @property
    def pending(self) -> int:
        return len(self.asked)

    def submit(self, requests: Sequence[Request]) -> None:
        self.asked += requests

    def poll(self) -> list[Request]:
        asked, self.asked = self.asked, []
        return asked

    def value(self, requests: Sequence[Request]) -> None:
        self.valued += [request.episode_id for request in requests]

    def cancel(self, slot: int) -> None:
        pass


@pytest.fixture
def store() -> Iterator[RecordStore]:
    slab = Slab.create({**FakeEnv().spec.obs, **FakePolicy().spec.decision, **runtime_fields(4)}, 64)
    yield RecordStore(slab)
    slab.close()


def running(
    store: RecordStore, tasks: list[int], slots: int = 1, shares: bool = False, built: BuiltTasks | None = None,
    **more: Any,
) -> tuple[Run, Port, Prompt]:  # fmt: skip
    plan = [Episode(number, number, Start(task, number, 0)) for number, task in enumerate(tasks)]
    job: dict[str, Any] = {
        "sampling": Sampling(), "seed": 0, "stream": Stream.EVAL_NOISE, "version": 0, "max_steps": 4,
        "keep_records": False, "num_slots": slots, **more,
    }  # fmt: skip
    port, policy, built = Port(slots, shares), Prompt(), built or BuiltTasks()
    episodes = Episodes(plan, Job(**job), store, 4)
    made: Any = Run(port, policy, Schedule(False, 1), built, episodes, Timeline(slots), slots)  # type: ignore[arg-type]
    made.start_episodes()
    return made, port, policy


def lose(run: Run, port: Port, slot: int = 0, suspects: int = 1, error: Exception | None = None) -> None:
    """The slot's worker fails in the episode that it runs, and another one takes the next."""
    run.take([Lost(slot, error or RuntimeError("it fell over"), suspects), Back(slot)])
    run.start_episodes()


def end(run: Run, slot: int = 0, observed: bool = False) -> None:
    """The slot's episode runs to its end, and another one begins."""
    run.take([Completion(Kind.RESET, slot)])
    run.submit([slot])
    run.answer()
    run.take([Completion(Kind.STEP, slot, num_steps=4, ended=True, observed=observed)])
    run.start_episodes()


# -- which episode a slot takes --------------------------------------------------------------------------------------


def episodes_of(*tasks: int) -> list[Episode]:
    return [Episode(number, number, Start(task, 0, 0)) for number, task in enumerate(tasks)]


def test_a_slot_takes_a_task_that_it_has_built_then_one_that_nobody_works_on_then_the_first():
    built = BuiltTasks()
    assert built.pick(0, episodes_of(3, 1, 2), []) == 0
    assert built.pick(0, episodes_of(1, 2, 3), episodes_of(1)) == 2, "it has built 3"
    assert built.pick(0, episodes_of(1, 2, 1), episodes_of(1)) == 1, "another slot works on 1, and nobody on 2"
    assert built.pick(0, episodes_of(1, 4), episodes_of(1, 4)) == 0, "others work on all of them"
    assert built.pick(0, episodes_of(5, 2, 3), []) == 1, "of those that it has built the first in line"
    assert built.pick(1, episodes_of(5, 2, 3), episodes_of(2)) == 0, "another slot has built nothing"
    built.forget(0)
    assert built.pick(0, episodes_of(5, 2, 3), []) == 0, "a new worker has built nothing"


def test_a_new_worker_of_a_slot_has_built_nothing(store):
    """With the simulator of task 7 a slot takes the other episode of it first; without it, what comes first."""
    for fails, second in ((False, 7), (True, 5)):
        run, port, _ = running(store, [7, 5, 7])
        if fails:
            run.take([Completion(Kind.RESET, 0)])
            run.take([Lost(0, RuntimeError("it fell over"), 0)])
            run.episodes.pending.pop(0)
            run.take([Back(0)])
            run.start_episodes()
        else:
            end(run)
        assert [command.task_id for command in port.sent if command.kind == Kind.RESET] == [7, second]


def test_a_slot_takes_a_task_that_another_with_its_simulators_has_built(store):
    for shares, second in ((True, 7), (False, 5)):
        _, port, _ = running(store, [7, 5, 7], slots=2, shares=shares)
        assert [command.task_id for command in port.sent] == [7, second]


def test_slots_that_shared_simulators_with_a_lost_worker_have_built_nothing(store):
    run, port, _ = running(store, [7, 5, 7, 5], slots=2, shares=True)
    run.take([Lost(slot, RuntimeError("it fell over"), 0) for slot in (0, 1)])
    run.episodes.pending[:] = run.episodes.pending[-1:] + run.episodes.pending[:-1]
    run.take([Back(1)])
    run.start_episodes()
    assert [command.task_id for command in port.sent] == [7, 7, 5]


def test_a_worker_that_was_lost_beside_a_job_of_fewer_slots_has_built_nothing(store):
    built = BuiltTasks()
    running(store, [7, 5], slots=2, built=built)
    fewer, _, _ = running(store, [7], slots=1, built=built)
    fewer.take([Lost(1, RuntimeError("it fell over"), 0), Back(1)])
    _, port, _ = running(store, [7, 6, 5], slots=2, built=built)
    assert [command.task_id for command in port.sent] == [7, 6], "and not 5, which a worker before it had built"


# -- episodes that cannot be run -------------------------------------------------------------------------------------


def test_an_episode_that_ends_its_workers_is_given_up_and_the_others_go_on(store):
    run, port, _ = running(store, [0, 0, 0], gives_up_after=2)
    lose(run, port)
    assert (port.blamed, run.episodes.results) == ([(0, 1)], [])
    lose(run, port)
    (result,) = run.episodes.results
    assert (result.episode.episode_id, result.not_run) == (0, "it fell over")
    assert port.forgiven == [0]
    assert port.sent[-1].init_state_id == 1, "the next one has begun"


def test_an_episode_whose_env_says_why_is_tried_once(store):
    run, port, _ = running(store, [0, 0, 0], gives_up_after=2)
    lose(run, port, error=AssetsMissingError("no such file", "put it there"))
    assert [result.not_run for result in run.episodes.results] == ["no such file"]
    assert port.blamed == []
    run, port, _ = running(store, [0, 0, 0])
    lose(run, port, error=AssetsMissingError("no such file", "put it there"))
    assert port.blamed == [(0, 1)], "for the port to raise it"


def test_what_ended_a_worker_is_said_with_its_exception(store):
    found = []
    for detail in (
        "Traceback (most recent call last):\n  File x\n    y\nKeyError: 'z'\nmore\n",
        "a log\n  x\nlast",
        "",
    ):
        run, port, _ = running(store, [0], gives_up_after=1)
        lose(run, port, error=WorkerDiedError("worker 0 ended", "see its log", detail))
        found += [result.not_run for result in run.episodes.results]
    assert found == ["worker 0 ended: KeyError: 'z'", "worker 0 ended", "worker 0 ended"]


@pytest.mark.parametrize("broken", [range(10, 30), range(20), range(44, 64), [*range(8), *range(40, 48)]])
def test_neighbours_that_share_what_is_broken_end_nothing(store, broken):
    """Another part of the plan is tried then, also by a worker that is alone; and what was run is run once more to see
    whether anything can be."""
    run, port, _ = running(store, [0] * 64, gives_up_after=1)
    while run.episodes.unfinished and not port.blamed:
        (current,) = run.episodes.running.values()
        lose(run, port) if current.episode.episode_id in broken else end(run)
    assert port.blamed == []
    assert {one.episode.episode_id for one in run.episodes.results if one.not_run} == {*broken}
    assert len(run.episodes.results) == 64, "one that was run once more is not counted again"
    assert run.episodes.stats.chunks == 64 - len(broken)


def test_without_the_key_the_port_decides(store):
    run, port, _ = running(store, [0, 0], gives_up_after=None)
    for _ in range(5):
        lose(run, port)
    assert port.blamed == [(0, count) for count in range(1, 6)]
    assert run.episodes.results == []


@pytest.mark.parametrize("suspects", [0, 2])
def test_an_episode_is_given_up_only_if_it_alone_can_have_ended_the_worker(store, suspects):
    """Of a batch any slot may be at fault; 0: the worker was busy with none."""
    run, port, _ = running(store, [0, 0], gives_up_after=1)
    lose(run, port, suspects=suspects)
    assert run.episodes.results == []
    assert (port.forgiven, port.blamed) == ([], [(0, 1)] if suspects else [])


def test_too_many_in_a_row_are_not_the_fault_of_the_episodes(store):
    run, port, _ = running(store, [0] * 9, gives_up_after=1)
    for _ in range(GIVEN_UP_IN_A_ROW):
        lose(run, port)
    assert (len(run.episodes.results), port.blamed) == (GIVEN_UP_IN_A_ROW, [])
    (next_one,) = run.episodes.running.values()
    lose(run, port)
    assert (len(run.episodes.results), port.blamed) == (GIVEN_UP_IN_A_ROW, [(next_one.episode.episode_id, 1)])


def test_one_that_can_be_run_begins_the_count_anew(store):
    run, port, _ = running(store, [0] * 12, gives_up_after=1)
    for _ in range(2):
        for _ in range(GIVEN_UP_IN_A_ROW):
            lose(run, port)
        end(run)
    assert port.blamed == []
    one_more = [True] * GIVEN_UP_IN_A_ROW + [False] + [True] * GIVEN_UP_IN_A_ROW  # what was run was run once more
    assert [bool(one.not_run) for one in run.episodes.results] == one_more
    end(run)
    assert [bool(one.not_run) for one in run.episodes.results] == [*one_more, False]


def test_what_was_run_and_cannot_be_run_any_longer_is_the_ports_to_judge(store):
    """It runs alone, and its first result stays."""
    run, port, _ = running(store, [0] * 12, slots=2, gives_up_after=1)
    end(run, slot=1)
    run.take([Lost(1, RuntimeError("it fell over"), 0)])
    for _ in range(GIVEN_UP_IN_A_ROW):
        lose(run, port)
    run.take([Back(1)])
    run.start_episodes()
    assert {slot: one.episode.episode_id for slot, one in run.episodes.running.items()} == {0: 1}
    lose(run, port)
    assert port.blamed == [(1, 1)]
    (again,) = run.episodes.running
    end(run, again)
    assert len(run.episodes.running) == 2, "the others go on"
    found = [(one.episode.episode_id, one.not_run) for one in run.episodes.results]
    assert (len(found), found[0]) == (1 + GIVEN_UP_IN_A_ROW, (1, ""))


def test_one_that_had_begun_elsewhere_waits_for_what_is_run_once_more(store):
    """Two workers were at broken tasks at once: the second failure says as little as the ones before."""
    run, port, _ = running(store, [0] * 12, slots=2, gives_up_after=1)
    end(run, slot=1)
    begun = run.episodes.running[1].episode
    for _ in range(GIVEN_UP_IN_A_ROW):
        lose(run, port)
    lose(run, port, slot=1)
    assert (port.blamed, len(run.episodes.results)) == ([], 1 + GIVEN_UP_IN_A_ROW)
    assert (port.forgiven[-1], run.episodes.pending[0]) == (1, begun)
    ((slot, alone),) = run.episodes.running.items()
    assert alone.episode.episode_id == 1, "what was run is run once more, alone"
    end(run, slot)
    (slot,) = (number for number, one in run.episodes.running.items() if one.episode is begun)
    lose(run, port, slot)
    assert run.episodes.results[-1].episode is begun
    assert run.episodes.results[-1].not_run
    assert port.blamed == []


# -- values of final observations ------------------------------------------------------------------------------------


def test_final_observations_are_valued_in_the_order_of_the_plan_whoever_ended_first(store):
    run, _, policy = running(store, [0, 0, 0], slots=3, keep_records=True, value_truncated=True)
    for slot in (2, 0, 1):
        end(run, slot, observed=True)
    assert [one.episode.episode_id for one in run.episodes.results] == [2, 0, 1]
    run.value_final_observations()
    assert policy.valued == [0, 1, 2]
