"""Every group file that is shipped composes into a configuration that the schema accepts."""

from pathlib import Path

import pytest

from embodied import sft, train
from embodied.schema.compose.compose import compose

CONFIG = Path(__file__).parents[2] / "config"
PATH = "actor.model.model_path=/a/checkpoint"  # released models are nothing without one

BASE = ["actor.model.base.url=ws://127.0.0.1:1", "algorithm=sac", "algorithm.group_size=1"]
SERVED = {"served": ["actor.model.url=ws://127.0.0.1:1"], "head_residual": BASE, "head_noise": BASE}
"""Models that are nothing without a server, and their keys."""

FAST = ("math_quickstart", "quickstart_libero")
TRIED = (
    *FAST,
    "quickstart_libero_ppo",
    "quickstart_libero_whole",
    "libero_suite",
    "math_calculator",
    "math_quickstart_sft",
    "math_calculator_sft",
    "quickstart_grpo",
    "quickstart_flow_grpo",
    "quickstart_flow_ppo",
    "quickstart_ppo",
    "laptop",
)
"""Experiments that need nothing but what the tests have."""
COMPOSED = {
    "eval": "needs a run's checkpoint",
    "gym": "needs the id of an env (tests/envs/test_gym_env.py)",
    "sft": "needs demonstrations; math_quickstart_sft builds on it",
    "quickstart_sft": "needs demonstrations", "quickstart_libero_sft": "needs demonstrations",
    "quickstart_flow_sft": "needs demonstrations", "quickstart_flow_libero_sft": "needs demonstrations",
    "quickstart_flow_noise": "needs the folder of a clone", "quickstart_head": "needs a server of the clone",
    "quickstart_flow_head": "needs a server of the clone", "quickstart_libero_head": "needs a server of the policy",
    "libero_smolvla": "needs the folder of a SmolVLA", "quickstart_flow_libero": "needs a run of its sft",
    "quickstart_metaworld_sft": "needs demonstrations", "quickstart_metaworld": "needs the package metaworld",
    "quickstart_metaworld_ppo": "the same",
    "math": "needs problems of the user (tests/run/test_math_run.py)",
    "math_smollm": "needs weights from a package", "math_smollm_sft": "needs weights from a package",
    "libero_grpo": "needs released weights of 7.6 B parameters", "libero_24gb": "the same", "libero_12gb": "the same",
    "libero_suite_sft": "needs demonstrations",
    "maniskill_gpu": "needs a GPU that simulates",
}  # fmt: skip
"""Those that are composed alone, and why."""


def names(group: str) -> list[str]:
    return sorted(path.stem for path in (CONFIG / group).glob("*.yaml"))


@pytest.mark.parametrize("name", names("env"))
def test_env(name):
    composed = compose([f"env={name}"])
    assert composed.resolved["env"]["train"]["_target_"].startswith("embodied.envs.")


@pytest.mark.parametrize("name", names("experiment"))
def test_experiment(name):
    cloning = name.endswith("sft")
    data = ["data.train_data_paths=[demos/some]"] if cloning else []
    compose([f"experiment={name}", PATH, *data], "sft" if cloning else "train")


def test_every_experiment_is_tried_or_says_what_it_needs():
    assert sorted([*TRIED, *COMPOSED]) == names("experiment")


@pytest.mark.parametrize("name", [pytest.param(one, marks=() if one in FAST else pytest.mark.slow) for one in TRIED])
def test_an_experiment_passes_a_dry_run(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    entry = sft if name.endswith("sft") else train
    assert entry.main([f"experiment={name}", "runner.dry_run=true"]) == 0
    said = capsys.readouterr().out
    assert "memory of the process" in said
    assert "not counted" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", names("model"))
def test_model(name):
    entry = "eval" if name == "served" else "train"  # its weights are the server's
    assert compose([f"model={name}", *SERVED.get(name, [PATH])], entry).resolved["actor"]["model"]["_target_"]


def test_smollm_is_judged_by_what_it_was_shown_and_trains_on():
    cloned = compose(["experiment=math_smollm_sft"], "sft").resolved
    trained = compose(["experiment=math_smollm"]).resolved
    assert trained["actor"]["model"] == cloned["actor"]["model"]
    shown, sides = cloned["data"]["options"], (trained["env"]["train"], trained["env"]["eval"])
    assert [side["tasks"] for side in sides] == [shown["tasks"]] * 2
    assert shown["dataset_seed"] > max(side["dataset_seed"] + side["count"] for side in sides)


def test_the_quickstart_trains_with_the_moved_camera_what_it_cloned_with_the_other():
    cloned = compose(["experiment=quickstart_sft"], "sft").resolved
    for name in ("grpo", "ppo"):
        trained = compose([f"experiment=quickstart_{name}"]).resolved
        assert trained["actor"]["model"] == cloned["actor"]["model"]
        before, after = (c["env"]["train"]["init_params"]["camera_views"] for c in (cloned, trained))
        assert before["base_camera"]["fov"] == after["base_camera"]["fov"]
        moved = [b - a for a, b in zip(before["base_camera"]["eye"], after["base_camera"]["eye"], strict=True)]
        assert moved == [0, 0.055, 0]
        for side in ("train", "eval"):
            assert trained["env"][side]["init_params"]["camera_views"] == after
            assert trained["env"][side]["state"] == cloned["env"][side]["state"]


def test_a_flow_policy_trains_with_a_moved_camera_what_it_cloned_with_the_other():
    cloned = compose(["experiment=quickstart_flow_sft"], "sft").resolved
    views = cloned["env"]["train"]["init_params"]["camera_views"]["base_camera"]
    for name, values in (("grpo", False), ("ppo", True)):
        trained = compose([f"experiment=quickstart_flow_{name}"]).resolved
        assert trained["actor"]["model"] == {**cloned["actor"]["model"], "value_head": values}
        for side in ("train", "eval"):
            moved = {place: [value[0], 0.035, value[2]] for place, value in views.items() if place != "fov"}
            assert trained["env"][side]["init_params"]["camera_views"]["base_camera"] == {**views, **moved}


def test_the_calculator_is_called_in_the_way_that_was_cloned():
    cloned = compose(["experiment=math_calculator_sft"], "sft").resolved
    trained = compose(["experiment=math_calculator"]).resolved
    assert trained["actor"]["model"] == cloned["actor"]["model"]
    assert cloned["data"]["options"]["call_share"] == 1.0  # one way to answer: there is no style to choose
    assert trained["env"]["eval"] == {**cloned["env"]["eval"], "video_cfg": trained["env"]["eval"]["video_cfg"]}
    for sampling in ("sampling_params", "val_sampling_params"):
        assert trained["algorithm"][sampling]["stop"] == ["</calc>"]
    for side in ("train", "eval"):
        most = max(cloned["data"]["options"]["terms"])
        assert min(trained["env"][side]["data_args"]["terms"]) > most
