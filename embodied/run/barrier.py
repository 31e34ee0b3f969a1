"""Where the ranks of a run come together after each has done its share, or been stopped in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from embodied.run.build import Parts
from embodied.run.collector import FIRST_OBSERVATIONS
from embodied.runtime.signals import Stopped, StopSignal
from embodied.types import Episode, EpisodeResult

T = TypeVar("T")


def meet(parts: Parts, stop: StopSignal, act: Callable[[], T]) -> list[T]:
    """What ``act`` gives on each rank, by rank.

    Args:
        stop: held by the caller. A signal ends ``act`` on the rank where it comes.

    Raises:
        Stopped: on all ranks, after ``act`` was ended on one of them, so that none waits for one that has left.
    """
    done: tuple[T] | None = None
    with suppress(Stopped), stop.cut_short():
        done = (act(),)
    if done is None and parts.world.is_main:
        parts.world.post(FIRST_OBSERVATIONS, None)  # which other ranks may wait for
    with parts.sections("rollout/ranks"), parts.console.progress("waiting for the other ranks", brief=True):
        every = parts.world.gather(done)
    if any(one is None for one in every):
        raise Stopped
    return [one[0] for one in every if one is not None]


def run_shared(
    parts: Parts, stop: StopSignal, plan: Sequence[Episode], run: Callable[[], list[EpisodeResult]]
) -> list[EpisodeResult]:
    """The results of ``plan``, of which ``run`` makes this rank's share: of all ranks, in the plan's order."""
    return in_order(plan, meet(parts, stop, run))


def in_order(plan: Sequence[Episode], shares: Sequence[Sequence[EpisodeResult]]) -> list[EpisodeResult]:
    """The results of all ranks, by rank, in the plan's order."""
    found = {r.episode.episode_id: replace(r, rank=rank) for rank, share in enumerate(shares) for r in share}
    return [found[episode.episode_id] for episode in plan]
