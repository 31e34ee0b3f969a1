"""Defaults of RLinf, verl, ROLL and Cosmos-RL: each is taken here, with the model that it is for, or listed with the
reason why not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from embodied import schema
from embodied.errors import ConfigError
from embodied.schema.compose.compose import compose
from embodied.schema.compose.of_hydra import OF_HYDRA
from embodied.schema.keys.paths import MISSING, at, with_changes
from embodied.schema.others import tables
from embodied.schema.others.accepted_no_ops import without_neutral
from embodied.schema.others.keep_default import silent
from embodied.schema.others.translation_rules import translate_key
from embodied.schema.rules.derived_keys import derived
from embodied.schema.rules.unused_keys import LINKS, PROBLEM_LINKS

ROBOT = ("env=libero_10", "model=openvla_oft", "actor.model.model_path=x")
TEXT = ("env=math", "model=causal_lm", "actor.model.model_path=x", "data.train_data_paths=[a.jsonl]")
BASES = {
    "embodied": (ROBOT, "train"), "math": ((*TEXT, "data.val_data_paths=[b.jsonl]"), "train"),
    "sft": ((*TEXT, "env.train.data=[c.jsonl]", "env.eval.data=[d.jsonl]"), "sft"),
}  # fmt: skip
ALONE = "it goes with another key of theirs, without which it asks for nothing: "
REFUSED: Mapping[str, str] = {
    "rlinf algorithm.length_params.max_length": ALONE + "the lengths of the model are set beside runner.seq_length",
    "rlinf rollout.cuda_graph_max_bs": ALONE + "enforce_eager=false, which is RLinf's default for math",
    "rlinf actor.training_backend": "for math it is Megatron, which is not there",
    "rlinf actor.offload_weight": "it is for an engine beside, and without one the policy acts and learns in one copy",
    "rlinf rollout.rollout_backend": "SGLang is not offered; the model itself generates, or vLLM",
    "roll actor_train.strategy_args.strategy_name": "Megatron is not there",
}
"""Their key → why its default is refused."""


def values_of(row: tables.Row) -> dict[str, Any]:
    """Base → the documented default, which may be one for math and another for robots; nothing if none is stated."""
    if row.default in ("-", "(example path)") or row.default.startswith(("$", "list(", "two lists")):
        return {}
    parts = re.findall(r"(\S+) \((math|embodied)\)", row.default)
    if parts:
        return {base: yaml.safe_load(text) for text, base in parts}
    try:
        value = {"None": None, "": ""}.get(row.default, MISSING)
        return dict.fromkeys(BASES, yaml.safe_load(row.default) if value is MISSING else value)
    except yaml.YAMLError:
        return {}


@pytest.fixture(scope="module")
def bases() -> dict[str, dict[str, Any]]:
    return {name: compose(overrides, entry).resolved for name, (overrides, entry) in BASES.items()}


def take(base: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """What composing does with values, in a hundredth of the time. Raises ConfigError."""
    settings = {key: value for key, value in settings.items() if key not in OF_HYDRA}  # before the schema
    nothing = silent(with_changes({}, settings))
    settings = {key: value for key, value in settings.items() if key not in nothing}
    linked = {
        name: value
        for key, value in settings.items()
        for target in {**LINKS, **PROBLEM_LINKS}.get(key, ())
        if at(base, name := target.format(key.rpartition(".")[2])) is not MISSING
    }  # a YAML file says so: prompt_key: ${data.prompt_key}
    mapping, refused = without_neutral(with_changes(base, {**linked, **settings}))
    if refused:
        raise refused[0]
    config = schema.bind(mapping)
    if changes := derived(config, list(settings)).values:
        config = schema.bind(with_changes(mapping, changes))
    schema.check(config)


def refusals(bases: Mapping[str, Mapping[str, Any]], row: tables.Row) -> list[str]:
    """Why no base takes the default of a row, or one that has a default of its own; nothing if it is taken."""
    said: dict[str, str] = {}
    values = values_of(row)
    for name, value in values.items():
        told = translate_key(row, value)
        settings = {key: one for key, one in told.settings.items() if key not in ("env", "model")}
        try:
            if told.how == "refused":
                raise ConfigError(told.why, "")
            take(bases[name], settings)
        except ConfigError as error:
            said[name] = error.message
            continue
        if set(values) == set(BASES):
            return []
    return [*said.values()]


def test_what_others_have_by_default_is_taken_or_refused_with_a_reason(bases):
    rows = [row for row in tables.rows() if row.kind in ("must", "should") and values_of(row)]
    assert len(rows) > 450
    found = {f"{row.system} {row.full}": said for row in rows if (said := refusals(bases, row))}
    print(f"{len(rows) - len(found)} of {len(rows)} documented defaults are taken")
    assert {name: said for name, said in found.items() if name not in REFUSED} == {}
    assert REFUSED.keys() - found.keys() == set(), "these are taken now"


@pytest.mark.parametrize("base", [ROBOT, TEXT])
def test_defaults_of_others_are_taken_on_a_command_line_together(base):
    told = (
        "rollout.group_name=RolloutGroup", "actor.group_name=ActorGroup", "rollout.torch_compile_max_bs=128",
        "actor.tokenizer.use_fast=false", "data.return_raw_chat=false", "data.image_key=images",
        "actor.sequence_packing=false", "data.enable_dataset_cache=false", "actor.fsdp_config.backward_prefetch=false",
        "actor.fsdp_config.offload_pin_memory=false", "data.num_workers=0", "runner.seed=null",
        "runner.max_tokens_per_mbs=null", "algorithm.positive_nll_coef=null", "data.test_size=null",
        "runner.checkpoint.export_safetensors=true", "runner.trace_verbosity=1",
    )  # fmt: skip
    config = compose([*base, *told], "train").config
    assert config.runner.seed == schema.RunnerConfig.model_fields["seed"].default
    assert config.env.num_workers is None
    assert len(schema.notes(config)) == (7 if base == ROBOT else 5)
