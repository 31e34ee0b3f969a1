"""ManiSkill's control step without its tensors of one row: equal to ManiSkill's own code bit by bit, or left to it."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
from embodied.envs.maniskill import ManiSkillEnv
from embodied.envs.maniskill.experts import EXPERTS
from embodied.envs.maniskill.fast import controllers, numbers, step
from embodied.envs.maniskill.fast.grasp import Grasp
from embodied.envs.maniskill.fast.step import FastStep
from maniskill_original import SIZE, check_judged_alike, compare

from embodied.types import Start

pytestmark = pytest.mark.sim
TASKS = ("PickCube-v1", "PullCube-v1", "StackCube-v1", "PegInsertionSide-v1")
MODES = ("pd_ee_delta_pose", "pd_ee_delta_pos", "pd_joint_delta_pos")


def bare(task: str, mode: str = "pd_ee_delta_pose"):
    """ManiSkill's env without a renderer, reset; cheap to build."""
    import gymnasium
    import mani_skill.envs  # noqa: F401 (registers the tasks)

    made = gymnasium.make(
        task, obs_mode="none", reward_mode="normalized_dense", control_mode=mode, sim_backend="physx_cpu",
        render_backend="none",
    )  # fmt: skip
    env = made.unwrapped
    env.reset(seed=0)
    return env


@pytest.fixture(scope="module")
def built(vulkan):
    """Gives a task's env; each is built once."""
    envs = {}

    def of(task: str):
        if task not in envs:
            envs[task] = bare(task)
        return envs[task]

    yield of
    for env in envs.values():
        env.close()


@pytest.fixture(params=TASKS)
def each(built, request):
    return built(request.param)


@pytest.fixture
def pull(built):
    return built("PullCube-v1")


# -- arithmetic ------------------------------------------------------------------------------------------------------


def test_poses_are_multiplied_and_inverted_as_by_maniskill(vulkan):
    import torch
    from mani_skill.utils.structs import Pose

    def raw(pose):
        return np.concatenate(pose).tobytes()

    drawn = np.random.default_rng(0).standard_normal((60, 2, 7)).astype(np.float32)
    drawn[..., 3:] /= np.linalg.norm(drawn[..., 3:], axis=-1, keepdims=True)
    for pair in drawn:
        theirs = [Pose.create(torch.from_numpy(row[None].copy())) for row in pair]
        a, b = (numbers.pose_of_row(pose) for pose in theirs)
        assert raw(numbers.product(a, b)) == (theirs[0] * theirs[1]).raw_pose.numpy().tobytes()
        assert raw(numbers.inverse(a)) == theirs[0].inv().raw_pose.numpy().tobytes()


def test_euler_angles_become_quaternions_as_by_maniskill(vulkan):
    import torch
    from mani_skill.utils.geometry.rotation_conversions import euler_angles_to_matrix, matrix_to_quaternion

    small = np.random.default_rng(0).uniform(-0.1, 0.1, (200, 3))
    large = np.random.default_rng(1).uniform(-3, 3, (50, 3))
    quaternions = numbers.Quaternions()
    for angles in np.concatenate([np.zeros((1, 3)), small, large]).astype(np.float32):
        theirs = matrix_to_quaternion(euler_angles_to_matrix(torch.from_numpy(angles[None]), "XYZ"))
        assert np.array(quaternions.of_euler(tuple(angles))).tobytes() == theirs.numpy().tobytes()


# -- tasks -----------------------------------------------------------------------------------------------------------


def _place(env, thing, near, offset, turn=0.0) -> None:
    """Puts a thing at ``near`` plus an offset in that pose's frame, turned about its x axis."""
    import sapien

    offset = sapien.Pose(offset, [np.cos(turn / 2), np.sin(turn / 2), 0, 0])
    thing._objs[0].pose = near.sp * offset


