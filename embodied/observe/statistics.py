"""Success rates from few episodes: intervals of one rate and of the difference of two, exact tests of that difference,
and how many more starts would show it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

Z95 = 1.96
Z80 = 0.8416  # four of five standard normal numbers lie below it
MOST_STARTS = 10_000_000  # more than anybody runs


def wilson(successes: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """Interval (low, high) in 0..1 for the success rate behind ``successes`` out of ``n``; (0, 1) when ``n`` is 0.

    Wilson (1927): the rates p with ``|p̂ − p| ≤ z·√(p(1−p)/n)``. Unlike ``p̂ ± z·√(p̂(1−p̂)/n)`` it is useful at 0/n
    and n/n. ``z`` = 1.96 is 95 %.

    Raises:
        ValueError: ``successes`` is not in 0..n.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"got {successes} successes of {n}")
    if n == 0:
        return 0.0, 1.0
    rate, spread = successes / n, z * z / n
    centre = (rate + spread / 2) / (1 + spread)
    half = z * math.sqrt(rate * (1 - rate) / n + spread / (4 * n)) / (1 + spread)
    # At 0/n and n/n one end is exactly 0 or 1, which rounding would miss.
    return 0.0 if successes == 0 else centre - half, 1.0 if successes == n else centre + half


class Paired(NamedTuple):
    """Success of two policies on the same starts, with the interval of their difference."""

    first: int  # successes
    second: int
    starts: int
    difference: float  # difference of the rates, second − first
    low: float  # 95 % interval of that difference
    high: float

    @property
    def differ(self) -> bool:
        """Whether the interval excludes that both are equally good."""
        return not self.low <= 0.0 <= self.high


def paired(first: Sequence[bool], second: Sequence[bool], z: float = 1.96) -> Paired:
    """The difference of two success rates on the same starts, with its interval.

    Tango (1998, Statistics in Medicine 17, 891-908): the differences δ that the score test of paired proportions does
    not reject. At δ = 0 it is McNemar's test, so only starts with different outcomes speak against equality. Unlike an
    interval from those starts alone it stays wide when few starts were tried and none differs: at 0 of n it ends at
    ± z²/(n + z²).

    >>> [round(number, 2) for number in paired([True] * 4, [True] * 4)[3:]]
    [0.0, -0.49, 0.49]

    Raises:
        ValueError: no starts, or different numbers of them.
    """
    if not first or len(first) != len(second):
        raise ValueError(f"got {len(first)} and {len(second)} starts, expected equally many and at least one")
    n = len(first)
    gained = sum(b and not a for a, b in zip(first, second, strict=True))
    lost = sum(a and not b for a, b in zip(first, second, strict=True))
    low, high = tango(gained, lost, n, z)
    return Paired(sum(first), sum(second), n, (gained - lost) / n, low, high)


def tango(gained: float, lost: float, n: int, z: float = Z95) -> tuple[float, float]:
    """The interval of :func:`paired`, from how many of ``n`` starts were gained and lost.

    A start with several episodes on each side counts as a share: the amount by which its success rate rose or fell. The
    interval is then too wide, because a share varies less than a yes or no of the same mean: with 16 episodes on each
    side, three to four times.
    """
    low, high = (_score_limit(gained, lost, n, side * z) for side in (1, -1))
    return low, high


