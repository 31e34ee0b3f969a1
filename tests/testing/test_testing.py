"""The checks for authors of envs and policies pass what is right and name what is wrong."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import broken_batches
import broken_envs
import numpy as np
import pytest
import torch
from broken_policies import Altered, LearnsInFloat32, NoField, UnusedParameter, WrongLogProbs

from embodied.errors import SpecMismatchError
from embodied.testing import FakeBatchEnv, FakeEnv, FakePolicy, check_batch_env, check_env, check_policy
from embodied.types import ArraySpec, ContinuousAction, DiscreteAction, Start, TextAction

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "options",
    [
        {}, {"cameras": 1, "size": 9, "num_tasks": 1}, {"state_dim": 2, "success_distance": 0.5}, {"pictures": False},
        {"num_actions": 5}, {"num_actions": 1, "pictures": False}, {"restorable": False},
        {"restorable": False, "repeatable": False},
    ],
)  # fmt: skip
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
        ("StateIsNan", "observation 'state': got numbers that are not finite"),
        ("TellsMore", "info of step(): got answer, expected nothing, as spec.info says"),
        ("TupleFromStep", "step(): got tuple, expected StepResult"),
    ],
)
def test_a_broken_env_is_named_by_what_is_broken(env, message):
    with pytest.raises(SpecMismatchError) as failed:
        check_env(getattr(broken_envs, env)())
    assert message in failed.value.message
    assert "embodied/protocols/env.py" in failed.value.remedy


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        ("NoState", {}, "spec.restorable: got an env without get_state() and set_state(), expected both, or EnvSpec("),
        ("StateIsRefused", {"repeatable": False}, "this state is not taken back"),
        ("NeverTheSame", {}, "written by observe()"),
        ("NeverTheSameAndForgetful", {"repeatable": False}, "observation 'state': written by observe(): got no value"),
        ("ExpertOutside", {}, "an action of expert()"),
        ("ExpertOutside", {"num_actions": 3}, "an action of expert(): got"),
    ],
)
def test_what_is_declared_is_driven(env, options, message):
    with pytest.raises(SpecMismatchError) as failed:
        check_env(getattr(broken_envs, env)(**options))
    assert message in failed.value.message


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("NoState", {"restorable": False}),
        ("NeverTheSame", {"repeatable": False}),
        ("ForgetfulState", {"repeatable": False}),
    ],
)
def test_what_is_not_declared_is_not_asked_for(env, options):
    check_env(getattr(broken_envs, env)(**options))


@pytest.mark.parametrize("options", [{}, {"num_actions": 4}, {"pictures": False}])
@pytest.mark.parametrize("slots", [1, 2, 5])
def test_the_fake_batch_is_right(slots, options):
    check_batch_env(FakeBatchEnv(success_distance=0.5, **options), num_slots=slots)


def test_a_batch_that_is_not_repeatable_is_compared_only_within_a_tolerance():
    class Drifts(broken_batches.FakeBatch):
        def step(self, actions, active):
            return super().step(actions + 1e-3 * np.arange(len(actions))[:, None], active)

    check_batch_env(broken_batches.env_of(Drifts, repeatable=False))
    with pytest.raises(SpecMismatchError, match="of equal starts in two slots"):
        check_batch_env(broken_batches.env_of(Drifts, repeatable=False), tolerance=1e-6)


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
        ({"action": ContinuousAction((-1.0,), (1.0,) * 7)}, "spec.action.low and high: got 1 and 7 numbers"),
        ({"action": ContinuousAction((), ())}, "spec.action: got no number"),
        ({"action": ContinuousAction((1.0, 2.0), (1.0, -2.0))}, "spec.action.low: got above high in dimensions [1]"),
        ({"action": DiscreteAction(0)}, "spec.action.num_actions: got 0"),
        ({"action": TextAction(0)}, "spec.action.max_bytes: got 0"),
        ({"action": 7}, "spec.action: got int, expected a ContinuousAction, a DiscreteAction or a TextAction"),
        ({"obs": {}}, "spec.cameras: got ('camera0', 'camera1'), expected (), as spec.obs has no 'images'"),
        ({"tasks": ()}, "spec.tasks: got none"),
        ({"num_init_states": (4,)}, "spec.num_init_states: got 1, expected one for each of 2 tasks"),
        ({"cameras": ("one",)}, "spec.obs['images']: got (2, 16, 16, 3), expected (1, H, W, 3)"),
    ],
)
def test_a_spec_that_contradicts_itself(changes, message):
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
        (LearnsInFloat32(), "log-probs of evaluate(): got torch.float32, not computed in bfloat16, expected bfloat16"),
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


@pytest.mark.parametrize(
    ("env", "policy"),
    [
        ({"num_actions": 5}, {"num_actions": 5}),
        ({"pictures": False}, {}),
        ({"restorable": False}, {}),
        ({"sentences": True}, {}),
    ],
    ids=["discrete", "no pictures", "not restorable", "sentences"],
)
def test_the_fake_policy_fits_envs_of_every_kind(env, policy):
    made = FakeEnv(**env)
    check_env(made)
    check_policy(FakePolicy(**policy), made.spec)


def test_actions_of_another_kind_than_the_envs_are_named():
    with pytest.raises(SpecMismatchError, match="takes one of 5 actions"):
        check_policy(FakePolicy(), FakeEnv(num_actions=5).spec)
    with pytest.raises(SpecMismatchError, match="chooses one of 4 actions"):
        check_policy(FakePolicy(num_actions=4), FakeEnv(num_actions=5).spec)


def test_an_instruction_that_is_no_text_is_named():
    class Bytes(FakeEnv):
        def observe(self, out):
            super().observe(out)
            out["instruction"][:2] = 255, 254

    with pytest.raises(SpecMismatchError, match=r"observation 'instruction'(.|\n)*UTF-8"):
        check_env(Bytes(sentences=True))
    env = FakeEnv()
    env._spec = replace(env.spec, obs={**env.spec.obs, "instruction": ArraySpec((4, 2), "uint8")})
    with pytest.raises(SpecMismatchError, match=r"spec.obs\['instruction'\]: got uint8 \(4, 2\)"):
        check_env(env)
