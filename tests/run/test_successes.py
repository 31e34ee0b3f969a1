"""Success by task and over all, and what stands in files, metrics and tables, by hand."""

from __future__ import annotations

from statistics import NormalDist

import pytest

from embodied.errors import EvaluationError
from embodied.observe.statistics import wilson
from embodied.run.build.action_kind import TEXT
from embodied.run.evaluation import successes
from embodied.run.evaluation.conditions import Conditions
from embodied.types import Episode, EpisodeResult, Start

UNDER = Conditions(
    "w", max_steps=40, env_max_steps=50, episodes_per_task=4, init_states_per_task=(4, 4), sampling={}, env_seed=0,
    use_fixed_reset_state_ids=True, ignore_terminations=False, reward_mode="sparse", reward_coef=5.0,
    use_rel_reward=False, seed=0,
)  # fmt: skip


def episode(number: int, task: int, state: int, solved_at: int, steps: int, progress: float = 0.0, **more: object):
    start, won = Start(task, state, number), solved_at > 0
    return EpisodeResult(
        Episode(number, number, start, f"{number}.mp4"), (), 5.0 * won, won, steps, won, not won,
        progress=progress, solved_at=solved_at, **more,
    )  # fmt: skip


RAN = [
    episode(0, 0, 0, 10, 12),
    episode(1, 0, 1, 0, 40, 0.25),
    episode(2, 0, 2, 30, 33),
    episode(3, 0, 3, 11, 15),
    episode(4, 1, 0, 0, 40, 0.75),
    episode(5, 1, 1, 0, 20, 0.25),
]
LOST = [episode(6, 1, 2, 0, 0, not_run="the simulator ended"), episode(7, 1, 3, 0, 0, not_run="again")]
ROWS = successes.summarise(["push", "pull"], RAN, not_run=LOST)


def test_a_row_of_each_task_and_one_over_all():
    assert [(row.task_id, row.instruction) for row in ROWS] == [(0, "push"), (1, "pull"), (-1, "all tasks")]
    assert [(row.successes, row.episodes, row.success_rate) for row in ROWS] == [(3, 4, 0.75), (0, 2, 0.0), (3, 6, 0.5)]
    assert [(row.low, row.high) for row in ROWS] == [wilson(3, 4), wilson(0, 2), wilson(3, 6)]
    assert [row.steps_mean for row in ROWS] == [25.0, 30.0, pytest.approx(160 / 6)]
    assert [row.not_run for row in ROWS] == [0, 2, 2]


def test_steps_to_success_are_the_median_of_those_that_succeeded():
    """Of 10, 30 and 11; their mean is 17."""
    assert [row.steps_to_success for row in ROWS] == [11, None, 11]
    assert successes.metrics(ROWS, RAN, UNDER)["eval/time_to_success_mean"] == 17.0


def test_a_task_without_an_episode_has_no_row():
    assert [row.task_id for row in successes.summarise(["push", "pull", "lift"], RAN[:4])] == [0, -1]


@pytest.mark.parametrize("times", [1, 3, 20])
def test_several_episodes_of_a_start_make_an_interval_no_narrower(times):
    again = [one for one in RAN for _ in range(times)]
    rows = successes.summarise(["push", "pull"], again)
    assert [(row.successes, row.episodes) for row in rows] == [
        (3 * times, 4 * times),
        (0, 2 * times),
        (3 * times, 6 * times),
    ]
    assert [(row.low, row.high) for row in rows] == [wilson(3, 4), wilson(0, 2), wilson(3, 6)]


def test_a_problem_in_text_is_one_whatever_its_seed():
    """Episodes 0 and 1 of equal task and state differ by their seeds."""
    both = [episode(0, 0, 5, 1, 1), episode(1, 0, 5, 0, 1), episode(2, 0, 6, 1, 1)]
    (row, _) = successes.summarise(["sum"], both, TEXT.origin)
    assert (row.low, row.high) == wilson(2 * 2 / 3, 2)
    (row, _) = successes.summarise(["sum"], both)
    assert (row.low, row.high) == wilson(2, 3)


