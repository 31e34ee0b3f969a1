"""The enumeration of random streams: no two draws of a run share numbers, whatever their seed, stream and place."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import numpy as np
import pytest

from embodied.random import COORDINATES, LIMIT, Stream, generator, generator_seed

PACKAGE = Path(__file__).resolve().parents[1] / "embodied"
SEEDS = (0, 1, 2, 2**32, LIMIT - 1)
NUMBERS = (0, 1, 2, 2**32, 2**40)
ALLOWED = {  # file → how often it makes a generator of its own, which is no part of a run's randomness
    "random.py": 2,  # the one place: streams, and which rows are held out
    "testing/env.py": 2,  # a simulator's own randomness: its starts
    "testing/decoder.py": 1,  # how long a made-up answer takes
    "testing/checks.py": 2,  # actions that drive a new env in its conformance check
    "observe/statistics.py": 1,  # the bootstrap: which tasks are drawn
    "selftest/parts/simulation.py": 1,  # actions that drive an env which is tested
    "selftest/policies.py": 1,  # observations and noise of a test
    "tools/bench.py": 1,  # actions that drive an env while it is timed
}


def draws(stream: Stream) -> dict[tuple, bytes]:
    """The first eight numbers of a stream at many seeds and places."""
    places = itertools.product(NUMBERS, repeat=stream.coordinates)
    return {
        (stream, seed, place): generator(seed, stream, *place).bytes(64)
        for place in places
        for seed in SEEDS
    }  # fmt: skip


def test_every_stream_says_how_many_numbers_a_place_has():
    assert set(COORDINATES) == set(Stream)


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(Stream, 2)], ids=lambda stream: stream.name)
def test_no_two_streams_share_numbers(one, other):
    found = draws(one) | draws(other)
    assert len(set(found.values())) == len(found)


def test_the_counters_of_two_places_are_a_permutation_apart():
    """Not by luck: draws read different blocks, whose addresses are seed, stream and place."""
    addresses = set()
    for stream in Stream:
        for seed, place in itertools.product(SEEDS, itertools.product(NUMBERS, repeat=stream.coordinates)):
            state = generator(seed, stream, *place).bit_generator.state["state"]
            assert state["counter"][0] == 0  # blocks of one draw are counted here
            addresses.add((*state["key"].tolist(), *state["counter"].tolist()))
    assert len(addresses) == sum(len(SEEDS) * len(NUMBERS) ** stream.coordinates for stream in Stream)


def test_what_shared_numbers_in_numpys_generator_shares_none_here():
    assert np.array_equal(np.random.default_rng([7, 0]).random(4), np.random.default_rng([7, 0, 0]).random(4))
    first = [
        generator(7, Stream.HELD_OUT),
        generator(7, Stream.TRAIN_STARTS, 0, 0),
        generator(7, Stream.MINIBATCHES, 0, 0),
    ]
    assert len({draw.bytes(32) for draw in first}) == 3


def test_equal_keys_give_equal_numbers():
    for stream in Stream:
        place = (3,) * stream.coordinates
        assert generator(5, stream, *place).bytes(64) == generator(5, stream, *place).bytes(64)
        assert 0 <= generator_seed(5, stream, *place) < 2**63


@pytest.mark.parametrize("place", [(), (1,), (1, 2, 3)])
def test_a_place_with_another_number_of_coordinates_is_refused(place):
    with pytest.raises(ValueError, match="MINIBATCHES has 2 numbers"):
        generator(0, Stream.MINIBATCHES, *place)


@pytest.mark.parametrize(("seed", "place"), [(-1, 0), (LIMIT, 0), (0, -1), (0, LIMIT)])
def test_numbers_out_of_range_are_refused(seed, place):
    with pytest.raises(ValueError, match=r"in \[0, 2\*\*64\)"):
        generator(seed, Stream.SAMPLES, place)


def test_one_file_makes_the_generators():
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        calls = [
            node.func for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)
        ]
        names = [call.attr for call in calls if isinstance(call, ast.Attribute)]
        count = sum(name in ("default_rng", "Philox", "PCG64", "SeedSequence", "RandomState") for name in names)
        if count:
            found[str(path.relative_to(PACKAGE))] = count
    assert found == ALLOWED
