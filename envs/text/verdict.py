"""What the sources of problems and the verifiers exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Problem:
    """A problem with its gold answer, as a verifier sees it."""

    prompt: str | tuple[Mapping[str, str], ...]  # one prompt, or messages
    answer: Any  # right answer of the data; None: none
    fields: Mapping[str, Any]  # the row's other columns, e.g. data_source
    number: int  # row number in its source
    # what the policy has read before this response; with several turns the transcript so far. None = the prompt
    asked: str | tuple[Mapping[str, str], ...] | None = None
    pictures: tuple[Any, ...] = field(default=(), repr=False)  # pictures of the row; a verifier gets none


@dataclass(frozen=True)
class Verdict:
    """A verifier's judgement of a response: reward, success, and the answer that it read."""

    reward: float  # read with reward_mode=dense, best 1
    success: bool  # right or not; reward_mode=sparse pays 1 for it
    # what was taken for the answer, in one spelling for all answers that are equal; "" if the response has none, None
    # if the verifier does not say. Two verdicts on different answers may be equal
    answer: str | None = field(default=None, compare=False)
    failures: int = field(default=0, compare=False)  # verifiers that gave no verdict on it


class Verifier(Protocol):
    """Interface of a verifier, which judges the response to a problem."""

    def __call__(self, problem: Problem, response: str) -> Verdict: ...
