"""Env slots of one process share simulators, and each has what it would have alone."""

import inspect
from pathlib import Path

import numpy as np
import pytest
import yaml
from embodied.envs.libero import LiberoEnv, sharing

from embodied.types import Start

pytestmark = pytest.mark.sim
PARAMS = {"camera_heights": 64, "camera_widths": 64}
CHUNK = 4


@pytest.fixture
def slots(sim):
    """Makes env slots of libero_object that live together; they are closed at the end."""
    made: list[LiberoEnv] = []

    def make(count: int, limit: int = 3, **more) -> list[LiberoEnv]:
        new = [
            LiberoEnv("libero_object", max_cached_simulators=limit, init_params=PARAMS, **more) for _ in range(count)
        ]
        made.extend(new)
        return new

    yield make
    for env in made:
        env.close()


def random_actions(steps: int, seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).uniform(-1, 1, (steps, 7))
    drawn[:, 2] -= 0.6
    return drawn.clip(-1, 1).astype(np.float32)


def state_of(env: LiberoEnv, look) -> list[np.ndarray]:
    """What can be seen of a slot after a reset."""
    simulator = env._current
    controller = simulator._robot.controller
    held = (controller.goal_pos, controller.goal_ori, simulator._robot.gripper.current_action)
    places = [simulator.place(name) for name in simulator.movable()]
    return [np.array(value) for value in (simulator._physics(), *held, *places, *look(env).values(), env.frame())]


def seen_of(env: LiberoEnv, look) -> list[np.ndarray]:
    """And after a step, with what the step has computed: contacts, forces, goals."""
    simulator = env._current
    data, goals = simulator._data, [simulator.reached(goal) for goal in simulator.goals()]
    computed = (data.sensordata, data.contact.geom, data.xpos, data.qfrc_bias, goals, simulator.progress())
    return [*map(np.array, computed), *state_of(env, look)]


def play(env: LiberoEnv, look, start: Start, seed: int, chunks: int = 4, move: float = 0.0):
    """Yields after the reset and after each chunk what is seen."""
    env.reset(start)
    if move:
        env.move_camera("agentview", np.array([move, 0, 0]), np.array([0, 0, move]))
    yield state_of(env, look)
    for actions in np.split(random_actions(chunks * CHUNK, seed), chunks):
        rewards = [env.step(action).reward for action in actions]
        yield [np.array(rewards), *seen_of(env, look)]


def act_by_expert(env: LiberoEnv, look, start: Start, mistaken: bool, chunks: int):
    env.reset(start)
    script = env.mistaken_expert() if mistaken else env.expert()
    for _ in range(chunks):
        actions = []
        while len(actions) < CHUNK and (action := next(script, None)) is not None:
            actions.append(action)
            env.step(action)
        yield [np.array(actions), env._current._physics()]
    yield seen_of(env, look)


def assert_same(ours: list[list[np.ndarray]], alone: list[list[np.ndarray]]) -> None:
    assert len(ours) == len(alone)
    for turn, (a, b) in enumerate(zip(ours, alone, strict=True)):
        assert [np.array_equal(x, y) for x, y in zip(a, b, strict=True)] == [True] * len(b), turn


def interleaved(episodes: list) -> list[list]:
    """Runs them in turns, a chunk each."""
    return [list(turns) for turns in zip(*zip(*episodes, strict=True), strict=True)]


def test_interleaved_slots_have_what_each_has_alone(slots, look):
    starts = [Start(0, 3, 0), Start(0, 3, 0), Start(1, 5, 0), Start(0, 7, 0)]
    moves = [0.0, 0.05, 0.0, -0.03]
    [single] = slots(1)
    alone = [
        list(play(single, look, start, seed, move=move))
        for seed, (start, move) in enumerate(zip(starts, moves, strict=True))
    ]
    together = slots(4)
    episodes = [
        play(env, look, start, seed, move=move)
        for seed, (env, start, move) in enumerate(zip(together, starts, moves, strict=True))
    ]
    for ours, theirs in zip(interleaved(episodes), alone, strict=True):
        assert_same(ours, theirs)
    assert together[0]._current is together[1]._current is together[3]._current is not together[2]._current
    assert not np.array_equal(alone[0][0][-1], alone[1][0][-1]), "a moved camera shows something else"


