"""The typed configuration: what it refuses and how it says so, and that every key is read."""

from __future__ import annotations

import ast
import re
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from embodied import schema
from embodied.algorithms import aggregation, layout, rewards
from embodied.algorithms.advantages.estimators import make_estimator
from embodied.algorithms.advantages.value import make_value_loss
from embodied.algorithms.kl import EXACT, make_kl
from embodied.algorithms.policy_loss import make_loss
from embodied.errors import ConfigError, UnknownKeyError
from embodied.schema.compose.compose import compose
from embodied.schema.others.tables import column
from embodied.schema.rules.aliases import SAID

ROOT = Path(__file__).resolve().parents[2]
FAKE = ("env=fake", "model=fake")


def composed(*overrides: str) -> schema.Config:
    return compose([*FAKE, *overrides], "train", [str(ROOT / "tests" / "config")]).config


def refused(*overrides: str, by: type[ConfigError] = ConfigError) -> str:
    with pytest.raises(by) as failed:
        composed(*overrides)
    return str(failed.value)


@pytest.mark.parametrize(
    ("key", "kind"),
    [("algorithm.kl_beta", "a number"), ("runner.seed", "a whole number"), ("runner.max_steps", "a whole number")],
)
def test_true_is_no_number(key, kind):
    """Others switch the KL on by such a key, and its weight would silently be 1."""
    assert f"{key} = 'true': expected {kind}" in refused(f"{key}=true")
    assert composed("rollout.trace=true").rollout.trace is True, "where both are values"


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("runner.max_epoch", "max_epochs"),
        ("runner.logger.log_pat", "log_path"),
        ("runner.checkpoint.max_kep", "max_keep"),
        ("algorithm.group_siz", "group_size"),
        ("algorithm.sampling_params.temprature", "temperature"),
        ("env.num_worker", "num_workers"),
        ("env.channel.queue_siz", "queue_size"),
        ("env.train.video_cfg.sav_video", "save_video"),
        ("rollout.schedul", "schedule"),
        ("actor.optim.learning_rate_lr", ""),
        ("actor.optim.clip_gradd", "clip_grad"),
    ],
)
def test_an_unknown_key_is_named_with_what_was_meant(key, meant):
    mapping = {**composed().model_dump(by_alias=True)}
    section = mapping
    *path, name = key.split(".")
    for step in path:
        section = section[step]
    section[name] = 1
    with pytest.raises(UnknownKeyError) as failed:
        schema.bind(mapping)
    assert f"unknown {'key' if path else 'group or section'} '{key}'." in failed.value.message
    assert ("Did you mean" in failed.value.message) == bool(meant)
    if meant:
        assert f"Did you mean '{meant}'?" in failed.value.message
        assert failed.value.remedy == f"set {'.'.join([*path, meant])}=1 instead of {key}"
    else:
        assert "docs/configuration.md" in failed.value.remedy


def test_every_unknown_key_is_listed():
    message = refused("runner.sed=1", "actor.optim.l=2", by=UnknownKeyError)
    assert "unknown key 'runner.sed'. Did you mean 'seed'?" in message
    assert "unknown key 'actor.optim.l'. Did you mean 'lr'?" in message


@pytest.mark.parametrize(
    ("side", "key", "meant"), [("train", "num_taks", "num_tasks"), ("eval", "rewrd_coef", "reward_coef")]
)
def test_keys_of_the_env_class_are_checked_against_its_signature(side, key, meant):
    config = composed(f"env.{side}.{key}=3")
    with pytest.raises(UnknownKeyError) as failed:
        schema.target_kwargs(getattr(config.env, side), f"env.{side}")
    assert failed.value.message == f"unknown key 'env.{side}.{key}'. Did you mean '{meant}'?"
    assert failed.value.remedy == f"set env.{side}.{meant}=3 instead of env.{side}.{key}"


def test_the_keys_of_the_env_class_are_listed_where_none_is_near():
    with pytest.raises(UnknownKeyError) as failed:
        schema.target_kwargs(composed("env.train.zzz=3").env.train, "env.train")
    assert failed.value.message == "unknown key 'env.train.zzz'."
    assert "horizon" in failed.value.remedy
    assert "_target_" in failed.value.remedy


