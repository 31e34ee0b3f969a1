"""Rows of times to success: of folders as runs leave them, old, interrupted and mixed ones too."""

from __future__ import annotations

import json

import pytest
import yaml
from reported_runs import change_evaluation, under
from timed_runs import checkpoint, cost, evaluated, rows_from, timed_run

from embodied.observe.statistics import wilson
from embodied.report import series
from embodied.report.reading import read
from embodied.report.time_to_success import rows, text
from embodied.tools import report


def test_the_first_evaluation_whose_lower_end_passes_counts(tmp_path):
    """Wilson's lower end of 60 of 100 is above 50 %, that of 59 is not."""
    assert wilson(59, 100)[0] < 0.5 < wilson(60, 100)[0]
    (row,) = rows_from(timed_run(tmp_path / "a", {0: 10, 2: 59, 3: 60, 4: 80}))
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
    folders = [timed_run(tmp_path / name, successes, seed) for name, successes, seed in (
        ("a", {2: 70, 4: 90}, 1), ("b", {3: 70, 4: 80}, 2), ("c", {4: 95}, 3),
    )]  # fmt: skip
    (row,) = rows_from(*folders)
    assert [training.seed for training in row.trainings] == [1, 2, 3]
    assert row.until["50"].wall_s == rows.Spread(median=310, low=210, high=410)
    assert row.until["85"].reached == 1
    assert row.until["85"].wall_s == rows.Spread(median=None, low=410, high=None), "two of three have not reached it"
    assert row.protocol.hashes == ["hash1", "hash2", "hash3"]
    lines = {line[1]: line for line in text.times([row])[1:]}
    assert lines["50 %"][2:5] == ["3 of 3", "5.2 min (3.5 min to 6.8 min)", "7.8 min (5.3 min to 10.3 min)"]
    assert lines["85 %"][3] == "not reached (6.8 min to not reached)"


