"""benchmarks/robust_rl.py: its table has what the evaluations say, and it chooses variations evenly."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import benchmark_file
import numpy as np
import pytest

from embodied.errors import AssetsMissingError
from embodied.observe.statistics import tango, wilson
from embodied.protocols import TaskKinds
from embodied.schema.compose.compose import compose

NAMES = ("a_camera_1", "a_camera_2", "a_noise_1", "a_robot_1", "a_robot_2", "a_robot_3")
KINDS = tuple(name.split("_")[1] for name in NAMES)


@pytest.fixture(scope="module")
def robust():
    return benchmark_file.load("robust_rl")


# -- the table -------------------------------------------------------------------------------------------------------


def write(out: Path, name: str, suite: str, solved: dict[tuple[int, int], bool]) -> None:
    """Writes an evaluation, as a step leaves it: of tasks and initial states, which were solved."""
    varied = (
        {"task_names": NAMES, "task_kinds": KINDS, "task_strengths": ["1", "2", *"3333"]} if suite == "plus" else {}
    )
    found = {
        "tasks": [{"task_id": task, "instruction": NAMES[task]} for task in sorted({task for task, _ in solved})],
        "episodes": [{"start": {"task_id": task, "init_state_id": state, "seed": 7 + state}, "success": success}
                     for (task, state), success in solved.items()],
        "env": {"_target_": "any", "task_suite_name": suite}, "conditions": {}, **varied,
    }  # fmt: skip
    file = out / "runs" / f"{name}-{suite}" / "eval" / "000000.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(found), encoding="utf-8")
    (out / f"{name}-{suite}.json").write_text(json.dumps({"wall_s": 60.0, "cpu_s": 90.0}), encoding="utf-8")


def rows_of(text: str) -> dict[tuple[str, str], list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return {(row[0], row[1]): row[2:] for row in rows}


def rate(successes: int, starts: int) -> list[str]:
    low, high = wilson(successes, starts)
    return [f"{successes}/{starts} ({successes / starts:.0%})", f"{low:.0%} to {high:.0%}"]


def change(gained: int, lost: int, starts: int) -> list[str]:
    low, high = tango(gained, lost, starts)
    return [f"{(gained - lost) / starts:+.1%}", f"{low:+.1%} to {high:+.1%}"]


def test_the_table_pairs_by_start_marks_what_was_trained_and_has_the_suites_of_pro(robust, tmp_path):
    before = [False, True, False, True, False, False]
    after = [True, True, True, False, False, True]
    plus = {(task, 0): success for task, success in enumerate(before)}
    write(tmp_path, "clone", "plus", plus | {(5, 1): True})  # a start without a partner
    write(tmp_path, "camera_noise-2", "plus", {(task, 0): after[task] for task in reversed(range(6))})
    write(tmp_path, "clone", "pro_swap", {(0, state): state < 3 for state in range(10)})
    write(tmp_path, "camera_noise-2", "pro_swap", {(0, state): state > 0 for state in reversed(range(10))})
    write(tmp_path, "camera_noise-2", "pro_task", {(0, 0): True})  # the clone was not evaluated there
    text = robust.table(tmp_path)
    rows = rows_of(text)
    assert len(text.splitlines()) == 2 + len(rows), "a kind has no rows of its strengths"
    trained = {kind: cells for (weights, kind), cells in rows.items() if weights == "camera_noise-2"}
    assert trained == {
        "camera (trained)": [*rate(1, 2), *rate(2, 2), *change(1, 0, 2)],
        "noise (trained)": [*rate(0, 1), *rate(1, 1), *change(1, 0, 1)],
        "robot": [*rate(1, 3), *rate(1, 3), *change(1, 1, 3)],
        "LIBERO-Plus, all": [*rate(2, 6), *rate(4, 6), *change(3, 1, 6)],
        "LIBERO-PRO swap": [*rate(3, 10), *rate(9, 10), *change(7, 1, 10)],
    }
    itself = {kind for weights, kind in rows if weights == "clone"}
    assert itself == {"camera", "noise", "robot", "LIBERO-Plus, all", "LIBERO-PRO swap"}
    assert rows["clone", "robot"] == [*rate(2, 4), *rate(2, 4), *change(0, 0, 4)]


def test_seeds_are_taken_together_with_an_interval_over_seeds_and_starts(robust, tmp_path):
    starts = {(task, 0): False for task in range(6)}
    write(tmp_path, "clone", "plus", starts)
    write(tmp_path, "clone", "pro_10_lan", {(0, 0): True})
    for seed, solved in ((1, {0, 1}), (2, {0})):  # both are varied by camera
        write(tmp_path, f"camera_noise-{seed}", "plus", {key: key[0] in solved for key in reversed(starts)})
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in robust.summary(tmp_path).splitlines()[2:]]
    cells = {row[0]: row[1:] for row in rows}
    assert [*cells] == ["camera", "noise", "robot", "LIBERO-PRO 10 lan"]
    assert cells["LIBERO-PRO 10 lan"] == ["100% of 1", "–", "–", "–"], "the clone alone was evaluated"
    assert cells["robot"] == ["0% of 3", "–", "0%: +0 (+0 to +0)", "–"]
    camera = cells["camera"][2]
    assert camera.startswith("**75%: +75 ("), "of four episodes three were solved; trained kinds are bold"
    assert camera.endswith(" to +100)**")


def test_an_interval_is_wide_where_seeds_differ(robust):
    before = np.zeros(400)
    alike, apart = np.full((2, 400), 0.5), np.stack([np.zeros(400), np.ones(400)])
    assert robust.with_interval(before, alike) == (0.5, 0.5, 0.5)
    assert robust.with_interval(before, apart) == (0.5, 0.0, 1.0)


def test_the_report_has_the_table_and_what_each_step_took(robust, tmp_path, monkeypatch, capsys):
    saved, pages = {}, []
    monkeypatch.setattr(robust, "save", lambda name, result: saved.update({name: result}))
    monkeypatch.setattr(robust, "fill", lambda page, begin, text: pages.append((page.name, text)))
    for name in ("clone", "plain-1"):
        write(tmp_path, name, "plus", {(task, 0): True for task in range(6)})
    robust.report(tmp_path)
    text = robust.table(tmp_path)
    assert (tmp_path / "robust_rl.md").read_text(encoding="utf-8") == text + "\n"
    assert saved["robust_rl"]["table"] == text.splitlines()
    assert pages == [("robust_rl.md", robust.summary(tmp_path))]
    assert [*saved["robust_rl"]["steps"]] == ["clone-plus", "plain-1-plus"]
    assert "plain-1-plus: 1.0 min, 1.5 CPU min" in capsys.readouterr().out
    assert not any("(trained)" in line for line in text.splitlines()), "plain was trained on no variation"


# -- which variations ------------------------------------------------------------------------------------------------


def chosen(overrides: list[str], side: str = "eval") -> list[int]:
    (found,) = [one for one in overrides if one.startswith(f"env.{side}.task_ids=")]
    return json.loads(found.partition("=")[2])


@pytest.fixture
def stand_in(robust, monkeypatch) -> TaskKinds:
    """Twelve variations by camera of each task of the suite, and five by robot, in place of LIBERO-Plus's."""
    others = "pick_up_the_ketchup_and"
    ends = [("camera", number) for number in range(12)] + [("robot", number) for number in range(5)]
    listed = [(f"{task}_{kind}_{number}", kind) for kind, number in ends for task in (others, *robust.BEGINS)]
    found = TaskKinds(*zip(*listed, strict=True), [""] * len(listed), {})

    class Env:
        def __init__(self, suite, kinds, **given):
            kept = [place for place, kind in enumerate(found.kinds) if kind in kinds]
            own = [[part[at] for at in kept] for part in (found.names, found.kinds, found.strengths)]
            self.found = TaskKinds(*own, {})

        def task_kinds(self):
            return self.found

    monkeypatch.setattr(robust, "LiberoEnv", Env)
    return found


