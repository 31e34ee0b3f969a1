"""Both halves of an iteration of reinforcement learning where some processes only collect and others train.

| | trains (:class:`TrainSide`) | only collects (:class:`RolloutSide`) |
|---|---|---|
| holds | the learner; weights that act, if they are older | the policy that acts: no optimizer, no gradients |
| before a rollout or an evaluation | sends weights that are not there yet | receives them |
| update | gets its records, trains, says what came of it | gives its records, waits for that |
| after it, with ``max_staleness`` | sends weights ahead, beside the rollout that still runs | receives them |

All processes make the same calls in the same order, so that each call may be a collective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from embodied.errors import Stopped
from embodied.learn.acting import Acting, check_acts_alone, make_acting
from embodied.learn.actor_critic.learner import ActorCriticLearner
from embodied.learn.batch import Batch
from embodied.learn.ranks.acting import Received, Sent
from embodied.learn.ranks.deal import Dealer
from embodied.learn.ranks.weights import Receiver, Sender
from embodied.learn.score.batches import places_of
from embodied.learn.score.start_memory import StartMemory
from embodied.learn.trainer import Trainer
from embodied.learn.watch import Watch, unwatched
from embodied.observe.metrics import Metric
from embodied.parallel.group import Group
from embodied.parallel.sharding import Parallel
from embodied.protocols import HasExtraState, Policy
from embodied.types import EpisodeResult, Start


@dataclass(frozen=True)
class Links:
    """How the processes that train and those that only collect reach each other.

    Args:
        weights, ahead, news: the first process that trains, and those that only collect; for weights, for those that
            go ahead, and for what came of an update. Threads of their own may exchange these.
        dtypes: of the trained tensors where they act, by name.
        checks: weights are compared before they act (``rollout.validate_weight``).
        stops: whether a stop signal has come here.
    """

    dealer: Dealer
    weights: Group
    ahead: Group
    news: Group
    dtypes: Mapping[str, torch.dtype]
    checks: bool
    stops: Callable[[], bool]

    @property
    def world(self) -> Group:
        """All processes of the run."""
        return self.dealer.world

    @property
    def first(self) -> int:
        """Rank in the run of the first process that trains."""
        return self.world.of("train").members[0]


def followers(world: Group) -> Group:
    """Makes a group of the first process that trains and those that only collect. A collective of all processes."""
    train = world.of("train").members
    return world.part([[train[0], *sorted({*world.of("rollout").members} - {*train})]])


@dataclass(frozen=True)
class News:
    """What an update has come to, for processes that only collect."""

    metrics: dict[str, float]
    batch: Batch
    state: dict[str, Any]  # of the learner: counts of its last update, weight version
    ahead: int | None  # version of the weights that follow ahead of the rollout in which they act
    starts: dict[str, Any]  # state of what is remembered of starts; empty if no plan is made from it


@dataclass
class TrainSide(Trainer):
    """A trainer whose records other processes have collected, and whose weights act there."""

    links: Links = field(kw_only=True)

    def __post_init__(self) -> None:
        links, average = self.links, self.actor.optim.ema_decay is not None
        acts = links.world.of("rollout").here
        self._sender = Sender(links.weights, links.ahead, links.dtypes, links.checks, links.stops)
        self._took = self._sender.take_metrics()

        def sent(policy: Policy, staleness: int, interval: int, parallel: Parallel | None) -> Acting:
            if staleness:
                check_acts_alone(parallel)
            return Sent(make_acting(policy, staleness, interval, acts), self._sender, acts, average)

        self.make_acting = sent
        super().__post_init__()

    def begin_rollout(self, iteration: int) -> None:
        """As :meth:`Trainer.begin_rollout`. With ``max_staleness`` the weights are sent after it, beside an update."""
        super().begin_rollout(iteration)
        if self.algorithm.max_staleness:
            self._took = self._sender.take_metrics()

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        assert isinstance(self.acting, Sent)
        with self.engine.evaluated(), self.acting.evaluates(self.policy, self.weight_version):
            yield

    def update(
        self, arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult], iteration: int,
        baselines: Mapping[Start, float] | None = None, watch: Watch = unwatched,
    ) -> tuple[dict[str, float], Batch]:  # fmt: skip
        """As :meth:`Trainer.update`; ``arrays`` is empty where no episodes are collected."""
        news, (arrived, moved) = self.links.news, self.links.dealer.deal(arrays, results)
        try:
            found, batch = super().update(arrived, moved, iteration, baselines, watch)
        except Stopped:
            if news.here:
                news.of_first(None)
            raise
        found |= self._took if self.algorithm.max_staleness else self._sender.take_metrics()
        ranks, rows = places_of(results)
        batch = replace(batch, ranks=ranks, rows=rows)
        ahead = self.weight_version if self._goes_ahead(iteration) else None
        if news.here:
            state = {"samples": self.samples, "flops": self.flops, "weight_version": self.weight_version}
            news.of_first(News(found, batch, state, ahead, self._of_starts()))
        if ahead is not None:
            assert isinstance(self.acting, Sent)
            self.acting.send_ahead(self.policy, ahead)
        return found, batch

    def _goes_ahead(self, iteration: int) -> bool:
        """Returns whether the weights after an iteration's update act in the rollout after the one that runs now."""
        follows = iteration + 2
        if not self.algorithm.max_staleness or follows >= self.iterations or not self.acting.takes(follows):
            return False
        return not self._sender.is_there(self.weight_version)

    def shared(self) -> dict[str, Any]:
        """Returns what a process that only collects must know of a learner that was resumed."""
        extra = self.policy.extra_state() if isinstance(self.policy, HasExtraState) else None
        return {"unlogged": self.unlogged, "weight_version": self.weight_version, "rows": self.rows,
                "peak_flops": self.peak_flops, "extra": extra, "starts": self._of_starts(),
                "advised": self.noise.advised}  # fmt: skip

    def _of_starts(self) -> dict[str, Any]:
        return self.starts.state_dict() if self.starts is not None and self.starts.plans else {}


