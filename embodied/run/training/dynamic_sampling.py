"""Dynamic sampling: replaces groups without a learning signal. Also ReMax: greedy episodes as baselines.

    round 0: the plan ──▶ groups whose returns differ stay, with their rows
    round r: as many new starts as are missing, into the rows of those that did not   (until none is, or the last round)

The plan of a round is a pure function of seed, iteration and round, so that a resumed run has the same starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from embodied.algorithms.advantages import filters
from embodied.learn.score.reward_penalties import episode_penalties
from embodied.parallel.group import Group
from embodied.runtime.rollout.rollout import RolloutStats
from embodied.schema import AlgorithmConfig, OverlongPenaltyConfig
from embodied.types import Episode, EpisodeResult, Start

Run = Callable[[int, int, Sequence[EpisodeResult]], list[EpisodeResult]]
"""``(round, groups, episodes whose records must stay) → episodes of so many groups``, in the order of the plan."""

Judge = Callable[[Sequence[EpisodeResult]], list[bool]]
"""Whether each episode's group teaches anything."""


Returned = tuple[EpisodeResult, float]
"""An episode and its return, with the penalty of its length."""


@dataclass(frozen=True)
class Collected:
    """The episodes that an iteration has collected, and those that it trains on."""

    results: list[EpisodeResult]  # those to be trained on, in the order of rounds and plan, with records
    episodes: list[EpisodeResult]  # all that were run with sampling; rows of dropped ones hold other records by now
    stats: RolloutStats  # sums over all rounds, greedy episodes included
    rounds: int = 1
    greedy: Sequence[EpisodeResult] = ()  # one a start (``adv_type: remax``), without records
    baselines: Mapping[Start, float] | None = None  # returns of these greedy episodes, by start
    dropped: Sequence[Returned] = ()  # those of ``episodes`` that are not in ``results``

    @property
    def dropped_groups(self) -> int:
        """Number of groups that were run and not kept."""
        return len(_groups(self.episodes) - _groups(self.results))


def fill(run: Run, groups: int, max_rounds: int, judge: Judge) -> tuple[list[EpisodeResult], list[EpisodeResult], int]:
    """Dynamic sampling: runs rounds of episodes until ``groups`` groups pass ``judge``, at most ``max_rounds``.

    Groups of the last round that teach nothing fill what is still missing then: they carry no gradient, and keep the
    denominators those of a full batch.

    Returns:
        episodes to be trained on, all that were run, and how many rounds it took.
    """
    kept: list[EpisodeResult] = []
    everything: list[EpisodeResult] = []
    for number in range(max_rounds):
        results = run(number, groups - len(_groups(kept)), kept)
        everything += results
        last = number == max_rounds - 1
        kept += [result for result, good in zip(results, judge(results), strict=True) if good or last]
        if len(_groups(kept)) == groups:
            break
    return kept, everything, number + 1


def make_judge(algorithm: AlgorithmConfig, penalty: OverlongPenaltyConfig, limit: int) -> Judge:
    """Makes dynamic sampling's test of whether an episode's group is kept: if its scores (``filter_reward_metric``) are
    not all equal, and with ``filter_rewards`` if their mean return is within bounds."""

    def judge(results: Sequence[EpisodeResult]) -> list[bool]:
        ids = torch.tensor([result.episode.group_id for result in results])
        returns = torch.tensor([result.episode_return for result in results], dtype=torch.float64)
        scores = returns + episode_penalties(results, penalty, limit)
        if algorithm.filter_reward_metric == "success":
            scores = torch.tensor([float(result.success) for result in results])
        good = filters.informative(scores, ids)
        if algorithm.filter_rewards:
            good &= filters.within_bounds(returns, ids, algorithm.rewards_lower_bound, algorithm.rewards_upper_bound)
        return [bool(value) for value in good.tolist()]

    return judge


def greedy_plan(plan: Sequence[Episode]) -> list[Episode]:
    """Plans one greedy episode for each start of ``plan``, without video; ReMax takes its return as baseline."""
    first = {episode.start: episode for episode in reversed(plan)}
    return [replace(e, video=None) for e in plan if first[e.start] is e]


def baselines(greedy: Sequence[EpisodeResult], penalty: OverlongPenaltyConfig, limit: int) -> dict[Start, float]:
    """Computes ReMax's baselines: the return of each start's greedy episode, less its penalty."""
    penalties = episode_penalties(greedy, penalty, limit).tolist()
    return {r.episode.start: r.episode_return + p for r, p in zip(greedy, penalties, strict=True)}


def dropped(
    kept: Sequence[EpisodeResult], everything: Sequence[EpisodeResult], penalty: OverlongPenaltyConfig, limit: int
) -> list[Returned]:  # fmt: skip
    """Returns the episodes of ``everything`` that are not ``kept``, in the order of rounds and plan."""
    groups = _groups(kept)
    found = [result for result in everything if result.episode.group_id not in groups]
    penalties = episode_penalties(found, penalty, limit).tolist() if found else []
    return [(r, r.episode_return + p) for r, p in zip(found, penalties, strict=True)]


def num_groups(results: Sequence[EpisodeResult], rank: int) -> int:
    """Counts the groups of ``results`` that ``rank`` has run."""
    return len(_groups([result for result in results if result.rank == rank]))


def learners(
    plan: Sequence[Episode], kept: Sequence[EpisodeResult], processes: Group, groups: int
) -> dict[int, int] | None:
    """Deals the groups of a plan to the processes that train: to each that which it would have run if all processes
    collected. None if all do.

    Args:
        kept: episodes of before, whose groups are dealt.
        groups: of an iteration.
    """
    if not processes.is_split:
        return None
    train = processes.of("train")
    dealt = [len(_groups([one for one in kept if one.learner == rank])) for rank in range(train.size)]
    return train.owners((e.group_id for e in plan), [train.divide(groups) - number for number in dealt])


def _groups(results: Sequence[EpisodeResult]) -> set[int]:
    return {result.episode.group_id for result in results}
