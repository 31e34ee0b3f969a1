"""Folders of small reward models at random, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from embodied.models.causal_lm.text.characters import character_tokenizer
from transformers import LlamaConfig, LlamaForSequenceClassification

CHARACTERS = " #0123456789abcdxyz+=?:\n"
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


def write_classifier(folder: Path, template: str | None = None, **changes: Any) -> LlamaForSequenceClassification:
    """Writes a classifier of a few thousand weights with its tokenizer of characters; returns it."""
    tokenizer = character_tokenizer(CHARACTERS)
    tokenizer.chat_template = template
    sizes = {
        "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "initializer_range": 0.1, "num_labels": 1, "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(5)
        network = LlamaForSequenceClassification(LlamaConfig(**{**sizes, **changes})).eval()
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return network
