"""Instructions travel as text: written by the env, read by the policy, in no table where they need none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from rig import CPU

from embodied import instructions
from embodied.errors import SpecMismatchError
from embodied.random import Stream
from embodied.runtime.policy.policy_port import Draw, OnePass, Request
from embodied.runtime.slab import Slab, runtime_fields
from embodied.testing import FakeEnv, FakePolicy
from embodied.types import ArraySpec, Sampling

SAYS_ITSELF = {"instruction": ArraySpec((24,), "uint8")}


@pytest.mark.parametrize("text", ["", "push the cube", "schiebe den Würfel"])
def test_text_comes_back_from_its_bytes(text):
    out = np.full(24, 7, np.uint8)
    instructions.write(text, out)
    assert instructions.read(out) == text


def test_text_that_is_too_long_is_refused_with_the_length_that_it_needs():
    with pytest.raises(SpecMismatchError, match=r"26 bytes does not fit into the 24(.|\n)*\(26,\)"):
        instructions.write("ü" * 13, np.zeros(24, np.uint8))


def test_an_instruction_is_that_of_the_task_unless_the_observation_has_one():
    env = FakeEnv(num_tasks=3).spec
    arrays = {"task_id": np.array([2, 0, 1], np.int32), "instruction": np.zeros((3, 24), np.uint8)}
    assert instructions.of_rows(env, arrays, [0, 2]) == [env.tasks[2], env.tasks[1]]
    instructions.write("wait", arrays["instruction"][2])
    own = replace(env, obs={**env.obs, **SAYS_ITSELF})
    assert instructions.of_rows(own, arrays, [2, 0]) == ["wait", ""]
    assert instructions.fields_of(own) == [*env.obs]


def test_the_policy_is_told_what_stands_in_the_row():
    env = FakeEnv().spec
    own = replace(env, obs={**env.obs, **SAYS_ITSELF})
    policy, told = FakePolicy(), []
    slab = Slab.create({**own.obs, **policy.spec.decision, **runtime_fields(4)}, 3)
    encode = policy.encode_instructions
    policy.encode_instructions = lambda texts: (told.append(list(texts)), encode(texts))[1]
    instructions.write("a sentence of its own", slab.arrays["instruction"][1])
    port = OnePass(policy, slab, own, CPU, 2, fixed_shape=False)
    port.begin(Draw(Sampling(), 0, Stream.TRAIN_NOISE))
    port.submit([Request(0, 1, 0, 0), Request(1, 2, 1, 0)])
    port.poll()
    assert told == [["a sentence of its own", ""]]
    slab.close()


def test_another_sentence_is_another_answer():
    policy, env = FakePolicy(), FakeEnv().spec
    policy.bind(env)
    obs = {name: torch.zeros(1, *field.shape) for name, field in env.obs.items()}
    answers = [
        policy.act(obs | policy.encode_instructions([text]), torch.full((1, 28), 0.5), Sampling()).fields["logprobs"]
        for text in (env.tasks[0], "something that nobody has asked before")
    ]
    assert not torch.equal(*answers)