@dataclass
class RolloutSide:
    """Stands for the learner in a process that only collects."""

    policy: Policy
    device: torch.device
    links: Links
    starts: StartMemory | None = None
    weight_version: int = 0
    samples: int = 0
    flops: float = 0.0
    peak_flops: float | None = None
    rows: Sequence[Metric] = ()
    advised: bool = False  # as embodied.learn.step.meters.noise.meter.NoiseMeter.advised
    cut_short: bool = False
    unlogged: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        links = self.links
        self._receiver = Receiver(links.weights, links.ahead, self.policy, links.checks, links.stops)
        self.acting: Acting = Received(self.policy, self._receiver)

    def begin_rollout(self, iteration: int) -> None:
        """Does nothing: which weights act is chosen where they are learnt."""

    def evaluated(self) -> AbstractContextManager[None]:
        """Context in which the policy has the evaluated weights (:meth:`Trainer.evaluated`)."""
        return self.acting.evaluated()

    def update(
        self, arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult], iteration: int,
        baselines: Mapping[Start, float] | None = None, watch: Watch = unwatched,
    ) -> tuple[dict[str, float], Batch]:  # fmt: skip
        """Gives the records of ``results`` to those that train on them; returns what :meth:`Trainer.update` does there.

        Raises:
            Stopped: the update was ended.
        """
        self.cut_short = True
        self.links.dealer.deal(arrays, results)
        self.links.dealer.serve(arrays)
        news: News | None = self.links.news.of_first(None)
        if news is None:
            raise Stopped
        if news.ahead is not None:
            self._receiver.receive_ahead(news.ahead)
        self._take(news.state, news.starts)
        self.cut_short = False
        return news.metrics, news.batch

    def resumed(self, shared: dict[str, Any]) -> None:
        """Takes what :meth:`TrainSide.shared` returned."""
        extra = shared.pop("extra")
        if extra and isinstance(self.policy, HasExtraState):
            self.policy.load_extra_state(extra)
        self._take(shared, shared.pop("starts"))

    def _take(self, state: Mapping[str, Any], starts: Mapping[str, Any]) -> None:
        if self.starts is not None:
            self.starts.load_state_dict(starts)
        for name, value in state.items():
            setattr(self, name, value)


Learner = Trainer | RolloutSide | ActorCriticLearner
"""What a process has of reinforcement learning: the learner, or what stands for it."""


def resumed(learner: Learner, iteration: int, ids: dict[str, str]) -> tuple[int, dict[str, str]]:
    """Tells processes that only collect where the run goes on; returns iterations and ids of trackers as given where
    the process trains. A collective of all processes."""
    if not isinstance(learner, TrainSide | RolloutSide):
        return iteration, ids
    world, first = learner.links.world, learner.links.first
    own = (iteration, ids, learner.shared()) if isinstance(learner, TrainSide) else None
    iteration, ids, shared = world.of_rank(own, first)
    if isinstance(learner, RolloutSide):
        learner.resumed(shared)
    return iteration, ids


def links(
    dealer: Dealer, dtypes: Mapping[str, torch.dtype], checks: bool, stops: Callable[[], bool] = lambda: False
) -> Links:
    """Connects the processes. A collective of all of them."""
    weights, ahead, news = (followers(dealer.world) for _ in range(3))
    return Links(dealer, weights, ahead, news, dtypes, checks, stops)
