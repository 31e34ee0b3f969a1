"""Compares learning rate schedules when a run is resumed with another ``runner.max_epochs``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embodied.learn.step.optimizer import RateSchedule
from embodied.schema import Config


def rescheduled(earlier: Mapping[str, Any] | None, config: Config, iteration: int) -> str | None:
    """Returns a warning if the schedule refers to ``runner.max_epochs`` and changes from here on, else None.

    Args:
        earlier: the configuration with which the run went on so far; None = it is not known.
        iteration: iterations that are done.
    """
    before, now = (earlier or {}).get("runner", {}).get("max_epochs"), config.runner.max_epochs
    if before is None or before == now or iteration >= now:
        return None
    optim, keys = config.actor.optim, config.actor.lr_sched
    old, new = RateSchedule(optim, keys, before), RateSchedule(optim, keys, now)
    if new.same_from(iteration, old):
        return None
    were, are = (optim.lr * schedule.factor(iteration) for schedule in (old, new))
    again = " It is in its warm-up again." if old.warmup <= iteration < new.warmup else ""
    return (
        f"runner.max_epochs was {before} and is {now}, and the schedule of the learning rate (actor.lr_sched) refers "
        f"to it: it spans {now} iterations from here on. After iteration {iteration} the rate of the policy is "
        f"{are:.3g}; with {before} iterations it was {were:.3g}.{again} The iterations that are done had other rates, "
        f"so this is not the run that {now} iterations from the start would have been. For that, start a new run "
        "(runner.experiment_name). With lr_decay_iters and lr_warmup_iters no schedule depends on max_epochs"
    )
