"""The compiled control and the goals looked up once give robosuite's and LIBERO's numbers, bit by bit."""

import fcntl
import itertools
from contextlib import contextmanager

import numpy as np
import pytest
from embodied.envs.libero import LiberoEnv, experts
from embodied.envs.libero.control import CompiledControl, OriginalControl, make_control
from embodied.envs.libero.experts import SOLVED
from libero_original import progress

from embodied.lib.cache import cache_folder
from embodied.types import Start

pytestmark = pytest.mark.sim


def random_actions(steps: int, seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).uniform(-1, 1, (steps, 7))
    drawn[:, 2] -= 0.6  # downwards, so that there is contact
    drawn[steps // 2, 3:] = 0  # no turn: the goal's orientation stays; the fingers stay
    return drawn.clip(-1, 1).astype(np.float32)


@contextmanager
def robosuites_own(env: LiberoEnv):
    """Steps by robosuite's control and judges by LIBERO's predicates, as before both were made faster."""
    simulator = env._current
    domain, control, goals = simulator._domain, simulator._control, simulator._goals
    contacts = domain.check_contact
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulator, "_control", OriginalControl(domain))
        patch.setattr(domain, "check_contact", contacts._original)
        patch.setattr(goals, "evaluate", lambda: bool(domain._check_success()))
        patch.setattr(goals, "progress", lambda: progress(domain))
        yield
    assert simulator._control is control


def play(env: LiberoEnv, look, start: Start, actions, pictures: tuple[int, ...]) -> list[tuple]:
    """Everything that is seen of an episode, settling included."""
    env._current._settled.clear()
    env.reset(start)
    simulator, data = env._current, env._current._data
    seen: list[tuple] = []
    for step, action in enumerate(actions):
        result = env.step(action)
        physics = (data.qpos, data.qvel, data.act, data.ctrl, data.time, data.sensordata, data.qacc_warmstart)
        control = (simulator._robot.gripper.current_action, simulator._robot.controller.goal_ori)
        shown = tuple(look(env).values()) if step in pictures else (simulator.robot_state(),)
        seen.append((*physics, *control, *shown, result.reward, result.terminated, result.success))
        seen[-1] = tuple(np.array(value) for value in seen[-1])
    return seen


def assert_equal(env: LiberoEnv, look, start: Start, actions: np.ndarray) -> None:
    pictures = (len(actions) // 2, len(actions) - 1)
    env.reset(start)
    assert isinstance(env._current._control, CompiledControl)
    ours = play(env, look, start, actions, pictures)
    with robosuites_own(env):
        theirs = play(env, look, start, actions, pictures)
    for step, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert [np.array_equal(x, y) for x, y in zip(a, b, strict=True)] == [True] * len(b), (start, step)


def test_the_compiled_control_equals_robosuites(sim, look):
    from embodied.envs.libero import osc  # after prepare(), which chooses numba's cache

    assert_equal(sim, look, Start(0, 1, 0), random_actions(24, seed=0))
    assert [len(made.signatures) for made in (osc.control, osc.advance)] == [1, 1], "compiled before the first step"


@pytest.mark.parametrize(
    ("part", "name", "value"), [("controller", "impedance_mode", "variable"), (None, "robots", [])]
)
def test_what_is_not_known_is_stepped_by_robosuite_and_said(sim, caplog, monkeypatch, part, name, value):
    sim.reset(Start(0, 0, 0))
    domain = sim._current._domain
    assert isinstance(make_control(domain), CompiledControl)
    monkeypatch.setattr(getattr(domain.robots[0], part) if part else domain, name, value)
    assert isinstance(make_control(domain), OriginalControl)
    assert "stepped by robosuite's own control" in caplog.text


def test_one_process_compiles_first(sim, monkeypatch):
    from embodied.envs.libero import control, osc

    alone = []

    def compiles():
        with (cache_folder("numba") / "lock").open("a+", encoding="utf-8") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        alone.append(True)

    monkeypatch.setattr(osc, "prepare", compiles)
    control.prepare()
    assert alone == [True]


@pytest.mark.parametrize("missing", ["numpy_gemv", "mujoco_functions"])
def test_without_a_library_s_functions_robosuite_steps(sim, monkeypatch, missing):
    from embodied.envs.libero import osc

    sim.reset(Start(0, 0, 0))
    monkeypatch.setattr(osc, "_addresses_in", lambda module, names: [None] * len(names))
    osc.numpy_gemv.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(osc, {"numpy_gemv": "mujoco_functions", "mujoco_functions": "numpy_gemv"}[missing], lambda: 1)
        assert isinstance(make_control(sim._current._domain), OriginalControl)
    osc.numpy_gemv.cache_clear()


def test_a_gripper_of_another_kind_is_stepped_by_robosuite(sim, monkeypatch):
    sim.reset(Start(0, 0, 0))
    domain = sim._current._domain
    gripper = domain.robots[0].gripper
    monkeypatch.setattr(gripper, "__class__", type("Other", (type(gripper),), {}))
    assert isinstance(make_control(domain), OriginalControl)


@pytest.mark.slow
@pytest.mark.parametrize("suite", ["libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90"])
def test_every_task_equals_robosuites(sim, look, suite):
    """Each task from two starts: random actions, and a whole episode of the expert where the task has one."""
    params = {"camera_heights": 64, "camera_widths": 64}
    env = LiberoEnv(suite, max_cached_simulators=1, init_params=params)
    env.prepare()
    for task, init in itertools.product(range(len(env.spec.tasks)), (0, 7)):
        start = Start(task, init, 0)
        assert_equal(env, look, start, random_actions(60, seed=task))
        if task in SOLVED.get(suite, ()):
            assert_equal(env, look, start, recorded(env, start))
    env.close()


def recorded(env: LiberoEnv, start: Start) -> np.ndarray:
    env.reset(start)
    actions = []
    for action in itertools.islice(experts.actions(env._current), env.spec.max_episode_steps):
        actions.append(action)
        if env.step(action).success:
            break
    return np.stack(actions)
