"""Instructions → prompt tokens, with a checkpoint's ``tokenizer.json`` or the small one that comes with this package.

Both follow Llama 2: spaces are '▁', unknown characters become byte tokens, BOS is id 1 and </s> id 2. The embedded one
has under 768 tokens and is made by :mod:`.build_tokenizer`. Only ``tokenizers`` reads them: no remote code can run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from embodied.errors import CheckpointError

from .processing import prompt

EMBEDDED = Path(__file__).parent / "assets" / "tokenizer.json"
SPACE = "▁"  # token 29871 of Llama 2: what a trailing space becomes, and what the network expects last


class PromptTokenizer:
    """Args:
        path: a ``tokenizer.json``.
        vocab_size: text tokens must lie below the action tokens, the last 256 of these ids.

    Raises:
        CheckpointError: missing or unreadable file, or a vocabulary that does not fit.
    """

    def __init__(self, path: Path, vocab_size: int) -> None:
        self.path = path
        self.tokenizer = _read(path)
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self.bos_id, self.eos_id, self.space_id = (self._id(token) for token in ("<s>", "</s>", SPACE))
        pad_id = self.tokenizer.token_to_id("<PAD>")
        self.pad_id = self.eos_id if pad_id is None else pad_id  # masked: any valid id would do
        if len(self.encode("")) > 64 or self.space_id >= vocab_size:
            raise CheckpointError(
                f"{path} does not fit a vocabulary of {vocab_size}", "use the tokenizer.json of the checkpoint"
            )

    def _id(self, token: str) -> int:
        index = self.tokenizer.token_to_id(token)
        if index is None:
            raise CheckpointError(f"{self.path} has no token '{token}'", "use a tokenizer.json of the Llama 2 kind")
        return index

    def encode(self, instruction: str) -> list[int]:
        """Ids of the prompt: BOS, text, '▁'."""
        ids = self.tokenizer.encode(prompt(instruction), add_special_tokens=False).ids
        trailing = [] if ids[-1] == self.space_id else [self.space_id]
        return [self.bos_id, *ids, *trailing]

    def table(self, instructions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Prompts of all tasks at one length L, so that a row's result cannot depend on its batch.

        Padding stands after BOS, where the images go in between: the text keeps its place relative to the actions.

        Returns:
            ids int64 [tasks, L], present bool [tasks, L].
        """
        rows = [self.encode(text) for text in instructions]
        longest = max(map(len, rows))
        ids = torch.full((len(rows), longest), self.pad_id)
        present = torch.zeros(len(rows), longest, dtype=torch.bool)
        for index, row in enumerate(rows):
            start = longest - len(row) + 1
            ids[index, 0], ids[index, start:] = row[0], torch.tensor(row[1:])
            present[index, 0] = present[index, start:] = True
        return ids, present


def _read(path: Path) -> Tokenizer:
    if not path.is_file():
        raise CheckpointError(
            f"no tokenizer at {path}", "copy tokenizer.json from the checkpoint's source into the folder"
        )
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing more specific
        raise CheckpointError(
            f"{path} is not a tokenizer.json: {error}", "copy it again from the checkpoint's source"
        ) from error
