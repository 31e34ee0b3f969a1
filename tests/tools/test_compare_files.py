"""Names of evaluations, and files that are broken, under ``python -m embodied.tools.compare``."""

from __future__ import annotations

import copy
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from comparisons import as_json, below, changed, refused, without

from embodied.observe import statistics
from embodied.tools import compare


def test_tasks_of_equal_instructions_are_paired_by_name(write, capsys):
    """Of two samples of variations, the position of a task says nothing."""

    def named(*names: str):
        def change(found: dict[str, Any]) -> None:
            found["task_names"] = names
            for row in found["tasks"]:
                row["instruction"] = "lift it"

        return change

    one, other = write("one", lambda task, k: task == 0, change=named("light 1", "light 2")), "light 3"
    swapped = write("swapped", lambda task, k: task == 1, change=named("light 2", "light 1"))
    (found,) = as_json(capsys, one, swapped)
    assert [(row["task"], row["difference"]) for row in found["tasks"]] == [("light 1", 0.0), ("light 2", 0.0)]
    (found,) = as_json(capsys, one, write("half", change=named(other, "light 2")))
    assert [row["task"] for row in found["tasks"]] == ["light 2"]
    said = refused(capsys, one, write("others", change=named(other, "light 4")))
    assert "no task in common: 'light 1', 'light 2' there, 'light 3', 'light 4' here" in said
    assert "'task_names' has 1 texts" in refused(capsys, one, write("few", change=named("light 1")))
    (found,) = as_json(capsys, one, write("old", change=lambda found: (named()(found), found.pop("task_names"))))
    assert [row["task"] for row in found["tasks"]] == ["lift it (task 0)", "lift it (task 1)"]


def varied(kinds: list[str], strengths: list[str]):
    def change(found: dict[str, Any]) -> None:
        found |= {"task_names": ["one", "two"], "task_kinds": kinds, "task_strengths": strengths}

    return change


@pytest.mark.parametrize("way", [(), ("--unpaired",)])
def test_kinds_and_strengths_have_rows_with_tests(write, capsys, way):
    """A strength that the first file does not know is the second's."""
    one = write("one", lambda task, k: k < (4, 30)[task], change=varied(["camera", "noise"], ["", "2"]))
    other = write("other", lambda task, k: k < (20, 25)[task], change=varied(["camera", "noise"], ["1", "2"]))
    (found,) = as_json(capsys, one, other, *way)
    rows = {(row["kind"], row["strength"]): row for row in found["kinds"]}
    assert [*rows] == [("camera", "all"), ("camera", "1"), ("noise", "all"), ("noise", "2")]
    for (kind, _), row in rows.items():
        task = found["tasks"][["camera", "noise"].index(kind)]
        assert [row[key] for key in ("first", "second", "difference", "low", "high")] == [
            task[key] for key in ("first", "second", "difference", "low", "high")
        ]
    camera, noise = rows["camera", "1"], rows["noise", "all"]
    counts = [(0, 0), (0, 0)] if way else [(16, 0), (0, 5)]
    assert [(row["gained"], row["lost"]) for row in (camera, noise)] == counts
    wanted = statistics.fisher(30, 40, 25, 40) if way else statistics.mcnemar(0, 5)
    assert noise["p_value"] == pytest.approx(wanted)


