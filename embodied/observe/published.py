"""Numbers of success counts that others publish: what the best of several checkpoints is worth, how much trainings
vary, and how many episodes would show a difference.

The best of n. A count that was chosen as the largest of n is too large by luck. Its interval has the exact ends of
Clopper & Pearson (1934, Biometrika 26, 404-413), the lower one at the level 1 − (1 − α/2)^(1/n) of Šidák (1967, JASA
62, 626-633): with n evaluations whose luck is independent, all n lower ends hold together, so the chosen one does,
whatever the n true rates are. The upper end needs no correction: where the chosen count is too small for its
checkpoint, that of the best checkpoint is too. Wilson's ends would miss more often than they say at some rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embodied.observe.statistics import MOST_STARTS, Z80, Z95, wilson

HALF = 0.025  # of 95 %, on one side


def expected_best(rate: float, n: int, best_of: int) -> float:
    """Computes the expected largest success rate of ``best_of`` evaluations of ``n`` episodes each, which all have the
    true success rate ``rate``: (1/n) Σ_k P(max > k) with P(max ≤ k) = F(k)^best_of (David & Nagaraja, Order Statistics,
    2003, 2.1).

    >>> expected_best(0.5, 1, 2)
    0.75
    """
    return float(np.sum(1 - _cumulative(rate, n)[:-1] ** best_of)) / n


def chance_of_best(successes: int, rate: float, n: int, best_of: int) -> float:
    """Computes how likely the best of ``best_of`` such evaluations has at least ``successes``.

    >>> chance_of_best(1, 0.5, 1, 2)
    0.75
    """
    return 1.0 if successes == 0 else float(1 - _cumulative(rate, n)[successes - 1] ** best_of)


def worth(successes: int, n: int, best_of: int) -> float:
    """Returns the success rate that is left of the best of ``best_of`` evaluations: if all of them had it, their best
    would be expected at ``successes`` of ``n``. It is ``successes / n`` of one evaluation, and where all or none of the
    episodes succeeded."""
    wanted = successes / n
    if best_of == 1 or successes in (0, n):
        return wanted
    return _solve(lambda rate: expected_best(rate, n, best_of) - wanted)


def corrected(successes: int, n: int, best_of: int) -> tuple[float, float]:
    """Computes the 95 % interval of the true success rate of the evaluation that was chosen as the best of ``best_of``
    (see above). Of one it is Wilson's."""
    if best_of == 1:
        return wilson(successes, n)
    tail = tail_of_best(best_of)
    low = _solve(lambda rate: 1 - _cumulative(rate, n)[successes - 1] - tail) if successes else 0.0
    high = _solve(lambda rate: HALF - _cumulative(rate, n)[successes]) if successes < n else 1.0
    return low, high


def tail_of_best(best_of: int) -> float:
    """Returns how often the lower end of one evaluation may miss, so that of ``best_of`` any does in 2.5 %."""
    return -math.expm1(math.log1p(-HALF) / best_of)


def sidak(p_value: float, tests: int) -> float:
    """Returns the p-value of the smallest of ``tests`` tests, of which ``p_value`` was the smallest (Šidák 1967).

    >>> round(sidak(0.05, 2), 6)
    0.0975
    """
    return p_value if p_value >= 1 else -math.expm1(tests * math.log1p(-p_value))


def proportions(first: int, first_n: int, second: int, second_n: int) -> float:
    """Computes the two-sided p-value of the test of two proportions with a common variance (Pearson's chi-squared), for
    episodes that are too many for Fisher's exact test."""
    common = (first + second) / (first_n + second_n)
    spread = math.sqrt(common * (1 - common) * (1 / first_n + 1 / second_n))
    return 1.0 if spread == 0 else math.erfc(abs(second / second_n - first / first_n) / spread / math.sqrt(2))


def difference(
    first: tuple[int, int, int], second: tuple[int, int, int]
) -> tuple[float, float]:  # fmt: skip
    """Computes the 95 % interval of the difference of two success rates, second − first, on different starts: that of
    Newcombe's method 10 (:func:`embodied.observe.statistics.unpaired`), which joins the intervals of both rates, with
    those of :func:`corrected`.

    Args:
        first: successes, episodes, of how many evaluations it is the best.
    """
    (low, high), (low_2, high_2) = corrected(*first), corrected(*second)
    one, other = first[0] / first[1], second[0] / second[1]
    down, up = math.hypot(other - low_2, high - one), math.hypot(high_2 - other, one - low)
    return other - one - down, other - one + up


# -- seeds -----------------------------------------------------------------------------------------------------------


