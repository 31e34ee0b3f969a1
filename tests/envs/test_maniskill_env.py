"""ManiSkillEnv with the real simulator: determinism, saved states, pictures, rewards, equality with the original."""

import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from embodied.envs.maniskill import ManiSkillEnv, facts
from embodied.envs.maniskill.env import ManiSkillBatch
from embodied.envs.maniskill.facts import INSTRUCTIONS, SimParams
from embodied.envs.maniskill.fast.step import FastStep
from embodied.envs.maniskill.state import num_features, read_features
from maniskill_original import SIZE, check_judged_alike, compare

from embodied.errors import (
    AssetsMissingError,
    ConfigError,
    RendererUnavailableError,
    SpecMismatchError,
    UnknownNameError,
)
from embodied.testing import check_batch_env, check_env
from embodied.types import Start

pytestmark = pytest.mark.sim
STATE = ("qpos", "tcp_pose", "goal_pos")


@pytest.fixture(scope="module")
def pick(vulkan):
    """PickCube in small pictures, shared by the tests; each resets it."""
    env = make("PickCube-v1", state=STATE)
    yield env
    env.close()


def make(task: str, mode: str = "pd_ee_delta_pose", **given) -> ManiSkillEnv:
    env = ManiSkillEnv({"id": task, "control_mode": mode, **SIZE, **given.pop("init_params", {})}, **given)
    env.prepare()
    return env


def actions(env, steps: int, seed: int = 0) -> np.ndarray:
    """Random motions with a drift downwards, so that the arm touches things."""
    drawn = np.random.default_rng(seed).uniform(-1, 1, (steps, env.spec.action_dim)).astype(np.float32)
    drawn[:, 2] -= 0.5
    return drawn.clip(-1, 1)


def play(env, given: np.ndarray) -> list:
    """Result and physics of every step."""
    return [(env.step(action), env._sim.physics().tobytes()) for action in given]


def test_keeps_the_protocol(pick, monkeypatch):
    monkeypatch.setattr(pick, "close", lambda: None)
    check_env(pick)


def test_a_batch_of_one_keeps_the_protocol_of_batches(pick, monkeypatch):
    """What a GPU would run, with one copy on the CPU."""
    monkeypatch.setattr(pick, "batch", lambda slots: ManiSkillBatch(pick, slots), raising=False)
    check_batch_env(pick, num_slots=1)


def test_progress_features_say_where_hand_and_objects_are(pick):
    """The hand, the cube and the goal, which move as the task's own poses say; the table stands where it stood."""
    pick.reset(Start(0, 0, 5))
    before = pick.progress_features()
    assert before.shape == (pick.num_progress_features,)
    for action in actions(pick, 12):
        pick.step(action)
    env, found = pick._sim.env, pick.progress_features()
    assert found[:3] == pytest.approx(env.agent.tcp.pose.p[0].tolist(), abs=1e-6)
    matrix = env.agent.tcp.pose.to_transformation_matrix()[0].numpy()
    assert found[3:9] == pytest.approx(matrix[:2, :3].reshape(-1), abs=1e-5)
    places = found[9:117].reshape(12, 9)[:, :3].tolist()
    for body in (env.cube, env.goal_site):
        assert pytest.approx(body.pose.p[0].tolist(), abs=1e-6) in places
    assert found[117:119] == pytest.approx(env.agent.robot.get_qpos()[0, -2:].tolist(), abs=1e-6)
    moved = np.abs(found - before).reshape(-1) > 1e-4
    assert moved[:9].any()
    assert not moved[9:18].any(), "the table"
    assert not found[36:117].any(), "three bodies are not static: table, cube, goal"


class StandIn:
    """A body of several copies: one number stands for the pose of each."""

    def __init__(self, numbers: list[float], copies: list[int]) -> None:
        import torch

        self.name, self.px_body_type, self._objs = f"peg_{copies}", "dynamic", [object() for _ in numbers]
        self.pose = SimpleNamespace(raw_pose=torch.tensor([[number, 0, 0, 1, 0, 0, 0] for number in numbers]))
        self._scene_idxs = torch.tensor(copies)


