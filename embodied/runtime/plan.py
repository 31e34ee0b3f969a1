"""The plan of episodes: a pure function of seed and iteration. Which worker runs an episode changes no number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from embodied.algorithms.start_sampling import chances, systematic, weights
from embodied.errors import ConfigError
from embodied.perturbations import Condition, Perturbed
from embodied.random import Stream, generator
from embodied.types import EnvSpec, Episode, Noise, Start

ROUND_IDS = 1 << 40  # distance between the ids of two sampling rounds: more episodes than a run has
ROUND_SEEDS = 2**25  # distance between the seeds of two sampling rounds: a refill has scenes of its own
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
    shuffle: bool = True,
    drop_last: bool = False,
    held_out: int = 0,
    spread: np.ndarray | None = None,
) -> list[Episode]:
    """Episodes of one training iteration, a group's episodes next to each other.

    Starts are drawn without replacement: each (task, initial state) pair comes once before any comes twice. ``seed``
    shuffles their order anew each time all have been used. The result depends on the arguments alone, so a resumed run
    goes on with the starts that would have come.

    Args:
        episodes: how many; a multiple of ``group_size``.
        shared_start: the episodes of a group share one start (what group-relative advantages need).
        env_seed: added to the seed of each start.
        sampling_round: above 0 for refills (``algorithm.dynamic_sampling``). Refills have their own order of starts and
            their own ids, so their number changes nothing of later iterations.
        shuffle: False = in the order of tasks and initial states, each time.
        drop_last: an iteration has no starts of two passes through all: those at the end of a pass that do not fill an
            iteration are left out.
        held_out: how many initial states of each task, the last ones, are left to evaluations. A task with one state
            keeps it: its starts differ by their seeds.
        spread: how much returns of each start may differ, float [N] by task and state; starts are then drawn by it
            (``data.start_sampling``), and episodes have weights. None = without replacement, as above.

    Raises:
        ConfigError: ``drop_last`` leaves out all starts.

    >>> from embodied.types import DiscreteAction
    >>> spec = EnvSpec({}, (), DiscreteAction(2), ("push", "pull"), (3, 3), 10, 20.0)
    >>> plan = train_plan(spec, seed=0, iteration=0, episodes=4, group_size=2)
    >>> [(e.episode_id, e.group_id, e.start.task_id) for e in plan]
    [(0, 0, 1), (1, 0, 1), (2, 1, 1), (3, 1, 1)]
    """
    num_starts = episodes // (per_start := group_size if shared_start else 1)
    states, counts = states_of_training(spec, held_out), np.ones(num_starts)
    order = StartOrder(seed, sampling_round, shuffle, num_starts if drop_last else 1)
    if spread is None:
        taken = range(iteration * num_starts, (iteration + 1) * num_starts)
        pairs = [order.pair(index, sum(states)) for index in taken]
    else:
        draws = generator(seed, Stream.INFORMATIVE_STARTS, iteration, sampling_round)
        pairs, counts = _informative(spec, states, spread, num_starts, draws)
    starts = _starts(states, pairs, env_seed + sampling_round * ROUND_SEEDS + iteration * num_starts)
    first_id = sampling_round * ROUND_IDS
    first_group = first_id + iteration * (episodes // group_size)
    return [
        Episode(first_id + iteration * episodes + i, first_group + i // group_size, starts[s], weight=float(counts[s]))
        for i, s in ((i, i // per_start) for i in range(episodes))
    ]


@dataclass(frozen=True)
class StartOrder:
    """The order in which trainings go through their starts: shuffled or in sequence, pass after pass.

    Args:
        multiple: starts of a pass through all are a multiple of it; the rest is left out.
    """

    seed: int
    sampling_round: int
    shuffle: bool = True
    multiple: int = 1

    def used(self, pairs: int) -> int:
        """Returns how many of ``pairs`` starts a pass uses. Raises :class:`ConfigError` if none."""
        if not (used := pairs - pairs % self.multiple):
            raise ConfigError(
                f"data.drop_last leaves out all {pairs} starts: an iteration takes {self.multiple}",
                "set data.drop_last=false, or ask fewer problems an iteration (data.rollout_batch_size)",
            )
        return used

    def pair(self, index: int, pairs: int) -> int:
        """Returns the start, out of ``pairs``, at place ``index`` of the endless sequence."""
        epoch, position = divmod(index, self.used(pairs))
        return int(_shuffled(pairs, self.seed, epoch, self.sampling_round)[position]) if self.shuffle else position


def states_of_training(spec: EnvSpec, held_out: int) -> list[int]:
    """Counts the initial states of each task that training starts from: all but the last ``held_out``."""
    return [states if states == 1 else states - held_out for states in spec.num_init_states]


def tasks_and_starts(spec: EnvSpec, held_out: int, called: str = "starts") -> str:
    """Formats the number of tasks, and of initial states that training starts from; where each task has one state, the
    seed of an episode draws its start.

    Args:
        called: plural of what displays call a start.
    """
    states = states_of_training(spec, held_out)
    starts = f"{called} drawn from the seed" if set(states) == {1} else f"{sum(states)} {called}"
    return f"{len(states)} ({starts})"


def _starts(states: Sequence[int], pairs: Sequence[int], first_seed: int) -> list[Start]:
    ends = np.cumsum(states)  # end of each task in the list of all pairs (task, state)
    starts = []
    for index, pair in enumerate(pairs):
        task = int(np.searchsorted(ends, pair, side="right"))
        starts.append(Start(task, pair - int(ends[task]) + states[task], (first_seed + index) % EVAL_SEEDS))
    return starts


def _informative(
    spec: EnvSpec, states: Sequence[int], spread: np.ndarray, count: int, draws: np.random.Generator
) -> tuple[list[int], np.ndarray]:  # fmt: skip
    """Draws ``count`` of the pairs (task, state) that training starts from; also returns their weights."""
    held_out = np.asarray(spec.num_init_states) - states
    trained = np.arange(sum(states)) + np.repeat(held_out.cumsum() - held_out, states)  # their places among all states
    chance = chances(spread[trained])
    drawn = systematic(chance, count, draws)
    return drawn.tolist(), weights(chance)[drawn]


@lru_cache(maxsize=4)
def _shuffled(count: int, seed: int, epoch: int, sampling_round: int) -> np.ndarray:
    """A shuffled order, int64 [count]. Cached: a benchmark of a million starts is shuffled once an epoch, not once a
    start."""
    return generator(seed, Stream.TRAIN_STARTS, epoch, sampling_round).permutation(count)


def eval_plan(
    spec: EnvSpec, *, episodes_per_task: int, env_seed: int = 0, fixed_states: bool = True, seed: int = 0,
    group_size: int = 1, held_out: int = 0, once: bool = False,
) -> list[Episode]:  # fmt: skip
    """Plan ``episodes_per_task`` starts of every task, and ``group_size`` episodes of each. They start from the task's
    first initial states (again from the first if there are fewer; with ``once`` no more than there are), or with
    ``fixed_states=False`` from states that ``seed`` draws. Of a task with ``held_out`` states, these alone count as its
    states. Their seeds begin at :data:`EVAL_SEEDS`."""
    plan: list[Episode] = []
    for task, states in enumerate(spec.num_init_states):
        count = held_out if held_out and states > 1 else states
        drawn = generator(seed, Stream.EVAL_STARTS, task).integers(count, size=episodes_per_task)
        for k in range(min(episodes_per_task, count) if once else episodes_per_task):
            state = k % count if fixed_states else int(drawn[k])
            start = Start(task, states - count + state, EVAL_SEEDS + env_seed + k)
            plan += [Episode(len(plan) + number, task, start) for number in range(group_size)]
    return plan


def under_conditions(plan: Sequence[Episode], conditions: Sequence[Condition]) -> list[Episode]:
    """Extends the plan of an evaluation: all of its episodes once more under each condition. The episodes of the plan
    stay as they are, and what perturbs a start is drawn from the same numbers under each condition."""
    found = list(plan)
    for number, condition in enumerate(conditions, start=1):
        for position, episode in enumerate(plan):
            perturbed = Perturbed(condition, episode.episode_id)
            found.append(replace(episode, episode_id=number * len(plan) + position, perturbed=perturbed))
    return found


def randomised(
    plan: Sequence[Episode], conditions: Sequence[Condition], unperturbed: float, seed: int
) -> list[Episode]:
    """Draws a perturbation for each group of a training plan: its episodes share it and what it draws, because their
    returns are compared. Which one is a function of ``seed`` and the group's number.

    Args:
        unperturbed: share of the groups that stay as they are.
    """
    found = []
    for episode in plan:
        stays, which = generator(seed, Stream.CONDITIONS, episode.group_id).random(2)
        if stays >= unperturbed:
            condition = conditions[int(which * len(conditions))]
            episode = replace(episode, perturbed=Perturbed(condition, episode.group_id))
        found.append(episode)
    return found


def with_videos(plan: Sequence[Episode], folder: Path, max_videos: int) -> list[Episode]:
    """Gives up to ``max_videos`` episodes of a plan file names for videos, spread evenly over it (so over
    the tasks)."""
    chosen = {int(i) for i in np.linspace(0, len(plan) - 1, min(max_videos, len(plan))).round()}
    return [replace(e, video=str(folder / video_name(e))) if i in chosen else e for i, e in enumerate(plan)]


def video_name(episode: Episode) -> str:
    """The name of an episode's video, with the condition of one that is perturbed. A condition's words may be the
    user's: what a file's name had better not have becomes ``_``."""
    start, under = episode.start, ""
    if episode.perturbed is not None:
        condition = episode.perturbed.condition
        under = "_" + re.sub(r"[^A-Za-z0-9._-]", "_", f"{condition.kind}-{condition.strength}")[:80]
    return f"task{start.task_id:02d}_start{start.init_state_id:02d}_episode{episode.episode_id:05d}{under}.mp4"


def noise(seed: int, stream: Stream, episode_id: int, t: int, declared: Noise) -> np.ndarray:
    """Draws the noise of one decision: float32 [*declared.shape], a function of its arguments only."""
    return declared.draw(generator(seed, stream, t, episode_id))
