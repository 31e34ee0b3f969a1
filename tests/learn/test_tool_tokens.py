"""Episodes with a tool: what is trained on is what the policy wrote, whatever the number of turns.

The trainer sees a record a turn. The reference knows no records: it gives each whole transcript, with what the tool
wrote in it, to transformers' own network in one pass, and takes the log-probs of the policy's tokens alone.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from embodied.envs.text.calculator import CalculatorEnv, Numbers
from embodied.models.causal_lm import build_policy
from torch import Tensor
from transformers import AutoModelForCausalLM

from embodied import instructions
from embodied.learn.trainer import Trainer
from embodied.schema import ActorConfig, AlgorithmConfig, ModelConfig, OptimConfig
from embodied.types import Episode, EpisodeResult, Sampling, Start

TOKENS = 24  # n, of a record
SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "initializer_range": 0.2,
}  # fmt: skip
ANSWER = Numbers()[0]["answer"]
SCRIPTS = (  # what the policy writes in each turn; two groups of two, one problem a group
    ("<calc>49*34</calc>", "<calc>1/0</calc>", f";{ANSWER}"),
    (";17",),
    ("<calc>12+34</calc>", ";46"),
    ("<calc>9**9**9</calc>", f";{Numbers()[1]['answer']}"),
)


@dataclass
class Written:
    """Transcripts of all episodes: their tokens, and which of them the policy wrote."""

    ids: list[list[int]] = field(default_factory=list)
    own: list[list[bool]] = field(default_factory=list)

    def add(self, text: str, tokenizer: Any, own: bool) -> None:
        ids = tokenizer(text, add_special_tokens=False).input_ids
        self.ids[-1] += ids
        self.own[-1] += [own] * len(ids)


@pytest.fixture(scope="module")
def played() -> tuple[Any, CalculatorEnv, dict[str, np.ndarray], list[EpisodeResult], Written]:
    """A policy, and the records of :data:`SCRIPTS` as the runtime would leave them."""
    policy = build_policy(max_new_tokens=TOKENS, max_prompt_tokens=256, override_config=SIZES)
    env = CalculatorEnv(max_turns=4, max_prompt_bytes=256, max_response_bytes=TOKENS)
    policy.bind(env.spec)
    rows, results, written = [], [], Written()
    for number, script in enumerate(SCRIPTS):
        start = Start(0, number // 2, 0)
        env.reset(start)
        written.ids.append([])
        written.own.append([])
        before, first = "", len(rows)
        for turn, response in enumerate(script):
            prompt = asked(env)
            written.add(prompt.removeprefix(before), policy.tokenizer.tokenizer, own=False)
            written.add(response, policy.tokenizer.tokenizer, own=True)
            before = prompt + response
            action = env.spec.action.neutral()
            instructions.write(response, action)
            out = env.step(action)
            assert out.terminated == (turn == len(script) - 1)
            rows.append(record(policy, prompt, response, action, out.reward))
        results.append(EpisodeResult(
            Episode(number, number // 2, start), tuple(range(first, len(rows))), float(out.success), out.success,
            len(script), True, False,
        ))  # fmt: skip
    arrays = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return policy, env, arrays, results, written


def asked(env: CalculatorEnv) -> str:
    out = np.zeros(env.spec.obs["instruction"].shape, np.uint8)
    env.observe({"instruction": out})
    return instructions.read(out)


def record(policy: Any, prompt: str, response: str, action: np.ndarray, reward: float) -> dict[str, np.ndarray]:
    """A row of the slab. The response has no token that ends it, as where ``stop`` has."""
    ids = policy.tokenizer.tokenizer(response, add_special_tokens=False).input_ids
    tokens = torch.zeros(1, TOKENS, dtype=torch.int32)
    tokens[0, : len(ids)] = torch.tensor(ids)
    decision = {"tokens": tokens, "length": torch.tensor([len(ids)], dtype=torch.int32)}
    with torch.no_grad():
        old = policy.evaluate({**policy.encode_instructions([prompt]), **decision}, Sampling()).logprobs[0]
    observed = np.zeros(256, np.uint8)
    instructions.write(prompt, observed)
    return {
        "instruction": observed, "tokens": tokens[0].numpy(), "length": np.array(len(ids), np.int32),
        "actions": action[None], "logprobs": old.numpy(), "num_steps": np.array(1, np.int32),
        "rewards": np.array([reward], np.float32), "version": np.array(0, np.int64), "task_id": np.array(0, np.int32),
    }  # fmt: skip


def update(played: Any, **algorithm: Any) -> tuple[dict[str, float], Any, dict[str, Tensor]]:
    """Metrics and batch of one update, and the gradients that its only step saw."""
    policy, env, arrays, results, _ = played
    actor = ActorConfig(
        global_batch_size=100, micro_batch_size=3, optim=OptimConfig(lr=1e-9, clip_grad=1e9),
        model=ModelConfig(_target_="embodied.models.causal_lm.build_policy"),
    )  # fmt: skip
    made = Trainer(
        policy=copy.deepcopy(policy), env=env.spec, actor=actor, sampling=Sampling(), device=torch.device("cpu"),
        algorithm=AlgorithmConfig(group_size=2, loss_agg_func="token-mean", **algorithm), seed=0, max_steps=4,
        max_bad_updates=1,
    )  # fmt: skip
    seen: dict[str, Tensor] = {}

    def spy() -> None:
        seen.update({name: p.grad.clone() for name, p in made.policy.named_parameters()})

    made.optimizer.step = spy
    metrics, batch = made.update(arrays, results, iteration=0)
    return metrics, batch, seen


def expected(played: Any, advantages: list[float], with_tool: bool = False) -> dict[str, Tensor]:
    """Gradients of −A · log-prob, averaged over tokens, of whole transcripts.

    Args:
        with_tool: count what the tool wrote as well, which would be wrong.
    """
    policy, _, _, _, written = played
    network = AutoModelForCausalLM.from_config(copy.deepcopy(policy.network.config), attn_implementation="eager")
    network.load_state_dict(policy.network.state_dict())
    total, count = torch.zeros(()), 0
    for ids, own, advantage in zip(written.ids, written.own, advantages, strict=True):
        problem = own.index(True)  # tokens of the problem, which nobody wrote
        chosen = torch.tensor([mine or (with_tool and place > problem) for place, mine in enumerate(own)])[1:]
        row = torch.tensor(ids)
        logp = network(row[None, :-1]).logits[0].log_softmax(-1).gather(1, row[1:, None])[:, 0]
        total, count = total - advantage * logp[chosen].sum(), count + int(chosen.sum())
    (total / count).backward()
    return {f"network.{name}": p.grad for name, p in network.named_parameters()}


def apart(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    assert got.keys() == wanted.keys()
    one, other = (torch.cat([grads[name].flatten().double() for name in wanted]) for grads in (got, wanted))
    return ((one - other).norm() / other.norm()).item()


def test_what_the_tool_wrote_has_no_gradient(played):
    _, _, gradients = update(played, adv_type="raw")
    raw = [result.episode_return for result in played[3]]
    assert raw == [1.0, 0.0, 0.0, 1.0]
    assert apart(gradients, expected(played, raw)) < 1e-5
    assert apart(gradients, expected(played, raw, with_tool=True)) > 0.1


def test_a_group_compares_episodes_whatever_their_turns(played):
    """The baseline is a mean over the group's episodes, and each turn of an episode has the episode's advantage."""
    metrics, batch, gradients = update(played, adv_type="dr_grpo")
    turns = [len(script) for script in SCRIPTS]
    assert turns == [3, 1, 2, 2]
    advantages = [0.5, -0.5, -0.5, 0.5]
    assert batch.sequence_ids.tolist() == [0, 0, 0, 1, 2, 2, 3, 3]
    assert batch.advantages[:, 0].tolist() == [
        advantage for advantage, count in zip(advantages, turns, strict=True) for _ in range(count)
    ]
    assert int(batch.counts.lengths.sum()) == sum(map(sum, played[4].own))
    assert apart(gradients, expected(played, advantages)) < 1e-5
    assert metrics["train/ratio_max"] == pytest.approx(1.0, abs=1e-5)


def test_another_result_changes_what_follows_it_and_not_what_was_written_before(played):
    policy, env, arrays, _, _ = played
    changed = {name: array.copy() for name, array in arrays.items()}
    for row in range(len(changed["instruction"])):
        text = instructions.read(changed["instruction"][row])
        instructions.write(text.replace("<result>1666<", "<result>9999<"), changed["instruction"][row])
    differing = (changed["instruction"] != arrays["instruction"]).any(axis=1)
    assert differing.tolist() == [False, True, True, False, False, False, False, False]

    def logprobs(of: dict[str, np.ndarray]) -> Tensor:
        told = policy.encode_instructions(instructions.of_rows(env.spec, of, range(len(differing))))
        decisions = {name: torch.from_numpy(of[name]) for name in ("tokens", "length")}
        with torch.no_grad():
            return policy.evaluate({**told, **decisions}, Sampling()).logprobs

    before, after = logprobs(arrays), logprobs(changed)
    assert torch.equal((before != after).any(dim=1), torch.from_numpy(differing))
    assert (after != 0).sum() == (before != 0).sum() == int(arrays["length"].sum())
