"""Keys of RLinf, verl, ROLL, Cosmos-RL and TRL: how many are answered, and what is said of each that is not a key here.

``foreign_keys_open.txt`` has what is not answered. Write it anew: python tests/schema/test_foreign_keys.py
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from embodied.models.causal_lm import build_reward_model
from embodied.models.causal_lm.settings import Settings as TextSettings
from embodied.models.flow_vla.settings import Settings as FlowSettings
from embodied.models.openvla_oft.settings import Settings as RobotSettings

from embodied.errors import ConfigError, UnknownKeyError
from embodied.parallel.group import Group
from embodied.run.build.preflight import check
from embodied.schema.compose.compose import compose, group_options
from embodied.schema.compose.of_hydra import OF_HYDRA
from embodied.schema.keys.paths import MISSING, at
from embodied.schema.others import key_table, tables
from embodied.schema.others.accepted_no_ops import no_ops
from embodied.schema.others.hints import hint
from embodied.schema.others.translation_rules import RULES, translate_key
from embodied.schema.others.values import other_values, typed
from embodied.schema.rules.aliases import SAID

HERE = Path(__file__).parents[1]
CONFIG = str(HERE / "config")
OPEN = Path(__file__).with_name("foreign_keys_open.txt")
FAKE = ("env=fake", "model=fake")
MODELS = (TextSettings, RobotSettings, FlowSettings)
ANSWERED_OTHERWISE = {"defaults", *OF_HYDRA}  # by hydra, and before the schema


def known() -> set[str]:
    """Every key that is taken here: of the schema, of shipped models, and those that may say one thing alone."""
    found = {key.name for key in key_table.keys()} | set(no_ops()) | set(SAID) | ANSWERED_OTHERWISE  # noqa: SIM118
    found |= {f"actor.model.{name}" for kind in MODELS for name in kind.__dataclass_fields__}
    names = build_reward_model.__code__.co_varnames[: build_reward_model.__code__.co_argcount + 20]
    return found | {f"reward.model.{name}" for name in names} | {"actor.model._target_"}


def unanswered() -> list[tables.Row]:
    taken = known()
    robot = compose(["env=libero_10", "model=openvla_oft_tiny"], "train").config.model_dump(by_alias=True)
    text = compose(["env=math", "model=causal_lm", "actor.model.model_path=x"], "train").config.model_dump(
        by_alias=True
    )

    def is_taken(key: str) -> bool:
        return key in taken or at(robot, key) is not MISSING or at(text, key) is not MISSING

    return [row for row in tables.rows() if row.kind != "out" and not all(map(is_taken, row.ours))]


def lines(rows: list[tables.Row]) -> list[str]:
    return sorted(f"{row.system}\t{row.kind}\t{row.full}\t{' + '.join(row.ours)}" for row in rows)


ONE_VALUE = {"actor.model.low_cpu_mem_usage"}
"""Keys of which models take one value alone."""
HONOURED = {
    ("Cosmos-RL", "must"): 161, ("Cosmos-RL", "should"): 39, ("RLinf", "must"): 197, ("RLinf", "should"): 30,
    ("ROLL", "must"): 68, ("ROLL", "should"): 1, ("SimpleVLA-RL", "must"): 28, ("verl", "must"): 140,
    ("verl", "should"): 29, ("TRL", "must"): 87, ("TRL", "should"): 3,
}  # fmt: skip
"""System and class → at least so many keys whose values change what is done. Raise them with the code."""


@cache
def honoured() -> frozenset[str]:
    """Our keys whose values change what is done."""
    does = known()
    own = {f"actor.model.{name}" for kind in MODELS for name in kind.__dataclass_fields__}
    own |= {f"reward.model.{name}" for name in signature(build_reward_model).parameters}
    return frozenset(does - (set(no_ops()) - own) - set(tables.column("no_effect")) - ONE_VALUE)


def honours(row: tables.Row) -> bool:
    """Whether code does what each of its keys says; of others one value is taken, and the rest refused."""
    return all(key in honoured() or key.startswith(("env.train.", "env.eval.")) for key in row.ours)


def test_every_key_is_answered_but_those_that_are_listed():
    found = unanswered()
    answered = [row for row in tables.rows() if row.kind != "out" and row not in found]
    counts, left = (Counter((row.name, row.kind) for row in rows) for rows in (tables.rows(), found))
    does = Counter((row.name, row.kind) for row in answered if honours(row))
    for (system, kind), count in sorted(counts.items()):
        refused = count - left[system, kind] - does[system, kind]
        said = f"{does[system, kind]} honoured, {refused} answered by one value or a refusal"
        print(f"{system:14s} {kind:7s} {count:4d} keys, {'left out with the reason' if kind == 'out' else said}")
    assert lines(found) == OPEN.read_text(encoding="utf-8").splitlines()
    assert {name: does[name] for name in HONOURED if does[name] < HONOURED[name]} == {}
    assert not [row for row in found if row.kind in ("must", "should")]


def test_rules_and_values_are_of_keys_that_there_are():
    theirs = {row.key for row in tables.rows()} | {(row.system, row.key) for row in tables.rows()}
    assert [key for key in RULES if key not in theirs] == []
    answers = set(tables.answers())
    assert [key for key in other_values() if key not in answers] == []


def refused(*overrides: str, base: tuple[str, ...] = FAKE) -> str:
    with pytest.raises(ConfigError) as failed:
        compose([*base, *overrides], "train", [CONFIG])
    return str(failed.value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("algorithm.ratio_clip_eps=0.2", "algorithm.clip_ratio_low=0.2 algorithm.clip_ratio_high=0.2"),
        ("rollout.model.model_type=openvla_oft", "model=NAME (actor.model._target_): set model=openvla_oft"),
        ("actor.ppo_mini_batch_size=64", "actor.global_batch_size"),
        ("actor.max_lr=0.1", "unknown key 'actor.max_lr'"),
        ("rollout.model_dir=x", "actor.model.model_path"),
        ("+actor_rollout_ref.rollout.n=8", "set algorithm.group_size=8"),
        ("+data.env_type=libero", "env=NAME (env.train._target_ and env.eval._target_)."),
        ("+trainer.default_hdfs_dir=x", "HDFS belongs to one site"),
        ("algorithm.kl_penalty=low_var", "set algorithm.kl_penalty_type=low_var_kl"),
    ],
)
def test_a_key_of_another_system_says_what_it_is_here(override, said):
    assert said in refused(override)


TYPOS = {
    "runner.sed": 1, "algorithm.ratio_clip_eps": 0.2, "env.num_wrokers": 2, "env.train.hroizon": 7,
    "env.eval.gropu_size": 3, "rollout.schedul": "ready", "actor.model.model_type": "x", "actor.model.lora_rnak": 4,
    "actor.ppo_mini_batch_size": 64, "critic.nosuch": 1, "data.promt_key": "x", "reward.model.max_lenght": 9,
    "env.eval.perturb.conditions": {"a": {"camera": {"nosuch": 3}}}, "ppo_epochs": 2, "trainer.nosuch": 1,
}  # fmt: skip
"""One in each place: of the schema, of classes, of other systems, in free mappings, at the top."""
EXACT = (
    "runner.seed=1", "algorithm.clip_ratio_low=0.2", "algorithm.clip_ratio_high=0.2", "env.num_workers=2",
    "env.train.horizon=7", "rollout.schedule=ready", "actor.model.lora_rank=4", "actor.global_batch_size=512",
    "data.prompt_key=x", "reward.model.max_length=9", "algorithm.update_epoch=2",
)  # fmt: skip


def test_all_unknown_keys_are_told_at_once_wherever_they_stand():
    wrong = ("actor.optim.lr=abc", "algorithm.adv_type=embodied_gae", "algorithm.group_size=8")
    base = ("env=fake", "model=openvla_oft_tiny")
    with pytest.raises(UnknownKeyError) as failed:
        compose([*base, *wrong, *(f"{key}={typed(value)}" for key, value in TYPOS.items())], "train", [CONFIG])
    told, fix = failed.value.message, failed.value.remedy
    keys = [key for key in TYPOS if key not in ("env.eval.perturb.conditions", "trainer.nosuch")]
    for key in [*keys, "env.eval.perturb.conditions.a.camera.nosuch", "trainer"]:
        assert re.search(f"unknown [a-z ]*'{re.escape(key)}'", told), key
    assert "actor.optim.lr = 'abc': expected a number" in told
    assert len(told.splitlines()) == len(TYPOS) + 2
    for part in (*EXACT, "algorithm.adv_type=gae", "set actor.optim.lr to a value of that kind"):
        assert part in fix, part
    assert fix.index("correct") > fix.index("instead of")


@pytest.mark.parametrize("key", ["env.train.hroizon", "env.eval.hroizon", "actor.model.nosuch"])
def test_unknown_keys_of_classes_are_told_before_simulators_are_asked(key, monkeypatch):
    monkeypatch.setattr("embodied.run.build.preflight.make_side", lambda *given: pytest.fail("it was made"))
    composed = compose([*FAKE, f"{key}=3", "env.eval.zzz=3"], "train", [CONFIG])
    with pytest.raises(UnknownKeyError) as failed:
        check(composed, Group())
    assert f"unknown key '{key}'." in failed.value.message
    assert "unknown key 'env.eval.zzz'." in failed.value.message
    assert "known keys of env.eval: _target_, " in failed.value.remedy


def test_a_class_that_cannot_be_imported_hides_no_other_key():
    message = refused("runner.sed=1", "env.train._target_=nowhere.Env", "env.train.zzz=1", "env.eval.zzz=1")
    assert "unknown key 'runner.sed'" in message
    assert "unknown key 'env.eval.zzz'" in message
    assert "env.train.zzz" not in message


def test_a_wrong_value_hides_no_key_of_a_class():
    message = refused("actor.optim.lr=abc", "env.eval.hroizon=1")
    assert "unknown key 'env.eval.hroizon'. Did you mean 'horizon'?" in message
    assert "actor.optim.lr = 'abc': expected a number" in message


def test_unknown_keys_are_told_with_what_is_not_set():
    with pytest.raises(UnknownKeyError) as failed:
        compose(["env=libero_10", "model=openvla_oft", "actor.model.model_pth=x", "enf=libero_10"])
    assert "unknown key 'actor.model.model_pth'. Did you mean 'model_path'?" in failed.value.message
    assert "unknown group or section 'enf'" in failed.value.message
    assert failed.value.message.endswith("actor.model.model_path is not set, and has no default")
    assert failed.value.remedy.startswith("set actor.model.model_path=x instead of actor.model.model_pth; ")


def test_group_files_that_are_not_there_hide_no_key():
    message = refused("env=libero_11", "protocol=nope", "runner.sed=1", "env.train.task_idss=[0]", base=())
    lines = message.splitlines()
    assert lines[0] == "unknown env 'libero_11'. Did you mean 'libero_10'?"
    assert lines[1].startswith("unknown protocol 'nope'.")
    assert lines[2] == "unknown key 'runner.sed'. Did you mean 'seed'?"
    assert "task_idss" not in message  # which keys an env has is not known without its file
    given = ("experiment=lptop", "model=openvla_oft", "actor.model.model_path=x", "runner.sed=1")
    assert "model_path is not set" not in refused(*given, base=()), "it is only left out of what is looked at"


def test_a_folder_of_the_user_may_have_groups_of_its_own(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "mine").mkdir(exist_ok=True)
        (tmp_path / "mine" / f"{name}.yaml").write_text(f"# @package runner\nseed: {ord(name)}\n", encoding="utf-8")
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "own.yaml").write_text("# @package _global_\ndefaults: [{/mine: a}]\n", encoding="utf-8")
    config = compose([*FAKE, "experiment=own", "mine=b"], "train", [CONFIG, str(tmp_path)]).config
    assert config.runner.seed == ord("b")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "reward.reward_type={a: b}",
            "reward.reward_type = {'a': 'b'}: expected a text, names with numbers ({name: …})",
        ),
        ("reward.reward_type=[1]", "reward.reward_type = [1]: expected a text, names"),
        ("reward.remote.functions={a: b}", "reward.remote.functions.a = 'b': expected a number"),
        ("reward.remote.functions=3", "reward.remote.functions = 3: expected names with numbers"),
        ("runner.logger.logger_backends=[1]", "runner.logger.logger_backends.0 = 1: expected a text"),
        ("runner.first=3", "runner.first = 3: expected a list of texts"),
        ("data.custom_cls=3", "data.custom_cls = 3: expected keys with values"),
        ("runner.val_before_train=maybe", "runner.val_before_train = 'maybe': expected true or false"),
    ],
)
def test_a_value_of_the_wrong_kind_is_said_once_and_in_words(override, said):
    message = refused(override)
    assert said in message
    assert len(message.splitlines()) == 2, "with the fix"


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("algorithm.loss_type", "embodied_grpo", "algorithm.loss_type=ppo algorithm.adv_type=grpo"),
        ("algorithm.adv_type", "embodied_gae", "algorithm.adv_type=gae"),
        ("actor.fsdp_config.mixed_precision.param_dtype", "bfloat16", "param_dtype=bf16"),
        ("actor.lr_sched.lr_decay_style", "cosine_with_warmup", "actor.lr_sched.lr_decay_style=cosine"),
    ],
)
def test_a_value_of_another_system_says_what_it_is_here(key, value, said):
    base = ("env=fake", "model=openvla_oft_tiny")
    message = refused(f"{key}={value}", base=base)
    assert said in message
    assert said in message.partition("fix: ")[2], "it is the fix"
    assert "Did you mean" not in message


def test_a_value_of_another_system_is_no_slip():
    assert refused("algorithm.loss_type=grpo") == (
        "unknown loss type 'grpo'. Other systems' 'grpo' is algorithm.loss_type=ppo algorithm.adv_type=grpo here.\n"
        "  fix: set algorithm.loss_type=ppo algorithm.adv_type=grpo"
    )
    assert "Did you mean 'gspo'?" in refused("algorithm.loss_type=gpso")


def test_prompts_are_counted_as_their_answers():
    """verl's batch, with the answers to a prompt that the configuration has, or that verl's own key has beside it."""
    assert "set actor.global_batch_size=256 " in refused("actor.ppo_mini_batch_size=64", "algorithm.group_size=4")
    message = refused("actor.ppo_mini_batch_size=64", "+actor_rollout_ref.rollout.n=3")
    assert "set actor.global_batch_size=192 (64 prompts · 3 answers to each)" in message
    assert "fix: set actor.global_batch_size=192 algorithm.group_size=3 instead of" in message


def test_no_hint_is_far_away():
    for wrong in ("actor.optim.max_lr=1", "algorithm.loss_tpye=ppo"):
        message = refused(wrong)
        assert "min_lr" not in message
        assert "gspo" not in message


def test_every_key_of_others_is_taken_or_told():
    """The first word of a key that no section here has is told by its section."""
    taken = known()
    told: Counter[bool] = Counter()
    for row in tables.rows():
        if row.key in taken or row.where:
            continue
        told[bool(hint(row.key))] += 1
    assert told[False] == 0
    assert told[True] > 400


def test_one_message_has_the_keys_of_a_whole_file():
    mapping: dict[str, Any] = {"algorithm": {"ratio_clip_eps": 0.2, "n_minibatches": 4}}
    from embodied.schema import bind, defaults

    with pytest.raises(UnknownKeyError) as failed:
        bind({**defaults(), **mapping})
    assert "ratio_clip_eps" in str(failed.value)
    assert "n_minibatches" in str(failed.value)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"init_kl_coef": 0.2}, {}),
        ({"init_kl_coef": 0.2, "add_token_level_kl": True}, {"kl_beta": 0.2, "use_kl_in_reward": True}),
        ({"use_kl_loss": False, "kl_loss_coef": 0.1}, {"kl_beta": 0.0}),
        ({"use_kl_loss": True, "kl_loss_coef": 0.1}, {"kl_beta": 0.1}),
        ({"use_kl_loss": False, "add_token_level_kl": True}, {"use_kl_in_reward": True}),
        ({"pg_clip": 0.3, "pg_clip_low": 0.1}, {"clip_ratio_low": 0.3, "clip_ratio_high": 0.3}),
        (
            {"pg_clip": 0.3, "pg_clip_low": 0.1, "pg_clip_high": 0.4, "use_pg_clip_range": True},
            {"clip_ratio_low": 0.1, "clip_ratio_high": 0.4},
        ),
        ({"dual_clip_loss": True}, {"clip_ratio_c": 1.4}),
        (
            {"dual_clip_loss": True, "pg_clip": 0.3},
            {"clip_ratio_low": 0.3, "clip_ratio_high": 0.3, "clip_ratio_c": 1.6},
        ),
        ({"dual_clip_loss": False}, {}),
        ({"advantage_clip": 2}, {"advantage_clip_low": -2.0, "advantage_clip_high": 2.0}),
        ({"advantage_clip": None, "value_clip": None}, {}),
    ],
)
def test_what_rolls_switches_say_together(theirs, ours):
    settings: dict[str, Any] = {}
    for key, value in theirs.items():
        (row,) = tables.find(key, ["roll"])
        settings |= translate_key(row, value, theirs.get).settings
    assert settings == {f"algorithm.{key}": value for key, value in ours.items()}


def test_lines_that_say_where_keys_are_from_are_no_keys():
    assert not [row for row in tables.rows() if row.system.startswith("#")]


def test_groups_that_names_are_translated_to_exist():
    from embodied.schema.others.values import ENVS, MODELS

    assert set(ENVS.values()) <= set(group_options("env"))
    assert set(MODELS.values()) <= set(group_options("model"))


if __name__ == "__main__":
    OPEN.write_text("".join(f"{line}\n" for line in lines(unanswered())), encoding="utf-8")
    print(f"{OPEN}: {len(OPEN.read_text(encoding='utf-8').splitlines())} keys")
