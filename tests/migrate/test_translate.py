"""What a translation promises beside its values: nothing else is trained silently, the network is not asked, and the
report says what is to do."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from embodied import schema
from embodied.errors import ConfigError
from embodied.migrate import Migration, Note, migrate
from embodied.migrate.families import can_change_a_number, families, family_of
from embodied.migrate.report import lines_of, to_do
from embodied.migrate.usual import rows
from embodied.schema.compose.compose import compose
from embodied.schema.keys.paths import MISSING, at
from embodied.tools import migrate as tool

LIBERO = ["env/libero_spatial@env.train", "env/libero_spatial@env.eval"]
OFT = "model/openvla_oft@actor.model"
FAKE = ("env=fake", "model=fake")


def note(found: Migration, key: str) -> Note:
    (only,) = [one for one in found.notes if one.key == key]
    return only


def composed(found: Migration, folder: Path, *given: str) -> Any:
    (folder / "experiment").mkdir()
    (folder / "experiment" / "theirs.yaml").write_text(found.as_yaml(), encoding="utf-8")
    return compose(["experiment=theirs", *given], "train", [str(folder)]).config


def verl(*words: str, data: str = "train.jsonl") -> dict[str, Any]:
    """A script of verl for texts."""
    text = " ".join([f"data.train_files={data} actor_rollout_ref.model.path=m", *words])
    found: dict[str, Any] = {}
    for word in text.split():
        key, _, value = word.partition("=")
        inner = found
        *path, name = key.split(".")
        for part in path:
            inner = inner.setdefault(part, {})
        inner[name] = yaml.safe_load(value)
    return found


@pytest.mark.parametrize(
    ("system", "theirs"),
    [
        ("rlinf", {"defaults": [*LIBERO, OFT], "actor": {"model": {"model_type": "gr00t", "model_path": "w"}}}),
        ("cosmos-rl", {"vla": {"vla_type": "pi05", "num_envs": 2}, "policy": {"model_name_or_path": "w"}}),
        (
            "verl",
            {"data": {"task_suite_name": "libero_10"}, "actor_rollout_ref": {"model": {"vla": "pi0", "path": "w"}}},
        ),
    ],
)
def test_weights_of_a_policy_that_is_not_here_or_not_translated_build_none(system, theirs, tmp_path):
    found = migrate(theirs, system, devices=0)
    assert "model" in found.open
    assert [key for key in found.settings if key.startswith("actor.model.")] == []
    assert ("there is no policy gr00t" if "gr00t" in str(theirs) else "are not translated") in to_do(found, system)[0]
    with pytest.raises(ConfigError, match="must specify 'model'"):
        composed(found, tmp_path)
    (tmp_path / "again").mkdir()
    config = composed(
        found, tmp_path / "again", "model=openvla_oft_tiny", "env=libero_10", "actor.global_batch_size=32"
    )
    assert config.actor.model.model_extra.get("model_path") is None


@pytest.mark.parametrize("name", ["robotwin_click_bell", "calvin_abc", "behavior_r1pro"])
def test_an_env_that_is_not_here_is_no_other_one(name, tmp_path):
    theirs = {
        "defaults": [f"env/{name}@env.train", f"env/{name}@env.eval", OFT],
        "env": {"train": {"total_num_envs": 16}},
    }
    found = migrate(theirs, "rlinf", devices=0)
    assert (sorted(found.open), found.groups) == (["env"], {"model": "openvla_oft"})
    assert found.settings["env.train.total_num_envs"] == 16, "every env has it"
    with pytest.raises(ConfigError, match="must specify 'env"):
        composed(found, tmp_path)


def test_evaluations_may_have_another_env():
    theirs = {"defaults": ["env/libero_10@env.train", "env/libero_goal@env.eval", OFT]}
    found = migrate(theirs, "rlinf", devices=0)
    assert found.groups == {"env": "libero_10", "env.eval": "libero_goal", "model": "openvla_oft"}
    assert (found.settings["env.train.max_episode_steps"], found.settings["env.eval.max_episode_steps"]) == (512, 320)
    assert "override /env@env.eval: libero_goal" in found.as_yaml()


def test_a_loss_that_is_not_here_stays_open(tmp_path):
    words = ("actor_rollout_ref.actor.policy_loss.loss_mode=sapo", "actor_rollout_ref.rollout.n=4")
    found = migrate(verl("algorithm.adv_estimator=grpo", *words), "verl", devices=0)
    assert list(found.open) == ["algorithm.loss_type"]
    assert "unknown loss type 'sapo'" in to_do(found, "verl")[0]
    assert yaml.safe_load(found.as_yaml())["algorithm"]["loss_type"] == "TO_BE_DECIDED"
    with pytest.raises(ConfigError, match=r"fix: set algorithm\.loss_type to one of"):
        composed(found, tmp_path)


def test_a_teacher_makes_another_algorithm():
    found = migrate(verl("distillation.enabled=true", "distillation.nnodes=1"), "verl", devices=0)
    assert "distillation" in found.open["algorithm.loss_type"]
    assert migrate(verl("distillation.enabled=false"), "verl", devices=0).open == {}


def test_a_trainer_that_is_not_here_is_not_the_usual_one():
    policy = {"type": "dpo", "dataset": {"name": "owner/pairs"}}
    theirs = {"train": {"train_policy": policy}, "policy": {"model_name_or_path": "m"}}
    assert list(migrate(theirs, "cosmos-rl", devices=0).open) == ["runner.task_type"]


@pytest.mark.parametrize(
    ("words", "adv_type"),
    [
        (("adv_estimator=grpo", "norm_adv_by_std_in_grpo=false"), "dr_grpo"),
        (("norm_adv_by_std_in_grpo=false", "adv_estimator=grpo"), "dr_grpo"),
        (("adv_estimator=grpo_vectorized", "norm_adv_by_std_in_grpo=false"), "dr_grpo"),
        (("norm_adv_by_std_in_grpo=false", "adv_estimator=rloo"), "rloo"),
        (("adv_estimator=rloo_vectorized",), "rloo"),
        (("adv_estimator=opo",), None),
    ],
)
def test_verls_estimators(words, adv_type):
    given = [f"algorithm.{word}" for word in words]
    found = migrate(verl(*given, "actor_rollout_ref.rollout.n=4"), "verl", devices=0)
    assert found.settings.get("algorithm.adv_type") == adv_type
    assert ("algorithm.adv_type" in found.open) == (adv_type is None)


def test_of_two_places_that_of_today_counts():
    params = {"temperature_train": 1.0, "top_k": 5}
    theirs = {"algorithm": {"sampling_params": params}, "rollout": {"sampling_params": {"temperature_train": 1.6}}}
    found = migrate({"defaults": [*LIBERO, OFT], **theirs}, "rlinf", devices=0)
    assert found.settings["algorithm.sampling_params.temperature"] == 1.6
    assert note(found, "algorithm.sampling_params.temperature_train").how == "refused"
    assert "comes before it" in "\n".join(to_do(found, "rlinf"))


def test_names_on_the_hub_are_not_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    asked: list[Any] = []

    def absent(*given: Any) -> Any:
        asked.append(given)
        raise OSError("there is no network")

    monkeypatch.setattr(socket, "getaddrinfo", absent)
    monkeypatch.setattr(socket.socket, "connect", absent)
    monkeypatch.setattr("embodied.rows.hub._loaded", absent)
    theirs = {
        "train": {"train_batch_per_replica": 8, "epoch": 3, "train_policy": {
            "type": "grpo", "dataset": {"name": "owner/problems", "subset": "main", "split": "train"},
            "prompt_column_name": "question", "response_column_name": "solution.text"}},
        "policy": {"model_name_or_path": "m"}, "rollout": {"n_generation": 4, "max_response_length": 64},
        "validation": {"dataset": {"name": "owner/others"}},
    }  # fmt: skip
    found = migrate(theirs, "cosmos-rl", devices=0)
    assert asked == []
    assert found.settings["data.train_data_paths"] == ["owner/problems"]
    assert found.settings["data.train_subset"] == "main"
    assert "owner/problems" in found.elsewhere
    assert "nothing is downloaded" in found.elsewhere
    assert note(found, "train.epoch").how == "extra", "its problems are not counted"


@pytest.mark.parametrize("estimator", ["gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_verls_advantages_are_whitened_over_tokens(estimator):
    found = migrate(verl(f"algorithm.adv_estimator={estimator}", "actor_rollout_ref.rollout.n=2"), "verl", devices=0)
    assert found.settings["algorithm.reward_type"] == "token_level"
    assert found.settings.get("algorithm.normalize_advantages") == (True if estimator == "gae" else None)
    said = note(found, "algorithm.adv_estimator")
    assert said.settings["algorithm.reward_type"] == "token_level"
    grpo = migrate(verl("algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=2"), "verl", devices=0)
    assert "algorithm.reward_type" not in grpo.settings


def test_the_report_says_that_a_pass_shrank():
    words = (
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.rollout.n=2",
        "data.train_batch_size=4",
    )
    found = migrate(verl("algorithm.adv_estimator=rloo", *words), "verl", devices=0)
    assert (found.settings["actor.global_batch_size"], found.settings["actor.micro_batch_size"]) == (4, 4)
    said = [line for line in lines_of(found, "verl") if "ppo_mini_batch_size" in line]
    assert [("actor.micro_batch_size=4" in line, "a pass has no more records" in line) for line in said] == [
        (True, True)
    ]


@pytest.mark.parametrize("switch", ["use_kl_loss", "use_kl_in_reward"])
def test_a_switch_for_the_kl_alone_means_verls_coefficient(switch):
    word = "actor_rollout_ref.actor.use_kl_loss=true" if switch == "use_kl_loss" else "algorithm.use_kl_in_reward=true"
    found = migrate(verl("algorithm.adv_estimator=rloo", "actor_rollout_ref.rollout.n=4", word), "verl", devices=0)
    assert found.settings["algorithm.kl_beta"] == 0.001
    assert found.settings.get("algorithm.use_kl_in_reward", False) == (switch == "use_kl_in_reward")
    none = migrate(verl("algorithm.adv_estimator=rloo", "actor_rollout_ref.rollout.n=4"), "verl", devices=0)
    assert "algorithm.kl_beta" not in none.settings


def test_two_kls_at_once_are_not_one_of_them():
    words = ("actor_rollout_ref.actor.use_kl_loss=true", "algorithm.use_kl_in_reward=true")
    found = migrate(verl("algorithm.adv_estimator=rloo", "actor_rollout_ref.rollout.n=4", *words), "verl", devices=0)
    assert note(found, "actor_rollout_ref.actor.kl_loss_coef (their default)").how == "refused"
    assert "kl_loss_coef" in "\n".join(to_do(found, "verl"))


def test_what_can_change_a_number_comes_first_and_is_to_do():
    theirs = {"algorithm": {"sharper": 3}, "runner": {"per_worker_log": True}}
    found = migrate(theirs, "rlinf", FAKE)
    assert found.keys_of("unknown") == ["algorithm.sharper"]
    assert found.keys_of("harmless") == ["runner.per_worker_log"]
    lines = lines_of(found, "rlinf")
    first, second = (lines.index(f"not known, and can{word} change a number: 1") for word in ("", "not"))
    assert first < second
    left = "\n".join(to_do(found, "rlinf"))
    assert "algorithm.sharper = 3" in left
    assert "per_worker_log" not in left


@pytest.mark.parametrize(
    ("system", "key", "changes"),
    [
        ("verl", "actor_rollout_ref.actor.policy_loss.tau_pos", True),
        ("verl", "trainer.balance_batch", False),
        ("verl", "trainer.n_gpus_per_node", False),
        ("roll", "max_len_mask", True),
        ("roll", "system_envs.A", False),
        ("rlinf", "actor.model.recompute_granularity", False),
        ("cosmos-rl", "redis", False),
        ("cosmos-rl", "train.anything", True),
    ],
)
def test_which_keys_can_change_a_number(system, key, changes):
    assert can_change_a_number(system, key) is changes


def test_every_family_is_of_a_system_and_says_one_thing():
    assert {one.system for one in families()} <= {"*", "rlinf", "verl", "roll", "cosmos-rl", "trl"}
    assert [one for one in families() if not (one.harmless or one.says == "refused" or one.opens)] == []
    assert [one for one in families() if not one.why] == []
    same = [(one.system, one.pattern) for one in families()]
    assert len(same) == len(set(same)), "the second one would never count"
    assert family_of("verl", "no.such.key") is None


def test_keys_of_ours_that_reasons_name_are_there():
    ours, named = (
        schema.defaults(),
        re.compile(r"\b(?:algorithm|actor\.optim|data|runner|rollout)\.[a-z_]+(?:\.[a-z_]+)*"),
    )
    found = [(one.pattern, key) for one in families() for key in named.findall(one.why)]
    assert ("algorithm.tau", "algorithm.sac.target_rate") in found
    assert [key for _, key in found if at(ours, key) is MISSING] == []


def test_learning_from_a_replay_buffer_is_named_by_our_keys():
    theirs = {
        "actor": {"model": {"model_type": "mlp_policy"}},
        "algorithm": {"critic_actor_ratio": 4, "replay_buffer": {"cache_size": 9}, "demo_buffer": {"load_path": "d"}},
    }
    found = migrate(theirs, "rlinf", devices=0)
    assert "is algorithm=sac here" in found.open["algorithm.loss_type"]
    assert "algorithm.replay.demonstrations" in note(found, "algorithm.demo_buffer.load_path").why
    assert not any("no learning from a replay buffer" in one.why for one in found.notes)


def test_defaults_are_given_once_each():
    same = [(row.system, row.when, row.key) for row in rows()]
    assert len(same) == len(set(same))


@pytest.mark.parametrize("value", ["$(date +%s)", "${UNSET}", "$UNSET", "${A:-b$(c)", ["a", "$B"]])
def test_what_a_shell_would_fill_in_is_left_out(value):
    found = migrate({"trainer": {"experiment_name": value}}, "verl", FAKE)
    assert (found.settings, note(found, "trainer.experiment_name").how) == ({}, "refused")


@pytest.mark.parametrize(
    ("system", "theirs"),
    [
        ("verl", {"data": {"train_batch_size": "many", "train_files": 3, "task_suite_name": ["a"]}}),
        ("verl", {"actor_rollout_ref": {"actor": {"ppo_mini_batch_size": [1], "optim": {"betas": 3, "lr": {}}}}}),
        ("roll", {"actor_train": {"training_args": {"gradient_accumulation_steps": "x", "warmup_steps": {}}}}),
        ("roll", {"rollout_batch_size": 0, "reward_clip": "a", "norm_mean_type": ["x"], "adv_estimator": "reinforce"}),
        ("cosmos-rl", {"train": {"train_batch_per_replica": "x"}, "rollout": {"n_generation": 0}, "vla": {"a": 0}}),
        ("cosmos-rl", {"train": {"train_policy": {"type": "grpo", "dataset": {"name": 7, "subset": ["a"]}}}}),
        ("rlinf", {"defaults": {"a": 1}, "algorithm": {"n_minibatches": 0, "group_size": 2}, "data": {"seed": []}}),
        ("rlinf", {"defaults": [1, None, {"a": {}}], "rollout": {"sampling_params": 4}, "actor": {"optim": "lr"}}),
        ("rlinf", {1: {2: 3}, "env": {"train": {"env_type": 3, "total_num_envs": float("inf")}}}),
    ],
)  # fmt: skip
def test_values_that_make_no_sense_end_in_a_report(system, theirs):
    found = migrate(theirs, system, FAKE, devices=0)
    assert found.notes
    assert lines_of(found, system)


def test_a_file_that_trains_and_names_no_env_leaves_it_open():
    found = migrate({"algorithm": {"group_size": 8}, "actor": {"optim": {"lr": 1.0e-5}}}, "rlinf", devices=0)
    assert sorted(found.open) == ["env", "model"]


def test_the_command_prints_what_is_to_do(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("pi.yaml").write_text(json.dumps({"defaults": [*LIBERO, "model/gr00t@actor.model"]}), encoding="utf-8")
    assert tool.main(["pi.yaml", "--from", "rlinf", "--out", "mine"]) == 0
    said = capsys.readouterr()
    assert "still to do before a run begins: there is no policy gr00t here" in said.err
    assert "override /model: ???" in Path("mine/experiment/pi.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("steps", "limit", "how", "said"), [(80, 80, "nothing", "one episode"), (160, 80, "refused", "160 / 80 steps")]
)
def test_several_episodes_of_a_slot_in_a_round_are_said(steps, limit, how, said):
    side = {"max_steps_per_rollout_epoch": steps, "max_episode_steps": limit}
    found = migrate({"defaults": [*LIBERO, OFT], "env": {"train": side}}, "rlinf", FAKE, devices=0)
    told = note(found, "env.train.max_steps_per_rollout_epoch")
    assert told.how == how
    assert said in told.why
    assert ("max_steps_per_rollout_epoch" in "\n".join(to_do(found, "rlinf"))) is (how == "refused")
