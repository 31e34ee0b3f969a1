"""CPU time of a ManiSkill control step on the CPU, by part: ManiSkill's own code against this project's.

One simulator a task, nothing is rendered. Each episode runs twice with the same actions, in turn: once with ManiSkill's
``_step_action``, ``evaluate`` and reward (``own``; the end-effector's pose is computed once an action, as before), once
with what ``envs/maniskill/fast`` does instead (``fast``). Both must end in the same state, bit by bit. The actions are
those of an expert, and for tasks without one random. The figure is the median over episodes of the ratio of CPU times.

Parts come from further episodes with a clock around each: ``physics`` (SAPIEN's ``step``), ``kinematics``
(pinocchio's inverse kinematics), ``controller`` (the rest of ``set_action``), ``evaluate``, ``reward``, ``rest``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np
from _measure import judge

TASKS = ("PickCube-v1", "PullCube-v1", "StackCube-v1", "PegInsertionSide-v1")
MODE = "pd_ee_delta_pose"
STEPS = 48  # control steps of an episode
BAR = 0.5


class Parts:
    """CPU seconds of the parts of a simulator's control steps."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def of(self, sim: Any) -> Iterator[None]:
        """Within it, the parts of this simulator's present episode are timed."""
        env, fast = sim.env, sim._fast
        arm = env.agent.controller.controllers["arm"]
        changed: list[tuple[Any, str, Any]] = [(env.scene, "px", _Timed(env.scene.px, self, step="physics"))]
        if fast is not None:
            (_, moves), *_ = fast._control._parts
            changed += [
                (moves, "_solve", self.timed("kinematics", moves._solve)),
                (fast._control, "act", self.timed("controller", fast._control.act)),
                (fast._task, "evaluate", self.timed("evaluate", fast._task.evaluate)),
                (fast._task, "reward", self.timed("reward", fast._task.reward)),
            ]
        else:
            pinocchio = _Timed(arm.kinematics.pmodel, self, compute_inverse_kinematics="kinematics")
            changed += [
                (arm.kinematics, "pmodel", pinocchio),
                (env.agent, "set_action", self.timed("controller", env.agent.set_action)),
                (env, "evaluate", self.timed("evaluate", env.evaluate)),
                (env, "get_reward", self.timed("reward", env.get_reward)),
            ]
        before = [(thing, name, thing.__dict__.get(name)) for thing, name, _ in changed]
        for thing, name, value in changed:
            setattr(thing, name, value)
        try:
            yield
        finally:
            for thing, name, value in before:
                setattr(thing, name, value) if value is not None else delattr(thing, name)

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            begun = time.thread_time()
            try:
                return function(*given, **named)
            finally:
                self.seconds[part] = self.seconds.get(part, 0.0) + time.thread_time() - begun

        return call

    def ms(self, steps: int) -> dict[str, float]:
        """CPU ms of a control step; ``total`` must have been timed as well."""
        found = {part: seconds / steps * 1e3 for part, seconds in self.seconds.items()}
        found["controller"] -= found["kinematics"]
        parts = [part for part in found if part != "total"]
        return {**found, "rest": found["total"] - sum(found[part] for part in parts)}


class _Timed:
    """An object of C++ with some of its methods timed."""

    def __init__(self, thing: Any, parts: Parts, **named: str) -> None:
        self._thing = thing
        for name, part in named.items():
            setattr(self, name, parts.timed(part, getattr(thing, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._thing, name)


def actions_of(sim: Any, task: str, seed: int) -> np.ndarray:
    """float32 [STEPS, 1, A]."""
    from embodied.envs.maniskill.experts import EXPERTS

    if task not in EXPERTS:
        drawn = np.random.default_rng(seed).uniform(-1, 1, (STEPS, 1, sim.action_dim))
        return drawn.astype(np.float32)
    sim.begin([0], [seed], [{}])
    script, given = sim.expert(EXPERTS[task]), []
    for _ in range(STEPS):
        given.append(next(script)[None])
        sim.step(given[-1])
    return np.stack(given)


def episode(sim: Any, seed: int, actions: np.ndarray, way: str, parts: Parts | None = None) -> tuple[float, bytes]:
    """CPU ms of a control step, and the state at the end."""
    sim.begin([0], [seed], [{}])
    if way == "own":
        sim._fast = None

    def run() -> None:
        for action in actions:
            sim.step(action)

    begun = time.thread_time()
    if parts is None:
        run()
    else:
        with parts.of(sim):
            parts.timed("total", run)()
    return (time.thread_time() - begun) / len(actions) * 1e3, sim.physics().tobytes()


def measure(task: str, episodes: int) -> dict[str, Any]:
    """Both ways of a task's control step: CPU ms, their ratio, and their parts in CPU ms."""
    from embodied.envs.maniskill.cameras import Cameras
    from embodied.envs.maniskill.facts import SimParams
    from embodied.envs.maniskill.simulator import TaskSimulator

    sim = TaskSimulator(SimParams(id=task, control_mode=MODE), "cpu", Cameras.of({}), False, {})
    costs: dict[str, list[float]] = {"own": [], "fast": []}
    parts = {way: Parts() for way in costs}
    for number in range(episodes + 1):
        actions, states = actions_of(sim, task, number), set()
        for way in sorted(costs, reverse=bool(number % 2)):
            cost, state = episode(sim, number, actions, way)
            costs[way].append(cost)
            states.add(state)
        for way in costs:
            states.add(episode(sim, number, actions, way, parts[way] if number else Parts())[1])
        if len(states) != 1:
            raise SystemExit(f"{task}, seed {number}: the two ways led to different states")
    sim.close()
    return {
        **{f"{way}_cpu_ms": median(found[1:]) for way, found in costs.items()},  # the first warms up
        "ratio": median(fast / own for fast, own in zip(costs["fast"][1:], costs["own"][1:], strict=True)),
        "parts_cpu_ms": {way: one.ms(STEPS * episodes) for way, one in parts.items()},
    }


def measure_maniskill(episodes: int) -> dict[str, Any]:
    """Measures each task, prints it with its bar, and returns the section of the results file."""
    from embodied.envs.maniskill.simulator import prepare_process

    prepare_process()
    cells = {}
    for task in TASKS:
        cells[task] = cell = measure(task, episodes)
        print(f"{task}: {cell['own_cpu_ms']:.2f} ms, now {cell['fast_cpu_ms']:.2f} ms of CPU a step", flush=True)
        for way, parts in cell["parts_cpu_ms"].items():
            print(f"  {way}: " + ", ".join(f"{part} {ms:.3f}" for part, ms in parts.items()), flush=True)
    ratios = {f"{task} CPU time of ManiSkill's own": cell["ratio"] for task, cell in cells.items()}
    return {"cells": cells, "bars": judge(ratios, dict.fromkeys(ratios, ("<=", BAR)))}
