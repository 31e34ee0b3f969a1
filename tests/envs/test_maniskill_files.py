"""What is known of ManiSkill without its simulator, and clear errors for wrong input."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from embodied.envs.maniskill import ManiSkillEnv, rendering
from embodied.envs.maniskill import env as env_module
from embodied.envs.maniskill import facts as facts_module
from embodied.envs.maniskill.env import SEED_STREAM
from embodied.envs.maniskill.facts import INSTRUCTIONS, SimParams, TaskFacts, check_task, package_folder, registered
from embodied.envs.maniskill.rendering import check_vulkan

from embodied.errors import (
    AssetsMissingError,
    ConfigError,
    RendererUnavailableError,
    SpecMismatchError,
    UnknownKeyError,
    UnknownNameError,
)
from embodied.runtime.plan import EVAL_SEEDS
from embodied.types import Start

PICK = {"id": "PickCube-v1"}
RUN = subprocess.run


@pytest.mark.parametrize("task", INSTRUCTIONS)
def test_known_tasks(task):
    spec = ManiSkillEnv({"id": task}).spec
    assert spec.tasks == (INSTRUCTIONS[task],)
    assert (spec.action_dim, spec.action_low, spec.action_high) == (7, (-1.0,) * 7, (1.0,) * 7)
    assert spec.obs["images"].shape == (1, 128, 128, 3)
    assert spec.obs["state"].shape == (8,)
    assert 50 <= spec.max_episode_steps <= 250
    assert spec.num_init_states == (1,)


@pytest.mark.parametrize(("mode", "dims"), [("pd_ee_delta_pose", 7), ("pd_ee_delta_pos", 4), ("pd_joint_delta_pos", 8)])
def test_action_dimension_is_the_controllers(mode, dims):
    assert ManiSkillEnv({**PICK, "control_mode": mode}).spec.action_dim == dims


def test_names_are_read_from_the_package_and_the_users_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("@register_env(\n    'Mine-v1', max_episode_steps=5)\nclass Mine: ...\n", encoding="utf-8")
    names = registered(package_folder(), str(file))
    assert {"PickCube-v1", "TurnFaucet-v1", "Mine-v1"} <= set(names)
    assert len(names) > 60
    check_task(SimParams("Mine-v1", task_file=str(file)))


def base(view):
    return {"base_camera": view}


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"init_params": {"id": "PickCub-v1"}}, UnknownNameError, "'PickCub-v1'. Did you mean 'PickCube-v1'?"),
        ({"init_params": {}}, ConfigError, "id is None, expected a task's name"),
        ({"init_params": {**PICK, "camera_width": 64}}, UnknownKeyError, "Did you mean 'camera_widths'?"),
        (
            {"init_params": {**PICK, "camera_widths": 8}},
            ConfigError,
            "camera_widths is 8, expected a whole number from",
        ),
        ({"init_params": {**PICK, "camera_names": []}}, ConfigError, "expected a list of names"),
        (
            {"init_params": {**PICK, "camera_views": {"top": {"fov": 1}}}},
            UnknownNameError,
            "unknown camera 'top'",
        ),
        ({"init_params": {**PICK, "camera_views": base({"eyes": 1})}}, UnknownKeyError, "Did you mean 'eye'?"),
        ({"init_params": {**PICK, "camera_views": base({"eye": [1, 0, 1]})}}, ConfigError, "has eye alone"),
        (
            {"init_params": {**PICK, "camera_views": base({"eye": [1, 0], "target": [0, 0, 0]})}},
            ConfigError,
            "eye is [1, 0], expected three numbers",
        ),
        ({"init_params": {**PICK, "camera_views": base({"fov": 60})}}, ConfigError, "fov is 60, expected radians"),
        (
            {"init_params": {**PICK, "camera_names": ["hand_camera"]}},
            UnknownNameError,
            "unknown camera of PickCube-v1 'hand_camera'",
        ),
        ({"init_params": {**PICK, "obs_mode": "state"}}, UnknownNameError, "unknown obs_mode 'state'"),
        ({"init_params": PICK, "state": ["obj_pose"]}, UnknownNameError, "unknown state of PickCube-v1 'obj_pose'"),
        ({"init_params": PICK, "renderer": "egl"}, UnknownNameError, "unknown renderer 'egl'"),
        ({"init_params": PICK, "num_init_states": 0}, ConfigError, "num_init_states is 0"),
        ({"init_params": PICK, "init_state_option": "episode_id"}, ConfigError, "num_init_states is not set"),
        ({"init_params": {"id": "PushT-v1"}}, ConfigError, "no instruction is known for PushT-v1"),
        ({"init_params": PICK, "task_file": "/nowhere.py"}, AssetsMissingError, "there is no file /nowhere.py"),
    ],
)
def test_wrong_input_is_refused(given, error, says):
    with pytest.raises(error) as caught:
        ManiSkillEnv(**given)
    assert says in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize("package", ["mani_skill", "sapien"])
def test_missing_package(monkeypatch, package):
    found = facts_module.find_spec
    monkeypatch.setattr(facts_module, "find_spec", lambda name: None if name == package else found(name))
    with pytest.raises(AssetsMissingError, match=f"'{package}', which is not installed") as caught:
        ManiSkillEnv(PICK)
    assert caught.value.remedy == "pip install 'embodied-rl[maniskill]'"


def test_the_benchmark_of_25_objects_says_how_to_get_it(tmp_path, monkeypatch):
    with pytest.raises(AssetsMissingError, match=r"there is no file .*put_on_in_scene_multi\.py") as caught:
        ManiSkillEnv({"id": "PutOnPlateInScene25Main-v3"}, task_file="RLinf/put_on_in_scene_multi.py")
    assert "hf download --repo-type dataset RLinf/maniskill_assets" in caught.value.remedy
    assert "download_asset bridge_v2_real2sim -y" in caught.value.remedy
    assert "download_asset widowx250s -y" in caught.value.remedy


def stand_in(tmp_path: Path, monkeypatch, **given) -> ManiSkillEnv:
    """The benchmark's env with files of the same form, and no simulator behind it."""
    code, objects = tmp_path / "tasks.py", tmp_path / "model_db.json"
    code.write_text(
        "@register_env('PutOnPlateInScene25Main-v3', max_episode_steps=80)\nclass Task: ...\n", encoding="utf-8"
    )
    objects.write_text(json.dumps({f"object_{i}": {"name": f"thing {i}"} for i in range(25)}), encoding="utf-8")
    facts = TaskFacts(80, 5.0, ("3rd_view_camera",), (-1.0,) * 7, (1.0,) * 7, {"qpos": 8, "proprio": 8})
    monkeypatch.setattr(env_module, "facts_of", lambda params: facts)
    init_params = {"id": "PutOnPlateInScene25Main-v3", "camera_names": ["3rd_view_camera"]}
    defaults = {"instruction": "put {name} on plate", "num_init_states": 100, "init_state_option": "episode_id"}
    return ManiSkillEnv(init_params, task_file=str(code), objects_file=str(objects), **{**defaults, **given})


