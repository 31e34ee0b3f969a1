"""pass@k and maj@k: against numbers worked out by hand, and against a count of all sets of answers."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest

from embodied.evaluation.pass_at_k import DRAWN_SETS, MOST_SETS, _sets, cells, majority_at, pass_at, rates
from embodied.instructions import ANSWER, NONE_FOUND, SAYS_NOTHING, answer_code
from embodied.observe.metrics import check
from embodied.types import Episode, EpisodeResult, Start

A, B, C = (answer_code(text) for text in "abc")


def result(problem: int, code: int | None, success: bool, seed: int = 0) -> EpisodeResult:
    info = {} if code is None else {ANSWER: code}
    return EpisodeResult(Episode(0, 0, Start(0, problem, seed)), (), 0.0, success, 1, True, False, info=info)


def problem_of(one: EpisodeResult) -> int:
    return one.episode.start.init_state_id


@pytest.mark.parametrize(
    ("codes", "right", "k", "expected"),
    [
        ([A, A, B], [1, 1, 0], 1, Fraction(2, 3)),
        ([A, A, B], [1, 1, 0], 2, Fraction(2, 3)),  # aa: 1; ab, ab: a tie each
        ([A, A, B], [1, 1, 0], 3, 1),
        ([B, A, B], [0, 1, 0], 3, 0),
        ([A, A, B, B], [1, 1, 0, 0], 4, Fraction(1, 2)),
        ([A, B, C], [1, 0, 0], 3, Fraction(1, 3)),
        ([A, B, C, A], [1, 0, 0, 1], 2, Fraction(1 + 5 * Fraction(1, 2) - Fraction(1, 2), 6)),  # bc is wrong alone
        ([A, NONE_FOUND, NONE_FOUND], [1, 0, 0], 3, 1),  # who found nothing has no vote
        ([A, NONE_FOUND, NONE_FOUND], [1, 0, 0], 1, Fraction(1, 3)),
        ([NONE_FOUND, NONE_FOUND], [0, 0], 2, 0),
        ([A, A, B], [1, 0, 0], 3, Fraction(1, 2)),  # a verifier that judged equal answers differently
        ([A, SAYS_NOTHING], [1, 0], 2, 1),
    ],
)
def test_the_majority_by_hand(codes, right, k, expected):
    assert majority_at(codes, [bool(one) for one in right], k) == pytest.approx(float(expected), abs=1e-15)


def counted(codes: list[int], right: list[bool], k: int) -> Fraction:
    """The definition, set by set, in exact numbers."""
    sets = [*itertools.combinations(range(len(codes)), k)]
    total = Fraction(0)
    for chosen in sets:
        votes = [codes[i] for i in chosen if codes[i] not in (SAYS_NOTHING, NONE_FOUND)]
        most = max((votes.count(code) for code in set(votes)), default=0)
        winners = {code for code in votes if votes.count(code) == most}
        total += Fraction(sum(any(c == w and r for c, r in zip(codes, right, strict=True)) for w in winners),
                          max(len(winners), 1))  # fmt: skip
    return total / len(sets)


@pytest.mark.parametrize("seed", range(6))
def test_the_majority_is_the_mean_over_all_sets(seed):
    drawn = random.Random(seed)
    codes = [drawn.choice([A, A, B, C, NONE_FOUND]) for _ in range(9)]
    right = [code == A for code in codes]
    for k in range(1, 10):
        assert majority_at(codes, right, k) == pytest.approx(float(counted(codes, right, k)), abs=1e-12)


def test_where_there_are_too_many_sets_the_seed_draws_some():
    codes, right = [A] * 18 + [B] * 14, [True] * 18 + [False] * 14
    drawn = [majority_at(codes, right, 16, seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    # Sixteen of 32 without order: the chance that a has more of them, ties half.
    ways = {a: pass_ways(a) for a in range(17)}
    exact = sum(w * (1 if a > 8 else 0.5 if a == 8 else 0) for a, w in ways.items()) / sum(ways.values())
    assert drawn == pytest.approx([exact] * 3, abs=4 * 0.5 / DRAWN_SETS**0.5)
    assert majority_at(codes, right, 1) == pytest.approx(18 / 32)  # few sets: all of them


def test_sets_of_other_sizes_are_drawn_from_other_numbers():
    """Else what chance does to the majority of fifteen it would do to that of seventeen as well."""
    few, many = (_sets(32, k, 0) for k in (15, 17))
    assert few.shape == (DRAWN_SETS, 15)
    assert not (few == many[:, :15]).all(axis=1).any()


def pass_ways(a: int) -> int:
    from math import comb

    return comb(18, a) * comb(14, 16 - a)


def test_sixteen_answers_are_counted_exactly():
    from math import comb

    assert comb(16, 8) <= MOST_SETS


@pytest.mark.parametrize(("n", "c", "k", "expected"), [(4, 1, 1, 1 / 4), (4, 1, 2, 1 / 2), (4, 2, 3, 1), (4, 0, 4, 0)])
def test_pass_at_k(n, c, k, expected):
    assert pass_at(n, c, k) == pytest.approx(expected)


def test_rates_are_means_over_problems_up_to_the_fewest_answers():
    results = [
        *(result(0, code, code == A) for code in (A, A, B, B)),  # of three problems with four, five and four answers
        *(result(1, code, code == A, seed) for seed, code in enumerate((A, A, A, B, C))),
        *(result(2, NONE_FOUND, False) for _ in range(4)),
    ]
    found = rates(results, problem_of, seed=0)
    assert {name.removeprefix("eval/") for name in found} == {
        f"{kind}_at/{k}" for kind in ("pass", "maj") for k in (1, 2, 4)
    }
    check(found)
    assert found["eval/pass_at/1"] == pytest.approx((2 / 4 + 3 / 5 + 0) / 3)
    assert found["eval/maj_at/1"] == pytest.approx(found["eval/pass_at/1"])
    assert found["eval/maj_at/4"] == pytest.approx((1 / 2 + 1 + 0) / 3)  # of five, each set of four has more of a
    more = [*results, *(result(3, A, True) for _ in range(9))]
    assert [*rates(more, problem_of, seed=0)] == [*found]  # still up to four
    table = cells(found)
    assert table[0] == ["k", "pass@k", "maj@k"]
    assert table[-1] == ["4", f"{found['eval/pass_at/4']:.1%}", "50.0%"]


def test_an_env_that_does_not_say_answers_has_no_majority():
    for code in (None, SAYS_NOTHING):
        found = rates([result(0, code, True), result(0, code, False)], problem_of, seed=0)
        assert [*found] == ["eval/pass_at/1", "eval/pass_at/2"]
        assert cells(found)[0] == ["k", "pass@k"]
    assert rates([result(0, A, True), result(1, A, True)], problem_of, seed=0) == {}


def test_codes_of_answers():
    assert answer_code(None) == SAYS_NOTHING
    assert answer_code("") == NONE_FOUND
    assert len({answer_code(str(number)) for number in range(1000)} - {SAYS_NOTHING, NONE_FOUND}) == 1000
    assert all(-(2**63) <= answer_code(str(number)) < 2**63 for number in range(100))
    assert answer_code("\udcff") == answer_code("?")  # no UTF-8: it is replaced
