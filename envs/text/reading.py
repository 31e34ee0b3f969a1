"""Makes a problem of a row: which columns hold what, how the prompt is put, and how long it may be."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from embodied import instructions
from embodied.errors import ConfigError, DatasetError, did_you_mean
from embodied.rows.formats import Row
from embodied.rows.pictures import of_column

from ..shared.arguments import check_name, check_range
from .verdict import Problem

Prompt = str | tuple[Mapping[str, str], ...]
TRUNCATION = ("error", "left", "right")
ROLES = ("system", "user", "assistant", "tool")
_MAX_BYTES = 1 << 20
_MAX_PICTURES = 64


class Missing(Exception):
    """Raised for a row that lacks a column or a value, and so is no problem.

    Args:
        what: it lacks.
        key: where that is to be found.
    """

    def __init__(self, what: str, key: str) -> None:
        super().__init__(what, key)
        self.key = key

    def __str__(self) -> str:
        return f"{self.args[0]} ('{self.key}')"


class TooLong(Exception):
    """Raised for a prompt of ``size`` bytes, more than an observation holds."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


@dataclass(frozen=True)
class Reading:
    """How rows of data become problems: columns, system prompt, template, limits. Meaning of the fields:
    :class:`embodied.envs.text.env.MathEnv`."""

    prompt_key: str = "prompt"
    answer_key: str | None = "answer"
    messages_key: str | None = None
    data_source_key: str | None = None
    system_prompt: str | None = None
    chat: bool = False
    template: str | None = None
    max_prompt_bytes: int = 2048
    truncation: str = "error"
    needs_answer: bool = True  # a row without an answer is no problem
    image_key: str | None = None
    max_images: int = 1

    def __post_init__(self) -> None:
        check_name("truncation", self.truncation, TRUNCATION, "env.train.truncation")
        check_range("env.train.max_prompt_bytes", self.max_prompt_bytes, 1, _MAX_BYTES)
        check_range("env.train.max_images", self.max_images, 1, _MAX_PICTURES)
        if self.template is not None:
            _check_template(self.template)

    def problem(self, row: Row, number: int) -> Problem:
        """Makes the problem of a row.

        Args:
            number: of the row in its source.

        Raises:
            Missing: there is no prompt or no answer in it.
            TooLong: the prompt does not fit and is not to be truncated.
            DatasetError: its messages are none, or its prompt speaks of other pictures than it has.
        """
        prompt, answer = self._prompt(row, number), self._answer(row)
        used = (self.prompt_key, self.messages_key, self.answer_key, self.image_key)
        fields = {name: value for name, value in row.items() if name not in used}
        if self.data_source_key is not None:
            fields["data_source"] = value_of(row, self.data_source_key)
        prompt = self._fitting(prompt)
        return Problem(prompt, answer, fields, number, pictures=self._pictures(prompt, row, number))

    def _pictures(self, prompt: Prompt, row: Row, number: int) -> tuple[Any, ...]:
        """The row's pictures, one for each place in the prompt."""
        if self.image_key is None:
            return ()
        found = of_column(value_of(row, self.image_key))
        texts = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
        places = sum(text.count(instructions.PICTURE) for text in texts)
        if places != len(found):
            raise DatasetError(
                f"row {number}: the prompt has {places} times {instructions.PICTURE}, and '{self.image_key}' "
                f"(data.image_key) holds {len(found)} pictures",
                f"write {instructions.PICTURE} once for each picture, in the prompt or in env.train.template and "
                "env.eval.template; leave data.image_key out if the data has no pictures",
            )
        if len(found) > self.max_images:
            raise DatasetError(
                f"row {number} has {len(found)} pictures, and an observation holds {self.max_images}",
                f"set env.train.max_images and env.eval.max_images to {len(found)} or more",
            )
        return found

    def _answer(self, row: Row) -> Any:
        if self.answer_key is None:
            return None
        answer = value_of(row, self.answer_key)
        if self.needs_answer and _is_empty(answer):
            raise Missing("an answer", self.answer_key)
        return answer

    def _prompt(self, row: Row, number: int) -> Prompt:
        key = self.messages_key or self.prompt_key
        given = value_of(row, key)
        if _is_empty(given):
            raise Missing("a prompt", key)
        if self.messages_key is None and isinstance(given, str | int | float):
            text = self._put(str(given), row)
            if self.system_prompt is None and not self.chat:
                return text
            return (*self._system(), {"role": "user", "content": text})
        messages = _messages(given if self.image_key is None else _joined(given), key, number)
        *before, last = messages
        last = {**last, "content": self._put(last["content"], row)}
        return (*(() if messages[0]["role"] == "system" else self._system()), *before, last)

    def _system(self) -> tuple[Mapping[str, str], ...]:
        return () if self.system_prompt is None else ({"role": "system", "content": self.system_prompt},)

    def _put(self, text: str, row: Row) -> str:
        """The text in its template, which may name other columns too."""
        if self.template is None:
            return text
        try:
            return self.template.format_map({**row, "prompt": text})
        except (KeyError, AttributeError, IndexError, ValueError, TypeError) as error:
            raise ConfigError(
                f"env.train.template cannot be filled ({type(error).__name__}: {error}) from the columns: "
                f"{', '.join(row)}",
                "name prompt and columns alone, and write braces of the text twice: \\boxed{{}}",
            ) from error

    def _fitting(self, prompt: Prompt) -> Prompt:
        size = _size(prompt)
        if size <= self.max_prompt_bytes:
            return prompt
        if self.truncation == "error":
            raise TooLong(size)
        if isinstance(prompt, str):
            return _cut(prompt, self.max_prompt_bytes, self.truncation)
        return self._cut_last(prompt, size)

    def _cut_last(self, messages: tuple[Mapping[str, str], ...], size: int) -> Prompt:
        """Keeps as much of the last message as fits. How many bytes a character takes in a conversation depends on the
        character, so the amount is searched for."""
        *before, last = messages
        content = last["content"]

        def cut(kept: int) -> Prompt:
            return (*before, {**last, "content": _cut(content, kept, self.truncation)})

        if _size(cut(0)) > self.max_prompt_bytes:
            raise TooLong(size)
        low, high = 0, len(content.encode(errors="replace"))  # low fits, high does not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _size(cut(middle)) <= self.max_prompt_bytes else (low, middle)
        return cut(low)


