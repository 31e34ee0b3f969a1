"""Which action a control step takes, on a simulated clock that counts control steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.client import Answer, ChunkQueue, Guard
from embodied.client.plan import Plan, Rule, blended
from embodied.errors import ConfigError, DelayError, GuardStopError, ServerLostError, SpecMismatchError


class Later:
    """An answer that is there after so many control steps."""

    def __init__(self, actions: np.ndarray | Exception, done: Callable[[], bool]) -> None:
        self._actions, self.done = actions, done
        self.cancelled = False

    def result(self) -> Answer:
        if isinstance(self._actions, Exception):
            raise self._actions
        return Answer(self._actions, 0.0)

    def cancel(self) -> bool:
        self.cancelled = True
        return True


class Server:
    """Answers after the next of ``delays`` control steps. The actions that answer the observation of control step t are
    (t, q), (t + 1, q), … with q the number of the question: so each says for which control step it was meant."""

    def __init__(self, horizon: int, delays: list[int] | None = None) -> None:
        self.horizon, self.now = horizon, 0
        self.questions: list[tuple[int, int | None]] = []  # (control step, the delay that it was told)
        self.pending: list[Later] = []
        self.failure: Exception | None = None
        self._delays = delays or [0]

    def infer_async(self, observation: Any, *, delay_steps: int | None = None) -> Later:
        number = len(self.questions)
        self.questions.append((self.now, delay_steps))
        steps = observation["step"] + np.arange(self.horizon, dtype=np.float32)
        actions = np.stack([steps, np.full(self.horizon, number, np.float32)], axis=1)
        due = self.now + self._delays[number % len(self._delays)]
        self.pending.append(Later(self.failure or actions, lambda: self.now >= due))
        return self.pending[-1]


def execute(server: Server, queue: ChunkQueue, steps: int) -> np.ndarray:
    """The actions of so many control steps: [steps, 2]."""
    given = []
    for _ in range(steps):
        given.append(queue.action(lambda: {"step": server.now}))
        server.now += 1
    return np.stack(given)


def test_waiting_executes_whole_chunks_and_asks_when_they_are_done():
    server = Server(horizon=8)
    given = execute(server, ChunkQueue(server, 5, "wait"), 12)
    assert given[:, 0].tolist() == list(range(12))
    assert given[:, 1].tolist() == [0] * 5 + [1] * 5 + [2] * 2
    assert server.questions == [(0, 0), (5, 0), (10, 0)]


def test_ahead_the_first_actions_of_a_chunk_are_dropped_by_the_measured_delay():
    server = Server(horizon=8, delays=[0, 2, 3, 1])
    queue = ChunkQueue(server, 4, "ahead")
    given = execute(server, queue, 18)
    assert given[:, 0].tolist() == list(range(18)), "each control step gets the action that was meant for it"
    assert given[:, 1].tolist() == [0] * 6 + [1] * 5 + [2] * 2 + [3] * 4 + [4]
    assert server.questions == [(0, 0), (4, 0), (8, 2), (12, 3), (16, 1)], "and the server is told the delay"
    assert queue.waited == 1, "the first action alone is waited for"


def delays_that_fit(data: st.DataObject) -> tuple[int, int, list[int]]:
    """Chunk length, s, and delays with d ≤ s ≤ H − d."""
    horizon = data.draw(st.integers(2, 12))
    execute_steps = data.draw(st.integers(1, horizon - 1))
    most = min(execute_steps, horizon - execute_steps)
    return horizon, execute_steps, data.draw(st.lists(st.integers(0, most), min_size=1, max_size=6))


@settings(deadline=None)
@given(st.data(), st.sampled_from(["ahead", "realtime"]))
def test_whatever_delays_fit_no_step_waits_and_each_gets_its_action(data, mode):
    horizon, steps, delays = delays_that_fit(data)
    server = Server(horizon, delays)
    queue = ChunkQueue(server, steps, mode)
    given = execute(server, queue, 30)
    assert np.allclose(given[:, 0], np.arange(30))
    assert queue.waited == 1
    assert [asked for asked, _ in server.questions] == list(range(0, 30, steps))


def test_the_delay_that_was_measured_outlives_an_episode_whose_first_answer_is_waited_for():
    server = Server(horizon=8, delays=[0, 2])
    queue = ChunkQueue(server, 4, "ahead", delay=1)
    execute(server, queue, 7)
    queue.reset()
    execute(server, queue, 5)
    assert [told for _, told in server.questions] == [1, 1, 2, 2]


def test_realtime_goes_from_the_old_chunk_to_the_new_one_and_leaves_the_gripper():
    server = Server(horizon=8, delays=[0, 2, 2])
    queue = ChunkQueue(server, 4, "realtime", gripper=())
    number = execute(server, queue, 10)[:, 1]
    assert number[:6].tolist() == [0] * 6, "what is executed while the answer comes is what was planned"
    assert np.allclose(number[6:], [1 / 3, 2 / 3, 1, 1]), "8 − 4 − 2 control steps have both chunks"
    server = Server(horizon=8, delays=[0, 2, 2])
    assert execute(server, ChunkQueue(server, 4, "realtime"), 10)[:, 1].tolist() == [0] * 6 + [1] * 4


def test_the_passage_can_be_shorter():
    old, new = np.zeros((4, 2), np.float32), np.ones((6, 2), np.float32)
    assert blended(old, new, 1, ())[:, 0].tolist() == [0.5, 1, 1, 1, 1, 1]
    assert blended(old, new, 0, ()).tolist() == new.tolist()
    assert (old == 0).all()
    assert (new == 1).all()


def test_with_an_action_to_hold_no_step_waits_but_the_first():
    server = Server(horizon=6, delays=[2])
    queue = ChunkQueue(server, 3, "wait", hold=np.array([-1, -1], np.float32))
    given = execute(server, queue, 13)
    assert given[:, 0].tolist() == [0, 1, 2, -1, -1, 3, 4, 5, -1, -1, 8, 9, 10], "time goes on while it holds"
    assert (queue.delay, queue.waited, queue.held) == (2, 1, 4)


@pytest.mark.parametrize(("steps", "delay"), [(4, 5), (6, 3)])
def test_answers_that_come_too_late_again_and_again_are_an_error(steps, delay):
    server = Server(horizon=8, delays=[0, delay])
    queue = ChunkQueue(server, steps, "ahead", hold=np.zeros(2, np.float32), late_limit=1)
    with pytest.raises(DelayError, match=rf"{delay} ≤ {steps} ≤ 8 − {delay} does not hold"):
        execute(server, queue, 30)


def test_a_late_answer_now_and_then_is_lived_through():
    server = Server(horizon=8, delays=[0, 6, 1])
    queue = ChunkQueue(server, 4, "ahead", hold=np.full(2, -1, np.float32), late_limit=2)
    given = execute(server, queue, 40)
    held = given[:, 0] == -1
    assert 0 < held.sum() < 20
    assert (given[:, 0] == np.arange(40))[~held].all()


def test_the_fix_says_which_s_would_do_or_that_none_would():
    rule = Rule(2, "ahead")
    with pytest.raises(DelayError, match="set execute to 3 or more and 5 or less"):
        rule.check_delay(3, 8)
    with pytest.raises(DelayError, match="bear a delay of 4 at most"):
        rule.check_delay(5, 8)
    rule.check_delay(2, 8)
    Rule(2, "wait").check_delay(50, 8)


@pytest.mark.parametrize(
    ("steps", "mode", "said"),
    [
        (0, "wait", "execute is 0"),
        (9, "wait", "chunks have 8 actions"),
        (8, "ahead", "no delay d with d ≤ execute ≤ actions − d"),
        (8, "realtime", "set execute to 4"),
        (3, "soon", "not one of wait, ahead, realtime"),
    ],
)
def test_what_cannot_be_is_refused_at_once(steps, mode, said):
    with pytest.raises(ConfigError, match=said):
        ChunkQueue(Server(8), steps, mode)
    ChunkQueue(Server(8), 8, "wait")


def test_a_new_episode_forgets_what_was_planned():
    server = Server(horizon=8, delays=[0, 3])
    queue = ChunkQueue(server, 4, "ahead")
    execute(server, queue, 5)
    queue.reset()
    assert server.pending[1].cancelled
    server.now = 100
    assert execute(server, queue, 3)[:, 0].tolist() == [100, 101, 102]


def test_a_lost_server_is_said_and_the_next_step_asks_again():
    server = Server(horizon=4)
    server.failure = ServerLostError("gone", "start it")
    queue = ChunkQueue(server, 2, "wait")
    with pytest.raises(ServerLostError):
        execute(server, queue, 1)
    server.failure = None
    assert execute(server, queue, 2)[:, 0].tolist() == [0, 1]


def test_with_a_guard_a_lost_server_stops_the_robot():
    server = Server(horizon=4)
    server.failure = ServerLostError("gone", "start it")
    guard = Guard.from_map({"control_hz": 20, "action": {"low": [-9, -9], "high": [9, 9]}})
    queue = ChunkQueue(server, 2, "wait", guard=guard)
    with pytest.raises(GuardStopError, match="ServerLostError: gone"):
        execute(server, queue, 1)
    server.failure = None
    with pytest.raises(GuardStopError, match="ServerLostError: gone"):
        execute(server, queue, 1)
    queue.reset()
    assert execute(server, queue, 1).tolist() == [[0, 2]]


def test_each_action_passes_the_guard():
    guard = Guard.from_map({"control_hz": 20, "action": {"low": [0, 0], "high": [2, 9]}})
    server = Server(horizon=4)
    assert execute(server, ChunkQueue(server, 4, "wait", guard=guard), 4)[:, 0].tolist() == [0, 1, 2, 2]


def test_a_policy_whose_actions_change_their_shape_is_refused():
    plan = Plan(Rule(2, "ahead"))
    plan.asked()
    plan.answered(np.zeros((4, 2), np.float32))
    plan.asked()
    with pytest.raises(SpecMismatchError, match=r"shape \(3,\), and had \(2,\)"):
        plan.answered(np.zeros((4, 3), np.float32))


def test_choices_are_executed_but_not_blended():
    plan = Plan(Rule(2, "ahead"))
    plan.asked()
    plan.answered(np.array([3, 1, 2], np.int32))
    assert [int(plan.take()) for _ in range(3)] == [3, 1, 2]
    plan = Plan(Rule(1, "realtime"))
    plan.asked()
    with pytest.raises(SpecMismatchError, match="cannot be blended"):
        plan.answered(np.array([3, 1, 2], np.int32))
