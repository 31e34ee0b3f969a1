"""Frees what MuJoCo keeps of a build. Its C library has functions for that which its Python package does not call."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np

from embodied.errors import ConfigError
from embodied.lib.memory import trim

from ..shared.memory import release, unreserve

_FREES = {
    "mj_freeLastXML": "the description of the scene that was built last, about 400 MB",
    "mj_getCache": "decoded textures and meshes, about 330 MB",
    "mj_clearCache": "decoded textures and meshes, about 330 MB",
    "mj_copyData": "a simulator for each of its env slots",
}


@cache
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


@contextmanager
def explained(task: str) -> Iterator[None]:
    """Says what helps where the system gives no memory for a task.

    Raises:
        ConfigError: within it there was not enough.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, MemoryError) and "allocate" not in str(error):
            raise
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            why, fix = "", "lower env.num_workers or env.train.max_cached_simulators, or close other programs"
        else:
            why = f"; this process may have {limit / 1e9:.3g} GB of addresses, and MuJoCo reserves 2.7 for each task"
            fix = "ulimit -v unlimited, or as root ulimit -Hv unlimited; little of what is reserved is used"
        raise ConfigError(f"the system gives no memory for the task {task}: {error}{why}", fix) from error


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


def unreserved(data: Any) -> Any:
    """Makes the system count of the memory that an ``MjData`` reserves, 1.3 GB in LIBERO, only what it uses, some 10
    kB. Otherwise it refuses to fork a process that has built tasks whose memory could outgrow the machine's.

    Returns:
        The same object.
    """
    contacts = data.contact.dist.ctypes.data  # MuJoCo's reserve begins with them, and holds nothing else between calls
    unreserve(contacts, int(data.narena), int(data.maxuse_arena))
    return data


def copy_data(model: Any, source: Any, target: Any) -> None:
    """Copies the whole of one ``MjData`` of a model into another, computed values included."""
    copy = function("mj_copyData", ctypes.c_void_p)
    copy(*(ctypes.c_void_p(part._address) for part in (target, model, source)))


_OF_MESHES = {  # (first, count) of a mesh → arrays of its own part each
    ("mesh_vertadr", "mesh_vertnum"): ("mesh_vert", "mesh_polymapadr", "mesh_polymapnum"),
    ("mesh_normaladr", "mesh_normalnum"): ("mesh_normal",),
    ("mesh_texcoordadr", "mesh_texcoordnum"): ("mesh_texcoord",),
    ("mesh_faceadr", "mesh_facenum"): ("mesh_face", "mesh_facenormal", "mesh_facetexcoord"),
    ("mesh_polyadr", "mesh_polynum"): ("mesh_polynormal", "mesh_polyvertadr", "mesh_polyvertnum"),
    ("mesh_bvhadr", "mesh_bvhnum"): ("bvh_child", "bvh_nodeid", "bvh_aabb"),
}
_SURFACE_SENSORS = ("mjSENS_RANGEFINDER", "mjSENS_GEOMDIST", "mjSENS_GEOMNORMAL", "mjSENS_GEOMFROMTO")
_LISTS = (  # fields: first and count of a mesh's vertices or polygons; first and count of each one in the last field
    ("mesh_vertadr", "mesh_vertnum", "mesh_polymapadr", "mesh_polymapnum", "mesh_polymap"),
    ("mesh_polyadr", "mesh_polynum", "mesh_polyvertadr", "mesh_polyvertnum", "mesh_polyvert"),
)


def release_drawn(model: Any) -> None:
    """Returns the memory pages of meshes that only pictures need to the system, once they are uploaded: in LIBERO 19 of
    20 triangles. Physics never reads them. Such a model must not be copied, saved or uploaded again."""
    parts = [part for mesh in _drawn_meshes(model) for part in _parts_of(model, mesh)]
    for name in {name for name, _, _ in parts}:
        array = getattr(model, name)
        for begin, end in _joined((begin, end) for array_name, begin, end in parts if array_name == name):
            release(array[begin:end])


def _drawn_meshes(model: Any) -> np.ndarray:
    """Numbers of the meshes that no geom collides with, and no sensor or plugin could read."""
    import mujoco

    sensors = mujoco.mjtSensor
    surfaces = [int(getattr(sensors, name)) for name in _SURFACE_SENSORS if hasattr(sensors, name)]
    if model.nplugin or model.nflex or np.isin(model.sensor_type, surfaces).any():
        return np.zeros(0, np.int64)
    solid = (model.geom_contype | model.geom_conaffinity) > 0
    solid[model.pair_geom1] = solid[model.pair_geom2] = True
    return np.setdiff1d(np.arange(model.nmesh), model.geom_dataid[solid])


def _parts_of(model: Any, mesh: int) -> Iterator[tuple[str, int, int]]:
    """Names of arrays with the part [begin, end) that belongs to a mesh."""
    for (first, count), names in _OF_MESHES.items():
        if not hasattr(model, first):
            continue  # a mujoco before 3.3 has no polygons, nor what leads from vertices to them
        begin = int(getattr(model, first)[mesh])
        for name in filter(partial(hasattr, model), names):
            yield name, begin, begin + int(getattr(model, count)[mesh])
    for first, count, part_first, part_count, name in _LISTS:
        if not hasattr(model, part_first):
            continue
        begin = int(getattr(model, first)[mesh])
        owners = slice(begin, begin + int(getattr(model, count)[mesh]))
        firsts, counts = getattr(model, part_first)[owners], getattr(model, part_count)[owners]
        if firsts.size:
            yield name, int(firsts.min()), int((firsts + counts).max())


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Joins ranges that touch: pages are given back as a whole."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if joined and joined[-1][1] == begin:
            begin = joined.pop()[0]
        joined.append((begin, end))
    return joined
