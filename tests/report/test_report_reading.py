"""What the report reads of runs: whole ones, seeds of one experiment, and folders that are empty, damaged or old."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from reported_runs import TASKS, cut_at, write_run, write_trace

from embodied.errors import EvaluationError
from embodied.evaluation import results
from embodied.report import series, settings, success, times
from embodied.report.live import fingerprint, watched
from embodied.report.reading import Run, read
from embodied.run.folder import folder as run_folder
from embodied.run.folder.folder import LOCK, RunFolder
from embodied.tools import report

NO_EVALUATION = "no success by task, no videos (runner.val_check_interval)"


def test_a_whole_run(tmp_path: Path) -> None:
    run = read(str(write_run(tmp_path / "a")))
    assert run.problems == []
    assert run.iterations == 6
    assert run.starts[0]["command"] == "python -m embodied.train env=fake"
    assert [sorted(run.evaluations), run.episodes] == [[0, 6], 16]
    titles = [chart.title for chart in series.charts([run])]
    assert titles == ["Success", "Return", "KL", "Clip share", "Entropy", "Staleness", "Loss"]
    lines = {line.label: line for line in series.charts([run])[0].lines}
    assert lines["training, sampled"].points[-1] == series.Point(6, 0.81, 0.81 - 0.1, 0.81 + 0.1)
    assert [point.value for point in lines["evaluation, greedy"].points] == [
        0.0,
        0.75,
    ]  # of the files: no metric says it
    changed = {one.key for one in settings.settings([run]) if one.changed}
    assert {"runner.seed", "runner.max_epochs"} <= changed
    assert "runner.num_threads" not in changed


def test_before_and_after_are_paired(tmp_path: Path) -> None:
    found = success.success_section([read(str(write_run(tmp_path / "a")))])
    assert [side.label for side in found.sides] == ["before training", "after 6 iterations"]
    assert [row[:2] + row[3:4] for row in found.tables[0].rows] == [
        [TASKS[0], "0/4 (0%)", "3/4 (75%)"], [TASKS[1], "0/4 (0%)", "3/4 (75%)"],
        ["all tasks", "0/8 (0%)", "6/8 (75%)"],
    ]  # fmt: skip
    assert found.tables[0].starts == "8 of A's 8 starts and of B's 8 have a partner"
    assert "exact McNemar test: p = 0.0312" in found.tables[0].said[0]


def test_a_run_that_only_evaluates_has_no_training_to_come(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "served", iterations=0, evaluations=(0,))
    (folder / "metrics.jsonl").unlink()
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    config["runner"]["only_eval"] = True
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    alone, trained = read(str(folder)), read(str(write_run(tmp_path / "a", evaluations=(0,))))
    assert [side.label for side in success.success_section([alone]).sides] == [str(folder)]
    assert [side.label for side in success.success_section([trained]).sides] == ["before training"]
    assert [side.label for side in success.success_section([alone, trained]).sides] == [
        str(folder), f"{tmp_path / 'a'} before training",
    ]  # fmt: skip
    config["runner"]["only_eval"] = False
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    assert [side.label for side in success.success_section([read(str(folder))]).sides] == ["before training"]


def test_seeds_of_one_experiment_are_one_line_with_a_band(tmp_path: Path) -> None:
    names = [write_run(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 3))]
    other = write_run(tmp_path / "c", group_size=3)
    runs = [read(str(folder)) for folder in (*names, other)]
    assert [[run.name for run in group.runs] for group in series.groups(runs)] == [
        [str(names[0]), str(names[1])], [str(other)],
    ]  # fmt: skip
    lines = series.charts(runs)[0].lines
    assert [len(line.points) for line in lines] == [6, 6]
    last = lines[0].points[-1]
    assert (last.value, last.low, last.high) == pytest.approx((0.82, 0.81, 0.83))
    assert lines[1].points[-1].low is None  # in one chart a band means one thing
    differing = {one.key for one in settings.settings(runs) if one.varies}
    assert differing == {"runner.seed", "runner.experiment_name", "algorithm.group_size"}
    tables = success.success_section(runs).tables
    assert [(table.letter, table.against) for table in tables] == [("B", "A"), ("C", "A"), ("C", "B")]
    assert [row[5] for row in tables[1].rows] == ["+0.0%"] * 3


def test_many_iterations_become_fewer_points(tmp_path: Path) -> None:
    run = read(str(write_run(tmp_path / "a", iterations=1000)))
    line = series.charts([run])[0].lines[0]
    assert (len(line.points), line.together) == (334, 3)
    assert line.points[-1].step == 1000
    assert len(times.bars(run)) <= 3 * times.MOST_BARS


def test_an_evaluation_alone_has_no_curves(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    run = read(f"{folder}@0")
    assert (run.evaluation_alone, run.metrics, sorted(run.evaluations)) == (True, {}, [0])
    assert success.success_section([run]).single[-1] == ["all tasks", "0/8 (0%)", "0% to 32%"]
    assert run.config is not None


def test_time_by_stage_and_the_timeline(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    write_trace(folder)
    run = read(str(folder))
    assert [(stage.name, stage.seconds) for stage in times.stages(run)] == [
        ("rollout", 18.0), ("training", 6.0), (times.REST, 6.0),
    ]  # fmt: skip
    picture = times.picture(run)
    assert picture is not None
    assert {piece.lane for piece in picture.lanes} == {"policy", "slot 0", "slot 1"}
    assert {piece.name for piece in picture.lanes} == {"policy", "step", "render"}
    assert picture.seconds == pytest.approx(39.6e-3)
    assert picture.totals == {
        lane: {name: pytest.approx(40 * 600e-6)}
        for lane, name in (("policy", "policy"), ("slot 0", "step"), ("slot 1", "render"))
    }
    busy = sum((piece.ended - piece.began) * piece.share for piece in picture.lanes if piece.lane == "slot 0")
    assert busy == pytest.approx(40 * 600e-6, rel=0.3)  # gaps within a column make it paler


def test_an_empty_folder(tmp_path: Path) -> None:
    run = read(str(tmp_path))
    assert [line.split(":")[0] for line in run.problems] == [
        "config.yaml is missing", "starts.jsonl is missing", "metrics.jsonl is missing", "there is no evaluation",
    ]  # fmt: skip
    assert series.charts([run]) == []
    assert success.success_section([run]).sides == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="there is no"):
        read(str(tmp_path / "nothing"))


def half(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-30])


def text(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content, encoding="utf-8")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (half("metrics.jsonl"), "metrics.jsonl: 1 of 6 lines are damaged or half written, left out"),
        (half("eval/000006.json"), "000006.json is damaged or half written"),
        (text("eval/000006.json", "{}"), "000006.json is none: an evaluation's file has 'tasks' and 'episodes'"),
        (text("eval/000006.json", ""), "000006.json is empty"),
        (text("config.yaml", "runner: [1"), "config.yaml is damaged"),
        (text("config.yaml", "7"), "config.yaml is damaged or half written"),
        (text("starts.jsonl", "x\n"), "starts.jsonl: 1 of 1 lines are damaged"),
        (lambda folder: (folder / "starts.jsonl").unlink(), "starts.jsonl is missing"),
        (lambda folder: (folder / "metrics.jsonl").unlink(), "metrics.jsonl is missing: there are no curves"),
        (text("metrics.jsonl", "\x00\xff[]\n1\n"), "metrics.jsonl: 2 of 2 lines are damaged"),
    ],
)
def test_what_is_damaged_is_said_and_the_rest_is_read(
    tmp_path: Path, harm: Callable[[Path], object], said: str
) -> None:
    folder = write_run(tmp_path / "a")
    harm(folder)
    run = read(str(folder))
    assert said in " ".join(run.problems)
    assert run.evaluations
    series.charts([run])
    success.success_section([run])


def test_values_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", iterations=1, evaluations=())
    odd = '{"step": 2, "train/loss": NaN, "train/entropy": Infinity, "train/lr": "x", "made/up": 1%s}\n' % ("0" * 400)
    (folder / "metrics.jsonl").write_text(
        odd + '{"step": -1}\n{"step": true}\n{"step": 3, "made/up": 2}\n', encoding="utf-8"
    )
    run = read(str(folder))
    assert run.metrics == {2: {}, 3: {"made/up": 2.0}}


def of_iterations(folder: Path, count: int) -> Path:
    """The run with its first iterations alone, whose folder was locked by a process that is gone."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:count]), encoding="utf-8")
    (folder / LOCK).write_text("1", encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("iterations", "done"),
    [(0, "running, in iteration 1 of 6"), (1, "running, iteration 1 of 6 done"), (6, "running, iteration 6 of 6 done")],
)
def test_a_run_that_goes_on_says_how_far_it_is(tmp_path: Path, iterations: int, done: str) -> None:
    folder = of_iterations(write_run(tmp_path / "a", evaluations=()), iterations)
    if not iterations:
        (folder / "metrics.jsonl").unlink()
    opened = RunFolder.open(folder, yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")))
    found = read(str(folder))
    assert (found.state, found.problems) == (done, ["there is no evaluation: " + NO_EVALUATION])
    (folder / "config.yaml").write_text(
        (folder / "config.yaml").read_text(encoding="utf-8").replace("val_check_interval: -1", "val_check_interval: 5"),
        encoding="utf-8",
    )
    assert read(str(folder)).problems == []
    assert not read(str(folder), ended=True).running
    files, before = watched(found), fingerprint(watched(found))
    opened.close()
    assert not read(str(folder)).running
    assert fingerprint(files) != before, "a live page is made anew when the run ends, however it ends"


def test_a_report_that_looks_at_the_lock_keeps_no_run_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = iter([False, True])
    monkeypatch.setattr(run_folder, "_try", lambda lock: next(tries))
    monkeypatch.setattr(run_folder, "PROBED_S", 10.0)
    RunFolder.open(tmp_path / "a", {}).close()
    assert [*tries] == []


@pytest.mark.parametrize(("iterations", "said"), [(4, "stopped after 4 of 6 iterations; the same"), (6, "")])
def test_a_run_that_was_stopped_says_so(tmp_path: Path, iterations: int, said: str) -> None:
    found = read(str(of_iterations(write_run(tmp_path / "a"), iterations)))
    assert found.state.startswith(said) if said else not found.state
    assert found.problems == []


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"traceEvents": [{"ph": "X"}]}',
        '{"traceEvents": 3}',
        '{"traceEvents": [{"ph": "X", "pid": 1, "tid": 0, "name": "a", "ts": 0, "dur": 1e30}]}',
    ],
)
def test_a_damaged_timeline(tmp_path: Path, content: str) -> None:
    folder = write_run(tmp_path / "a")
    write_trace(folder)
    (folder / "trace" / "000001-train.json").write_text(content, encoding="utf-8")
    run = read(str(folder))
    assert times.picture(run) is None
    assert "is damaged" in run.problems[-1]