def copies_of(*actors: StandIn, views: tuple[StandIn, ...] = ()) -> Any:
    import torch

    robot = SimpleNamespace(get_qpos=lambda: torch.zeros(2, 3))
    scene = SimpleNamespace(actors=dict(enumerate(actors)), actor_views=dict(enumerate(views)), articulations={})
    return SimpleNamespace(num_envs=2, device="cpu", scene=scene, agent=SimpleNamespace(robot=robot))


def test_bodies_that_each_copy_has_of_its_own_are_read_in_the_order_of_the_copies_or_refused():
    table, first, second = StandIn([1.0, 2.0], [0, 1]), StandIn([3.0], [0]), StandIn([4.0], [1])
    view, again = StandIn([4.0, 3.0], [1, 0]), StandIn([1.0, 2.0], [0, 1])
    view._objs, again._objs = [*second._objs, *first._objs], table._objs
    found = read_features(copies_of(first, table, second, views=(view, again)), bodies=3, joints=1)
    assert found.shape == (2, num_features(3, 1))
    assert found[:, 9:36:9].tolist() == [[1.0, 3.0, 0.0], [2.0, 4.0, 0.0]]
    with pytest.raises(SpecMismatchError, match=r"peg_\[1\] is in some copies of the task alone"):
        read_features(copies_of(table, second), bodies=3, joints=1)
    with pytest.raises(SpecMismatchError, match="2 bodies that may move, and the task had 1") as refused:
        read_features(copies_of(table, StandIn([0.0, 0.0], [0, 1])), bodies=1, joints=1)
    assert "set env.train.reward_mode=sparse" in refused.value.remedy


def test_progress_features_have_room_for_as_many_bodies_as_a_task_has(monkeypatch):
    crowded = replace(facts.facts_of(SimParams("PickCube-v1")), bodies=33)
    monkeypatch.setattr("embodied.envs.maniskill.env.facts_of", lambda params: crowded)
    assert ManiSkillEnv({"id": "PickCube-v1"}).num_progress_features == num_features(33, 4)


def test_prepare_says_what_it_took(pick):
    facts = pick.prepare()
    assert facts.renderer in ("gpu", "cpu")
    assert "Vulkan on" in facts.reason
    assert facts.extra["maniskill"].startswith("3.")


def test_equal_starts_give_equal_episodes_whatever_ran_before(pick, look):
    pick.reset(Start(0, 0, 5))
    first = play(pick, actions(pick, 25)), look(pick)
    for seed in (6, 7):
        pick.reset(Start(0, 0, seed))
        other = play(pick, actions(pick, 40, seed)), look(pick)
        assert other[0][:25] != first[0]
    pick.reset(Start(0, 0, 5))
    assert play(pick, actions(pick, 25)) == first[0]
    assert all(np.array_equal(look(pick)[name], first[1][name]) for name in first[1])


def clumsy(env, seed: int, steps: int = 28) -> np.ndarray:
    """Actions of one who knows the way to the object and touches it not quite as planned."""
    env.reset(Start(0, 0, seed))
    noise, script, given = np.random.default_rng(seed), env.expert(), []
    for _ in range(steps):
        drawn = 0.3 * noise.standard_normal(env.spec.action_dim).astype(np.float32)
        given.append((next(script).astype(np.float32) + drawn).clip(-1, 1))
        env.step(given[-1])
    return np.stack(given)


PULLED = [(0, 28), (1, 28), (2, 17), (1, 28), (3, 28), (0, 25), (2, 28), (2, 28), (0, 28), (3, 8), (1, 28)]


@pytest.mark.parametrize(("task", "episodes"), [("PullCube-v1", PULLED), ("StackCube-v1", [(0, 28), (1, 28)])])
def test_contacts_of_earlier_episodes_change_nothing(vulkan, task, episodes):
    """PhysX keeps contacts, and how long a body has been at rest, over ManiSkill's reset."""
    env = make(task)
    given = {seed: clumsy(env, seed) for seed, _ in episodes}
    first = {}
    for seed in given:
        alone = make(task)
        alone.reset(Start(0, 0, seed))
        first[seed] = play(alone, given[seed])
        alone.close()
    for seed, steps in episodes:
        env.reset(Start(0, 0, seed))
        assert play(env, given[seed][:steps]) == first[seed][:steps], (seed, steps)
    env.close()


