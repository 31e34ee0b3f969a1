"""Values of starts that are remembered over iterations (``algorithm.adv_type: start_value``).

    all episodes  ⊃  those of a task  ⊃  those of a start

The value of each is that of the wider one, moved by what is known beyond it. In pseudo-episodes:

    value = ((κ + w) · wider + S + Σ R of this iteration's others) / (κ + w + number of these others)

``w`` is the weight of the remembered episodes, halved every half-life; ``S`` the weighted sum of how far each of their
returns lay from the wider value *at that time*, so that what all starts gain together needs no learning anew. κ says
how little a start differs from its task. This is the mean of a normal posterior with prior N(wider, σ²/κ), noise σ² and
a memory of variance σ²/w; of returns 0 and 1 it is the mean of a Beta posterior of κ pseudo-episodes. A group of n
episodes enters as its n − 1 others, of variance σ²/(n−1): each source counts by how much it knows. Departure from SPO
(arXiv 2509.13232), which has one level and forgets by the KL of each prompt: here forgetting depends on iterations.

An episode's own return is in none of its values (``others`` leaves it out, and the memory is of earlier iterations), so
that the gradient with ``R − value`` is unbiased. κ, too, is that of earlier iterations.

Without a half-life nothing is forgotten, no value moves with a wider one, and ``S`` is a sum of returns.

Shape letters: E episodes of an iteration, T tasks, N starts that repeat. All tensors are float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

TASK_PRIOR = 1.0
"""Pseudo-episodes of the wider value in a task's."""
PAIRS_OF_PRIOR = 8.0
"""How many pairs of episodes the first guess is worth: half of the variance lies between the starts of a task."""
LEAST_SHARE = 0.02
"""The share of the variance between starts is taken to lie within this and 1 − this: κ within 1/49 and 49."""
QUICKER = 4
"""A task's value is known from more episodes than a start's, so it forgets so many times as fast; that of all episodes
so many times as fast again."""
LEAST_EPISODES = 64
"""A task's value, and that of all, forgets more slowly where an iteration has few episodes: it remembers about so many,
or it would follow which starts were drawn."""


@dataclass(frozen=True)
class Seen:
    """E episodes of an iteration: their returns, and which of them begin alike."""

    returns: Tensor  # float64 [E]
    tasks: Tensor  # int64 [E]
    starts: Tensor  # int64 [E], 0..N−1; −1: the start never repeats
    mates: Tensor  # int64 [E], equal where episodes of this iteration have one start

    def __len__(self) -> int:
        return len(self.returns)

    @property
    def finite(self) -> Seen:
        """The episodes whose returns are finite: one that is not would be remembered for good."""
        known = self.returns.isfinite()
        return Seen(self.returns[known], self.tasks[known], self.starts[known], self.mates[known])


@dataclass(frozen=True)
class Baselines:
    """Values of E episodes' starts without their own returns, and what they are made of."""

    values: Tensor  # float64 [E]
    of_tasks: Tensor  # float64 [E], the values of their tasks
    of_mates: Tensor  # float64 [E], mean return of the others of the same start; NaN where there is none
    remembered: Tensor  # float64 [E], share of the start's memory in its value, 0..1


@dataclass(frozen=True)
class Level:
    """Remembered episodes of G tasks, or of G starts."""

    weight: Tensor  # float64 [G]
    total: Tensor  # float64 [G]

    @classmethod
    def empty(cls, count: int) -> Level:
        return cls(torch.zeros(count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64))

    def at(self, index: Tensor) -> Level:
        """What is remembered of each of ``index`` int64 [E]; nothing where it is −1."""
        known = (index >= 0).double()
        return Level(self.weight[index] * known, self.total[index] * known)

    def after(self, index: Tensor, values: Tensor, keeps: float | Tensor) -> Level:
        """The memory after an iteration: ``keeps`` of what was there, and ``values`` float64 [E] of ``index``."""
        here = index >= 0
        weight, total = self.weight * keeps, self.total * keeps
        weight.index_add_(0, index[here], torch.ones(int(here.sum()), dtype=torch.float64))
        return Level(weight, total.index_add_(0, index[here], values[here]))

    def keeps(self, index: Tensor, quick: float) -> Tensor:
        """How much of each is kept in an iteration with the episodes ``index`` int64 [E], float64 [G]: ``quick``, or as
        much as leaves :data:`LEAST_EPISODES` in the long run."""
        number = torch.bincount(index, minlength=len(self.weight)).double()
        return (1 - number / LEAST_EPISODES).clamp(min=quick)

    def value(self, wider: Tensor, prior: float | Tensor, follows: bool) -> Tensor:
        """The value of each, float64 [G], from what is remembered alone; ``wider`` float64 [G]."""
        nothing = torch.zeros_like(self.weight)
        return _value(self, nothing, nothing, wider, prior, follows)


