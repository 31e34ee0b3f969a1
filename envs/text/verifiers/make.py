"""Makes a verifier of its options."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from embodied.errors import ConfigError, did_you_mean, unknown_name

from ..failures import Tolerant
from ..verdict import Problem
from .boxed import Boxed
from .choice import Choice
from .custom import Custom
from .exact import Exact
from .format import Format
from .gsm8k import Gsm8k
from .guarded import Guarded
from .integer_after import IntegerAfter
from .reasoning_gym import ReasoningGym
from .remote import Remote
from .symbolic import Symbolic
from .weighted import Part, Weighted
from .zero import Zero

VERIFIERS: Mapping[str, type[Any]] = {
    "boxed": Boxed, "gsm8k": Gsm8k, "math": Symbolic, "exact": Exact, "integer_after": IntegerAfter, "choice": Choice,
    "format": Format, "reasoning_gym": ReasoningGym, "custom": Custom, "remote": Remote,
    "zero": Zero,
}  # fmt: skip
COMMON = ("name", "weight", "decides", "on_error", "failure_reward", "scale", "clip_min", "clip_max")
GUARDED = ("verify_timeout_s",)
"""Options of those verifiers only whose time has no bound."""
ON_ERROR = ("zero", "raise")


def make_verifier(parts: Sequence[Mapping[str, Any]], key: str = "verifier") -> Weighted:
    """Make the weighted sum of verifiers, e.g. of
    ``[{"name": "boxed"}, {"name": "format", "pattern": "<think>.*</think>", "weight": 0.1}]``.

    Options of each part, beside those of its class:

    - ``weight`` (1): factor of its reward
    - ``decides`` (false): its success is that of the whole; without one, that of the first part is
    - ``on_error`` (zero): what happens with a response that a verifier fails on (:class:`~.failures.Tolerant`)
    - ``failure_reward`` (0): reward of a response without a verdict
    - ``scale`` (none): a right response is worth this and a wrong one as much less than nothing, whatever its score
    - ``clip_min``, ``clip_max`` (none): least and most that its weighted reward counts
    - ``verify_timeout_s`` (10): time limit of ``math``, ``format``, ``reasoning_gym`` and ``custom``
      (:class:`~.guarded.Guarded`)

    It starts no process before the first response comes.

    Args:
        key: of the configuration where the parts stand, for messages.

    Raises:
        UnknownNameError: a verifier is not known.
        ConfigError: an option is not known, is missing, or cannot be.
        AssetsMissingError: a package is missing.
    """
    if isinstance(parts, str | Mapping) or not parts or not all(isinstance(part, Mapping) for part in parts):
        raise ConfigError(f"{key} is {parts!r}, expected a list of verifiers", f"set {key} to e.g. [{{name: boxed}}]")
    deciding = [index for index, part in enumerate(parts) if part.get("decides", False)]
    if len(deciding) > 1:
        raise ConfigError(f"{key}: {len(deciding)} parts have decides: true", "leave it with one of them")
    made = [_part(dict(part), f"{key}[{index}]") for index, part in enumerate(parts)]
    return Weighted(made, deciding[0] if deciding else 0)


def _part(options: dict[str, Any], key: str) -> Part:
    name = options.get("name")
    if name not in VERIFIERS:
        raise unknown_name("verifier", str(name), VERIFIERS, f"{key}.name")
    kind = VERIFIERS[str(name)]
    own = {option: value for option, value in options.items() if option not in COMMON + GUARDED}
    _check_names(kind, options, own, f"{key} ({name})")
    timeout_s = _finite(options.get("verify_timeout_s", 10.0), f"{key}.verify_timeout_s")
    if timeout_s <= 0:
        raise ConfigError(
            f"{key}.verify_timeout_s is {timeout_s:g}, expected more than 0", f"set {key}.verify_timeout_s=10"
        )
    on_error = options.get("on_error", "zero")
    if on_error not in ON_ERROR:
        raise unknown_name("answer to an error", str(on_error), ON_ERROR, f"{key}.on_error")
    try:
        verifier = kind(**own)
    except TypeError as error:
        raise ConfigError(f"{key} ({name}) has an option of another type: {error}", f"correct {key}") from error
    reads = _reads(verifier)
    if not verifier.bounded:
        verifier = Guarded(verifier, timeout_s)
    failure_reward = _finite(options.get("failure_reward", 0.0), f"{key}.failure_reward")
    tolerant = Tolerant(verifier, _label(str(name), own), on_error, failure_reward, reads)
    limited = verifier if isinstance(verifier, Guarded | Remote) else None
    scale = None if options.get("scale") is None else _finite(options["scale"], f"{key}.scale")
    return Part(tolerant, _finite(options.get("weight", 1.0), f"{key}.weight"), limited, scale, *_bounds(options, key))


def _reads(verifier: Any) -> Callable[[Problem], object] | None:
    """What tells at once whether the answer of a problem can be read; None if only a verdict does, which may last."""
    if verifier.bounded and not isinstance(verifier, Remote):
        return lambda problem: verifier(problem, "")
    return verifier.reads if isinstance(verifier, Symbolic) else None


def _bounds(options: Mapping[str, Any], key: str) -> tuple[float, float]:
    """The least and the most that a reward counts."""
    bounds = {"clip_min": -math.inf, "clip_max": math.inf}
    given = {name: options[name] for name in bounds if options.get(name) is not None}
    bounds |= {name: _finite(value, f"{key}.{name}") for name, value in given.items()}
    if bounds["clip_min"] > bounds["clip_max"]:
        raise ConfigError(
            f"{key}.clip_min {bounds['clip_min']:g} is above clip_max {bounds['clip_max']:g}",
            f"exchange {key}.clip_min and {key}.clip_max",
        )
    return bounds["clip_min"], bounds["clip_max"]


def _check_names(kind: type[Any], options: Mapping[str, Any], own: Mapping[str, Any], what: str) -> None:
    parameters = inspect.signature(kind).parameters
    known = (*COMMON, *(() if kind.bounded else GUARDED), *parameters)
    for option in options:
        if option not in known:
            raise ConfigError(
                f"{what} has no option '{option}'.{did_you_mean(option, known)}", f"its options are: {', '.join(known)}"
            )
    for option, parameter in parameters.items():
        if parameter.default is parameter.empty and option not in own:
            raise ConfigError(f"{what} needs the option '{option}'", f"add {option} to it")


def _finite(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{key} is {value!r}, expected a number", f"set {key} to a number")
    return float(value)


def _label(name: str, own: Mapping[str, Any]) -> str:
    """``custom (my_rewards.py, score)``: the name, and which one of its kind."""
    told = [str(own[option]) for option in ("path", "function", "url") if option in own]
    return f"{name} ({', '.join(told)})" if told else name
