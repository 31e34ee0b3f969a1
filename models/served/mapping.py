"""The mapping between an env and a server that does not describe itself, read from YAML.

    request:                                  # key of a request: what fills it
      observation/image: {camera: agentview, rotate: 0, size: 224, resize: pad}
      observation/state: {field: state, slice: [0, 8]}
      prompt: {instruction: true}
      unnorm_key: {value: libero_spatial}
    actions:                                  # each may be left out
      take: 5                                 # actions that are executed of each answer
      scale: 1.0                              # a number, or one for each dimension
      gripper: {dim: -1, low: 0, high: 1, binarize: true, invert: true}

``size`` is pixels of a side; ``resize`` is ``pad`` (the picture keeps its shape, the rest is black) or ``stretch``.
``rotate`` turns by 0, 90, 180 or 270°, counter-clockwise. ``gripper`` reads numbers from ``low`` … ``high`` as −1 … 1,
then takes their sign, then negates them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from embodied.errors import ConfigError, SpecMismatchError, did_you_mean
from embodied.types import EnvSpec

FOLDER = Path(__file__).parent / "mappings"
PICTURE = ("camera", "rotate", "size", "resize")
SOURCES = {"camera": PICTURE, "field": ("field", "slice"), "instruction": ("instruction",), "value": ("value",)}
KEY = "actor.model.mapping"
Fill = Callable[[Mapping[str, np.ndarray], str], Any]
"""Gives the value of a key from an observation's fields and its instruction."""


@dataclass(frozen=True)
class Mapped:
    """A mapping that was read; ``shown`` is as it was written."""

    request: Mapping[str, Mapping[str, Any]]
    take: int | None = None
    scale: tuple[float, ...] = (1.0,)
    gripper: Mapping[str, Any] = field(default_factory=dict)
    shown: Mapping[str, Any] = field(default_factory=dict)

    def fills(self, env: EnvSpec) -> dict[str, Fill]:
        """Returns what fills each key of a request about an observation of ``env``.

        Raises:
            SpecMismatchError: the env has no such camera or field, or fewer numbers in it.
        """
        return {key: _fill(key, source, env) for key, source in self.request.items()}

    def actions(self, actions: np.ndarray) -> np.ndarray:
        """Returns actions [H, A] in the env's units: float32."""
        if self.scale == (1.0,) and not self.gripper:
            return actions.astype(np.float32)
        if len(self.scale) not in (1, actions.shape[1]):
            raise SpecMismatchError(
                f"{KEY}: actions.scale has {len(self.scale)} numbers, and an action has {actions.shape[1]}",
                f"give one number, or {actions.shape[1]}",
            )
        found = actions.astype(np.float64) * np.asarray(self.scale)
        if self.gripper:
            dim, low, high = self.gripper["dim"], self.gripper["low"], self.gripper["high"]
            if not -actions.shape[1] <= dim < actions.shape[1]:
                raise SpecMismatchError(
                    f"{KEY}: actions.gripper.dim is {dim}, and an action has {actions.shape[1]} numbers", "correct it"
                )
            grip = 2 * (found[:, dim] - low) / (high - low) - 1
            grip = np.sign(grip) if self.gripper["binarize"] else grip
            found[:, dim] = -grip if self.gripper["invert"] else grip
        return found.astype(np.float32)


def read(given: str | Mapping[str, Any] | None) -> Mapped | None:
    """Reads a mapping: the name of one that is ready (:func:`ready`), a YAML file, or the mapping itself; None: none.

    Raises:
        ConfigError: there is none such, or it says something that is not known.
    """
    if given is None:
        return None
    if not isinstance(given, str):
        return parse(given, KEY)
    import yaml

    file = Path(given) if given.endswith((".yaml", ".yml")) else FOLDER / f"{given}.yaml"
    try:
        text = file.read_text(encoding="utf-8")
        return parse(yaml.safe_load(text), f"{KEY} {given}")
    except FileNotFoundError as error:
        raise ConfigError(
            f"{KEY} is '{given}', and there is no such mapping or file.{did_you_mean(given, ready())}",
            f"give a file NAME.yaml, or one of {', '.join(ready())}",
        ) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{KEY} {file} cannot be read: {error}", "give a YAML file with a mapping") from error


