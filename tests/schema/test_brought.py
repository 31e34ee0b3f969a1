"""What a checkpoint brings into a configuration, what wins over it, and what it may not name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from brought_folders import CONFIG, export, rewrite, run

from embodied.errors import AssetsMissingError, CheckpointError, ConfigError, DamagedCheckpointError
from embodied.lib.trusted import check_trusted_env
from embodied.lib.weights_folder import as_override, find
from embodied.parallel.group import Group
from embodied.run.arguments import parse_argv
from embodied.run.build import brought
from embodied.run.build.preflight import Rules, check
from embodied.schema.compose.brought import sections
from embodied.schema.compose.compose import Composed, compose
from embodied.testing import FakeEnv
from embodied.types import ContinuousAction, DiscreteAction

HIDDEN = "actor.model.seed=7"


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def composed(*words: str, config_name: str = "eval") -> Composed:
    overrides, _, _ = parse_argv(words, config_name)
    return compose(overrides, config_name, [CONFIG])


def plain(*words: str, config_name: str = "eval") -> dict[str, Any]:
    return composed(*words, config_name=config_name).resolved


def rows(*words: str, config_name: str = "eval") -> dict[str, Sequence[str]]:
    """The table of what differs, by key."""
    checked = check(composed(*words, config_name=config_name), Group())
    table = brought.table(checked.composed, {"train": checked.train, "eval": checked.eval})
    return {row[0]: row[1:] for row in table[1:]}


def test_a_folder_among_the_words_is_a_checkpoint():
    run("a", iterations=("000002", "000010", "000010+003", "000009"))
    assert find("runs/a").folder == Path("runs/a/checkpoints/000010+003"), "the newest of a run"
    assert find("runs/a/checkpoints").folder == Path("runs/a/checkpoints/000010+003")
    assert find("runs/a/checkpoints/000002").folder == Path("runs/a/checkpoints/000002")
    assert find(str(export(Path("out"), {"_target_": "embodied.testing.FakePolicy"}))).is_export
    assert parse_argv(["runs/a", "runner.seed=3"], "eval")[0] == ["checkpoint=runs/a", "runner.seed=3"]
    Path("runs/a").rename("runs/seed=3")
    assert parse_argv(["runs/seed=3"], "eval")[0] == ["checkpoint=runs/seed=3"], "a path that exists wins"
    Path("env=fake").mkdir()
    assert parse_argv(["env=fake"], "eval")[0] == ["env=fake"], "it holds no weights"
    assert plain("runs/seed=3")["runner"]["experiment_name"] == "seed-3-000010+003-eval"


def test_a_folder_in_an_installed_package_is_named_like_any_other():
    """As the policy that comes with this one."""
    word = "package:embodied.models.openvla_oft/policies/libero_object"
    assert as_override(word) == f"checkpoint={word}"
    assert find(word).is_export
    assert find(word).folder.name == "libero_object"
    for other, error, said in (
        ("package:embodied.models.openvla_oft/policies/no", CheckpointError, "no folder package:.*no is missing"),
        ("package:embodied.no_such/policy", AssetsMissingError, "no package .embodied.no_such.: .embodied. is inst"),
        ("package:no_such_policies/policy", AssetsMissingError, "'no_such_policies' of package:.* is not installed"),
        ("package:..", AssetsMissingError, "is not installed"),
        ("package:", AssetsMissingError, "is not installed"),
    ):  # fmt: skip
        with pytest.raises(error, match=said):
            find(other)


def test_words_that_can_be_no_folder_are_overrides():
    long = f"runner.first=[{'x' * 5000}]"
    assert parse_argv([long, "~env.zzz", "~nobody.of_this_name"], "train")[0] == [
        long,
        "~env.zzz",
        "~nobody.of_this_name",
    ]
    for word in ("a" * 5000, "~nobody-of-this-name/runs"):
        with pytest.raises(CheckpointError, match="no folder can be found by"):
            find(word)


def test_a_word_that_names_nothing_is_told_what_there_is():
    run("first")
    with pytest.raises(ConfigError) as failed:
        composed("runs/frist")
    assert "'runs/frist' is not of the form KEY=VALUE, and there is no folder of that name" in str(failed.value)
    assert "Did you mean 'runs/first'?" in str(failed.value)
    assert "the newest runs with checkpoints here: runs/first" in str(failed.value)
    Path("empty").mkdir()
    with pytest.raises(CheckpointError, match="no checkpoint at empty"):
        composed("empty")
    for words in (("runs/first", "runs/first"), ("runs/first", "runner.ckpt_path=elsewhere")):
        with pytest.raises(ConfigError, match="a command takes one checkpoint"):
            composed(*words)
    with pytest.raises(ConfigError, match="without a checkpoint"):
        composed("runs/first", config_name="demos")


LEARNT = (HIDDEN, "env.train.cameras=3", "env.eval.max_episode_steps=8",
          "env.eval.episodes_per_task=3", "algorithm.val_sampling_params.temperature=0.5", "runner.seed=99",
          "env.train.max_episode_steps=11")  # fmt: skip


def test_it_brings_model_env_rules_and_seed_and_the_command_line_wins():
    path = run("a", *LEARNT)
    found = plain("runs/a")
    assert found["runner"]["ckpt_path"] == str(path)
    assert found["actor"]["model"]["_target_"] == "embodied.testing.FakePolicy"
    assert found["actor"]["model"]["seed"] == 7
    assert [found["env"][side]["cameras"] for side in ("train", "eval")] == [3, 3]
    assert [found["env"]["eval"][key] for key in ("max_episode_steps", "episodes_per_task")] == [8, 3]
    assert found["algorithm"]["val_sampling_params"]["temperature"] == 0.5
    assert found["runner"]["seed"] == 99
    assert found["env"]["eval"]["video_cfg"]["video_base_dir"] == "videos/a-000001-eval/eval", "its own folder"
    own = plain("runs/a", "env.eval.episodes_per_task=5", "runner.seed=4", "actor.model.seed=8")
    assert own["env"]["eval"]["episodes_per_task"] == 5
    assert (own["runner"]["seed"], own["actor"]["model"]["seed"]) == (4, 8)
    assert own["env"]["eval"]["cameras"] == 3
    assert not rows("runs/a"), "nothing differs"
    assert rows("runs/a", "env.eval.episodes_per_task=5") == {
        "env.eval.episodes_per_task": ["3", "5", "success is measured otherwise"]
    }


def test_origins_say_what_the_checkpoint_has_set():
    path = run("a", *LEARNT)
    steps = composed("runs/a", "env.eval.max_episode_steps=9").trail
    assert steps is not None
    assert steps.steps["actor.model.seed"].words == f"checkpoint {path}"
    assert "env.eval.max_episode_steps" not in steps.steps


def test_another_env_of_the_class_keeps_what_the_policy_sees():
    run("a", "env.train.cameras=3", "env.train.num_tasks=5", "protocol.name=mine", "env.train.success_distance=0.1")
    found = plain("runs/a", "env=fake")["env"]
    assert [found[side]["cameras"] for side in ("train", "eval")] == [3, 3]
    assert found["eval"]["success_distance"] == 0.3, "of the file that was chosen"
    assert "num_tasks" not in found["eval"]
    assert plain("runs/a", "env=fake", "env.train.cameras=1", "env.eval.cameras=1")["env"]["eval"]["cameras"] == 1
    assert "fake-eval" in plain("runs/a", "env=fake")["runner"]["experiment_name"]


def test_a_protocol_on_the_command_line_takes_the_place_of_that_of_the_run(tmp_path):
    sets = {"env.eval.max_episode_steps": 8, "algorithm.val_sampling_params.do_sample": True}
    run("a", "env.eval.episodes_per_task=3", protocol__name="mine", protocol__sets=sets, protocol__held_out_states=2,
        env__eval__max_episode_steps=8, algorithm__val_sampling_params={"do_sample": True})  # fmt: skip
    kept = plain("runs/a")
    assert kept["protocol"]["name"] == "mine"
    assert kept["protocol"]["held_out_states"] == 2
    assert kept["env"]["eval"]["max_episode_steps"] == 8
    assert kept["algorithm"]["val_sampling_params"]["do_sample"] is True
    own = tmp_path / "own" / "protocol"
    own.mkdir(parents=True)
    made = {"name": "theirs", "sets": {"env.eval.episodes_per_task": 7},
            "of_model": {"embodied.testing.FakePolicy": {"actor.model.seed": 3}}}  # fmt: skip
    (own / "theirs.yaml").write_text(yaml.safe_dump(made), encoding="utf-8")
    overrides, _, _ = parse_argv(["runs/a", "protocol=theirs"], "eval")
    other = compose(overrides, "eval", [CONFIG, str(own.parent)])
    assert other.config.protocol.name == "theirs"
    assert other.config.env.eval.episodes_per_task == 7
    assert other.config.env.eval.max_episode_steps is None, "the run's protocol had set it"
    assert other.config.algorithm.val_sampling_params.do_sample is False
    assert other.config.protocol.held_out_states == 0
    assert "seed" not in other.resolved["actor"]["model"], "no protocol changes what the policy was built with"
    checked = check(other, Group())
    table = {row[0]: row[1:] for row in brought.table(other, {"train": checked.train, "eval": checked.eval})}
    assert table["protocol.name"][:2] == ["mine", "theirs"]
    assert table["env.eval.episodes_per_task"] == ["3", "7", "success is measured otherwise (protocol theirs)"]
    assert "the checkpoint's stays" in table["actor.model.seed"][2]


def test_training_from_it_takes_the_value_head_that_the_algorithm_needs():
    run("a", "env.train.cameras=1", "runner.seed=99")
    found = plain("runs/a", "algorithm=ppo", config_name="train")
    assert found["actor"]["model"]["value_head"] is True
    assert found["env"]["train"]["cameras"] == 1
    assert found["runner"]["experiment_name"] == "a-000001-ppo"
    assert found["runner"]["seed"] == 1234, "a new run has its own"
    assert plain("runs/a", config_name="train")["actor"]["model"].get("value_head") in (None, False)


def test_a_checkpoint_alone_brings_its_env_with_the_defaults_of_all_else():
    path = run("a", "env.train.cameras=3", "env.eval.episodes_per_task=3").rename("alone")
    found = plain(str(path))
    assert found["env"]["eval"]["cameras"] == 3
    assert found["env"]["eval"]["episodes_per_task"] == 10


def test_one_of_before_it_said_what_builds_it_takes_the_model_of_its_run_or_one_that_is_named():
    path = run("a", HIDDEN)
    rewrite(path / "meta.json", origin={})
    assert plain("runs/a")["actor"]["model"]["seed"] == 7
    alone = path.rename("alone")
    with pytest.raises(ConfigError, match=r"alone/meta.json does not say what builds its policy"):
        composed(str(alone))
    assert plain(str(alone), "model=fake", "env=fake")["runner"]["ckpt_path"] == "alone"


def test_an_export_is_built_from_its_folder_and_brings_the_env_that_it_noted():
    run("a", "env.train.cameras=3")
    config = yaml.safe_load(Path("runs/a/config.yaml").read_text(encoding="utf-8"))
    noted = sections.noted(config)
    noted["env"]["eval"]["video_cfg"] = {"video_base_dir": "/elsewhere"}
    model = {"_target_": "embodied.models.openvla_oft.build_policy", "model_path": ".", "center_crop": False}
    found = plain(str(export(Path("out"), model, configured=noted)))
    assert found["actor"]["model"]["model_path"] == "out"
    assert found["runner"]["ckpt_path"] is None
    assert found["env"]["eval"]["cameras"] == 3
    assert found["env"]["eval"]["video_cfg"]["video_base_dir"] == "videos/gone-000003-hf-eval/eval"
    assert found["runner"]["experiment_name"] == "gone-000003-hf-eval"
    with pytest.raises(CheckpointError, match="cannot be built from it alone"):
        composed(str(export(Path("other"), {})))


@pytest.mark.parametrize(
    ("before", "here", "cells"),
    [
        (ContinuousAction((-1.0, 0.0), (1.0, 1.0)), ContinuousAction((-1.0, 0.0), (1.0, 255.0)),
         [["(actions)", "1: 0 to 1", "1: 0 to 255"]]),
        (DiscreteAction(6), DiscreteAction(4), [["(actions)", "one of 6", "one of 4"]]),
        (DiscreteAction(6), DiscreteAction(6), []),
        (ContinuousAction((-1.0,), (1.0,)), ContinuousAction((-1.0,), (1.0,)), []),
    ],
)  # fmt: skip
def test_actions_of_the_same_shape_and_another_range_are_told(before, here, cells):
    spec = FakeEnv().spec
    found = [*brought._of_spec(replace(spec, action=before), replace(spec, action=here), {})]
    assert [row.cells[:3] for row in found] == cells
    assert not any(row.fatal for row in found)


def test_all_that_makes_weights_useless_is_in_one_table():
    run("a", "actor.model._target_=embodied.testing.FlowPolicy", "algorithm.logprob_type=action_level")
    words = ("runs/a", "model=fake", "env.eval.cameras=1", "env.train.cameras=1", "env.eval.state_dim=4",
             "env.train.state_dim=4", "algorithm.logprob_type=action_level")  # fmt: skip
    with pytest.raises(ConfigError) as failed:
        check(composed(*words), Group())
    lines = failed.value.message.split("\n")
    assert any("actor.model._target_" in line and "ERROR: another network" in line for line in lines)
    assert any("(state)" in line and "[4]" in line and "ERROR" in line for line in lines)
    assert any("(cameras)" in line and "ERROR" in line for line in lines)
    assert "leave out model= and actor.model" in failed.value.remedy


@pytest.mark.parametrize(
    ("key", "value", "fatal"),
    [("center_crop", "true", True), ("num_action_chunks", "4", True), ("image_preset", "oft_libero", True),
     ("precision", "bf16", False)],
)  # fmt: skip
def test_keys_of_the_model_that_may_and_may_not_differ(key, value, fatal):
    run("a", "model=openvla_oft_tiny", "actor.model.image_preset=rlinf")
    rules = Rules(composed("runs/a", f"actor.model.{key}={value}"), Group())
    found = {row.key: row for row in brought.differences(rules.composed, {})}
    assert found[f"actor.model.{key}"].fatal is fatal
    assert len(found) == 1


@pytest.mark.parametrize(
    ("keys", "fatal"),
    [
        (("action_horizon=6",), False),
        ((), True),  # the chunk is then as long as what is executed of it
        (("action_horizon=6", "value_head=true", "value_type=action_level"), True),
        (("action_horizon=6", "noise_method=noise_policy", "train_expert_only=true", "noise_level=null"), True),
    ],
)
def test_of_a_denoised_chunk_more_or_less_may_be_executed(keys, fatal):
    run("a", "model=flow_vla_tiny", *(f"actor.model.{key}" for key in keys), "algorithm.logprob_type=action_level")
    rules = Rules(composed("runs/a", "actor.model.num_action_chunks=3"), Group())
    (row,) = brought.differences(rules.composed, {})
    assert (row.key, row.fatal) == ("actor.model.num_action_chunks", fatal)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"env__eval__episodes_per_task": "many"}, "env.eval.episodes_per_task = 'many'"),
        ({"algorithm__val_sampling_params": {"temperature": -1}}, "algorithm.val_sampling_params.temperature"),
        ({"protocol__sets": {"env.python": "/bin/evil"}}, "protocol.sets has env.python"),
        ({"runner__seed": "x"}, "runner.seed = 'x'"),
        ({"env__eval__reward_mode": "dens"}, "env.eval.reward_mode"),
        ({"env__eval__no_such_key": 1}, "no_such_key"),
    ],
)
def test_values_that_the_schema_does_not_take_name_the_file(changes, said):
    run("a", **changes)
    with pytest.raises(DamagedCheckpointError) as failed:
        composed("runs/a")
    assert "runs/a/config.yaml" in str(failed.value)
    assert said in str(failed.value)


def test_references_in_a_file_from_outside_stay_texts(monkeypatch):
    monkeypatch.setenv("A_SECRET", "very secret")
    run("a", protocol__source="${oc.env:A_SECRET}")
    assert plain("runs/a")["protocol"]["source"] == "${oc.env:A_SECRET}"


def test_code_of_strangers_is_not_named_unless_the_folder_is_trusted():
    path = run("a")
    rewrite(path / "meta.json", origin__policy___target_="os.system")
    with pytest.raises(ConfigError, match=r"'os.system'.*no model of this library"):
        composed("runs/a")
    assert plain("runs/a", "model=fake")["actor"]["model"]["_target_"] == "embodied.testing.FakePolicy"
    run("b", env__eval___target_="os.system")
    with pytest.raises(ConfigError, match=r"'os.system'.*for its env"):
        composed("runs/b")
    assert plain("runs/b", "env=fake")["env"]["eval"]["_target_"] == "embodied.testing.FakeEnv"
    rewrite(path / "meta.json", origin__policy___target_="collections.OrderedDict")
    with pytest.raises(ConfigError, match="no model of this library"):
        composed("runs/a")
    assert plain("runs/a", "--trust")["actor"]["model"]["_target_"] == "collections.OrderedDict"


GYM = "embodied.envs.gym.GymEnv"


@pytest.mark.parametrize(
    ("target", "keys", "named"),
    [
        ("embodied.envs.libero.LiberoEnv", {"task_suite_name": "libero_10"}, None),
        (GYM, {"id": "CartPole-v1", "imports": [], "wrappers": [], "expert": None}, None),
        (GYM, {"entry_point": "embodied.envs.gym.metaworld.make", "imports": ["metaworld"]}, None),
        (GYM, {"id": "evil:Env-v0"}, "evil:Env-v0"),
        (GYM, {"tasks": [{"id": "evil:Env-v0"}]}, "evil:Env-v0"),
        (GYM, {"imports": ["evil"]}, "evil"),
        (GYM, {"variables": {"LD_PRELOAD": "evil.so"}}, "evil.so"),
        (GYM, {"wrappers": [{"target": "evil.Wrapper"}]}, "evil.Wrapper"),
        (GYM, {"expert": "evil.Expert"}, "evil.Expert"),
        ("embodied.envs.maniskill.ManiSkillEnv", {"task_file": "evil.py"}, "evil.py"),
        ("embodied.envs.text.env.MathEnv", {"data": "evil:Problems"}, "evil:Problems"),
        ("embodied.envs.text.env.MathEnv", {"data": "embodied.envs.text.arithmetic:Chains"}, None),
        ("embodied.envs.text.env.MathEnv", {"verifier": [{"name": "custom", "path": "evil"}]}, "evil"),
        ("subprocess.run", {}, "subprocess.run"),
    ],
)
def test_what_an_env_from_outside_may_name(target, keys, named):
    if named is None:
        check_trusted_env(target, keys, Path("folder"), "--trust")
        return
    with pytest.raises(ConfigError) as failed:
        check_trusted_env(target, keys, Path("folder"), "--trust")
    assert f"'{named}'" in failed.value.message
    assert "env=NAME" in failed.value.remedy
    assert "--trust" in failed.value.remedy
