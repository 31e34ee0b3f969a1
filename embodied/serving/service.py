"""Answers observations with one policy: requests that wait at the same time share a call of it.

    any thread ── submit(question) ──▶ │ waiting │ ──▶ inference thread: takes all that wait, up to max_batch ──▶ policy
    event loop ◀── deliver(outcome) ────────────────── one wake-up of the event loop for a batch

The event loop never waits for the policy, and the policy never waits for more requests: one client alone is answered at
once, and what comes meanwhile is the next batch.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import SimpleQueue

import numpy as np
import torch

from embodied.errors import EmbodiedError, RequestError, SpecMismatchError
from embodied.instructions import fields_of
from embodied.protocols import ContinuesChunks, Policy
from embodied.serving import inputs
from embodied.serving.metrics import Metrics
from embodied.serving.wire.requests import Question
from embodied.types import EnvSpec, Sampling, TextAction

log = logging.getLogger(__name__)

CLOSE_S = 5.0  # time limit for the policy's last call: nobody waits for its answer


@dataclass(frozen=True)
class Answer:
    """The actions that answer an observation, with the times that they took."""

    actions: np.ndarray  # actions of one record, as the env takes them: float32 [K, A], or int32 [K]
    infer_ms: float  # the policy's call
    queue_ms: float  # waiting for it
    batch: int  # questions in the call


@dataclass
class Session:
    """A client's series of requests, whose sampling noise continues from one to the next."""

    number: int = 0
    asked: int = 0

    def next(self, number: int | None) -> tuple[int, int]:
        """Counts a request; returns the key of its noise: requests before, session number. A new number begins a
        session."""
        if number is not None and number != self.number:
            self.number, self.asked = number, 0
        self.asked += 1
        return self.asked - 1, self.number


Outcome = Answer | EmbodiedError


class Ticket(ABC):
    """Base class of a caller that waits for an answer of the policy."""

    gone = False  # nobody waits any more: what has not begun is not computed, and nothing is delivered

    @abstractmethod
    def deliver(self, outcome: Outcome) -> None:
        """Hands the answer, or its error, to the caller. Called on the event loop."""


class _Awaited(Ticket):
    def __init__(self, future: asyncio.Future[Outcome]) -> None:
        self._future = future

    def deliver(self, outcome: Outcome) -> None:
        if not self._future.done():
            self._future.set_result(outcome)


@dataclass(frozen=True)
class _Waiting:
    question: Question
    greedy: bool
    goes_on: bool  # from the chunk before
    place: tuple[int, int]
    ticket: Ticket
    came: float = field(default_factory=time.perf_counter)

    @property
    def kind(self) -> tuple[bool, bool]:
        """A batch has requests of one kind."""
        return self.greedy, self.goes_on


