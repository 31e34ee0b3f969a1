"""Equal, bit by bit, to the original: physics, reward, ``progress`` and robot state of each step, and pictures."""

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import libero_played
import numpy as np
import pytest
from embodied.envs.libero import LiberoEnv
from embodied.envs.libero.experts import SOLVED
from libero_played import CAMERAS, playing

from embodied.runtime.pool.placement import worker_environment
from embodied.types import Start

pytestmark = pytest.mark.sim
TASKS = {"libero_spatial": 10, "libero_object": 10, "libero_goal": 10, "libero_10": 10, "libero_90": 90}
STARTS = (1, 30)  # initial states of each task


def original(folder: Path, bddl: Path, size: int, episodes: list[dict]) -> list[dict]:
    """The original's episodes, in a process of its own; the worker's variables are in this process's environment."""
    source, target = folder / "given", folder / "played"
    source.write_bytes(pickle.dumps({"bddl": str(bddl), "size": size, "wait_steps": 10, "episodes": episodes}))
    script = Path(__file__).parent / "libero_original.py"
    subprocess.run([sys.executable, script, source, target], check=True, env=dict(os.environ), capture_output=True)
    return pickle.loads(target.read_bytes())


def play(env: LiberoEnv, start: Start, actions: np.ndarray, every: int, expert: bool = False) -> dict:
    """Plays an episode here (:func:`libero_played.playing`)."""
    return [*playing(env, start, actions, every, expert)][-1]


def play_in_forks(folder: Path, suite: str, task: int, size: int, episodes: list[tuple], drawn: bool) -> list:
    """Plays episodes in forks of a process that has built the task: of each fork the episodes, played at once."""
    source, target = folder / "asked", folder / "forked"
    given = {"suite": suite, "task": task, "size": size, "episodes": episodes, "drawn": drawn}
    source.write_bytes(pickle.dumps(given))
    script = Path(__file__).parent / "libero_played.py"
    environment = {**worker_environment(0, [], None), "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, script, source, target], check=True, env=environment)
    return pickle.loads(target.read_bytes())


def axis_angle(quaternion: np.ndarray) -> np.ndarray:
    """As openvla-oft's ``quat2axisangle``, (x, y, z, w)."""
    w = np.clip(quaternion[3], -1, 1)
    return quaternion[:3] * 2.0 * np.arccos(w) / np.sqrt(1.0 - w * w)


def assert_equal(ours: dict, theirs: dict) -> None:
    assert len(ours["physics"]) == len(theirs["physics"]) == len(ours["actions"]) + 1
    for step, (a, b) in enumerate(zip(ours["physics"], theirs["physics"], strict=True)):
        assert np.array_equal(a, b), f"physics after step {step}"
    assert np.array_equal(ours["sensors"], theirs["sensors"])
    for step, (a, b) in enumerate(zip(ours["moved"], theirs["moved"], strict=True)):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True)), f"gripper or controller after step {step}"
    assert ours["success"] == theirs["done"] == [reward == 1.0 for reward in theirs["rewards"]]
    assert set(theirs["rewards"]) <= {0.0, 1.0}
    assert ours["rewards"] == theirs["progress"]
    for state, (position, quaternion, fingers) in zip(ours["robot"], theirs["robot"], strict=True):
        robot = np.concatenate([position, axis_angle(quaternion), fingers]).astype(np.float32)
        np.testing.assert_array_max_ulp(state, robot, maxulp=1)
    assert ours["pictures"].keys() == theirs["pictures"].keys()
    for step, images in ours["pictures"].items():
        for camera, image, other in zip(CAMERAS, images, theirs["pictures"][step], strict=True):
            assert np.array_equal(image, other[::-1, ::-1]), f"picture of {camera} after step {step}"


def compare(folder: Path, env: LiberoEnv, played: dict[Start, dict]) -> list[dict]:
    """Compares episodes of one task with the original's, and returns the original's."""
    task = next(iter(played)).task_id
    episodes = [
        {
            "init_state": env._init_states[task][start.init_state_id],
            "actions": np.stack(ours["actions"]),
            "look_at": [*ours["pictures"]],
        }
        for start, ours in played.items()
    ]
    theirs = original(folder, env._tasks[task].bddl_file, env.spec.obs["images"].shape[1], episodes)
    for ours, other in zip(played.values(), theirs, strict=True):
        assert_equal(ours, other)
    return theirs


def make(suite: str, tasks: list[int] | None, size: int) -> LiberoEnv:
    env = libero_played.make(suite, tasks, size)
    env.prepare()
    return env


