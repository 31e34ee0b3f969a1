"""Small language models at random, texts for them, and what transformers itself makes of these."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from embodied.models.causal_lm import build_policy
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)  # fmt: skip

from embodied.types import ArraySpec, EnvSpec, Sampling, TextAction

N = 12  # tokens of a response
SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "initializer_range": 0.25,
}  # fmt: skip
SHARED_HEADS = {"num_key_value_heads": 2}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "mistral": {"model_type": "mistral", "sliding_window": 6, **SHARED_HEADS},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True, **SHARED_HEADS},
    "qwen3": {"model_type": "qwen3", **SHARED_HEADS},
    "gemma": {"model_type": "gemma", "tie_word_embeddings": True, "num_key_value_heads": 1},
    "gemma2": {
        "model_type": "gemma2", "tie_word_embeddings": True, "sliding_window": 6, "query_pre_attn_scalar": 8,
        "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0, **SHARED_HEADS,
    },
    "gemma3": {
        "model_type": "gemma3_text", "tie_word_embeddings": True, "sliding_window": 6, "query_pre_attn_scalar": 8,
        "layer_types": ["sliding_attention", "full_attention"], **SHARED_HEADS,
    },
}  # fmt: skip
TEXTS = ("1+2=", "12+34-5=", "7*(8-3)=?", "1+2=", "a longer question of thirty-five signs", "=")
ENV = EnvSpec(
    obs={"instruction": ArraySpec((64,), "uint8")},
    cameras=(),
    action=TextAction(40),
    tasks=TEXTS,
    num_init_states=(1,) * len(TEXTS),
    max_episode_steps=1,
    control_hz=1.0,
)


def make(kind: str = "llama", sizes: dict[str, Any] | None = None, **keys: Any) -> Any:
    """A policy that is bound to :data:`ENV`."""
    keys = {"max_new_tokens": N, "max_prompt_tokens": 64, **keys}
    if keys.get("model_path") is None:
        keys["override_config"] = {**SIZES, **ARCHITECTURES[kind], **(sizes or {})}
    policy = build_policy(**keys)
    policy.bind(ENV)
    return policy


def draws(count: int, seed: int = 1) -> Tensor:
    return torch.rand(count, N, generator=torch.Generator().manual_seed(seed))


def answered(policy: Any, texts: Sequence[str] = TEXTS, sampling: Sampling | None = None) -> dict[str, Tensor]:
    """Records: prompts, and the decisions that the policy makes for them."""
    told = policy.encode_instructions(texts)
    return {**told, **policy.act(told, draws(len(texts)), sampling or Sampling()).fields}


def decoded(
    policy: Any, noise: Tensor, sampling: Sampling, lanes: int, order: Sequence[int], together: int,
    texts: Sequence[str] = TEXTS,
) -> tuple[dict[str, Tensor], Any]:  # fmt: skip
    """The decisions for ``texts`` in their order, and the decoding that made them.

    Args:
        order: in which texts are admitted.
        together: most of them in one admit.
    """
    decoding = policy.decoding(lanes)
    decoding.begin(sampling)
    waiting, free, busy = list(order), list(range(lanes)), dict[int, int]()
    found: dict[int, dict[str, Tensor]] = {}
    while waiting or busy:
        rows, waiting = waiting[: min(together, len(free))], waiting[min(together, len(free)) :]
        chosen, free = free[: len(rows)], free[len(rows) :]
        if rows:
            decoding.admit(chosen, policy.encode_instructions([texts[row] for row in rows]), noise[rows])
            busy.update(zip(chosen, rows, strict=True))
        for lane in decoding.step():
            found[busy.pop(lane)] = decoding.take([lane]).fields
            free.append(lane)
    names = found[0].keys()
    return {name: torch.cat([found[row][name] for row in range(len(texts))]) for name in names}, decoding


def reference(policy: Any) -> Any:
    """The same network as transformers runs it."""
    network = AutoModelForCausalLM.from_config(copy.deepcopy(policy.network.config), attn_implementation="eager")
    network.load_state_dict(policy.network.state_dict())
    return network.eval()


def sequences(records: dict[str, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Prompt and response of each record, without what fills them up: int64 [p], int64 [length]."""
    rows = zip(*(records[name] for name in ("prompt_ids", "prompt_length", "tokens", "length")), strict=True)
    for prompt, size, tokens, length in rows:
        yield prompt[:size].long(), tokens[:length].long()


def expected_logprobs(network: Any, prompt: Tensor, response: Tensor, sampling: Sampling, eos: int) -> Tensor:
    """Log-probs [length] of a response by transformers' logits and its processors."""
    logits = network(torch.cat([prompt, response]).unsqueeze(0)).logits[0, len(prompt) - 1 : -1]
    steps = LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        steps.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.min_new_tokens and not sampling.ignore_eos:
        steps.append(MinNewTokensLengthLogitsProcessor(len(prompt), sampling.min_new_tokens, eos, device="cpu"))
    steps.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        steps.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        steps.append(TopPLogitsWarper(sampling.top_p))
    whole = torch.cat([prompt, response])
    rows = [
        steps(whole[None, : len(prompt) + step], logits[step : step + 1]).log_softmax(-1)[0, token]
        for step, token in enumerate(response)
    ]
    return torch.stack(rows)


def check_same(folder: Path, source: Path, **keys: Any) -> None:
    found, wanted = (make(model_path=str(path), **keys) for path in (folder, source))
    other = wanted.network.state_dict()
    assert found.network.state_dict().keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in found.network.state_dict().items())
    assert found.tokenizer.ends == wanted.tokenizer.ends
    assert found.network.generation_config.to_dict() == wanted.network.generation_config.to_dict()