class Mean(NamedTuple):
    """A mean over seeds, or the difference of two, with its 95 % interval."""

    mean: float
    low: float
    high: float
    p_value: float | None  # two-sided, that the difference is 0; None of a single mean


def over_seeds(rates: Sequence[float], least: float = 0.0) -> Mean | None:
    """Computes the mean of the success rates of several trainings, with Student's interval: it says where the mean of
    many more trainings lies. None of a single training.

    Args:
        least: the variance of a rate is taken as this at least, e.g. that of its episodes: a few trainings that happen
            to be equal do not say that there is none.
    """
    if len(rates) < 2:
        return None
    half = t_quantile(len(rates) - 1) * math.sqrt(max(stdev(rates) ** 2, least) / len(rates))
    return Mean(fmean(rates), max(0.0, fmean(rates) - half), min(1.0, fmean(rates) + half), None)


def welch(
    first: Sequence[float], second: Sequence[float], least: tuple[float, float] = (0.0, 0.0)
) -> Mean | None:  # fmt: skip
    """Computes the difference of the means of two systems' trainings, second − first, by Welch's test (1947, Biometrika
    34, 28-35), with the degrees of freedom rounded down. None where one has a single training; no p-value where no rate
    varies.

    Args:
        least: of each side, as in :func:`over_seeds`.
    """
    if min(len(first), len(second)) < 2:
        return None
    parts = [max(stdev(side) ** 2, floor) / len(side) for side, floor in zip((first, second), least, strict=True)]
    delta, spread = fmean(second) - fmean(first), math.sqrt(sum(parts))
    if spread < 1e-12:
        return Mean(delta, delta, delta, None)
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(side) - 1) for part, side in zip(parts, (first, second), strict=True)
    )
    whole = max(1, math.floor(freedom + 1e-9))
    half = t_quantile(whole) * spread
    return Mean(delta, delta - half, delta + half, 2 * (1 - _t_below(abs(delta) / spread, whole)))


def join(one: Mean, other: Mean) -> Mean:
    """Returns the mean of ``one`` with the interval and the p-value that both allow: where they have other signs,
    nothing is shown."""
    known = [mean.p_value for mean in (one, other) if mean.p_value is not None]
    p_value = 1.0 if one.mean * other.mean <= 0 else max(known, default=None)
    return Mean(one.mean, min(one.low, other.low), max(one.high, other.high), p_value)


def t_quantile(freedom: int) -> float:
    """Returns the number that 97.5 % of Student's distribution with ``freedom`` degrees of freedom lie below."""
    return _solve(lambda t: _t_below(t, freedom) - (1 - HALF), 0.0, 1e3)


def _t_below(t: float, freedom: int) -> float:
    """Student's distribution, Abramowitz & Stegun 26.7.3 and 26.7.4."""
    angle = math.atan2(t, math.sqrt(freedom))
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= math.cos(angle) ** 2 * (k - 1) / k
        total += term
    within = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    return (1 + within) / 2


# -- episodes --------------------------------------------------------------------------------------------------------


def episodes_needed(first: float, second: float) -> int | None:
    """Computes how many episodes each of two systems needs, so that Fisher's exact test shows in four of five cases
    that their true success rates ``first`` and ``second`` differ (two-sided, 5 %): Casagrande, Pike & Smith (1978,
    Biometrics 34, 483-486). None where they do not differ, or if ten million would not do."""
    delta, mean = abs(second - first), (first + second) / 2
    if delta < 1e-9:
        return None
    spread = Z95 * math.sqrt(2 * mean * (1 - mean)) + Z80 * math.sqrt(first * (1 - first) + second * (1 - second))
    plain = (spread / delta) ** 2
    needed = math.ceil(plain / 4 * (1 + math.sqrt(1 + 4 / (plain * delta))) ** 2)
    return needed if needed <= MOST_STARTS else None


# -- arithmetic ------------------------------------------------------------------------------------------------------


def _cumulative(rate: float, n: int) -> NDArray[np.float64]:
    """P(X ≤ k) of a binomial number X of ``n`` trials, for k = 0 … n."""
    if rate in (0.0, 1.0):
        return np.append(np.full(n, 1.0 - rate), 1.0)
    k = np.arange(1, n + 1)
    steps = np.log((n + 1 - k) / k) + (math.log(rate) - math.log1p(-rate))
    logs = n * math.log1p(-rate) + np.append(0.0, np.cumsum(steps))
    return np.minimum(1.0, np.cumsum(np.exp(logs)))


def _solve(rising: Callable[[float], float], low: float = 0.0, high: float = 1.0) -> float:
    """The zero of a rising function."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2
