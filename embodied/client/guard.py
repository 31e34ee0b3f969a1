"""A guard between a policy and a robot: no action leaves it that breaks a limit.

    guard = Guard.from_yaml("guard.yaml")
    guard.observed(observation)              # each time there is a new one
    robot.step(guard.check(action))          # each control step

``mode: clip`` gives the nearest action within the limits, ``mode: stop`` stops at the first one outside. Whatever the
mode, it stops when an action is not finite, when the last observation is too old, when no action meets all limits
(:mod:`embodied.client.limits`), and when it is told to (:meth:`Guard.stop`, e.g. without a server). Stopped means:
every :meth:`Guard.check` raises until :meth:`Guard.reset`; what brings the robot to a stand is the caller's.

Each intervention is a line of JSON: ``time`` (seconds of the wall clock), ``step``, ``what`` (the limits), ``wanted``,
``given`` (null when it stopped).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from embodied.client.guard_file import Keeps, read, read_file
from embodied.client.limits import broken, intervals, nearest, together
from embodied.errors import ConfigError, GuardStopError


class Guard:
    """Checks a robot's actions against limits, and clips or stops them.

    Args:
        keeps: the limits and how they are kept.
        log: file that interventions are appended to, in place of that of the limits; None = that one, if there is any.
        clock: seconds that only go forward, as ``taken_at`` of observations counts them.

    Raises:
        ConfigError: the log cannot be written.
    """

    def __init__(self, keeps: Keeps, log: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._keeps, self._limits, self._clock = keeps, keeps.limits, clock
        self._log = _open(log or keeps.log)
        self._enabled = keeps.enabled
        self.step = 0  # control steps so far
        self.interventions = 0
        self._why = ""  # it has stopped, if this is not empty
        self._forget()
        self._note("on" if self._enabled else "off: enabled is false")

    @classmethod
    def from_yaml(cls, path: Path | str, log: Path | None = None) -> Guard:
        """Makes a guard from a YAML file. Raises :class:`embodied.errors.ConfigError`: the file cannot be read, or asks
        for what cannot be."""
        return cls(read_file(Path(path)), log)

    @classmethod
    def from_map(cls, found: Mapping[str, Any], log: Path | None = None) -> Guard:
        """Makes a guard from the mapping that a guard file holds."""
        return cls(read(found), log)

    def _forget(self) -> None:
        self._position = np.full(self._limits.dim, np.nan)  # x, unit of an action
        self._motion = np.zeros(self._limits.dim)  # m of the control step before
        self._observed_at: float | None = None
        self._moved = False  # an action was given since the episode began

    # -- what it is told ---------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Begin an episode: the robot stands, and nothing was observed. Ends a stop."""
        if self._why:
            self._note("reset after a stop")
        self._why = ""
        self._forget()

    def off(self) -> None:
        """Switches the limits off: every action passes. Logged."""
        self._enabled = False
        self._note("off")

    def on(self) -> None:
        """Switches the limits on again. Logged."""
        self._enabled = True
        self._note("on")

    def observed(self, observation: Mapping[str, Any], taken_at: float | None = None) -> None:
        """Reads the robot's position and the observation's age from an observation.

        Args:
            taken_at: the guard's clock (``time.monotonic()``) when it was taken; None = now.

        Raises:
            ConfigError: the observation lacks the field that holds the position.
        """
        self._observed_at = self._clock() if taken_at is None else taken_at
        where = self._keeps.position
        if where is None:
            return
        values = observation.get(where.field)
        if values is None or np.ndim(values) != 1 or where.indices.max() >= len(values):
            raise ConfigError(
                f"the guard finds its position in {where.indices.tolist()} of the field '{where.field}', and the "
                f"observation has {'no such field' if values is None else f'shape {np.shape(values)} there'}",
                "correct position.field and position.indices in the guard's file",
            )
        measured = np.full(self._limits.dim, np.nan)
        measured[where.dims] = np.asarray(values, np.float64)[where.indices] / where.scale
        follows = ~self._limits.absolute | np.isnan(self._position)  # an absolute action follows the one before it
        self._position = np.where(follows, measured, self._position)

    # -- what it does ------------------------------------------------------------------------------------------------

    def check(self, action: np.ndarray) -> np.ndarray:
        """Returns the action that the robot may be given: float32 [A]. Call it once a control step.

        Raises:
            GuardStopError: the robot must be stopped, or was stopped before.
            ConfigError: the action has another number of dimensions than the limits.
        """
        wanted = np.asarray(action)
        if wanted.shape != (self._limits.dim,):
            raise ConfigError(
                f"an action has the shape {wanted.shape}, and the guard keeps limits of {self._limits.dim} dimensions",
                "give action.low and action.high in the guard's file as many numbers as an action has",
            )
        given = self._kept(wanted.astype(np.float64)) if self._enabled else wanted.astype(np.float32)
        self._follow(given)
        self.step += 1
        return given

    def stop(self, why: str, wanted: np.ndarray | None = None, fix: str = "") -> GuardStopError:
        """Stop: from now on :meth:`check` raises. Logged. Returns the error, for the caller to raise.

        Args:
            fix: what keeps it from happening again, where that is known.
        """
        if not self._why:
            self._why = why
            self._note(f"stop: {why}", wanted, None)
        return GuardStopError(
            f"the guard has stopped the robot at control step {self.step}: {self._why}",
            f"bring the robot to a stand and see why; {fix}Guard.reset() lets it move again",
        )

    def _kept(self, wanted: np.ndarray) -> np.ndarray:
        if self._why:
            raise self.stop(self._why)
        if not np.isfinite(wanted).all():
            raise self.stop("the action is not finite", wanted)
        self._check_observation(wanted)
        allowed = intervals(self._limits, self._position, self._motion)
        what = broken(wanted, allowed)
        if what and self._keeps.mode == "stop":
            raise self.stop(f"the action breaks {', '.join(what)}", wanted)
        given = nearest(wanted, together(allowed))
        if given is None:
            raise self.stop(f"no action meets all limits; the one that was wanted breaks {', '.join(what)}", wanted)
        if what:
            self._note(what, wanted, given)
        return given

    def _check_observation(self, wanted: np.ndarray) -> None:
        if self._observed_at is not None:
            age = self._clock() - self._observed_at
            if age > self._keeps.max_age_s:
                raise self._too_old(age, wanted)
        elif np.isfinite(self._keeps.max_age_s) or self._keeps.position is not None:
            raise self.stop("nothing was observed yet", wanted)
        where = self._keeps.position
        if where is not None and not np.isfinite(self._position[where.dims]).all():
            raise self.stop(f"the position in '{where.field}' is not finite", wanted)

    def _too_old(self, age: float, wanted: np.ndarray) -> GuardStopError:
        text = f"the last observation is {age:.3f} s old, at most {self._keeps.max_age_s:g}"
        if self._moved:
            return self.stop(text, wanted)
        return self.stop(
            f"the first answer came late: {text}", wanted,
            "ask once before the loop (client.infer(observation)), as a first answer takes longer than others; ",
        )  # fmt: skip

    def _follow(self, given: np.ndarray) -> None:
        """Note what the robot does now."""
        self._moved = True
        executed = given.astype(np.float64)
        moved = np.where(self._limits.absolute, executed - self._position, executed)
        self._motion = np.where(np.isfinite(moved), moved, 0.0)  # the first absolute action comes from nowhere
        self._position = np.where(self._limits.absolute, executed, self._position + executed)

    def _note(
        self, what: str | Sequence[str], wanted: np.ndarray | None = None, given: np.ndarray | None = None
    ) -> None:  # fmt: skip
        if wanted is not None:
            self.interventions += 1
        if self._log is None:
            return
        line = {"time": time.time(), "step": self.step, "what": [what] if isinstance(what, str) else list(what)}
        actions = {"wanted": _listed(wanted), "given": _listed(given)}
        print(json.dumps(line | actions), file=self._log, flush=True)

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()
            self._log = None


def _listed(action: np.ndarray | None) -> list[float | str] | None:
    """The numbers of an action for JSON, which has none that are not finite."""
    return None if action is None else [float(x) if np.isfinite(x) else str(x) for x in action]


def _open(log: Path | None) -> TextIO | None:
    if log is None:
        return None
    try:
        return log.open("a", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the guard's log {log} cannot be written: {error}", "give another file (log)") from error
