"""What is read from an env's values, and how."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied import instructions
from embodied.errors import SpecMismatchError, did_you_mean
from embodied.types import ArraySpec, Obs, StepResult

from ..pictures import Form
from ..settings import KEY
from ..sources import RENDER, Rule, Source, entries, listed


@dataclass(frozen=True)
class ResolvedMapping:
    """The resolved mapping from an env's values to observation, success and progress."""

    images: tuple[tuple[Source, Form], ...]
    size: tuple[int, int]  # H, W of a picture
    turned: bool  # turns pictures by 180°
    state: tuple[Source, ...]
    state_dim: int
    instruction: Source | None
    instruction_bytes: int
    success: Rule
    progress: Source
    low: float  # progress 0 …
    high: float  # … and 1; both 0 = as it is
    awaited: tuple[tuple[str, Source], ...] = ()  # key and source of what the trial has not seen: it is the user's word
    features: tuple[Source, ...] = ()  # progress features
    feature_dim: int = 0

    @property
    def obs(self) -> dict[str, ArraySpec]:
        """Fields of an observation."""
        fields = {}
        if self.images:
            fields["images"] = ArraySpec((len(self.cameras), *self.size, 3), "uint8")
        if self.state_dim:
            fields["state"] = ArraySpec((self.state_dim,), "float32")
        if self.instruction is not None:
            fields[instructions.FIELD] = ArraySpec((self.instruction_bytes,), "uint8")
        return fields

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of the pictures."""
        names = ((source.name.removeprefix("obs."), form.count) for source, form in self.images)
        return tuple(name if count == 1 else f"{name}.{number}" for name, count in names for number in range(count))

    @property
    def renders(self) -> bool:
        """Whether an observation needs the env's renderer."""
        return any(source.name == RENDER for source, _ in self.images)

    def write(self, values: Mapping[str, Any], out: Obs) -> None:
        """Writes an observation from the env's values into ``out``.

        Args:
            values: of the env, by root, with ``render`` if it is needed.

        Raises:
            SpecMismatchError: an entry is missing or has another shape than at first, or a number that is not finite.
        """
        if self.images:
            for camera, picture in enumerate(self.pictures(values)):
                out["images"][camera] = picture
        if self.state_dim:
            parts = [_numbers(source, values) for source in self.state]
            numbers = _joined(parts, self.state_dim, "state")
            if not np.isfinite(numbers).all():
                raise _not_finite(self.state, parts)
            out["state"][:] = numbers
        if self.instruction is not None:
            instructions.write(str(_read(self.instruction, values)), out[instructions.FIELD], cut=True)

    def pictures(self, values: Mapping[str, Any]) -> Iterator[np.ndarray]:
        """Yields the pictures of all cameras, resized and turned as configured: uint8 [H, W, 3] each."""
        for source, form in self.images:
            for picture in form.pictures(np.asarray(_read(source, values)), source.name):
                array = picture[::-1, ::-1] if self.turned else picture
                yield array if array.shape[:2] == self.size else _resized(array, self.size)

    def frame(self, values: Mapping[str, Any], rendered: np.ndarray | None) -> np.ndarray:
        """Returns a picture for a video: the rendered one, the first of the observation, or a grey one."""
        if rendered is not None:
            return np.ascontiguousarray(rendered[::-1, ::-1]) if self.turned else rendered
        if self.images:
            return next(self.pictures(values))
        return np.full((256, 256, 3), 128, np.uint8)

    def solves(self, values: Mapping[str, Any], ended: bool) -> bool:
        """Says whether a step has solved the task.

        Args:
            ended: whether it was the last one of an episode of the env's own.
        """
        return (ended or not self.success.at_end) and self.success.holds(values)

    def result_of(self, values: Mapping[str, Any], success: bool, end_on_success: bool) -> StepResult:
        """Says a step's result. Only what ends the task terminates; a limit of the env's own truncates.

        Raises:
            SpecMismatchError: as :meth:`progress_of`.
        """
        ends = values["terminated"] or (success and end_on_success)
        return StepResult(self.progress_of(values, success), ends, success, truncated=values["truncated"])

    def progress_of(self, values: Mapping[str, Any], success: bool) -> float:
        """Reads the env's measure of progress; of a range, 1 where the task is solved. 0 if the entry is missing.

        Raises:
            SpecMismatchError: it is not finite.
        """
        try:
            got = float(np.asarray(self.progress.read(values)).reshape(-1)[0])
        except KeyError:
            got = self.low
        if self.low != self.high:
            got = 1.0 if success else float(np.clip((got - self.low) / (self.high - self.low), 0.0, 1.0))
        if not math.isfinite(got):
            raise SpecMismatchError(
                f"{KEY}.progress reads {self.progress.name}, which is {got}, expected a finite number",
                f"correct the env; or end the episode before, or give another reward, in a wrapper ({KEY}.wrappers); "
                f"or let {KEY}.progress read something else",
            )
        return got

    def features_of(self, values: Mapping[str, Any]) -> np.ndarray:
        """Reads the progress features, float32 [F].

        Raises:
            SpecMismatchError: an entry is missing or has another shape than at first.
        """
        return _joined([_numbers(source, values) for source in self.features], self.feature_dim, "progress_features")

    def check_end(self, values: Mapping[str, Any]) -> None:
        """Checks, at the end of an episode, that entries which the user named and the probe never saw are there.

        Raises:
            SpecMismatchError: it is not there.
        """
        for key, source in self.awaited:
            if not source.is_in(values):
                there = entries("info", values["info"])
                raise SpecMismatchError(
                    f"{key} names {source.name}, and an episode has ended without it."
                    f"{did_you_mean(source.name, there)} Its last info has {listed(there)}",
                    f"correct {key}; or let the env, or a wrapper of {KEY}.wrappers, give it with the last step of "
                    f"each episode; or write {source.name}? if a missing one counts as false, or as no progress",
                )