def test_keys_of_the_model_are_checked_against_its_signature():
    with pytest.raises(UnknownKeyError, match=r"'actor\.model\.value_hed'\. Did you mean 'value_head'"):
        schema.target_kwargs(composed("actor.model.value_hed=true").actor.model, "actor.model")


@pytest.mark.parametrize(
    ("value", "expected"),
    [("num_tasks=abc", "env.train.num_tasks = 'abc': expected a whole number"),
     ("fault=3", "env.train.fault = 3: expected a text"),
     ("success_distance=null", "env.train.success_distance = None: expected a number")],
)  # fmt: skip
def test_values_of_the_env_class_are_checked_against_its_annotations(value, expected):
    with pytest.raises(ConfigError) as failed:
        schema.target_kwargs(composed(f"env.train.{value}").env.train, "env.train")
    assert expected in failed.value.message


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("task_ids=5", "task_ids = 5: expected a list of whole numbers"),
        ("kinds=camera", "kinds = 'camera': expected a list of texts"),
        ("kinds=[[camera]]", "kinds.0 = ['camera']: expected a text"),
        ("init_params=3", "init_params = 3: expected names"),
    ],
)
def test_values_are_checked_where_the_class_comes_from_another_module(value, expected):
    """A package offers the class; names of its annotations are known where it was written. Nothing is converted."""
    with pytest.raises(ConfigError, match=re.escape(f"env.eval.{expected}")):
        schema.target_kwargs(compose(["env=libero_plus_10", f"env.eval.{value}"], "eval").config.env.eval, "env.eval")
    asked = ["env=gym_pusht", "env.eval.progress_range=[0,1]"]
    kept = schema.target_kwargs(compose(asked, "eval").config.env.eval, "env.eval")["progress_range"]
    assert [type(number) for number in kept] == [int, int]


def target_of_unknown_annotations(a: NoSuchName, b: int = 3, **rest: object) -> None:  # type: ignore[name-defined]  # noqa: F821
    pass


def open_section(**values: object) -> schema.ModelConfig:
    return schema.ModelConfig(_target_=f"{__name__}.target_of_unknown_annotations", **values)


def test_annotations_that_cannot_be_resolved_are_left_to_the_target():
    assert schema.target_kwargs(open_section(a=1, b="4", c=5), "x") == {"a": 1, "b": 4, "c": 5}


def test_a_required_argument_that_is_missing_is_named():
    with pytest.raises(ConfigError, match=r"x\.a is missing"):
        schema.target_kwargs(open_section(b=1), "x")


