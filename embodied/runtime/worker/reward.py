"""The reward that is recorded, from the env's raw one: the same rule for every env."""

from __future__ import annotations

from dataclasses import dataclass

from embodied.types import StepResult


@dataclass
class ShapedReward:
    """``reward_coef`` times the env's own reward (``dense``) or the success (the others); with ``use_rel_reward`` the
    change of that since the previous control step. What ``own_successes`` pays besides is added when all episodes are
    there (:mod:`embodied.learn.score.own_successes`).

    An episode that succeeds at its last step has a return of ``reward_coef`` in sparse mode, relative or not.

    >>> reward = ShapedReward("dense", reward_coef=5.0, use_rel_reward=True); reward.begin()
    >>> [reward(StepResult(r, False, False)) for r in (0.25, 0.75, 0.5)]
    [1.25, 2.5, -1.25]
    """

    reward_mode: str = "sparse"
    reward_coef: float = 1.0
    use_rel_reward: bool = False
    _previous: float = 0.0

    def begin(self) -> None:
        self._previous = 0.0

    def __call__(self, result: StepResult) -> float:
        value = result.reward if self.reward_mode == "dense" else float(result.success)
        scaled = self.reward_coef * value
        change = scaled - self._previous
        self._previous = scaled
        return change if self.use_rel_reward else scaled
