"""What an env says only when an episode ends, as Stable-Baselines3 asks for: the trial's last episode is played on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .sources import Source, deep_copy, entries, tells_success

SUCCESS = ("info.is_success", "info.success", "info.final_info.is_success", "info.final_info.success")
"""Names that envs use, in the order in which they are looked for."""
_STEPS, _TIME_S = 1000, 3.0


class Env(Protocol):
    """Interface of what a probe plays: one env, or several copies."""

    @property
    def steps(self) -> Sequence[Mapping[str, Any]]:
        """Values that sources may read after the last step (``obs``, ``info``, ``reward``), of each copy."""
        ...

    @property
    def over(self) -> bool:
        """Whether every episode has ended."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class ProbedEnv:
    """An env that a probe made, with functions that reset and step it."""

    env: Env
    reset: Callable[[], Any]
    step: Callable[[], Any]


def play_on(facts: Mapping[str, Any], tried: ProbedEnv) -> dict[str, Any]:
    """Plays a probed env's episode to its end, if that comes soon, and adds what only later steps show to the facts.

    Args:
        facts: the facts so far.

    Returns:
        The facts that change: ``late``, ``whole``, ``silent``. None do if the env fails.
    """
    until, seen = time.monotonic() + _TIME_S, []
    try:
        tried.reset()
        for _ in range(_STEPS):
            if tried.env.over or time.monotonic() > until:
                break
            tried.step()
            seen += [{"info": deep_copy(values["info"])} for values in tried.env.steps]
        late = {name: kind for step in seen for name, kind in entries("info", step["info"]).items()}
    except Exception:  # noqa: BLE001 (a run that comes so far says what is wrong)
        return {}
    new = {name: kind for name, kind in late.items() if name not in facts["entries"]}
    told = {name for name in SUCCESS if name in late} - set(silent_of(seen))
    silent = [name for name in dict.fromkeys((*facts["silent"], *silent_of(seen))) if name not in told]
    return {"late": new, "whole": tried.env.over, "silent": tuple(silent)}


def silent_of(steps: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Lists entries that are named like success (:data:`SUCCESS`) and do not say by themselves whether a
    task is solved."""
    silent = []
    for name in SUCCESS:
        values = []
        for step in steps:
            try:
                values.append(Source(name).read(step))
            except KeyError:
                continue
        if values and not tells_success(values):
            silent.append(name)
    return tuple(silent)
