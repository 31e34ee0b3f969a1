"""Progress from own successes: how near the states of an episode come to the successes of its task so far
(``env.train.reward_mode: own_successes``; the idea of SRPO, arXiv 2511.15605, in the simulator's state).

    features of all episodes ─▶ potentials by the successes of earlier iterations ─▶ γΦ(s') − Φ(s), added to rewards
                                          ▲                                            │
                                          └── this iteration's successes, in the order of the plan ◀──┘

All ranks have the features of all episodes and remember the same, so nothing depends on who ran an episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from embodied.algorithms.potentials import Points, shaping
from embodied.errors import CheckpointError
from embodied.types import EpisodeResult

FEATURES = "progress_features"
"""Field of a record: the env's features before and after it, float32 [2, F]."""


class OwnSuccesses:
    """The newest successful trajectories of each task, and the rewards that they give to the episodes after them.

    Args:
        tasks: of the env.
        per_task: trajectories that are remembered of a task.
        points: most states of a trajectory, one more than an episode has records.
        features: numbers of a state.
        gamma: discount of one reward (``algorithm.gamma``).
        scale: what a potential of 1 is worth.
    """

    def __init__(
        self, tasks: int, per_task: int, points: int, features: int, gamma: float = 1.0, scale: float = 1.0
    ) -> None:
        self._gamma, self._scale = gamma, scale
        self._kept = torch.zeros(tasks, per_task, points, features)
        self._lengths = torch.zeros(tasks, per_task, dtype=torch.int64)  # states of a trajectory; 0 = none
        self._seen = torch.zeros(tasks, dtype=torch.int64)  # successes since the run began
        self._points: dict[int, Points] = {}  # task → what it was computed from stays until the task succeeds again
        self._nearest: list[float] = []  # largest potential of each failed episode of the last iteration

    def __call__(
        self, episodes: Sequence[Mapping[str, np.ndarray]], counts: Sequence[np.ndarray],
        results: Sequence[EpisodeResult],
    ) -> list[Mapping[str, np.ndarray]]:  # fmt: skip
        """Adds the rewards to ``penalty`` of the episodes; then remembers those that succeeded.

        Args:
            episodes: of all ranks in the order of the plan, each with ``progress_features`` float32 [T, 2, F].
            counts: which rewards of an episode count, bool [T, V] each.
        """
        self._nearest = []
        found = [self._paid(*one) for one in zip(episodes, counts, results, strict=True)]
        for episode, result in zip(episodes, results, strict=True):
            if result.solved_at:
                self._remember(result.episode.start.task_id, _until_solved(episode, result.solved_at))
        return found

    def _paid(
        self, episode: Mapping[str, np.ndarray], counts: np.ndarray, result: EpisodeResult
    ) -> Mapping[str, np.ndarray]:
        penalty, task = episode.get("penalty", np.zeros(counts.shape, np.float32)), result.episode.start.task_id
        others = {name: values for name, values in episode.items() if name != FEATURES}
        if not self._seen[task]:
            return {**others, "penalty": penalty}
        potentials = self._points_of(task).potential(_states(episode))
        if not result.solved_at:
            self._nearest.append(float(potentials.max()))
        if result.final_row < 0:  # nothing follows: its value is not read either
            potentials[-1] = 0.0
        paid = self._scale * shaping(potentials, counts, self._gamma)
        return {**others, "penalty": penalty + paid.astype(np.float32)}

    def _points_of(self, task: int) -> Points:
        if task not in self._points:
            self._points[task] = Points.of([own.numpy() for own in self._trajectories(task)])
        return self._points[task]

    def _trajectories(self, task: int) -> list[torch.Tensor]:
        """The task's trajectories, [n, F] each."""
        return [kept[:length] for kept, length in zip(self._kept[task], self._lengths[task], strict=True) if length]

    def _remember(self, task: int, states: np.ndarray) -> None:
        place = int(self._seen[task]) % self._lengths.shape[1]
        self._kept[task, place] = 0.0
        self._kept[task, place, : len(states)] = torch.from_numpy(states)
        self._lengths[task, place] = len(states)
        self._seen[task] += 1
        self._points.pop(task, None)

    def metrics(self) -> dict[str, float]:
        """Returns the ``train/`` metrics of the last iteration."""
        held = (self._lengths > 0).sum(dim=1).tolist()
        found: dict[str, float] = {f"train/own_successes/task/{task}": count for task, count in enumerate(held)}
        found["train/tasks_without_success"] = held.count(0)
        return found | ({"train/failure_potential_mean": float(np.mean(self._nearest))} if self._nearest else {})

    def state_dict(self) -> dict[str, Any]:
        """Returns what is remembered; names and shapes are a function of the configuration."""
        return {"features": self._kept, "lengths": self._lengths, "seen": self._seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what :meth:`state_dict` returned.

        Raises:
            CheckpointError: it is of other tasks, features or sizes.
        """
        for name, own in self.state_dict().items():
            if own.shape != state[name].shape:
                raise CheckpointError(
                    f"the checkpoint remembers successes as {list(state[name].shape)} ({name}), and this run as "
                    f"{list(own.shape)}",
                    "go on with the env, step limit and reward.own_successes.per_task that it was saved with",
                )
        self._kept, self._lengths, self._seen = (state[name].clone() for name in self.state_dict())
        self._points = {}


def _states(episode: Mapping[str, np.ndarray]) -> np.ndarray:
    """The states before each of T records, and that after the last: [T + 1, F]."""
    both = episode[FEATURES]
    return np.concatenate([both[:, 0], both[-1:, 1]])


def _until_solved(episode: Mapping[str, np.ndarray], solved_at: int) -> np.ndarray:
    """The states up to the end of the record in which the task was solved first."""
    records = int(np.searchsorted(np.cumsum(episode["num_steps"]), solved_at)) + 1
    both = episode[FEATURES][:records]
    return np.concatenate([both[:, 0], both[-1:, 1]])
