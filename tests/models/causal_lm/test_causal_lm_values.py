"""Values of texts: of a prompt, or before each token; decoding, training and one pass of the prompt agree on them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from causal_lm_texts import ARCHITECTURES, ENV, TEXTS, N, answered, decoded, draws, make

from embodied import train
from embodied.errors import ConfigError
from embodied.testing import check_policy
from embodied.types import Sampling

FREE = Sampling(ignore_eos=True)


def with_values(kind: str = "llama", value_type: str = "token_level", **keys):
    """A policy whose value head is not zero."""
    policy = make(kind, value_head=True, value_type=value_type, **keys)
    with torch.no_grad():
        policy.value_head.weight.normal_(generator=torch.Generator().manual_seed(0))
        policy.value_head.bias.fill_(0.3)
    return policy


def uneven(policy) -> dict[str, torch.Tensor]:
    records = answered(policy, sampling=FREE)
    return {**records, "length": torch.tensor([3, N, 1, 7, 5, 2], dtype=torch.int32)}


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_values_before_each_token_are_those_of_transformers_hidden_states(kind):
    """The value before token t is read from the hidden state of the token before it, after the network's last norm."""
    policy = with_values(kind)
    records = answered(policy)
    values = policy.evaluate(records, Sampling()).value
    assert values.shape == records["value"].shape == (6, N)
    policy.network.set_attn_implementation("eager")
    for row in range(6):
        size, length = int(records["prompt_length"][row]), int(records["length"][row])
        ids = torch.cat([records["prompt_ids"][row, :size], records["tokens"][row, : length - 1]]).long()
        with torch.no_grad():
            states = policy.network.model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
        wanted = states[size - 1 :] @ policy.value_head.weight + policy.value_head.bias
        for found in (values[row], records["value"][row]):
            torch.testing.assert_close(found[:length], wanted, rtol=0, atol=2e-5)
            assert not found[length:].any()


def test_the_first_is_the_value_of_the_prompt():
    tokens, prompts = (with_values(value_type=kind) for kind in ("token_level", "chunk_level"))
    records = answered(tokens, sampling=FREE)
    one = answered(prompts, sampling=FREE)
    assert one["value"].shape == (6, 1)
    assert torch.equal(one["tokens"], records["tokens"]), "values change no token"
    assert torch.equal(one["value"][:, 0], records["value"][:, 0])
    with torch.no_grad():
        found = (policy.evaluate(records, FREE).value[:, 0] for policy in (tokens, prompts))
        torch.testing.assert_close(*found, rtol=0, atol=1e-6)


def test_values_of_observations_come_from_one_pass_of_the_prompts():
    policy = with_values(max_prompt_tokens=200)
    texts = [*TEXTS, "12+" * 40, "9-9="]
    records, decoding = decoded(policy, draws(len(texts)), FREE, 8, range(len(texts)), 8, texts)
    passes: list[int] = []
    policy.network.model.norm.register_forward_hook(lambda module, args, out: passes.append(out.shape[1]))
    found = decoding.value(policy.encode_instructions(texts))
    assert found.shape == (len(texts),)
    assert torch.equal(found, records["value"][:, 0]), "to the bit what a decision records"
    assert sorted(passes) == [4 * 16, 4 * 16, 4 * 48, 4 * 128], "groups of four prompts of like length, each once"
    for row, text in enumerate(texts):
        assert torch.equal(decoding.value(policy.encode_instructions([text])), found[[row]]), "alone the same"


def test_values_of_observations_disturb_no_lane():
    policy = with_values()
    wanted, decoding = decoded(policy, draws(2), FREE, 2, range(2), 2, TEXTS[:2])
    decoding.begin(FREE)
    decoding.admit([0, 1], policy.encode_instructions(TEXTS[:2]), draws(2))
    whole: list[int] = []
    while len(whole) < 2:
        decoding.value(policy.encode_instructions(TEXTS[2:]))
        whole += decoding.step()
    found = decoding.take([0, 1]).fields
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


@pytest.mark.parametrize(("lanes", "order", "together"), [(1, (0, 1, 2, 3, 4, 5), 1), (3, (5, 4, 3, 2, 1, 0), 2)])
def test_lanes_and_order_change_no_value(lanes, order, together):
    policy, noise = with_values(), draws(len(TEXTS))
    wanted, _ = decoded(policy, noise, Sampling(), 6, range(6), 6)
    found, _ = decoded(policy, noise, Sampling(), lanes, order, together)
    assert torch.equal(found["value"], wanted["value"])


def test_what_stands_behind_the_end_gets_no_gradient():
    policy = with_values()
    records = uneven(policy)
    policy.evaluate(records, FREE).value.sum().backward()
    whole = policy.value_head.weight.grad.clone()
    policy.zero_grad()
    mask = torch.arange(N) < records["length"][:, None]
    (policy.evaluate(records, FREE).value * mask).sum().backward()
    assert torch.equal(policy.value_head.weight.grad, whole)
    assert whole.abs().sum() > 0


@pytest.mark.parametrize("keys", [{}, {"is_lora": True, "lora_init_weights": False}])
def test_the_conformance_check_passes(keys):
    check_policy(make(value_head=True, value_type="token_level", **keys), ENV)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match=r"value_type(.|\n)*token_level"):
        make(value_head=True, value_type="tokens")


RUN = (
    "experiment=math", "tracker=jsonl", "runner.device=cpu", "env=arithmetic", "model=causal_lm_tiny",
    "algorithm=ppo_tokens", "env.num_workers=1", "env.train.total_num_envs=64", "env.eval.total_num_envs=64",
    "actor.model.override_config.hidden_size=32", "actor.model.override_config.intermediate_size=64",
    "actor.model.override_config.num_hidden_layers=2", "actor.model.override_config.num_attention_heads=2",
    "actor.model.max_prompt_tokens=12", "actor.model.max_new_tokens=8", "env.train.data_args={terms: [2, 2]}",
    "env.eval.data_args={terms: [2, 2]}", "env.train.verifier=[{name: format, pattern: '^[^abc]*$'}]",
    "runner.max_epochs=8", "runner.val_before_train=false", "runner.val_check_interval=-1", "runner.save_interval=-1",
    "algorithm.group_size=1", "algorithm.rollout_epoch=2", "algorithm.update_epoch=2", "actor.global_batch_size=64",
    "actor.optim.lr=0.0003", "actor.optim.value_lr=0.01", "actor.lr_sched.lr_warmup_iters=0",
)  # fmt: skip


def test_a_small_llama_learns_values_of_its_tokens(tmp_path):
    folder = tmp_path / "run"
    assert train.main([*RUN, f"runner.logger.log_path={folder}"]) == 0
    rows = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows[-1]["train/value_loss"] < 0.5 * rows[0]["train/value_loss"]
    assert max(row["train/explained_variance"] for row in rows[3:]) > 0.05, "better than a constant"
    assert max(row["train/logprob_gap"] for row in rows) < 1e-4