def test_saved_state_goes_on_exactly(pick, look):
    pick.reset(Start(0, 0, 1))
    play(pick, actions(pick, 13))
    saved, seen = pickle.dumps(pick.get_state()), look(pick)
    expected = play(pick, actions(pick, 11, seed=2)), look(pick)
    pick.reset(Start(0, 0, 2))
    play(pick, actions(pick, 5, seed=3))
    pick.set_state(pickle.loads(saved))
    assert all(np.array_equal(look(pick)[name], seen[name]) for name in seen)
    assert int(pick._sim.env.elapsed_steps) == 13
    assert play(pick, actions(pick, 11, seed=2)) == expected[0]
    assert all(np.array_equal(look(pick)[name], expected[1][name]) for name in seen)
    assert len(saved) < 10_000


def test_a_state_saved_amid_contacts_goes_on_exactly(vulkan):
    env = make("PullCube-v1")
    given = clumsy(env, 1)
    env.reset(Start(0, 0, 1))
    play(env, given[:20])
    saved = env.get_state()
    expected = play(env, given[20:])
    env.reset(Start(0, 0, 2))
    play(env, given[:21])
    env.set_state(saved)
    assert play(env, given[20:]) == expected
    env.close()


def test_a_state_that_is_not_reached_again_is_an_error(pick):
    pick.reset(Start(0, 0, 1))
    play(pick, actions(pick, 3))
    state = pick.get_state()
    state["physics"][0] += 1e-6
    with pytest.raises(Exception, match="the same start and 3 actions led to another state"):
        pick.set_state(state)


def test_steps_and_resets_render_nothing(pick, monkeypatch):
    def no_picture(*args, **kwargs):
        raise AssertionError("rendered")

    monkeypatch.setattr(type(pick._sim.env.scene), "update_render", no_picture)
    pick.reset(Start(0, 0, 0))
    play(pick, actions(pick, 3))


def test_two_cameras_of_one_state_are_rendered_once_and_frame_is_a_copy(pick, look):
    pick.reset(Start(0, 0, 0))
    seen = look(pick)["images"][0].copy()
    pictures = pick._sim._pictures
    frame = pick.frame()
    assert pick._sim._pictures is pictures
    assert np.array_equal(frame, seen)
    frame[:] = 0
    assert np.array_equal(pick.frame(), seen)


def _pixel(env, point: np.ndarray) -> np.ndarray:
    """(column, row) of a point (m) in the base camera's picture."""
    params = env._sim.env.scene.sensors["base_camera"].get_params()
    extrinsic, intrinsic = params["extrinsic_cv"][0].numpy(), params["intrinsic_cv"][0].numpy()
    seen = intrinsic @ (extrinsic @ np.append(point, 1.0))[:3]
    return seen[:2] / seen[2]


def test_pictures_are_upright_and_show_the_cube_where_it_is(pick, look):
    pick.reset(Start(0, 0, 1))
    images = look(pick)["images"][0].astype(int)
    red = (images[..., 0] > 120) & (images[..., 1] < 60) & (images[..., 2] < 60)
    rows, columns = np.nonzero(red)
    cube = pick._sim.env.cube.pose.p[0].numpy()
    assert len(rows) > 3
    assert np.abs(_pixel(pick, cube) - [columns.mean(), rows.mean()]).max() < 4


def test_a_camera_can_stand_elsewhere(pick, look):
    view = {"eye": [0.55, 0.0, 0.45], "target": [0.03, 0.0, 0.02], "fov": 0.65}
    env = make("PickCube-v1", init_params={"camera_views": {"base_camera": view}})
    env.reset(Start(0, 0, 1))
    look(env)
    at_target, beside = _pixel(env, np.array(view["target"])), _pixel(env, np.array([0.03, 0.1, 0.02]))
    height, width = SIZE["camera_heights"], SIZE["camera_widths"]
    assert np.allclose(at_target, [width / 2, height / 2], atol=0.01)
    distance = np.linalg.norm(np.subtract(view["eye"], view["target"]))
    expected = height / 2 / np.tan(view["fov"] / 2) * 0.1 / distance  # pixels that 10 cm take up in the middle
    assert abs(np.linalg.norm(beside - at_target) - expected) < 0.01 * expected
    env.close()


