"""Advises once in a run how many episodes an iteration should have, by the noise of its gradient; says why not."""

from __future__ import annotations

import math
from collections.abc import Mapping

from embodied import schema
from embodied.learn.ranks.sides import Learner
from embodied.learn.step.meters.noise.meter import NoiseMeter
from embodied.learn.trainer import Trainer
from embodied.parallel.group import Group

LITTLE = 0.5
"""Signal-to-noise below which more episodes are advised."""

SMALL = 0.15
"""Largest standard error of the signal-to-noise with which anything is advised."""

SURELY_BELOW = 1.0
"""Signal-to-noise below which it must be even if it is two standard errors larger than measured."""

MOST = 16
"""Times as many episodes are advised at most. Where the measured signal asks for more, the fewest that may do are."""


class NoiseAdvice:
    """Advises from the metrics of a run, iteration by iteration."""

    def __init__(self, config: schema.Config, processes: Group, learner: Learner) -> None:
        self._config, self._processes, self._learner = config, processes, learner

    def take(self, metrics: Mapping[str, float]) -> str:
        """Takes the metrics of an iteration; returns what there is to say, usually nothing."""
        meter = self._learner.noise if isinstance(self._learner, Trainer) else self._learner
        if (signal := metrics.get("train/signal_to_noise")) is None:
            why = meter.why_not if isinstance(meter, NoiseMeter) else ""
            return why and f"  the noise of the gradient is not measured: {why}"
        error = metrics.get("train/signal_to_noise_error", math.inf)
        if meter.advised or error > SMALL or signal >= LITTLE or signal + 2 * error >= SURELY_BELOW:
            return ""
        meter.advised = True  # in checkpoints: a run that goes on does not say it again
        return self._advice(signal, max(signal - 2 * error, 0.0), signal + 2 * error)

    def _advice(self, signal: float, low: float, high: float) -> str:
        """Returns the advice; ``low`` and ``high`` are two standard errors from the signal-to-noise."""
        episodes = schema.episodes_per_iteration(self._config)
        begin = f"  updates of {episodes} episodes: signal/noise {signal:.2g} ({low:.2g} to {high:.2g})"
        if high * MOST < 1:
            return (
                f"{begin}; {MOST} times as many would not give 1. Easier tasks, a better checkpoint or "
                "env.train.reward_mode=dense give more signal"
            )
        most = f"{episodes / low:.0f}" if low * MOST > 1 else f"more than {episodes * MOST}"
        wanted = episodes / (signal if signal * MOST >= 1 else high)
        told = " ".join(f"{key}={value}" for key, value in more_episodes(self._config, self._processes, wanted).items())
        return f"{begin}; {episodes / high:.0f} to {most} would give 1. For {wanted:.0f} or a few more: {told}"


def more_episodes(config: schema.Config, processes: Group, episodes: float) -> dict[str, int | str]:
    """Returns keys with which an iteration has ``episodes`` or a few more, in groups that the processes can share; also
    keys whose present values would refuse so many, and the records of an optimizer step: of more steps each would be as
    noisy as now."""
    hosts, learners = processes.of("rollout").size, processes.of("train").size
    shared, group = math.lcm(hosts, learners), config.algorithm.group_size
    keys: dict[str, int | str] = {}
    if config.data.rollout_batch_size is not None:
        count = math.ceil(episodes / group / shared) * shared
        keys["data.rollout_batch_size"], made = count, count * group
    else:
        slots = config.env.train.total_num_envs
        step = math.lcm(slots, group * shared) // slots
        count = math.ceil(episodes / slots / step) * step
        keys["algorithm.rollout_epoch"], made = count, count * slots
    records = config.actor.global_batch_size * made
    keys["actor.global_batch_size"] = -(-records // schema.episodes_per_iteration(config))
    keys |= {"data.drop_last": "false"} if config.data.drop_last else {}
    return keys | ({"actor.channel.queue_size": 0} if config.actor.channel.queue_size else {})
