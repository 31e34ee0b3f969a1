"""Executes chunks of actions while the next answer is under way.

    queue = ChunkQueue(client, execute=5, mode="realtime")
    while True:                                   # at the control rate
        robot.step(queue.action(robot.observe))   # observes only when an observation is to be sent

Which action a control step takes is worked out in ``plan.py``, in control steps. Here stand what asks and what waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from embodied.client.client import Answer
from embodied.client.guard import Guard
from embodied.client.plan import Mode, Plan, Rule
from embodied.errors import DelayError, EmbodiedError

Observation = Mapping[str, Any]


class Pending(Protocol):
    """An answer under way, such as a :class:`concurrent.futures.Future`."""

    def done(self) -> bool: ...

    def result(self) -> Answer: ...

    def cancel(self) -> bool: ...


class Asks(Protocol):
    """Interface of what answers observations: a :class:`embodied.client.Client`, or something around one."""

    @property
    def horizon(self) -> int | None:
        """K, the actions of an answer; None if it is not known."""

    def infer_async(self, observation: Observation, *, delay_steps: int | None = None) -> Pending: ...


@runtime_checkable
class AsksOn(Asks, Protocol):
    """Interface of an :class:`Asks` whose server may go on from what is left of the chunk before."""

    @property
    def continues(self) -> bool:
        """Whether it does."""

    def infer_async(
        self, observation: Observation, *, delay_steps: int | None = None, left_over: np.ndarray | None = None
    ) -> Pending: ...


class ChunkQueue:
    """Hands out one action for each control step, from chunks that it asks a policy server for.

    Args:
        execute: s, control steps from one observation that is sent to the next.
        mode: "wait" asks when s actions are executed, and the robot waits for the answer. "ahead" asks every s control
            steps while it executes, drops the first d actions of the new chunk, and switches. "realtime" does the same
            and blends the new chunk with what was planned; a server that goes on from what was planned is told that
            instead, and nothing is blended.
        blend: of realtime: control steps over which it blends; None = all that both chunks have.
        gripper: dimensions of an action that are never blended.
        hold: the action of control steps for which there is none yet, float32 [A]; None: ``action`` waits for the
            answer. The first action of an episode is always waited for.
        late_limit: so many answers in a row with a delay that breaks d ≤ s ≤ H − d raise
            :class:`~embodied.errors.DelayError`; fewer are lived through, with ``hold`` or by waiting.
        guard: each action passes it; it also stops when there is no answer.
        delay: d that the server is told until it was measured, control steps.

    Raises:
        ConfigError: ``execute`` does not fit the policy's chunks.
    """

    def __init__(
        self, client: Asks, execute: int, mode: Mode = "ahead", *, blend: int | None = None,
        gripper: Sequence[int] = (-1,), hold: np.ndarray | None = None, late_limit: int = 3,
        guard: Guard | None = None, delay: int = 0,
    ) -> None:  # fmt: skip
        self._client, self._hold, self._late_limit, self._guard = client, hold, late_limit, guard
        self._rule = Rule(execute, mode, blend, tuple(gripper))
        if client.horizon is not None:
            self._rule.longest_delay(client.horizon)
        self._pending: Pending | None = None
        self._went_on = False  # the server was told what is left of the chunk before
        self.delay = delay  # d as measured last, control steps
        self.waited = 0  # control steps that have waited for an answer
        self.held = 0  # control steps that have executed ``hold``
        self.reset()

    def reset(self) -> None:
        """Begin an episode: what was planned for the one before is forgotten."""
        if self._pending is not None:
            self._pending.cancel()
        self._plan, self._pending, self._late = Plan(self._rule), None, 0
        if self._guard is not None:
            self._guard.reset()

    def action(
        self, observation: Observation | Callable[[], Observation], taken_at: float | None = None
    ) -> np.ndarray:  # fmt: skip
        """Returns the action of this control step: float32 [A], the caller's own. Call it once a step.

        Args:
            observation: of this moment, as :meth:`embodied.client.Client.infer` takes it; or what gives it, which is
                then called for the steps that send one.
            taken_at: ``time.monotonic()`` when it was taken; None = now. The guard judges its age by it. Of what gives
                an observation it is the moment of the call, whatever is said here.

        Raises:
            ServerLostError, ServerRefusedError, WireError: there is no answer, and nothing is planned.
            DelayError: answers come too late.
            GuardStopError: in place of these with a guard, and when the guard has stopped the robot.
        """
        if self._guard is None:
            return self._next(observation, taken_at)
        try:
            wanted = self._next(observation, taken_at)
        except EmbodiedError as error:
            raise self._guard.stop(f"{type(error).__name__}: {error.message}") from error
        return self._guard.check(wanted)

    def _next(self, observation: Observation | Callable[[], Observation], taken_at: float | None) -> np.ndarray:
        if self._guard is not None and not callable(observation):
            self._guard.observed(observation, taken_at)
        self._collect(wait=False)
        if self._pending is None and self._plan.wants_request:
            self._ask(observation, taken_at)
        if self._plan.is_empty and (self._hold is None or not self._plan.has_begun):
            self.waited += 1
            self._collect(wait=True)
        if self._plan.is_empty:
            self.held += 1
            self._plan.skip()
            return np.array(self._hold, np.float32)
        return self._plan.take()

    def _ask(self, observation: Observation | Callable[[], Observation], taken_at: float | None) -> None:
        if callable(observation):
            taken_at = time.monotonic()
            observation = observation()
            if self._guard is not None:
                self._guard.observed(observation, taken_at)
        self._plan.asked()
        client, left = self._client, self._plan.left
        if self._rule.mode == "realtime" and len(left) and isinstance(client, AsksOn) and client.continues:
            self._pending = client.infer_async(observation, delay_steps=self.delay, left_over=left)
        else:
            self._pending, left = client.infer_async(observation, delay_steps=self.delay), left[:0]
        self._went_on = len(left) > 0

    def _collect(self, wait: bool) -> None:
        """Plan with the answer, if it has come or is to be waited for."""
        if self._pending is None or not (wait or self._pending.done()):
            return
        pending, self._pending = self._pending, None
        actions, moves = pending.result().actions, self._plan.has_begun
        delay = self._plan.answered(actions, blends=not self._went_on)
        if moves:  # a robot that waits for its first action makes no control step meanwhile
            self.delay = delay
        try:
            self._rule.check_delay(delay, len(actions))
            self._late = 0
        except DelayError:
            self._late += 1
            if self._late >= self._late_limit:
                raise
