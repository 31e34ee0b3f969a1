"""Variations of LIBERO-Plus in the simulator: what they share, what they change, and that nothing is left behind."""

import numpy as np
import pytest
from embodied.envs.libero import LiberoEnv
from embodied.envs.libero.build import build
from embodied.envs.libero.sharing import _OF_PROCESS
from embodied.envs.libero.simulator import TaskSimulator
from plus_package import ARM, OTHER, SAME, TASK, install, write_scene

from embodied.errors import AssetsMissingError
from embodied.types import Start

pytestmark = pytest.mark.sim
STILL = np.array([0, 0, 0, 0, 0, 0, -1], np.float32)


def make(kinds: list[str] | None = None) -> LiberoEnv:
    params = {"camera_names": ("agentview", "robot0_eye_in_hand"), "camera_heights": 64, "camera_widths": 64}
    env = LiberoEnv("libero_plus_spatial", kinds=kinds, skip_missing=True, init_params=params, max_cached_simulators=2)
    env.prepare()
    return env


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """One for all tests, with the scene of the task of light."""
    with pytest.MonkeyPatch.context() as patch:
        found = install(tmp_path_factory.mktemp("plus"), patch)
        write_scene(found, "light_dusk_0")
        yield found


@pytest.fixture(scope="module")
def varied(sim, package):
    env = make()
    yield env
    env.close()


def number(env: LiberoEnv, name: str) -> int:
    return [task.name for task in env._tasks].index(name)


def test_variations_share_a_scene_and_leave_nothing_behind(varied, look):
    env = varied
    names = [f"{TASK}_view_346_15_100_0_0_initstate_0", f"{TASK}_{SAME}_0_noise_3", f"{TASK}_{SAME}_11",
             f"{TASK}_language_1_{SAME}_0"]  # fmt: skip
    before, seen = len(_OF_PROCESS._shared), {}
    for name in [*names, *reversed(names)]:
        env.reset(Start(number(env, name), 2, 5))
        again = [look(env), env._current._physics(), look(env)["images"]]
        np.testing.assert_array_equal(again[0]["images"], again[2], "a second look is the same")
        np.testing.assert_equal(seen.setdefault(name, again), again, "whatever ran between")
    assert len(_OF_PROCESS._shared) == before + 1
    turned, noisy, posed, told = (seen[name] for name in names)
    pictures = [one[0]["images"] for one in (turned, noisy, posed, told)]
    physics = [one[1] for one in (turned, noisy, posed, told)]
    assert np.array_equal(physics[0], physics[3])
    assert np.array_equal(physics[1], physics[3])
    assert not np.array_equal(physics[2], physics[3]), "the arm was reset from elsewhere"
    assert not np.array_equal(pictures[0][0], pictures[3][0])
    assert not np.array_equal(pictures[1][0], pictures[3][0])
    assert np.array_equal(pictures[0][1], pictures[3][1]), "the camera in the hand stays"
    assert np.array_equal(pictures[1][1], pictures[3][1]), "and has no noise"


def test_noise_is_drawn_by_seed_and_step_and_is_part_of_the_state(varied, look):
    env = varied
    task = number(env, f"{TASK}_{SAME}_0_noise_3")
    env.reset(Start(task, 0, 1))
    first = look(env)["images"]
    env.step(STILL)
    state, second = env.get_state(), look(env)["images"]
    assert np.array_equal(env.frame(), second[0]), "a video shows what the policy sees"
    env.reset(Start(task, 0, 2))
    assert not np.array_equal(look(env)["images"][0], first[0])
    env.set_state(state)
    assert np.array_equal(look(env)["images"], second)


def test_an_arm_is_reset_as_by_a_scene_that_was_built_with_it(sim, package, monkeypatch):
    from libero.libero.envs.robots.mounted_panda import MountedPanda

    bddl = str(
        package / "bddl_files" / "libero_spatial" / f"{OTHER}.bddl"
    )  # a bowl on a stove that is placed at random
    simulator = TaskSimulator(bddl, make()._pictures)
    reset = simulator._reset_with(np.array(ARM))
    monkeypatch.setattr(MountedPanda, "init_qpos", property(lambda robot: np.array(ARM)))
    fresh = TaskSimulator(bddl, make()._pictures)._after_reset
    np.testing.assert_array_equal(reset["physics"], fresh["physics"])
    np.testing.assert_equal(reset["controller"], fresh["controller"])
    assert not np.array_equal(reset["physics"], simulator._after_reset["physics"])
    again = simulator._reset_with(np.array(ARM))
    np.testing.assert_array_equal(again["physics"], reset["physics"])


def test_a_scene_of_the_assets_is_built(varied, look):
    env = varied
    lit, plain = (number(env, f"{TASK}{end}") for end in ("_light_3", f"_language_1_{SAME}_0"))
    pictures = []
    for task in (plain, lit):
        env.reset(Start(task, 0, 0))
        pictures.append(look(env)["images"].astype(float))
    assert pictures[1][0].mean() != pytest.approx(pictures[0][0].mean(), abs=1), "another light"
    assert pictures[1][..., 0].mean() - pictures[0][..., 0].mean() > 5, "a redder one"


def test_a_scene_whose_files_are_gone_and_a_start_of_another_scene_are_named(sim, package):
    env = make(["light"])
    (package / "assets" / "scenes" / "tabletop_light_dusk_0.xml").unlink()
    with pytest.raises(AssetsMissingError, match=f"the task {TASK}_light_3 needs 1 files"):
        build(str(env._tasks[0].bddl_file), keep_assets=False)
    moved = make(["layout"])
    moved._init_states._known[0] = moved._init_states[0][:, :-1]
    with pytest.raises(
        AssetsMissingError, match="an initial state has 91 numbers, and the scene that was built needs 92"
    ):
        moved.reset(Start(0, 0, 0))
    moved.close()