def test_of_many_tasks_kinds_are_printed_without_rows_by_task(write, capsys, monkeypatch):
    one, other = (write(name, change=varied(["camera", "noise"], ["", ""])) for name in ("one", "other"))
    assert compare.main([one, other]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^ *two +40/40", said, re.M)
    assert re.search(r"^ *noise +all +40/40.* p = 1.0000", said, re.M)
    monkeypatch.setattr("embodied.evaluation.comparison_text.MOST_TASKS", 2)
    assert compare.main([one, other]) == 0
    said = capsys.readouterr().out
    assert not re.search(r"^ *two +40/40", said, re.M)
    assert re.search(r"^ *all tasks +80/80", said, re.M)
    assert re.search(r"^ *noise +all +40/40", said, re.M)
    plain = write("plain")
    assert compare.main([plain, plain]) == 0
    assert "by kind" not in capsys.readouterr().out


@pytest.mark.parametrize("key", ["task_names", "task_kinds", "task_strengths", "tasks_chosen_by"])
@pytest.mark.parametrize("value", ["abc", [1, 2], [None, None], 3, [["one"], ["two"]]])
def test_what_is_no_list_of_texts_is_said(write, capsys, key, value):
    """The letters of a word are no names."""

    def change(found: dict[str, Any]) -> None:
        varied(["camera", "noise"], ["", ""])(found)
        found[key] = value

    said = refused(capsys, write("one", change=varied(["camera", "noise"], ["", ""])), write("other", change=change))
    assert f"'{key}' is no list of texts" in said or (value == 3 and "is damaged" in said)


def test_sampling_that_is_empty_is_none(write, capsys):
    for number, empty in enumerate(([], {}, "")):
        one = write(f"one{number}", change=changed("conditions", "sampling", empty))
        (found,) = as_json(capsys, one, one)
        assert found["first"]["starts"] == 80


def test_names_of_evaluations(write, capsys):
    run = write("run", below(1))
    for step in (4, 10):
        Path(run, "eval", f"{step:06d}.json").write_text(
            Path(run, "eval", "000000.json").read_text(encoding="utf-8"), encoding="utf-8"
        )
    Path(run, "eval", "robustness.json").write_text("{}", encoding="utf-8")
    for folder in ("000004", "000010+003", "000020"):
        Path(run, "checkpoints", folder).mkdir(parents=True)
    for name, step in (
        (run, 10), (f"{run}@4", 4), (f"{run}@000010", 10), (f"{run}/checkpoints/000004", 4), (f"{run}/eval", 10),
        (f"{run}/eval/000004.json", 4), (f"./{run}/", 10),
    ):  # fmt: skip
        (found,) = as_json(capsys, f"{run}@0", name)
        assert Path(found["second"]["file"]).name == f"{step:06d}.json"
    for name, text in (
        (f"{run}@5", "it has those after: 0, 4, 10"), (f"{run}@five", "no number of iterations"),
        (f"{run}/checkpoints/000020", f"embodied eval {run}/checkpoints/000020"),
        (f"{run}/checkpoints/000010+003", "saved within an iteration"), (f"{run}/checkpoints", "has no evaluation"),
        ("run", "write runs/run"), ("run@4", "write runs/run@4"), ("runs/rum", "Did you mean 'runs/run'?"),
        (f"{run}/eval/robustness.json", "name a file like"), ("nowhere", "name a run's folder"),
    ):  # fmt: skip
        assert text in refused(capsys, run, name)
    assert "name two runs" in refused(capsys, run)
    assert "from 0 on" in refused(capsys, run, run, "--seed", "-1")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (without("episodes"), "'tasks' and 'episodes'"),
        (changed("conditions", "sampling", 3), "is damaged"),
        (lambda found: found.update(conditions=None), "is damaged"),
        (lambda found: found.update(env=3), "is damaged"),
        (lambda found: found.update(episodes=[]), "no episode that was run"),
        (lambda found: found.update(episodes=3), "is damaged"),
        (lambda found: found.update(tasks=[{"task_id": 0}]), "no 'instruction'"),
        (lambda found: found["episodes"][3].pop("start"), "no 'start'"),
        (lambda found: found["episodes"][3].update(success=0.5), "'success' of episode 3 is 0.5"),
        (lambda found: found["episodes"][3]["start"].update(seed="x"), "got 'x' where a whole number belongs"),
        (lambda found: found["episodes"][3]["start"].update(task_id=9), "task 9, which is not among 'tasks'"),
        (changed("conditions", "episodes_per_task", "x"), "is damaged"),
        (lambda found: found.update(answers={}), "is damaged"),
    ],
)
def test_damaged_files_are_refused(write, capsys, change, text):
    assert text in refused(capsys, write("one"), write("other", change=change))


