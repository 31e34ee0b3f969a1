"""The verifier over math-verify: what it finds equal, and a response that would keep it for years."""

import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from embodied.envs.text.verdict import Problem, Verdict
from embodied.envs.text.verifiers import make_verifier
from embodied.envs.text.verifiers.symbolic import Symbolic

from embodied.errors import AssetsMissingError


def test_a_missing_package_is_said_with_the_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(AssetsMissingError) as caught:
        make_verifier([{"name": "math"}])
    assert caught.value.remedy.startswith("pip install math-verify==0.9.0")


@pytest.fixture(scope="module")
def verifier():
    pytest.importorskip("math_verify")
    made = make_verifier([{"name": "math", "on_error": "raise", "verify_timeout_s": 30}])
    yield made
    made.close()


@pytest.mark.parametrize(
    ("answer", "response", "right"),
    [
        (r"\frac{1}{2}", r"thus \boxed{0.5}", True),
        ("x+1", r"\boxed{1+x}", True),
        (r"\boxed{7}", "The final answer is $7$. I hope it is correct.", True),
        (r"\{1,2\}", r"\boxed{\{2,1\}}", True),
        (12, r"\boxed{12}", True),
        ("12", r"\boxed{13}", False),
        ("12", r"\boxed{12}, and not $13$", True),
        ("12", "nothing", False),
        ("8", r"\boxed{8}. The final answer is $7$.", True),
        ("7", r"\boxed{8}. The final answer is $7$. I hope it is correct.", True),
        (r"\sqrt{8}", r"\boxed{2\sqrt{2}}", True),
        (r"10\%", r"\boxed{0.1}", False),
        ("0.1", r"\boxed{10\%}", False),
        ("10", r"\boxed{10\%}", True),
        (r"10\%", r"\boxed{10}", True),
        ("10%", r"\boxed{10\%}", True),
        ("0.1", "it is 10%", False),
    ],
)
def test_equality(verifier, answer, response, right):
    assert verifier(Problem("", answer, {}, 0), response) == Verdict(float(right), right)


def test_right_answers_are_one_answer_however_they_are_written(verifier):
    asked = Problem("", "x+1", {}, 0)
    said = [
        verifier(asked, text).answer for text in (r"\boxed{1+x}", r"\boxed{x+1}", r"\boxed{x+2}", r"\boxed{x + 2}", "")
    ]
    assert said[0] == said[1] == "x+1"
    assert said[2] == said[3] not in ("", said[0])
    assert said[4] == ""


def test_a_tower_of_powers_costs_one_counted_timeout_and_the_next_problem_is_verified():
    pytest.importorskip("math_verify")
    verifier = make_verifier([{"name": "math", "verify_timeout_s": 2.0}])
    try:
        for response, right in ((r"\boxed{4}", True), (r"\boxed{9^{9^{9^9}}}", False), (r"\boxed{4}", True)):
            assert verifier(Problem("", "4", {}, 0), response).success is right
        assert verifier.counts["timeouts"] == 1
    finally:
        verifier.close()


def test_the_launching_process_does_not_import_it():
    pytest.importorskip("math_verify")
    for name in [name for name in sys.modules if name.split(".")[0] == "math_verify"]:
        del sys.modules[name]
    make_verifier([{"name": "math"}])
    assert "math_verify" not in sys.modules


def test_it_works_in_a_thread():
    pytest.importorskip("math_verify")
    with ThreadPoolExecutor(1) as threads:
        verdict = threads.submit(Symbolic(), Problem("", "4", {}, 0), r"\boxed{4}").result()
    assert verdict == Verdict(1.0, True)
