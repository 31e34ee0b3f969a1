"""Which problems of a source are used, and in which order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embodied.errors import ConfigError, DatasetError
from embodied.random import held_out

from ..shared.arguments import check_name
from .tokens import TokenLimit

PARTS = ("all", "train", "held_out")


@dataclass(frozen=True)
class Selection:
    """Which problems of a source are used. Meaning of the fields: :class:`embodied.envs.text.env.MathEnv`."""

    filter_overlong_prompts: bool = False
    shuffle: bool = False
    seed: int = 0
    max_samples: int | None = None
    part: str = "all"
    test_size: float = 0.1
    token_limit: TokenLimit | None = None

    def __post_init__(self) -> None:
        check_name("part", self.part, PARTS, "env.train.part")
        if self.test_size < 0 or (self.test_size >= 1 and self.test_size % 1):
            raise ConfigError(
                f"data.test_size is {self.test_size:g}, neither a share below 1 nor a whole number of problems",
                "set data.test_size=0.1 or data.test_size=100",
            )
        if self.max_samples is not None and self.max_samples < 1:
            raise ConfigError(
                f"env.train.max_samples is {self.max_samples}, expected 1 or more", "set env.train.max_samples=null"
            )
        if self.seed < 0:
            raise ConfigError(f"env.train.shuffle_seed is {self.seed}, expected 0 or more", "set it to 0")

    def of_part(self, usable: np.ndarray, total: int) -> np.ndarray:
        """Selects the rows that are held out for evaluations, or those that are not; they stay in their order.

        Args:
            usable: numbers of the rows that are problems, which another verifier or prompt length changes.
            total: rows of the source. What is held out is drawn from all of them, so the sides never share a row.

        Raises:
            DatasetError: none is left.
        """
        if self.part == "all":
            return usable
        out = held_out(total, self.test_size)
        found = usable[out[usable] == (self.part == "held_out")]
        if len(found) == 0:
            raise DatasetError(
                f"data.test_size {self.test_size:g} holds {out.sum()} of {total} rows out, and {len(usable)} rows are "
                f"problems, which leaves none for {'evaluation' if self.part == 'held_out' else 'training'}",
                "set data.test_size, or give files of evaluation problems: data.val_data_paths (env.eval.data)",
            )
        return found

    def order(self, usable: np.ndarray, total: int) -> np.ndarray:
        """Selects and orders rows as starts: their numbers. Arguments as in :meth:`of_part`."""
        usable = self.of_part(usable, total)
        if self.shuffle:
            usable = usable[shuffled(len(usable), self.seed)]
        return usable[: self.max_samples]


def shuffled(count: int, seed: int) -> np.ndarray:
    """Returns the numbers 0 … ``count`` − 1 in a random order, int32 [count]."""
    return np.random.default_rng(seed).permutation(count).astype(np.int32)
