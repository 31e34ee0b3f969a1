"""Rows of times to success: of folders as runs leave them, old, interrupted and mixed ones too; the check of rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from reported_runs import change_evaluation, under, write_run

from embodied.lib.weights_folder import identity
from embodied.observe.statistics import wilson
from embodied.report.reading import read
from embodied.report.time_to_success import rows, text
from embodied.report.time_to_success.measure import rows_of
from embodied.tools import report

ROOT = Path(__file__).resolve().parents[2]
KEYS = {"max_steps": 9, "seed": 1}


def _run(
    folder: Path, successes: dict[int, int], seed: int = 1, costs: bool = True, keys: dict[str, Any] = KEYS,
    iterations: int = 4,
) -> Path:  # fmt: skip
    """A run of ``iterations`` iterations of 100 s, 150 CPU seconds, 500 control steps and 16 episodes, with evaluations
    of 100 episodes. Start-up took 10 s and 20 CPU seconds."""
    write_run(folder, iterations, tuple(successes), 100, seed=seed, tasks=("stack the cubes",))
    for iteration, count in successes.items():
        change_evaluation(folder, iteration, lambda found, count=count: _solve(found, count))
        change_evaluation(folder, iteration, under("named", f"hash{seed}"))
        change_evaluation(folder, iteration, lambda found: found["protocol"].update(keys={**keys, "seed": seed}))
    made = [{"step": step, "rollout/env_steps": 500, "rollout/episodes": 16, "time/iteration_s": 100.0}
            for step in range(1, iterations + 1)]  # fmt: skip
    for row in made:
        if costs:
            row |= {"time/run_s": 10 + 100.0 * row["step"], "time/run_cpu_s": 20 + 150.0 * row["step"]}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
    if costs:
        _cost(folder, True)
    return folder


def _solve(found: dict[str, Any], count: int) -> None:
    for number, episode in enumerate(found["episodes"]):
        episode["success"] = number < count


def _cost(folder: Path, *whole: bool) -> None:
    launches = {
        str(number): {"hardware": "2 × CPU", "processes": 1, "wall_s": 1.0, "cpu_s": 1.0, "whole": one}
        for number, one in enumerate(whole, 1)
    }
    content = {"policy": {"parameters": 1000, "trained": 100}, "launches": launches}
    (folder / "costs.json").write_text(json.dumps(content), encoding="utf-8")


def _rows(*folders: Path, protocol: str | None = None) -> list[rows.Row]:
    return rows_of([read(str(folder)) for folder in folders], protocol)


def test_the_first_evaluation_whose_lower_end_passes_counts(tmp_path):
    """Wilson's lower end of 60 of 100 is above 50 %, that of 59 is not."""
    assert wilson(59, 100)[0] < 0.5 < wilson(60, 100)[0]
    (row,) = _rows(_run(tmp_path / "a", {0: 10, 2: 59, 3: 60, 4: 80}))
    level = row.until["50"]
    assert level.reached == 1
    assert level.wall_s == rows.Spread(median=310, low=310, high=310)
    assert level.cpu_s == rows.Spread(median=470, low=470, high=470)
    assert level.env_steps.median == 1500
    assert level.training_episodes.median == 48
    assert row.until["70"].wall_s.median == 410, "80 of 100: the lower end is 71.1 %"
    assert (row.until["85"].reached, row.until["85"].wall_s.median) == (0, None)
    first = row.trainings[0].evaluations[0]
    assert (first.iteration, first.rate, first.env_steps, first.training_episodes) == (0, 0.1, 0, 0)
    assert (row.hardware, row.policy.parameters, row.policy.trained) == ("2 × CPU", 1000, 100)
    assert (row.protocol.name, row.protocol.hashes, row.date) == ("named", ["hash1"], "2026-01-31")
    assert not row.trainings[0].wall_is_least