def text_of(prompt: Prompt) -> str:
    """Formats a prompt as an observation holds it."""
    return prompt if isinstance(prompt, str) else instructions.of_messages(prompt)


def value_of(row: Row, key: str) -> Any:
    """Reads the value of a column, or of what lies inside it (``reward_model.ground_truth``); None if there is none."""
    if key in row:
        return row[key]
    value: Any = row
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def no_column(where: str, missing: Missing, row: Row) -> DatasetError:
    """Makes the error for a column that has a value in no row."""
    names, column = list(row), missing.key.partition(".")[0]
    hint = "" if column in names else did_you_mean(column, names)
    return DatasetError(
        f"{where}: no row has {missing}.{hint} The first row has the columns: {', '.join(names)}",
        "set data.prompt_key, messages_key and answer_key (or those of env.train, env.eval) to such columns; a dot "
        "leads into one: reward_model.ground_truth; answer_key=null if there are no answers",
    )


def _size(prompt: Prompt) -> int:
    """Bytes of the prompt in an observation."""
    return len(text_of(prompt).encode(errors="replace"))


def _cut(text: str, size: int, side: str) -> str:
    """At most ``size`` bytes of a text: without its end (right) or its beginning (left)."""
    data = text.encode(errors="replace")
    return (data[:size] if side == "right" else data[len(data) - size :]).decode(errors="ignore")


def _is_empty(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, list | dict) and not value)


def _joined(given: Any) -> Any:
    """A conversation with texts as contents. What is no conversation is left as it is."""
    if not isinstance(given, list):
        return given
    return [
        {**message, "content": instructions.joined(message.get("content"))} if isinstance(message, Mapping) else message
        for message in given
    ]


def _messages(given: Any, key: str, number: int) -> list[Mapping[str, str]]:
    """Checks a conversation that the policy is to go on with."""
    fits = isinstance(given, list) and all(
        isinstance(m, Mapping) and m.get("role") in ROLES and isinstance(m.get("content"), str) for m in given
    )
    if not fits or given[-1]["role"] == "assistant":
        found = "ends with an answer of the assistant" if fits else f"is {str(given)[:120]}"
        raise DatasetError(
            f"row {number}: the conversation in '{key}' {found}, expected a list of messages with a role "
            f"({', '.join(ROLES)}) and a text as content, of which the last is the question",
            "correct the data, or name the column that holds the prompts: env.train.prompt_key or messages_key",
        )
    return [{"role": m["role"], "content": m["content"]} for m in given]


def _check_template(template: str) -> None:
    remedy = (
        "write {prompt} where the prompt goes, and braces of the text twice: "
        "'{prompt}\\nPut the answer into \\boxed{{}}.'"
    )
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ConfigError(f"env.train.template is {template!r}: {error}", remedy) from error
    if not names or any(not name or name[0].isdigit() for name in names):
        raise ConfigError(f"env.train.template is {template!r}, in which no column is named", remedy)
