"""Verifiers that read text: what they find right, their options, sums of them, and what happens when one fails."""

import time

import pytest
from embodied.envs.text.failures import TOO_MANY, WINDOW, Tolerant, VerifierFailed
from embodied.envs.text.verdict import Problem, Verdict
from embodied.envs.text.verifiers import make_verifier
from embodied.envs.text.verifiers.answers import MAX_DIGITS, canonical, last_boxed, read, same
from embodied.envs.text.verifiers.choice import Choice

from embodied.errors import ConfigError, UnknownNameError


def problem(answer, number=7, prompt="2+2?", **fields):
    return Problem(prompt, answer, fields, number)


def judge(name, answer, response, **options):
    verdict = make_verifier([{"name": name, "on_error": "raise", **options}])(problem(answer), response)
    assert verdict.reward == float(verdict.success)
    return verdict.success


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1} or rather \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {x}", "x"),
        (r"\fbox{7}", "7"),
        (r"\boxed{9}, \frac{1}{2}", "9"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{3} and then \boxed{4", "3"),
        (r"\boxed{\boxed{5}+1}", r"\boxed{5}+1"),
        (r"$\boxed{\boxed{7}}$", "7"),
        (r"\boxed{ $\fbox{\boxed{7}}$. }", "7"),
        (r"So the answer is $\boxed 5$.", "5"),
        (r"$\boxed52$", "52"),
        (r"$\boxed{\boxed 5}$", "5"),
        (r"\boxed\frac12", r"\frac12"),
        (r"\boxed\text{no} solution", r"\text{no}"),
        (r"\boxed-3.", "-3"),
        (r"a \boxed{1}, b \boxed 2", "2"),
        (r"\boxed{5} and \boxed{}", ""),
        (r"\boxedtext{5}", None),
        (r"} \boxed{6} }", "6"),
        (r"{\boxed{8}", "8"),
        ("no box", None),
        (r"\boxed{", None),
        (r"\boxed{}", ""),
    ],
)
def test_the_last_balanced_box_is_found(text, expected):
    assert last_boxed(text) == expected


@pytest.mark.parametrize("nasty", [r"\boxed{" * 9000, "}" * 60000, r"\boxed{1}" * 7000, "{" * 60000])
def test_boxes_take_time_in_proportion_to_the_text(nasty):
    began = time.process_time()
    last_boxed(nasty)
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0.5", r"\frac{1}{2}"),
        (r"\dfrac12", "1/2"),
        ("-.50", r"-\frac{1}{2}"),
        ("1,234", "1234"),
        (r"1{,}234", "1234.0"),
        (r"1,\!234", "1234"),
        ("$5.00", "5"),
        (r"\$5", "5"),
        (r"5\text{ cm}", "5"),
        (r"\text{East}", "east"),
        (r"\left( 1, 2 \right)", "(1,2)"),
        ("x = 5", "5"),
        (r"90^\circ", "90"),
        (r"\sqrt2", r"\sqrt{2}"),
        ("+7", "7"),
        ("\N{MINUS SIGN}7", "-7"),
        ("3.", "3"),
        (r"10\%", "10"),
    ],
)
def test_equal_answers(one, other):
    assert same(one, other)
    assert same(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"10\%", "0.1"),
        ("0.33", "1/3"),
        ("1,23", "123"),
        ("x", "X"),
        ("", ""),
        ("5", "-5"),
        ("1/0", "0"),
        ("x+1", "1+x"),
        ("12", "1 and 2"),
    ],
)
def test_answers_that_are_not_equal(one, other):
    assert not same(one, other)


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("0.50", "1/2"), (r"\frac{-2}{4}", "-1/2"), ("1,234.0", "1234"), (r"10\%", "10"), ("EAST", "east"), ("X", "X"),
        (r"$ x + 1 $", "x+1"), ("", ""), (" . ", ""), ("1/0", r"\frac{1}{0}"),
    ],
)  # fmt: skip
def test_equal_answers_have_one_spelling(text, spelling):
    assert canonical(text) == spelling


@pytest.mark.parametrize(
    ("name", "answer", "response", "options", "said"),
    [
        ("boxed", "0.5", r"\boxed{\frac{2}{4}}", {}, "1/2"),
        ("boxed", "0.5", r"\boxed{0.3} or \boxed{x}", {}, "x"),
        ("boxed", "0.5", "0.5", {}, ""),
        ("gsm8k", "12", "so #### 1,200.0", {}, "1200"),
        ("gsm8k", "12", "so 12", {"strict": True}, ""),
        ("gsm8k", "12", "none", {}, ""),
        ("exact", "a b", " A b ", {}, "A b"),
        ("exact", "a b", " A b ", {"ignore_case": True}, "a b"),
        ("integer_after", "7", "1;+007", {}, "7"),
        ("integer_after", "7", "7", {}, ""),
        ("choice", "B", "the answer is (C)", {}, "C"),
        ("choice", "B", "who knows", {}, ""),
        ("format", None, "x", {}, None),
    ],
)
def test_a_verdict_says_what_was_answered(name, answer, response, options, said):
    parts = [{"name": "format", "pattern": "."}, {"name": name, "decides": True, **options}]
    verifier = make_verifier(parts)
    assert verifier(problem(answer), response).answer == said
    verifier.close()


