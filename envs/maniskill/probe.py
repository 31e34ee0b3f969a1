"""Builds a ManiSkill task once without rendering and prints its facts. Runs as a process of its own.

``python -m embodied.envs.maniskill.probe`` reads :class:`SimParams` as JSON and writes :class:`TaskFacts` or an error.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from embodied.errors import EmbodiedError

from .build import make_env
from .facts import BODIES, JOINTS, SimParams, TaskFacts
from .state import body_poses, other_joints, read_state


def describe(params: SimParams) -> TaskFacts:
    """Builds a task, reads its facts, and drops it. Raises what :func:`make_env` raises."""
    import torch
    from mani_skill.sensors.camera import parse_camera_configs
    from mani_skill.utils.registration import REGISTERED_ENVS

    env = make_env(params, render_backend="none", sensors={})
    cameras = {**parse_camera_configs(env._default_sensor_configs), **parse_camera_configs(env.agent._sensor_configs)}
    space = env.single_action_space
    with torch.inference_mode():
        env.reset(seed=0)
        state = {name: values.shape[1] for name, values in read_state(env).items()}
        bodies, joints = len(body_poses(env)), sum(each.shape[1] for each in other_joints(env))
    return TaskFacts(
        max_episode_steps=int(REGISTERED_ENVS[params.id].max_episode_steps or 0),
        control_hz=float(env.control_freq),
        cameras=tuple(cameras),
        action_low=tuple(map(float, space.low)),
        action_high=tuple(map(float, space.high)),
        state=state,
        rebuilds=env.reconfiguration_freq != 0,
        bodies=max(bodies, BODIES),
        joints=max(joints, JOINTS),
    )


def main() -> None:
    answer: dict[str, Any]
    try:
        answer = asdict(describe(SimParams(**json.load(sys.stdin))))
    except EmbodiedError as error:
        answer = {"error": type(error).__name__, "message": error.message, "remedy": error.remedy}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
