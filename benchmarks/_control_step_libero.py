"""CPU time of LIBERO's control step, settling and reset, against bare physics and against the original.

Each control step is played three times from one state, and the state must be the same to the bit each time: as the
runtime steps it (reward included), by robosuite's own control, and as bare calls of the physics with the torques of its
sub-steps, which a play before these noted. The figure is the ratio of the medians over random actions.

Settling is what a reset does with an initial state that it meets for the first time: it sets it and waits ten control
steps. It is measured against bare calls of the physics for the same steps. A reset to an initial state that was met
before, and the original's ``reset``, ``set_init_state`` and ten steps, stand beside it. Nothing is rendered, by the
original neither: its GL context, its textures and six pictures a reset would cost seconds more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
from _measure import judge
from embodied.envs.libero import LiberoEnv
from embodied.envs.libero.control import OriginalControl
from embodied.envs.libero.simulator import WAIT_ACTION

from embodied.types import Start

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")
LIMIT = 1.6  # control step / bare physics
WAIT_STEPS = 10
Costs = dict[str, list[float]]  # CPU-ms by what was done


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


def torques_of(simulator: Any, work: Callable[[], object]) -> list[np.ndarray]:
    """Does the work, which steps, and returns the torques of its sub-steps."""
    ours = simulator._control
    simulator._control = torques = Torques(simulator)
    work()
    simulator._control = ours
    return torques.noted


def bare_ms(simulator: Any, physics: np.ndarray, torques: list[np.ndarray], after: np.ndarray) -> float:
    """CPU-ms of bare calls of the physics from one state to another, and nothing else. Leaves the latter."""
    import mujoco  # after prepare(), which chooses its renderer

    model, data = simulator._model, simulator._data

    def replay() -> None:
        for row in torques:
            data.ctrl[:] = row
            mujoco.mj_step(model, data)

    mujoco.mj_setState(model, data, physics, int(mujoco.mjtState.mjSTATE_INTEGRATION))
    taken = cpu_ms(replay)
    assert np.array_equal(simulator._physics(), after)
    return taken


def steps_of(env: LiberoEnv, steps: int) -> Costs:
    env.reset(Start(0, 0, 0))
    simulator = env._current
    ours, original = simulator._control, OriginalControl(simulator._domain)
    costs: Costs = {"step": [], "robosuite": [], "bare": []}
    for action in np.random.default_rng(0).uniform(-1, 1, (steps, 7)).astype(np.float32):
        before = env.get_state()
        torques = torques_of(simulator, lambda: env.step(action))  # noqa: B023
        after = simulator._physics()
        for name, control in (("step", ours), ("robosuite", original)):
            env.set_state(before)
            simulator._control = control
            costs[name].append(cpu_ms(lambda: env.step(action)))  # noqa: B023
            assert np.array_equal(simulator._physics(), after)
        simulator._control = ours
        kept = env.get_state()
        costs["bare"].append(bare_ms(simulator, before["simulator"]["physics"], torques, after))
        env.set_state(kept)
    return costs


def resets_of(env: LiberoEnv, resets: int) -> Costs:
    """Resets to different initial states of the task that was built."""
    original = original_of(env)
    simulator = env._current
    costs: Costs = {"reset_first": [], "settling_bare": [], "reset_again": [], "original_reset": []}
    for init in range(1, resets + 1):
        start, init_state = Start(0, init, 0), env._init_states[0][init]

        def settle() -> None:
            for _ in range(WAIT_STEPS):
                simulator.step(WAIT_ACTION)

        simulator.set_state(simulator._after_reset)
        simulator._place(init_state)
        placed = simulator._physics()
        torques = torques_of(simulator, settle)
        after = simulator._physics()
        costs["settling_bare"].append(bare_ms(simulator, placed, torques, after))
        simulator._settled.clear()
        for name in ("reset_first", "reset_again"):
            costs[name].append(cpu_ms(lambda: env.reset(start)))  # noqa: B023
            assert np.array_equal(simulator._physics(), after)

        def reset_original() -> None:
            original.reset()
            original.set_init_state(init_state)  # noqa: B023
            for _ in range(WAIT_STEPS):
                original.step(WAIT_ACTION)

        costs["original_reset"].append(cpu_ms(reset_original))
    return costs


def original_of(env: LiberoEnv) -> Any:
    from libero.libero.envs.env_wrapper import ControlEnv

    bddl = str(env._tasks[0].bddl_file)
    original = ControlEnv(bddl_file_name=bddl, use_camera_obs=False, has_offscreen_renderer=False)
    original.seed(0)
    return original


def measure_task(suite: str, task: int, steps: int, resets: int) -> dict[str, float]:
    env = LiberoEnv(suite, task_ids=[task], wait_steps=WAIT_STEPS)
    env.prepare()
    costs = steps_of(env, steps) | resets_of(env, resets)
    env.close()
    medians = {f"{name}_cpu_ms": median(values) for name, values in costs.items()}
    bare = medians["bare_cpu_ms"]
    return {
        **medians,
        "ratio": medians["step_cpu_ms"] / bare,
        "robosuite_ratio": medians["robosuite_cpu_ms"] / bare,
        "settling_ratio": medians["reset_first_cpu_ms"] / medians["settling_bare_cpu_ms"],
    }


def measure_libero(suites: Sequence[str], tasks: int, steps: int, resets: int) -> dict[str, Any]:
    """Measures so many tasks of each suite, spread over it, and returns the section of the results file: for each suite
    the medians over its tasks, and each task."""
    cells: dict[str, Any] = {}
    for suite in suites:
        numbers = np.linspace(0, (90 if suite == "libero_90" else 10) - 1, tasks + 1).astype(int)[:tasks]
        rows = {int(task): measure_task(suite, int(task), steps, resets) for task in numbers}
        cell = {name: median(row[name] for row in rows.values()) for name in next(iter(rows.values()))}
        cells[suite] = {**cell, "tasks": rows}
        print(
            f"{suite}, {len(rows)} tasks, CPU-ms:", ", ".join(f"{name} {cell[name]:.2f}" for name in cell), flush=True
        )
    ratios = {f"{suite} CPU time of bare physics": cell["ratio"] for suite, cell in cells.items()}
    ratios |= {f"{suite} settling, of bare physics": cell["settling_ratio"] for suite, cell in cells.items()}
    return {"cells": cells, "bars": judge(ratios, dict.fromkeys(ratios, ("<=", LIMIT)))}
