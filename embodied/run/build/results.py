"""Merges the results of several processes, for iterations and evaluations alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from embodied.instructions import FAILURES
from embodied.protocols import Env, ReadsProblems
from embodied.runtime.rollout.rollout import RolloutStats
from embodied.types import Episode, EpisodeResult


def in_order(
    plan: Sequence[Episode], shares: Sequence[Sequence[EpisodeResult]], learners: Mapping[int, int] | None = None
) -> list[EpisodeResult]:  # fmt: skip
    """Returns the results of all processes, given by rank, in the plan's order.

    Args:
        learners: which process that trains gets each group; None = the one that has run it.
    """
    found = {r.episode.episode_id: replace(r, rank=rank) for rank, share in enumerate(shares) for r in share}
    results = [found[episode.episode_id] for episode in plan]
    return results if learners is None else [replace(r, learner=learners[r.episode.group_id]) for r in results]


def add_up(stats: Sequence[RolloutStats]) -> RolloutStats:
    """Adds up the counts and seconds of several rollouts."""
    names = [field.name for field in fields(RolloutStats)]
    return RolloutStats(**{name: sum(getattr(one, name) for one in stats) for name in names})


def of_problems(env: Env, failures: int, side: str = "rollout") -> dict[str, float]:
    """Returns metrics of text envs: failed verdicts, skipped problems. Empty if the env counts none.

    Args:
        failures: verdicts that failed.
        side: group of the metrics, ``rollout`` or ``eval``.
    """
    found: dict[str, float] = {f"{side}/verifier_failures": failures} if FAILURES in env.spec.info else {}
    if isinstance(env, ReadsProblems) and side == "rollout":
        found["rollout/skipped_problems"] = env.skipped_problems
    return found


def failed_verdicts(failures: float, answers: float) -> str:
    """Formats a line that says how often a verifier could not judge an answer."""
    return (
        f"  {failures:.0f} verdicts failed on {answers:.0f} answers, and an answer without a verdict counts as wrong: "
        "the verifier raised an error, gave no finite number, or was not done in time. logs/ of the run folder says why"
    )
