"""Plays episodes of LIBERO as ``libero_original.py`` does with the original; also in forks of a process that has built
the tasks.

``python libero_played.py IN OUT``, both pickles. IN: ``suite``, ``size``, ``task``, ``drawn`` (whether the process that
forks has drawn) and ``episodes``, each with the arguments of :func:`playing`. OUT: for each fork its episodes, each in
an env slot of its own, a step of each in turn.
"""

import os
import pickle
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from embodied.envs.libero import LiberoEnv, experts
from embodied.envs.libero.sharing import build_ahead

from embodied.runtime.pool.before_fork import hazards
from embodied.types import Start

CAMERAS = ("agentview", "robot0_eye_in_hand")


def playing(env: LiberoEnv, start: Start, actions: np.ndarray, every: int, expert: bool = False) -> Iterator[dict]:
    """Yields after the reset and after each step what ``libero_original.play`` does of the original's, and the actions.

    Args:
        every: pictures are kept of each so many steps, and of the last.
        expert: until the goal is reached, the expert acts instead.
    """
    seen: dict = {name: [] for name in ("actions", "physics", "moved", "robot", "sensors", "rewards", "success")}
    seen |= {"pictures": {}, "cpu_s": 0.0}
    begun = time.process_time()
    env.reset(start)

    def note(step: int) -> None:
        simulator = env._current
        seen["physics"].append(simulator._physics())
        goal = simulator._robot.controller.goal_pos, simulator._robot.controller.goal_ori
        seen["moved"].append([np.copy(part) for part in (simulator._robot.gripper.current_action, *goal)])
        seen["robot"].append(simulator.robot_state())
        if step % every == 0 or step == len(actions):
            seen["pictures"][step] = images_of(env)
        seen["cpu_s"] += time.process_time() - begun

    note(0)
    scripted = experts.actions(env._slot.scene()) if expert else iter(())
    for step, given in enumerate(actions, start=1):
        yield seen
        begun = time.process_time()
        action = given if any(seen["success"]) else next(scripted, given)
        result = env.step(action)
        seen["actions"].append(action)
        seen["sensors"].append(env._current._data.sensordata.copy())
        seen["rewards"].append(result.reward)
        seen["success"].append(result.success)
        assert result.terminated == result.success
        note(step)
    yield seen


def images_of(env: LiberoEnv) -> np.ndarray:
    out = {name: np.zeros(spec.shape, spec.dtype) for name, spec in env.spec.obs.items()}
    env.observe(out)
    return out["images"]


def make(suite: str, tasks: list[int] | None, size: int) -> LiberoEnv:
    params = {"camera_heights": size, "camera_widths": size, "camera_names": CAMERAS}
    return LiberoEnv(suite, task_ids=tasks, max_cached_simulators=1, init_params=params)


def in_fork(given: dict, target: Path) -> int:
    """Plays all episodes at once in a fork of this process; returns its exit status."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    envs = [make(given["suite"], [given["task"]], given["size"]) for _ in given["episodes"]]
    for env in envs:
        env.prepare()
    going = [playing(env, *episode) for env, episode in zip(envs, given["episodes"], strict=True)]
    played: list[dict] = [{} for _ in going]
    while going.count(None) < len(going):
        for number, episode in enumerate(going):
            if episode is not None and (seen := next(episode, None)) is not None:
                played[number] = seen
            else:
                going[number] = None
    target.write_bytes(pickle.dumps(played))
    os._exit(0)


def main(source: Path, target: Path) -> None:
    given = pickle.loads(source.read_bytes())
    template = make(given["suite"], [given["task"]], given["size"])
    template.preload()
    for _, build in template.builds() if given["drawn"] else models_only(template):
        build()
    assert hazards() == "", hazards()
    places = [target.with_name(f"fork{number}") for number in range(2)]
    assert [in_fork(given, place) for place in places] == [0, 0]
    target.write_bytes(pickle.dumps([pickle.loads(place.read_bytes()) for place in places]))


def models_only(env: LiberoEnv) -> Iterator[tuple]:
    """What is built where a GPU's driver draws."""
    for task in env._tasks:
        yield "", lambda task=task: build_ahead(str(task.bddl_file), env._pictures, draw=False, keep_assets=False)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
