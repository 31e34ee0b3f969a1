"""Values that keep a key's default, as if the key were left out.

The column ``says_nothing`` of the tables has them. Null says nothing of all keys that have it as a value of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from embodied.schema.keys.paths import at
from embodied.schema.others.tables import column


@cache
def silent_values() -> Mapping[str, tuple[Any, ...]]:
    """Returns, by key, the values with which another system's key asks for nothing else than our default."""
    return {key: tuple(json.loads(cell)) for key, cell in column("says_nothing").items()}


def silent(mapping: Mapping[str, Any]) -> list[str]:
    """Lists the keys of a configuration whose values ask for nothing else than our default. Others may refer to them:
    ``${…}`` is not resolved yet."""
    keys = []
    for key, values in silent_values().items():
        value = at(mapping, key)
        if not isinstance(value, bool) and value in values:
            keys.append(key)
    return keys