def test_each_object_is_a_task_and_starts_are_numbered_object_first(tmp_path, monkeypatch):
    env = stand_in(tmp_path, monkeypatch, objects=[16, 25])
    assert env.spec.tasks == tuple(f"put thing {i} on plate" for i in range(16, 25))
    assert env.spec.num_init_states == (100,) * 9
    assert env.seed_and_options(Start(2, 7, 5)) == (0, {"episode_id": 207})


@pytest.mark.parametrize(
    ("given", "says"),
    [({"objects": [16, 26]}, "has 25"), ({"instruction": "put it on plate"}, "expected a sentence with '{name}'")],
)
def test_wrong_objects_are_refused(tmp_path, monkeypatch, given, says):
    with pytest.raises(ConfigError, match=says):
        stand_in(tmp_path, monkeypatch, **given)


def test_starts_of_training_and_evaluation_never_meet():
    assert SEED_STREAM == EVAL_SEEDS
    free, few = ManiSkillEnv(PICK), ManiSkillEnv(PICK, num_init_states=3)
    for env, states in ((free, [0]), (few, [0, 1, 2])):
        trained = {env.seed_and_options(Start(0, i, seed))[0] for i in states for seed in range(20)}
        evaluated = {env.seed_and_options(Start(0, i, EVAL_SEEDS + seed))[0] for i in states for seed in range(20)}
        assert not trained & evaluated
        assert len(trained) == len(evaluated) == (20 if env is free else 3)


@pytest.mark.parametrize(
    ("given", "has"),
    [
        (PICK, True),
        ({**PICK, "control_mode": "pd_ee_delta_pos"}, True),
        ({**PICK, "control_mode": "pd_joint_delta_pos"}, False),
        ({"id": "RollBall-v1"}, False),
    ],
)
def test_only_an_env_with_an_expert_offers_it(given, has):
    assert hasattr(ManiSkillEnv(given), "expert") == has


# -- renderer --------------------------------------------------------------------------------------------------------


def _devices(monkeypatch, works: dict[str, tuple[bool, str]]) -> list[str]:
    tried: list[str] = []

    def attempt(name: str) -> tuple[bool, str]:
        tried.append(name)
        return works[name]

    monkeypatch.setattr(rendering, "_try_device", attempt)
    return tried