def _value(
    memory: Level, others: Tensor, number: Tensor, wider: Tensor, prior: float | Tensor, follows: bool
) -> Tensor:  # fmt: skip
    known = prior + memory.weight + number
    top = (prior + memory.weight * follows) * wider + memory.total + others
    return torch.where(known > 0, top / torch.where(known > 0, known, 1.0), wider)


@dataclass(frozen=True)
class StartValues:
    """What is remembered of all starts. :meth:`after` makes that of the next iteration."""

    overall: Level  # of one
    tasks: Level  # of T
    starts: Level  # of N
    pairs: Tensor  # float64 [4], sums: products of deviations of one start, their number; squares, their number
    bounds: Tensor  # float64 [2], least and largest return, nearer to the value of all by a half-life; 0 before any

    @classmethod
    def empty(cls, tasks: int, starts: int) -> StartValues:
        pairs, bounds = (torch.zeros(count, dtype=torch.float64) for count in (4, 2))
        return cls(Level.empty(1), Level.empty(tasks), Level.empty(starts), pairs, bounds)

    @property
    def prior(self) -> float:
        """κ, in episodes: σ²/τ² of the variances within and between the starts of a task, as estimated so far."""
        products, number, squares, episodes = self.pairs.tolist()
        in_squares = products * episodes / squares if squares > 0 else 0.0
        share = (PAIRS_OF_PRIOR / 2 + in_squares) / (PAIRS_OF_PRIOR + (number if squares > 0 else 0.0))
        share = min(max(share, LEAST_SHARE), 1 - LEAST_SHARE)
        return (1 - share) / share

    def baselines(self, seen: Seen, prior: float, follows: bool) -> Baselines:
        """Returns the values of E episodes' starts; an episode's own return is in none of its values.

        Args:
            prior: κ, in episodes.
            follows: a half-life is set.
        """
        one, returns = torch.zeros(len(seen), dtype=torch.int64), seen.returns
        overall = _value(self.overall.at(one), *_others(one, returns), torch.zeros_like(returns), 0.0, False)
        tasks = _value(self.tasks.at(seen.tasks), *_others(seen.tasks, returns), overall, TASK_PRIOR, follows)
        memory, (others, number) = self.starts.at(seen.starts), _others(seen.mates, returns)
        values = _value(memory, others, number, tasks, prior, follows)
        known = prior + memory.weight + number
        return Baselines(values, tasks, others / number, memory.weight / torch.where(known > 0, known, 1.0))

    def after(self, seen: Seen, half_life: float | None) -> StartValues:
        """Returns the memory after an iteration with the episodes ``seen``; those whose return is not finite are left
        out.

        Args:
            half_life: iterations until a start's remembered episode counts half; None = it always counts.
        """
        if not len(seen := seen.finite):
            return self
        follows, keeps = half_life is not None, 1.0 if half_life is None else 0.5 ** (1 / half_life)
        one, returns = torch.zeros(len(seen), dtype=torch.int64), seen.returns
        overall = self.overall.after(one, returns, self.overall.keeps(one, keeps**QUICKER**2))
        level = overall.value(torch.zeros(1, dtype=torch.float64), 0.0, False)
        quick = self.tasks.keeps(seen.tasks, keeps**QUICKER)
        tasks = self.tasks.after(seen.tasks, returns - level * follows, quick)
        levels = tasks.value(level.expand(len(tasks.weight)), TASK_PRIOR, follows)[seen.tasks]
        starts = self.starts.after(seen.starts, returns - levels * follows, keeps)
        known = torch.lerp(level.expand(2), self.bounds, keeps)
        ever = torch.cat([returns, known]) if bool(self.overall.weight > 0) else returns
        pairs = self.pairs * keeps + self._pairs(seen, follows)
        return StartValues(overall, tasks, starts, pairs, torch.stack([ever.min(), ever.max()]))

    def _pairs(self, seen: Seen, follows: bool) -> Tensor:
        """What :attr:`prior` is estimated from: each return's distance from its task's value, times those of the other
        episodes of its start, remembered and present. Its mean is the variance between starts."""
        tasks = self.baselines(seen, 0.0, follows).of_tasks
        memory, (others, number) = self.starts.at(seen.starts), _others(seen.mates, seen.returns)
        away = seen.returns - tasks
        total = memory.total + others - (number + memory.weight * (not follows)) * tasks
        count = (memory.weight + number).sum()
        return torch.stack([(away * total).sum(), count, (away**2).sum(), away.new_tensor(len(seen))])

    def expected(self, tasks: Tensor, prior: float, follows: bool) -> Tensor:
        """Returns the value of each start from what is remembered alone, float64 [N].

        Args:
            tasks: of the starts, int64 [N].
        """
        level = self.overall.value(torch.zeros(1, dtype=torch.float64), 0.0, False)
        levels = self.tasks.value(level.expand(len(self.tasks.weight)), TASK_PRIOR, follows)
        return self.starts.value(levels[tasks], prior, follows)

    def spread(self, tasks: Tensor, prior: float, follows: bool) -> Tensor:
        """Returns how much returns of each start may differ, float64 [N]: ``√((v − low)(high − v))`` of its value, the
        largest standard deviation with that mean (Bhatia and Davis, 2000). Of returns of two values it is theirs, and
        largest at half success. All are 1 before two returns have differed."""
        low, high = self.bounds
        if not bool(high > low):
            return torch.ones(len(tasks), dtype=torch.float64)
        values = self.expected(tasks, prior, follows).clamp(low, high)
        return ((values - low) * (high - values)).sqrt()

    def tensors(self) -> dict[str, Tensor]:
        """Returns the state by name, for checkpoints."""
        levels = {name: getattr(self, name) for name in ("overall", "tasks", "starts")}
        packed = {name: torch.stack([level.weight, level.total]) for name, level in levels.items()}
        return {**packed, "pairs": self.pairs, "bounds": self.bounds}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> StartValues:
        """Makes the memory from :meth:`tensors`."""
        overall, tasks, starts = (Level(*tensors[name].clone()) for name in ("overall", "tasks", "starts"))
        return cls(overall, tasks, starts, tensors["pairs"].clone(), tensors["bounds"].clone())


def _others(ids: Tensor, returns: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of the returns of each episode's others of equal ``ids``, and their number: float64 [E] each. Returns that
    are not finite are nobody's others."""
    known = returns.isfinite()
    sums = _sums_of_others(ids, torch.stack([torch.where(known, returns, 0.0), known.double()]))
    return sums[0], sums[1]


def _sums_of_others(ids: Tensor, values: Tensor) -> Tensor:
    """Sums ``values`` float64 [K, E] of each episode's others. They are added up from both ends, without its own: taken
    off a sum, a large one would leave nothing of small others."""
    _, index, sizes = torch.unique(ids, return_inverse=True, return_counts=True)
    order = index.argsort(stable=True)
    row = index[order]
    place = torch.arange(len(ids)) - (sizes.cumsum(0) - sizes)[row]
    laid = torch.zeros(len(values), len(sizes), int(sizes.max()) + 2, dtype=torch.float64)
    laid[:, row, place + 1] = values[:, order]
    before, behind = laid.cumsum(2), laid.flip(2).cumsum(2).flip(2)
    found = torch.empty_like(values)
    found[:, order] = before[:, row, place] + behind[:, row, place + 2]
    return found
