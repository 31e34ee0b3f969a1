"""A tokenizer in which each character is a token, for networks that are made at random."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, END, UNKNOWN = "<pad>", "<eos>", "<unk>"
SPECIAL = (PAD, END, UNKNOWN)  # ids 0, 1 and 2


def character_tokenizer(characters: str) -> PreTrainedTokenizerFast:
    """Makes a tokenizer of characters: three special tokens, then ``characters`` in their order.

    A character that is not among them becomes ``<unk>``.
    """
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIAL))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, unk_token=UNKNOWN, clean_up_tokenization_spaces=False
    )
