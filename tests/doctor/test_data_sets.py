"""``python -m embodied.tools.doctor data=PATH``: a data set is read whole, and each fault of it is said."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embodied.data.checking import stored, survey
from embodied.doctor.checks import data_sets
from embodied.doctor.findings import Finding
from embodied.observe.terminal.console import NullConsole
from embodied.schema.compose.compose import compose_unchecked
from embodied.tools import demos, doctor

sys.path.append(str(Path(__file__).parents[1] / "data"))
from foreign_lerobot import CAMERA, at, each, info, picture, picture_bytes, put, rename_action

FOLDERS = [str(Path(__file__).parents[1] / "config")]
ENV = ["env=fake", "env.num_workers=1", "env.train.horizon=60", "runner.seed=3"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "set"
    assert demos.main([*ENV, "--config-dir", *FOLDERS, "episodes=4", f"demos.path={folder}"]) == 0
    return folder


@pytest.fixture
def folder(recorded, tmp_path) -> Path:
    for part in ("meta", "data"):
        shutil.copytree(recorded / part, tmp_path / "copy" / part)
    return tmp_path / "copy"


def look(folder: Path, *overrides: str, every: int = 1) -> dict[str, Finding]:
    """The worst finding of each kind."""
    given = [f"data={folder}", *overrides]
    config = compose_unchecked(given, "sft", FOLDERS).config
    found: dict[str, Finding] = {}
    for one in data_sets.look(config, given, every, NullConsole().progress):
        name = one.name.removeprefix(f"demonstrations {folder}").removeprefix(": ")
        if name not in found or found[name].status == "ok":
            found[name] = one
    return found


def test_nothing_is_said_against_a_set_that_was_recorded_here(recorded):
    found = look(recorded, "env=fake")
    steps = sum(len(pq.read_table(file)) for file in (recorded / "data").rglob("*.parquet"))
    names = ("episodes", "instructions", "env", "fps", "pictures", "statistics", "duplicates")
    assert {name: one.status for name, one in found.items()} == {
        **dict.fromkeys(names, "ok"),
        "constant actions": "warn",
    }
    assert found["episodes"].found.startswith(f"4 of 4 are whole: {steps} steps")
    assert found["pictures"].found.startswith(f"those of {steps} steps were decoded: [2, 16, 16, 3]")
    constant = ", ".join(f"{place} (always 0)" for place in range(2, 7))  # the expert moves in a plane
    assert found["constant actions"].found.endswith(constant)


def test_pictures_of_some_steps_alone_if_that_is_asked_for(recorded):
    lengths = [len(pq.read_table(file)) for file in (recorded / "data").rglob("*.parquet")]
    said = look(recorded, every=3)["pictures"].found
    assert said.startswith(f"those of {sum(-(-length // 3) for length in lengths)} steps, of one in 3 steps were")


def statistics(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def made(folder: Path) -> None:
        file = folder / "meta/stats.json"
        said = json.loads(file.read_text(encoding="utf-8"))
        change(said)
        file.write_text(json.dumps(said), encoding="utf-8")

    return made


def turned_quantiles(said: dict[str, Any]) -> None:
    said["action"]["q01"], said["action"]["q99"] = said["action"]["q99"], said["action"]["q01"]


def zero_and_one(folder: Path) -> None:
    """The last dimension becomes a gripper of another convention."""

    def values(table: pa.Table) -> list[Any]:
        rows = np.array(table["action"].to_pylist())
        rows[:, -1] = np.arange(len(rows)) % 2
        return rows.tolist()

    each(folder, put("action", values))


def copied(folder: Path) -> None:
    """Episode 1 becomes a copy of episode 0, at another place of the set."""
    first, second = (folder / f"data/chunk-000/file-00{number}.parquet" for number in (0, 1))
    rows = pq.read_table(first)
    columns = {"episode_index": pa.array([1] * len(rows)), "index": pa.array([len(rows) + i for i in range(len(rows))])}
    for name, values in columns.items():
        rows = rows.set_column(rows.column_names.index(name), name, values)
    pq.write_table(rows, second)
    one, two = (folder / f"meta/episodes/chunk-000/file-00{number}.parquet" for number in (0, 1))
    listed = pq.read_table(one).to_pylist()[0]
    listed |= {"episode_index": 1, "dataset_from_index": len(rows), "data/file_index": 1}
    pq.write_table(pa.Table.from_pylist([listed]), two)
    after = 2 * len(rows)
    for number in (2, 3):
        file = folder / f"data/chunk-000/file-00{number}.parquet"
        table = pq.read_table(file)
        start = after
        pq.write_table(put("index", lambda t, start=start: [start + i for i in range(len(t))])(table), file)
        row = folder / f"meta/episodes/chunk-000/file-00{number}.parquet"
        pq.write_table(put("dataset_from_index", lambda t, start=start: [start])(pq.read_table(row)), row)
        after += len(table)


NAN = float("nan")
ODD = {
    "nan": (at("action", 1, [NAN] * 7), "episodes", "fail", r"episode 0, step 1: number 0 of 'action' is nan"),
    "picture": (picture_bytes(lambda data: data[:60]), "pictures", "fail", "step 1: the picture .*cannot be decoded"),
    "blank": (
        picture(lambda image: image.point(lambda v: 7)), "blank pictures", "warn",
        r"in 4 of \d+ steps .*episode 0, step 1",
    ),
    "no stats": (lambda f: (f / "meta/stats.json").unlink(), "statistics", "skipped", "keeps none"),
    "cut stats": (lambda f: (f / "meta/stats.json").write_bytes(b"{"), "statistics", "fail", "cannot be read"),
    "dimension": (statistics(lambda s: s["action"].update(min=[0.0])), "statistics", "fail", "min of 'action' .*7 fin"),
    "q01 above q99": (statistics(turned_quantiles), "statistics", "fail", "of 'action' is .*, above "),
    "nan in stats": (statistics(lambda s: s["action"].update(mean=[NAN] * 7)), "statistics", "fail", "7 finite number"),
    "text in stats": (statistics(lambda s: s["action"].update(std="a")), "statistics", "fail", "std of 'action' is a"),
    "other mean": (
        statistics(lambda s: s["observation.state"].update(mean=[9.0] * 8)), "statistics", "fail",
        r"mean of 'observation.state' is 9 in dimension \d, that of the data",
    ),
    "no action": (statistics(lambda s: s.pop("action")), "statistics", "fail", "'action' has no statistics, but None"),
    "gripper": (zero_and_one, "gripper", "warn", r"dimension 6 takes the values 0, 1 alone.* range is \[-1, 1\]"),
    "copied": (copied, "duplicates", "warn", "1 episodes are copies of others: .*episode 1 of .*episode 0"),
    "no features": (info(lambda said: said.pop("features") and None), "", "fail", "has no 'features'"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "name", "status", "said"), ODD.values(), ids=ODD)
def test_what_is_wrong_is_said(folder, change, name, status, said):
    change(folder)
    one = look(folder, "env=fake")[name]
    assert (one.status, bool(re.search(said, one.found))) == (status, True), one
    assert one.fix or status == "skipped"


def test_all_episodes_are_said_and_not_the_first_alone(folder):
    at("action", 1, [NAN] * 7)(folder)
    given = [f"data={folder}"]
    config = compose_unchecked(given, "sft", FOLDERS).config
    found = [one.found for one in data_sets.look(config, given, 1, NullConsole().progress)]
    assert [int(re.search(r"episode (\d)", text)[1]) for text in found] == [0, 1, 2, 3]


def test_another_rate_than_the_env_s_is_a_warning(folder):
    info(lambda said: said.update(fps=40))(folder)
    each(folder, put("timestamp", lambda table: [i / 40 for i in range(len(table))]))
    one = look(folder, "env=fake")["fps"]
    assert (one.status, one.found) == ("warn", "40 control steps a second, and the env has 20")


def test_another_env_is_said(recorded):
    found = look(recorded, "env=fake", "++env.train.action_dim=4", "++env.eval.action_dim=4")
    assert found["env"].status == "fail"
    assert "have 7 numbers an action, and the env takes 4" in found["env"].found
    assert found["pictures"].status == "ok", "and the rest is looked at all the same"


def main(*arguments: str, capsys) -> tuple[int, str]:
    status = doctor.main([*arguments, "--config-dir", *FOLDERS])
    return status, capsys.readouterr().out


def test_with_data_alone_nothing_else_is_looked_at(folder, monkeypatch, capsys):
    planned: list[Any] = []
    monkeypatch.setattr(doctor, "run_all", lambda checks, done: planned.extend(checks) or [])
    status, said = main(f"data={folder}", capsys=capsys)
    assert (status, planned) == (0, [])
    assert f"demonstrations {folder}: pictures: those of" in said
    at("action", 1, None)(folder)
    status, said = main(f"data={folder}", capsys=capsys)
    assert status == 1
    assert "step 1: 'action' is null" in said
    rename_action(folder)
    assert (
        "fix: name the actions with data.action_key, which may be actions" in main(f"data={folder}", capsys=capsys)[1]
    )
    assert "'action' is null" not in said.replace("step 1: 'action'", "")
    status, said = main(f"data={folder}", "data.action_key=actions", "--every=2", capsys=capsys)
    assert status == 1
    assert "step 1: 'actions' is null" in said
    for other in ("data=/none", "data=/none.hdf5"):
        status, said = main(other, capsys=capsys)
        assert status == 1
        assert "no demonstrations at /none" in said


@pytest.mark.parametrize("word", ["--every=0", "--every=x", "--every", "--every=-3"])
def test_a_wrong_number_of_steps_is_refused(word, capsys):
    assert doctor.main(["data=x", word]) == 2
    assert "write --every=10" in capsys.readouterr().err


def test_demonstrated_answers_are_looked_at(tmp_path):
    file = tmp_path / "a.jsonl"
    row = json.dumps({"prompt": "1+1=", "response": "2"}) + "\n"
    file.write_text(row * 3, encoding="utf-8")
    found = [*look(file).values()]
    assert [one.status for one in found] == ["ok", "warn"]
    assert found[0].found == "3 answers of 1 to 1 characters"
    file.write_text(row + "{", encoding="utf-8")
    (one,) = look(file).values()
    assert (one.status, "row 1 is no JSON" in one.found) == ("fail", True)


def test_problems_of_a_training_are_no_demonstrated_answers(tmp_path):
    """Their file has no responses, and the env reads it."""
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"prompt": "1+1=", "answer": "2"}) + "\n", encoding="utf-8")
    given = [f"data={file}", "env=math"]
    config = compose_unchecked(given, "train", FOLDERS).config
    assert [*data_sets.look(config, given, 1, NullConsole().progress)] == []


def test_statistics_that_are_right_to_rounding_are_taken():
    values = np.random.default_rng(0).normal(size=(1000, 2))
    said = {"min": values.min(0), "max": values.max(0), "mean": values.mean(0), "std": values.std(0)}
    said |= {name: np.quantile(values, q, axis=0) for name, q in stored.QUANTILES.items()}
    near = {name: (value + 1e-5).tolist() for name, value in said.items()}
    assert [*stored.differences("action", near, values)] == []
    far = {**near, "std": (said["std"] + 0.1).tolist()}
    assert len([*stored.differences("action", far, values)]) == 1


def test_dimensions_like_switches_are_found():
    actions = np.stack([np.arange(9.0), np.arange(9) % 2, np.zeros(9)], axis=1)
    assert survey.switches(actions) == {1: [0, 1]}
    assert survey.constant_dimensions(actions) == {2: 0}


def test_hdf5_without_an_env(tmp_path):
    from test_foreign_hdf5 import libero, robomimic

    found = look(libero(tmp_path / "a.hdf5"))
    assert {found[name].status for name in ("episodes", "instructions", "pictures", "duplicates")} == {"ok"}
    assert found["statistics"].status == "skipped"
    found = look(robomimic(tmp_path / "b.hdf5"))
    assert found["instructions"].status == "warn"
    assert CAMERA not in found["pictures"].found
