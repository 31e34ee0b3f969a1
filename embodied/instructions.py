"""Instructions: text that travels with an observation. Task ids are for plans and tables.

An env whose instruction is that of its task says it once, in ``EnvSpec.tasks``. One whose instruction changes (a new
sentence each episode, a question) declares an observation field ``instruction`` uint8 [L] and writes it with
:func:`write`. Either way the policy is given text (``Policy.encode_instructions``).

The text may be a conversation: :func:`of_messages` makes one text of a list of messages, and :func:`messages` gives the
list back. Any other text is one prompt.

Text that a policy decides (``TextAction``) stands in bytes in the same way: :func:`write` with ``cut=True``.

A text may speak of pictures: where :data:`PICTURE` stands in it, the next picture of the observation field
:data:`PICTURES` uint8 [M, S, S, 3] belongs. What a text does not speak of is black.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from embodied.errors import SpecMismatchError
from embodied.types import EnvSpec

FIELD = "instruction"
FAILURES = "failures"  # key of EnvSpec.info: number of failed verdicts on the response
ANSWER = "answer"  # key of EnvSpec.info: code of the answer, see answer_code
SAYS_NOTHING, NONE_FOUND = 0, 1  # values of answer_code
PICTURES = "pictures"
PICTURE = "<image>"  # verl's
CONVERSATION = "\x1e"  # a text that begins with it (ASCII's record separator) is a list of messages as JSON

Message = Mapping[str, str]
"""``{"role": "user", "content": "What is 2 + 2?"}``; roles are system, user, assistant, tool."""


def of_messages(conversation: Sequence[Message]) -> str:
    """The conversation as one text, which :func:`messages` reads.

    >>> messages(of_messages([{"role": "user", "content": "2+2?"}]))
    [{'role': 'user', 'content': '2+2?'}]
    """
    return CONVERSATION + json.dumps([dict(message) for message in conversation], ensure_ascii=False)


def messages(text: str) -> list[dict[str, str]] | None:
    """The messages of a conversation that :func:`of_messages` has written; None if the text is one prompt."""
    if not text.startswith(CONVERSATION):
        return None
    found: list[dict[str, str]] = json.loads(text[len(CONVERSATION) :])
    return found


def joined(content: Any) -> Any:
    """The content of a message as a text: of a list of parts ``{"type": "text", "text": …}`` and ``{"type": "image"}``,
    with :data:`PICTURE` for each of the latter. Anything else is given back as it is.

    >>> joined([{"type": "image"}, {"type": "text", "text": "what is it?"}])
    '<image>what is it?'
    """
    if not isinstance(content, list):
        return content
    texts = [text for part in content if (text := _part(part)) is not None]
    return "".join(texts) if len(texts) == len(content) else content


def _part(part: Any) -> str | None:
    if not isinstance(part, Mapping):
        return None
    if part.get("type") == "image":
        return PICTURE
    return part["text"] if part.get("type") == "text" and isinstance(part.get("text"), str) else None


def write(text: str, out: np.ndarray, cut: bool = False) -> None:
    """Write ``text`` as UTF-8 into ``out`` uint8 [L], filled up with zeros.

    Args:
        cut: leave out the end of a text that is too long, from the first character that does not fit.

    Raises:
        SpecMismatchError: it needs more than L bytes.
    """
    data = text.encode(errors="replace")
    if cut and len(data) > len(out):
        data = data[: len(out)].decode(errors="ignore").encode()
    if len(data) > len(out):
        raise SpecMismatchError(
            f"an instruction of {len(data)} bytes does not fit into the {len(out)} of obs['{FIELD}']: '{text[:60]}…'",
            f"declare EnvSpec.obs['{FIELD}'] with ({len(data)},) or more",
        )
    out[:] = 0
    out[: len(data)] = np.frombuffer(data, np.uint8)


def read(row: np.ndarray) -> str:
    """The text that :func:`write` has left in ``row`` uint8 [L]. Bytes that are no UTF-8 become U+FFFD."""
    return row.tobytes().rstrip(b"\0").decode(errors="replace")


def of_rows(env: EnvSpec, arrays: Mapping[str, np.ndarray], rows: Sequence[int] | np.ndarray) -> list[str]:
    """The instruction of each record in ``rows``: its own text, else that of its task."""
    if FIELD in env.obs:
        return [read(row) for row in arrays[FIELD][rows]]
    return [env.tasks[task] for task in arrays["task_id"][rows]]


def fields_of(env: EnvSpec) -> list[str]:
    """Names of the observation fields that a policy reads as arrays."""
    return [name for name in env.obs if name != FIELD]


def answer_code(answer: str | None) -> int:
    """A number of 64 bits that stands for an answer in a record, so that equal answers can be counted.

    Args:
        answer: in one spelling for all answers that are equal; "" if a response has none, None if the env does not say.

    >>> answer_code("1/2") == answer_code("1/2"), answer_code("1/2") == answer_code("1/3")
    (True, False)
    """
    if not answer:
        return SAYS_NOTHING if answer is None else NONE_FOUND
    digest = hashlib.blake2b(answer.encode(errors="replace"), digest_size=8).digest()
    code = int.from_bytes(digest, "little", signed=True)
    return code if code not in (SAYS_NOTHING, NONE_FOUND) else code + 2