def ready() -> list[str]:
    """Names of the mappings that come with this program."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


def parse(given: Any, where: str) -> Mapped:
    """Reads a mapping from plain values. Raises ConfigError for the first thing in it that is wrong."""
    known = _section(given, where, ("request", "actions"))
    request = known.get("request")
    if not isinstance(request, Mapping) or not request:
        raise ConfigError(f"{where} has no request", "say what fills each key of a request (docs/serving.md)")
    for key, source in request.items():
        _check_source(source, f"{where}: request.{key}")
    actions = _section(known.get("actions") or {}, f"{where}: actions", ("take", "scale", "gripper"))
    take = actions.get("take")
    if take is not None and not (_whole(take) and take > 0):
        raise ConfigError(f"{where}: actions.take is {take!r}", "give a whole number above 0")
    scale = actions.get("scale", 1.0)
    scales = scale if isinstance(scale, list) else [scale]
    if not scales or not all(_number(one) for one in scales):
        raise ConfigError(f"{where}: actions.scale is {scale!r}", "give a number, or a list of one for each dimension")
    gripper = actions.get("gripper")
    return Mapped(
        {str(key): dict(source) for key, source in request.items()}, take, tuple(map(float, scales)),
        {} if gripper is None else _gripper(gripper, f"{where}: actions.gripper"), dict(given),
    )  # fmt: skip


def _gripper(given: Any, where: str) -> dict[str, Any]:
    usual: dict[str, Any] = {"dim": -1, "low": -1.0, "high": 1.0, "binarize": False, "invert": False}
    found = usual | dict(_section(given, where, tuple(usual)))
    if not _whole(found["dim"]) or not all(isinstance(found[name], bool) for name in ("binarize", "invert")):
        raise ConfigError(f"{where} is {dict(given)}", "dim is a whole number, binarize and invert are true or false")
    if not (_number(found["low"]) and _number(found["high"]) and found["low"] < found["high"]):
        raise ConfigError(f"{where}: low {found['low']}, high {found['high']}", "give numbers, the lower one as low")
    return found


def _check_source(source: Any, where: str) -> None:
    kinds = [kind for kind in SOURCES if isinstance(source, Mapping) and kind in source]
    if len(kinds) != 1:
        raise ConfigError(f"{where} is {source!r}", f"give one of {', '.join(f'{{{kind}: …}}' for kind in SOURCES)}")
    _section(source, where, SOURCES[kinds[0]])
    if source.get("rotate", 0) not in (0, 90, 180, 270):
        raise ConfigError(f"{where}: rotate is {source['rotate']!r}", "give 0, 90, 180 or 270")
    if (size := source.get("size")) is not None and not (_whole(size) and 1 <= size <= 4096):
        raise ConfigError(f"{where}: size is {size!r}", "give the pixels of a side, e.g. 224")
    if source.get("resize", "pad") not in ("pad", "stretch") or ("resize" in source and size is None):
        raise ConfigError(f"{where}: resize is {source['resize']!r}", "give pad or stretch, and a size beside it")
    part = source.get("slice")
    if part is not None and not (isinstance(part, list) and len(part) == 2 and all(map(_whole, part))):
        raise ConfigError(f"{where}: slice is {part!r}", "give [FIRST, END], e.g. [0, 8]")


def _section(given: Any, where: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} is {given!r:.80}, expected a map", f"its keys are {', '.join(known)}")
    for name in given:
        if name not in known:
            raise ConfigError(
                f"{where} has the key '{name}'.{did_you_mean(str(name), known)}", f"its keys are {', '.join(known)}"
            )
    return given


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


def _fill(key: str, source: Mapping[str, Any], env: EnvSpec) -> Fill:
    if "value" in source:
        return lambda obs, instruction: source["value"]
    if "instruction" in source:
        return lambda obs, instruction: instruction
    if "camera" in source:
        return _picture_of(key, source, env)
    name, part = source["field"], source.get("slice")
    if name not in env.obs:
        raise SpecMismatchError(
            f"{KEY}: request.{key} is filled from the field '{name}', and the env has {', '.join(env.obs)}",
            "name one of these fields, or choose the env that the server's policy was trained for",
        )
    if part is None:
        return lambda obs, instruction: np.array(obs[name])
    first, end = part
    shape = env.obs[name].shape
    if not shape or not 0 <= first < end <= shape[0]:
        raise SpecMismatchError(
            f"{KEY}: request.{key} is filled from {name}[{first}:{end}], and the env's {name} has the shape "
            f"{list(shape)}",
            "correct the slice, or choose the env that the server's policy was trained for",
        )
    return lambda obs, instruction: np.array(obs[name][first:end])


def _picture_of(key: str, source: Mapping[str, Any], env: EnvSpec) -> Fill:
    camera = source["camera"]
    index = camera if _whole(camera) else env.cameras.index(camera) if camera in env.cameras else -1
    if not 0 <= index < len(env.cameras):
        raise SpecMismatchError(
            f"{KEY}: request.{key} is filled from the camera {camera!r}, and the env has "
            f"{', '.join(env.cameras) or 'no camera'}",
            "name one of the env's cameras, by name or by number from 0",
        )
    turns, size, stretch = source.get("rotate", 0) // 90, source.get("size"), source.get("resize") == "stretch"

    def picture(obs: Mapping[str, np.ndarray], instruction: str) -> np.ndarray:
        turned = np.ascontiguousarray(np.rot90(obs["images"][index], turns))
        if size is None or turned.shape[:2] == (size, size):
            return turned.copy()
        return resized(turned, size, stretch)

    return picture


def resized(picture: np.ndarray, size: int, stretch: bool = False) -> np.ndarray:
    """Resizes a picture uint8 [H, W, 3] to [size, size, 3], bilinearly and with antialiasing. Unless ``stretch``, it
    keeps its shape and stands in the middle of black."""
    from PIL import Image

    height, width = picture.shape[:2]
    ratio = max(width / size, height / size)
    wide, high = (size, size) if stretch else (max(1, int(width / ratio)), max(1, int(height / ratio)))
    small = np.asarray(Image.fromarray(picture).resize((wide, high), Image.Resampling.BILINEAR))
    if (high, wide) == (size, size):
        return small.copy()
    whole = np.zeros((size, size, 3), np.uint8)
    top, left = (size - high) // 2, (size - wide) // 2
    whole[top : top + high, left : left + wide] = small
    return whole
