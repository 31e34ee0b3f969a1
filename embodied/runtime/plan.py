"""The plan of episodes: a pure function of seed and iteration. Which worker runs an episode changes no number."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from embodied.random import Stream, generator
from embodied.types import EnvSpec, Episode, Noise, Start

ROUND_IDS = 1 << 40  # between the ids of two sampling rounds: more episodes than a run has
ROUND_SEEDS = 2**25  # between the seeds of two sampling rounds: a refill has scenes of its own
EVAL_SEEDS = 2**30  # seeds of evaluation starts begin here: training draws no scene from them


def train_plan(
    spec: EnvSpec,
    *,
    seed: int,
    iteration: int,
    episodes: int,
    group_size: int,
    shared_start: bool = True,
    env_seed: int = 0,
    sampling_round: int = 0,
) -> list[Episode]:
    """Episodes of one training iteration, a group's episodes next to each other.

    Starts are drawn without replacement: each (task, initial state) pair comes once before any comes twice. ``seed``
    shuffles their order anew each time all have been used.

    Args:
        episodes: how many; a multiple of ``group_size``.
        shared_start: the episodes of a group share one start (what group-relative advantages need).
        env_seed: added to the seed of each start.
        sampling_round: above 0 for refills (``algorithm.dynamic_sampling``). Refills have their own order of starts and
            their own ids, so their number changes nothing of later iterations.

    >>> from embodied.types import DiscreteAction
    >>> spec = EnvSpec({}, (), DiscreteAction(2), ("push", "pull"), (3, 3), 10, 20.0)
    >>> plan = train_plan(spec, seed=0, iteration=0, episodes=4, group_size=2)
    >>> [(e.episode_id, e.group_id, e.start.task_id) for e in plan]
    [(0, 0, 1), (1, 0, 1), (2, 1, 1), (3, 1, 1)]
    """
    per_start = group_size if shared_start else 1
    num_starts = episodes // per_start
    starts = _starts(spec, seed, iteration * num_starts, num_starts, env_seed, sampling_round)
    first_id = sampling_round * ROUND_IDS
    first_group = first_id + iteration * (episodes // group_size)
    return [
        Episode(first_id + iteration * episodes + i, first_group + i // group_size, starts[i // per_start])
        for i in range(episodes)
    ]


def _starts(
    spec: EnvSpec, seed: int, first: int, count: int, env_seed: int, sampling_round: int
) -> list[Start]:  # fmt: skip
    ends = np.cumsum(spec.num_init_states)  # of the tasks, in the list of all pairs
    pairs, starts = int(ends[-1]), []
    for index in range(first, first + count):
        epoch, position = divmod(index, pairs)
        pair = int(_shuffled(pairs, seed, epoch, sampling_round)[position])
        task = int(np.searchsorted(ends, pair, side="right"))
        state = pair - int(ends[task]) + spec.num_init_states[task]
        starts.append(Start(task, state, (env_seed + index + sampling_round * ROUND_SEEDS) % EVAL_SEEDS))
    return starts


@lru_cache(maxsize=4)
def _shuffled(count: int, seed: int, epoch: int, sampling_round: int) -> np.ndarray:
    """A shuffled order, int64 [count]. Cached: a benchmark of a million starts is shuffled once an epoch, not once a
    start."""
    return generator(seed, Stream.TRAIN_STARTS, epoch, sampling_round).permutation(count)


def eval_plan(
    spec: EnvSpec, *, episodes_per_task: int, env_seed: int = 0, fixed_states: bool = True, seed: int = 0,
    group_size: int = 1,
) -> list[Episode]:  # fmt: skip
    """Plan ``episodes_per_task`` starts of every task, and ``group_size`` episodes of each. They start from the task's
    first initial states (again from the first if there are fewer), or with ``fixed_states=False`` from states that
    ``seed`` draws. Their seeds begin at :data:`EVAL_SEEDS`."""
    plan: list[Episode] = []
    for task, states in enumerate(spec.num_init_states):
        drawn = generator(seed, Stream.EVAL_STARTS, task).integers(states, size=episodes_per_task)
        for k in range(episodes_per_task):
            state = k % states if fixed_states else int(drawn[k])
            start = Start(task, state, EVAL_SEEDS + env_seed + k)
            plan += [Episode(len(plan) + number, task, start) for number in range(group_size)]
    return plan


def with_videos(plan: Sequence[Episode], folder: Path, max_videos: int) -> list[Episode]:
    """The plan with file names on up to ``max_videos`` episodes, spread evenly over it (so over the tasks)."""
    chosen = {int(i) for i in np.linspace(0, len(plan) - 1, min(max_videos, len(plan))).round()}
    return [
        Episode(e.episode_id, e.group_id, e.start, str(folder / video_name(e))) if i in chosen else e
        for i, e in enumerate(plan)
    ]


def video_name(episode: Episode) -> str:
    start = episode.start
    return f"task{start.task_id:02d}_start{start.init_state_id:02d}_episode{episode.episode_id:05d}.mp4"


def noise(seed: int, stream: Stream, episode_id: int, t: int, declared: Noise) -> np.ndarray:
    """The noise that one decision consumes: float32 [*declared.shape], a function of its arguments only."""
    drawn = generator(seed, stream, t, episode_id)
    if declared.kind == "normal":
        return drawn.standard_normal(declared.shape, dtype=np.float32)
    return drawn.random(declared.shape, dtype=np.float32)
