"""The checks for authors of envs and policies pass what is right and name what is wrong."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import broken_batches
import broken_envs
import numpy as np
import pytest
import torch
from broken_policies import Altered, NoField, UnusedParameter, WrongLogProbs

from embodied.errors import SpecMismatchError
from embodied.testing import FakeBatchEnv, FakeEnv, FakePolicy, check_batch_env, check_env, check_policy
from embodied.types import Start

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    "options", [{}, {"cameras": 1, "size": 9, "num_tasks": 1}, {"state_dim": 2, "success_distance": 0.5}]
)
def test_the_fake_env_is_right(options):
    check_env(FakeEnv(**options))


@pytest.mark.parametrize("value_head", [False, True])
def test_the_fake_policy_is_right(value_head):
    check_policy(FakePolicy(value_head=value_head), FakeEnv().spec)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("UnwrittenField", "observation 'state': written by observe(): got 8 values differ"),
        ("NondeterministicReset", "of an equal start"),
        ("ForgetfulState", "after set_state(get_state())"),
        ("FloatFrame", "frame(): got float64 (16, 16, 3), expected uint8 [H, W, 3]"),
        ("RewardIsNan", "reward of step(): got nan, expected a finite number"),
        ("TupleFromStep", "step(): got tuple, expected StepResult"),
    ],
)
def test_a_broken_env_is_named_by_what_is_broken(env, message):
    with pytest.raises(SpecMismatchError) as failed:
        check_env(getattr(broken_envs, env)())
    assert message in failed.value.message
    assert "embodied/protocols.py" in failed.value.remedy


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_the_fake_batch_is_right(slots):
    check_batch_env(FakeBatchEnv(success_distance=0.5), num_slots=slots)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ("_ResetsAll", "observation after a reset of slot 1, slot 0: images: got a difference of"),
        ("_OneNumberForAll", "observation of equal starts in two slots, slot 2: state: got a difference of"),
        ("_HeedsTheInactive", "rewards while slot 1 is not active, slot 0: reward: got a difference of"),
        ("_ForgetsASlot", "observation 'images' of slot 2: written by observe()"),
        ("_TooFew", "step(): got 2 results, expected 3, one a slot"),
        ("_FloatFrame", "frame(): got float64 (16, 16, 3), expected uint8 [H, W, 3]"),
    ],
)
def test_a_broken_batch_is_named_by_what_is_broken(batch, message):
    with pytest.raises(SpecMismatchError) as failed:
        check_batch_env(broken_batches.env_of(getattr(broken_batches, batch)))
    assert message in failed.value.message


def test_rounding_may_be_allowed_in_a_batch():
    class Rounded(broken_batches.FakeBatch):
        def step(self, actions, active):
            return super().step(actions + 1e-6 * np.arange(len(actions))[:, None], active)

    with pytest.raises(SpecMismatchError, match="of equal starts in two slots"):
        check_batch_env(broken_batches.env_of(Rounded))
    check_batch_env(broken_batches.env_of(Rounded), tolerance=1e-4)


def test_an_env_without_a_batch_is_told_so():
    with pytest.raises(SpecMismatchError, match=r"batch\(\): got none"):
        check_batch_env(FakeEnv())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"action_low": (-1.0,)}, "spec.action_low/high: got 1, 7, expected 7 numbers each"),
        ({"tasks": ()}, "spec.tasks: got none"),
        ({"num_init_states": (4,)}, "spec.num_init_states: got 1, expected one for each of 2 tasks"),
        ({"cameras": ("one",)}, "spec.obs['images']: got (2, 16, 16, 3), expected (1, H, W, 3)"),
    ],
)
def test_a_spec_that_contradicts_itself(changes, message):
    from dataclasses import replace

    env = FakeEnv()
    env._spec = replace(env.spec, **changes)
    with pytest.raises(SpecMismatchError) as failed:
        check_env(env)
    assert message in failed.value.message


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Altered("actions", lambda a: a.double()), "decision field 'actions': got float64 (3, 4, 7), expected float32"),
        (Altered("action_tokens", lambda a: a[:, :5]), "decision field 'action_tokens': got int32 (3, 5)"),
        (Altered("actions", lambda a: a + 3), "actions: got"),
        (Altered("logprobs", torch.rand_like), "'logprobs' under equal noise: got differs"),
        (NoField(), "decision field 'logprobs': got nothing, expected float32 (3, 28)"),
        (WrongLogProbs(), "log-probs of evaluate and act: got differ by 0.5"),
        (UnusedParameter(), "gradients: got none for unused"),
    ],
)
def test_a_broken_policy_is_named_by_what_is_broken(policy, message):
    with pytest.raises(SpecMismatchError) as failed:
        check_policy(policy, FakeEnv().spec)
    assert message in failed.value.message


def test_a_policy_that_does_not_fit_the_env():
    with pytest.raises(SpecMismatchError, match="7 action dimensions and the policy 3"):
        check_policy(FakePolicy(action_dim=3), FakeEnv().spec)


def test_pictures_of_the_fake_env_tell_observations_apart():
    env = FakeEnv()
    pictures = {
        env.picture(Start(task, state, seed), steps, camera).tobytes()
        for task in range(2) for state in range(4) for seed in range(2) for steps in range(8) for camera in range(2)
    }  # fmt: skip
    assert len(pictures) == 2 * 4 * 2 * 8 * 2


def test_success_ends_near_the_goal_only():
    env = FakeEnv(success_distance=99.0)
    env.reset(Start(0, 0, 0))
    result = env.step(np.zeros(7, np.float32))
    assert (result.reward, result.terminated, result.success) == (1.0, True, True)
    env = FakeEnv()
    env.reset(Start(0, 0, 0))
    assert env.step(np.zeros(7, np.float32)).terminated is False


def template(folder: str) -> Any:
    """The one class that ``<folder>/_template.py`` defines."""
    if not (ROOT / folder / "_template.py").is_file():
        pytest.skip(f"no {folder}/_template.py")
    module = importlib.import_module(f"embodied.{folder}._template")
    own = [c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__]
    return own[0]


def test_the_template_of_an_env_is_right():
    check_env(template("envs")())


def test_the_template_of_a_policy_is_right():
    check_policy(template("models")(), FakeEnv().spec)
