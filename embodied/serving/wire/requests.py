"""Reads requests: from a map of keys and values to the observation that the policy takes, each field checked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from embodied.client import wire
from embodied.errors import RequestError, did_you_mean
from embodied.instructions import fields_of
from embodied.serving.keys import IMAGES, camera, keys_of
from embodied.serving.wire import pictures
from embodied.types import ArraySpec, EnvSpec

log = logging.getLogger(__name__)

OPTIONS = (wire.REQUEST_ID, wire.GREEDY, wire.DELAY_STEPS, wire.SESSION, wire.DRAW, wire.NOISE, wire.LEFT_OVER)
MOST_PROMPT = 4096  # characters of an instruction
MOST_NUMBER = 1 << 63  # exclusive upper bound for sessions and delays


@dataclass(frozen=True)
class Options:
    """Options of a request beside its observation."""

    request_id: int | str | None = None  # comes back with the answer
    greedy: bool | None = None  # None: as the server does
    delay_steps: int | None = None
    session: int | None = None
    draw: int | None = None  # names the noise of this request alone
    noise: np.ndarray | None = None  # random numbers of this request, finite, float32; None: drawn here
    left_over: np.ndarray | None = None  # actions that are left of the chunk before, float32 [n, A]


@dataclass(frozen=True)
class Question:
    """An observation with its instruction, as the policy takes it, and options of the request."""

    prompt: str
    fields: Mapping[str, np.ndarray]  # fields of EnvSpec.obs without pictures and instruction
    pictures: Sequence[np.ndarray] = ()  # picture of each camera, uint8 [H, W, 3]
    options: Options = field(default_factory=Options)


def unforeseen(error: Exception) -> RequestError:
    """Makes the error that a client gets for an unexpected exception of the server."""
    what = f"the server failed with {type(error).__name__}"
    return RequestError(what, "see the log of the server, which has the traceback")


class Draft:
    """A request whose pictures may still have to be decoded: each in a thread of its own, if there are as many.

    Args:
        pictures: of each camera, or what makes it.
        others: of the question, but its pictures.
    """

    def __init__(self, pictures: Sequence[np.ndarray | Callable[[], np.ndarray]], **others: Any) -> None:
        self._others = others
        self.left = {place: one for place, one in enumerate(pictures) if not isinstance(one, np.ndarray)}
        self._made: list[Any] = [*pictures]

    def decode(self, place: int) -> None:
        """Decodes the picture of camera ``place``. An error, also one that was not foreseen, is raised by
        :meth:`question`: whoever makes the last picture tells it, once."""
        try:
            self._made[place] = self.left[place]()
        except RequestError as error:
            self._made[place] = error
        except Exception as error:
            log.exception("a picture could not be read")
            self._made[place] = unforeseen(error)

    def question(self) -> Question:
        """Returns the request's observation, once all pictures are decoded.

        Raises:
            RequestError: that of the first picture that cannot be read.
        """
        for place in self.left:
            if isinstance(self._made[place], RequestError):
                raise self._made[place]
        return Question(pictures=tuple(self._made), **self._others)


class QuestionReader:
    """Converts requests into observations of an env, and checks them.

    Args:
        keys: those of the user's own (:mod:`.keys`).
        max_pixels: of a picture that is resized.
        resize: scale pictures of another size instead of refusing them.
    """

    def __init__(
        self, env: EnvSpec, keys: Mapping[str, str] | None = None, max_pixels: int = 1 << 24, resize: bool = False
    ) -> None:
        self.env, self.keys = env, keys_of(env, keys or {})
        self.renamed = dict(keys or {})  # the user's own alone
        self._max_pixels, self._resize = max_pixels, resize
        self._fields = {name: env.obs[name] for name in fields_of(env) if name != IMAGES}
        self._dtypes = {name: np.dtype(spec.dtype) for name, spec in self._fields.items()}
        self._cameras = [*map(camera, env.cameras)]
        _, height, width, _ = env.obs[IMAGES].shape if IMAGES in env.obs else (0, 0, 0, 0)
        self._size = (height, width)
        self._shape = (height, width, 3)

    def read(self, message: Mapping[str, Any], options: Options | None = None) -> Question:
        """Converts a request into an observation; arguments and errors as of :meth:`draft`."""
        draft = self.draft(message, options)
        for place in draft.left:
            draft.decode(place)
        return draft.question()

    def draft(self, message: Mapping[str, Any], options: Options | None = None) -> Draft:
        """Converts a request into an observation whose pictures may still have to be decoded.

        Args:
            options: what :func:`options_of` has found, where it was called already.

        Raises:
            RequestError: a field is missing, given twice, or has another shape or dtype than the env's spec says.
        """
        found = self._assigned(message)
        prompt = self._prompt(found)
        fields = {name: self._field(name, spec, found) for name, spec in self._fields.items()}
        options = options_of(message) if options is None else options
        pictures = self._pictures(found) if IMAGES in self.env.obs else ()
        return Draft(pictures, prompt=prompt, fields=fields, options=options)

    def _assigned(self, message: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
        """Maps each field that is filled to the key that fills it, and its value."""
        found: dict[str, tuple[str, Any]] = {}
        for key, value in message.items():
            filled = self.keys.get(key)
            if filled is None:
                continue
            if filled in found:
                raise RequestError(f"'{found[filled][0]}' and '{key}' both give '{filled}'", "send one of them")
            found[filled] = (key, value)
        missing = [name for name in (wire.PROMPT, *self._fields) if name not in found]
        if missing:
            self._missing(missing[0], message)
        return found

    def _missing(self, name: str, message: Mapping[str, Any]) -> None:
        near = did_you_mean(name, [str(key) for key in message if key not in self.keys])
        expected = sorted(key for key, filled in self.keys.items() if filled == name)
        raise RequestError(
            f"the request has no '{name}'; its keys are {', '.join(map(repr, [*message][:20])) or 'none'}.{near}",
            f"send it as {' or '.join(map(repr, expected))}, or start the server with --map KEY={name}",
        )

    def _prompt(self, found: Mapping[str, tuple[str, Any]]) -> str:
        key, value = found[wire.PROMPT]
        if not isinstance(value, str) or not value.strip() or len(value) > MOST_PROMPT:
            got = f"{len(value)} characters" if isinstance(value, str) else f"a {type(value).__name__}"
            raise RequestError(
                f"'{key}' is {got}, expected an instruction of 1 to {MOST_PROMPT} characters",
                "send a text such as 'put the cup on the plate'",
            )
        return value

    def _field(self, name: str, spec: ArraySpec, found: Mapping[str, tuple[str, Any]]) -> np.ndarray:
        key, value = found[name]
        array, wanted = _as_array(key, value), self._dtypes[name]
        if array.shape != spec.shape or not (array.dtype == wanted or _fits(array.dtype, wanted)):
            raise RequestError(
                f"'{key}' is {array.dtype} {list(array.shape)}, expected {spec.dtype} {list(spec.shape)} "
                f"(field '{name}' of the env)",
                "send what the env gives that the policy was trained in",
            )
        if array.dtype == wanted:
            given = array
        else:
            with np.errstate(over="ignore"):
                given = array.astype(wanted)
        if wanted.kind == "f" and not np.isfinite(given).all():
            raise RequestError(f"'{key}' has numbers that are not finite", "look after the sensor that they come from")
        if wanted.kind in "iu" and given is not array and not np.array_equal(given, array):
            raise RequestError(f"'{key}' has numbers that {wanted} cannot hold", "send smaller ones")
        return given

    def _pictures(self, found: Mapping[str, tuple[str, Any]]) -> list[np.ndarray | Callable[[], np.ndarray]]:
        given = [name for name in self._cameras if name in found]
        if IMAGES in found:
            key, value = found[IMAGES]
            if given:
                raise RequestError(f"'{key}' and '{found[given[0]][0]}' both give a picture", "send one of them")
            each = _each(key, value, self.env.obs[IMAGES])
            return [self._picture(f"{key}[{number}]", one) for number, one in enumerate(each)]
        missing = [name for name in self._cameras if name not in found]
        if missing:
            keys = sorted(key for key, filled in self.keys.items() if filled in (missing[0], IMAGES))
            raise RequestError(
                f"the request has no picture of the camera '{missing[0].removeprefix(f'{IMAGES}/')}'",
                f"send it as {' or '.join(map(repr, keys))}, or start the server with --map KEY={missing[0]}",
            )
        return [self._picture(*found[name]) for name in self._cameras]

    def _picture(self, key: str, value: Any) -> np.ndarray | Callable[[], np.ndarray]:
        """The picture if it is as the policy takes it, else what reads it."""
        if isinstance(value, np.ndarray) and value.shape == self._shape and value.dtype == np.uint8:
            return value
        return partial(pictures.read, value, key, self._size, self._max_pixels, self._resize)


def options_of(message: Mapping[str, Any]) -> Options:
    """Reads the options of a request.

    Raises:
        RequestError: an option is unknown or has another type.
    """
    for key in message:
        if key.startswith(wire.OURS) and key not in OPTIONS:
            raise RequestError(
                f"unknown key '{key}'.{did_you_mean(key, OPTIONS)}", f"known ones are {', '.join(OPTIONS)}"
            )
    identity, greedy = message.get(wire.REQUEST_ID), message.get(wire.GREEDY)
    if not (identity is None or isinstance(identity, str) or _is_whole(identity)):
        raise RequestError(f"{wire.REQUEST_ID} is a {type(identity).__name__}", "send a whole number or a text")
    if not (greedy is None or isinstance(greedy, bool | np.bool_)):
        raise RequestError(f"{wire.GREEDY} is {greedy!r:.40}, expected true or false", "send a bool")
    delay, session, draw = (_number(message, name) for name in (wire.DELAY_STEPS, wire.SESSION, wire.DRAW))
    identity = int(identity) if isinstance(identity, np.integer) else identity
    noise, left = _noise(message), _left_over(message)
    return Options(identity, None if greedy is None else bool(greedy), delay, session, draw, noise, left)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _number(message: Mapping[str, Any], name: str) -> int | None:
    value = message.get(name)
    if value is None:
        return None
    if not _is_whole(value) or not 0 <= value < MOST_NUMBER:
        raise RequestError(f"{name} is {value!r:.40}, expected a whole number of 0 or more", "send such a number")
    return int(value)


def _noise(message: Mapping[str, Any]) -> np.ndarray | None:
    value = message.get(wire.NOISE)
    if value is None:
        return None
    numbers = _as_array(wire.NOISE, value)
    if numbers.dtype != np.float32 or not np.isfinite(numbers).all():
        raise RequestError(
            f"{wire.NOISE} is {numbers.dtype} {list(numbers.shape)}, expected finite numbers, float32",
            "send numbers of the shape that the server's metadata tells (noise)",
        )
    return numbers


def _left_over(message: Mapping[str, Any]) -> np.ndarray | None:
    value = message.get(wire.LEFT_OVER)
    if value is None:
        return None
    with np.errstate(over="ignore"):
        actions = _as_array(wire.LEFT_OVER, value).astype(np.float32)
    if actions.ndim != 2 or not np.isfinite(actions).all():
        raise RequestError(
            f"{wire.LEFT_OVER} is {actions.dtype} {list(actions.shape)}, expected finite numbers [n, A]",
            "send what is left of the chunk before, in the env's units",
        )
    return actions


def _as_array(key: str, value: Any) -> np.ndarray:
    """The value as an array of numbers; lists of numbers will do."""
    if isinstance(value, np.ndarray):
        return value
    array = None
    if isinstance(value, bool | int | float | list | np.generic):
        try:
            array = np.asarray(value)
        except (ValueError, OverflowError):  # rows of different lengths
            array = None
    if array is None or array.dtype.kind not in "biuf":
        raise RequestError(
            f"'{key}' is a {type(value).__name__}, expected numbers", "send an array, or a list of numbers"
        )
    return array


def _fits(got: np.dtype, wanted: np.dtype) -> bool:
    """Returns whether one dtype may stand for another: whole numbers for any number, bools for bools alone."""
    kinds = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}
    return got.kind in kinds.get(wanted.kind, "")


def _each(key: str, value: Any, spec: ArraySpec) -> Sequence[Any]:
    """One value for each camera."""
    if isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim):
        if len(value) == spec.shape[0]:
            return [*value]
        got = f"{len(value)} pictures"
    else:
        got = f"{value.dtype} []" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    raise RequestError(
        f"'{key}' is {got}, expected {spec.dtype} {list(spec.shape)} or a list of {spec.shape[0]} pictures",
        "send the pictures of all cameras, in the order of the server's metadata",
    )