def test_the_goal_is_drawn_when_asked_for(pick, look):
    pick.reset(Start(0, 0, 1))
    hidden = look(pick)["images"][0].astype(int)
    pick._sim._show_goal, pick._sim._pictures = True, {}
    shown = look(pick)["images"][0].astype(int)
    pick._sim._show_goal, pick._sim._pictures = False, {}
    again = look(pick)["images"][0].astype(int)
    rows, columns = np.nonzero((hidden != shown).any(-1))
    goal = look(pick)["state"][-3:]
    assert np.array_equal(hidden, again)
    assert len(rows) > 3
    assert np.abs(_pixel(pick, goal) - [columns.mean(), rows.mean()]).max() < 4


def test_state_is_the_robots_and_the_goal(pick, look):
    pick.reset(Start(0, 0, 0))
    start = look(pick)["state"].copy()
    for _ in range(10):
        pick.step(np.array([0, 0, 1, 0, 0, 0, -1], np.float32))
    end = look(pick)["state"]
    assert end[7] < start[7] - 0.01  # the fingers close
    assert end[11] - start[11] > 0.05  # the gripper goes up, m
    assert np.array_equal(end[16:], start[16:])
    env = pick._sim.env
    assert np.allclose(end[16:], env.goal_site.pose.p[0].numpy())
    assert np.allclose(end[:9], env.agent.robot.get_qpos()[0].numpy())


def test_proprio_is_position_axis_angle_and_fingers(pick):
    pick.reset(Start(0, 0, 0))
    robot, tcp = pick._sim.state(["proprio"])[0], pick._sim.state(["tcp_pose"])[0]
    assert np.array_equal(robot[:3], tcp[:3])
    assert np.linalg.norm(robot[3:6]) == pytest.approx(np.pi, abs=0.2)  # the hand points down
    assert np.array_equal(robot[6:], pick._sim.state(["qpos"])[0][7:])


def reach_and_close(env, steps: int) -> list:
    """Grasp the cube and lift it to the goal, with its pose read from the simulator."""
    results, sim = [], env._sim.env
    for step in range(steps):
        cube, goal, hand = (x.p[0].numpy() for x in (sim.cube.pose, sim.goal_site.pose, sim.agent.tcp.pose))
        near = np.linalg.norm(cube - hand) < 0.012 or step > 22
        way = goal - cube if near and step > 26 else cube - hand
        move = np.clip(way / 0.1 * 2, -1, 1)
        results.append(env.step(np.array([*move, 0, 0, 0, -1 if near else 1], np.float32)))
        if results[-1].success:
            break
    return results


def test_success_ends_the_episode_and_is_worth_one(pick):
    pick.reset(Start(0, 0, 0))
    results = reach_and_close(pick, 80)
    last = results[-1]
    assert last.success
    assert last.terminated
    assert last.reward == pytest.approx(1.0)
    assert all(0 <= r.reward < 1 and not r.terminated for r in results[:-1])
    assert results[-2].reward > results[0].reward + 0.2


def test_a_start_out_of_range_is_refused(pick):
    with pytest.raises(ConfigError, match="init_state_id of a start is 1"):
        pick.reset(Start(0, 1, 0))


def test_the_controller_looks_once_an_action_where_the_hand_is(pick, monkeypatch):
    from mani_skill.agents.controllers.pd_ee_pose import PDEEPosController

    looks, usual = [], PDEEPosController.ee_pose_at_base.fget
    monkeypatch.setattr(FastStep, "act", lambda *given: False)  # where ManiSkill's own controller runs
    monkeypatch.setattr(PDEEPosController, "ee_pose_at_base", property(lambda self: looks.append(self) or usual(self)))
    pick.reset(Start(0, 0, 0))
    before = len(looks)
    for count in (1, 2, 3):
        pick.step(np.zeros(pick.spec.action_dim, np.float32))
        assert len(looks) == before + count


# -- experts -----------------------------------------------------------------------------------------------------------


def solved(env, seeds: int) -> list[int]:
    """Seeds at which the expert solves the task within its step limit."""
    found = []
    for seed in range(seeds):
        env.reset(Start(0, 0, seed))
        for step, action in enumerate(env.expert(), start=1):
            assert action.shape == (env.spec.action_dim,)
            assert action.dtype == np.float32
            assert np.abs(action).max() <= 1
            success = env.step(action).success
            if seed == 0 and env._sim._fast._task is not None:
                check_judged_alike(env._sim.env, env._sim._fast)  # through reach, grasp and transport
            if success or step == env.spec.max_episode_steps:
                break
        found += [seed] * success
    return found


