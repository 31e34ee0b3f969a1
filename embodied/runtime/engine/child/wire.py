"""Messages between the launcher and an engine's process: a JSON object and raw bytes, both with their length in front.

    4 bytes │ 4 bytes │ JSON object in UTF-8 │ body
    length of the object, of the body (little endian)

Both sides use this file. It imports the standard library only: the engine's interpreter has none of our packages.

| from the launcher | fields | body |
|---|---|---|
| ``setup`` | what the engine is made from; the first message | |
| ``begin`` | ``sampling`` of the requests that follow | |
| ``ask`` | ``number``, ``seed`` | prompt, int32 |
| ``cancel`` | ``number`` | |
| ``load`` | ``path`` of the file of weights | |
| ``sleep``, ``wake`` | | |

| from the engine | fields | body |
|---|---|---|
| ``ready`` | ``version`` | |
| ``answer`` | ``number``, ``length`` | tokens int32, then their log-probs float32 |
| ``loaded`` | ``tensors``: name, dtype, shape and checksum of each that was read | |
| ``slept``, ``awake`` | | |
| ``alive`` | at least once a second while it generates | |
| ``failed`` | ``error`` in one line, ``traceback``; the last message | |
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

LENGTHS = struct.Struct("<II")


class Message(NamedTuple):
    """A message between launcher and engine process: ``fields`` has the ``kind`` and what belongs to it."""

    fields: dict[str, Any]
    body: bytes

    @property
    def kind(self) -> str:
        return self.fields["kind"]


def pack(kind: str, body: bytes = b"", **fields: Any) -> bytes:
    """Encodes a message between launcher and engine process."""
    text = json.dumps({"kind": kind, **fields}).encode()
    return LENGTHS.pack(len(text), len(body)) + text + body


class Reader:
    """Decodes a stream of bytes into messages between launcher and engine process."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, received: bytes) -> Iterator[Message]:
        """Yields the messages that ``received`` completes."""
        self._bytes += received
        while len(self._bytes) >= LENGTHS.size:
            text, body = LENGTHS.unpack_from(self._bytes)
            end = LENGTHS.size + text + body
            if len(self._bytes) < end:
                return
            whole = bytes(self._bytes[LENGTHS.size : end])
            del self._bytes[:end]
            yield Message(json.loads(whole[:text]), whole[text:])
