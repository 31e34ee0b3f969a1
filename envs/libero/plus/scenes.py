"""The scenes of LIBERO-Plus: what a BDDL file needs that LIBERO has not, and how LIBERO is taught it.

The package has a class for each scene that it lights or paints anew, and for each new object. All of them name files
alone, so they are read from its sources and made here, of LIBERO's classes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embodied.errors import AssetsMissingError

from ..files import read_literal, read_text
from .files import INSTALL, PlusPaths, put_assets


@dataclass(frozen=True)
class Scene:
    """Needs of a BDDL file beyond LIBERO's files."""

    problem: str  # in small letters
    base: str  # LIBERO's problem that it is made of; equal to ``problem`` where nothing is changed
    xml: Path | None = None  # the arena; None: LIBERO's
    styles: dict[str, str] = field(default_factory=dict)  # floor_style, wall_style → the package's name of a texture
    textures: dict[str, str] = field(default_factory=dict)  # floor, wall → file of the style
    objects: dict[str, Path] = field(default_factory=dict)  # category that LIBERO has not → its model

    @property
    def missing(self) -> list[Path]:
        """Lists files of assets that are not there."""
        needed = [*([self.xml] if self.xml else []), *self.objects.values()]
        if self.xml:  # which names its textures by ``../textures``
            needed += [self.xml.parent.parent / "textures" / name for name in self.textures.values()]
        return [file for file in needed if not file.is_file()]


BASES = ("libero_tabletop", "libero_floor", "libero_kitchen_tabletop", "libero_living_room_tabletop",
         "libero_study_tabletop")  # fmt: skip
_SUFFIX = "_manipulation"


@functools.cache
def problem_of(bddl: Path) -> str:
    """Reads the problem's name in a BDDL file, in small letters."""
    found = re.search(r"\(problem\s+([^\s()]+)\s*\)", read_text(bddl, INSTALL))
    if found is None:
        raise AssetsMissingError(f"{bddl} names no problem", f"reinstall it: {INSTALL}")
    return found[1].lower()


def scene(paths: PlusPaths, bddl: Path) -> Scene:
    """Finds what a BDDL file needs. Raises :class:`AssetsMissingError` if the package does not know its scene."""
    problem = problem_of(bddl)
    base = next((f"{name}{_SUFFIX}" for name in BASES if problem.startswith(f"{name}{_SUFFIX}")), None)
    if base is None:
        raise AssetsMissingError(f"{bddl} names the unknown problem {problem}", f"reinstall it: {INSTALL}")
    known, categories = _objects(paths.package), _categories(bddl)
    objects = {name: paths.asset(known[name]) for name in categories if name in known}
    if problem == base:
        return Scene(problem, base, objects=objects)
    problems = _problems(paths.package / "envs" / "problems" / f"{base}.py")
    if problem not in problems:
        raise AssetsMissingError(f"{bddl} names the unknown problem {problem}", f"reinstall it: {INSTALL}")
    xml, styles = problems[problem]
    files = _textures(paths.package / "envs" / "arenas" / "style.py")
    parts = {part.removesuffix("_style"): style for part, style in styles.items()}
    textures = {part: files[part][style] for part, style in parts.items() if style in files[part]}
    return Scene(problem, base, paths.asset(xml or _BASE_XML[base]), styles, textures, objects)


_BASE_XML = {
    "libero_tabletop_manipulation": "scenes/libero_tabletop_base_style.xml",
    "libero_floor_manipulation": "scenes/libero_floor_base_style.xml",
    "libero_kitchen_tabletop_manipulation": "scenes/libero_kitchen_tabletop_base_style.xml",
    "libero_living_room_tabletop_manipulation": "scenes/libero_living_room_tabletop_base_style.xml",
    "libero_study_tabletop_manipulation": "scenes/libero_study_base_style.xml",
}


@functools.cache
def _problems(file: Path) -> dict[str, tuple[str | None, dict[str, str]]]:
    """Of each problem in a file of the package: its arena's file, and its styles."""
    return {name.lower(): (xml, styles) for name, xml, styles in _classes_of(file)}


def _classes_of(file: Path) -> Iterator[tuple[str, str | None, dict[str, str]]]:
    for text in re.split(r"^class ", read_text(file, INSTALL), flags=re.M)[1:]:
        name = re.match(r"\w+", text)
        xml = re.search(r'"scene_xml":\s*"([^"]+)"', text)
        styles = re.findall(r'"(floor_style|wall_style)":\s*"([^"]+)"', text)
        if name is not None:
            yield name[0], xml[1] if xml else None, dict(styles)


