"""Which values of a Gymnasium env are pictures, state, instruction, success and progress; checked against the facts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied import instructions
from embodied.errors import ConfigError, SpecMismatchError, did_you_mean
from embodied.types import ArraySpec, Obs

from .facts import Entries, GymFacts
from .settings import KEY
from .simulator import check_picture
from .sources import OF_A_STEP, RENDER, TEXT, Rule, Source, listed

_SUCCESS = ("info.is_success", "info.success")  # names that envs use


@dataclass(frozen=True)
class Wanted:
    """The mapping as the configuration has it. None = found out (:func:`mapping_of`)."""

    images: Sequence[str] | None = None
    image_size: int | Sequence[int] | None = None
    rotate_images: bool = False
    state: Sequence[str] | None = None
    instruction_from: str | None = None
    instruction_bytes: int = 256
    success: str | None = None
    progress: str = "return"
    progress_range: Sequence[float] | None = None


@dataclass(frozen=True)
class Mapped:
    """What is read from the env's values, and how."""

    images: tuple[Source, ...]
    size: tuple[int, int]  # H, W of a picture
    turned: bool  # by 180°
    state: tuple[Source, ...]
    state_dim: int
    instruction: Source | None
    instruction_bytes: int
    success: Rule
    progress: Source
    low: float  # progress 0 …
    high: float  # … and 1; both 0 = as it is

    @property
    def obs(self) -> dict[str, ArraySpec]:
        """Fields of an observation."""
        fields = {}
        if self.images:
            fields["images"] = ArraySpec((len(self.images), *self.size, 3), "uint8")
        if self.state_dim:
            fields["state"] = ArraySpec((self.state_dim,), "float32")
        if self.instruction is not None:
            fields[instructions.FIELD] = ArraySpec((self.instruction_bytes,), "uint8")
        return fields

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of the pictures."""
        return tuple(source.name.removeprefix("obs.") for source in self.images)

    @property
    def renders(self) -> bool:
        """Whether an observation needs the env's renderer."""
        return any(source.name == RENDER for source in self.images)

    def write(self, values: Mapping[str, Any], out: Obs) -> None:
        """Writes an observation.

        Args:
            values: of the env, by root, with ``render`` if it is needed.

        Raises:
            SpecMismatchError: an entry has another shape than at first, or a number that is not finite.
        """
        for camera, source in enumerate(self.images):
            out["images"][camera] = self.picture(source.read(values), source.name)
        if self.state_dim:
            parts = [np.asarray(source.read(values), np.float32).reshape(-1) for source in self.state]
            numbers = np.concatenate(parts)
            if len(numbers) != self.state_dim:
                raise SpecMismatchError(
                    f"the state has {len(numbers)} numbers, expected {self.state_dim} as in the first observation",
                    f"leave entries whose shape changes out of {KEY}.state, or pad them with a wrapper",
                )
            if not np.isfinite(numbers).all():
                raise _not_finite(self.state, parts)
            out["state"][:] = numbers
        if self.instruction is not None:
            instructions.write(str(self.instruction.read(values)), out[instructions.FIELD], cut=True)

    def picture(self, picture: Any, name: str) -> np.ndarray:
        """Brings a picture to the size and side that is asked for: uint8 [H, W, 3]."""
        array = check_picture(picture, name)
        array = array[::-1, ::-1] if self.turned else array
        return array if array.shape[:2] == self.size else _resized(array, self.size)

    def frame(self, values: Mapping[str, Any], rendered: np.ndarray | None) -> np.ndarray:
        """A picture for a video: the rendered one, the first of the observation, or a grey one."""
        if rendered is not None:
            return np.ascontiguousarray(rendered[::-1, ::-1]) if self.turned else rendered
        if self.images:
            source = self.images[0]
            return self.picture(source.read(values), source.name)
        return np.full((256, 256, 3), 128, np.uint8)

    def progress_of(self, values: Mapping[str, Any], success: bool) -> float:
        """The env's own measure of progress; of a range, 1 where the task is solved. 0 if the entry is missing.

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


def mapping_of(wanted: Wanted, facts: GymFacts) -> Mapped:
    """Settles what is left open, and checks the rest.

    Raises:
        ConfigError: an entry is not there or is of another kind; the message lists those that are.
    """
    images = _images(wanted, facts)
    shapes = [_shape_of(source, facts) for source in images]
    size = _size(wanted, shapes)
    state = _state(wanted, facts, images)
    dims = [_dims(source, facts.entries) for source in state]
    instruction = None
    if wanted.instruction_from is not None:
        instruction = _entry(wanted.instruction_from, f"{KEY}.instruction_from", facts, (TEXT,))
    low, high = _range(wanted.progress_range)
    return Mapped(
        images, size, wanted.rotate_images, state, sum(dims), instruction, wanted.instruction_bytes,
        _success(wanted, facts), _number(Source.of(wanted.progress, f"{KEY}.progress"), f"{KEY}.progress", facts),
        low, high,
    )  # fmt: skip


def _images(wanted: Wanted, facts: GymFacts) -> tuple[Source, ...]:
    key = f"{KEY}.images"
    if wanted.images is None:
        return tuple(
            Source(name) for name, kind in facts.entries.items() if name.startswith("obs") and _is_picture(kind)
        )
    _check_list(key, wanted.images, "[render]")
    found = []
    for text in wanted.images:
        source = Source.of(text, key)
        if source.name == RENDER:
            if facts.frame is None:
                raise ConfigError(
                    f"{key} names render, and the env renders no picture: {facts.no_frame}",
                    "install what the env renders with (e.g. pip install 'gymnasium[classic-control]' for pygame), or "
                    "name pictures of the observation",
                )
        elif not _is_picture(kind := _known(source, key, facts)):
            raise ConfigError(
                f"{key} names {text}, which is {kind[1]} {kind[0]}, expected uint8 (H, W, 3)",
                f"name some of: {_pictures(facts)}; a wrapper can bring others into this form",
            )
        found.append(source)
    return tuple(found)


def _is_picture(kind: tuple[tuple[int, ...], str]) -> bool:
    shape, dtype = kind
    return dtype == "uint8" and len(shape) == 3 and shape[2] == 3


def _pictures(facts: GymFacts) -> str:
    names = [name for name, kind in facts.entries.items() if _is_picture(kind)]
    return ", ".join([*names, *([RENDER] if facts.frame else [])]) or "no picture is there"


def _shape_of(source: Source, facts: GymFacts) -> tuple[int, ...]:
    shape = facts.frame if source.name == RENDER else facts.entries[source.name][0]
    assert shape is not None
    return shape[:2]


def _size(wanted: Wanted, shapes: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    if wanted.image_size is not None:
        given = wanted.image_size
        sizes = [given, given] if isinstance(given, int) else list(given)
        if len(sizes) != 2 or not all(isinstance(side, int) and 4 <= side <= 4096 for side in sizes):
            raise ConfigError(
                f"{KEY}.image_size is {given!r}, expected pixels from 4 to 4096", f"set {KEY}.image_size=64 or [H,W]"
            )
        return sizes[0], sizes[1]
    if len(set(shapes)) > 1:
        raise ConfigError(
            f"the pictures of {KEY}.images have different sizes: {', '.join(map(str, shapes))}",
            f"set {KEY}.image_size and env.eval.image_size to the one that all are brought to",
        )
    return (shapes[0][0], shapes[0][1]) if shapes else (0, 0)


def _state(wanted: Wanted, facts: GymFacts, images: Sequence[Source]) -> tuple[Source, ...]:
    key = f"{KEY}.state"
    if wanted.state is not None:
        _check_list(key, wanted.state, "[obs]")
        return tuple(_entry(text, key, facts, ()) for text in wanted.state)
    taken = {source.name for source in images}
    return tuple(
        Source(name)
        for name, kind in facts.entries.items()
        if name.startswith("obs") and name not in taken and kind[1] != TEXT and not _is_picture(kind)
    )


def _dims(source: Source, entries: Entries) -> int:
    size = int(np.prod(entries[source.name][0], dtype=np.int64))
    return size if source.part is None else len(range(size)[source.part])


def _success(wanted: Wanted, facts: GymFacts) -> Rule:
    key = f"{KEY}.success"
    if wanted.success is not None:
        rule = Rule.of(wanted.success, key)
        _number(rule.source, key, facts)
        return rule
    for name in _SUCCESS:
        if name in facts.entries:
            return Rule(Source(name))
    if facts.threshold is not None:
        return Rule(Source("return"), ">=", facts.threshold)
    raise ConfigError(
        "the env does not say when it is solved: it has neither info.is_success nor info.success nor a registered "
        f"reward threshold. It has {listed(facts.entries)}",
        f"set {key} and env.eval.success to an entry (info.KEY), to terminated, or to a rule such as 'return>=200' or "
        "'reward>=0.9'",
    )


def _number(source: Source, key: str, facts: GymFacts) -> Source:
    if source.name not in OF_A_STEP and (source.name == RENDER or _known(source, key, facts)[1] == TEXT):
        raise ConfigError(f"{key} names {source.name}, which is no number", f"there are: {listed(facts.entries)}")
    return source


def _entry(text: str, key: str, facts: GymFacts, dtypes: tuple[str, ...]) -> Source:
    source = Source.of(text, key)
    kind = _known(source, key, facts)
    if (kind[1] == TEXT) != (TEXT in dtypes):
        wanted = "text" if dtypes else "numbers"
        raise ConfigError(
            f"{key} names {text}, which is {kind[1]} {kind[0]}, expected {wanted}",
            f"there are: {listed(facts.entries)}",
        )
    return source


def _known(source: Source, key: str, facts: GymFacts) -> tuple[tuple[int, ...], str]:
    if source.name not in facts.entries:
        raise ConfigError(
            f"{key} names {source.name}, which the env does not have.{did_you_mean(source.name, facts.entries)}",
            f"there are: {listed(facts.entries)}",
        )
    return facts.entries[source.name]


def _range(given: Sequence[float] | None) -> tuple[float, float]:
    if given is None:
        return 0.0, 0.0
    numbers = [float(number) for number in given] if not isinstance(given, str) else []
    if len(numbers) != 2 or numbers[0] == numbers[1]:
        raise ConfigError(
            f"{KEY}.progress_range is {given!r}, expected two different numbers",
            f"set {KEY}.progress_range=[0,10]: what stands for no progress, and what for a solved task",
        )
    return numbers[0], numbers[1]


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


def _check_list(key: str, got: Any, example: str) -> None:
    if isinstance(got, str):
        raise ConfigError(f"{key} is {got!r}, expected a list", f"set {key}={example}")


def _resized(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.fromarray(picture).resize((size[1], size[0]), Image.Resampling.BOX))