def test_without_a_verdict_nothing_is_said():
    assert make_verifier([{"name": "boxed"}])(problem(None), r"\boxed{1}").answer is None


def test_long_numbers_are_texts():
    long = "9" * (MAX_DIGITS + 1)
    assert read(long).value is None
    assert same(long, long)
    assert not same(long, long + ".0")
    assert same("9" * MAX_DIGITS, "9" * (MAX_DIGITS - 1) + "9")


@pytest.mark.parametrize("nasty", [" " * 60000 + "x", "{" * 60000, "1," * 30000, r"5\text{" * 9000, "5" + " " * 60000])
def test_normalising_takes_time_in_proportion_to_the_text(nasty):
    began = time.process_time()
    read(nasty)
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize(
    ("answer", "response", "right"),
    [
        ("1/2", r"it is \boxed{0.5}", True),
        (r"we get \boxed{12}", r"\boxed{12}", True),
        (12, r"\boxed{12.0}", True),
        ("12", "it is 12", False),
        ("12", r"\boxed{12} no, \boxed{13}", False),
    ],
)
def test_boxed(answer, response, right):
    assert judge("boxed", answer, response) is right


@pytest.mark.parametrize(
    ("answer", "response", "right"),
    [
        ("work <<1+1=2>> #### 1,234", "so #### 1234", True),
        ("72", "#### $72.00", True),
        (72, "48+24 = 72.", True),
        ("#### 72 of 80", "#### 72 of 80", True),
        ("#### 72 of 80", "#### 80", False),
        ("-5", "x is -5", True),
        ("3", "8-5 = 3, that is 5-2", False),
        ("72", "#### 72 and 3 more", True),
        ("5", "it is\n- 5 apples", True),
        ("-5", "x is \N{MINUS SIGN}5", True),
        ("72", "#### 73, not 72", False),
        ("1000000", "he pays $1,000,000", True),
        ("0.5", "it is .5", True),
        ("3", "no number", False),
        ("3", "1 #### none", False),
        ("3", "costs 2,3", True),
    ],
)
def test_gsm8k(answer, response, right):
    assert judge("gsm8k", answer, response) is right


def test_gsm8k_strict_wants_the_mark():
    assert not judge("gsm8k", "72", "it is 72", strict=True)
    assert judge("gsm8k", "72", "it is #### 72", strict=True)


@pytest.mark.parametrize(
    ("name", "answer"), [("gsm8k", "many"), ("integer_after", "2.5"), ("choice", "none of them"), ("boxed", None)]
)
def test_an_answer_of_the_data_that_cannot_be_read_is_said(name, answer):
    with pytest.raises(ConfigError, match=r"no verdict on problem 7: the (answer|problem)"):
        judge(name, answer, r"\boxed{1} #### 1")


@pytest.mark.parametrize(
    ("response", "right"),
    [("9,0;9", True), ("9,0; 9\n", True), ("1;2;9", True), ("9", False), ("9,0;9,", False), ("9;", False), ("", False)],
)
def test_integer_after(response, right):
    assert judge("integer_after", "9", response) is right


def test_integer_after_takes_signs_zeros_and_another_separator():
    assert judge("integer_after", -4, "work=> -04", separator="=>")
    assert not judge("integer_after", 4, "x;" + "9" * 5000)


def test_exact():
    assert judge("exact", "Paris", " Paris\n")
    assert not judge("exact", "Paris", "paris")
    assert judge("exact", "Paris", "paris", ignore_case=True)


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("B", "B"),
        ("(b)", "B"),
        (r"thus \boxed{\text{C}}", "C"),
        (r"\boxed{B. Paris}", "B"),
        ("<think>A or B? A is wrong</think><answer> B </answer>", "B"),
        ("The correct answer is **(D)**.", "D"),
        ("Answer: A", "A"),
        ("answer is A? No, the answer is B, since option A is wrong.", "B"),
        ("A dog and I saw it.\n\nC.\n", "C"),
        ("I think (A) is wrong and (B) is right", "B"),
        ("A dog barks and I listen", None),
        ("Because", None),
        ("the answer is Brown", None),
        ("Option B", "B"),
        (r"\boxed{\mathrm{B}}", "B"),
        (r"\boxed{\textbf{(B)}\ 12}", "B"),
        (r"\boxed{B) Paris}", "B"),
        (r"\boxed{A man}", None),
        ("The answer is option C.", "C"),
        ("The answer is B and C.", "B,C"),
        ("The correct answers are C, A.", "A,C"),
        ("the answer is A or B", "A,B"),
        ("the answer is A, I think", "A"),
        (r"\boxed{C, B}", "B,C"),
        (r"\boxed{\text{B and C}}", "B,C"),
        ("B, D", "B,D"),
        ("I take (A) and (C)", "A,C"),
        (r"\boxed{K}", None),
        ("", None),
    ],
)
def test_the_letter_of_a_choice(response, letter):
    assert Choice().chosen(response) == letter


