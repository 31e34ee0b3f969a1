"""The small Llama and the problems of ``math_steps.py``: chains of one-digit additions and subtractions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CLONED_TERMS = (3, 6)


def prepare(out: Path, terms: Sequence[int], problems: int, clone_steps: int, clone_batch: int) -> None:
    """Writes ``model/`` (a Hugging Face folder) and ``problems.jsonl`` (prompt, answer). A model that is there stays.

    Args:
        terms: fewest and most of a problem.
        clone_steps: optimizer steps of the cloning, each of ``clone_batch`` demonstrations.
    """
    from embodied.envs.text.arithmetic import Chains

    out.mkdir(parents=True, exist_ok=True)
    chains = Chains(terms, problems, seed=1, split="train")
    rows = ({key: chains[number][key] for key in ("prompt", "answer")} for number in range(problems))
    (out / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    if not (out / "model").exists():
        clone(out / "model", clone_steps, clone_batch)


def clone(folder: Path, steps: int, batch: int) -> None:
    """Makes the Llama and clones worked solutions: ``steps`` optimizer steps of ``batch`` problems."""
    import torch
    from embodied.envs.text.arithmetic import demonstrations
    from embodied.models.causal_lm import build_policy
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    torch.set_num_threads(1)
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    build_policy(seed=0).save(part)
    network, tokenizer = AutoModelForCausalLM.from_pretrained(part).train(), AutoTokenizer.from_pretrained(part)
    rows = demonstrations(CLONED_TERMS, steps * batch, seed=0)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    for step in range(steps):
        ids, labels = _padded(tokenizer, rows[step * batch : (step + 1) * batch])
        loss = network(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        warm_up.step()
        if step % 100 == 99:
            print(f"cloning, step {step + 1}: loss {loss.item():.3f}", flush=True)
    network.save_pretrained(part)
    part.rename(folder)


def _padded(tokenizer: Any, rows: Sequence[dict[str, str]]) -> tuple[Any, Any]:
    """Tokens and labels int64 [rows, longest]; prompts and padding carry no label."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    ids, labels = [], []
    for row in rows:
        prompt = tokenizer(row["prompt"]).input_ids
        response = [*tokenizer(row["response"]).input_ids, tokenizer.eos_token_id]
        ids.append(torch.tensor(prompt + response))
        labels.append(torch.tensor([-100] * len(prompt) + response))
    return pad_sequence(ids, batch_first=True), pad_sequence(labels, batch_first=True, padding_value=-100)
