"""Turns instructions into token ids: SmolVLA and π0 read the instruction and a new line, π0.5 the state besides.

Shapes: B rows, L tokens, S numbers of state.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import tokenizers
import torch
from torch import Tensor

from embodied.errors import SpecMismatchError

from ...shared.prompts import read_tokenizer

BINS = 256


class Tokenizer(Protocol):
    """Interface of a tokenizer."""

    @property
    def vocab(self) -> int:
        """Number of ids."""
        ...

    def encode(self, text: str) -> list[int]:
        """Encodes a text with the special tokens that belong to it."""
        ...

    def write(self, file: Path) -> None:
        """Writes it as a ``tokenizer.json``."""
        ...


class ByteTokenizer:
    """A byte is a token; 256 begins a text. For networks with random weights."""

    vocab = 257

    def encode(self, text: str) -> list[int]:
        """Encodes a text."""
        return [256, *text.encode()]

    def write(self, file: Path) -> None:
        """Writes it as a ``tokenizer.json``: a byte is one of ByteLevel's characters."""
        plain = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that are shown as they are
        others = [byte for byte in range(256) if byte not in plain]
        words = {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}
        made = tokenizers.Tokenizer(tokenizers.models.BPE({**words, "<s>": 256}, []))
        made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
        made.save(str(file))


class FileTokenizer:
    """Reads a ``tokenizer.json`` and runs no code of a checkpoint."""

    def __init__(self, path: Path) -> None:
        self._path, self._tokenizer = path, read_tokenizer(path)

    @property
    def vocab(self) -> int:
        """Number of ids."""
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Encodes a text with special tokens, as the file says."""
        return self._tokenizer.encode(text).ids

    def write(self, file: Path) -> None:
        """Copies the file."""
        shutil.copyfile(self._path, file)


def plain_prompt(instruction: str) -> str:
    """Makes the prompt of SmolVLA and π0."""
    return instruction if instruction.endswith("\n") else f"{instruction}\n"


def state_prompt(instruction: str, state: np.ndarray) -> str:
    """Makes the prompt of π0.5 of a normalised state [S], which is not padded: each number is one of 256 bins over
    −1 … 1, or −1 below."""
    bins = np.digitize(state, np.linspace(-1, 1, BINS + 1)[:-1]) - 1
    words = instruction.strip().replace("_", " ").replace("\n", " ")
    return f"Task: {words}, State: {' '.join(map(str, bins))};\nAction: "


def check_length(ids: Sequence[int], most: int, text: str) -> None:
    """Raises SpecMismatchError for a prompt that is longer than those which the network was trained with."""
    if len(ids) > most:
        raise SpecMismatchError(
            f"the prompt {text[:80]!r} has {len(ids)} tokens, and the policy reads {most} at most",
            f"shorten the instruction, or set actor.model.max_prompt_length={len(ids)}",
        )


def as_bytes(texts: Sequence[str], least: int = 0) -> Tensor:
    """Writes texts as rows of bytes that end with zeros: uint8 [B, …]."""
    rows = [text.encode() for text in texts]
    found = torch.zeros(len(rows), max(least, 1, *map(len, rows)), dtype=torch.uint8)
    for row, text in enumerate(rows):
        found[row, : len(text)] = torch.tensor([*text], dtype=torch.uint8)
    return found


def as_texts(rows: Tensor) -> list[str]:
    """Reads what :func:`as_bytes` wrote."""
    return [bytes(row).rstrip(b"\0").decode() for row in rows.cpu().tolist()]