def test_what_is_no_json_is_refused(write, capsys):
    one, other = write("one"), write("other")
    file = Path(other, "eval", "000000.json")
    whole = file.read_bytes()
    for content, text in (
        (b"", "is empty"), (whole[: len(whole) // 2], "half written"), (b"\xff\xfe", "cannot be read"),
        (b"[" * 100_000, "half written"), (b"[]", "is none"), (b'{"unperturbed": []}', "what perturbations cost"),
    ):  # fmt: skip
        file.write_bytes(content)
        assert text in refused(capsys, one, other)


def test_an_old_file_is_compared_and_says_what_it_does_not_know(write, capsys):
    (found,) = as_json(capsys, write("one"), write("other", change=without("conditions", "env")))
    assert found["paired"]
    assert found["conditions_that_differ"] == []
    assert [note.partition(" ")[0] for note in found["notes"]] == ["an", "on"]


def test_mutated_files_are_compared_or_refused(write, capsys):
    """Whatever a file has become: numbers, or an explained error."""
    one, other = write("one", below(3), count=4), write("other", below(2), count=4)
    file = Path(other, "eval", "000000.json")
    whole, drawn = json.loads(file.read_text(encoding="utf-8")), random.Random(0)
    values = (None, True, -1, 0, 10**30, 0.5, float("nan"), "", "x", [], [[]], {}, {"a": {}})
    for _ in range(400):
        own = copy.deepcopy(whole)
        place: Any = own
        while True:
            key = drawn.choice([*place] if isinstance(place, dict) else range(len(place)))
            if not isinstance(place[key], (dict, list)) or not place[key] or drawn.random() < 0.2:
                break
            place = place[key]
        place[key] = drawn.choice(values)
        file.write_text(json.dumps(own), encoding="utf-8")
        status = compare.main([one, other, *drawn.choice([[], ["--json"], ["--unpaired"], ["--same-starts"]])])
        said = capsys.readouterr()
        assert status == 0 or (status == 2 and "\n  fix: " in said.err)


def test_the_newest_of_a_run_is_that_of_most_iterations_however_its_number_is_written(write, capsys):
    run = write("run", below(1))
    for name, share in (("999999", 2), ("1000000", 30), ("9", 3)):
        text = Path(write("other", below(share)), "eval", "000000.json").read_text(encoding="utf-8")
        Path(run, "eval", f"{name}.json").write_text(text, encoding="utf-8")
    (found,) = as_json(capsys, f"{run}@0", run)
    assert found["over_all"]["second"]["successes"] == 60


@pytest.mark.parametrize("times", [1, 4, 25])
@pytest.mark.parametrize("unpaired", [(), ("--unpaired",)])
def test_a_rate_is_as_sure_as_its_starts_are_many(write, capsys, times, unpaired):
    """Episodes of one start resemble each other: 25 times as many of the same starts make no interval narrower."""
    one = write("one", below(10), times=times)
    (found,) = as_json(capsys, one, write("other", below(30), times=times), *unpaired)
    for side, share in (("first", 20), ("second", 60)):
        row = found["over_all"][side]
        assert (row["episodes"], row["starts"], row["successes"]) == (80 * times, 80, share * times)
        assert (row["low"], row["high"]) == pytest.approx(statistics.wilson(share, 80))
        assert [task[side]["starts"] for task in found["tasks"]] == [40, 40]
        assert [(t[side]["low"], t[side]["high"]) for t in found["tasks"]] == [statistics.wilson(share / 2, 40)] * 2
    low, high = (found["over_all"][end] for end in ("low", "high"))
    expected = statistics.unpaired(20, 80, 60, 80) if unpaired else statistics.tango(40, 0, 80)
    assert (low, high) == pytest.approx(expected)


def test_among_several_more_starts_are_asked_for_than_of_a_pair_alone(write, capsys):
    """A test of three must reach more than 1.96."""
    names = [write(f"run{share}", below(share)) for share in (20, 21, 22)]
    among, alone = as_json(capsys, *names)[0], as_json(capsys, *names[:2])[0]
    for found, tests in ((among, 3), (alone, 1)):
        needed = statistics.needed_pairs(2, 0, 80, statistics.level(tests))
        assert found["more_starts"] == {"just": needed.just - 80, "likely": needed.likely - 80}
    assert among["more_starts"]["just"] > alone["more_starts"]["just"] > 0


@pytest.mark.parametrize(("times", "what"), [(1, "episodes"), (4, "starts")])
def test_more_of_what_was_counted_is_asked_for(write, capsys, times, what):
    """Four episodes of a start say no more than one of another: it is starts that are missing."""
    assert compare.main([write("one", below(20), times=times), write("other", below(22), times=times)]) == 0
    said = capsys.readouterr().out
    assert f" more {what} of each would do" in said


@pytest.mark.parametrize(("states", "said_of_them"), [((1, 1), False), ((50, 50), True), ((500, 500), False)])
def test_initial_states_that_run_out_are_said_unless_starts_differ_by_their_seeds_alone(
    write, capsys, states, said_of_them
):
    """A task with one state has as many starts as there are seeds."""
    change = changed("conditions", "init_states_per_task", list(states))
    assert compare.main([write("one", below(20), change=change), write("other", below(22), change=change)]) == 0
    said = capsys.readouterr().out
    assert "In all: env.eval.episodes_per_task=" in said
    assert ("beyond which they repeat with other seeds" in said) is said_of_them


@pytest.mark.parametrize(("first", "second", "known"), [(1, 1, True), (4, 1, False), (1, 4, False), (4, 4, False)])
def test_fisher_s_test_is_made_of_whole_starts_alone(write, capsys, first, second, known):
    """Also if one side alone has several episodes of a start."""
    names = [write("one", below(10), times=first), write("other", below(30), times=second)]
    (found,) = as_json(capsys, *names, "--unpaired")
    assert (found["p_value"] is not None) is known
    assert found["p_value"] in (None, statistics.fisher(20, 80, 60, 80))
