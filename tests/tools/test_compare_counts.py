"""``python -m embodied.tools.compare --counts``: numbers that others publish; and evaluations that were chosen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from comparisons import below, refused

from embodied.observe import published, statistics
from embodied.tools import compare


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert compare.main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_best_of_thirteen(capsys):
    found = _json(capsys, "--counts", "30/50", "41/50", "--best-of", "13")
    first, second = found["systems"]
    assert (first["best_of"], second["best_of"]) == (1, 13)
    assert first["interval"] == pytest.approx(statistics.wilson(30, 50))
    assert second["corrected_interval"] == pytest.approx(published.corrected(41, 50, 13))
    (pair,) = found["comparisons"]
    assert pair["places"] == ["A", "B"]
    assert pair["difference"] == pytest.approx(0.22)
    assert pair["interval"] == pytest.approx(statistics.unpaired(30, 50, 41, 50))
    assert pair["p_value"] == pytest.approx(statistics.fisher(30, 50, 41, 50))
    assert pair["corrected_p"] == pair["adjusted"] == pytest.approx(1 - (1 - pair["p_value"]) ** 13)
    assert pair["left"] == pytest.approx(published.worth(41, 50, 13) - 0.6)
    assert pair["expected"] == pytest.approx(published.expected_best(0.6, 50, 13))
    assert pair["chance"] == pytest.approx(published.chance_of_best(41, 0.6, 50, 13))
    assert pair["needed"] == {
        "reported": published.episodes_needed(0.6, 0.82),
        "left": published.episodes_needed(0.6, second["worth"]),
    }
    assert pair["differ"] is False, "as reported they differ (p = 0.03), and 13 looks explain that"
    (plain,) = _json(capsys, "--counts", "30/50", "41/50")["comparisons"]
    assert (plain["differ"], plain["corrected"]) == (True, plain["interval"])


def test_what_a_person_is_told(capsys):
    assert compare.main(["--counts", "30/50", "41/50", "--best-of", "13"]) == 0
    said = capsys.readouterr().out
    assert "B  41/50 (82.0%)  69.2% to 90.2%  13       71.8%  62.1% to 91.4%" in said
    assert "as reported: +22.0% (+4.2% to +38.1%); Fisher's exact test: p = 0.0266" in said
    assert "the best is expected at 71.4%, and at 41/50 or above with probability 0.0098" in said
    assert "corrected for the choice (Šidák): +11.8% is left, interval -1.5% to +38.7%; p = 0.2957" in said
    assert "these numbers do not tell A and B apart" in said
    assert "75 for a true difference of +22.0%; 271 for +11.8%, if both are evaluated anew, without a choice" in said


def test_one_number_alone_has_its_worth(capsys):
    found = _json(capsys, "--counts", "41/50", "--best-of", "13")
    assert found["comparisons"] == []
    assert found["systems"][0]["worth"] == pytest.approx(published.worth(41, 50, 13))


def test_trainings_of_a_system_have_an_interval_of_their_own(capsys):
    found = _json(capsys, "--counts", "30/50,28/50,32/50", "41/50,38/50,44/50")
    first, (pair,) = found["systems"][0], found["comparisons"]
    assert first["over_trainings"]["mean"] == pytest.approx(0.6)
    spread = (91 / 152 * 61 / 152 / 50) ** 0.5  # that of the episodes, above the 0.04 of the trainings
    assert first["over_trainings"]["low"] == pytest.approx(0.6 - 4.3027 * spread / 3**0.5, abs=1e-5)
    assert pair["seeds"]["mean"] == pytest.approx(0.22)
    assert pair["p_value"] == pytest.approx(statistics.fisher(90, 150, 123, 150))
    assert pair["differ"] is True
    assert compare.main(["--counts", "30/50,28/50,32/50", "41/50"]) == 0
    said = capsys.readouterr().out
    assert "over trainings: not known, one of them has a single training" in said
    assert "all episodes as if of one training" in said


def test_each_training_with_a_best_of_its_own_is_corrected_before_the_mean(capsys):
    (pair,) = _json(capsys, "--counts", "30/50,28/50,32/50", "41/50,38/50,44/50", "--best-of", "13")["comparisons"]
    worths = [published.worth(k, 50, 13) for k in (41, 38, 44)]
    assert pair["seeds"]["mean"] == pytest.approx(sum(worths) / 3 - 0.6)
    assert (pair["corrected"], pair["corrected_p"]) == (None, None), "sums of such counts have no simple correction"
    assert pair["differ"] is False


def test_a_number_for_each_system_and_holm_over_pairs(capsys):
    found = _json(capsys, "--counts", "30/100", "35/100", "60/100", "--best-of", "4", "1", "2")
    assert [one["best_of"] for one in found["systems"]] == [4, 1, 2]
    p_values = [one["corrected_p"] for one in found["comparisons"]]
    assert p_values[1] == pytest.approx(published.sidak(statistics.fisher(30, 100, 60, 100), 8))
    assert [one["adjusted"] for one in found["comparisons"]] == pytest.approx(statistics.holm(p_values))
    assert compare.main(["--counts", "30/100", "35/100", "60/100"]) == 0
    assert "3 pairs were tested" in capsys.readouterr().out


TEN = ",".join(["30/50"] * 10), ",".join(["31/50"] * 10)


@pytest.mark.parametrize(
    "arguments",
    [
        ("30/50,30/50,31/50", "33/50,33/50,34/50", "--best-of", "13"),
        (*TEN, "--best-of", "13"),
        ("30/50,30/50", "31/50,31/50", "--best-of", "2"),
        ("30/50,30/50", "31/50,31/50"),
        ("40/50,40/50", "45/50", "--best-of", "2"),
    ],
    ids=["corrected is less", "and over trainings so", "no variance", "no choice", "no p"],
)
def test_what_is_no_verdict(capsys, arguments):
    """In the first two B is reported as better and worth less, so the sign hangs on how much of the best is luck."""
    (pair,) = _json(capsys, "--counts", *arguments)["comparisons"]
    assert pair["differ"] is False


def test_many_episodes_have_a_p_too(capsys):
    (pair,) = _json(capsys, "--counts", "5000/20001", "5500/20001")["comparisons"]
    assert (pair["p_value"], pair["differ"]) == (None, True)
    assert pair["adjusted"] == published.proportions(5000, 20001, 5500, 20001)


def test_the_sign_of_a_verdict_is_that_of_the_corrected_difference(capsys):
    arguments = ["--counts", ",".join(["48/50"] * 4), ",".join(["20/50"] * 4), "--best-of", "3"]
    assert compare.main(arguments) == 0
    assert "B succeeds less often than A" in capsys.readouterr().out


def test_holm_is_over_the_p_that_verdicts_use(capsys):
    """Trainings with a best of their own: A and B differ alone, and not as one of three pairs."""
    one, other, third = ("25/50,25/50,25/50", "38/50,38/50,38/50", "27/50,27/50,27/50")
    (alone,) = _json(capsys, "--counts", one, other, "--best-of", "3", "3")["comparisons"]
    assert alone["adjusted"] == alone["seeds"]["p_value"]
    found = _json(capsys, "--counts", one, other, third, "--best-of", "3", "3", "3")["comparisons"]
    assert [pair["adjusted"] for pair in found] == statistics.holm([pair["seeds"]["p_value"] for pair in found])
    assert (alone["differ"], found[0]["differ"]) == (True, False)
    assert compare.main(["--counts", one, other, third, "--best-of", "3", "3", "3"]) == 0
    assert "for all pairs (Holm): p = " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("51/50", "51 successes of 50 episodes", "at most the episodes"),
        ("0/0", "has no episodes", "SUCCESSES/EPISODES"),
        ("sixty", "'sixty' is no count", "SUCCESSES/EPISODES"),
        ("nan", "'nan' is no count", "SUCCESSES/EPISODES"),
        ("NaN/50", "'NaN/50' is no count", "SUCCESSES/EPISODES"),
        ("3.5/50", "'3.5/50' is no count", "SUCCESSES/EPISODES"),
        ("60%", "is a rate", "of 50 episodes 60% are 30/50"),
        ("82", "is a rate", "of 50 episodes 82 are 41/50"),
        ("30/50,", "'' in '30/50,' is no count", "SUCCESSES/EPISODES"),
        ("30/50,51/50", "'51/50' in '30/50,51/50' has 51", "at most the episodes"),
        ("1/200000", "more than 100,000 episodes", "check the count"),
        ("٣/٥", "is no count", "SUCCESSES/EPISODES"),
    ],
)
def test_counts_that_are_none_are_named_with_a_fix(capsys, text, message, fix):
    said = refused(capsys, "--counts", "30/50", text)
    assert message in said
    assert fix in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--counts", "1/2", "1/2", "--best-of", "0"), "--best-of has '0'"),
        (("--counts", "1/2", "1/2", "--best-of", "many"), "--best-of has 'many'"),
        (("--counts", "1/2", "1/2", "1/2", "--best-of", "2", "3"), "--best-of has 2 numbers, and there are 3 systems"),
        (("--best-of", "3"), "--best-of stands alone"),
        (("runs/A", "--counts", "1/2"), "--counts compares numbers"),
        (("--counts", "1/2", "--unpaired"), "--counts compares numbers"),
        (("--counts", *["1/2"] * 27), "got 27 systems"),
        ((), "got 0 evaluations"),
    ],
)
def test_arguments_that_do_not_go_together(capsys, arguments, message):
    assert message in refused(capsys, *arguments)


def test_numbers_of_any_size_end(capsys):
    (pair,) = _json(capsys, "--counts", "5000/20001", "5100/20001", "--best-of", "3")["comparisons"]
    assert pair["p_value"] is None, "the interval decides"
    (pair,) = _json(capsys, "--counts", "0/50", "50/50", "--best-of", "10000")["comparisons"]
    assert pair["differ"] is True


# -- evaluations that were chosen ------------------------------------------------------------------------------------


def _training(rates: dict[int, float], name: str = "training") -> None:
    rows = [json.dumps({"step": step, "eval/success_rate": rate}) for step, rate in rates.items()]
    Path("runs", name, "metrics.jsonl").write_text("\n".join([*rows, "half a li"]), encoding="utf-8")


def _at(name: str, iteration: int) -> str:
    file = Path(name, "eval", "000000.json")
    file.rename(file.with_name(f"{iteration:06d}.json"))
    return f"{name}@{iteration}"


def test_the_best_of_a_trainings_evaluations_is_warned_of(write, capsys):
    other, best = write("other", below(20)), _at(write("training", below(30)), 20)
    _training({0: 0.5, 10: 0.6, 20: 0.75, 30: 0.7})
    assert compare.main([other, best]) == 0
    said = capsys.readouterr().out
    assert (
        f"warning: B is the best of the 3 evaluations that {Path('runs/training')} has made, and not its last" in said
    )
    worth = published.worth(60, 80, 3)
    assert f"Its 75% is worth {worth:.0%}" in said
    found = _json(capsys, other, best)["comparisons"][0]
    assert found["first"]["chosen"] is None
    assert (found["second"]["chosen"]["evaluations"], found["second"]["chosen"]["iteration"]) == (3, 20)
    assert found["second"]["chosen"]["low"] == pytest.approx(published.corrected(60, 80, 3)[0])


@pytest.mark.parametrize(
    "rates", [{0: 0.9, 10: 0.6, 20: 0.75}, {0: 0.5, 10: 0.8, 20: 0.75, 30: 0.7}, {0: 0.9, 20: 0.75}, {}]
)
def test_the_last_a_worse_and_the_only_one_are_not(write, capsys, rates):
    other, one = write("other", below(20)), _at(write("training", below(30)), 20)
    _training(rates)
    assert compare.main([other, one]) == 0
    assert "warning" not in capsys.readouterr().out


def test_rows_with_numbers_of_no_iteration_are_passed_over(write, capsys):
    other, one = write("other", below(20)), _at(write("training", below(30)), 20)
    _training({10: 0.6, 20: 0.75, 30: 0.7})
    with Path("runs/training/metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(f'\n{{"step": Infinity, "eval/success_rate": 1}}\n{{"step": 40, "eval/success_rate": 1{"0" * 400}}}')
    assert _json(capsys, other, one)["comparisons"][0]["second"]["chosen"]["evaluations"] == 3


def test_without_metrics_the_files_say_it(write, capsys):
    other, one = write("other", below(20)), _at(write("training", below(30)), 20)
    Path("runs/training/eval/000040.json").write_text(
        Path(other, "eval/000000.json").read_text(encoding="utf-8"), encoding="utf-8"
    )
    assert _json(capsys, other, one)["comparisons"][0]["second"]["chosen"]["evaluations"] == 2


@pytest.mark.parametrize(("seed", "warned"), [(0, True), (1000, False)])
def test_a_chosen_checkpoint_on_fresh_starts_needs_no_correction(write, capsys, seed, warned):
    _at(write("training", below(30)), 20)
    _training({10: 0.6, 20: 0.75, 30: 0.7})
    Path("runs/training/config.yaml").write_text("{}", encoding="utf-8")
    of = {"checkpoint": {"path": "runs/training/checkpoints/000020", "identity": "x"}}
    after = write("after", below(31), change=lambda found: found.update(of), seed=seed)
    other = write("other", below(20), seed=seed)
    assert compare.main([other, after]) == 0
    assert ("warning: B is the best of the 3" in capsys.readouterr().out) is warned