def test_seeds_are_one_row_with_median_and_range(tmp_path):
    folders = [_run(tmp_path / name, successes, seed) for name, successes, seed in (
        ("a", {2: 70, 4: 90}, 1), ("b", {3: 70, 4: 80}, 2), ("c", {4: 95}, 3),
    )]  # fmt: skip
    (row,) = _rows(*folders)
    assert [training.seed for training in row.trainings] == [1, 2, 3]
    assert row.until["50"].wall_s == rows.Spread(median=310, low=210, high=410)
    assert row.until["85"].reached == 1
    assert row.until["85"].wall_s == rows.Spread(median=None, low=410, high=None), "two of three have not reached it"
    assert row.protocol.hashes == ["hash1", "hash2", "hash3"]
    lines = {line[1]: line for line in text.times([row])[1:]}
    assert lines["50 %"][2:5] == ["3 of 3", "5.2 min (3.5 min to 6.8 min)", "7.8 min (5.3 min to 10.3 min)"]
    assert lines["85 %"][3] == "not reached (6.8 min to not reached)"


def test_other_configurations_and_other_protocols_are_rows_of_their_own(tmp_path):
    first, second = _run(tmp_path / "a", {4: 70}), _run(tmp_path / "b", {4: 70}, 2, keys={"max_steps": 8})
    third = _run(tmp_path / "c", {4: 70}, 3)
    config = yaml.safe_load((third / "config.yaml").read_text(encoding="utf-8"))
    config["algorithm"]["group_size"] = 3
    (third / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    assert [row.name for row in _rows(first, second, third)] == ["a", "b", "c"]


def test_the_models_seed_follows_that_of_the_run(tmp_path):
    folders = [_run(tmp_path / name, {4: 70}, seed) for name, seed in (("a", 1), ("b", 2), ("c", 3))]
    for folder, seed in zip(folders, (1, 2, 99), strict=True):
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        config["actor"]["model"] = {"seed": seed, "_target_": "a.flow.build", "model_path": "/x/y/clone"}
        (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    found = _rows(*folders)
    assert [row.name for row in found] == ["a, b", "c"]
    assert (found[0].policy.name, found[0].policy.begins_from) == ("flow", "clone")


def test_what_an_old_run_has_not_recorded_is_not_known(tmp_path):
    (row,) = _rows(_run(tmp_path / "a", {4: 70}, costs=False))
    assert (row.hardware, row.policy.parameters) == (None, None)
    level = row.until["50"]
    assert (level.wall_s.median, level.cpu_s) == (400, None), "the iterations alone, and no guess"
    assert row.trainings[0].wall_is_least
    assert text.times([row])[1][3:5] == ["≥ 6.7 min", "not known"]
    assert "not known" in text.facts([row])[1]


def test_a_run_with_lost_metrics_has_no_sums(tmp_path):
    folder = _run(tmp_path / "a", {4: 70}, costs=False)
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    (folder / "metrics.jsonl").write_text("\n".join([lines[0], *lines[2:]]), encoding="utf-8")
    (row,) = _rows(folder)
    assert [row.until["50"].wall_s, row.until["50"].env_steps] == [None, None]


@pytest.mark.parametrize(("whole", "least"), [((True, False), False), ((False, True), True), ((True,) * 3, False)])
def test_a_launch_that_was_killed_makes_the_seconds_a_lower_bound(tmp_path, whole, least):
    folder = _run(tmp_path / "a", {4: 70})
    _cost(folder, *whole)
    (row,) = _rows(folder)
    assert row.trainings[0].wall_is_least is least, "of the last launch all counts that came before the evaluation"


def test_episodes_that_were_dropped_have_been_run(tmp_path):
    folder = _run(tmp_path / "a", {1: 70}, iterations=1)
    row = json.loads((folder / "metrics.jsonl").read_text(encoding="utf-8"))
    row |= {"rollout/dropped_groups": 2, "rollout/greedy_episodes": 5}
    (folder / "metrics.jsonl").write_text(json.dumps(row), encoding="utf-8")
    (found,) = _rows(folder)
    size = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))["algorithm"]["group_size"]
    assert found.until["50"].training_episodes.median == 16 + 2 * size + 5