class Service:
    """Runs the policy of a server: collects waiting observations into batches, in an inference thread.

    Args:
        policy: bound to ``env``, on ``device``.
        sampling: how actions are drawn; ``do_sample`` holds for requests that do not say ``greedy``.
        max_batch: most requests of a call.
        fixed_shape: fill shorter batches up, so that a request's actions are the same to the bit whatever else is
            asked at the same time.
        max_waiting: requests that may wait; more are refused.
        seed: of the noise.

    Raises:
        SpecMismatchError: the env takes text.
    """

    def __init__(
        self,
        policy: Policy,
        env: EnvSpec,
        sampling: Sampling,
        metrics: Metrics,
        *,
        max_batch: int = 8,
        fixed_shape: bool = False,
        max_waiting: int = 64,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        if isinstance(env.action, TextAction):
            raise SpecMismatchError(
                "the env takes text, and this server answers with actions",
                "export the policy (embodied.tools.export --format hf) and serve the folder with an inference engine",
            )
        self.env, self.sampling, self.max_batch = env, sampling, max_batch
        self.most_together = min(max_batch, max_waiting)  # requests of a frame
        self._policy, self._metrics, self._device = policy, metrics, torch.device(device)
        self._fixed_shape, self._max_waiting, self._seed = fixed_shape, max_waiting, seed
        self._action, self._continues = env.action.field(policy.spec.num_action_chunks), inputs.continues(policy, env)
        self._samplings = {greedy: replace(sampling, do_sample=not greedy) for greedy in (True, False)}
        self._fields = {name: env.obs[name] for name in fields_of(env)}
        self._waiting: deque[_Waiting] = deque()
        self._lock = threading.Lock()  # guards ``_waiting``
        self._bell: SimpleQueue[None] = SimpleQueue()  # rings when something has come, or the end
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="inference", daemon=True)
        metrics.waiting.set_function(lambda: len(self.waiting()))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._warm: asyncio.Future[EmbodiedError | None] | None = None  # gives the error of the warm-up calls, or None

    # -- on the event loop -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to answer. Called on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._warm = self._loop.create_future()
        self._thread.start()

    @property
    def alive(self) -> bool:
        """True while the inference thread runs."""
        return self._thread.is_alive()

    def waiting(self) -> list[_Waiting]:
        """Lists the requests that wait for the policy, without those of clients that have gone."""
        with self._lock:
            return [waiting for waiting in self._waiting if not waiting.ticket.gone]

    def submit(self, question: Question, session: Session, ticket: Ticket) -> None:
        """Queues an observation; the ticket gets its actions. From any thread, but for one session from one at a time.

        Raises:
            RequestError: too many requests wait.
        """
        for _, error in self.submit_together([(question, ticket)], session):
            raise error

    def submit_together(
        self, asked: Sequence[tuple[Question, Ticket]], session: Session
    ) -> list[tuple[Ticket, EmbodiedError]]:
        """Queues observations of a session at once, in their order, so that they share a call of the policy. Returns
        the tickets that are refused, with the reason; the others get their actions. From threads as :meth:`submit`.

        Raises:
            RequestError: too many requests wait; none of these is queued.
        """
        if not self.alive:
            raise RequestError("the server's inference thread has ended", "see the log of the server", "policy")
        if (count := len(self.waiting())) + len(asked) > self._max_waiting:
            raise RequestError(f"{count} requests wait already", "try again later, or add servers", "busy")
        found, refused = list[_Waiting](), list[tuple[Ticket, EmbodiedError]]()
        for question, ticket in asked:
            try:
                found.append(self._checked(question, session, ticket))
            except EmbodiedError as error:
                refused.append((ticket, error))
        with self._lock:
            self._waiting += found
        if found and self._bell.empty():  # else it rings already, and what has come is seen then
            self._bell.put(None)
        return refused

    def _checked(self, question: Question, session: Session, ticket: Ticket) -> _Waiting:
        if question.options.delay_steps is not None:
            self._metrics.note(self._metrics.client_delay_steps.observe, question.options.delay_steps)
        greedy = not self.sampling.do_sample if question.options.greedy is None else question.options.greedy
        goes_on = self._continues and inputs.goes_on(question.options, self._action.shape)
        inputs.check_noise(question.options, self._policy.spec.noise)
        draw = question.options.draw
        place = session.next(question.options.session) if draw is None else (0, draw)
        return _Waiting(question, greedy, goes_on, place, ticket)

    async def answer(self, question: Question, session: Session) -> Answer:
        """Computes the actions for an observation. When the caller is cancelled, nothing is computed that
        has not begun.

        Raises:
            RequestError: too many requests wait, or the policy failed.
        """
        assert self._loop is not None, "start() comes first"
        future: asyncio.Future[Outcome] = self._loop.create_future()
        ticket = _Awaited(future)
        self.submit(question, session, ticket)
        try:
            outcome = await future
        finally:
            ticket.gone = True
        if isinstance(outcome, EmbodiedError):
            raise outcome
        return outcome

    async def ready(self) -> None:
        """Waits until the policy has run once for each size of a batch (:meth:`_warm_up`).

        Raises:
            RequestError: the policy failed.
        """
        assert self._warm is not None, "start() comes first"
        if error := await self._warm:
            raise error

    def close(self) -> None:
        """Ends the inference thread after its present batch. Queued requests are not answered."""
        self._ends = True
        self._bell.put(None)
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def _deliver(self, batch: Sequence[_Waiting], outcomes: Sequence[Outcome]) -> None:
        for waiting, outcome in zip(batch, outcomes, strict=True):
            if not waiting.ticket.gone:
                waiting.ticket.deliver(outcome)

    # -- in the inference thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._loop is not None
        assert self._warm is not None
        self._loop.call_soon_threadsafe(self._warm.set_result, self._warm_up())
        while batch := self._take():
            outcomes = self._outcomes(batch)
            with suppress(RuntimeError):  # the loop was closed: nobody waited for this call to end
                self._loop.call_soon_threadsafe(self._deliver, batch, outcomes)

    def _warm_up(self) -> EmbodiedError | None:
        """Ask about empty observations, in batches of 1, 2, 4 … up to ``max_batch``: libraries choose kernels and
        allocate at the first call of a shape. Returns what was wrong."""
        assert self._loop is not None
        size = self.max_batch if self._fixed_shape else 1
        one = _Waiting(
            inputs.empty(self.env), not self.sampling.do_sample, False, (0, 0), _Awaited(self._loop.create_future())
        )
        while True:
            outcome = self._outcomes([one] * size)[0]
            if isinstance(outcome, EmbodiedError) or size >= self.max_batch:
                return outcome if isinstance(outcome, EmbodiedError) else None
            size = min(2 * size, self.max_batch)

    def _take(self) -> list[_Waiting]:
        """Wait for requests; returns all that are drawn as the oldest is, up to ``max_batch``. Empty at the end."""
        while not self._ends:
            with self._lock:
                here = [waiting for waiting in self._waiting if not waiting.ticket.gone]
                batch = [waiting for waiting in here if waiting.kind == here[0].kind][: self.max_batch]
                taken = set(map(id, batch))
                self._waiting = deque(waiting for waiting in here if id(waiting) not in taken)
            if batch:
                return batch
            self._bell.get()
        return []

    def _outcomes(self, batch: Sequence[_Waiting]) -> list[Outcome]:
        """An answer or an error for each. If a batch fails, its requests are asked one by one: one that the policy
        cannot take costs the others nothing but time."""
        try:
            return [*self._ask(batch)]
        except EmbodiedError as error:
            if len(batch) == 1:
                kind = error.kind if isinstance(error, RequestError) else "policy"
                return [RequestError(error.message, error.remedy, kind)]
        except Exception as error:
            log.exception("the policy failed on %d requests", len(batch))
            if len(batch) == 1:
                what = f"the policy failed with {type(error).__name__}"
                return [RequestError(what, "see the log of the server, which has the traceback", "policy")]
        return [self._outcomes([waiting])[0] for waiting in batch]

    def _ask(self, batch: Sequence[_Waiting]) -> list[Answer]:
        began = time.perf_counter()
        fill = self.max_batch - len(batch) if self._fixed_shape else 0
        asked = [*batch, *[batch[-1]] * fill]
        actions = self._act(asked)[: len(batch)]
        inputs.check_actions(actions, len(batch), self._action)
        took = time.perf_counter() - began
        note = self._metrics.note
        note(self._metrics.inference.observe, took)
        note(self._metrics.batch_size.observe, len(batch))
        if not np.isfinite(actions).all():
            raise RequestError(
                "the policy's actions are not finite numbers", "look after the observation, or the checkpoint", "policy"
            )
        queued = [began - waiting.came for waiting in batch]
        for seconds in queued:
            note(self._metrics.queue.observe, seconds)
        return [
            Answer(row, 1000 * took, 1000 * waited, len(batch)) for row, waited in zip(actions, queued, strict=True)
        ]

    def _act(self, asked: Sequence[_Waiting]) -> np.ndarray:
        """The actions of a call of the policy, [B, K, …]."""
        policy, questions, greedy = self._policy, [waiting.question for waiting in asked], asked[0].greedy
        obs = {name: self._here(values) for name, values in inputs.observations(questions, self._fields).items()}
        told = policy.encode_instructions([question.prompt for question in questions])
        places = [waiting.place for waiting in asked]
        sent = [question.options.noise for question in questions]
        noise = self._here(inputs.drawn(places, self._seed, policy.spec.noise, greedy, sent))
        with torch.inference_mode():
            seen = obs | {name: values.to(self._device) for name, values in told.items()}
            if asked[0].goes_on:
                assert isinstance(policy, ContinuesChunks)
                before = [self._here(values) for values in inputs.left_over(questions, self._action.shape)]
                decision = policy.act_after(seen, noise, self._samplings[greedy], *before)
            else:
                decision = policy.act(seen, noise, self._samplings[greedy])
            return decision.fields["actions"].cpu().numpy()

    def _here(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)
