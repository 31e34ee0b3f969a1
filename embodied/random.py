"""Every random stream of a run, in one enumeration; no two of them share numbers.

A draw is keyed by ``(seed, stream, place)``. The key of a Philox generator is the pair of seed and stream, and its
counter begins at the place, so different draws read different blocks of one permutation. This holds by construction:
it depends neither on a hash nor on luck. (numpy pads the entropy that seeds ``default_rng`` with zeros, so that
``default_rng([s, 0])`` and ``default_rng([s, 0, 0])`` are one stream.)

Imports numpy only: env workers stay light.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

LIMIT = 1 << 64  # seeds and numbers of a place are smaller
HELD_OUT_SEED = 1  # chooses held-out rows of texts; all runs share it, so it is no stream


class Stream(IntEnum):
    """Purposes of random numbers: each has a stream of its own. A value, once released, is never given to another
    purpose."""

    TRAIN_NOISE = 0  # noise of a decision; place: index of the record in its episode, episode id
    EVAL_NOISE = 1  # the same in an evaluation
    TRAIN_STARTS = 2  # order of the starts; place: passes through all starts so far, sampling round
    EVAL_STARTS = 3  # initial states of an evaluation; place: task
    MINIBATCHES = 4  # order of an update's records; place: iteration, epoch of the update
    HELD_OUT = 5  # demonstrations that are kept for validation; no place
    SAMPLES = 6  # order of the demonstrations' samples; place: passes through all samples so far
    AUGMENTATION = 7  # crop and brightness of a sample; place: its number in the run
    DROPOUT = 8  # seed of torch's generator in an optimizer step; place: the step
    EXPERT_NOISE = 9  # noise on an expert's actions; place: number of the attempt
    EVAL_VOTES = 10  # choice of the answers that vote; place: number of a problem's answers, number of the voters
    CONDITIONS = 11  # perturbation of a group of training episodes; place: its number
    # noise of a perturbed episode; place: control step or observation, use, number of its group
    TRAIN_PERTURBATION = 12
    EVAL_PERTURBATION = 13  # the same in an evaluation, with the id of the unperturbed episode of the same start
    SERVED_NOISE = 14  # noise of a policy server; place: earlier requests of the session, the session
    RANDOM_ACTIONS = 15  # played in place of a policy's (embodied.tools.play); place: record of the episode, episode id
    EXPERT_MISTAKES = 16  # choice to do something else than asked; place: number of the attempt
    DEMONSTRATION_NOISE = 17  # of a demonstrated sample; place: its number, in the run's order or (1) in a validation
    MEASURED_NOISE = 18  # of a decision by which two forms of a policy are compared; place: number of the observation
    INFORMATIVE_STARTS = 19  # starts that are drawn by what is known of them; place: iteration, sampling round
    SKETCH = 20  # projections of the gradients of an update's groups; place: iteration
    # records that an update reads again; place: optimizer step, rank, own records or (1) demonstrations; (2) of what a
    # policy does where there is a demonstration: number of the observation, rank
    REPLAYED = 21
    ACTOR_CRITIC = 22  # chunks that an update draws, and critics (0) that it takes; place: update, 1 + rank

    @property
    def coordinates(self) -> int:
        """How many numbers the key of a draw has behind seed and stream, e.g. iteration and epoch. The number is fixed,
        so that no place is read as another."""
        return COORDINATES[self]


COORDINATES = {
    Stream.TRAIN_NOISE: 2, Stream.EVAL_NOISE: 2, Stream.TRAIN_STARTS: 2, Stream.EVAL_STARTS: 1, Stream.MINIBATCHES: 2,
    Stream.HELD_OUT: 0, Stream.SAMPLES: 1, Stream.AUGMENTATION: 1, Stream.DROPOUT: 1, Stream.EXPERT_NOISE: 1,
    Stream.EVAL_VOTES: 2, Stream.CONDITIONS: 1, Stream.TRAIN_PERTURBATION: 3, Stream.EVAL_PERTURBATION: 3,
    Stream.SERVED_NOISE: 2, Stream.RANDOM_ACTIONS: 2, Stream.EXPERT_MISTAKES: 1,
    Stream.DEMONSTRATION_NOISE: 2, Stream.MEASURED_NOISE: 1, Stream.INFORMATIVE_STARTS: 2, Stream.SKETCH: 1,
    Stream.REPLAYED: 3, Stream.ACTOR_CRITIC: 2,
}  # fmt: skip


def generator(seed: int, stream: Stream, *place: int) -> np.random.Generator:
    """Makes the generator whose numbers belong to ``(seed, stream, place)``.

    It has 2⁶⁴ blocks of four 64-bit numbers before it reaches those of the next place.

    Args:
        seed: of the run, in [0, 2⁶⁴).
        place: as many numbers in [0, 2⁶⁴) as the stream has :attr:`Stream.coordinates`.

    Raises:
        ValueError: another number of coordinates, or one that is out of range.

    >>> generator(0, Stream.SAMPLES, 3).permutation(4)
    array([3, 2, 1, 0])
    """
    if len(place) != stream.coordinates:
        raise ValueError(f"a place of {stream.name} has {stream.coordinates} numbers, got {place}")
    if not all(0 <= number < LIMIT for number in (seed, *place)):
        raise ValueError(f"seed and place must lie in [0, 2**64), got seed {seed} and place {place}")
    key = np.array([seed, int(stream)], np.uint64)
    counter = np.array([0] * (4 - len(place)) + [int(number) for number in place], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def held_out(rows: int, test_size: float) -> np.ndarray:
    """Marks the rows of a text data set that are held out for evaluations: bool [rows].

    It depends on the two arguments alone. So both sides of a run, and a supervised training before it, keep the same
    rows, whatever else they leave out.

    Args:
        test_size: share of the rows, or their number if it is 1 or more.
    """
    out = np.zeros(rows, bool)
    out[np.random.default_rng(HELD_OUT_SEED).permutation(rows)[: held_out_count(rows, test_size)]] = True
    return out


def held_out_count(rows: int, test_size: float) -> int:
    """Returns how many of ``rows`` are held out for evaluations: a share of them, or ``test_size`` itself if it is 1 or
    more.

    >>> held_out_count(50, 0.1), held_out_count(50, 100)
    (5, 100)
    """
    return round(test_size * rows) if test_size < 1 else int(test_size)


def generator_seed(seed: int, stream: Stream, *place: int) -> int:
    """A seed in [0, 2⁶³) for a generator of another library, such as torch's."""
    return int(generator(seed, stream, *place).integers(1 << 63))
