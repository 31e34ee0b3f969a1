"""Turns instructions into prompt tokens, with a checkpoint's ``tokenizer.json`` or the small one of this package.

Both follow Llama 2: spaces are '▁', unknown characters become byte tokens, BOS is id 1 and </s> id 2. The embedded one
has under 768 tokens and is made by :mod:`..build_tokenizer`. Only ``tokenizers`` reads them: no remote code can run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from embodied.errors import CheckpointError, SpecMismatchError

from ...shared.prompts import PromptIds, padded, read_tokenizer
from ..network.config import OPENVLA_7B
from .processing import prompt

EMBEDDED = Path(__file__).parents[1] / "assets" / "tokenizer.json"
SPACE = "▁"  # the last token of every prompt; a trailing space becomes it
LLAMA_VOCAB, LLAMA_SPACE = OPENVLA_7B.vocab_size, 29871  # both of Llama 2


class PromptTokenizer(PromptIds):
    """Turns instructions into prompt tokens.

    Args:
        path: a ``tokenizer.json``.
        vocab_size: text tokens must lie below the action tokens, the last 256 of these ids.

    Raises:
        CheckpointError: missing or unreadable file, or a vocabulary that does not fit.
    """

    def __init__(self, path: Path, vocab_size: int) -> None:
        self.path = path
        self.tokenizer = read_tokenizer(path)
        bos_id, self.eos_id, self.space_id = (self._id(token) for token in ("<s>", "</s>", SPACE))
        pad_id = self.tokenizer.token_to_id("<PAD>")
        super().__init__(self.tokenizer, prompt, bos_id, self.space_id, self.eos_id if pad_id is None else pad_id)
        self._check_vocabulary(vocab_size)

    def _check_vocabulary(self, vocab_size: int) -> None:
        """Refuse a tokenizer of another family: its ids mean other words, and nothing else would show it."""
        highest = max(self.tokenizer.get_vocab(with_added_tokens=False).values())
        wrong = f"its highest id is {highest}" if highest >= vocab_size else ""
        own = self.path.read_bytes() == EMBEDDED.read_bytes()  # it fits any vocabulary: random weights know no words
        if vocab_size == LLAMA_VOCAB and not own and self.space_id != LLAMA_SPACE:
            wrong = f"'{SPACE}' is {self.space_id} instead of {LLAMA_SPACE}"
        if (self.bos_id, self.eos_id) != (1, 2):
            wrong = f"<s> and </s> are {self.bos_id} and {self.eos_id} instead of 1 and 2"
        if wrong:
            raise CheckpointError(
                f"{self.path} does not match the network, whose vocabulary has {vocab_size} ids: {wrong}",
                "use the tokenizer.json of the checkpoint",
            )

    def _id(self, token: str) -> int:
        index = self.tokenizer.token_to_id(token)
        if index is None:
            raise CheckpointError(f"{self.path} has no token '{token}'", "use a tokenizer.json of the Llama 2 kind")
        return index

    def table(
        self, instructions: Sequence[str], limit: int | None = None, least: int = 0
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Encodes the prompts of all tasks, padded to one length L: a row's result cannot depend on its batch (see
        :func:`padded`).

        Args:
            limit: most tokens of a prompt; None = no limit.
            least: smallest L; with room for later prompts, those change nothing for the present ones.

        Returns:
            ids int64 [tasks, L], present bool [tasks, L].

        Raises:
            SpecMismatchError: an instruction is too long.
        """
        rows = [self.encode(text) for text in instructions]
        longest = max(map(len, rows))
        if limit is not None and longest > limit:
            text = next(text for text, row in zip(instructions, rows, strict=True) if len(row) == longest)
            raise SpecMismatchError(
                f"the instruction '{text[:80]}…' ({len(text)} characters) is {longest} tokens long with its prompt, "
                f"the limit is {limit}",
                f"shorten it, or set actor.model.max_prompt_length={longest} (each token costs time in every task)",
            )
        return padded(rows, self.pad_id, least)