def test_other_configurations_and_other_protocols_are_rows_of_their_own(tmp_path):
    first, second = timed_run(tmp_path / "a", {4: 70}), timed_run(tmp_path / "b", {4: 70}, 2, keys={"max_steps": 8})
    third = timed_run(tmp_path / "c", {4: 70}, 3)
    config = yaml.safe_load((third / "config.yaml").read_text(encoding="utf-8"))
    config["algorithm"]["group_size"] = 3
    (third / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    assert [row.name for row in rows_from(first, second, third)] == ["a", "b", "c"]


def test_the_models_seed_follows_that_of_the_run(tmp_path):
    folders = [timed_run(tmp_path / name, {4: 70}, seed) for name, seed in (("a", 1), ("b", 2), ("c", 3))]
    for folder, seed in zip(folders, (1, 2, 99), strict=True):
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        config["actor"]["model"] = {"seed": seed, "_target_": "a.flow.build", "model_path": "/x/y/clone"}
        (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    found = rows_from(*folders)
    assert [row.name for row in found] == ["a, b", "c"]
    assert (found[0].policy.name, found[0].policy.begins_from) == ("flow", "clone")


def test_what_an_old_run_has_not_recorded_is_not_known(tmp_path):
    (row,) = rows_from(timed_run(tmp_path / "a", {4: 70}, costs=False))
    assert (row.hardware, row.policy.parameters) == (None, None)
    level = row.until["50"]
    assert (level.wall_s.median, level.cpu_s) == (400, None), "the iterations alone, and no guess"
    assert row.trainings[0].wall_is_least
    assert text.times([row])[1][3:5] == ["≥ 6.7 min", "not known"]
    assert "not known" in text.facts([row])[1]


def test_a_run_with_lost_metrics_has_no_sums(tmp_path):
    folder = timed_run(tmp_path / "a", {4: 70}, costs=False)
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    (folder / "metrics.jsonl").write_text("\n".join([lines[0], *lines[2:]]), encoding="utf-8")
    (row,) = rows_from(folder)
    assert [row.until["50"].wall_s, row.until["50"].env_steps] == [None, None]


@pytest.mark.parametrize(("whole", "least"), [((True, False), False), ((False, True), True), ((True,) * 3, False)])
def test_a_launch_that_was_killed_makes_the_seconds_a_lower_bound(tmp_path, whole, least):
    folder = timed_run(tmp_path / "a", {4: 70})
    cost(folder, *whole)
    (row,) = rows_from(folder)
    assert row.trainings[0].wall_is_least is least, "of the last launch all counts that came before the evaluation"


def test_a_launch_that_left_no_costs_makes_the_seconds_a_lower_bound(tmp_path, capsys):
    """Of three launches the second could not write its costs; the rows of the third have no sums then."""
    folder = timed_run(tmp_path / "a", {2: 10, 4: 70})
    cost(folder, True, True, True)
    costs = json.loads((folder / "costs.json").read_text(encoding="utf-8"))
    del costs["launches"]["2"]
    (folder / "costs.json").write_text(json.dumps(costs), encoding="utf-8")
    (folder / "starts.jsonl").write_text((folder / "starts.jsonl").read_text(encoding="utf-8") * 3, encoding="utf-8")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    for row in rows[:2]:
        row["time/run_s"] += 1000  # of start-up, which iterations do not count
    for row in rows[2:]:
        del row["time/run_s"], row["time/run_cpu_s"]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (found,) = rows_from(folder)
    assert [one.wall_s for one in found.trainings[0].evaluations] == [1210, 1410]
    assert found.trainings[0].wall_is_least
    assert report.main(["--time-to-success", str(folder), "--json"]) == 0
    (tmp_path / "rows.json").write_text(capsys.readouterr().out, encoding="utf-8")
    assert report.main(["--time-to-success", "--check", str(tmp_path / "rows.json")]) == 0


def test_the_last_launch_that_left_no_costs_is_missed_too(tmp_path):
    folder = timed_run(tmp_path / "a", {4: 70})
    cost(folder, False)
    (folder / "starts.jsonl").write_text((folder / "starts.jsonl").read_text(encoding="utf-8") * 2, encoding="utf-8")
    assert rows_from(folder)[0].trainings[0].wall_is_least


def test_episodes_that_were_dropped_have_been_run(tmp_path):
    folder = timed_run(tmp_path / "a", {1: 70}, iterations=1)
    row = json.loads((folder / "metrics.jsonl").read_text(encoding="utf-8"))
    row |= {"rollout/dropped_groups": 2, "rollout/greedy_episodes": 5}
    (folder / "metrics.jsonl").write_text(json.dumps(row), encoding="utf-8")
    (found,) = rows_from(folder)
    size = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))["algorithm"]["group_size"]
    assert found.until["50"].training_episodes.median == 16 + 2 * size + 5


def test_an_evaluation_of_a_checkpoint_is_one_of_its_training(tmp_path):
    training = timed_run(tmp_path / "a", {}, costs=False)
    of = checkpoint(training, 3)
    after = evaluated(tmp_path / "after", of, 70)
    (row,) = rows_from(training, after)
    assert row.trainings[0].evaluations[0].iteration == 3
    assert row.until["50"].env_steps.median == 1500
    assert row.policy.trained == 16, "counted in the checkpoint"
    with pytest.raises(Exception, match="no checkpoint of the trainings named") as refused:
        rows_from(timed_run(tmp_path / "b", {4: 70}), after)
    assert "name the training's folder too" in refused.value.remedy


def test_a_run_without_evaluations_is_named(tmp_path, capsys):
    assert report.main(["--time-to-success", str(timed_run(tmp_path / "a", {}))]) == 2
    said = capsys.readouterr().err
    assert "has no evaluation, so nothing says when it succeeded" in said
    assert "runner.val_check_interval" in said


