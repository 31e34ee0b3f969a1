"""Potentials from trajectories that succeeded, and rewards made of them that leave the best policy as it is.

Shape letters: T records of an episode, V rewards of a record (:mod:`embodied.algorithms.rewards`), P points that are
remembered, F features of a point. Everything is computed in float64, state by state, so that a number depends neither
on the batch nor on the process.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LEAST_SPREAD = 0.01
"""Least spread of a feature, as a share of the largest one: what hardly moved in a success counts little."""


@dataclass(frozen=True)
class Points:
    """Points of trajectories that succeeded, with the share of its trajectory that lies before each."""

    constant: np.ndarray  # bool [F], features that are the same in all points
    constants: np.ndarray  # float64 [C], those, over their spreads
    scaled: np.ndarray  # float64 [F − C, P], the others over their spreads
    phases: np.ndarray  # float64 [P], in [0, 1)
    spreads: np.ndarray  # float64 [F], standard deviations over the points, of at least LEAST_SPREAD
    moving: int  # features that differ between points, at least 1

    @classmethod
    def of(cls, trajectories: list[np.ndarray]) -> Points:
        """Joins trajectories, float [n, F] each, from the start to the success."""
        points = np.concatenate(trajectories).astype(np.float64)
        deviations = points.std(axis=0)
        largest = float(deviations.max(initial=0.0)) or 1.0
        spreads = np.maximum(deviations, LEAST_SPREAD * largest)
        phases = np.concatenate([np.arange(len(own)) / len(own) for own in trajectories])
        constant, scaled = points.min(axis=0) == points.max(axis=0), points / spreads
        others = np.ascontiguousarray(scaled[:, ~constant].T)
        moving = max(int((deviations > LEAST_SPREAD * largest).sum()), 1)
        return cls(constant, scaled[0, constant], others, phases, spreads, moving)

    def potential(self, states: np.ndarray) -> np.ndarray:
        """Returns ``max_i phase_i / (1 + d_i)`` for each state, float64 [n] in [0, 1).

        ``d_i`` is the distance to point i in spreads: the root of the mean square over the features that move. A state
        on a successful trajectory has at least its phase; far from all of them little is left, and never nothing.

        Args:
            states: float [n, F].
        """
        found, apart = np.empty(len(states)), np.empty_like(self.scaled)  # one memory for all states
        for number, state in enumerate(states.astype(np.float64) / self.spreads):
            same = np.square(self.constants - state[self.constant]).sum()  # as far from each point: computed once
            np.square(np.subtract(self.scaled, state[~self.constant, None], out=apart), out=apart)
            distances = np.sqrt((apart.sum(axis=0) + same) / self.moving)
            found[number] = (self.phases / (1.0 + distances)).max()
        return found


def shaping(potentials: np.ndarray, counts: np.ndarray, gamma: float) -> np.ndarray:
    """Returns ``γΦ(s') − Φ(s)`` of each reward: Ng, Harada and Russell (ICML 1999), theorem 1; float64 [T, V].

    With several rewards a record, the state keeps its potential until the last of them. Discounted by ``gamma``, the
    sum over an episode is ``−Φ(s₀)`` plus the discounted potential of its end, whatever was done in between.

    Args:
        potentials: of the T states before the records and of the end, float64 [T + 1]; 0 at the end if nothing follows.
        counts: which rewards count, bool [T, V]; in each record the first ones, and at least one.

    >>> shaping(np.array([0.25, 0.5, 0.0]), np.ones((2, 1), bool), 1.0).tolist()
    [[0.25], [-0.5]]
    """
    before, after = potentials[:-1], potentials[1:]
    found = np.where(counts, (gamma - 1.0) * before[:, None], 0.0)
    found[np.arange(len(counts)), counts.sum(axis=1) - 1] += gamma * (after - before)
    return found