def test_the_expert_solves_the_task(pick):
    assert solved(pick, 4) == [0, 1, 2, 3]
    assert pick._sim._pictures == {}


def test_an_expert_does_not_stand_still_at_the_end_of_its_reach(vulkan):
    env = make("PullCube-v1", "pd_ee_delta_pos")
    for seed in (19, 27, 30):  # cubes far from the robot, where a whole step beyond them asks for too much
        env.reset(Start(0, 0, seed))
        success, steps = False, 0
        for action in env.expert():
            success, steps = env.step(action).success, steps + 1
            if success or steps == 20:
                break
        assert success
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["pd_ee_delta_pos", "pd_ee_delta_pose"])
@pytest.mark.parametrize("task", ["PickCube-v1", "PushCube-v1", "PullCube-v1", "StackCube-v1"])
def test_experts_solve_nineteen_of_twenty(vulkan, task, mode):
    env = make(task, mode)
    assert len(solved(env, 20)) >= 19
    env.close()


# -- against the original --------------------------------------------------------------------------------------------


def test_equals_the_original(pick, look):
    compare(pick, look, "PickCube-v1", "pd_ee_delta_pose", 11, actions(pick, 20))


def test_equals_the_original_through_contacts_whatever_ran_before(vulkan, look):
    env = make("PullCube-v1", state=STATE)
    compare(env, look, "PullCube-v1", "pd_ee_delta_pose", 2, clumsy(env, 2))
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "mode", "cameras"),
    [
        ("PushCube-v1", "pd_ee_delta_pos", ["base_camera"]),
        ("StackCube-v1", "pd_joint_delta_pos", ["base_camera", "hand_camera"]),
        ("PegInsertionSide-v1", "pd_ee_delta_pose", ["base_camera", "hand_camera"]),
        ("LiftPegUpright-v1", "pd_ee_target_delta_pose", ["base_camera"]),
        ("RollBall-v1", "pd_ee_delta_pose", ["base_camera"]),
    ],
)
def test_other_tasks_equal_the_original(pick, look, task, mode, cameras):
    env = make(task, mode, state=("qpos", "qvel", "tcp_pose"), init_params={"camera_names": cameras})
    env.reset(Start(0, 0, 9))
    play(env, actions(env, 11, seed=9))  # an earlier episode must not show
    compare(env, look, task, mode, 3, actions(env, 40, seed=1))
    env.close()


QUICKSTART = Path(__file__).parents[2] / "config" / "env" / "quickstart_pullcube.yaml"
NEAR = yaml.safe_load(QUICKSTART.read_text(encoding="utf-8"))["init_params"]["camera_views"]


def test_bodies_outside_the_picture_are_not_drawn_and_the_picture_is_the_original(pick, look):
    """From near most of the arm is outside, and comes in as it reaches forwards."""
    env = make("PullCube-v1", "pd_ee_delta_pos", state=("qpos", "tcp_pose"), init_params={"camera_views": NEAR})
    hidden = []

    def look_and_note(env):
        seen = look(env)
        hidden.append(env._sim._culling.hidden)
        return seen

    given = actions(env, 48)
    given[:24, 0], given[24:, 0] = 1, -1
    compare(env, look_and_note, "PullCube-v1", "pd_ee_delta_pos", 5, given, views=NEAR)
    assert len(hidden[0]) >= 5
    assert len({tuple(names) for names in hidden}) > 2
    env.close()


def test_with_shadows_everything_is_drawn(pick, look):
    """What throws a shadow into the picture may stand beside it."""
    shadows = {"camera_views": NEAR, "task_kwargs": {"enable_shadow": True}}
    env = make("PullCube-v1", "pd_ee_delta_pos", state=("qpos", "tcp_pose"), init_params=shadows)
    compare(env, look, "PullCube-v1", "pd_ee_delta_pos", 5, actions(env, 8), views=NEAR, enable_shadow=True)
    assert env._sim._culling.hidden == []
    env.close()


@pytest.mark.slow
def test_a_successful_episode_equals_the_original(pick, look):
    """With reaching, grasp and transport."""
    pick.reset(Start(0, 0, 0))
    reach_and_close(pick, 80)
    given = np.stack(pick._sim._actions)
    assert len(given) < 80
    given = np.concatenate([given, given[-1:].repeat(4 + -len(given) % 4, 0)])
    compare(pick, look, "PickCube-v1", "pd_ee_delta_pose", 0, given)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["PegInsertionSide-v1", "StackCube-v1", "PlaceSphere-v1", "PullCubeTool-v1"])
