"""Derived values: bound once, checked where they stand, and known by the keys that they follow from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from embodied import schema
from embodied.errors import ConfigError
from embodied.schema.compose.binding import with_derived
from embodied.schema.compose.compose import compose, compose_unchecked
from embodied.schema.keys.paths import with_changes
from embodied.schema.others.accepted_no_ops import no_ops
from embodied.schema.others.systems import Others
from embodied.schema.others.tables import column, rows
from embodied.schema.rules.derived_keys import derived

CONFIG = [str(Path(__file__).resolve().parents[1] / "config")]
TEXT = ("env=arithmetic", "model=causal_lm_tiny")


@pytest.fixture(scope="module")
def mapping() -> dict[str, object]:
    return compose([*TEXT, "actor.enable_offload=true"], "train", CONFIG).resolved


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"runner.max_epochs": 7, "cluster.timeout_s": 60},  # a whole number becomes a float
        {"actor.fsdp_config.strategy": "FSDP2"},  # a name in any case
        {"env.train.new_argument": {"a": 1}, "env.eval.verifier": [{"name": "exact"}]},  # of the class
        {"env.train.video_cfg.max_videos": 2, "env.train.video_cfg.save_video": True, "runner.seed": 3},
    ],
)
def test_derived_values_are_bound_as_if_they_had_been_there_from_the_start(mapping, changes):
    bound = with_derived(schema.bind(mapping), mapping, changes)
    whole = schema.bind(with_changes(mapping, changes))
    assert bound == whole
    assert str(bound.model_dump(by_alias=True, mode="json")) == str(whole.model_dump(by_alias=True, mode="json"))


def test_sections_without_derived_values_are_not_checked_again(mapping):
    config = schema.bind(mapping)
    bound = with_derived(config, mapping, {"actor.optim.lr": 0.5})
    assert bound.env is config.env
    assert bound.actor.model is config.actor.model
    assert bound.actor.optim is not config.actor.optim


@pytest.mark.parametrize(
    "changes",
    [
        {"env.eval.total_num_envs": 0, "runner.max_epochs": "many"},
        {"actor.fsdp_config.strategy": "fsdp3"},
        {"runner.no_such_key": 1},
    ],
)
def test_a_wrong_derived_value_is_refused_with_the_same_words(mapping, changes):
    with pytest.raises(ConfigError) as once:
        with_derived(schema.bind(mapping), mapping, changes)
    with pytest.raises(ConfigError) as whole:
        schema.bind(with_changes(mapping, changes))
    assert (type(once.value), str(once.value)) == (type(whole.value), str(whole.value))


def test_a_configuration_is_bound_once(monkeypatch):
    calls: list[object] = []
    module = sys.modules[compose.__module__]
    monkeypatch.setattr(module, "bind", lambda mapping: calls.append(mapping) or schema.bind(mapping))
    config = compose([*TEXT, "runner.max_steps=2", "actor.enable_offload=true"], "train", CONFIG).config
    assert len(calls) == 1
    assert config.runner.max_epochs == 2


def test_each_derived_value_says_the_keys_that_it_follows_from():
    words = (
        *TEXT, "reward.reward_type=exact", "data.val_rollout_batch_size=2", "runner.max_steps=1",
        "data.validation_shuffle=true", "env.train.data=null", "env.eval.data=null",
    )  # fmt: skip
    config = compose_unchecked(words, "train", CONFIG).config
    found = derived(config)
    assert set(found.values) == set(found.sources) != set()
    assert all(found.sources.values())
    assert found.sources["env.eval.total_num_envs"] == ("data.val_rollout_batch_size", "algorithm.val_group_size")
    assert found.sources["env.eval.verifier"] == ("reward.reward_type",)


def test_other_systems_are_one_object():
    raw = {"runner": {"seed": None, "max_epochs": "${runner.seed}"}, "actor": {"mcore_gpt": False, "spec_name": "x"}}
    normal = Others().normalise(raw, lambda rest: with_changes(rest, {"runner.seed": 1, "runner.max_epochs": 1}))
    assert normal.mapping == {"runner": {"seed": 1, "max_epochs": 1}}
    assert normal.silent == ("runner.seed",)
    assert normal.no_ops == ("actor.mcore_gpt", "actor.spec_name")
    assert [error.message.partition(" ")[0] for error in normal.refused] == ["actor.spec_name"]
    assert normal.hub_name is None
    assert "set algorithm.clip_ratio_low=0.2" in Others().hint("algorithm.ratio_clip_eps", 0.2)
    assert Others().instead("algorithm.ratio_clip_eps", 0.2)["algorithm.clip_ratio_high"] == 0.2


@pytest.mark.parametrize("name", ["says_nothing", "values", "no_effect", "accepted", "why", "place"])
def test_each_column_is_of_keys_that_have_a_row_of_their_own(name):
    answers = {row.ours for row in rows()}
    assert column(name)
    assert [key for key in column(name) if (key,) not in answers] == []


def test_refusals_have_one_place_each():
    assert sorted(int(place) for place in column("place").values()) == [*range(1, len(no_ops()) + 1)]
    assert column("place").keys() == column("accepted").keys() == column("why").keys()
    assert {*column("fix"), *column("same_as")} <= column("place").keys()
