"""The three ways in which users of other libraries write reward functions, told apart by the names of parameters.

| of | signature | gives |
|---|---|---|
| verl | ``f(data_source, solution_str, ground_truth, extra_info=None, **kwargs)`` | a number, or {"score": 1.0} |
| TRL | ``f(prompts, completions, **columns)``, each a list; here of one | [1.0]; [None] if it does not judge this one |
| Cosmos-RL | ``f(to_be_evaluated, reference, *args, **kwargs)`` | a number, or a tuple that begins with one |

With ``data.return_full_prompt`` there is the prompt as the policy reads it, besides: verl's functions find it as
``extra_info["full_prompts"]``, TRL's as a column ``full_prompt``, Cosmos-RL's as a parameter of that name.

A parameter that a function does not have is not passed to it. The mapping of a verl function may also say whether the
response is right ("acc"), and what its answer is ("pred").
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from embodied.errors import ConfigError, unknown_name

from ..failures import VerifierFailed
from ..verdict import Problem
from .answers import canonical

MARKS = {"verl": ("solution_str", "ground_truth"), "trl": ("completions",), "cosmos": ("to_be_evaluated",)}
"""Parameters that a function of each signature has."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Scored(NamedTuple):
    """The result of a user's reward function: reward, whether the answer is right, and the answer."""

    reward: float
    right: bool | None  # None: it does not say
    answer: str | None  # None: it does not say


def signature_of(function: Callable[..., Any], configured: str | None, where: str) -> str:
    """Determines the signature of a user's reward function: verl, trl or cosmos.

    Args:
        configured: take this one, whatever the names of the parameters are.
        where: file and function, for messages.

    Raises:
        ConfigError: the function fits none, or more than one.
    """
    if configured is not None:
        if configured not in MARKS:
            raise unknown_name("signature", configured, MARKS, "signature")
        return configured
    names = inspect.signature(function).parameters
    fitting = [name for name, marks in MARKS.items() if all(mark in names for mark in marks)]
    if len(fitting) != 1:
        raise ConfigError(
            f"{where}{inspect.signature(function)} has the parameters of "
            f"{' and of '.join(fitting) or 'no known library'}",
            "name its parameters (data_source, solution_str, ground_truth, extra_info) as for verl, (prompts, "
            "completions, **columns) as for TRL, or (to_be_evaluated, reference) as for Cosmos-RL; or set signature to "
            f"one of: {', '.join(MARKS)}",
        )
    return fitting[0]


PROMPT = {"trl": "prompts", "cosmos": "prompt"}
"""Parameter that is given the prompt as the data has it; verl's functions have none."""
FULL_PROMPT = {"verl": "extra_info", "trl": "full_prompt", "cosmos": "full_prompt"}
"""Parameter in which a function finds the prompt as the policy reads it."""


def arguments(
    signature: str, problem: Problem, response: str, answer_key: str, prompt: bool = True, full: str | None = None
) -> Arguments:  # fmt: skip
    """Makes the arguments for a reward function of this signature: by position and by name.

    Args:
        answer_key: name under which TRL's functions get the answer.
        prompt: hand over the prompt as the data has it.
        full: the prompt as the policy reads it, to be handed over; None = it is not.

    Raises:
        ConfigError: verl's ``extra_info`` is no mapping, and ``full`` is to stand in it.
    """
    if signature == "verl":
        fields = problem.fields
        told = {"data_source": fields.get("data_source", ""), "extra_info": _extra(fields.get("extra_info"), full)}
        return (), {"solution_str": response, "ground_truth": problem.answer, **told}
    name, given = PROMPT[signature], problem.prompt if isinstance(problem.prompt, str) else _messages(problem.prompt)
    if signature == "cosmos":
        more = {**({name: given} if prompt else {}), **({} if full is None else {"full_prompt": full})}
        return (response, problem.answer), more
    talk = not isinstance(problem.prompt, str)
    completion = [{"role": "assistant", "content": response}] if talk else response
    columns = {name: [value] for name, value in {answer_key: problem.answer, **problem.fields}.items()}
    columns |= {name: [given]} if prompt else {}
    columns |= {} if full is None else {"full_prompt": [full]}
    return (), {**columns, "completions": [completion]}


def _extra(given: Any, full: str | None) -> Any:
    """verl's ``extra_info``, with the full prompt in it where one is handed over."""
    if full is None:
        return given
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(
            f"data.return_full_prompt is true, and the column extra_info holds {_shown(given)}, in which "
            "'full_prompts' cannot stand",
            "give the data a mapping in extra_info, or leave that column out",
        )
    return {**(given or {}), "full_prompts": full}


def _messages(conversation: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    return [dict(message) for message in conversation]


def accepted(function: Callable[..., Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Selects the named arguments that the function has parameters for."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(named)
    return {name: value for name, value in named.items() if name in parameters}


def score(signature: str, value: Any) -> Scored:
    """Converts what a user's reward function returned.

    Raises:
        VerifierFailed: there is no finite number.
    """
    got, right, answer = value, None, None
    if signature == "verl" and isinstance(value, Mapping):
        if "score" not in value:
            raise VerifierFailed(f"it gave a mapping with {sorted(map(str, value))}, expected 'score' in it")
        got, right = value["score"], None if value.get("acc") is None else bool(value["acc"])
        answer = _answer(value["pred"]) if "pred" in value else None
    elif signature == "cosmos" and isinstance(value, tuple):
        got = value[0] if value else None
    elif signature == "trl":
        got = _only(value)
    return Scored(_number(got, value), right, answer)


def _answer(given: Any) -> str:
    return "" if given is None else canonical(str(given))


def _only(value: Any) -> Any:
    """The one entry of a list; 0 for None, which is TRL's "this function does not judge this one"."""
    try:
        entries = list(value)
    except TypeError:
        entries = []
    if isinstance(value, str | Mapping) or len(entries) != 1:
        raise VerifierFailed(f"it gave {_shown(value)} for one completion, expected a list of one number")
    return 0.0 if entries[0] is None else entries[0]


def _number(got: Any, value: Any) -> float:
    if not isinstance(got, str | bytes) and got is not None:
        try:
            found = float(got)
        except (TypeError, ValueError, OverflowError):
            found = math.nan
        if math.isfinite(found):
            return found
    raise VerifierFailed(f"it gave {_shown(value)}, expected a finite number")


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {str(value)[:80]!r}"