@functools.cache
def _textures(file: Path) -> dict[str, dict[str, str]]:
    """Files of textures by part (floor or wall) and style; parts have styles of one name."""
    return {part: read_literal(file, f"{part.upper()}_STYLE", INSTALL) for part in ("floor", "wall")}


@functools.cache
def _objects(package: Path) -> dict[str, str]:
    """Models of the objects that the package adds, by category."""
    text = read_text(package / "envs" / "objects" / "custom_objects.py", INSTALL)
    found = re.findall(r'^class (\w+)\(CustomObjects\):(?:\n(?!class ).*)*?f?"assets/([^"]+)"', text, re.M)
    return {_category(name): model for name, model in found}


def _category(name: str) -> str:
    """The category that LIBERO derives from the name of an object's class."""
    return "_".join(re.sub(r"([A-Z0-9])", r" \1", name).split()).lower()


def _categories(bddl: Path) -> set[str]:
    text = read_text(bddl, INSTALL).lower()
    return {name for part in re.findall(r"\(:objects([^()]*)\)", text) for name in re.findall(r"-\s*(\S+)", part)}


# -- in the worker ---------------------------------------------------------------------------------------------------


def teach(paths: PlusPaths, bddl: Path) -> None:
    """Registers what a BDDL file needs with the LIBERO that this process has imported.

    Raises:
        AssetsMissingError: files are not there.
    """
    from libero.libero.envs.bddl_base_domain import TASK_MAPPING
    from libero.libero.envs.regions import REGION_SAMPLERS

    found = scene(paths, bddl)
    if found.missing:
        raise without(bddl.stem, found.missing, paths)
    for category, model in found.objects.items():
        _register_object(category, model)
    if found.problem not in TASK_MAPPING:
        TASK_MAPPING[found.problem] = _problem_class(TASK_MAPPING[found.base], found)
        REGION_SAMPLERS[found.problem] = REGION_SAMPLERS[found.base]


def without(task: str, missing: list[Path], paths: PlusPaths) -> AssetsMissingError:
    """The error for a task whose files are not there."""
    return AssetsMissingError(
        f"the task {task} needs {len(missing)} files of LIBERO-Plus's assets that are not there, the first: "
        f"{missing[0]}",
        put_assets(paths),
    )


def _problem_class(base: type, found: Scene) -> type:
    """Makes LIBERO's environment with another arena. LIBERO checks that its name is that of the problem."""
    from libero.libero.envs.arenas import style

    for part, file in found.textures.items():
        style.STYLE_MAPPING[part].setdefault(found.styles[f"{part}_style"], file)

    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        given = {"scene_xml": str(found.xml), "scene_properties": dict(found.styles)}
        base.__init__(self, *args, **{**kwargs, **given})  # type: ignore[misc]

    return type(found.problem, (base,), {"__init__": begin})


def _register_object(category: str, model: Path) -> None:
    """Adds an object of the package's to LIBERO's. Its initial state says where it is, so it is placed upright."""
    from robosuite.models.objects import MujocoXMLObject

    from libero.libero.envs.base_object import OBJECTS_DICT

    if category in OBJECTS_DICT:
        return

    def begin(self: Any, name: str = category, **_: Any) -> None:
        joints = [{"type": "free", "damping": "0.0005"}]
        MujocoXMLObject.__init__(
            self, str(model), name=name, joints=joints, obj_type="all", duplicate_collision_geoms=False
        )
        self.category_name, self.object_properties = category, {"vis_site_names": {}}
        self.rotation, self.rotation_axis = (0.0, 0.0), "z"

    OBJECTS_DICT[category] = type(category, (MujocoXMLObject,), {"__init__": begin, "_get_object_subtree": _subtree})


def _subtree(self: Any) -> Any:
    """Reads an object whose body lies one level higher than robosuite expects, too."""
    from robosuite.models.objects import MujocoXMLObject

    body = self.worldbody.find("./body[@name='object']")
    if body is None or self.worldbody.find("./body/body[@name='object']") is not None:
        return MujocoXMLObject._get_object_subtree(self)
    outer = body.makeelement("body", {})
    outer.append(body)
    self.worldbody.append(outer)
    found = MujocoXMLObject._get_object_subtree(self)
    self.worldbody.remove(outer)
    return found
