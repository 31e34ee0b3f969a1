"""What is kept of files between compositions is what they hold, and nobody changes it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from embodied.schema.compose.compose import compose
from embodied.schema.compose.hydra_files import compose_files


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
    for seed in (111, 222, 111):
        write(file, f"# @package _global_\nrunner: {{seed: {seed}}}\n")
        seeds.append(composed(folder, "experiment=mine")["runner"]["seed"])
    assert seeds == [111, 222, 111]


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
