"""The closed table of metric names."""

import re

import pytest

from embodied.observe.metrics import METRICS, check, is_documented, markdown, of_evaluation


def test_documented_names_pass_and_others_do_not():
    check({"rollout/success_rate": 0.5, "train/loss": 1.0, "eval/task/12/success_rate": 0.25})
    with pytest.raises(ValueError, match=r"undocumented metric 'train/los'\. Did you mean 'train/loss'\?"):
        check({"train/loss": 1.0, "train/los": 1.0})


def test_a_sampled_evaluation_beside_a_greedy_one_has_the_same_metrics():
    filled = [name.replace("<n>", "3").replace("<name>", "camera") for name in METRICS if name.startswith("eval/")]
    names = [of_evaluation(name, sampled=True) for name in filled]
    assert {"eval_sampled/task/3/success_rate", "eval_sampled/kind/camera/success_rate"} <= {*names}
    check(names)
    assert of_evaluation("eval/success_rate", sampled=False) == "eval/success_rate"
    for other in ("eval_sampled/loss", "train/eval_sampled/episodes", "eval_sampled/eval/episodes"):
        assert not is_documented(other)


@pytest.mark.parametrize(
    "name",
    ["eval/task/x/success_rate", "eval/task//success_rate", "eval/task/<n>/success_rate", "loss", "train/loss/1"],
)
def test_a_pattern_takes_numbers_only(name):
    assert not is_documented(name)


def test_every_metric_has_a_group_and_a_meaning_of_one_line():
    for name, meaning in METRICS.items():
        assert re.fullmatch(r"(rollout|train|sft|eval|time|memory)/[a-z0-9_/<>]+", name)
        assert len(meaning) > 10
        assert "\n" not in meaning


def test_every_interval_has_both_ends():
    for side in ("rollout", "eval"):
        assert all(is_documented(f"{side}/success_{end}") for end in ("rate", "low", "high"))


def test_markdown_has_a_row_for_every_metric_and_two_cells_a_row():
    lines = markdown().splitlines()
    assert [line for line in lines if line.startswith("##")] == [
        "## rollout",
        "## train",
        "## sft",
        "## eval",
        "## time",
        "## memory",
    ]
    rows = [line for line in lines if line.startswith("| `")]
    assert len(rows) == len(METRICS)
    # Three bars a row: those that a meaning contains are escaped.
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 3 for row in rows)
    assert "| `rollout/episodes` | episodes finished in the iteration, count |" in rows