def test_saved_states_of_other_tasks_go_on_exactly(pick, task):
    env = make(task, "pd_ee_target_delta_pose")
    env.reset(Start(0, 0, 4))
    play(env, actions(env, 40))
    saved = pickle.dumps(env.get_state())
    expected = play(env, actions(env, 30, seed=2))
    for seed in (5, 6):
        env.reset(Start(0, 0, seed))
        play(env, actions(env, 45, seed))
    env.set_state(pickle.loads(saved))
    assert play(env, actions(env, 30, seed=2)) == expected
    env.close()


def test_pictures_through_the_envs_own_observation_are_the_same(pick, look):
    """The way of tasks that put a photograph behind the robot."""
    env = make("PickCube-v1", state=STATE, init_params={"obs_mode": "rgb+segmentation"})
    for one in (env, pick):
        one.reset(Start(0, 0, 8))
        play(one, actions(one, 6))
    assert all(np.array_equal(look(env)[name], look(pick)[name]) for name in look(pick))
    env.close()


def test_reward_may_be_made_of_infos_entries(pick):
    env = make("PickCube-v1", info_reward={"is_grasped": 0.25, "is_robot_static": 0.5, "success": 1.0})
    env.reset(Start(0, 0, 0))
    rewards = [result.reward for result in reach_and_close(env, 80)]
    assert rewards[-1] == 1.75
    assert {0.25, 0.0} <= set(rewards)
    env.close()
    wrong = make("PickCube-v1", info_reward={"is_grapsed": 1.0})
    with pytest.raises(UnknownNameError, match="Did you mean 'is_grasped'"):
        wrong.reset(Start(0, 0, 0))


# -- asking the simulator --------------------------------------------------------------------------------------------


def test_without_vulkan_asking_the_simulator_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for variable in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        monkeypatch.setenv(variable, str(tmp_path / "none.json"))
    with pytest.raises(RendererUnavailableError, match=r"no Vulkan device.*\n.*make vulkan"):
        ManiSkillEnv({"id": "PickCube-v1", "control_mode": "pd_joint_pos"})


def test_an_unknown_control_mode_is_found_by_asking_the_simulator(vulkan, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UnknownNameError, match="Did you mean 'pd_ee_delta_pos'"):
        ManiSkillEnv({"id": "PickCube-v1", "control_mode": "pd_ee_delta_poes"})


@pytest.mark.slow
def test_wrong_arguments_and_robots_and_missing_files_are_found_by_asking_the_simulator(vulkan, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("MS_ASSET_DIR", str(tmp_path))
    with pytest.raises(AssetsMissingError, match=r"PickSingleYCB-v1 needs files .*: ycb") as caught:
        ManiSkillEnv({"id": "PickSingleYCB-v1"}, instruction="pick it up")
    assert caught.value.remedy == "python -m mani_skill.utils.download_asset ycb -y"
    with pytest.raises(ConfigError, match="unexpected keyword argument 'obj_set'"):
        ManiSkillEnv({"id": "PickCube-v1", "task_kwargs": {"obj_set": "train"}})
    with pytest.raises(UnknownNameError, match=r"unknown robot 'pandas'\. Did you mean 'panda'"):
        ManiSkillEnv({"id": "PickCube-v1", "robot_uids": "pandas"})
    with pytest.raises(AssetsMissingError, match="xarm6"):
        ManiSkillEnv({"id": "PickCube-v1", "robot_uids": "xarm6_robotiq"})
    other = ManiSkillEnv({"id": "PickCube-v1", "robot_uids": "fetch"}, state=("qpos",)).spec
    assert (other.action_dim, other.obs["state"].shape) == (12, (15,))


@pytest.mark.slow
@pytest.mark.parametrize("task", INSTRUCTIONS)
def test_the_table_says_what_the_simulator_says(monkeypatch, tmp_path, task):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for mode in ("pd_ee_delta_pose", "pd_ee_target_delta_pos"):
        params = SimParams(task, mode)
        assert facts.ask(params) == facts._from_table(params)
