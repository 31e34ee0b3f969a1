"""What is kept of files between compositions is what they hold, and nobody changes it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_module
from omegaconf import OmegaConf

from embodied.schema.compose import read_once
from embodied.schema.compose.compose import compose
from embodied.schema.compose.hydra_files import compose_files, files_in_order


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("experiment", "protocol"):
        (tmp_path / name).mkdir()
    return tmp_path


def composed(folder: Path, *overrides: str) -> dict[str, Any]:
    return compose_files(list(overrides), "train", [str(folder)])


def write(file: Path, text: str) -> None:
    """Writes a file that has the same size and time each time, so that its text alone tells that it is another."""
    file.write_text(text, encoding="utf-8")
    os.utime(file, (1, 1))


def test_a_file_that_changes_is_read_anew(folder):
    file = folder / "experiment" / "mine.yaml"
    seeds = []
    for seed in (111, 222, 111, 111):
        write(file, f"# @package _global_\nrunner: {{seed: {seed}}}\n")
        seeds.append(composed(folder, "experiment=mine")["runner"]["seed"])
    assert seeds == [111, 222, 111, 111]


def test_the_files_of_a_trace_are_those_that_the_last_text_chooses(folder):
    file, found = folder / "experiment" / "mine.yaml", []
    for name in ("grpo", "rloo", "grpo", "grpo"):
        write(file, f"# @package _global_\ndefaults:\n  - override /algorithm: {name}\n  - _self_\n")
        values = ("env.train.seed=3", "++runner.seed=2")
        trail = compose(["experiment=mine", *values], "train", [str(folder)]).trail
        order = [*files_in_order(trail.expanded, "train", trail.config_dirs, trail.sources)]
        assert order == [*files_in_order([*trail.expanded, "env.eval.seed=4"], "train", [str(folder)], trail.sources)]
        assert (file, "") in order
        found.append(next(one.stem for one, _ in order if one.parent.name == "algorithm"))
    assert found == ["grpo", "rloo", "grpo", "grpo"]


def test_a_file_with_another_s_text_goes_where_its_own_name_says(folder):
    for name in ("one", "two"):
        write(folder / "protocol" / f"{name}.yaml", "sets: {}\n")
    write(folder / "experiment" / "one.yaml", "sets: {}\n")
    assert composed(folder, "protocol=one")["protocol"]["sets"] == {}
    assert composed(folder, "experiment=one")["experiment"] == {"sets": {}}


def test_a_file_in_two_folders_is_that_of_the_folder_that_is_asked(tmp_path):
    for seed in (1, 2):
        (file := tmp_path / str(seed) / "experiment" / "mine.yaml").parent.mkdir(parents=True)
        write(file, f"# @package _global_\nrunner: {{seed: {seed}}}\n")
    assert [composed(tmp_path / str(seed), "experiment=mine")["runner"]["seed"] for seed in (1, 2)] == [1, 2]


def test_overrides_and_changes_of_one_composition_are_not_in_the_next(folder):
    write(
        folder / "experiment" / "mine.yaml",
        "# @package _global_\ndefaults:\n  - override /protocol: openvla_oft\n  - _self_\nrunner: {tags: [a]}\n",
    )
    before = composed(folder, "experiment=mine")
    overridden = composed(folder, "experiment=mine", "runner.tags=[b]", "+runner.more.deep=1", "~protocol")
    overridden["runner"]["tags"].append("c")
    overridden["hydra"]["run"]["dir"] = "elsewhere"
    assert overridden["runner"]["more"] == {"deep": 1}
    again = composed(folder, "experiment=mine")
    assert again == before
    assert again["hydra"]["overrides"] == before["hydra"]["overrides"]


def test_the_defaults_are_not_changed_by_a_composition():
    before = compose([]).resolved
    compose(["runner.seed=77", "runner.output_dir=/elsewhere", "cluster.num_nodes=1", "hydra.run.dir=there"])
    assert compose([]).resolved == before


def test_a_file_that_comes_before_another_is_taken_as_long_as_it_is_there(tmp_path):
    folders = [tmp_path / name for name in ("first", "second")]
    for seed, folder in enumerate(folders, start=1):
        (folder / "experiment").mkdir(parents=True)
        write(folder / "experiment" / "mine.yaml", f"# @package _global_\nrunner: {{seed: {seed}}}\n")
    first = folders[0] / "experiment" / "mine.yaml"
    text, seeds = first.read_text(encoding="utf-8"), []
    for there in (False, True, False):
        first.unlink() if not there else write(first, text)
        seeds.append(compose_files(["experiment=mine"], "train", [*map(str, folders)])["runner"]["seed"])
    assert seeds == [2, 1, 2]


def test_a_choice_that_depends_on_the_environment_is_made_anew(folder, monkeypatch):
    text = "defaults:\n  - override /protocol: ${oc.env:WHICH}\n  - _self_\n"
    write(folder / "experiment" / "mine.yaml", f"# @package _global_\n{text}")
    for name in ("one", "two"):
        write(folder / "protocol" / f"{name}.yaml", f"name: {name}\n")
        monkeypatch.setenv("WHICH", name)
        assert composed(folder, "experiment=mine", "++runner.seed=3")["protocol"]["name"] == name


VALUES = ("++runner.seed=4", "++env.train.more={a: 1}", "++env.train.more.b=${runner.seed}", "++actor.optim.lr=2")


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("train", VALUES),
        ("train", ("++runner.seed=3", "experiment=quickstart_libero", *VALUES, "hydra.run.dir=there")),
        ("train", ("++runner.seed=3", "+runner={seed: 5, more: 1}", "++runner.max_epochs=2")),
        ("eval", ("env@env.eval=libero_10", "protocol=openvla_oft", "++env.eval.episodes_per_task=2")),
        ("sft", ("experiment=sft", "~runner.max_epochs", "+runner.max_epochs=3")),
        ("train", ("~runner.nothing", "++runner.seed=2")),
        ("train", ("++runner.seed=1,2",)),
        ("train", ("experiment=nothing", "++runner.seed=2")),
        ("train", ("+experiment.seed=2", "runner.unknown=3")),
    ],
)
def test_a_composition_is_hydra_s_own_key_by_key_and_word_by_word(name, overrides):
    def made(by: Any) -> Any:
        with initialize_config_module("embodied.config", version_base="1.3"):
            try:
                config = by()
            except Exception as error:  # noqa: BLE001
                return type(error), str(error)
            return json.dumps(OmegaConf.to_container(config, resolve=False)), config._metadata.flags

    expected = made(lambda: hydra_compose(name, [*overrides], return_hydra_config=True))
    for _ in range(2):
        assert made(lambda: read_once.compose(name, overrides)) == expected


def test_the_folder_of_the_command_is_the_current_one(tmp_path, monkeypatch):
    compose_files([], "train", [])
    monkeypatch.chdir(tmp_path)
    assert compose_files([], "train", [])["hydra"]["runtime"]["cwd"] == str(tmp_path)


def test_choices_are_merged_once_and_values_set_each_time(folder, monkeypatch):
    write(folder / "experiment" / "mine.yaml", "# @package _global_\nrunner: {seed: 333}\n")
    made: list[list[str]] = []
    by_hydra = read_once.hydra_compose
    monkeypatch.setattr(
        read_once, "hydra_compose", lambda name, given, **how: made.append(given) or by_hydra(name, given, **how)
    )
    for seed in (1, 2, 3):
        assert composed(folder, "experiment=mine", f"++runner.seed={seed}")["runner"]["seed"] == seed
    assert len(made) == 1


def test_a_text_is_parsed_once(folder, monkeypatch):
    write(folder / "experiment" / "mine.yaml", "# @package _global_\nrunner: {seed: 333}\n")
    composed(folder, "experiment=mine")
    parsed: list[str] = []
    load = OmegaConf.load
    monkeypatch.setattr(OmegaConf, "load", lambda file: parsed.append(file.name) or load(file))
    composed(folder, "experiment=mine", "runner.seed=4")
    assert parsed == []
    write(folder / "experiment" / "mine.yaml", "# @package _global_\nrunner: {seed: 444}\n")
    composed(folder, "experiment=mine")
    assert [Path(name).name for name in parsed] == ["mine.yaml"]