@pytest.mark.parametrize("target", ["nowhere.Env", "embodied.testing.NoEnv", "NoDots", ""])
def test_a_target_that_cannot_be_imported(target):
    with pytest.raises(ConfigError, match=r"env\.train\._target_: cannot import"):
        schema.target_kwargs(composed(f"env.train._target_='{target}'").env.train, "env.train")


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("runner.seed=abc", "runner.seed = 'abc': expected a whole number"),
        ("runner.seed=-1", "runner.seed = -1: input should be greater than or equal to 0"),
        ("runner.max_epochs=1.5", "runner.max_epochs = 1.5"),
        ("runner.device=gpu", "runner.device = 'gpu'"),
        ("algorithm.adv_type=gppo", "algorithm.adv_type = 'gppo'"),
        ("algorithm.loss_agg_func=token-men", "Did you mean 'token-mean'?"),
        ("algorithm.clip_ratio_low=1.0", "algorithm.clip_ratio_low = 1.0: input should be less than 1"),
        ("algorithm.clip_ratio_c=0.5", "algorithm.clip_ratio_c = 0.5: input should be greater than 1"),
        ("algorithm.sampling_params.top_p=0", "algorithm.sampling_params.top_p = 0"),
        ('algorithm.sampling_params.stop=["a",""]', "algorithm.sampling_params.stop.1 = ''"),
        ("rollout.schedule=redy", "Did you mean 'ready'?"),
        ("actor.optim.lr=0", "actor.optim.lr = 0: input should be greater than 0"),
        ("actor.optim.lr=nan", "actor.optim.lr = nan"),
        ("actor.optim.lr=inf", "actor.optim.lr = inf"),
        ("env.step_timeout_s=inf", "env.step_timeout_s = inf"),
        ("env.train.reward_coef=nan", "env.train.reward_coef = nan"),
        ("env.train=3", "env.train = 3"),
        ("runner.logger.logger_backends=[jsonl,neptune]", "runner.logger.logger_backends.1 = 'neptune'"),
    ],
)
def test_a_wrong_value_is_shown_with_its_key(override, part):
    assert part in refused(override)


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["algorithm.group_size=5"], ["group_size 5 does not divide 16 episodes", "rollout_epoch 8"]),
        (["env.num_workers=3"], ["env.num_workers 3", "2 env slots"]),
        (["algorithm.group_size=1"], ["group_size is 1"]),
        (["env.train.use_fixed_reset_state_ids=false"], ["adv_type grpo", "use_fixed_reset_state_ids is false"]),
        (["algorithm.sampling_params.do_sample=false"], ["do_sample false"]),
        (["algorithm.filter_rewards=true", "algorithm.rewards_lower_bound=0.95"], ["0.95 is above", "0.9"]),
        (["actor.fsdp_config.mixed_precision.param_dtype=bf16"], ["param_dtype is bf16", "precision fp32"]),
        (["actor.fsdp_config.fsdp_size=0"], ["fsdp_size is 0"]),
        (["algorithm.unbiased_kl_estimate=true", "algorithm.kl_penalty_type=k1"], ["kl_penalty_type is k1"]),
        (["algorithm.dynamic_sampling=true", "algorithm.adv_type=raw"], ["dynamic_sampling", "adv_type raw"]),
        (["algorithm.dynamic_sampling=true", "algorithm.max_sampling_rounds=1"], ["max_sampling_rounds 1"]),
        (["algorithm.adv_type=remax", "algorithm.sampling_params.do_sample=false"], ["remax", "do_sample false"]),
        (["algorithm.use_kl_in_reward=true"], ["use_kl_in_reward", "kl_beta is 0"]),
        (["algorithm.kl_ctrl.type=adaptive"], ["kl_ctrl.type=adaptive", "kl_beta is 0"]),
        (["algorithm.reference_reset_interval=5"], ["reference_reset_interval=5", "kl_beta is 0"]),
        (["algorithm.kl_beta=1", "algorithm.use_kl_in_reward=true", "algorithm.unbiased_kl_estimate=true"],
         ["unbiased_kl_estimate", "use_kl_in_reward is true"]),
        (["algorithm.kl_beta=1", "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=15"],
         ["horizon 15", "16 episodes", "1600"]),
        (["algorithm.critic_warmup_steps=3"], ["critic_warmup_steps 3", "adv_type grpo"]),
        (["algorithm.behav_imp_weight_mode=mask", "algorithm.behav_imp_weight_cap=null"], ["mask", "cap is null"]),
        (["actor.lr_sched.min_lr=1e-3"], ["min_lr 0.001", "actor.optim.lr 0.0001"]),
        (["actor.lr_sched.lr_warmup_init=1e-3"], ["lr_warmup_init 0.001", "actor.optim.lr 0.0001"]),
        (["actor.lr_sched.min_lr=1e-5", "actor.lr_sched.min_lr_ratio=0.1"], ["min_lr 1e-05", "min_lr_ratio 0.1"]),
        (["actor.lr_sched.lr_decay_style=cosine", "actor.lr_sched.lr_warmup_iters=4", "runner.max_epochs=4"],
         ["rise until iteration 4", "by iteration 4"]),
        (["actor.micro_batch_size=65"], ["actor.micro_batch_size 65", "actor.global_batch_size 64"]),
        (["algorithm.reward_type=action_level", "algorithm.logprob_type=chunk_level"], ["action_level", "chunk_level"]),
        (["algorithm.logprob_dtype=bfloat16", "rollout.backend=vllm"], ["logprob_dtype is bfloat16", "in float32"]),
    ],
)  # fmt: skip
def test_what_cannot_work_together_is_refused_with_the_numbers(overrides, parts):
    message = refused(*overrides)
    for text in parts:
        assert text in message


def test_what_only_training_needs_is_not_asked_of_evaluation():
    assert composed("algorithm.group_size=5", "runner.only_eval=true").algorithm.group_size == 5


def test_group_rules_hold_for_group_advantages_only():
    assert composed("algorithm.adv_type=raw", "algorithm.group_size=1").algorithm.adv_type == "raw"
    assert set(schema.GROUP_ADVANTAGES) < set(choices(schema.AlgorithmConfig, "adv_type"))


