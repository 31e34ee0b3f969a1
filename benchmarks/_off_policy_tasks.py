"""Tasks of ``off_policy.py`` that need more than an id; both sides make them by these functions."""

from __future__ import annotations

from typing import Any


def pull_cube(render_mode: str | None = None) -> Any:
    """Makes ManiSkill's PullCube-v1 from state: 35 numbers, the dense reward of each step (1 = best), 50 steps."""
    import gymnasium
    import mani_skill.envs  # noqa: F401 (registers the task)
    from mani_skill.utils.wrappers import CPUGymWrapper

    made = gymnasium.make(
        "PullCube-v1", obs_mode="state", control_mode="pd_ee_delta_pos", reward_mode="normalized_dense",
        sim_backend="cpu", render_backend="none", render_mode=render_mode,
    )  # fmt: skip
    return CPUGymWrapper(made, ignore_terminations=True, record_metrics=False)
