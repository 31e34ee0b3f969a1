"""A value that cannot be resolved: nothing is computed from it, no default stands for it, and the report names it."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from test_recipes import theirs
from test_translate import composed

from embodied.errors import ConfigError
from embodied.migrate import Migration, migrate, translate
from embodied.migrate.report import to_do
from embodied.schema.others.translation import Unresolved
from embodied.tools import migrate as tool

TAKEN = 8
"""Keys of a recipe of which each is made unknown once."""
PASSES_AND_ENGINES = ("actor.micro_batch_size", "rollout.backend", "runner.seq_length")
"""What may be another one: no number of an update depends on it."""
VLA = {"vla_type": "openvla-oft", "num_envs": 8}
ROBOT = {
    "vla": VLA, "policy": {"model_name_or_path": "w"}, "rollout": {"n_generation": 8},
    "train": {"train_batch_per_replica": 64, "train_policy": {
        "type": "grpo", "dataset": {"name": "libero", "subset": "libero_10"}}},
}  # fmt: skip
TEXT = {
    "data": {"train_files": "train.jsonl", "train_batch_size": 64}, "algorithm": {"adv_estimator": "gae"},
    "actor_rollout_ref": {
        "model": {"path": "m"}, "rollout": {"n": 4, "val_kwargs": {"temperature": 1.0}},
        "actor": {"optim": {"lr": 1.0e-6, "lr_warmup_steps": 3}, "policy_loss": {"loss_mode": "gspo"}},
    },
}  # fmt: skip
OPTIM = {"lr": 1.0e-5, "lr_warmup_steps": 3, "lr_scheduler": "cosine", "total_training_steps": 9}
RLINF = {
    "data": {"train_data_paths": ["train.jsonl"], "rollout_batch_size": 8}, "runner": {"max_epochs": 3},
    "algorithm": {"reinpp_kl_beta": 0.1, "adv_type": "reinpp"}, "actor": {"optim": OPTIM},
}  # fmt: skip
ROLL = {
    "rollout_batch_size": 8, "num_return_sequences_in_group": 4, "adv_estimator": "grpo", "reward_clip": 2,
    "actor_infer": {"generating_args": {"temperature": 0.7}},
    "actor_train": {"training_args": {"warmup_steps": 4, "per_device_train_batch_size": 1}},
}  # fmt: skip
LORA = {"policy": {"model_name_or_path": "w", "lora": {"r": 8}}, "train": {"train_policy": {"type": "grpo"}}}


def with_unknown(mapping: Mapping[str, Any], key: str, value: Any = "${oc.env:X}") -> dict[str, Any]:
    """The mapping with a value that nobody knows."""
    changed: dict[str, Any] = copy.deepcopy(dict(mapping))
    inner = changed
    *path, name = key.split(".")
    for part in path:
        inner = inner[part]
    assert name in inner
    inner[name] = value
    return changed


def asked_for(found: Migration, system: str, key: str) -> bool:
    """Whether the report names the key among what is to do."""
    return f"{key} = " in (text := "\n".join(to_do(found, system))) or f"needs {key}," in text


@pytest.mark.parametrize(
    ("system", "mapping", "key", "opened", "left_out"),
    [
        ("verl", TEXT, "algorithm.adv_estimator", "algorithm.adv_type", "algorithm.adv_type"),
        ("verl", TEXT, "actor_rollout_ref.actor.policy_loss.loss_mode", "algorithm.loss_type", "algorithm.loss_type"),
        ("verl", TEXT, "actor_rollout_ref.model.path", "actor.model.model_path", "actor.model.model_path"),
        ("verl", TEXT, "actor_rollout_ref.rollout.n", "algorithm.group_size", "actor.global_batch_size"),
        ("verl", TEXT, "actor_rollout_ref.actor.optim.lr", "actor.optim.lr", "actor.optim.lr"),
        ("verl", TEXT, "actor_rollout_ref.actor.optim.lr_warmup_steps", None, "actor.lr_sched.lr_warmup_iters"),
        ("verl", TEXT, "data.train_batch_size", "data.rollout_batch_size", "runner.max_epochs"),
        ("verl", TEXT, "data.train_files", None, "runner.max_epochs"),
        ("verl", TEXT, "actor_rollout_ref.rollout.val_kwargs.temperature", None,
         "algorithm.val_sampling_params.temperature"),
        ("rlinf", RLINF, "data.train_data_paths", None, "runner.max_epochs"),
        ("rlinf", RLINF, "algorithm.reinpp_kl_beta", "algorithm.kl_beta", "algorithm.use_kl_in_reward"),
        ("rlinf", RLINF, "algorithm.adv_type", "algorithm.adv_type", "algorithm.reward_type"),
        ("rlinf", RLINF, "actor.optim.lr_warmup_steps", None, "actor.lr_sched.lr_warmup_iters"),
        ("rlinf", RLINF, "actor.optim.total_training_steps", None, "actor.lr_sched.lr_decay_iters"),
        ("roll", ROLL, "reward_clip", None, "reward.clip_min"),
        ("roll", ROLL, "actor_infer.generating_args.temperature", None, "algorithm.sampling_params.temperature"),
        ("roll", ROLL, "actor_train.training_args.warmup_steps", None, "actor.lr_sched.lr_warmup_iters"),
        ("cosmos-rl", LORA, "policy.lora.r", "actor.model.is_lora", "actor.model.is_lora"),
        ("cosmos-rl", ROBOT, "vla.vla_type", "model", "model"),
        ("cosmos-rl", ROBOT, "vla.num_envs", "actor.global_batch_size", "algorithm.rollout_epoch"),
        ("cosmos-rl", ROBOT, "train.train_policy.dataset.subset", "env", "env"),
        ("cosmos-rl", with_unknown({**ROBOT, "vla": {**VLA, "max_steps": 1}}, "vla.max_steps"), "vla.max_steps",
         "actor.global_batch_size", "env.train.max_episode_steps"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", ["${oc.env:X}", Unresolved("8 or 4"), "???", ["$A"], {"a": "$(b)"}], ids=str)
def test_no_default_stands_for_it(system, mapping, key, opened, left_out, value, monkeypatch):
    monkeypatch.setattr(translate, "attempt", lambda *given: None)
    found = migrate(with_unknown(mapping, key, value), system, devices=0)
    assert left_out not in {**found.settings, **found.groups}
    assert opened is None or opened in found.open
    if not isinstance(value, dict):
        assert asked_for(found, system, key)


@pytest.mark.parametrize(("file", "system"), theirs(), ids=lambda one: getattr(one, "stem", one))
def test_of_a_recipe_nothing_else_takes_its_place(file, system, monkeypatch, tmp_path):
    """The trial is left out: it takes what is compared here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(translate, "attempt", lambda *given: None)
    mapping = tool.read(file)
    before = migrate(mapping, system, devices=0)
    keys = [key for key in keys_of("", mapping) if not key.startswith("defaults")]
    for key in random.Random(file.stem).sample(keys, min(TAKEN, len(keys))):
        found = migrate(with_unknown(mapping, key, Unresolved("$N")), system, devices=0)
        other = {name: one for name, one in found.settings.items() if before.settings.get(name) != one}
        assert {name for name in other if name not in PASSES_AND_ENGINES} == set(), key
        assert {name: one for name, one in found.groups.items() if before.groups.get(name) != one} == {}, key


