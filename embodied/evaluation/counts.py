"""Compares success counts that others publish, of which there is no file: ``30/50 41/50``.

    30/50,28/50,31/50   a system with three trainings (seeds); a single one is 30/50
    best of             how many evaluations a count was chosen from as the largest, for each of its trainings

Episodes are taken as different starts, since nobody says which they were. The arithmetic is in
:mod:`embodied.observe.published`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean

from embodied.errors import ConfigError
from embodied.observe import published, statistics
from embodied.observe.published import Mean

FORM = "write SUCCESSES/EPISODES, e.g. 30/50; several trainings of a system with commas: 30/50,28/50,31/50"
MOST_EPISODES = 100_000
MOST_TESTED = 20_000  # episodes of both; Fisher's exact test of more takes seconds, and the interval says as much
MOST_BEST = 10_000


@dataclass(frozen=True)
class System:
    """The success counts of a system: successes and episodes of each of its trainings."""

    counts: Sequence[tuple[int, int]]
    best_of: int = 1  # each count is the largest of so many

    @property
    def total(self) -> tuple[int, int]:
        """Successes and episodes of all trainings."""
        return sum(count[0] for count in self.counts), sum(count[1] for count in self.counts)

    @property
    def rate(self) -> float:
        """Success as it was reported, over all episodes."""
        return self.total[0] / self.total[1]

    @property
    def is_chosen(self) -> bool:
        """Returns whether a count was chosen as the largest of several."""
        return self.best_of > 1

    @property
    def worths(self) -> list[float]:
        """Success of each training without the luck of the best (:func:`embodied.observe.published.worth`)."""
        return [published.worth(*count, self.best_of) for count in self.counts]

    @property
    def worth(self) -> float:
        """Mean of :attr:`worths`, by episodes."""
        return sum(one * n for one, (_, n) in zip(self.worths, self.counts, strict=True)) / self.total[1]

    @property
    def rates(self) -> list[float]:
        """Success of each training, as it was reported."""
        return [successes / n for successes, n in self.counts]

    @property
    def least(self) -> float:
        """Variance of a training's success that its episodes alone make, which none is below: binomial, of a rate that
        is not quite 0 or 1 (Laplace's), with the larger of what was reported and what is left."""
        sure = [(rate * self.total[1] + 1) / (self.total[1] + 2) for rate in (self.rate, self.worth)]
        return max(rate * (1 - rate) for rate in sure) * fmean(1 / n for _, n in self.counts)

    @property
    def over_trainings(self) -> Mean | None:
        """Mean of :attr:`rates` with its interval over trainings; None of a single one."""
        return published.over_seeds(self.rates, self.least)

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval over episodes, as if all were of one training."""
        return statistics.wilson(*self.total)

    @property
    def corrected(self) -> tuple[float, float] | None:
        """The interval of a count that was chosen; None of several, whose luck adds up in no simple way."""
        return published.corrected(*self.total, self.best_of) if len(self.counts) == 1 else None


@dataclass(frozen=True)
class Needed:
    """Episodes of each system that show a difference in four of five cases; None: not even ten million, or none."""

    reported: int | None  # if the true difference is the reported one
    left: int | None  # if it is what is left of it, and both are evaluated anew, without a choice


@dataclass(frozen=True)
class Pair:
    """A comparison of the counts of two systems, second − first."""

    places: tuple[int, int]
    difference: float
    interval: tuple[float, float]  # over episodes, as reported
    p_value: float | None  # Fisher's; None for too many episodes
    left: float  # difference of what both are worth
    corrected: tuple[float, float] | None  # interval with the correction; None of several trainings, each the best
    corrected_p: float | None  # Fisher's with the correction; of too many episodes that of two proportions
    adjusted: float | None  # the larger of that and the one over trainings, by Holm over all pairs; None without either
    expected: float | None  # best of n of the second if it were as good as the first; None unless it alone was chosen
    chance: float | None  # that such a best of n reaches the second's count
    seeds: Mean | None  # over trainings, of what each is worth; None unless both have several
    needed: Needed

    @property
    def direction(self) -> int:
        """Returns 1 if the second succeeds more often by more than chance and choice, −1 if less often, 0 if that is
        not shown: over episodes, and over trainings where both have several."""
        if self.adjusted is None or self.adjusted >= 0.05:
            return 0
        ends = [self.corrected, None if self.seeds is None else (self.seeds.low, self.seeds.high), (self.left,) * 2]
        sides = {(low > 0) - (high < 0) for low, high in (pair for pair in ends if pair is not None)}
        return sides.pop() if len(sides) == 1 else 0

    @property
    def differ(self) -> bool:
        """Returns whether :attr:`direction` is shown."""
        return self.direction != 0


def parse(texts: Sequence[str], best_of: Sequence[str] = ()) -> list[System]:
    """Reads the counts of systems.

    Args:
        best_of: a number for each system, or one, which is that of the last.

    Raises:
        ConfigError: a text is no count, or there are other numbers of ``best_of``.
    """
    counts = [tuple(_count(part, text) for part in text.split(",")) for text in texts]
    numbers = [_best(text) for text in best_of]
    if len(numbers) == 1:
        numbers = [*[1] * (len(counts) - 1), *numbers]
    if numbers and len(numbers) != len(counts):
        raise ConfigError(
            f"--best-of has {len(numbers)} numbers, and there are {len(counts)} systems",
            "give one number, that of the last system, or one for each: "
            + " ".join(["1"] * (len(counts) - 1) + ["13"]),
        )
    return [System(own, best) for own, best in zip(counts, numbers or [1] * len(counts), strict=True)]


def _count(part: str, whole: str) -> tuple[int, int]:
    within = "" if part == whole else f" in {whole!r}"
    if (match := re.fullmatch(r"(\d{1,18})/(\d{1,18})", part.strip(), re.ASCII)) is None:
        percent = re.fullmatch(r"(\d{1,3}(?:\.\d+)?)\s*%?", part.strip(), re.ASCII)
        if percent and float(percent[1]) <= 100 and ("%" in part or float(percent[1]) > 1):
            raise ConfigError(
                f"{part!r}{within} is a rate, and does not say of how many episodes",
                f"write the count: of 50 episodes {part.strip()} are {round(float(percent[1]) / 2)}/50",
            )
        raise ConfigError(f"{part!r}{within} is no count of successes", FORM)
    successes, episodes = int(match[1]), int(match[2])
    if episodes == 0:
        raise ConfigError(f"{part!r}{within} has no episodes, so there is nothing to compare", FORM)
    if successes > episodes:
        raise ConfigError(
            f"{part!r}{within} has {successes} successes of {episodes} episodes",
            f"{FORM}; successes are at most the episodes",
        )
    if episodes > MOST_EPISODES:
        raise ConfigError(
            f"{part!r}{within} has more than {MOST_EPISODES:,} episodes",
            "check the count: a difference of one point would be seen with so many",
        )
    return successes, episodes


def _best(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or not 1 <= int(text) <= MOST_BEST:
        raise ConfigError(
            f"--best-of has {text!r}", f"give how many evaluations the best was chosen from, 1 to {MOST_BEST:,}"
        )
    return int(text)


def compare(systems: Sequence[System]) -> list[Pair]:
    """Compares each system with each that comes before it, and corrects the tests for how many pairs there are."""
    found = [_pair(systems, places) for places in combinations(range(len(systems)), 2)]
    tested = [_tested(one) for one in found]
    adjusted = statistics.holm([1.0 if p is None else p for p in tested])
    return [
        replace(one, adjusted=None if p is None else own) for one, p, own in zip(found, tested, adjusted, strict=True)
    ]


def _tested(pair: Pair) -> float | None:
    """Returns the p-value that the verdict uses: both tests must show the difference, so it is the larger one."""
    both = (pair.corrected_p, pair.seeds and pair.seeds.p_value)
    return max((p for p in both if p is not None), default=None)


def _pair(systems: Sequence[System], places: tuple[int, int]) -> Pair:
    first, second = (systems[place] for place in places)
    (one, n), (other, m) = first.total, second.total
    p_value = statistics.fisher(one, n, other, m) if n + m <= MOST_TESTED else None
    tests = first.best_of * second.best_of
    simple = tests == 1 or len(first.counts) == len(second.counts) == 1
    corrected = published.difference((one, n, first.best_of), (other, m, second.best_of)) if simple else None
    alone = second.is_chosen and not first.is_chosen and len(second.counts) == 1
    luck = (first.rate, m, second.best_of)
    smallest = published.proportions(one, n, other, m) if p_value is None else p_value
    return Pair(
        places, second.rate - first.rate, statistics.unpaired(one, n, other, m), p_value,
        second.worth - first.worth, corrected, published.sidak(smallest, tests) if simple else None, None,
        published.expected_best(*luck) if alone else None,
        published.chance_of_best(other, *luck) if alone else None,
        _over_trainings(first, second),
        Needed(
            published.episodes_needed(first.rate, second.rate), published.episodes_needed(first.worth, second.worth)
        ),
    )  # fmt: skip


def _over_trainings(first: System, second: System) -> Mean | None:
    """Compares what trainings are worth. That takes a training's checkpoints as equally good; where they are not, less
    of the best is luck, so the interval reaches to that of the reported rates."""
    least = first.least, second.least
    left = published.welch(first.worths, second.worths, least)
    reported = published.welch(first.rates, second.rates, least)
    return None if left is None or reported is None else published.join(left, reported)