def _checkpoint(folder: Path, iteration: int) -> dict[str, Any]:
    """Writes what of a checkpoint says whose it is; returns what an evaluation of it notes."""
    meta = {"iteration": iteration, "parameters": {"w": [3, 4], "b": [4]}, "checksums": {"x": str(folder)},
            "trainer": {"weight_version": 1}}  # fmt: skip
    place = folder / "checkpoints" / f"{iteration:06d}"
    place.mkdir(parents=True)
    (place / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    return {"path": f"runs/x/checkpoints/{iteration:06d}", "identity": identity(meta)}


def _evaluated(folder: Path, of: dict[str, Any], successes: int) -> Path:
    _run(folder, {0: successes})
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    config["runner"]["only_eval"] = True
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    change_evaluation(folder, 0, lambda found: found.update(checkpoint=of))
    return folder


def test_an_evaluation_of_a_checkpoint_is_one_of_its_training(tmp_path):
    training = _run(tmp_path / "a", {}, costs=False)
    of = _checkpoint(training, 3)
    after = _evaluated(tmp_path / "after", of, 70)
    (row,) = _rows(training, after)
    assert row.trainings[0].evaluations[0].iteration == 3
    assert row.until["50"].env_steps.median == 1500
    assert row.policy.trained == 16, "counted in the checkpoint"
    with pytest.raises(Exception, match="no checkpoint of the trainings named") as refused:
        _rows(_run(tmp_path / "b", {4: 70}), after)
    assert "name the training's folder too" in refused.value.remedy


def test_a_run_without_evaluations_is_named(tmp_path, capsys):
    assert report.main(["--time-to-success", str(_run(tmp_path / "a", {}))]) == 2
    said = capsys.readouterr().err
    assert "has no evaluation, so nothing says when it succeeded" in said
    assert "runner.val_check_interval" in said


def test_several_protocols_in_a_run_are_named_and_one_is_chosen(tmp_path):
    folder = _run(tmp_path / "a", {2: 70, 4: 90})
    change_evaluation(folder, 4, under("other", "hash9"))
    with pytest.raises(Exception, match="under several protocols") as refused:
        _rows(folder)
    assert "named (hash1) after 2 iterations; other (hash9) after 4 iterations" in refused.value.message
    assert "--protocol hash9" in refused.value.remedy
    for chosen, iteration in (("hash9", 4), ("named", 2)):
        (row,) = _rows(folder, protocol=chosen)
        assert [one.iteration for one in row.trainings[0].evaluations] == [iteration]
    with pytest.raises(Exception, match="no evaluation of protocol third; it has: named"):
        _rows(folder, protocol="third")


@pytest.mark.parametrize(
    "arguments", [[], ["--time-to-success"], ["runs/A", "--check", "x"], ["--json", "runs/A"],
                  ["--time-to-success", "runs/A", "--check", "x"], ["--time-to-success", "runs/none"]],
)  # fmt: skip
def test_arguments_that_do_not_go_together(capsys, arguments):
    assert report.main(arguments) == 2
    assert "\n  fix: " in capsys.readouterr().err


# -- the check -------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A file of rows, as the command prints it."""
    folders = [str(_run(tmp_path / name, {0: 10, 4: 70}, seed)) for name, seed in (("a", 1), ("b", 2))]
    assert report.main(["--time-to-success", *folders, "--json"]) == 0
    made = tmp_path / "rows.json"
    made.write_text(capsys.readouterr().out, encoding="utf-8")
    return made


def test_rows_that_the_command_prints_pass(file, capsys):
    assert report.main(["--time-to-success", "--check", str(file), "--markdown"]) == 0
    said = capsys.readouterr()
    assert "1 rows, as they must be" in said.err
    assert "| a, b | 50 % | 2 of 2 | 6.8 min | 10.3 min | 2,000 | 64 |" in said.out


def test_the_page_has_the_tables_of_our_rows():
    found = rows.check(ROOT / "benchmarks" / "results" / "time_to_success.json")
    page = (ROOT / "docs" / "results" / "time_to_success.md").read_text(encoding="utf-8")
    for table in (text.facts(found), text.times(found)):
        assert text.markdown(table) in page, "put in what --time-to-success --check FILE --markdown prints"


def test_the_schema_is_that_of_the_rows():
    assert rows.SCHEMA.read_text(encoding="utf-8") == rows.schema(), "make docs writes it"


def _changed(*path: str | int, to: Any) -> Any:
    def change(found: Any) -> None:
        for part in path[:-1]:
            found = found[part]
        found[path[-1]] = to

    return change


EVALUATION = ("rows", 0, "trainings", 1, "evaluations", 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_changed(*EVALUATION, "low", to=0.69), "rows[0].trainings[1].evaluations[1]: the interval is 0.69 to"),
        (_changed(*EVALUATION, "rate", to=0.9), "evaluations[1].rate is 0.9, and 70/100 is 0.7"),
        (_changed(*EVALUATION, "successes", to=101), "101 successes on 100 starts in 100 episodes"),
        (_changed(*EVALUATION, "successes", to=-1), "rows[0].trainings[1].evaluations[1].successes: Input should be"),
        (_changed(*EVALUATION, "episodes", to=0), "evaluations[1].episodes: Input should be greater"),
        (_changed(*EVALUATION, "episodes", to="100"), "evaluations[1].episodes: Input should be a valid integer"),
        (_changed(*EVALUATION, "iteration", to=0), "iteration is 0, and that of the one before is 0"),
        (_changed(*EVALUATION, "env_steps", to=10), "until.50 does not follow"),
        (_changed("rows", 0, "trainings", 0, "evaluations", 0, "wall_s", to=9999.0), "wall_s is 410.0, and that of"),
        (_changed("rows", 0, "trainings", 0, "seed", to=2), "seeds are [2, 2], and each may be there once"),
        (_changed("rows", 0, "trainings", to=[]), "rows[0].trainings: List should have at least 1 item"),
        (_changed("rows", 0, "until", "70", "reached", to=2), "until.70 does not follow from the trainings"),
        (_changed("rows", 0, "until", to={}), "until: 50, 70, 85 is missing"),
        (_changed("rows", 0, "policy", "trained", to=2000), "2000 parameters are trained of 1000"),
        (_changed("rows", 0, "color", to="red"), "rows[0].color: Extra inputs are not permitted"),
        (_changed("rows", 0, "date", to="yesterday"), "rows[0].date: String should match pattern"),
        (_changed("format", to=2), "format: Input should be 1"),
    ],
)
def test_a_row_that_is_not_as_it_must_be_is_named_with_its_place(file, capsys, change, said):
    found = json.loads(file.read_text(encoding="utf-8"))
    change(found)
    file.write_text(json.dumps(found), encoding="utf-8")
    assert report.main(["--time-to-success", "--check", str(file)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "schema.json says what each field is" in error


@pytest.mark.parametrize(
    ("content", "said"),
    [("", "is no JSON"), ("[1, 2]", "the file: Input should be"), ('{"format": NaN}', "NaN is no number of JSON")],
)
def test_a_file_that_holds_no_rows(tmp_path, capsys, content, said):
    file = tmp_path / "rows.json"
    file.write_text(content, encoding="utf-8")
    assert report.main(["--time-to-success", "--check", str(file)]) == 2
    assert said in capsys.readouterr().err
    assert report.main(["--time-to-success", "--check", str(tmp_path / "none.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err
