"""What env.train is told of the task, evaluations are told too; what is a side's own is in a table with its reason."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from embodied.run import summary
from embodied.schema.compose.compose import compose_unchecked, group_options
from embodied.schema.keys.sections.env import EnvTrainConfig
from embodied.schema.rules.sides import ALONGSIDE, OWN_OF_A_SIDE

MARKS = """
defaults:
  - gym
  - _self_

imports: [my_tasks]
id: Marks-v0
success: info.is_success
make_kwargs: {goal: green, size: 3}
"""


def sides(*overrides: str, config: str = "train", folders: tuple[str, ...] = ()) -> tuple[Any, Any]:
    env = compose_unchecked(list(overrides), config, list(folders)).resolved["env"]
    return env["train"], env["eval"]


def leaves(mapping: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{before}{key}.")
        else:
            yield before + key, value


def at(mapping: Any, key: str) -> Any:
    for name in key.split("."):
        mapping = mapping[name]
    return mapping


def other(value: Any) -> str:
    """Another value of the same type, as the command line has it."""
    if isinstance(value, bool):
        return str(not value).lower()
    if isinstance(value, int | float):
        return str(value + 1)
    return '"[another]"' if isinstance(value, str) else "[another]" if isinstance(value, list) else "another"


def of_a_side(key: str) -> bool:
    return any(key == own or key.startswith(f"{own}.") for own in OWN_OF_A_SIDE)


@functools.cache
def families() -> dict[str, tuple[Any, Any]]:
    """One env of each set of keys with its sides, so that the suites of LIBERO-PRO are looked at once."""
    found = {}
    for name in group_options("env"):
        train, evaluation = sides(f"env={name}")
        kind = train["_target_"], tuple(sorted(key for key, _ in leaves(train)))
        found.setdefault(kind, (name, (train, evaluation)))
    return dict(found.values())


def test_each_key_of_each_env_reaches_evaluation_or_has_its_reason():
    """All keys that are changed at once; those of a side keep their value."""
    looked_at = 0
    for name, (before, evaluated) in families().items():
        wanted = {key: other(value) for key, value in leaves(before) if not of_a_side(key)}
        train, evaluation = sides(f"env={name}", *(f"env.train.{key}={value}" for key, value in wanted.items()))
        for key in wanted:
            assert at(train, key) != at(before, key), (name, key)
            assert at(evaluation, key) == at(train, key), (name, key)
        for key, value in leaves(evaluated):
            if of_a_side(key):
                assert at(evaluation, key) == value, (name, key)
        looked_at += len(wanted)
    assert looked_at > 100


def test_each_key_of_the_schema_and_of_the_table_is_decided():
    known = {key for train, _ in families().values() for key, _ in leaves(train)}
    assert set(EnvTrainConfig.model_fields) - {"target"} <= set(OWN_OF_A_SIDE)
    assert all(reason.strip() for reason in OWN_OF_A_SIDE.values())
    for own in (*OWN_OF_A_SIDE, *ALONGSIDE):
        options = {"_target_", "enable_dataset_cache", *EnvTrainConfig.model_fields}
        assert own in options or any(key == own or key.startswith(f"{own}.") for key in known), own


@pytest.mark.parametrize("key", ["total_num_envs=3", "seed=5", "max_episode_steps=7", "reward_coef=2.0"])
def test_what_is_a_sides_own_stays(key):
    train, evaluation = sides("env=gym_pusht", f"env.train.{key}")
    name, _, value = key.partition("=")
    assert str(train[name]) == value != str(evaluation[name])


@pytest.mark.parametrize("config", ["train", "eval"])
def test_verifier_and_template_reach_evaluation(config):
    given = ["env=math", "model=causal_lm_tiny", "data.val_data_paths=[p.jsonl]", "data=p.jsonl"]
    told = ["env.train.verifier=[{name: gsm8k}]", "env.train.template='Q: {prompt}'"]
    _, evaluation = sides(*given, *told, config=config)
    assert (evaluation["verifier"], evaluation["template"]) == ([{"name": "gsm8k"}], "Q: {prompt}")
    _, evaluation = sides(*given, *told, "env.eval.verifier=[{name: boxed}]", "env.eval.template=null", config=config)
    assert (evaluation["verifier"], evaluation["template"]) == ([{"name": "boxed"}], None)


def test_those_of_an_experiment_do_too(tmp_path: Path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /env@env.train: math\n  - override /env@env.eval: math\n"
        "env: {train: {verifier: [{name: gsm8k}], template: 'Q: {prompt}'}}\n",
        encoding="utf-8",
    )
    _, evaluation = sides("experiment=mine", folders=(str(tmp_path),))
    assert (evaluation["verifier"], evaluation["template"]) == ([{"name": "gsm8k"}], "Q: {prompt}")


def test_an_env_whose_file_sets_the_key(tmp_path: Path):
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "marks.yaml").write_text(MARKS, encoding="utf-8")
    folders = (str(tmp_path),)
    assert sides("env=marks", folders=folders)[1]["success"] == "info.is_success"
    train, evaluation = sides("env=marks", "env.train.success=return>=3", folders=folders)
    assert train["success"] == evaluation["success"] == "return>=3"
    _, evaluation = sides("env=marks", "env.train.success=return>=3", "env.eval.success=terminated", folders=folders)
    assert evaluation["success"] == "terminated"
    _, evaluation = sides("env=marks", "env.train.make_kwargs.goal=blue", folders=folders)
    assert evaluation["make_kwargs"] == {"goal": "blue", "size": 3}
    both = ("env.train.make_kwargs.goal=blue", "env.eval.make_kwargs.size=4")
    assert sides("env=marks", *both, folders=folders)[1]["make_kwargs"] == {"goal": "blue", "size": 4}
    whole = ("env.train.make_kwargs.goal=blue", "env.eval.make_kwargs={goal: red}")
    assert sides("env=marks", *whole, folders=folders)[1]["make_kwargs"]["goal"] == "red"
    _, evaluation = sides("env=marks", "env.train.instruction=null", "env.train.state=null", folders=folders)
    assert evaluation["instruction"] is None


def test_a_protocol_keeps_its_value():
    train, evaluation = sides("env=libero_10", "protocol=openvla_oft", "env.train.wait_steps=3")
    assert (train["wait_steps"], evaluation["wait_steps"]) == (3, 10)
    assert sides("env=libero_10", "env.train.wait_steps=3")[1]["wait_steps"] == 3


def test_what_a_file_has_given_evaluation_on_purpose_stays():
    train, evaluation = sides("experiment=math_calculator_sft", "env.train.data_args.digits=[3,9]", config="sft")
    assert train["data_args"]["digits"] == [3, 9] != evaluation["data_args"]["digits"]


def test_beside_the_key_of_both_sides_it_is_of_one():
    train, evaluation = sides("env=math", "data.system_prompt=both", "env.train.system_prompt=one")
    assert (train["system_prompt"], evaluation["system_prompt"]) == ("one", "both")
    assert sides("env=math", "env.train.system_prompt=one")[1]["system_prompt"] == "one"


def test_another_class_or_another_data_set_does_not_follow():
    _, evaluation = sides(
        "env@env.train=gym", "env@env.eval=math", "env.train.instruction=x", "data.val_data_paths=[p.jsonl]"
    )
    assert "instruction" not in evaluation
    mine = ("env=math", "env.train.data=[my.py:A]", "env.train.data_args={n: 1}")
    assert sides(*mine, "env.eval.data=[my.py:B]")[1]["data_args"] == {}
    assert sides(*mine, "env.eval.data=[my.py:A]")[1]["data_args"] == {"n": 1}


def test_a_key_that_does_not_exist_is_an_error_of_the_side_it_was_given_for():
    train, evaluation = sides("env=libero_10", "env.train.task_idss=[0]", "env.train.wait_steps=3")
    assert "task_idss" in train
    assert "task_idss" not in evaluation
    assert evaluation["wait_steps"] == 3


def test_a_key_that_no_file_has_follows_if_the_class_takes_it():
    assert sides("env=arithmetic", "env.train.template='{prompt}!'")[1]["template"] == "{prompt}!"


def test_a_side_given_as_a_whole_follows_key_by_key():
    _, evaluation = sides("env=libero_10", "env.train={wait_steps: 3, total_num_envs: 8}")
    assert evaluation["wait_steps"] == 3
    assert evaluation["total_num_envs"] != 8
    _, evaluation = sides("env=libero_10", "env.train.wait_steps=3", "env.eval={episodes_per_task: 5}")
    assert (evaluation["wait_steps"], evaluation["episodes_per_task"]) == (3, 5)
    _, evaluation = sides("env=libero_10", "env.train={wait_steps: 3}", "env.eval={wait_steps: 4}")
    assert evaluation["wait_steps"] == 4


@pytest.mark.parametrize(
    ("overrides", "follows"),
    [
        (["env.train.wait_steps=3", "env.train.total_num_envs=8"], ("wait_steps",)),
        (["env.train.wait_steps=3", "env.eval.wait_steps=4"], ()),
        (["env.train.wait_steps=3", "protocol=openvla_oft"], ()),
        (["env.train.wait_stepss=3"], ()),
        ([], ()),
    ],
)
def test_what_follows_is_known_to_the_runs_header(overrides, follows):
    assert compose_unchecked(["env=libero_10", *overrides]).follows == follows


def test_the_header_names_what_follows():
    composed = compose_unchecked(["env=libero_10", "env.train.wait_steps=3"])
    assert summary._followed(composed) == [["env.eval as env.train", "wait_steps (env.eval.KEY=VALUE sets another)"]]
    assert summary._followed(compose_unchecked(["env=libero_10"])) == []