@pytest.mark.parametrize("each", [1, 4, 7, 15, 100, None])
def test_variations_of_the_three_tasks_are_chosen_evenly(robust, stand_in, each):
    ids = chosen(robust.varied("eval", ("camera", "robot"), each))
    assert ids == sorted(set(ids))
    names = [stand_in.names[number] for number in ids]
    assert all(name.startswith(robust.BEGINS) for name in names)
    for kind, there in (("camera", 36), ("robot", 15)):
        own = [name for name, found in zip(stand_in.names, stand_in.kinds, strict=True)
               if found == kind and name.startswith(robust.BEGINS)]  # fmt: skip
        places = [own.index(name) for name in names if name in own]
        assert len(places) == min(each or there, there)
        if len(places) > 1:
            assert (places[0], places[-1]) == (0, there - 1)
            assert np.ptp(np.diff(places)) <= 1, "evenly spread"


def test_numbers_count_the_tasks_of_the_kinds_that_are_asked_for(robust, stand_in):
    """An env of one kind has other numbers than one of several."""
    (first, *_) = chosen(robust.varied("train", ("robot",), 1), "train")
    assert first == 1, "the first of this kind is of another task"
    assert chosen(robust.varied("eval", ("camera", "robot"), 1)) == [1, 49]


def test_the_commands_compose_and_name_tasks_that_there_are(robust):
    """With LIBERO-Plus's files: both sides offer what was chosen."""
    try:
        evaluation = robust.varied("eval", robust.KINDS, 2)
        training = robust.varied("train", robust.TRAINED["robot_layout"], 3)
    except AssetsMissingError as error:
        pytest.skip(f"LIBERO-Plus is not installed: {error.message}")
    config = compose(["experiment=quickstart_libero", *evaluation, *training, *robust.QUIET], "eval").config.env
    for side, kinds, each in ((config.eval, robust.KINDS, 2), (config.train, robust.TRAINED["robot_layout"], 3)):
        given = {key: value for key, value in side.model_extra.items() if key != "renderer"}
        found = robust.LiberoEnv(**given).task_kinds()
        assert Counter(found.kinds) == dict.fromkeys(kinds, each)
        assert all(name.startswith(robust.BEGINS) for name in found.names)


@pytest.mark.parametrize("how", ["swap", "object", "spatial_swap", "10_lan"])
def test_a_suite_of_libero_pro_is_evaluated_on_equally_many_episodes(robust, how):
    """The three tasks that the policy knows, or all ten of a suite that it does not."""
    side = compose(["experiment=quickstart_libero", *robust.of_pro(how, 20), *robust.QUIET], "eval").config.env.eval
    instructions = robust.LiberoEnv(**side.model_extra).spec.tasks
    assert len(instructions) * side.episodes_per_task == 60
    known = [f"{task}_place_it_in_the_basket".replace("_", " ") for task in robust.BEGINS]
    assert (list(instructions) == known) is (how not in robust.UNKNOWN)
