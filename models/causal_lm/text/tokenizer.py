"""Text ↔ tokens: prompts by the chat template or as they are, responses, and what ends a text."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from embodied import instructions
from embodied.errors import ConfigError, SpecMismatchError
from embodied.types import Sampling

from ...shared.keys import bad
from ..settings import Settings
from .pictures import Pictures, expanded, with_parts

MOST_KEPT = 1 << 14  # prompts whose tokens are kept
MORE_CHARACTERS = (
    "set actor.model.characters to all characters of prompts and answers (ascii: those that ASCII can print)"
)
BLANK = "\u2581"  # begins the names of tokens with a blank in front, in vocabularies of SentencePiece


class TextTokenizer:
    """Encodes prompts and decodes answers with a tokenizer of Hugging Face.

    Args:
        tokenizer: a ``PreTrainedTokenizerBase``.
        ends: ids of the tokens that end a text; the first of them is appended to a demonstrated answer.
        pictures: what a vision-language model says of pictures; None = ``<image>`` is a text as any other.

    Raises:
        ConfigError: a chat template is asked for, and there is none.
    """

    def __init__(
        self, tokenizer: Any, settings: Settings, ends: Iterable[int], pictures: Pictures | None = None
    ) -> None:  # fmt: skip
        self.tokenizer, self.settings, self.ends, self.pictures = tokenizer, settings, tuple(ends), pictures
        if settings.chat_template is not None:
            tokenizer.chat_template = Path(settings.chat_template).read_text(encoding="utf-8")
        has = tokenizer.chat_template is not None
        fix = "give a file with a Jinja template in actor.model.chat_template, or set actor.model.chat=never"
        if settings.chat == "always" and not has:
            raise ConfigError("actor.model.chat is always, and the tokenizer has no chat template", fix)
        self.chat = has and settings.chat != "never"
        if settings.system_prompt is not None and not self.chat:
            raise bad("system_prompt", settings.system_prompt, "prompts are made without a chat template", fix)
        self._kept: OrderedDict[str, list[int]] = OrderedDict()
        self._answers: OrderedDict[str, list[int]] = OrderedDict()
        self.may_complete = lru_cache(maxsize=8)(self._may_complete)

    @property
    def pad_id(self) -> int:
        """Id that fills up a row of prompts; no result depends on it."""
        return self.tokenizer.pad_token_id or 0

    def prompt(self, text: str) -> list[int]:
        """Encodes a prompt or a conversation (``embodied.instructions.of_messages``), at least one token.

        Raises:
            SpecMismatchError: it is longer than ``max_prompt_tokens``, or a conversation without a chat template.
        """
        if text in self._kept:
            self._kept.move_to_end(text)
            return self._kept[text]
        ids = self._fitted(self._encoded(text), text)
        self._kept[text] = ids
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return ids

    def shown(self, text: str) -> str:
        """Returns a prompt's text as the policy reads it, with special tokens: that of :meth:`prompt`.

        Raises:
            SpecMismatchError: as :meth:`prompt`.
        """
        return self.tokenizer.decode(self.prompt(text), clean_up_tokenization_spaces=False)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        r"""Decodes each token for itself, special ones too. A token that holds a part of a character alone is
        ``\ufffd``."""
        texts = self.tokenizer.batch_decode([[token] for token in tokens], clean_up_tokenization_spaces=False)
        names = self.tokenizer.convert_ids_to_tokens(list(tokens))
        return [_with_blank(text, name or "") for text, name in zip(texts, names, strict=True)]

    def length(self, text: str) -> int:
        """Counts the tokens of a prompt or of a conversation, before it is cut."""
        return max(1, len(self._encoded(text)))

    @property
    def frame(self) -> int:
        """Number of tokens around a plain prompt: those of the chat template, or of the beginning of a text."""
        return max(0, self.length("0") - len(self.tokenizer("0", add_special_tokens=False).input_ids))

    def _encoded(self, text: str) -> list[int]:
        conversation = instructions.messages(text)
        if not self.chat:
            if conversation is not None:
                raise SpecMismatchError(
                    "the env gives conversations, and the policy makes prompts without a chat template",
                    "give a file with a Jinja template in actor.model.chat_template (and chat=auto), or plain prompts",
                )
            ids = self.tokenizer(text if self.pictures is None else self._pictured(text)).input_ids
            return ids or [self.tokenizer.bos_token_id or self.ends[0]]
        messages: list[Any] = [*(conversation or [{"role": "user", "content": text}])]
        if self.settings.system_prompt is not None and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": self.settings.system_prompt}, *messages]
        thinking = self.settings.enable_thinking
        keys: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking}
        goes_on = self.settings.continue_final_message and messages[-1]["role"] == "assistant"
        opens = self.settings.add_generation_prompt and not goes_on
        if self.pictures is not None:
            messages = with_parts(messages)
        shown = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=opens, continue_final_message=goes_on, **keys
        )
        if self.pictures is None:
            return self.tokenizer(shown, add_special_tokens=False).input_ids
        count = text.count(instructions.PICTURE)
        begins = self.tokenizer.bos_token is not None and shown.startswith(self.tokenizer.bos_token)
        shown = expanded(shown, self.pictures, self.tokenizer, count)
        return self.tokenizer(shown, add_special_tokens=not begins).input_ids  # transformers' processors do the same

    def _pictured(self, text: str) -> str:
        """A plain prompt with the tokens of its pictures."""
        assert self.pictures is not None
        count, own = text.count(instructions.PICTURE), self.tokenizer.convert_ids_to_tokens(self.pictures.token)
        return expanded(text.replace(instructions.PICTURE, own), self.pictures, self.tokenizer, count)

    def _check_known(self, text: str, ids: Sequence[int]) -> None:
        """Refuses an answer that the policy cannot write."""
        unknown = self.tokenizer.unk_token_id
        if unknown not in ids:
            return
        encoded = {one: self.tokenizer(one, add_special_tokens=False).input_ids for one in dict.fromkeys(text)}
        if missing := [one for one, found in encoded.items() if unknown in found]:
            raise SpecMismatchError(
                f"a demonstrated answer has characters for which the tokenizer has no token ({' '.join(missing)}): "
                f"'{text[:60]}{'…' if len(text) > 60 else ''}'",
                f"{MORE_CHARACTERS}, also in a training that begins with these weights"
                if self.settings.model_path is None
                else "remove them from the answers, or take a model that has tokens for them",
            )

    def _fitted(self, ids: list[int], text: str) -> list[int]:
        most, side = self.settings.max_prompt_tokens, self.settings.truncation
        if len(ids) <= most:
            return ids
        pictured = self.pictures is not None and self.pictures.token in ids
        if side == "error" or pictured:
            cut = "" if pictured else "or cut prompts by data.truncation=left or right; "
            raise SpecMismatchError(
                f"a prompt has {len(ids)} tokens, actor.model.max_prompt_tokens is {most}: "
                f"'{text[:60]}{'…' if len(text) > 60 else ''}'",
                f"set actor.model.max_prompt_tokens, or data.max_prompt_length that it follows, to {len(ids)} or more; "
                f"{cut}or leave longer ones out by data.filter_overlong_prompts=true",
            )
        return ids[-most:] if side == "left" else ids[:most]

    def responses(self, texts: Sequence[str], most: int) -> list[list[int]]:
        """Encodes answers with the token that ends each, cut after ``most``. Those of the last few calls are kept: a
        step of supervised training asks for the same ones more than once.

        Raises:
            SpecMismatchError: a character has no token.
        """
        new = [text for text in dict.fromkeys(texts) if text not in self._answers]
        if new:
            encoded = self.tokenizer(new, add_special_tokens=False).input_ids  # one call: most of it is its overhead
            for text, ids in zip(new, encoded, strict=True):
                self._check_known(text, ids)
            self._answers.update(zip(new, encoded, strict=True))
        found = [[*self._answers[text], self.ends[0]][:most] for text in texts]
        while len(self._answers) > MOST_KEPT:
            self._answers.popitem(last=False)
        return found

    def text(self, tokens: Sequence[int]) -> str:
        """Decodes a response, without the token that ends it and without special tokens."""
        kept = tokens[:-1] if tokens and tokens[-1] in self.ends else tokens
        return self.decode(kept)

    def answer(self, tokens: Sequence[int], sampling: Sampling) -> str:
        """Decodes a response as the env gets it: :meth:`text`, cut before the first of ``sampling.stop`` unless that is
        included."""
        text = self.text(tokens)
        if sampling.include_stop:
            return text
        return text[: min((at for stop in sampling.stop if (at := text.find(stop)) >= 0), default=None)]

    def decode(self, tokens: Sequence[int]) -> str:
        """Decodes tokens, without special ones."""
        return self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _may_complete(self, stop: tuple[str, ...]) -> list[bool]:
        """Marks the tokens of the vocabulary that may complete one of ``stop``: their own text holds the last character
        of one, or a part of one. A token alone may be written without the blank before it: its name says that."""
        self._check_visible(stop)
        ends = {text[-1] for text in stop} | {"\ufffd"}
        numbers = range(len(self.tokenizer))
        pieces = self.tokenizer.batch_decode([[index] for index in numbers])
        names = self.tokenizer.convert_ids_to_tokens(list(numbers))
        blanks = [" " in ends and (name or "").startswith(BLANK) for name in names]
        return [blank or not ends.isdisjoint(piece) for blank, piece in zip(blanks, pieces, strict=True)]

    def _check_visible(self, stop: tuple[str, ...]) -> None:
        """Refuses a special token that ends no text: the text of a response never shows it."""
        hidden = {str(token): index for index, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        for text in stop:
            if hidden.get(text, self.ends[0]) not in self.ends:
                raise ConfigError(
                    f"sampling_params.stop holds the special token {text!r}, which the text of a response never shows",
                    f"add its id {hidden[text]} to eos_token_id in generation_config.json of the model's folder, or "
                    "leave it out",
                )

    def completes(self, tokens: Sequence[int], stop: tuple[str, ...]) -> bool:
        """Returns whether the last of ``tokens`` completes one of ``stop``. A character has four tokens at most."""
        most = 4 * max(map(len, stop)) + 4
        tail = self.decode(tokens[-most:])
        return any(text in tail for text in stop)


def _with_blank(text: str, name: str) -> str:
    """A token's text with the blank before it, which a tokenizer of SentencePiece leaves out at the beginning."""
    return f" {text}" if name.startswith(BLANK) and not text.startswith(" ") else text


def check_stop(stop: tuple[str, ...]) -> None:
    """Refuses an empty text: it would end every response at once."""
    if "" in stop:
        raise ConfigError("sampling_params.stop holds an empty text", "remove it, or set stop to null")
