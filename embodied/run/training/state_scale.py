"""Scales the state that a policy reads by what it sees in a training's first episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from embodied.data.statistics import spread
from embodied.parallel.barrier import Interruptible
from embodied.protocols import Policy, ScalesState
from embodied.run.build.given import ConfiguredEnv
from embodied.run.training.collector import Collector
from embodied.schema import Config

EPISODES = 64
"""Episodes that are looked at, at most those of an iteration."""


def scale_state(
    config: Config, side: ConfiguredEnv, policies: Iterable[Policy], collector: Collector, stop: Interruptible,
    say: Callable[[str], None],
) -> None:  # fmt: skip
    """Gives the policies that want one a scale of the state, before anything is learnt. A checkpoint has learnt with
    the scale that it has, and episodes of a robot are too dear to look at; then nothing happens.

    Args:
        policies: the one that learns, and the one that acts.

    Raises:
        Stopped: a signal came.
    """
    wanting = [one for one in {id(one): one for one in policies}.values() if isinstance(one, ScalesState)]
    wanting = [one for one in wanting if one.needs_scale]
    if not wanting or config.runner.ckpt_path is not None or not side.spec.retry_safe:
        return
    states = collector.look(EPISODES, stop)
    for policy in wanting:
        policy.use_statistics("first episodes", {"proprio": spread(states)})
    say(
        f"The policy reads the state as its 1 % and 99 % quantiles scale it in {len(states)} observations of the first "
        "episodes, from which nothing is learnt (actor.model.normalize_state=false: as it is)."
    )