def test_metrics_of_other_versions_can_be_chosen(tmp_path: Path) -> None:
    run = Run("a", tmp_path, metrics={1: {"old/metric": 1.0}, 2: {"old/metric": 2.0, "eval/task/3/success_rate": 0.5}})
    assert series.all_metrics([run]) == {
        "eval/task/3/success_rate": {"a": [(2, 0.5)]}, "old/metric": {"a": [(1, 1.0), (2, 2.0)]},
    }  # fmt: skip
    assert series.meaning("old/metric") == ""
    assert series.meaning("eval/task/3/success_rate").startswith("share of the evaluation episodes")
    assert json.dumps(series.all_metrics([run]))


def test_numbers_and_texts_that_no_page_can_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "a")
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": 7, "rollout/return": 1e308, "rollout/success_rate": 0.5}) + "\n")
        file.write(json.dumps({"step": 8, "rollout/return": -1.7e308}) + "\n")
        file.write(json.dumps({"step": 2**64, "rollout/return": 1.0}) + "\n")
    with (folder / "starts.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"time": "", "command": "python \udcff", "versions": {"x": "\udcff"}}) + "\n")
    (folder / "eval" / f"{'9' * 40}.json").write_text("{}", encoding="utf-8")
    run = read(str(folder))
    assert run.iterations == 8
    assert run.metrics[7] == {"rollout/success_rate": 0.5}
    pytest.importorskip("vl_convert")
    assert report.main([str(folder)]) == 0
    assert "python ?" in (folder / "report.html").read_text(encoding="utf-8")


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    with (folder / "config.yaml").open("a", encoding="utf-8") as file:
        file.write("reward: {api_key: abc, url: 'http://me:pw@host', headers: {X: abc}}\n")
    (folder / "starts.jsonl").write_text(
        json.dumps({"time": "now", "command": "python x.token=abc"}) + "\n", encoding="utf-8"
    )
    run = read(str(folder))
    found = {one.key: one.values[0] for one in settings.settings([run])}
    assert found["reward.api_key"] == found["reward.headers.X"] == "(hidden)"
    assert found["reward.url"] == "http://(hidden)@host"
    assert run.starts[0]["command"] == "python 'x.token=(hidden)'"


def test_equal_starts_in_a_row_are_one(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    lines = [
        {"time": str(n), "command": "a" if n < 3 else "b", "processes": 1, "versions": {"x": "1"}} for n in range(5)
    ]
    (folder / "starts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    found = read(str(folder)).starts
    assert [(one["command"], one["time"], one["again"], one["last"]) for one in found] == [
        ("a", "0", 2, "2"), ("b", "3", 1, "4"),
    ]  # fmt: skip


def test_a_run_below_a_folder_named_checkpoints(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "checkpoints" / "a")
    run = read(str(folder))
    assert not run.evaluation_alone
    assert run.iterations == 6
    assert results.find(str(folder)).name == "000006.json"


def test_success_that_training_episodes_are_too_short_for_is_left_out(tmp_path: Path) -> None:
    run = read(str(cut_at(write_run(tmp_path / "a"), 96)))
    assert run.reach.out
    assert "they end after 96 control steps, and the fastest success of an evaluation took 97" in run.reach.why
    found = series.charts([run])
    assert [chart.title for chart in found][:3] == ["Return: training", "Progress", "Success"]
    assert [line.label for line in found[2].lines] == ["evaluation, greedy, in 144 steps"]
    assert found[2].axis == "episodes that succeed, evaluation, greedy, in 144 steps"
    assert [chart.title for chart in series.charts([run, run])][:3] == [
        "Return: training", "Progress: training", "Success: evaluation",
    ]  # fmt: skip


@pytest.mark.parametrize(("steps", "solved"), [(97, 0.0), (96, 0.25)])
def test_success_that_can_happen_or_has_happened_is_shown(steps: int, solved: float, tmp_path: Path) -> None:
    folder = cut_at(write_run(tmp_path / "a"), steps)
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": 7, "rollout/success_rate": solved}) + "\n")
    run = read(str(folder))
    assert not run.reach.out
    chart = series.charts([run])[0]
    assert [chart.title, len(chart.lines[0].points)] == ["Success", 7]


def test_no_chart_has_two_kinds_of_return(tmp_path: Path) -> None:
    def returns(*folders: Path) -> list[tuple[str, str, int]]:
        found = series.charts([read(str(folder)) for folder in folders])
        return [(one.title, one.axis, len(one.lines)) for one in found if one.title.startswith("Return")]

    def with_returns(name: str, **train: object) -> Path:
        folder = cut_at(write_run(tmp_path / name, group_size=len(train) + 2), 144, **train)
        with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": 6, "rollout/return_mean": 0.2, "eval/return_mean": 0.7}) + "\n")
        return folder

    alike, other = with_returns("a"), with_returns("b", reward_mode="dense", use_rel_reward=True)
    assert returns(alike) == [("Return", "sparse rewards", 2)]
    assert returns(other) == [
        ("Return: training", "changes of dense rewards", 1), ("Return: evaluation", "sparse rewards", 1),
    ]  # fmt: skip
    assert returns(alike, other) == [
        ("Return: training", "sparse rewards", 1), ("Return: training", "changes of dense rewards", 1),
        ("Return: evaluation", "sparse rewards", 2),
    ]  # fmt: skip