def test_choice():
    assert judge("choice", "(B) Paris", "B")
    assert judge("choice", "b", "The answer is B")
    assert not judge("choice", "B", "E", letters="ABCD")
    assert judge("choice", r"\boxed{\text{(C)}}", "C")
    assert judge("choice", ["B"], "B")
    assert judge("choice", "B and C", "the answers are C and B")
    assert not judge("choice", "B and C", "B")
    assert not judge("choice", "B", "B and C")
    for gold in ("A man walks", "B Paris", "K", "12"):
        with pytest.raises(ConfigError, match="is no letter of a choice"):
            judge("choice", gold, "A")
    with pytest.raises(ConfigError, match="letters is 'AA'"):
        make_verifier([{"name": "choice", "letters": "AA"}])


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("<think>a</think><answer>b</answer>", True),
        ("\n<think>a\nb</think>\n\n<answer>\n2</answer>\n", True),
        ("<think>a</think> so <answer>b</answer>", False),
        ("<think>a</think><answer>b</answer> bye", False),
        ("<think>a<think>a</think><answer>b</answer>", False),
        ("<answer>b</answer><think>a</think>", False),
    ],
)
def test_format_of_tags(response, right):
    assert judge("format", None, response) is right


def test_format_with_a_pattern_of_ones_own():
    verifier = make_verifier([{"name": "format", "pattern": r"^\d+\s*!$"}])
    try:
        assert verifier(problem(None), "12\n!").success
        assert not verifier(problem(None), "so 12!").success
    finally:
        verifier.close()


def test_a_sum_has_weights_and_one_part_decides():
    parts = [{"name": "boxed", "weight": 1.0}, {"name": "format", "weight": 0.25}]
    first, second = make_verifier(parts), make_verifier([parts[0], {**parts[1], "decides": True}])
    tagged = r"<think>no</think><answer>\boxed{1}</answer>"
    assert first(problem("2"), tagged) == Verdict(0.25, False)
    assert second(problem("2"), tagged) == Verdict(0.25, True)
    assert first(problem("1"), tagged) == Verdict(1.25, True)
    assert second(problem("1"), r"\boxed{1}") == Verdict(1.0, False)