def keys_of(path: str, value: Any) -> Iterator[str]:
    """Dotted names of all values in a mapping."""
    if not isinstance(value, Mapping) or not value:
        yield path
        return
    for name, inner in value.items():
        if "." not in str(name):
            yield from keys_of(f"{path}.{name}".lstrip("."), inner)


def test_what_is_known_besides_stays(tmp_path):
    words = {"clip_ratio": "${c}", "clip_ratio_low": 0.1, "clip_ratio_high": 0.3}
    found = migrate({"actor_rollout_ref": {"actor": words}}, "verl", devices=0)
    assert (found.settings["algorithm.clip_ratio_low"], found.settings["algorithm.clip_ratio_high"]) == (0.1, 0.3)
    assert not {"algorithm.clip_ratio_low", "algorithm.clip_ratio_high"} & set(found.open)


def test_a_run_does_not_begin_with_it(tmp_path):
    found = migrate(with_unknown(TEXT, "actor_rollout_ref.actor.optim.lr"), "verl", devices=0)
    assert yaml.safe_load(found.as_yaml())["actor"]["optim"]["lr"] == "TO_BE_DECIDED"
    with pytest.raises(ConfigError, match=r"actor\.optim\.lr = 'TO_BE_DECIDED'"):
        composed(found, tmp_path)


@pytest.mark.parametrize("samples", ["many", "$N", [8]])
def test_starts_are_not_counted_with_a_number_of_samples_that_is_none(samples):
    data = {"task_suite_name": "libero_10", "train_batch_size": 8, "n_samples": samples}
    found = migrate({"data": data, "actor_rollout_ref": {"model": {"vla": "openvla-oft", "path": "w"}}}, "verl")
    assert not {"algorithm.rollout_epoch", "env.train.total_num_envs"} & set(found.settings)
    assert asked_for(found, "verl", "data.train_batch_size")
