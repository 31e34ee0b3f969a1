"""Sketches of groups' gradients where a pass has all denoising steps of its records."""

from __future__ import annotations

import pytest
from embodied.models.flow_vla import build_policy
from sketched import check_sketches
from test_flow_policy import SMALL, _recorded

from embodied.learn.step.meters.noise.sketch import GradientSketch
from embodied.types import EnvSpec


@pytest.mark.parametrize("layout", ["smolvla", "pi0"])
def test_groups_are_kept_apart(made_up_env: EnvSpec, layout: str) -> None:
    keys = {**SMALL, "noise_steps": "all", "gradient_checkpointing": True, "train_expert_only": False}
    policy = build_policy(layout=layout, **keys)
    policy.bind(made_up_env)
    check_sketches(policy, _recorded(policy, 7), set(GradientSketch(policy, 0).layers))