@pytest.mark.parametrize(
    ("parts", "message", "fix"),
    [
        ([], "expected a list of verifiers", "name: boxed"),
        ({"name": "boxed"}, "expected a list of verifiers", "name: boxed"),
        (["boxed", "format"], "expected a list of verifiers", "name: boxed"),
        ([{"name": "remote", "url": "http://localhost", "timeout_s": "3"}], r"\(remote\) has an option of another type",
         "verifier[0]"),
        ([{"name": "boxed"}, {"name": "format", "patern": "x"}], r"\[1\] \(format\) has no option 'patern'. Did you",
         "name, weight, decides, on_error, failure_reward, scale, clip_min, clip_max, verify_timeout_s, pattern"),
        ([{"name": "boxed", "verify_timeout_s": 1}], "no option 'verify_timeout_s'", "weight"),
        ([{"name": "custom"}], "needs the option 'path'", "add path"),
        ([{"name": "boxed", "weight": "much"}], r"verifier\[0\].weight is 'much'", "a number"),
        ([{"name": "boxed", "weight": float("nan")}], "weight is nan", "a number"),
        ([{"name": "format", "verify_timeout_s": 0}], "expected more than 0", "verify_timeout_s=10"),
        ([{"name": "format", "pattern": "("}], "no regular expression", "pattern"),
        ([{"name": "integer_after", "separator": ""}], "separator is ''", "separator"),
        ([{"name": "boxed", "decides": True}] * 2, "2 parts have decides", "one"),
        ([{"name": "boxed", "on_error": "never"}], "unknown answer to an error 'never'", "zero, raise"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_refused(parts, message, fix):
    with pytest.raises(ConfigError, match=message) as caught:
        make_verifier(parts)
    assert fix in caught.value.remedy


def test_an_unknown_verifier_is_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"unknown verifier 'boxd'. Did you mean 'boxed'") as caught:
        make_verifier([{"name": "boxd"}], key="env.train.verifier")
    assert caught.value.remedy.startswith("set env.train.verifier[0].name to one of: boxed, gsm8k, math")


def failing(problem, response):
    if response.startswith("bad"):
        raise VerifierFailed("it was bad", response.split()[1])
    return Verdict(1.0, True)


def test_one_failure_costs_one_reward_and_is_counted_and_said(capsys):
    verifier = Tolerant(failing, "mine", failure_reward=-1.0)
    assert verifier(problem("1", number=31), "bad errors " + "x" * 500) == Verdict(-1.0, False)
    assert verifier(problem("1"), "good") == Verdict(1.0, True)
    said = capsys.readouterr().err
    assert "verifier mine gave no verdict on problem 31: it was bad" in said
    assert "511 characters and begins 'bad errors xxx" in said
    assert len(said) < 500
    assert verifier.counts == {"errors": 1, "timeouts": 0, "deaths": 0}


def test_a_failure_now_and_then_never_ends_a_run():
    verifier = Tolerant(failing, "mine")
    for index in range(20 * WINDOW):
        verifier(problem("1"), "bad timeouts" if index % 2 else "good")
    assert verifier.counts["timeouts"] == 10 * WINDOW


@pytest.mark.parametrize("kind", ["errors", "timeouts", "deaths"])
def test_a_verifier_that_always_fails_ends_the_run(kind):
    verifier = Tolerant(failing, "mine")
    for _ in range(TOO_MANY):
        verifier(problem("1"), f"bad {kind}")
    with pytest.raises(ConfigError, match=f"{TOO_MANY + 1} of the latest {TOO_MANY + 1} responses have no verdict"):
        verifier(problem("1"), f"bad {kind}")


def test_with_raise_the_first_error_ends_the_run_and_a_timeout_does_not():
    verifier = Tolerant(failing, "mine", on_error="raise")
    assert verifier(problem("1"), "bad timeouts") == Verdict(0.0, False)
    with pytest.raises(ConfigError, match="no verdict on problem 7: it was bad"):
        verifier(problem("1"), "bad errors")


def test_counts_of_all_parts_are_summed():
    verifier = make_verifier([{"name": "gsm8k"}, {"name": "choice"}, {"name": "exact"}])
    verifier(problem("?"), "3")
    assert verifier.counts["errors"] == 2


def test_failures_of_all_parts_count_in_one_verdict():
    parts = [{"name": "boxed"}, {"name": "gsm8k"}, {"name": "choice", "decides": True}]
    verifier = make_verifier(parts)
    assert verifier(problem("no letter and no number"), r"\boxed{3} #### 3").failures == 2  # gsm8k and choice
    assert verifier(problem("3"), r"\boxed{3} #### 3").failures == 1
    assert verifier(problem("B"), r"\boxed{B}").failures == 1
    assert make_verifier(parts[:2])(problem("3"), r"\boxed{3} #### 3").failures == 0


def test_a_problem_that_any_part_cannot_read_is_unreadable():
    assert make_verifier([{"name": "exact"}, {"name": "boxed"}]).unreadable(problem("#### 3")) is not None
    assert make_verifier([{"name": "exact"}, {"name": "format"}]).unreadable(problem("#### 3")) is None


def test_the_longest_time_of_a_verdict_is_known():
    assert make_verifier([{"name": "boxed"}, {"name": "format"}]).longest_s == 0
    service = {"name": "remote", "url": "http://localhost/", "timeout_s": 10, "retries": 2, "backoff_s": 1}
    pattern = {"name": "format", "pattern": "x", "verify_timeout_s": 3}
    assert make_verifier([service, pattern]).longest_s == 3 * 10 + 1.5 * (1 + 2) + 3


def test_a_scale_pays_for_right_and_takes_for_wrong():
    judge = make_verifier([{"name": "exact", "scale": 5.0}, {"name": "exact", "weight": 0.5}])
    problem = Problem("?", "4", {}, 0)
    assert judge(problem, "4") == Verdict(5.5, True)
    assert judge(problem, "5") == Verdict(-5.0, False)
    assert make_verifier([{"name": "gsm8k", "scale": 2.0}])(Problem("?", "none", {}, 0), "4") == Verdict(-2.0, False)
    with pytest.raises(ConfigError, match="scale is 'x', expected a number"):
        make_verifier([{"name": "exact", "scale": "x"}])


def test_no_verdict_at_all():
    assert make_verifier([{"name": "zero"}])(Problem("?", "4", {}, 0), "4") == Verdict(0.0, False)
