"""What of the model follows from the env: ``model=auto``, sizes that nobody gives, and what a policy leaves out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from embodied import cli, train
from embodied.errors import ConfigError, UnknownKeyError
from embodied.parallel.group import Group
from embodied.run.build.preflight import check
from embodied.schema.compose.compose import Composed, compose

FOLDER = str(Path(__file__).parents[1] / "config")
ARM = ("env=fake", "env.train.state_dim=5", "env.train.action_dim=3", "runner.device=cpu", "tracker=jsonl")
SMALL = (
    "image_size=[16,16]", "patch_size=8", "vision_hidden_size=16", "vision_num_layers=2", "hidden_size=16",
    "vision_num_attention_heads=2", "intermediate_size=24", "num_hidden_layers=2", "num_attention_heads=2",
)  # fmt: skip
RUN = (
    *ARM, "model=auto", *(f"actor.model.{one}" for one in SMALL), "env.num_workers=1", "env.train.max_episode_steps=8",
    "env.eval.max_episode_steps=8", "env.train.reward_mode=dense", "env.eval.video_cfg.save_video=false",
    "algorithm.rollout_epoch=2", "runner.save_interval=1", "runner.val_check_interval=-1",
    "env.eval.episodes_per_task=1", "runner.experiment_name=first", "--config-dir", FOLDER,
)  # fmt: skip
OFT, MLP = "embodied.models.openvla_oft.build_policy", "embodied.models.mlp.MLPPolicy"
SIZES = ("num_images_in_input", "use_proprio", "proprio_dim", "action_dim")


def settled(*words: str) -> Composed:
    return check(compose([*ARM, *words], "train", [FOLDER]), Group()).composed


def model(*words: str) -> dict[str, object]:
    return settled(*words).resolved["actor"]["model"]


@pytest.mark.parametrize(
    ("words", "target", "sizes"),
    [
        ((), OFT, (2, True, 5, 3)),
        (("env.train.cameras=1",), OFT, (1, True, 5, 3)),
        (("env.train.pictures=false",), MLP, (None,) * 4),
        (("env.train.num_actions=4",), MLP, (None,) * 4),
    ],
)
def test_auto_takes_the_model_and_the_sizes_of_the_env(words, target, sizes):
    found = model("model=auto", *words)
    assert found["_target_"] == target
    assert tuple(map(found.get, SIZES)) == sizes


def test_auto_changes_the_model_alone_and_says_what_it_chose():
    asked, found = compose([*ARM, "model=auto"], "train", [FOLDER]), settled("model=auto")
    assert ("model=auto", "openvla_oft_quickstart") in found.head
    assert {**asked.resolved, "actor": None} == {**found.resolved, "actor": None}
    assert found.config.runner.experiment_name == "fake-auto-grpo"
    assert found.config.actor.model.model_extra["num_images_in_input"] == 2


def test_a_language_model_is_named_by_the_user():
    with pytest.raises(ConfigError, match="env takes text") as raised:
        check(compose(["env=arithmetic", "model=auto"]), Group())
    assert "model=causal_lm_tiny" in raised.value.remedy


def test_keys_of_the_chosen_model_are_taken_and_others_refused():
    assert model("model=auto", "actor.model.lora_rank=4", "actor.model.is_lora=true")["lora_rank"] == 4
    with pytest.raises(UnknownKeyError, match=r"actor\.model\.stop_token"):
        model("model=auto", "env.train.pictures=false", "actor.model.stop_token=false")


def test_sizes_of_a_named_model_are_the_envs_unless_they_are_given():
    assert tuple(map(model("model=openvla_oft_tiny").get, SIZES)) == (1, True, 5, 3)
    given = model("model=openvla_oft_tiny", "actor.model.action_dim=7", "actor.model.use_proprio=false")
    assert tuple(map(given.get, SIZES)) == (1, False, 8, 7)


def test_a_large_model_with_random_weights_takes_the_sizes_of_the_env():
    found = model("model=openvla_oft", "actor.model.model_path=null", "actor.model.unnorm_key=null")
    assert tuple(map(found.get, SIZES)) == (1, False, 8, 3)


def test_a_checkpoint_keeps_its_sizes():
    shipped = "actor.model.model_path=package:embodied.models.openvla_oft/policies/libero_object"
    found = model("model=openvla_oft_quickstart_libero", shipped, "env.train.cameras=1")
    assert tuple(map(found.get, SIZES)) == (2, True, 8, 7)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("model=openvla_oft_tiny",), ["camera camera1 (actor.model.num_images_in_input=1)"]),
        (("model=openvla_oft_tiny", "env.train.cameras=1"), []),
        (("model=openvla_oft_quickstart",), []),
        (("model=mlp",), ["pictures (camera0, camera1): this model sees the state alone"]),
        (
            ("model=openvla_oft_quickstart", "actor.model.proprio_dim=3", "actor.model.use_proprio=false"),
            ["the state: actor.model.proprio_dim=3 has no effect without actor.model.use_proprio=true"],
        ),
        (("model=openvla_oft_quickstart", "actor.model.use_proprio=false"), []),
    ],
)
def test_what_a_policy_does_not_read_is_said_once(words, said):
    assert [text for name, text in settled(*words).head if name == "not read"] == said


def test_cfg_says_the_values_and_where_they_come_from(capsys):
    assert train.main([*ARM, "model=auto", "--cfg=origin", "--config-dir", FOLDER]) == 0
    lines = {line.partition(":")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "proprio_dim: 5  # derived from env.train._target_; env.train._target_: " in lines["actor.model.proprio_dim"]
    assert lines["actor.model._target_"].endswith("model=openvla_oft_quickstart")
    assert "config/model/openvla_oft_quickstart.yaml, line" in lines["actor.model.patch_size"]


def test_cfg_is_printed_where_the_env_cannot_be_asked(capsys):
    assert train.main([*ARM, "model=auto", "env.train.fault=no-such", "--cfg", "--config-dir", FOLDER]) == 0
    printed = capsys.readouterr()
    assert "no-such' is not one of" in printed.err
    assert yaml.safe_load(printed.out)["actor"]["model"]["_target_"] == "embodied.models.auto.ByEnv"


def test_a_run_goes_on_and_is_evaluated_without_asking_which_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *RUN, "runner.max_epochs=1"]) == 0
    assert "openvla_oft_quickstart" in capsys.readouterr().out
    kept = yaml.safe_load(Path("runs/first/config.yaml").read_text(encoding="utf-8"))["actor"]["model"]
    assert (kept["_target_"], *map(kept.get, SIZES)) == (OFT, 2, True, 5, 3)
    origins = json.loads(Path("runs/first/origins.json").read_text(encoding="utf-8"))["of"]
    assert origins["actor.model._target_"]["kind"] == origins["actor.model.action_dim"]["kind"] == "derived"
    assert cli.main(["train", *RUN, "runner.max_epochs=2"]) == 0
    assert "after iteration 1" in capsys.readouterr().out
    assert (
        cli.main(["eval", "runs/first", "env.num_workers=1", "env.eval.video_cfg.save_video=false", "tracker=jsonl"])
        == 0
    )
    (done,) = Path("runs").glob("first-000002-eval*/eval/000000.json")
    assert json.loads(done.read_text(encoding="utf-8"))["episodes"]