def _score_limit(gained: float, lost: float, n: int, wanted: float) -> float:
    """The δ in [−1, 1] at which the score is ``wanted``; the score falls as δ rises."""
    low, high = -1.0, 1.0
    for _ in range(80):
        middle = (low + high) / 2
        if _score(gained, lost, n, middle) > wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _score(gained: float, lost: float, n: int, delta: float) -> float:
    """Tango's statistic: the distance of the observed difference from ``delta``, in standard errors at ``delta``."""
    b = (2 * n - gained + lost) * delta - gained - lost
    rate = (math.sqrt(max(0.0, b * b + 8 * n * lost * delta * (1 - delta))) - b) / (4 * n)  # of losses, at delta
    variance = n * (2 * rate + delta * (1 - delta))
    distance = gained - lost - n * delta
    if variance <= 0:
        return math.copysign(math.inf, distance) if distance else 0.0
    return distance / math.sqrt(variance)


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided p-value of McNemar's exact test: of a fair coin that falls ``gained`` times on one side and ``lost``
    times on the other.

    >>> mcnemar(5, 0)
    0.0625
    """
    tosses, ways, all_ways = gained + lost, 1, 0
    for k in range(min(gained, lost) + 1):
        all_ways += ways
        ways = ways * (tosses - k) // (k + 1)
    return min(1.0, 2 * all_ways / 2**tosses)


def fisher(first: int, first_n: int, second: int, second_n: int) -> float:
    """Computes the two-sided p-value of Fisher's exact test of two success rates on different starts, ``first`` of
    ``first_n`` and ``second`` of ``second_n``: all tables with the same sums that are at most as likely as the one
    found.

    Raises:
        ValueError: more successes than starts.
    """
    if not (0 <= first <= first_n and 0 <= second <= second_n):
        raise ValueError(f"got {first} successes of {first_n}, and {second} of {second_n}")
    both = first + second
    lowest = max(0, both - second_n)
    ways, found = math.comb(first_n, lowest) * math.comb(second_n, both - lowest), {}
    for k in range(lowest, min(first_n, both) + 1):
        found[k] = ways
        ways = ways * (first_n - k) * (both - k) // ((k + 1) * (second_n - both + k + 1))
    return sum(one for one in found.values() if one <= found[first]) / sum(found.values())


def unpaired(
    first: float, first_n: int, second: float, second_n: int, z: float = Z95
) -> tuple[float, float]:  # fmt: skip
    """Computes the interval of the difference of two success rates, second − first, on different starts: ``first`` of
    ``first_n``, ``second`` of ``second_n``.

    Newcombe (1998, Statistics in Medicine 17, 873-890), method 10: it joins Wilson's intervals of both rates.
    """
    (low, high), (low_2, high_2) = wilson(first, first_n, z), wilson(second, second_n, z)
    if not first_n or not second_n:
        return -1.0, 1.0
    one, other = first / first_n, second / second_n
    down, up = math.hypot(other - low_2, high - one), math.hypot(high_2 - other, one - low)
    return other - one - down, other - one + up


def holm(values: Sequence[float]) -> list[float]:
    """P-values of several tests, raised so that with 0.05 the chance of any false alarm is 5 % (Holm 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    raised, most = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        most = max(most, min(1.0, (len(values) - rank) * values[place]))
        raised[place] = most
    return raised


def bootstrap(tasks: Sequence[tuple[float, int, float, int]], seed: int, draws: int = 10_000) -> tuple[float, float]:
    """95 % percentile interval of the difference of two success rates, over tasks that are drawn with replacement: how
    much it depends on which tasks there were.

    Args:
        tasks: successes and starts of the first, then of the second, both above 0 starts.

    Raises:
        ValueError: fewer than two tasks.
    """
    if len(tasks) < 2:
        raise ValueError(f"got {len(tasks)} tasks, expected at least two")
    drawn = np.random.default_rng(seed).integers(len(tasks), size=(draws, len(tasks)))
    sums = np.stack([column[drawn].sum(axis=1) for column in np.asarray(tasks, np.float64).T])
    low, high = np.percentile(sums[2] / sums[3] - sums[0] / sums[1], [2.5, 97.5])
    return float(low), float(high)


class Needed(NamedTuple):
    """How many starts would show a difference in a test, if its true size is the observed one: barely, or with 80 %
    power."""

    just: int  # the same shares once more would just show it; a true difference of this size is seen every other time
    likely: int  # it is seen four times of five


def level(comparisons: int) -> float:
    """Returns the z that each of several two-sided tests must reach for a 5 % chance of any false alarm: Bonferroni's,
    a little more than :func:`holm` asks for."""
    return Z95 if comparisons < 2 else NormalDist().inv_cdf(1 - 0.025 / comparisons)


def needed_pairs(gained: float, lost: float, n: int, z95: float = Z95) -> Needed | None:
    """Computes how many paired starts, in all, would make a difference significant of which ``n`` starts now have
    ``gained`` and ``lost`` outcomes: the interval of :func:`tango` excludes 0 and :func:`mcnemar` is below 0.05. None
    without a difference.

    Args:
        z95: what is asked of a test (:func:`level`).

    Connor (1987, Biometrics 43, 207-211) with Edwards' correction by one start: n·δ − 1 = √n·(z·√ψ + z₈₀·√(ψ − δ²)),
    with δ the difference and ψ the share of starts with different outcomes.
    """
    delta, share = abs(gained - lost) / n, (gained + lost) / n
    if delta < 1e-12:
        return None

    def starts(z: float) -> int:
        spread = z95 * math.sqrt(share) + z * math.sqrt(max(0.0, share - delta * delta))
        root = (spread + math.sqrt(spread * spread + 4 * delta)) / (2 * delta)
        return math.ceil(root * root - 1e-9)

    return Needed(starts(0.0), starts(Z80))


def needed_unpaired(
    first: float, first_n: int, second: float, second_n: int, z95: float = Z95
) -> Needed | None:  # fmt: skip
    """Computes how many *more* unpaired starts two evaluations need for their difference of success to be significant,
    if they now have ``first`` successes in ``first_n`` starts and ``second`` in ``second_n``: the interval of
    :func:`unpaired` excludes 0 and :func:`fisher` is below 0.05 (by Yates' corrected statistic, which comes close to
    it). None without a difference, or if ten million would not do."""
    one, other = first / first_n, second / second_n
    if abs(one - other) < 1e-12:
        return None

    def tells(more: int, z: float) -> bool:
        n, m = first_n + more, second_n + more
        low, high = unpaired(one * n, n, other * m, m, z)
        rate, spread = (one * n + other * m) / (n + m), 1 / n + 1 / m
        distance = abs(one - other) - spread / 2
        return not low <= 0 <= high and distance > z * math.sqrt(rate * (1 - rate) * spread)

    def fewest(z: float) -> int | None:
        if tells(0, z):
            return 0
        below, above = 0, 1
        while not tells(above, z):
            below, above = above, 2 * above
            if above > MOST_STARTS:
                return None
        while above - below > 1:
            middle = (below + above) // 2
            below, above = (below, middle) if tells(middle, z) else (middle, above)
        return above

    just, likely = fewest(z95), fewest(z95 + Z80)
    return None if just is None or likely is None else Needed(just, likely)
