"""Demonstrated answers: a prompt with the text that should follow it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from embodied import instructions
from embodied.errors import DatasetError
from embodied.rows.pictures import of_column, pixels
from embodied.types import ArraySpec, EnvSpec

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class DemonstratedAnswer:
    """A demonstrated prompt-answer pair, to learn from."""

    instruction: str  # the prompt, or a conversation (``embodied.instructions.of_messages``)
    response: str
    pictures: tuple[Any, ...] = ()  # pictures of the prompt, as the row has them
    where: str = ""  # it stands, for messages
    folder: Path = Path()  # relative paths of pictures start here


@dataclass(frozen=True)
class Columns:
    """Column names of a data set of demonstrated prompt-answer pairs.

    Args:
        prompt, response: of rows with one prompt and one answer.
        messages: of rows with a conversation; each of its assistant's messages is a demonstrated answer.
        images: of pictures (:mod:`embodied.rows.pictures`); None = none is read.
        system_prompt: put before prompts and conversations that have no message of the system; None = nothing.
    """

    prompt: str = "prompt"
    response: str = "response"
    messages: str = "messages"
    system_prompt: str | None = None
    images: str | None = None


def answers_by_row(
    rows: Sequence[Mapping[str, Any]], columns: Columns, where: str, folder: Path = Path()
) -> list[list[DemonstratedAnswer]]:
    """Converts rows of a data set to prompt-answer pairs, row by row.

    Args:
        where: the file's name, for messages.
        folder: from which paths of pictures lead.

    Raises:
        DatasetError: a row has neither a prompt with a response nor messages, or they are no text, or speak of other
            pictures than it has; no row at all.
    """
    found = [[*_pictured(row, columns, f"{where}, row {number}", folder)] for number, row in enumerate(rows)]
    if not any(found):
        raise DatasetError(f"{where} has no demonstrated answer", "give a file with rows, or another one")
    return found


def _pictured(row: Mapping[str, Any], columns: Columns, where: str, folder: Path) -> Iterator[DemonstratedAnswer]:
    """The demonstrated answers of a row, each with the pictures that its prompt speaks of: the first ones."""
    answers = [*_of_row(row, columns, where)]
    if columns.images is None:
        yield from answers
        return
    pictures = of_column(row.get(columns.images))
    places = [answer.instruction.count(instructions.PICTURE) for answer in answers]
    if max(places, default=0) != len(pictures):
        raise DatasetError(
            f"{where}: the prompt has {max(places, default=0)} times {instructions.PICTURE}, and '{columns.images}' "
            f"(data.image_key) holds {len(pictures)} pictures",
            f"write {instructions.PICTURE} once for each picture; leave data.image_key out if there are no pictures",
        )
    for answer, count in zip(answers, places, strict=True):
        yield replace(answer, pictures=pictures[:count], where=where, folder=folder)


def _of_row(row: Mapping[str, Any], columns: Columns, where: str) -> Iterator[DemonstratedAnswer]:
    if (conversation := row.get(columns.messages)) is not None:
        yield from _of_messages(conversation, columns, where)
        return
    if columns.prompt not in row or columns.response not in row:
        missing = columns.prompt if columns.prompt not in row else columns.response
        raise DatasetError(
            f"{where} has no column '{missing}', and no '{columns.messages}' either; it has {', '.join(map(str, row))}",
            "set data.prompt_key and data.response_key, or data.messages_key, to columns that it has",
        )
    prompt = _text(row[columns.prompt], where, columns.prompt)
    if columns.system_prompt is not None:
        told = [{"role": "system", "content": columns.system_prompt}, {"role": "user", "content": prompt}]
        prompt = instructions.of_messages(told)
    yield DemonstratedAnswer(prompt, _text(row[columns.response], where, columns.response))


def _of_messages(conversation: Any, columns: Columns, where: str) -> Iterator[DemonstratedAnswer]:
    """The answers of a conversation. Raises :class:`DatasetError` if it is none, or has no answer to anything."""
    before: list[dict[str, str]] = []
    answered = False
    if isinstance(conversation, str | bytes | Mapping) or not isinstance(conversation, Iterable):
        raise DatasetError(
            f"{where} has {type(conversation).__name__} {str(conversation)[:60]!r} in column '{columns.messages}'",
            "make it a list of messages: [{role: user, content: …}, {role: assistant, content: …}]",
        )
    for message in conversation:
        role, content = (message.get("role"), message.get("content")) if isinstance(message, Mapping) else (None, None)
        content = content if columns.images is None else instructions.joined(content)
        if role not in ROLES or not isinstance(content, str):
            raise DatasetError(
                f"{where} has the message {str(message)[:80]}",
                f"give each message a 'role' out of {', '.join(ROLES)} and a text 'content'",
            )
        content = _text(content, where, columns.messages, role != "assistant")
        if not before and role != "system" and columns.system_prompt is not None:
            before.append({"role": "system", "content": columns.system_prompt})
        if role == "assistant" and not before:
            raise DatasetError(
                f"{where} has a message of the assistant that answers nothing: {content[:60]!r}",
                "give the conversation a message of the user before it, or leave the row out",
            )
        if role == "assistant":
            answered = True
            yield DemonstratedAnswer(instructions.of_messages(before), content)
        before.append({"role": role, "content": content})
    if not answered:
        raise DatasetError(
            f"{where} has a conversation of {len(before)} messages without one of the assistant, so no answer",
            "add the answer that should be learned, or leave the row out",
        )


def _text(value: Any, where: str, column: str, may_be_empty: bool = False) -> str:
    """The value as it will be learned. Raises :class:`DatasetError` for one that would be another text, or none."""
    if not isinstance(value, str):
        raise DatasetError(
            f"{where} has {type(value).__name__} {str(value)[:60]!r} in column '{column}'", "make it a text"
        )
    if not value and not may_be_empty:
        raise DatasetError(f"{where} has an empty text in column '{column}'", "write the text, or leave the row out")
    if "\0" in value or value.startswith(instructions.CONVERSATION):
        raise DatasetError(
            f"{where} has a control character in column '{column}': {value[:60]!r}",
            "take NUL characters, and a record separator (U+001E) at the beginning, out of the text",
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DatasetError(
            f"{where} has half of a surrogate pair in column '{column}', at character {error.start}",
            "write the character whole: the text was cut in the middle of it",
        ) from error
    return value


class TextSamples:
    """N demonstrated answers as samples of one action each.

    Args:
        max_bytes: of an answer.
        pictures: of an observation, uint8 [M, S, S, 3]; None = it has none.

    Raises:
        DatasetError: an answer is longer, or has more pictures.
    """

    def __init__(
        self, answers: Sequence[DemonstratedAnswer], max_bytes: int, pictures: ArraySpec | None = None
    ) -> None:
        self._written, self._max_bytes, self._pictures = answers, max_bytes, pictures
        self._check_pictures()
        longest = max((len(one.response.encode(errors="replace")) for one in answers), default=0)
        if longest > max_bytes:
            raise DatasetError(
                f"a demonstrated answer has {longest} bytes, and the env takes {max_bytes}",
                f"set env.train.max_response_bytes and env.eval.max_response_bytes to {longest} or more",
            )

    def __len__(self) -> int:
        return len(self._written)

    def mask(self, chosen: np.ndarray) -> np.ndarray:
        """Bool [B, 1], True: each answer is one action, which was taken."""
        return np.ones((len(chosen), 1), bool)

    def batch(self, chosen: np.ndarray) -> dict[str, np.ndarray]:
        """``actions`` uint8 [B, 1, L] of the samples ``chosen`` int64 [B]; ``pictures`` uint8 [B, M, S, S, 3] if an
        observation has some."""
        return {"actions": self.actions(chosen), **self._shown(chosen)}

    def actions(self, chosen: np.ndarray) -> np.ndarray:
        """Answers of the samples ``chosen`` int64 [B] as UTF-8, uint8 [B, 1, L]."""
        actions = np.zeros((len(chosen), 1, self._max_bytes), np.uint8)
        for row, index in zip(actions, chosen, strict=True):
            instructions.write(self._written[index].response, row[0])
        return actions

    def _shown(self, chosen: np.ndarray) -> dict[str, np.ndarray]:
        if self._pictures is None:
            return {}
        shown = np.zeros((len(chosen), *self._pictures.shape), np.uint8)
        for row, index in zip(shown, chosen, strict=True):
            one = self._written[index]
            row[: len(one.pictures)] = pixels(one.pictures, self._pictures.shape[1], one.folder, one.where)
        return {instructions.PICTURES: shown}

    def _check_pictures(self) -> None:
        room = 0 if self._pictures is None else self._pictures.shape[0]
        most = max(self._written, key=lambda one: len(one.pictures), default=None)
        if most is not None and len(most.pictures) > room:
            raise DatasetError(
                f"{most.where} has {len(most.pictures)} pictures, and an observation of the env holds {room}",
                f"set env.train.max_images and env.eval.max_images to {len(most.pictures)} or more"
                if room
                else "give the env problems with pictures: env.train.data, env.eval.data",
            )

    def instructions(self, chosen: np.ndarray) -> list[str]:
        """Prompts of the samples ``chosen`` int64 [B]."""
        return [self._written[index].instruction for index in chosen]

    def env_of_policy(self, env: EnvSpec, held_out: Self) -> EnvSpec:
        """Returns the env as it is: prompts are no tasks of it."""
        return env
