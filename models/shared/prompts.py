"""Instructions as the token ids of a prompt: BOS, the text around the instruction, a last token. Only the package
``tokenizers`` reads a ``tokenizer.json``: no code of a checkpoint can run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from embodied.errors import CheckpointError
from embodied.lib.files import check_content


class PromptIds:
    """Turns an instruction into the ids of its prompt.

    Args:
        tokenizer: adds nothing of its own, neither padding nor special tokens.
        text: makes the prompt's text of an instruction.
        bos_id: the first id.
        last_id: the last id; added if the text does not end in it.
        pad_id: fills a shorter prompt up. It is masked, so any valid id works.
        whole: special tokens are those that the tokenizer itself adds, and padding stands at the end.
    """

    def __init__(
        self, tokenizer: Tokenizer, text: Callable[[str], str], bos_id: int, last_id: int, pad_id: int,
        whole: bool = False,
    ) -> None:  # fmt: skip
        self.tokenizer = tokenizer
        self.text = text
        self.bos_id, self.last_id, self.pad_id, self.whole = bos_id, last_id, pad_id, whole

    def padded(self, rows: Sequence[Sequence[int]], least: int = 0) -> tuple[Tensor, Tensor]:
        """Pads rows of ids to the longest, or to ``least``: ids int64 [B, L], present bool [B, L]."""
        return padded_behind(rows, self.pad_id, least) if self.whole else padded(rows, self.pad_id, least)

    def encode(self, instruction: str) -> list[int]:
        """Encodes an instruction as the ids of its prompt."""
        if self.whole:
            return self.tokenizer.encode(self.text(instruction)).ids
        ids = self.tokenizer.encode(self.text(instruction), add_special_tokens=False).ids
        trailing = [] if ids[-1:] == [self.last_id] else [self.last_id]
        return [self.bos_id, *ids, *trailing]


def read_tokenizer(path: Path) -> Tokenizer:
    """Read a ``tokenizer.json``. Raises CheckpointError if there is none, or if it is damaged."""
    if not path.is_file():
        raise CheckpointError(
            f"no tokenizer at {path}", "copy tokenizer.json from the checkpoint's source into the folder"
        )
    check_content(path)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except BaseException as error:  # tokenizers has no more specific error; one of its own is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise CheckpointError(
            f"{path} is not a tokenizer.json: {error}", "copy it again from the checkpoint's source"
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def padded(rows: Sequence[Sequence[int]], pad_id: int, least: int = 0) -> tuple[Tensor, Tensor]:
    """Pads rows of ids that begin with BOS to the longest, or to ``least``: ids int64 [B, L], present bool [B, L].

    Padding stands after BOS, where the images go: the text keeps its place relative to the actions.
    """
    longest = max(least, *map(len, rows))
    ids = torch.full((len(rows), longest), pad_id)
    present = torch.zeros(len(rows), longest, dtype=torch.bool)
    for index, row in enumerate(rows):
        start = longest - len(row) + 1
        ids[index, 0], ids[index, start:] = row[0], torch.tensor(row[1:])
        present[index, 0] = present[index, start:] = True
    return ids, present


def padded_behind(rows: Sequence[Sequence[int]], pad_id: int = 0, least: int = 0) -> tuple[Tensor, Tensor]:
    """Pads rows of ids behind their end: ids int64 [B, L], mask bool [B, L]."""
    longest = max(least, *map(len, rows))
    ids, mask = torch.full((len(rows), longest), pad_id), torch.zeros(len(rows), longest, dtype=torch.bool)
    for row, found in enumerate(rows):
        ids[row, : len(found)], mask[row, : len(found)] = torch.tensor(found), True
    return ids, mask