def test_several_protocols_in_a_run_are_named_and_one_is_chosen(tmp_path):
    folder = timed_run(tmp_path / "a", {2: 70, 4: 90})
    change_evaluation(folder, 4, under("other", "hash9"))
    with pytest.raises(Exception, match="under several protocols") as refused:
        rows_from(folder)
    assert "named (hash1) after 2 iterations; other (hash9) after 4 iterations" in refused.value.message
    assert "--protocol hash9" in refused.value.remedy
    for chosen, iteration in (("hash9", 4), ("named", 2)):
        (row,) = rows_from(folder, protocol=chosen)
        assert [one.iteration for one in row.trainings[0].evaluations] == [iteration]
    with pytest.raises(Exception, match="no evaluation of protocol third; it has: named"):
        rows_from(folder, protocol="third")


def test_an_evaluation_of_another_protocol_leaves_the_trainings_own(tmp_path):
    training = timed_run(tmp_path / "a", {2: 80, 4: 90})
    after = evaluated(tmp_path / "after", checkpoint(training, 2), 20)
    change_evaluation(after, 0, under("other", "hash9"))
    with pytest.raises(Exception, match="under several protocols"):
        rows_from(training, after)
    (row,) = rows_from(training, after, protocol="named")
    assert row.until["70"].env_steps.median == 1000
    (row,) = rows_from(training, after, protocol="hash9")
    assert [(one.iteration, one.successes) for one in row.trainings[0].evaluations] == [(2, 20)]


def test_a_second_evaluation_of_one_protocol_is_refused(tmp_path):
    training = timed_run(tmp_path / "a", {2: 80, 4: 90})
    after = evaluated(tmp_path / "after", checkpoint(training, 2), 20)
    with pytest.raises(Exception, match=r"twice under protocol named \(hash1\) after 2 iterations") as refused:
        rows_from(training, after)
    assert f"leave {after} out" in refused.value.remedy
    assert rows_from(training)[0].until["70"].env_steps.median == 1000, "as the fix has it"


def test_a_seed_that_is_there_twice_is_refused(tmp_path):
    folders = [timed_run(tmp_path / name, {4: 70}, seed) for name, seed in (("a", 1), ("b", 2), ("c", 2))]
    with pytest.raises(Exception, match=r"b and .*c are trainings of one configuration with one seed, 2") as refused:
        rows_from(*folders)
    assert "runner.seed=3" in refused.value.remedy
    assert [training.seed for training in rows_from(*folders[:2])[0].trainings] == [1, 2]
    runs = [read(str(folder)) for folder in folders]
    assert [[run.folder.name for run in group.runs] for group in series.groups(runs)] == [["a", "b"], ["c"]]


def test_a_shorter_training_is_a_row_of_its_own(tmp_path):
    first, second = timed_run(tmp_path / "a", {4: 70}), timed_run(tmp_path / "b", {2: 10}, 2, iterations=2)
    assert [(row.name, row.until["50"].reached) for row in rows_from(first, second)] == [("a", 1), ("b", 0)]


def test_a_training_that_has_not_ended_says_how_far_it_was_seen(tmp_path):
    first, second = timed_run(tmp_path / "a", {2: 70, 4: 90}), timed_run(tmp_path / "b", {2: 10, 4: 90}, 2)
    lines = (second / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    (second / "metrics.jsonl").write_text("\n".join(lines[:3]), encoding="utf-8")
    (second / "eval" / "000004.json").unlink()
    (row,) = rows_from(first, second)
    assert [training.seen for training in row.trainings] == [None, 3]
    assert "1, 2 (seen until iteration 3 only)" in text.facts([row])[1]
    assert text.times([row])[1][2] == "1 of 2, 1 of them not trained to the end"
    (row,) = rows_from(second)
    assert text.times([row])[1][2].endswith(", 1 of them not trained to the end")


@pytest.mark.parametrize(
    "arguments", [[], ["--time-to-success"], ["runs/A", "--check", "x"], ["--json", "runs/A"],
                  ["--time-to-success", "runs/A", "--check", "x"], ["--time-to-success", "runs/none"]],
)  # fmt: skip
def test_arguments_that_do_not_go_together(capsys, arguments):
    assert report.main(arguments) == 2
    assert "\n  fix: " in capsys.readouterr().err