def _read(source: Source, values: Mapping[str, Any]) -> Any:
    """What an observation needs. Raises :class:`SpecMismatchError` if it is not there."""
    try:
        return source.read(values)
    except KeyError:
        raise SpecMismatchError(
            f"{source.name} is not in every observation, as the mapping has it",
            f"let the env, or a wrapper of {KEY}.wrappers, give it with each reset() and step(); or leave it out of "
            f"{KEY}.state, {KEY}.images and {KEY}.progress_features",
        ) from None


def _numbers(source: Source, values: Mapping[str, Any]) -> np.ndarray:
    """The numbers of an entry: float32 [N]."""
    value = _read(source, values)
    try:
        return np.asarray(value, np.float32).reshape(-1)
    except (TypeError, ValueError):
        raise SpecMismatchError(
            f"{source.name} of an observation is a {type(value).__name__}, expected numbers",
            f"correct the env, or leave {source.name} out of {KEY}.state and {KEY}.progress_features",
        ) from None


def _joined(parts: Sequence[np.ndarray], size: int, key: str) -> np.ndarray:
    numbers = np.concatenate(parts)
    if len(numbers) != size:
        raise SpecMismatchError(
            f"the {key} has {len(numbers)} numbers, expected {size} as in the first observation",
            f"leave entries whose shape changes out of {KEY}.{key}, or pad them with a wrapper",
        )
    return numbers


def _not_finite(sources: Sequence[Source], parts: Sequence[np.ndarray]) -> SpecMismatchError:
    name, numbers = next(
        (source.name, part) for source, part in zip(sources, parts, strict=True) if not np.isfinite(part).all()
    )
    first = int(np.flatnonzero(~np.isfinite(numbers))[0])
    return SpecMismatchError(
        f"{name} of an observation has the number {numbers[first]} (index {first} of {len(numbers)}), expected finite "
        "ones: no policy can act on it",
        f"correct the env; or replace the number or end the episode before in a wrapper ({KEY}.wrappers); or leave "
        f"{name} out of {KEY}.state",
    )


def _resized(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.fromarray(picture).resize((size[1], size[0]), Image.Resampling.BOX))