def _placements(env, task: str):
    """What to put where: (thing, pose to put it near, spread in m)."""
    spreads = (0.0, 0.004, 0.02, 0.1)
    if task == "PegInsertionSide-v1":
        goal = env.goal_pose
        return [(env.peg, goal, spread) for spread in spreads]
    if task == "StackCube-v1":
        import sapien
        from mani_skill.utils.structs import Pose

        above = Pose.create(env.cubeB.pose.sp * sapien.Pose([0, 0, 0.04]))
        return [(env.cubeA, above, spread) for spread in spreads]
    cube, goal = (env.cube, env.goal_site) if task == "PickCube-v1" else (env.obj, env.goal_region)
    return [(cube, near.pose, spread) for near in (goal, env.agent.tcp) for spread in spreads]


@pytest.mark.parametrize("held", [False, True])
def test_success_and_reward_are_the_tasks_own_wherever_things_are(each, held, monkeypatch):
    """With the grasp's answer given, so that each stage of a reward is reached."""
    import torch

    task, draw, found = each.spec.id, np.random.default_rng(0), set()
    if held:
        monkeypatch.setattr(each.agent, "is_grasping", lambda *given, **named: torch.tensor([True]))
        monkeypatch.setattr(Grasp, "holds", lambda self: True)
    fast = FastStep(each)
    for thing, near, spread in _placements(each, task):
        for speed in (0.0, 0.1):
            _place(each, thing, near, draw.uniform(-1, 1, 3) * spread, draw.uniform(-1, 1) * spread)
            thing._bodies[0].linear_velocity = [speed, 0, 0]
            each.agent.robot.set_qvel(np.full(9, 3 * speed, np.float32))
            found.add(tuple(value for value in check_judged_alike(each, fast).values() if isinstance(value, bool)))
    assert {stages[-1 if task == "StackCube-v1" else 0] for stages in found} == (
        {False} if held and task == "StackCube-v1" else {False, True}
    )


# -- what is not known -----------------------------------------------------------------------------------------------


@pytest.fixture
def said(caplog):
    step._say_once.cache_clear()
    caplog.set_level(logging.INFO)
    yield lambda: "\n".join(f"{record.levelname} {record.getMessage()}" for record in caplog.records)
    step._say_once.cache_clear()


def test_a_task_that_is_not_known_is_left_to_maniskill(pull, said, monkeypatch):
    class Mine(type(pull)):
        pass

    monkeypatch.setattr(pull, "__class__", Mine)
    assert FastStep(pull)._control is None, "it may read what ManiSkill's controllers note"
    Mine.__module__ = "mani_skill.envs.tasks.other"
    fast = FastStep(pull)
    assert fast._control is not None
    assert (fast._task, fast.result({}), fast.state(["qpos"])) == (None, None, None)
    FastStep(pull)
    assert said().count("INFO Mine: success and reward by ManiSkill's own code") == 1
    assert "because of the task Mine" in said()
    assert "WARNING" not in said(), "nothing is wrong with it"


def test_a_task_with_hooks_of_its_own_is_stepped_by_maniskill(pull, said, monkeypatch):
    class Mine(type(pull)):
        __module__ = "mani_skill.envs.tasks.other"

        def _before_simulation_step(self):
            pass

    monkeypatch.setattr(pull, "__class__", Mine)
    assert not FastStep(pull).act(np.zeros((1, 7), np.float32))
    assert "actions by ManiSkill's own code, which takes longer, because of the task's own _before_simulation" in said()


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("pd_ee_target_delta_pose", "hand positions that are not differences"),
        ("pd_joint_target_delta_pos", "joint positions that are not differences"),
        ("pd_joint_pos", "joint positions that are not differences"),
        ("pd_joint_vel", "the controller PDJointVelController"),
    ],
)
def test_a_controller_that_is_not_known_is_left_to_maniskill(pull, said, mode, why):
    pull.agent.set_control_mode(mode)
    fast = FastStep(pull)
    pull.agent.set_control_mode()
    assert fast._control is None
    assert fast._task is not None
    assert why in said()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda env, patch: patch.setattr("mani_skill.__version__", "3.1"), "mani_skill 3.1, where 3.0.1 is known"),
        (lambda env, patch: patch.setattr(env.scene, "gpu_sim_enabled", True), "a simulation on a GPU"),
        (lambda env, patch: patch.setattr(env, "agent", SimpleNamespace()), "the robot panda"),
    ],
)
def test_another_version_robot_or_simulation_is_left_to_maniskill(pull, said, monkeypatch, change, why):
    change(pull, monkeypatch)
    fast = FastStep(pull)
    assert (fast._control, fast._task) == (None, None)
    assert why in said()
    assert "WARNING PullCubeEnv: actions" in said(), "this task is faster elsewhere"


