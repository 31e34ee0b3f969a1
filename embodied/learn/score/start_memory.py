"""The values of starts as a run keeps them: from episodes to rows of the memory, and from iteration to iteration
(:mod:`embodied.algorithms.advantages.start_value` has the mathematics).

A start is a task and an initial state of it. Where a task has one state, its episodes are drawn from their seeds and
none comes again: these have the value of their task, and that of episodes of the same seed in the same iteration.

All processes that train hold the same memory: it is made of the returns of all episodes, in the order of the plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied.algorithms.advantages.start_value import Baselines, Seen, StartValues
from embodied.schema import StartValueConfig
from embodied.types import EnvSpec, EpisodeResult


class StartMemory:
    """Remembers what starts are worth.

    Args:
        spec: of the env of training.
        lag: iterations between the results that a plan is made from and the plan (``algorithm.max_staleness``); None =
            no plan is made from results.
    """

    def __init__(self, spec: EnvSpec, config: StartValueConfig, lag: int | None = None) -> None:
        states = torch.tensor(spec.num_init_states)
        self._config, self._lag, self._follows = config, lag, config.half_life is not None
        self._of = {"states": states, "names": _digest(spec.tasks)}
        self._first, self._repeats = states.cumsum(0) - states, states > 1
        self._tasks = torch.repeat_interleave(torch.arange(len(states)), states)
        self._values = StartValues.empty(len(states), len(self._tasks))
        self._dropped: list[tuple[EpisodeResult, float]] = []
        self._spreads = {} if lag is None else {0: self._spread()}  # iterations done → how much returns differ
        self.metrics: dict[str, float] = {}
        self.said = ""  # why the memory of a checkpoint was not taken

    @property
    def plans(self) -> bool:
        """Whether plans are made from what is remembered."""
        return self._lag is not None

    @property
    def prior(self) -> float:
        """κ: how many episodes the task's value counts as much as, in the value of a start."""
        given = self._config.prior_episodes
        return self._values.prior if given is None else given

    def baselines(self, results: Sequence[EpisodeResult], returns: Tensor) -> list[float]:
        """Returns the value of each episode's start, in which its own return is not; also measures them.

        Args:
            returns: float64 [E].
        """
        prior = self.prior
        found = self._values.baselines(self._seen(results, returns), prior, self._follows)
        self.metrics = {"train/start_prior_episodes": prior, **_measured(found, returns)}
        return found.values.tolist()

    def dropped(self, episodes: Sequence[tuple[EpisodeResult, float]]) -> None:
        """Adds episodes that are not trained on, and their returns, to those of the next :meth:`learn`: which are
        dropped depends on their returns, so a memory of the others alone would be wrong."""
        self._dropped = [*episodes]

    def learn(self, results: Sequence[EpisodeResult], returns: Tensor, iteration: int) -> None:
        """Remembers the episodes of ``iteration``, whose returns are float64 [E]. Those that are not finite are not."""
        more, self._dropped = self._dropped, []
        everything = torch.cat([returns, torch.tensor([value for _, value in more], dtype=torch.float64)])
        seen = self._seen([*results, *(result for result, _ in more)], everything)
        self._values = self._values.after(seen, self._config.half_life)
        if self._lag is not None:
            kept = {done: spread for done, spread in self._spreads.items() if done > iteration - self._lag}
            self._spreads = {**kept, iteration + 1: self._spread()}

    def spread(self, iteration: int) -> np.ndarray:
        """Returns how much returns of each start may differ, float64 [N] by task and state, as it was known when the
        rollout of ``iteration`` could first be planned: after ``iteration − max_staleness`` iterations."""
        assert self._lag is not None
        wanted = iteration - self._lag
        there = [done for done in self._spreads if done <= wanted]
        return self._spreads[max(there) if there else min(self._spreads)].numpy()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for checkpoints."""
        state: dict[str, Any] = {**self._values.tensors(), **self._of}
        if self._lag is not None:
            state |= {"spreads": torch.stack([*self._spreads.values()]), "known_after": [*self._spreads]}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what :meth:`state_dict` returned. A memory of other starts, or none, is begun anew; :attr:`said` says
        of which it was."""
        self.said = ""
        if "starts" not in state:
            return
        if not all(name in state and torch.equal(state[name], mine) for name, mine in self._of.items()):
            self.said = (
                "the checkpoint remembers what starts of other tasks or of other initial states are worth: the values "
                f"of these {len(self._tasks)} begin anew"
            )
            return
        self._values = StartValues.of(state)
        if self._lag is not None:
            known = state.get("known_after")
            self._spreads = {0: self._spread()} if known is None else dict(zip(known, state["spreads"], strict=True))

    def _spread(self) -> Tensor:
        return self._values.spread(self._tasks, self.prior, self._follows)

    def _seen(self, results: Sequence[EpisodeResult], returns: Tensor) -> Seen:
        starts = [result.episode.start for result in results]
        tasks = torch.tensor([start.task_id for start in starts])
        rows = self._first[tasks] + torch.tensor([start.init_state_id for start in starts])
        repeats = self._repeats[tasks]
        ids: dict[tuple[int, int, int], int] = {}
        keys = zip(starts, repeats.tolist(), strict=True)
        mates = [
            ids.setdefault((start.task_id, start.init_state_id, -1 if again else start.seed), len(ids))
            for start, again in keys
        ]
        return Seen(returns, tasks, torch.where(repeats, rows, -1), torch.tensor(mates))


def _measured(found: Baselines, returns: Tensor) -> dict[str, float]:
    """Metrics of the baselines: what the memory counts, and how much of the squares of the advantages they leave."""
    known = returns.isfinite()
    left, of_task = ((returns - values)[known].square() for values in (found.values, found.of_tasks))
    metrics = {"train/start_memory_share": float(found.remembered.mean())}
    if (total := float(of_task.sum())) > 0:
        metrics["train/start_variance_share"] = float(left.sum()) / total
    of_group = (returns - found.of_mates)[known].square()
    grouped = of_group.isfinite()
    if (total := float(of_group[grouped].sum())) > 0:
        metrics["train/start_variance_to_group"] = float(left[grouped].sum()) / total
    return metrics


def _digest(tasks: Sequence[str]) -> Tensor:
    """A digest of the names or problems of tasks, int64 [4], so that a checkpoint need not hold them."""
    return torch.from_numpy(
        np.frombuffer(hashlib.sha256(json.dumps(list(tasks)).encode("utf-8")).digest(), "<i8").copy()
    )
