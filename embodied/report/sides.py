"""How the episodes of training and of evaluations differ: their length, how actions are drawn, what they pay."""

from __future__ import annotations

from embodied.observe.reach import actions
from embodied.report.reading import Run

SIDES = {"rollout": ("train", "sampling_params"), "eval": ("eval", "val_sampling_params")}
"""Beginning of a metric → its side of the env, and the keys that say how its actions are drawn."""


def side_of(metric: str) -> str:
    """Returns ``rollout`` or ``eval``, whose episodes a metric is of; empty for any other."""
    begins = metric.partition("/")[0]
    return begins if begins in SIDES else ""


def drawn(run: Run, side: str) -> str:
    """``sampled`` or ``greedy``; empty if that is not known."""
    if side == "eval" and run.last is not None and run.last.drawn:
        return run.last.drawn
    sampled = run.setting(f"algorithm.{SIDES[side][1]}.do_sample")
    return "" if sampled is None else actions(sampled is True)


def cut(run: Run, side: str) -> str:
    """Says after how many control steps episodes end, where that is not the same for training and evaluations."""
    both = [run.setting(f"env.{env}.max_episode_steps") for env, _ in SIDES.values()]
    own = run.setting(f"env.{SIDES[side][0]}.max_episode_steps")
    return f"in {own} {'turns' if run.of_texts else 'steps'}" if own is not None and both[0] != both[1] else ""


def pays(run: Run, side: str) -> str:
    """Says what a return of a side counts. Two that differ in it belong on no common axis."""
    key = f"env.{SIDES[side][0]}."
    mode, coefficient = run.setting(f"{key}reward_mode"), run.setting(f"{key}reward_coef")
    mode = "sparse" if mode == "own_successes" else mode  # what it pays besides stands in no return
    if mode is None:
        return f"unknown rewards of env.{SIDES[side][0]}"
    judged = side == "rollout" and run.setting("reward.use_reward_model")
    parts = [
        f"changes of {mode} rewards" if run.setting(f"{key}use_rel_reward") else f"{mode} rewards",
        f"× {coefficient:g}" if coefficient not in (None, 1) else "",
        "and a reward model" if judged else "", cut(run, side),
    ]  # fmt: skip
    return " ".join(filter(None, parts))