def test_actions_that_are_no_numbers_are_refused_by_maniskill(pull):
    fast = FastStep(pull)
    for wrong in (np.full((1, 7), np.nan), np.full((1, 7), np.inf), np.zeros((1, 6)), np.zeros((2, 7))):
        assert not fast.act(wrong.astype(np.float32))
    assert controllers.Control(pull.agent).dims == 7


# -- whole episodes --------------------------------------------------------------------------------------------------


def turn_to_the_peg(env):
    """Actions that grasp the peg from above and lift it."""

    def axis(pose, column):
        return pose.to_transformation_matrix()[0, :2, column].numpy()

    for number in range(60):
        hand, peg = env.agent.tcp.pose, env.peg.pose
        a, b = axis(hand, 0), axis(peg, 0)
        angle = np.arctan2(a[0] * b[1] - a[1] * b[0], a @ b)
        angle = (angle + np.pi / 2) % np.pi - np.pi / 2
        above = 0.1 if number < 20 else 0.0 if number < 42 else 0.2
        way = (peg.p - hand.p)[0].numpy() + np.array([0, 0, above])
        turn = -angle / 0.1 if number < 42 else 0.0
        yield np.clip([*way / 0.05, 0, 0, turn, 1 if number < 36 else -1], -1, 1).astype(np.float32)


def scripted(env, task: str, seed: int, steps: int) -> np.ndarray:
    """Actions of one who knows the way and trembles a little, so that grasps and successes are not all alike."""
    env.reset(Start(0, 0, seed))
    draw, given = np.random.default_rng(seed), []
    script = turn_to_the_peg(env._sim.env) if task.startswith("Peg") else env.expert()
    for _ in range(steps):
        tremble = 0.1 * draw.standard_normal(env.spec.action_dim).astype(np.float32)
        tremble[-1] = 0
        given.append((next(script) + tremble).clip(-1, 1))
        env.step(given[-1])
    return np.stack(given)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("task", TASKS)
def test_whole_episodes_equal_the_original(vulkan, look, task, mode):
    """Random actions beyond the limits, and those of an expert: physics, rewards, success, info, observations,
    pictures."""
    state = {"PickCube-v1": ("is_grasped", "goal_pos"), "PullCube-v1": ("goal_pos",)}.get(task, ())
    env = ManiSkillEnv({"id": task, "control_mode": mode, **SIZE}, state=("qpos", "qvel", "tcp_pose", *state))
    env.prepare()
    steps, dims = env.spec.max_episode_steps, env.spec.action_dim
    steps -= steps % 4
    drawn = np.random.default_rng(1).uniform(-1.3, 1.3, (steps, dims)).astype(np.float32)
    drawn[:, 2] -= 0.4
    episodes = [(5, drawn)]
    if "joint" not in mode and (dims == 7 or task in EXPERTS):
        steps = min(steps, 60)
        episodes += [(seed, scripted(env, task, seed, steps)) for seed in (6, 7)]
    for seed, given in episodes:
        infos = compare(env, look, task, mode, seed, given)
        # Nobody inserts the peg here: ManiSkill's own script plans with mplib, and mplib 0.1.1 ends the process beside
        # numpy 2. That a peg in the hole is judged alike says test_success_and_reward_are_the_tasks_own.
        if seed != 5 and not task.startswith("Peg"):
            assert any(info["success"] for info in infos)
    assert env._sim._fast._control is not None
    env.close()
