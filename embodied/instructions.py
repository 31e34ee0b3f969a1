"""Instructions: text that travels with an observation. Task ids are for plans and tables.

An env whose instruction is that of its task says it once, in ``EnvSpec.tasks``. One whose instruction changes (a new
sentence each episode, a question) declares an observation field ``instruction`` uint8 [L] and writes it with
:func:`write`. Either way the policy is given text (``Policy.encode_instructions``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from embodied.errors import SpecMismatchError
from embodied.types import EnvSpec

FIELD = "instruction"


def write(text: str, out: np.ndarray) -> None:
    """Write ``text`` as UTF-8 into ``out`` uint8 [L], filled up with zeros.

    Raises:
        SpecMismatchError: it needs more than L bytes.
    """
    data = text.encode()
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
