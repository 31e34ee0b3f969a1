"""Maps keys of a request to fields of the env (``EnvSpec.obs``). Keys differ from client to client.

=============================================  =========================================================================
key                                            fills
=============================================  =========================================================================
a field's own name, e.g. ``images``            that field
``images/CAMERA``                              the picture of that camera (``EnvSpec.cameras``)
``prompt``, ``instruction``                    the instruction
``observation/image``,                         the first camera's picture (clients of openpi)
``observation/exterior_image_1_left``
``observation/wrist_image``,                   the second camera's picture
``observation/wrist_image_left``
``observation/state``                          the field ``state``
``full_image``, ``image``                      the first camera's picture (clients of OpenVLA)
others with ``wrist`` in them, over REST       the second camera's picture, the third's, … in the order of the keys
=============================================  =========================================================================

``--map KEY=FIELD`` adds others; what it fills, no other key of a vla-eval observation fills. A key that fills nothing
is ignored, unless it begins with ``embodied/``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from embodied.client.wire import PROMPT
from embodied.errors import ConfigError, unknown_name
from embodied.instructions import fields_of
from embodied.types import EnvSpec

IMAGES = "images"
FIRST = ("observation/image", "observation/exterior_image_1_left", "full_image", "image")
SECOND = ("observation/wrist_image", "observation/wrist_image_left")


def camera(name: str) -> str:
    """Returns the name by which requests fill a camera's picture: ``images/NAME``."""
    return f"{IMAGES}/{name}"


def fillable(env: EnvSpec) -> list[str]:
    """Lists everything of an observation that a key of a request may fill."""
    return [PROMPT, *fields_of(env), *map(camera, env.cameras)]


def keys_of(env: EnvSpec, renamed: Mapping[str, str]) -> dict[str, str]:
    """Maps each key of a request to what of an observation it fills.

    Args:
        renamed: keys of the user's own.

    Raises:
        UnknownNameError: one of them fills something that the env does not have.
    """
    own = {name: name for name in fillable(env)}
    known = {"instruction": PROMPT, "observation/state": "state"}
    for names, number in ((FIRST, 0), (SECOND, 1)):
        if number < len(env.cameras):
            known |= dict.fromkeys(names, camera(env.cameras[number]))
    known = {key: field for key, field in known.items() if field in own}
    for field in renamed.values():
        if field not in own:
            raise unknown_name("field", field, own, "FIELD in --map KEY=FIELD")
    return {**known, **own, **renamed}


def parse(pairs: Sequence[str]) -> dict[str, str]:
    """Parses pairs: ``["cam_high=images/front"]`` → a mapping. Raises ConfigError if one is no pair."""
    found = {}
    for pair in pairs:
        key, sign, field = pair.partition("=")
        if not (key and sign and field):
            raise ConfigError(f"--map {pair}: expected KEY=FIELD", "e.g. --map observation/cam_high=images/front")
        found[key] = field
    return found


def in_order(env: EnvSpec, keys: Mapping[str, str], got: Sequence[str]) -> dict[str, str]:
    """Assigns the second camera, the third, and so on to unknown request keys that contain ``wrist``."""
    unknown = [key for key in got if key not in keys and "wrist" in key]
    return {key: camera(name) for key, name in zip(unknown, env.cameras[1:], strict=False)}
