"""Pairs of answers that somebody who grades has thought about: what counts as equal, kind by kind."""

from __future__ import annotations

import csv
import json
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from embodied.envs.text.failures import VerifierFailed
from embodied.envs.text.verdict import Problem
from embodied.envs.text.verifiers import Weighted, make_verifier
from embodied.envs.text.verifiers.answers import MAX_DIGITS, read, same, text_of

from embodied.errors import ConfigError

HERE = Path(__file__).parent


def table(name: str) -> list[list[str]]:
    with (HERE / name).open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]


PAIRS = table("pairs.tsv")


def wrongly(verifier: Weighted, rows: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """The rows (answer, response, verdict) with another verdict than the verifier's."""
    return [row for row in rows if verifier(Problem("", row[0], {}, 0), row[1]).success != (row[2] == "right")]


def test_the_table_has_enough_of_each_kind():
    kinds = Counter(row[0] for row in PAIRS)
    assert len(PAIRS) >= 600
    assert min(kinds.values()) >= 5
    assert {row[3] for row in PAIRS} == {row[4] for row in PAIRS} == {"right", "wrong"}
    assert all(bool(row[5]) == (row[3] != row[4]) for row in PAIRS)  # a difference has its reason
    assert len({tuple(row[1:3]) for row in PAIRS}) == len(PAIRS)


def test_boxed():
    verifier = make_verifier([{"name": "boxed", "on_error": "raise"}])
    assert wrongly(verifier, [(row[1], rf"\boxed{{{row[2]}}}", row[3]) for row in PAIRS if "{" not in row[1][:1]]) == []
    assert wrongly(verifier, [(rf"\boxed{{{row[1]}}}", rf"so $\boxed{{{row[2]}}}$.", row[3])
                              for row in PAIRS if row[0] != "text"]) == []  # fmt: skip


def test_it_does_not_matter_which_of_two_is_the_data():
    assert [row for row in PAIRS if same(row[1], row[2]) != same(row[2], row[1])] == []


def test_math():
    pytest.importorskip("math_verify")
    verifier = make_verifier([{"name": "math", "on_error": "raise", "verify_timeout_s": 60}])
    try:
        assert wrongly(verifier, [(row[1], rf"\boxed{{{row[2]}}}", row[4]) for row in PAIRS]) == []
    finally:
        verifier.close()


def test_gsm8k():
    verifier = make_verifier([{"name": "gsm8k", "on_error": "raise"}])
    rows = [(row[0].replace("\\n", "\n"), row[1], row[2]) for row in table("gsm8k.tsv")]
    assert wrongly(verifier, rows) == []


@pytest.mark.parametrize("name", ["boxed", "math"])
@pytest.mark.parametrize(
    ("answer", "response", "right"),
    [
        (0.00001, r"\boxed{0.00001}", True),
        (1e20, r"\boxed{100000000000000000000}", True),
        (0.5, r"\boxed{0.5}", True),
        (5, r"\boxed{5.0}", True),
        (True, r"\boxed{\text{True}}", True),
        (False, r"\boxed{True}", False),
        (["5"], r"\boxed{5}", True),
        ([5], r"\boxed{5}", True),
        ([[5]], r"\boxed{5}", None),
        (["5", "6"], r"\boxed{5}", None),
        ([], r"\boxed{5}", None),
        ({"a": 5}, r"\boxed{5}", None),
        (b"5", r"\boxed{5}", None),
        (None, r"\boxed{5}", None),
        (float("nan"), r"\boxed{nan}", None),
        (float("inf"), r"\boxed{\infty}", None),
        ("", r"\boxed{}", None),
        (" . ", r"\boxed{.}", None),
        (r"\boxed{}", r"\boxed{}", None),
        (r"so \boxed{5", r"\boxed{5}", None),
        ("First we add three and four, which gives seven apples in all.", r"\boxed{7}", None),
        ("He has three\nand four more", r"\boxed{7}", None),
        ("So the answer is 7", r"\boxed{7}", None),
        ("首先把三和四相加，得到七个苹果。", r"\boxed{7}", None),
        ("既不充分也不必要条件", r"\boxed{既不充分也不必要条件}", True),
        (r"f(n)=\begin{cases} n, & \text{if it is odd} \\ 2n, & \text{if it is even} \end{cases}", r"\boxed{7}", False),
        ("3+4=7\n#### 7", r"\boxed{7}", None),
        ("#### 7", r"\boxed{7}", None),
        ("The Great Gatsby", r"\boxed{\text{The Great Gatsby}}", True),
        ("\\begin{pmatrix}1\n\\\\2\\end{pmatrix}", r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}", True),
    ],
)
def test_answers_of_the_data_of_all_types(name, answer, response, right):
    """None: no response could be right, which is said before the run."""
    if name == "math":
        pytest.importorskip("math_verify")
    verifier, problem = make_verifier([{"name": name, "on_error": "raise"}]), Problem("", answer, {}, 7)
    try:
        assert (verifier.unreadable(problem) is None) == (right is not None)
        if right is None:
            with pytest.raises(ConfigError, match=r"no verdict on problem 7: the (answer|problem)"):
                verifier(problem, response)
        else:
            assert verifier(problem, response).success is right
    finally:
        verifier.close()


@pytest.mark.parametrize("name", ["boxed", "math"])
@pytest.mark.parametrize(
    ("answer", "response", "right"),
    [
        ("5", r"First \boxed{2}, then \boxed{5}.", True),
        ("2", r"First \boxed{2}, then \boxed{5}.", False),
        ("2,5", r"First \boxed{2}, then \boxed{5}.", False),
        ("5", r"I first got $\boxed{2}$. Checking again: $\boxed{5}$.", True),
        ("5", r"\boxed{5}\boxed{}", False),
        ("5", r"so $\boxed 5$.", True),
        ("7", r"$\boxed{\boxed{7}}$", True),
        ("7", r"$\fbox{7}$", True),
        ("7", r"\boxed{\text{7}}", True),
        ("12", r"\boxed{12\text{ (that is } 3\cdot 4)}", False),
        ("So the answer is $\\boxed 5$.", r"\boxed{5}", True),
    ],
)
def test_the_last_box_counts(name, answer, response, right):
    if name == "math":
        pytest.importorskip("math_verify")
    verifier = make_verifier([{"name": name, "on_error": "raise"}])
    try:
        assert verifier(Problem("", answer, {}, 0), response).success is right
    finally:
        verifier.close()


def test_wrong_answers_with_the_figures_of_the_right_one_are_other_answers():
    """Majorities count answers, so a wrong one never has the spelling of the right one."""
    verifier = make_verifier([{"name": "boxed"}])

    def said(answer: str, response: str) -> str | None:
        return verifier(Problem("", answer, {}, 0), rf"\boxed{{{response}}}").answer

    assert said(r"10\%", "10") == said(r"10\%", "10.0") == said("10", r"10\%") == "10"
    assert said(r"10\%", r"10^\circ") != "10"
    assert said("5", "7 apples") == said("5", "7")
    assert said("3:00 PM", "3:00 AM") not in (said("3:00 PM", "15:00"), said("3:00 PM", "3:00"))
    wrong = [row for row in PAIRS if row[3] == "wrong" and "{" not in row[1][:1] and row[0] != "text"]
    assert [row for row in wrong if said(row[1], row[2]) == said(row[1], row[1])] == []


HOSTILE = (
    "9^{9^{9^9}}", r"\frac" * 900, r"\sqrt{" * 600 + "}" * 600, "(" * 3990, r"\{" * 1900, r"\text{" * 600 + "}" * 600,
    "1," * 1999, "1,111" * 800, "5 m " * 900, "B and " * 600, r"1\pm2" * 700, "1e999999999", "1e-99999", "9" * 3999,
    "5 feet 3 inches " * 250, r"\begin{pmatrix}" * 250, "x=" * 1900, "½" * 3000, "(" * 30 + "1" + ")" * 30,
    "{" * 100000, " " * 100000, "\\" * 100001, "a\n" * 50000, "1/" * 50000, "A, B, " * 9000 + "x", "-.1" * 30000,
    r"\boxed{" * 14000, r"\boxed " * 14000, r"\boxed\a{" * 9000, "answer is A, " * 8000, "#### " * 20000,
    "0." + r"\overline{" + "3" * 3000 + "}", r"\frac 0.", r"\frac12e5", r"\frac{0}{0}", "e5", r"\dot{}", "$$$", "\x00",
)  # fmt: skip


@pytest.mark.parametrize("name", ["boxed", "gsm8k", "choice"])
def test_no_response_takes_long_or_raises(name):
    verifier = make_verifier([{"name": name, "on_error": "raise"}])
    problem = Problem("", "B" if name == "choice" else "5", {}, 0)
    began = time.process_time()
    for hostile in HOSTILE:
        for response in (hostile, rf"\boxed{{{hostile}}}", f"#### {hostile}", f"the answer is {hostile}"):
            verifier(problem, response)
    assert time.process_time() - began < 40  # some 3 s; a pattern that backtracks takes minutes


def test_no_answer_of_the_data_raises_anything_else():
    for name in ("boxed", "gsm8k", "choice", "exact", "integer_after"):
        verifier = make_verifier([{"name": name}])
        for hostile in HOSTILE:
            assert isinstance(verifier.unreadable(Problem("", hostile, {}, 0)), str | None)


def test_a_comparison_of_usual_answers_takes_little_time():
    texts = [text for row in PAIRS for text in row[1:3]]
    began = time.process_time()
    for text in texts:
        read(text + " ")  # not kept from before
    assert (time.process_time() - began) / len(texts) < 0.01  # seconds; some 0.0001 measured


PIECES = (
    r"\frac", r"\sqrt", "{", "}", "(", ")", "[", "]", "1", "12", "x", r"\text{", "cm", "^", "_", "-", "+", ",", "=",
    "<", r"\pm", r"\%", "$", r"\$", " ", "/", "*", "pm", "3:00", r"\begin{pmatrix}", r"\end{pmatrix}", "&", r"\\",
    r"\{", r"\}", "!", "|", "and", "to", r"\boxed", "0.", r"\overline", r"\cup", "½", "per", "B", ".", ":", r"\left",
    "million", "two", "e5", "²", "个", "\\", r"\ln", "answer", "**", "is",
)  # fmt: skip


def test_no_combination_of_pieces_raises():
    drawn, verifier = random.Random(0), make_verifier([{"name": "boxed", "on_error": "raise"}])
    readers = [make_verifier([{"name": name}]) for name in ("boxed", "gsm8k", "choice")]
    for _ in range(2000):
        text = "".join(drawn.choice(PIECES) + drawn.choice(("", "", " ")) for _ in range(drawn.randint(1, 12)))
        assert same(text, text) or not read(text).whole, text
        verifier(Problem("", "5", {}, 0), rf"\boxed{{{text}}}")
        for reader in readers:
            reader.unreadable(Problem("", text, {}, 0))


def test_what_was_read_agrees_with_itself():
    for row in PAIRS:
        for text in row[1:3]:
            assert same(text, text) or not read(text).whole


def test_long_numbers_are_texts():
    assert read("9" * (MAX_DIGITS + 1)).kind == "text"
    assert read("1e" + "9" * 9).kind == "text"


def test_a_failure_says_what_the_answer_is():
    with pytest.raises(VerifierFailed, match=r"list of 2 entries, \['5', '6'\], expected one answer"):
        text_of(Problem("", json.loads('["5", "6"]'), {}, 0))
