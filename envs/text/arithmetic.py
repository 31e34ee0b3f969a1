"""Chains of one-digit additions and subtractions, for small models with a character tokenizer.

    prompt 7+2-9+4=     worked solution 9,0;4     answer 4

The worked solution has all partial sums but the last one, then a semicolon and the result. With two terms it is ``;9``.
Each step of it is a sum that a model can learn by heart. All steps together are harder the longer the chain is, so a
model can be cloned on short chains and trained by reinforcement on longer ones.

No evaluation problem is ever a training one: a hash of the prompt decides which of the two it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from embodied.errors import ConfigError

from ..shared.arguments import check_name, check_range

SEPARATOR = ";"  # stands before the result
SPLITS = ("auto", "train", "eval")
EVAL_SHARE = 0.1  # share of all prompts
MOST_TERMS = 64
ATTEMPTS = 10_000  # problems that are drawn until one belongs to the split
_CHAINS = 1  # number of a random stream
T = TypeVar("T")


class Chains:
    """A custom data set of sums and differences of digits: ``data=embodied.envs.text.arithmetic:Chains``. A problem is
    a function of ``(seed, number)``.

    Args:
        terms: fewest and most terms of a chain.
        count: problems.
        seed: other seeds give other problems.
        split: train, eval, or auto: training starts take problems of train, and evaluation starts those of eval.

    >>> Chains(terms=[3, 3])[0]
    {'prompt': '9-8+2=', 'answer': '3', 'terms': 3}
    """

    def __init__(
        self, terms: Sequence[int] = (3, 6), count: int = 100_000, seed: int = 0, split: str = "auto"
    ) -> None:  # fmt: skip
        check_terms("terms", terms, 2, MOST_TERMS)
        check_range("env.train.data_args.count", count, 1, 2**31 - 1)
        check_seed(seed)
        check_name("split", split, SPLITS, "env.train.data_args.split")
        self._terms, self._count, self._seed, self._split = tuple(terms), count, seed, split

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> dict[str, Any]:
        prompt, partial = self.chain(number)
        return {"prompt": prompt, "answer": str(partial[-1]), "terms": len(partial)}

    def for_evaluation(self) -> Chains:
        """The problems of evaluation starts."""
        return Chains(self._terms, self._count, self._seed, "eval") if self._split == "auto" else self

    def chain(self, number: int) -> tuple[str, list[int]]:
        """Returns prompt and partial sums of a problem."""
        return draw_in_split(self._split, (self._seed, number, _CHAINS), self._draw)

    def _draw(self, random: np.random.Generator) -> tuple[str, list[int]]:
        terms = random.integers(0, 10, random.integers(self._terms[0], self._terms[1] + 1))
        signs = np.where(random.integers(0, 2, len(terms)), 1, -1)
        signs[0] = 1
        written = "".join(f"{'+' if sign > 0 else '-'}{term}" for sign, term in zip(signs, terms, strict=True))
        return f"{written[1:]}=", np.cumsum(signs * terms).tolist()


def worked(partial: Sequence[int]) -> str:
    """Formats the worked solution from all partial sums, of which the first is the first term.

    >>> worked([7, 9, 0, 4])
    '9,0;4'
    """
    return ",".join(map(str, partial[1:-1])) + f"{SEPARATOR}{partial[-1]}"


def demonstrations(terms: Sequence[int] = (3, 6), count: int = 10_000, seed: int = 0) -> list[dict[str, str]]:
    """Makes demonstrations for supervised learning: rows of prompt and worked response, of training problems alone.

    >>> demonstrations([3, 3], 1)
    [{'prompt': '9-8+2=', 'response': '1;3'}]
    """
    chains = Chains(terms, count, seed, "train")
    return [{"prompt": prompt, "response": worked(partial)} for prompt, partial in map(chains.chain, range(count))]


def split_of(prompt: str) -> str:
    """Assigns a prompt to train or eval by its hash: the same in every run, for every seed."""
    drawn = int.from_bytes(hashlib.blake2b(prompt.encode(), digest_size=4).digest())
    return "eval" if drawn < EVAL_SHARE * 2**32 else "train"


def draw_in_split(
    split: str, key: tuple[int, int, int], draw: Callable[[np.random.Generator], tuple[str, T]]
) -> tuple[str, T]:  # fmt: skip
    """Draws problems until the prompt of one belongs to the split: eval, or train for all others.

    Args:
        key: seed, number of the problem, and what the random numbers are for.
        draw: makes a prompt and what belongs to it.

    Raises:
        ConfigError: there is none.
    """
    wanted = "eval" if split == "eval" else "train"
    for attempt in range(ATTEMPTS):
        found = draw(generator(*key, attempt))
        if split_of(found[0]) == wanted:
            return found
    raise ConfigError(
        f"none of {ATTEMPTS:,} problems belongs to the split {wanted}, e.g. {found[0]}",
        "allow more terms or digits in env.train.data_args: there are too few different problems",
    )


def generator(seed: int, number: int, purpose: int, attempt: int = 0) -> np.random.Generator:
    """Makes the random generator of a problem: its arguments are key and counter of a Philox generator."""
    key, counter = np.array([seed, purpose], np.uint64), np.array([0, 0, number, attempt], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def check_terms(key: str, value: Sequence[int], low: int, high: int) -> None:
    """Raises :class:`ConfigError`, naming ``key``, unless ``value`` is a pair of whole numbers from ``low`` to
    ``high``, the smaller one first."""
    fits = len(value) == 2 and all(isinstance(number, int) and low <= number <= high for number in value)
    if not fits or value[0] > value[1]:
        raise ConfigError(
            f"env.train.data_args.{key} is {list(value)}, expected fewest and most, from {low} to {high}",
            f"set env.train.data_args.{key}=[{low},{min(high, low + 3)}]",
        )


def check_seed(seed: int) -> None:
    """Raises :class:`ConfigError` unless ``seed`` is a whole number from 0."""
    check_range("env.train.data_args.seed", seed, 0, 2**32 - 1)
