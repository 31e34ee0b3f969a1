"""Leaves secrets out of what is shown or sent on: values of keys like ``api_key``, and passwords within addresses."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from typing import Any

HIDDEN = "(hidden)"
_NAME = re.compile(
    r"(^|[_-])(password|passwd|secret|api[_-]?key|access[_-]?key|authorization)$|^((hf|auth|access)_)?token$",
    re.IGNORECASE,
)
_OF_ENVIRONMENT = re.compile(r"(TOKEN|KEY|SECRET|PASSWORD)$", re.IGNORECASE)
_ADDRESS = re.compile(r"//[^/\s@\"']+@")  # user:password@ of a URL
_EMPTY = (None, "", False)


def is_secret(key: str) -> bool:
    """Whether the value of a dotted key is a secret: by its last part, or because it stands below ``headers``."""
    parts = key.lstrip("+~").split(".")
    return _NAME.search(parts[-1]) is not None or any(part.lower() == "headers" for part in parts)


def in_value(key: str, value: Any) -> Any:
    """Returns the value of a dotted key with secrets in it hidden."""
    if isinstance(value, Mapping):
        return {name: in_value(f"{key}.{name}", one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [in_value(key, one) for one in value]
    if is_secret(key) and value not in _EMPTY:
        return HIDDEN
    return in_text(value) if isinstance(value, str) else value


def in_text(text: str) -> str:
    """Hides names and passwords of addresses in a text: ``https://me:pw@host`` → ``https://(hidden)@host``."""
    return _ADDRESS.sub(f"//{HIDDEN}@", text)


def without_environment(text: str, *others: str | None) -> str:
    """Hides the values of secret environment variables (``HF_TOKEN``, …) in a text.

    Args:
        others: more secrets, which stand elsewhere; None = there is none.
    """
    of_environment = [value for name, value in os.environ.items() if _OF_ENVIRONMENT.search(name)]
    for value in (*of_environment, *others):
        if value is not None and len(value) >= 8:
            text = text.replace(value, HIDDEN)
    return text


def in_command(command: str) -> str:
    """Hides secrets among a command line's ``key=value`` words; one that has none stays as it is."""
    try:
        words = shlex.split(command)
    except ValueError:  # a quote is open: it is no command line that a shell takes
        return in_text(command)
    shown = [in_override(word) for word in words]
    return command if shown == words else shlex.join(shown)


def in_override(word: str) -> str:
    """Hides secrets in a ``key=value`` override."""
    key, sign, value = word.partition("=")
    if sign and value and is_secret(key):
        return f"{key}={HIDDEN}"
    return in_text(re.sub(r"(\b[\w-]+): *([^,}\]]+)", _in_mapping, word) if sign and value[:1] in "{[" else word)


def _in_mapping(found: re.Match[str]) -> str:
    return f"{found[1]}: {HIDDEN}" if is_secret(found[1]) else found[0]
