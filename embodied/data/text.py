"""Demonstrated answers: a prompt with the text that should follow it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied import instructions
from embodied.errors import DatasetError

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class Written:
    """One demonstrated answer."""

    instruction: str  # the prompt, or a conversation (``embodied.instructions.of_messages``)
    response: str


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a data set.

    Args:
        prompt, response: of rows with one prompt and one answer.
        messages: of rows with a conversation; each of its assistant's messages is a demonstrated answer.
        system_prompt: put before prompts and conversations that have no message of the system; None = nothing.
    """

    prompt: str = "prompt"
    response: str = "response"
    messages: str = "messages"
    system_prompt: str | None = None


def answers_by_row(rows: Sequence[Mapping[str, Any]], columns: Columns, where: str) -> list[list[Written]]:
    """The demonstrated answers of each row.

    Args:
        where: the file's name, for messages.

    Raises:
        DatasetError: a row has neither a prompt with a response nor messages, or they are no text; no row at all.
    """
    found = [[*_of_row(row, columns, f"{where}, row {number}")] for number, row in enumerate(rows)]
    if not any(found):
        raise DatasetError(f"{where} has no demonstrated answer", "give a file with rows, or another one")
    return found


def _of_row(row: Mapping[str, Any], columns: Columns, where: str) -> Iterator[Written]:
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
    yield Written(prompt, _text(row[columns.response], where, columns.response))


def _of_messages(conversation: Any, columns: Columns, where: str) -> Iterator[Written]:
    before: list[dict[str, str]] = []
    for message in conversation:
        role, content = (message.get("role"), message.get("content")) if isinstance(message, Mapping) else (None, None)
        if role not in ROLES or not isinstance(content, str):
            raise DatasetError(
                f"{where} has the message {str(message)[:80]}",
                f"give each message a 'role' out of {', '.join(ROLES)} and a text 'content'",
            )
        if not before and role != "system" and columns.system_prompt is not None:
            before.append({"role": "system", "content": columns.system_prompt})
        if role == "assistant":
            yield Written(instructions.of_messages(before), content)
        before.append({"role": role, "content": content})


def _text(value: Any, where: str, column: str) -> str:
    if not isinstance(value, str):
        raise DatasetError(
            f"{where} has {type(value).__name__} {str(value)[:60]!r} in column '{column}'", "make it a text"
        )
    return value


class TextSamples:
    """N demonstrated answers as samples of one action each.

    Args:
        max_bytes: of an answer.

    Raises:
        DatasetError: an answer is longer.
    """

    def __init__(self, written: Sequence[Written], max_bytes: int) -> None:
        self._written, self._max_bytes = written, max_bytes
        longest = max((len(one.response.encode(errors="replace")) for one in written), default=0)
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
        """``actions`` uint8 [B, 1, L] of the samples ``chosen`` int64 [B]."""
        actions = np.zeros((len(chosen), 1, self._max_bytes), np.uint8)
        for row, index in zip(actions, chosen, strict=True):
            instructions.write(self._written[index].response, row[0])
        return {"actions": actions}

    def instructions(self, chosen: np.ndarray) -> list[str]:
        """Prompts of the samples ``chosen`` int64 [B]."""
        return [self._written[index].instruction for index in chosen]
