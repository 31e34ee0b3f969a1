"""Compares several evaluations, each with each other one, and corrects the tests for how many there are.

    A, B, C ─▶ A B, A C, B C ─▶ evaluation/compare.py: one Comparison each ─▶ Holm over all of their p-values

Of n evaluations with equal success n (n − 1) / 2 pairs are tested, and one in twenty of them would differ at 5 % by
chance. Holm's method (S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
Statistics 6, 1979) holds the chance of any such false alarm at 5 %. It needs no independence, which pairs that share an
evaluation do not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from embodied.errors import EvaluationError
from embodied.evaluation.compare import Comparison, compare
from embodied.evaluation.results import WrittenEvaluation
from embodied.observe import statistics


@dataclass(frozen=True)
class Pairs:
    """The comparisons of all pairs of some evaluations, in the order A B, A C, …, B C, …; and the pairs that were
    refused."""

    comparisons: Sequence[Comparison]
    refused: Sequence[tuple[tuple[int, int], EvaluationError]]  # places of both, and why they were not compared


def pairs(
    evaluations: Sequence[WrittenEvaluation], unpaired: bool = False, same_starts: bool = False, seed: int = 0
) -> Pairs:
    """Compares each evaluation with each that comes before it. The arguments are those of :func:`compare`."""
    places = [*combinations(range(len(evaluations)), 2)]
    found, refused, z = [], [], statistics.level(len(places))
    for first, second in places:
        try:
            one = compare(evaluations[first], evaluations[second], unpaired, same_starts, seed, z)
        except EvaluationError as error:
            refused.append(((first, second), error))
        else:
            found.append(replace(one, places=(first, second)))
    adjusted = iter(statistics.holm([one.p_value for one in found if one.p_value is not None]))
    return Pairs([one if one.p_value is None else replace(one, adjusted=next(adjusted)) for one in found], refused)