def random_actions(steps: int, seed: int, held: int = 1) -> np.ndarray:
    """Each action is held for so many steps."""
    drawn = np.random.default_rng(seed).uniform(-1, 1, (-(-steps // held), 7))
    drawn[:, 2] -= 0.6  # downwards, so that there is contact
    drawn[len(drawn) // 2, 3:] = 0  # no turn: the goal's orientation stays; the fingers stay
    return np.repeat(drawn, held, axis=0)[:steps].clip(-1, 1).astype(np.float32)


def test_equals_the_original(sim, tmp_path):
    env = make("libero_spatial", [0], 96)
    play(env, Start(0, 9, 0), random_actions(11, seed=9), every=8)  # an earlier episode must not show
    start = Start(0, 3, 0)
    compare(tmp_path, env, {start: play(env, start, random_actions(20, seed=0), every=1)})
    env.close()


def assert_same(ours: list[dict], again: list[dict]) -> None:
    for one, other in zip(ours, again, strict=True):
        for name in one.keys() - {"cpu_s"}:
            np.testing.assert_equal(one[name], other[name], err_msg=name)


def test_slots_of_forks_that_take_turns_equal_the_original(sim, tmp_path):
    """Two forks of a process that has drawn, as without a GPU, and two of one that has not, as with one."""
    env = make("libero_spatial", [0], 96)
    starts = [Start(0, 3, 0), Start(0, 30, 0)]
    episodes = [(start, random_actions(12 + 4 * turn, seed=turn), 4) for turn, start in enumerate(starts)]
    first, *others = (
        played
        for drawn in (True, False)
        for played in play_in_forks(tmp_path, "libero_spatial", 0, 96, episodes, drawn)
    )
    compare(tmp_path, env, dict(zip(starts, first, strict=True)))
    assert len(others) == 3
    for again in others:
        assert_same(first, again)
    env.close()


@pytest.fixture(scope="module")
def suites(sim):
    """Envs of whole suites by name, one at a time."""
    made: dict[str, LiberoEnv] = {}

    def get(suite: str) -> LiberoEnv:
        if suite not in made:
            while made:
                made.popitem()[1].close()
            made[suite] = make(suite, None, 128)
        return made[suite]

    yield get
    while made:
        made.popitem()[1].close()


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "task"), [(suite, task) for suite, count in TASKS.items() for task in range(count)])
def test_every_task_equals_the_original(suites, tmp_path, capsys, suite, task):
    """From two starts to the step limit: the expert's actions until the goal is reached, where the task has an expert,
    and random ones. From the second start each of these is held for ten steps, so that the arm goes far; in libero_90
    that episode ends after 100 steps."""
    begun, env = time.perf_counter(), suites(suite)
    assert len(env.spec.tasks) == TASKS[suite]
    limit, expert = env.spec.max_episode_steps, task in SOLVED.get(suite, ())
    played: dict[Start, dict] = {}
    for init, steps, held in zip(STARTS, (limit, 100 if suite == "libero_90" else limit), (1, 10), strict=True):
        drawn = random_actions(steps, 1000 * init + task, held)
        start = Start(task, init, 0)
        played[start] = play(env, start, drawn, every=steps // 2, expert=expert)
    theirs = compare(tmp_path, env, played)
    with capsys.disabled():
        print(f"\n{suite} {task}: {told([*played.values()], theirs)}; {time.perf_counter() - begun:.0f} s", flush=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suite", "task"), [(suite, task) for suite, count in TASKS.items() if count == 10 for task in range(count)]
)
def test_every_task_in_forks_equals_the_original(sim, tmp_path, suite, task):
    env = make(suite, [task], 128)
    starts, expert = [Start(0, init, 0) for init in STARTS], task in SOLVED.get(suite, ())
    drawn = [random_actions(60, task, held) for held in (1, 10)]
    episodes = [(start, actions, 20, expert) for start, actions in zip(starts, drawn, strict=True)]
    first, second = play_in_forks(tmp_path, suite, task, 128, episodes, drawn=True)
    compare(tmp_path, env, dict(zip(starts, first, strict=True)))
    assert_same(first, second)


def told(ours: list[dict], theirs: list[dict]) -> str:
    """Says how much was compared, and what it took."""
    solved = sum(any(episode["success"]) for episode in ours)
    steps, pictures = (sum(len(episode[name]) for episode in ours) for name in ("actions", "pictures"))
    cpu_s = [f"{sum(episode['cpu_s'] for episode in side):.1f}" for side in (ours, theirs)]
    played = f"{len(ours)} episodes, {solved} solved, {steps} steps, {len(CAMERAS) * pictures} pictures"
    return f"{played}; CPU s of the episodes: {cpu_s[0]} here, {cpu_s[1]} of the original"


@pytest.mark.slow
def test_a_burner_that_is_on_is_seen_as_in_the_original_and_off_again_after_the_next_reset(sim, tmp_path, look):
    env = make("libero_goal", [7], 96)  # turn on the stove
    env.reset(Start(0, 0, 0))
    dark = look(env)
    model = env._current._model
    knob = next(i for i in range(model.njnt) if "flat_stove" in model.joint(i).name)
    lit = Start(0, 1, 0)
    env._init_states[0][1, 1 + model.jnt_qposadr[knob]] = 1.5
    env._current._settled.clear()
    compare(tmp_path, env, {lit: play(env, lit, random_actions(8, seed=0), every=8)})
    assert env.step(np.zeros(7, np.float32)).success
    assert env.get_state()["simulator"]["lit_sites"]["flat_stove_1"]["burner"][1]
    env.reset(Start(0, 0, 0))
    assert all(np.array_equal(look(env)[name], dark[name]) for name in dark)
    env.close()
