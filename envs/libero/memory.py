"""Frees what MuJoCo keeps of a build. Its C library has functions for that which its Python package does not call."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from ..shared.memory import trim

_FREES = {
    "mj_freeLastXML": "the description of the scene that was built last, about 400 MB",
    "mj_getCache": "decoded textures and meshes, about 330 MB",
    "mj_clearCache": "decoded textures and meshes, about 330 MB",
}


@functools.cache
def library() -> ctypes.CDLL:
    """Opens MuJoCo's C library, which mujoco's Python package links."""
    import mujoco

    return ctypes.CDLL(mujoco._functions.__file__)


def function(name: str, result: Any = None) -> Any:
    """Returns a function of MuJoCo's by name, whose arguments are addresses; None if this version has none."""
    found = getattr(library(), name, None)
    if found is not None:
        found.restype = result
    return found


def unknown_functions() -> str | None:
    """Says which functions this version of MuJoCo lacks, and what then stays in memory; None if it has all."""
    missing = [name for name in _FREES if function(name) is None]
    kept = " and ".join(dict.fromkeys(_FREES[name] for name in missing))
    return f"this mujoco has no {', '.join(missing)}: a worker keeps {kept}" if missing else None


def free_description() -> None:
    """Frees the description from which the last model was compiled. The model stays."""
    free = function("mj_freeLastXML")
    if free is not None:
        free()
        trim()


def free_assets() -> None:
    """Empties MuJoCo's cache of decoded textures and meshes. The next build decodes them again, in 2 CPU seconds."""
    cache, clear = function("mj_getCache", ctypes.c_void_p), function("mj_clearCache")
    if cache is not None and clear is not None:
        clear(ctypes.c_void_p(cache()))
        trim()
