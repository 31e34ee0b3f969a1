"""An env's spec goes through JSON and comes back equal; what is not understood is named."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.errors import SpecMismatchError
from embodied.lib.spec_json import VERSION, from_json, to_json
from embodied.testing import FakeBatchEnv, FakeEnv, FakeTextEnv
from embodied.types import ArraySpec, ContinuousAction, DiscreteAction, EnvSpec

FAKES = {
    "usual": FakeEnv(),
    "without pictures": FakeEnv(pictures=False, restorable=False),
    "discrete": FakeEnv(num_actions=6, repeatable=False),
    "batch": FakeBatchEnv(cameras=3, num_tasks=5),
    "text": FakeTextEnv(),
}


def again(spec: EnvSpec) -> EnvSpec:
    """Through strict JSON, whose writer may sort keys."""
    return from_json(json.loads(json.dumps(to_json(spec), allow_nan=False, sort_keys=True)))


def same(one: EnvSpec, other: EnvSpec) -> bool:
    return one == other and [*one.obs] == [*other.obs] and repr(one) == repr(other)


@pytest.mark.parametrize("env", FAKES.values(), ids=FAKES)
def test_specs_of_fakes_come_back_equal(env):
    assert same(again(env.spec), env.spec)


def test_a_spec_of_an_earlier_version_tells_nothing_beside_rewards():
    data = to_json(FakeTextEnv().spec)
    assert data.pop("info") == ["answer"]
    assert from_json(data) == replace(FakeTextEnv().spec, info=())


SIMULATORS = {
    "libero": (
        "embodied.envs.libero",
        "LiberoEnv",
        {"task_suite_name": "libero_object"},
        ("libero", "robosuite", "mujoco"),
    ),
    "maniskill": (
        "embodied.envs.maniskill",
        "ManiSkillEnv",
        {"init_params": {"id": "PickCube-v1"}},
        ("mani_skill", "sapien"),
    ),
}
ASK = """
import json, sys
from importlib import import_module
from embodied.lib.spec_json import from_json, to_json
module, name, kwargs, simulators = json.loads(sys.argv[1])
spec = getattr(import_module(module), name)(**kwargs).spec
back = from_json(json.loads(json.dumps(to_json(spec), allow_nan=False)))
assert back == spec, (back, spec)
assert repr(back) == repr(spec), (back, spec)
print(json.dumps([len(spec.tasks), spec.action_dim, [name for name in simulators if name in sys.modules]]))
"""


@pytest.mark.sim
@pytest.mark.parametrize("simulator", SIMULATORS.values(), ids=SIMULATORS)
def test_specs_of_simulators_come_back_equal_without_importing_one(simulator):
    done = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(simulator)], capture_output=True, text=True, check=False,
    encoding="utf-8")  # fmt: skip
    assert done.returncode == 0, done.stderr
    tasks, dims, imported = json.loads(done.stdout.splitlines()[-1])
    assert tasks >= 1
    assert dims >= 7
    assert imported == []


BOUND = st.floats(allow_nan=False)
SHAPES = st.lists(st.integers(0, 9), max_size=3).map(tuple)
SPECS = st.builds(
    EnvSpec,
    obs=st.dictionaries(
        st.text(max_size=4), st.builds(ArraySpec, SHAPES, st.sampled_from(["uint8", "float32", "int64"]))
    ),
    cameras=st.lists(st.text()).map(tuple),
    action=st.one_of(
        st.builds(DiscreteAction, st.integers(1, 99)),
        st.lists(st.tuples(BOUND, BOUND).map(sorted)).map(
            lambda bounds: ContinuousAction(tuple(low for low, _ in bounds), tuple(high for _, high in bounds))
        ),
    ),
    tasks=st.lists(st.text()).map(tuple),
    num_init_states=st.lists(st.integers(0, 2**40)).map(tuple),
    max_episode_steps=st.integers(0, 10**9),
    control_hz=st.floats(0.001, 1e6),
    restorable=st.booleans(),
    repeatable=st.booleans(),
    retry_safe=st.booleans(),
)


@given(SPECS)
def test_every_spec_comes_back_equal(spec):
    assert same(again(spec), spec)


def test_every_field_is_written():
    spec = replace(FakeEnv().spec, interventions=True)  # written where there may be any
    assert {*to_json(spec)} == {"version", *(field.name for field in fields(EnvSpec))}


def test_order_of_the_observation_is_part_of_it():
    spec = FakeEnv().spec
    turned = replace(spec, obs=dict(reversed(spec.obs.items())))
    assert [*again(turned).obs] == ["state", "images"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": VERSION + 1}, "an env's spec has version 2, expected 1"),
        ({"version": None}, "an env's spec has version None, expected 1"),
        ({"colour": "red"}, "an env's spec has the unknown fields colour"),
        ({"tasks": ...}, "an env's spec lacks tasks"),
        ({"action": {"kind": "voice"}}, "action of an env's spec: got {'kind': 'voice'}, expected one of kind"),
        ({"action": {"kind": "text"}}, "action lacks max_bytes"),
        ({"action": 7}, "action of an env's spec: got 7"),
        ({"action": {"kind": "discrete", "num_actions": 2, "names": []}}, "action has the unknown fields names"),
        ({"action": {"kind": "continuous", "low": [0.0]}}, "action lacks high"),
        ({"action": {"kind": "continuous", "low": ["a"], "high": [1]}}, "low of an env's spec: got 'a', expected a"),
        ({"tasks": "push"}, "tasks of an env's spec: got 'push', expected a list"),
        ({"tasks": [3]}, "tasks of an env's spec: got 3, expected a text"),
        ({"num_init_states": [-1]}, "num_init_states of an env's spec: got -1, expected a whole number"),
        ({"max_episode_steps": True}, "max_episode_steps of an env's spec: got True, expected a whole number"),
        ({"action": {"kind": "continuous", "low": [0.0], "high": []}}, "action of an env's spec: got"),
        ({"action": {"kind": "continuous", "low": ["nan"], "high": [1]}}, "action of an env's spec: got"),
        ({"action": {"kind": "continuous", "low": [0, 2], "high": [1, 1]}}, "action of an env's spec: got"),
        ({"control_hz": "nan"}, "control_hz of an env's spec: got 'nan', expected a finite number"),
        ({"control_hz": "inf"}, "control_hz of an env's spec: got 'inf', expected a finite number"),
        ({"control_hz": -1}, "control_hz of an env's spec: got -1, expected a finite number"),
        ({"control_hz": None}, "control_hz of an env's spec: got None, expected a number"),
        ({"restorable": 1}, "restorable of an env's spec: got 1, expected true or false"),
        ({"obs": {"state": [2]}}, "obs of an env's spec: got {'state': [2]}, expected a list"),
        ({"obs": [["state", [2]]]}, "obs of an env's spec: got ['state', [2]], expected a mapping with dtype, name"),
        ({"obs": [{"name": "state", "shape": [2], "dtype": "colour"}]}, "dtype of an env's spec: got 'colour'"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_named(changes, message):
    data: dict[str, Any] = {**to_json(FakeEnv().spec), **changes}
    data = {name: value for name, value in data.items() if value is not ...}
    with pytest.raises(SpecMismatchError) as failed:
        from_json(data)
    assert failed.value.message.startswith(message)


@pytest.mark.parametrize("data", [None, [], "spec", 1])
def test_what_is_no_spec_at_all_is_said(data):
    with pytest.raises(SpecMismatchError, match="version None, expected 1"):
        from_json(data)
