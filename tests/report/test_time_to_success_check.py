"""The check of rows of times to success that others send, and our own rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from reported_runs import change_evaluation
from timed_runs import timed_run

from embodied.observe.statistics import wilson
from embodied.report.time_to_success import rows, text
from embodied.tools import report

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A file of rows, as the command prints it."""
    folders = [str(timed_run(tmp_path / name, {0: 10, 4: 70}, seed)) for name, seed in (("a", 1), ("b", 2))]
    assert report.main(["--time-to-success", *folders, "--json"]) == 0
    made = tmp_path / "rows.json"
    made.write_text(capsys.readouterr().out, encoding="utf-8")
    return made


def test_rows_that_the_command_prints_pass(file, capsys):
    assert report.main(["--time-to-success", "--check", str(file), "--markdown"]) == 0
    said = capsys.readouterr()
    assert "1 rows, as they must be" in said.err
    assert "| a, b | 50 % | 2 of 2 | 6.8 min | 10.3 min | 2,000 | 64 |" in said.out


@pytest.mark.parametrize(
    ("successes", "episodes", "starts", "right", "wrong"),
    [
        (10, 100, 99, 0.1, 1.0),
        (10, 100, 99, 10 / 99, 0.105),
        (10, 100, 99, 9 / 99 + 1 / 198, 0.08),
        (3, 4, 2, 1 - 1 / 6, 0.9),
        (0, 4, 2, 0.0, 0.1),
        (4, 4, 1, 1.0, 0.9),
    ],
)
def test_a_rate_over_starts_is_within_what_its_counts_allow(successes, episodes, starts, right, wrong):
    """3 successes of 4 episodes on 2 starts: at most 1/1 and 2/3."""
    for rate, passes in ((right, True), (wrong, False)):
        low, high = wilson(rate * starts, starts)
        one = rows.Evaluation(
            iteration=1, successes=successes, episodes=episodes, starts=starts, rate=rate, low=low, high=high,
            wall_s=None, cpu_s=None, env_steps=None, training_episodes=None,
        )  # fmt: skip
        assert (not [*rows._of_evaluation(one, None)]) is passes


def test_texts_of_several_lines_make_a_row_that_passes(tmp_path, capsys):
    folder = timed_run(tmp_path / "a", {4: 70})
    change_evaluation(
        folder, 4, lambda found: [task.update(instruction="add 1\n\tand \x1b2") for task in found["tasks"]]
    )
    assert report.main(["--time-to-success", str(folder), "--json"]) == 0
    made = tmp_path / "rows.json"
    made.write_text(capsys.readouterr().out, encoding="utf-8")
    assert rows.check(made)[0].task.instructions == ["add 1 and 2"]


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
        (_changed("rows", 0, "trainings", 0, "seen", to=3), "trainings[0].seen is 3, and an evaluation came later"),
        (_changed(*EVALUATION, "env_steps", to=10**400), "evaluations[1].env_steps: Input should be less than or"),
        (_changed(*EVALUATION, "wall_s", to=10**400), "evaluations[1].wall_s: Input should be"),
        (_changed("rows", 0, "trainings", 0, "seed", to=10**400), "trainings[0].seed: Input should be less than"),
        (_changed("rows", 0, "policy", "parameters", to=10**400), "policy.parameters: Input should be less than"),
        (_changed("rows", 0, "until", "50", "wall_s", "median", to=10**400), "until.50.wall_s.median: Input should be"),
        (_changed("rows", 0, "name", to="a\n| b"), "rows[0].name: String should match pattern"),
        (_changed("rows", 0, "hardware", to="\x1b[31mred"), "rows[0].hardware: String should match pattern"),
        (_changed("rows", 0, "protocol", "hashes", to=["\u2028"]), "protocol.hashes[0]: String should match pattern"),
        (_changed("rows", 0, "\x1b[31m", to=1), "rows[0].'\\x1b[31m': Extra inputs"),
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