def test_failures_that_got_farthest_come_first_and_equal_ones_in_the_plan_s_order():
    found = successes.failures(RAN)
    assert [(one["progress"], one["start"]["seed"]) for one in found] == [(0.75, 4), (0.25, 1), (0.25, 5)]
    assert found[0] == {
        "start": {"task_id": 1, "init_state_id": 0, "seed": 4}, "progress": 0.75, "steps": 40, "video": "4.mp4"
    }  # fmt: skip
    head, *rows = successes.failure_cells(successes.shown_failures(found * 5))
    assert head == ["task", "initial state", "seed", "progress", "steps", "video"]
    assert len(rows) == successes.SHOWN_FAILURES
    assert rows[0] == ["1", "0", "4", "0.75", "40", "4.mp4"]


def test_recorded_failures_are_shown_first_each_by_how_far_they_got():
    found = [{"progress": 1 - n / 20, "video": f"{n}.mp4" if n in (3, 14) else None} for n in range(15)]
    shown = successes.shown_failures(found)
    assert [round(20 * (1 - one["progress"])) for one in shown] == [3, 14, 0, 1, 2, 4, 5, 6, 7, 8]


def test_facts_of_an_episode_and_of_one_that_could_not_be_run():
    assert successes.facts(RAN[0]) == {
        "start": {"task_id": 0, "init_state_id": 0, "seed": 0}, "success": True, "return": 5.0, "steps": 12,
        "progress": 0.0, "steps_to_success": 10, "video": "0.mp4",
    }  # fmt: skip
    assert successes.facts(RAN[1])["steps_to_success"] is None
    lost = successes.facts(LOST[0])
    assert (lost["success"], lost["steps"], lost["not_run"]) == (None, None, "the simulator ended")


def test_episodes_that_could_not_be_run_count_neither_way():
    ran, lost = successes.split_run([*RAN, *LOST])
    assert (ran, lost) == (RAN, LOST)
    assert successes.not_run_note(lost).endswith("the first: the simulator ended")
    assert successes.not_run_note(lost).startswith("2 planned episodes")
    assert successes.not_run_note([]) is None
    with pytest.raises(EvaluationError, match="none of 2 episodes could be run; the first: the simulator ended"):
        successes.split_run(LOST)


def test_metrics_are_those_of_the_last_row_and_of_each_task():
    found = successes.metrics(ROWS, RAN, UNDER)
    low, high = wilson(3, 6)
    assert found == {
        "eval/success_rate": 0.5, "eval/success_low": low, "eval/success_high": high, "eval/return_mean": 2.5,
        "eval/episodes": 6, "eval/max_steps": 40, "eval/env_max_steps": 50,
        "eval/episode_length_mean": pytest.approx(160 / 6), "eval/time_to_success_mean": 17.0,
        "eval/time_to_success_min": 10, "eval/progress_mean": pytest.approx(1.25 / 6),
        "eval/task/0/success_rate": 0.75, "eval/task/1/success_rate": 0.0,
    }  # fmt: skip
    without = found.keys() - successes.metrics(ROWS, RAN, UNDER, steps=False).keys()
    assert without == {
        "eval/episode_length_mean", "eval/time_to_success_mean", "eval/time_to_success_min", "eval/progress_mean",
    }  # fmt: skip
    nobody = successes.summarise(["push", "pull"], RAN[4:])
    assert "eval/time_to_success_mean" not in successes.metrics(nobody, RAN[4:], UNDER)


def test_tables_for_the_console_and_for_trackers():
    head, push, pull, over_all = successes.cells(ROWS)
    assert head == ["task", "success", "95 % interval", "not run", "mean length", "to success, median", "instruction"]
    assert push == ["0", "3/4 (75%)", "30% to 95%", "0", "25", "11", "push"]
    assert pull == ["1", "0/2 (0%)", "0% to 66%", "2", "30", "-", "pull"]
    assert over_all[0] == "all"
    assert "not run" not in successes.cells(successes.summarise(["push"], RAN[:4]))[0]
    assert successes.cells(ROWS, steps=False)[1] == ["0", "3/4 (75%)", "30% to 95%", "0", "push"]
    columns, rows = successes.table(ROWS, {"name": None, "hash": "ab"})
    assert [len(row) for row in rows] == [len(columns)] * 3
    assert dict(zip(columns, rows[1], strict=True))["not_run"] == 2
    assert rows[2][:4] == ["all", "all tasks", 3, 6]
    assert rows[0][-2:] == ["", "ab"]


def test_the_interval_is_of_95_percent():
    z = NormalDist().inv_cdf(0.975)
    assert ROWS[1].high == pytest.approx(z * z / (2 + z * z), abs=1e-4)
