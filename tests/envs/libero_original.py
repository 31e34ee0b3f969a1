"""Plays LIBERO's own ``OffScreenRenderEnv`` as OpenVLA's evaluation does; run as a process of its own.

``python libero_original.py IN.npz OUT.npz``: IN holds bddl, init_state, wait_steps, actions [T, 7], look_at [N], size.
"""

import os
import sys

import numpy as np


def main(source: str, target: str) -> None:
    given = np.load(source)
    from libero.libero.envs import OffScreenRenderEnv  # asks nothing: LIBERO_CONFIG_PATH is set by the caller

    size = int(given["size"])
    env = OffScreenRenderEnv(bddl_file_name=str(given["bddl"]), camera_heights=size, camera_widths=size)
    env.seed(0)
    env.reset()
    obs = env.set_init_state(given["init_state"])
    for _ in range(int(given["wait_steps"])):
        obs, *_ = env.step([0, 0, 0, 0, 0, 0, -1])
    states, rewards, seen = [env.get_sim_state()], [], [obs]
    for action in given["actions"]:
        obs, reward, _, _ = env.step(action)
        states.append(env.get_sim_state())
        rewards.append(reward)
        seen.append(obs)
    seen = [seen[i] for i in given["look_at"]]
    names = ("agentview_image", "robot0_eye_in_hand_image", "robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
    np.savez(target, states=states, rewards=rewards, **{name: np.stack([obs[name] for obs in seen]) for name in names})


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # robosuite's GL contexts complain when the interpreter ends
