"""Plays episodes of a task by LIBERO's own ``OffScreenRenderEnv`` as OpenVLA's evaluation does; a process of its own.

``python libero_original.py IN OUT``, both pickles. IN: ``bddl``, ``size``, ``wait_steps`` and ``episodes``, each with
``init_state``, ``actions`` [T, 7] and ``look_at``, the steps whose pictures are kept (0: before the first action). OUT:
for each episode what :func:`play` returns.
"""

import math
import os
import pickle
import sys
import time
from pathlib import Path

import numpy as np

ROBOT = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
PICTURES = ("agentview_image", "robot0_eye_in_hand_image")


def main(source: str, target: str) -> None:
    given = pickle.loads(Path(source).read_bytes())
    from libero.libero.envs import OffScreenRenderEnv  # asks nothing: LIBERO_CONFIG_PATH is set by the caller

    size, eyes = given["size"], Eyes()
    env = OffScreenRenderEnv(bddl_file_name=given["bddl"], camera_heights=size, camera_widths=size)
    built = len(env.env.object_property_initializers)
    played = []
    for episode in given["episodes"]:
        # a reset adds them once more, so that later ones would draw other places: here each is the first
        del env.env.object_property_initializers[built:]
        played.append(play(env, eyes, given["wait_steps"], **episode))
    Path(target).write_bytes(pickle.dumps(played))


class Eyes:
    """Stands for robosuite's ``MjSim.render`` and draws while it is open: a picture costs as much as ten steps. What
    the sensors else do, and when, stays."""

    open = False

    def __init__(self) -> None:
        from robosuite.utils.binding_utils import MjSim

        draw = MjSim.render
        MjSim.render = lambda sim, width, height, **asked: (
            draw(sim, width, height, **asked) if self.open else np.zeros((height, width, 3), np.uint8)
        )


def play(env, eyes: Eyes, wait_steps: int, init_state: np.ndarray, actions: np.ndarray, look_at: list[int]) -> dict:
    """Returns, of the settled state and after each step: ``physics`` (all that MuJoCo integrates), ``moved`` (what
    gripper and controller remember) and ``robot``; of each step ``sensors`` (MuJoCo's), ``rewards``, ``done`` and
    ``progress``; ``pictures`` by step; ``cpu_s``, the episode's seconds of CPU time, reset and settling included."""
    begun = time.process_time()
    env.seed(0)
    env.reset()
    obs = env.set_init_state(init_state)
    seen: dict = {name: [] for name in ("physics", "moved", "robot", "sensors", "rewards", "done", "progress")}
    seen["pictures"] = {}

    def note(step: int) -> None:
        robot = env.env.robots[0]
        seen["physics"].append(physics(env.env.sim))
        goal = robot.controller.goal_pos, robot.controller.goal_ori
        seen["moved"].append([np.copy(part) for part in (robot.gripper.current_action, *goal)])
        seen["robot"].append([obs[name] for name in ROBOT])
        if step in look_at:
            seen["pictures"][step] = [obs[name] for name in PICTURES]

    for step, action in enumerate([*[[0, 0, 0, 0, 0, 0, -1]] * wait_steps, *actions], start=1 - wait_steps):
        eyes.open = step in look_at
        obs, reward, done, _ = env.step(action)
        if step >= 0:
            note(step)
        if step > 0:
            seen["sensors"].append(env.env.sim.data.sensordata.copy())
            seen["rewards"].append(reward)
            seen["done"].append(bool(done))
            seen["progress"].append(progress(env.env))
    return {**seen, "cpu_s": time.process_time() - begun}


def physics(sim) -> np.ndarray:
    """Time, positions, velocities, activations, controls, the solver's warm start."""
    import mujoco

    model, data, everything = sim.model._model, sim.data._data, mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(model, everything))
    mujoco.mj_getState(model, data, state, everything)
    return state


def progress(domain) -> float:
    """What ``LiberoEnv`` defines as Φ, by LIBERO's own predicates and places; 1 when all goals are reached."""
    goals = domain.parsed_problem["goal_state"]
    open_goals = [goal for goal in goals if not domain._eval_predicate(goal)]
    best = max((nearness(domain, goal) for goal in open_goals), default=0.0)
    return (len(goals) - len(open_goals) + 0.5 * best) / len(goals)


def nearness(domain, goal: list[str]) -> float:
    places = [np.array(domain.object_states_dict[name].get_geom_state()["pos"]) for name in goal[1:]]
    gripper = domain.sim.data._data.site_xpos[domain.robots[0].eef_site_id]
    pairs = zip([gripper, *places[:-1]], places, strict=True)
    return float(np.mean([1.0 - math.tanh(5.0 * float(np.linalg.norm(a - b))) for a, b in pairs]))


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # robosuite's GL contexts complain when the interpreter ends
