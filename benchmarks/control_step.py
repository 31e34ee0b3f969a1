"""CPU time of a control step: LIBERO's against that of its bare physics, ManiSkill's against ManiSkill's own code.

    python benchmarks/control_step.py

Each control step of LIBERO is played three times from one state, and the state must be the same to the bit each time:
once to note the torques of its sub-steps, once as the runtime steps it (reward included), once as bare calls of the
physics, and a fourth time by robosuite's own control. The figure is the ratio of the medians over random actions.
Nothing is rendered. ManiSkill's are explained in ``_control_step_maniskill.py``.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from _control_step_maniskill import measure_maniskill
from _measure import judge, machine, save

LIMIT = 1.6  # control step / bare physics


def cpu_ms(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return (time.process_time() - begun) * 1e3


class Torques:
    """A LIBERO control that notes what it tells the motors, one row for each sub-step."""

    def __init__(self, simulator: Any) -> None:
        self._control, self._ctrl = simulator._control, simulator._data.ctrl
        self.noted: list[np.ndarray] = []

    def begin(self, action: np.ndarray) -> None:
        self._control.begin(action)
        self.noted.append(self._ctrl.copy())

    def advance(self, substeps: int, read: int = -1) -> tuple[np.ndarray, np.ndarray]:
        seen = np.empty(0), np.empty(0)
        for substep in range(substeps):
            now = self._control.advance(1, 0 if substep == read else -1)
            seen = now if substep == read else seen
            self.noted.append(self._ctrl.copy())
        return seen


def libero(suite: str, task: int, steps: int) -> dict[str, float]:
    from embodied.envs.libero import LiberoEnv
    from embodied.envs.libero.control import OriginalControl

    from embodied.types import Start

    env = LiberoEnv(suite, task_ids=[task], init_params={"camera_heights": 64, "camera_widths": 64})
    env.prepare()
    env.reset(Start(0, 0, 0))
    simulator = env._current
    import mujoco  # after prepare(), which chooses its renderer

    ours, original = simulator._control, OriginalControl(simulator._domain)
    whole = int(mujoco.mjtState.mjSTATE_INTEGRATION)
    model, data = simulator._model, simulator._data

    def replay(torques: list[np.ndarray]) -> None:
        for row in torques:
            data.ctrl[:] = row
            mujoco.mj_step(model, data)

    costs: dict[str, list[float]] = {"step": [], "robosuite": [], "bare": []}
    actions = np.random.default_rng(0).uniform(-1, 1, (steps, 7)).astype(np.float32)
    for action in actions:
        before = env.get_state()
        simulator._control = torques = Torques(simulator)
        env.step(action)
        after = simulator._physics()
        for name, control in (("step", ours), ("robosuite", original)):
            env.set_state(before)
            simulator._control = control
            costs[name].append(cpu_ms(lambda: env.step(action)))  # noqa: B023
            assert np.array_equal(simulator._physics(), after)
        simulator._control = ours
        kept = env.get_state()
        mujoco.mj_setState(model, data, before["simulator"]["physics"], whole)
        costs["bare"].append(cpu_ms(lambda: replay(torques.noted)))  # noqa: B023
        assert np.array_equal(simulator._physics(), after)
        env.set_state(kept)
    env.close()
    medians = {f"{name}_cpu_ms": median(values) for name, values in costs.items()}
    bare = medians["bare_cpu_ms"]
    return {**medians, "ratio": medians["step_cpu_ms"] / bare, "robosuite_ratio": medians["robosuite_cpu_ms"] / bare}


def measure_libero(steps: int) -> dict[str, Any]:
    """Measures a task of each suite, and returns the section of the results file."""
    cells = {}
    for suite in ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90"):
        cells[suite] = cell = libero(suite, 0, steps)
        print(f"{suite}: {cell['step_cpu_ms']:.2f} ms, bare physics {cell['bare_cpu_ms']:.2f} ms", flush=True)
    ratios = {f"{suite} CPU time of bare physics": cell["ratio"] for suite, cell in cells.items()}
    return {"cells": cells, "bars": judge(ratios, dict.fromkeys(ratios, ("<=", LIMIT)))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="of LIBERO in each suite")
    parser.add_argument("--episodes", type=int, default=10, help="of ManiSkill in each task")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    facts = machine(["mujoco", "robosuite", "numba", "mani_skill", "sapien", "torch", "numpy"])
    found = {"libero": measure_libero(args.steps), "maniskill": measure_maniskill(args.episodes)}
    print(save("control_step", {"arguments": vars(args), "machine": facts, **found}))


if __name__ == "__main__":
    main()
