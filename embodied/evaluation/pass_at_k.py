"""Computes pass@k and maj@k from several episodes of each start: the chance that one of k succeeds, and the chance that
the most frequent of k answers is right."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from embodied.instructions import ANSWER, NONE_FOUND, SAYS_NOTHING
from embodied.random import Stream, generator
from embodied.types import EpisodeResult

MOST_SETS = 16_384  # sets of answers that are all counted; 8 of 16 are 12,870
DRAWN_SETS = 4_096  # sets that are drawn where there are more; the error of one problem is 0.008 at most


def rates(
    results: Sequence[EpisodeResult], origin: Callable[[EpisodeResult], Hashable], seed: int
) -> dict[str, float]:  # fmt: skip
    """Computes pass@k and maj@k of evaluations with several episodes a start, for k = 1, 2, 4, … up to the fewest
    episodes that a start has; maj@k of envs that say what the answers are. Each is a mean over starts.

    Args:
        origin: what is the same for all episodes of a start.
        seed: draws the sets of answers where there are too many.
    """
    starts: dict[Hashable, list[EpisodeResult]] = {}
    for result in results:
        starts.setdefault(origin(result), []).append(result)
    groups, most = [*starts.values()], min(map(len, starts.values()))
    if most == 1:
        return {}
    ks = [2**power for power in range(most.bit_length())]
    right = [[one.success for one in group] for group in groups]
    found = {f"eval/pass_at/{k}": _mean([pass_at(len(one), sum(one), k) for one in right]) for k in ks}
    said = [[one.info.get(ANSWER, SAYS_NOTHING) for one in group] for group in groups]
    if any(code != SAYS_NOTHING for codes in said for code in codes):
        pairs = [*zip(said, right, strict=True)]
        found |= {f"eval/maj_at/{k}": _mean([majority_at(*pair, k, seed) for pair in pairs]) for k in ks}
    return found


def cells(values: Mapping[str, float]) -> list[list[str]]:
    """Formats the pass@k and maj@k rates of :func:`rates` as rows of a table."""
    kinds = {"pass@k": "eval/pass_at/", "maj@k": "eval/maj_at/"}
    shown = {name: prefix for name, prefix in kinds.items() if f"{prefix}1" in values}
    ks = [int(name.rpartition("/")[2]) for name in values if name.startswith("eval/pass_at/")]
    return [["k", *shown], *([str(k), *(f"{values[f'{prefix}{k}']:.1%}" for prefix in shown.values())] for k in ks)]


def pass_at(count: int, successes: int, k: int) -> float:
    """Estimates pass@k, ``1 − C(n − c, k) / C(n, k)`` with c successes among n episodes, without bias (Chen et al.
    2021, arXiv 2107.03374, eq. 1)."""
    return 1 - math.comb(count - successes, k) / math.comb(count, k)


def majority_at(codes: Sequence[int], right: Sequence[bool], k: int, seed: int = 0) -> float:
    """Computes maj@k: the chance that of k of these answers the one that most of them give is right (Wang et al. 2023,
    arXiv 2203.11171). Answers with equally many votes share the chance. A response without an answer has no vote;
    without any vote nothing is right.

    It is the mean over all sets of k answers, hence without bias; where there are more than :data:`MOST_SETS`, over
    :data:`DRAWN_SETS` of them that ``seed`` draws.

    Args:
        codes: the answers, equal numbers for equal ones (``embodied.instructions.answer_code``).
        right: whether the verifier found each of them right; of equal answers judged differently the share counts.

    >>> majority_at([7, 7, 9], [True, True, False], 3)
    1.0
    >>> majority_at([7, 7, 9], [True, True, False], 2)  # two of the three pairs are ties
    0.6666666666666666
    """
    names, number = np.unique(np.asarray(codes, np.int64), return_inverse=True)
    worth = np.bincount(number, np.asarray(right, np.float64)) / np.bincount(number)
    votes = np.isin(names, (SAYS_NOTHING, NONE_FOUND), invert=True)
    sets = _sets(len(codes), k, seed)
    places = number[sets] + len(names) * np.arange(len(sets))[:, None]
    counts = np.bincount(places.ravel(), minlength=len(sets) * len(names)).reshape(len(sets), -1) * votes
    first = (counts == counts.max(axis=1, keepdims=True)) & (counts > 0)
    return float(((first * worth).sum(axis=1) / np.maximum(first.sum(axis=1), 1)).mean())


@lru_cache(maxsize=32)
def _sets(count: int, k: int, seed: int) -> np.ndarray:
    """Sets of k of the numbers below ``count``: all of them, or some that are drawn, int64 [sets, k]."""
    if math.comb(count, k) <= MOST_SETS:
        return np.array([*itertools.combinations(range(count), k)], np.int64)
    return generator(seed, Stream.EVAL_VOTES, count, k).random((DRAWN_SETS, count)).argsort(axis=1)[:, :k]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