def test_a_configuration_cannot_change():
    with pytest.raises(ValueError, match="frozen"):
        composed().runner.seed = 3


def choices(section: type[BaseModel], key: str) -> tuple[str, ...]:
    return typing.get_args(section.model_fields[key].annotation)


def test_choices_are_those_that_the_algorithms_know():
    algorithm = schema.AlgorithmConfig
    for name in choices(algorithm, "adv_type"):
        assert callable(make_estimator(name))
    assert set(choices(algorithm, "adv_type")) == known_of(lambda: make_estimator("?"))
    for name in schema.LOSSES:
        assert callable(make_loss(name, dict(composed(f"algorithm.loss_type={name}").algorithm)))
    assert set(schema.LOSSES) == known_of(lambda: make_loss("?", {}))
    assert set(choices(algorithm, "kl_penalty_type")) == known_of(lambda: make_kl("?")) | {EXACT}
    assert set(choices(algorithm, "value_loss")) == known_of(lambda: make_value_loss("?", None, 1.0))
    assert set(choices(algorithm, "loss_agg_func")) == set(aggregation.MODES)
    assert set(choices(algorithm, "reward_type")) == set(rewards.REWARD_LEVELS)
    assert choices(algorithm, "logprob_type") == choices(algorithm, "entropy_type") == layout.LEVELS


def known_of(call) -> set[str]:
    """The names that the error for an unknown one lists."""
    with pytest.raises(ConfigError) as failed:
        call()
    return set(failed.value.remedy.partition(": ")[2].split(", "))


def leaves(section: type[BaseModel] = schema.Config, prefix: str = "") -> Iterator[tuple[str, str]]:
    """``(dotted key, attribute)`` of every key that is not a section."""
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from leaves(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{field.alias or name}", name


def attributes_read() -> set[str]:
    """Names after a dot or in brackets anywhere in the program, and keys that its YAML files refer to."""
    used: set[str] = set()
    for path in (ROOT / "embodied").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Attribute(attr=str(name), ctx=ast.Load()):
                    used.add(name)
                case ast.Subscript(slice=ast.Constant(value=str(name)), ctx=ast.Load()):  # of a resolved configuration
                    used.add(name)
    for path in (ROOT / "config").rglob("*.yaml"):
        used |= {key.rpartition(".")[2] for key in re.findall(r"\$\{([\w.]+)\}", path.read_text(encoding="utf-8"))}
    return used


def test_every_key_is_read():
    keys, used = list(leaves()), attributes_read()
    said = {*column("no_effect"), *SAID}  # of the first only the default is taken; SAID's are read as other keys
    unread = [key for key, name in keys if name not in used and key not in said]
    assert len(keys) > 60
    assert unread == []


def test_every_key_says_what_it_means():
    def sections(section: type[BaseModel]) -> Iterator[type[BaseModel]]:
        yield section
        for field in section.model_fields.values():
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                yield from sections(field.annotation)

    for section in sections(schema.Config):
        for name, field in section.model_fields.items():
            nested = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
            assert nested or len(field.description or "") > 10, f"{section.__name__}.{name}"


def test_defaults_are_those_of_the_models():
    found = schema.defaults()
    assert found["runner"]["seed"] == schema.RunnerConfig.model_fields["seed"].default
    assert found["env"]["channel"]["queue_name"] == "obs_buffer"
    assert found["rollout"]["channel"]["queue_name"] == "action_buffer"
    assert found["algorithm"]["val_sampling_params"]["do_sample"] is False
    assert found["algorithm"]["sampling_params"]["do_sample"] is True
    assert "_target_" not in found["actor"]["model"]


@pytest.mark.parametrize(
    ("overrides", "numbers"),
    [
        (("rollout.pipeline_stage_num=2",), "rollout.pipeline_stage_num 2 divides the slots of a lockstep"),
        (("rollout.schedule=lockstep", "rollout.max_wait_ms=5"), "rollout.max_wait_ms 5 ends the wait"),
        (("rollout.schedule=lockstep", "rollout.pipeline_stage_num=9"), "9 is more than the 2 env slots"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(overrides, numbers):
    assert numbers in refused(*overrides)
