"""Plays ManiSkill's own env beside this project's, and asks that both give the same numbers to the bit."""

import numpy as np
from embodied.envs.maniskill.cameras import Cameras
from embodied.envs.maniskill.rendering import check_vulkan
from embodied.envs.maniskill.state import read_state

from embodied.types import Start, StepResult

SIZE = {"camera_heights": 128, "camera_widths": 160}


def original(task: str, mode: str, seed: int, given: np.ndarray, views: dict | None = None, **more) -> dict[str, list]:
    """An episode through ``gym.make``, observed at every step."""
    import gymnasium

    sensors = Cameras.of({**SIZE, "camera_views": views}).sensor_configs("minimal")
    env = gymnasium.make(
        task, obs_mode="rgb", reward_mode="normalized_dense", control_mode=mode, sim_backend="physx_cpu",
        render_backend=check_vulkan().name, sensor_configs=sensors, **more,
    )  # fmt: skip
    seen, _ = env.reset(seed=seed)
    trace: dict[str, list] = {"obs": [seen], "physics": [], "results": [], "info": []}
    for action in given:
        seen, reward, terminated, _, info = env.step(action)
        trace["obs"].append(seen)
        trace["physics"].append(env.unwrapped.get_state()[0].numpy().tobytes())
        trace["results"].append((float(reward), bool(terminated), bool(info["success"])))
        trace["info"].append({name: value[0].numpy() for name, value in info.items()})
    env.close()
    return trace


def compare(env, look, task: str, mode: str, seed: int, given: np.ndarray, **more) -> list[dict]:
    """An episode of ours and of ManiSkill's. Returns the info of each step, where it is computed here."""
    theirs = original(task, mode, seed, given, **more)
    env.reset(Start(0, 0, seed))
    seen, infos = [look(env)], []
    for index, action in enumerate(given):
        result = env.step(action)
        assert (result.reward, result.terminated, result.success) == theirs["results"][index], index
        assert env._sim.physics().tobytes() == theirs["physics"][index], index
        if env._sim._fast._task is not None:
            infos.append(env._sim._fast._task.evaluate())
            assert all(np.array_equal(infos[-1][name], theirs["info"][index][name]) for name in infos[-1]), index
        if index % 4 == 3:
            seen.append(look(env))
    for index, ours in zip(range(0, len(given) + 1, 4), seen, strict=True):
        obs = theirs["obs"][index]
        for camera, name in enumerate(env.spec.cameras):
            assert np.array_equal(ours["images"][camera], obs["sensor_data"][name]["rgb"][0].numpy()), (index, name)
        both = {**obs["agent"], **obs["extra"]}
        expected = np.concatenate([both[name][0].numpy().reshape(-1) for name in env._state])
        assert np.array_equal(ours["state"], expected.astype(np.float32)), index
    return infos


def check_judged_alike(env, fast) -> dict:
    """The present state of ManiSkill's env: info, reward and what is observed, by its own code and by ``FastStep``."""
    import torch

    with torch.inference_mode():
        info = env.get_info()
        reward = float(env.get_reward(obs={}, action=None, info=info))
        ours = fast._task.evaluate()
        assert {**ours, "elapsed_steps": None}.keys() == info.keys()
        for name, value in ours.items():
            assert np.array_equal(value, info[name][0].numpy()), name
        assert fast.result({}) == StepResult(reward, ours["success"], ours["success"])
        everything = {name: 1.5 for name, value in info.items() if value.numel() == 1}
        assert fast.result(everything).reward == sum(1.5 * float(info[name]) for name in everything)
        seen = read_state(env)
    for name in seen:
        assert np.array_equal(fast.state([name]), seen[name].astype(np.float32)), name
    return ours