def test_takes_the_software_renderer_when_there_is_no_gpu(monkeypatch):
    tried = _devices(monkeypatch, {"gpu": (False, "no device"), "cpu": (True, "llvmpipe")})
    choice = check_vulkan()
    assert (choice.name, choice.reason) == ("cpu", "Vulkan on llvmpipe; gpu: no device")
    assert tried == ["gpu", "cpu"]
    assert check_vulkan("cpu").reason == "Vulkan on llvmpipe; asked for by renderer"


def test_no_driver_is_an_error_with_the_command(monkeypatch):
    _devices(monkeypatch, {"gpu": (False, "no device"), "cpu": (False, "ErrorIncompatibleDriver")})
    with pytest.raises(RendererUnavailableError, match="gpu: no device; cpu: ErrorIncompatibleDriver") as caught:
        ManiSkillEnv(PICK).preflight()
    assert "mesa-vulkan-drivers" in caught.value.remedy


def test_a_machine_without_any_vulkan_driver(monkeypatch):
    """The real attempt, with the loader pointed at no driver."""
    for variable in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        monkeypatch.setenv(variable, "/nonexistent/driver.json")
    with pytest.raises(RendererUnavailableError, match="cpu: RuntimeError"):
        check_vulkan("cpu")


def test_another_version_of_the_task_is_refused_before_any_worker(monkeypatch):
    env = ManiSkillEnv(PICK)
    other = TaskFacts(50, 20.0, ("base_camera",), (-1.0,) * 6, (1.0,) * 6, {"qpos": 9, "proprio": 8})
    monkeypatch.setattr(env_module, "check_vulkan", lambda renderer: None)
    monkeypatch.setattr(env_module, "ask", lambda params: other)
    with pytest.raises(SpecMismatchError, match=r"PickCube-v1 is .*, expected"):
        env.preflight()


def test_constructing_is_cheap_and_leaves_the_process_as_it_was():
    script = """
import os, sys
import embodied.envs.maniskill
environ = dict(os.environ)
embodied.envs.maniskill.ManiSkillEnv({"id": "PickCube-v1"})
assert dict(os.environ) == environ
loaded = {name.split(".")[0] for name in sys.modules}
assert not loaded & {"mani_skill", "sapien", "torch", "gymnasium"}, loaded
"""
    subprocess.run([sys.executable, "-c", script], check=True, stdin=subprocess.DEVNULL, timeout=60)


# -- asking the simulator --------------------------------------------------------------------------------------------


def _answers(monkeypatch, tmp_path, script: str) -> None:
    """Replace the process that asks by a script; the cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def other(command, **options):
        return RUN([sys.executable, "-c", script], **options)

    monkeypatch.setattr(facts_module.subprocess, "run", other)


def test_an_answer_is_kept_and_asked_for_once(monkeypatch, tmp_path):
    facts = {
        "max_episode_steps": 7, "control_hz": 20.0, "cameras": ["a"], "action_low": [-1.0], "action_high": [1.0],
        "state": {"qpos": 9},
    }  # fmt: skip
    _answers(monkeypatch, tmp_path, f"import sys; sys.stdin.read(); print('hello'); print('''{json.dumps(facts)}''')")
    params = SimParams("PickCube-v1", control_mode="pd_joint_pos")
    asked = facts_module.facts_of(params)
    assert asked == TaskFacts(7, 20.0, ("a",), (-1.0,), (1.0,), {"qpos": 9})
    _answers(monkeypatch, tmp_path, "raise SystemExit(3)")
    assert facts_module.facts_of(params) == asked
    with pytest.raises(ConfigError, match="could not build PickCube-v1: exit status 3"):
        facts_module.facts_of(SimParams("PickCube-v1", control_mode="pd_joint_vel", robot_uids="fetch"))
    (file,) = (tmp_path / "embodied" / "maniskill").iterdir()
    file.write_text("{", encoding="utf-8")  # cut short
    _answers(monkeypatch, tmp_path, f"print('''{json.dumps(facts)}''')")
    assert facts_module.facts_of(params) == asked


def test_an_error_of_the_asked_process_is_raised_here(monkeypatch, tmp_path):
    answer = {"error": "AssetsMissingError", "message": "no meshes", "remedy": "download them"}
    _answers(monkeypatch, tmp_path, f"print('''{json.dumps(answer)}''')")
    with pytest.raises(AssetsMissingError, match="no meshes"):
        facts_module.ask(SimParams("PickSingleYCB-v1"))