def test_interleaved_experts_do_what_each_does_alone(slots, look):
    [single] = slots(1)
    chunks, kinds = 30, [(Start(0, 1, 0), False), (Start(0, 2, 0), True), (Start(0, 2, 0), False)]
    alone = [list(act_by_expert(single, look, start, mistaken, chunks)) for start, mistaken in kinds]
    episodes = [
        act_by_expert(env, look, start, mistaken, chunks)
        for env, (start, mistaken) in zip(slots(3), kinds, strict=True)
    ]
    for ours, theirs in zip(interleaved(episodes), alone, strict=True):
        assert_same(ours, theirs)


def test_what_the_last_step_computed_is_not_another_slot_s(slots):
    """Whether a goal is reached reads contacts of the last step, which no state that is saved holds."""
    one, other = slots(2)
    one.reset(Start(0, 1, 0))
    script = one.expert()
    while not one.step(next(script)).success:
        pass
    goals, contacts = one._current.goals(), one._current._data.contact.geom.copy()
    other.reset(Start(0, 2, 0))
    other.step(np.zeros(7, np.float32))
    assert not any(other._current.reached(goal) for goal in goals)
    assert all(one._current.reached(goal) for goal in goals)
    assert np.array_equal(one._current._data.contact.geom, contacts)


def test_a_saved_state_of_one_slot_goes_on_in_another(slots, look):
    one, other = slots(2)
    for env, init in ((one, 1), (other, 2)):
        env.reset(Start(0, init, 0))
    for action in random_actions(6, 0):
        one.step(action)
        other.step(-action)
    state = one.get_state()
    other.set_state(state)
    for action in random_actions(5, 1):
        assert one.step(action) == other.step(action)
        assert np.array_equal(one._current._physics(), other._current._physics())
        assert all(np.array_equal(a, b) for a, b in zip(look(one).values(), look(other).values(), strict=True))


def test_the_number_of_simulators_counts_for_the_process_but_none_that_a_slot_is_in_is_closed(slots):
    held = sharing._OF_PROCESS._shared
    before = set(held)
    one, other, third = slots(3, limit=len(before) + 2)
    for env, task in ((one, 0), (other, 1), (third, 2)):
        env.reset(Start(task, 0, 0))
    new = [key for key in held if key not in before]
    assert len(new) == 3, "three slots are in three tasks, one more than the limit"
    third.reset(Start(1, 0, 0))
    third.reset(Start(3, 0, 0))
    assert [key[0] for key in held if key not in before] == [str(third._tasks[task].bddl_file) for task in (0, 1, 3)], (
        "task 2, that nobody is in, had to go"
    )
    for env in (one, other, third):
        env.step(np.zeros(7, np.float32))
        env.close()
    assert set(held) == before, "what nobody may come back to is closed"


def test_ten_tasks_are_built_once_unless_fewer_are_kept(monkeypatch):
    built: list[str] = []

    class Built:
        def __init__(self, bddl_file: str, pictures: object, keep_assets: bool) -> None:
            built.append(bddl_file)

        def close(self) -> None:
            pass

    monkeypatch.setattr(sharing, "TaskSimulator", Built)
    for kept, expected in (({}, 10), ({"max_cached_simulators": 3}, 20)):
        monkeypatch.setattr(sharing, "_OF_PROCESS", sharing.Simulators())
        built.clear()
        env = LiberoEnv("libero_10", **kept)
        for task in (*range(10), *range(10)):
            env._enter(task)
        assert len(built) == expected


@pytest.mark.parametrize("suite", ["spatial", "object", "goal", "10", "90"])
def test_a_file_of_a_suite_has_the_default_of_the_class(suite):
    file = Path(__file__).parents[2] / "config" / "env" / f"libero_{suite}.yaml"
    default = inspect.signature(LiberoEnv).parameters["max_cached_simulators"].default
    assert yaml.safe_load(file.read_text(encoding="utf-8"))["max_cached_simulators"] == default


def test_slots_of_other_pictures_have_simulators_of_their_own(slots):
    [one] = slots(1)
    other = LiberoEnv("libero_object", init_params={**PARAMS, "mesh_cell": 0.01})
    for env in (one, other):
        env.reset(Start(0, 0, 0))
    assert one._current is not other._current
    other.close()


def test_the_worker_says_whether_its_slots_share_simulators(slots, monkeypatch):
    (env,) = slots(1)
    assert env.prepare().shares_simulators
    monkeypatch.setattr(sharing, "function", lambda name: None)
    assert not env.prepare().shares_simulators


def test_without_mujocos_copy_each_slot_has_its_own_simulator(slots, monkeypatch):
    one, other = slots(2, task_ids=[0])
    monkeypatch.setattr(sharing, "function", lambda name: None)
    for env in (one, other):
        env.reset(Start(0, 0, 0))
    assert one._current is not other._current
