"""Advises once in a run how many episodes an iteration should have, by the noise of its gradient; says why not."""

from __future__ import annotations

import math
from collections.abc import Mapping

from embodied import schema
from embodied.learn.ranks.sides import Learner
from embodied.learn.trainer import Trainer
from embodied.parallel.group import Group

AFTER = 5
"""Iterations that are measured before anything is advised."""

LITTLE = 0.5
"""Signal-to-noise below which more episodes are advised."""

MOST = 16
"""Times as many episodes are advised at most."""


class NoiseAdvice:
    """Advises from the metrics of a run, iteration by iteration."""

    def __init__(self, config: schema.Config, processes: Group, learner: Learner) -> None:
        self._config, self._processes, self._learner, self._measured = config, processes, learner, 0

    def take(self, metrics: Mapping[str, float]) -> str:
        """Takes the metrics of an iteration; returns what there is to say, usually nothing."""
        if (signal := metrics.get("train/signal_to_noise")) is None:
            why = self._learner.noise.why_not if isinstance(self._learner, Trainer) else ""
            return why and f"  the noise of the gradient is not measured: {why}"
        self._measured += 1
        return self._advice(signal) if self._measured == AFTER and signal < LITTLE else ""

    def _advice(self, signal: float) -> str:
        episodes = schema.episodes_per_iteration(self._config)
        begin = f"  updates of {episodes} episodes: signal/noise {signal:.2g}"
        if signal * MOST < 1:
            return (
                f"{begin}; {MOST} times as many would not give 1. Easier tasks, a better checkpoint or "
                "env.train.reward_mode=dense give more signal"
            )
        keys = more_episodes(self._config, self._processes, episodes / signal)
        told = " ".join(f"{key}={value}" for key, value in keys.items())
        return f"{begin}; about {episodes / signal:.0f} would give 1: {told}"


def more_episodes(config: schema.Config, processes: Group, episodes: float) -> dict[str, int | str]:
    """Returns keys with which an iteration has ``episodes`` or a few more, in groups that the processes can share; also
    keys whose present values would refuse so many."""
    hosts, learners = processes.of("rollout").size, processes.of("train").size
    shared, group = math.lcm(hosts, learners), config.algorithm.group_size
    keys: dict[str, int | str] = {}
    if config.data.rollout_batch_size is not None:
        keys["data.rollout_batch_size"] = math.ceil(episodes / group / shared) * shared
    else:
        slots = config.env.train.total_num_envs
        step = math.lcm(slots, group * shared) // slots
        keys["algorithm.rollout_epoch"] = math.ceil(episodes / slots / step) * step
    keys |= {"data.drop_last": "false"} if config.data.drop_last else {}
    return keys | ({"actor.channel.queue_size": 0} if config.actor.channel.queue_size else {})
