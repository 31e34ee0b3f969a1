"""The calculator: expressions within limits, and episodes of several turns."""

from __future__ import annotations

import time
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from embodied.envs.text.arithmetic import split_of
from embodied.envs.text.calculator import CalculatorEnv, Numbers, demonstrations
from embodied.envs.text.expression import BadExpression, calculate
from embodied.envs.text.verdict import Problem, Verdict
from hypothesis import given
from hypothesis import strategies as st

from embodied import instructions
from embodied.errors import ConfigError, UnknownNameError
from embodied.schema import target_kwargs
from embodied.schema.compose.compose import compose
from embodied.testing import check_env
from embodied.types import Start


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("17*23", "391"),
        (" 1 + 2*3 ", "7"),
        ("(1+2)*3", "9"),
        ("10-4-3", "3"),
        ("100/5/2", "10"),
        ("10/4", "2.5"),
        ("2/3", "0.666667"),
        ("-2/3", "-0.666667"),
        ("-1/100000000", "0"),
        ("1.5+.5", "2"),
        ("-2**2", "-4"),
        ("2**3**2", "512"),
        ("2^10", "1024"),
        ("2**-1", "0.5"),
        ("--3", "3"),
        ("7×6−2÷1", "40"),
        ("999999999999*999999999999", "999999999998000000000001"),
    ],
)
def test_values(text, value):
    assert calculate(text) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "unexpected end"),
        ("1+", "unexpected end"),
        ("1 2", "unexpected 2"),
        ("2(3)", r"unexpected \("),
        ("(1", "not closed"),
        ("1)", r"unexpected \)"),
        ("*3", r"unexpected \*"),
        ("1/0", "division by zero"),
        ("1/(2-2)", "division by zero"),
        ("0**-1", "division by zero"),
        ("9**9**9", "exponent"),
        ("2**0.5", "exponent"),
        ("9**64", "too large"),
        ("1" * 61, "too large"),
        ("1" * 201, "too long"),
        ("(" * 60 + "1" + ")" * 60, "too deep"),
        ("-" * 100 + "1", "too deep"),
        ("__import__('os')", "unexpected _"),
        ("1e9", "unexpected e"),
        ("١+١", "unexpected ١"),
    ],
)
def test_what_cannot_be_evaluated(text, why):
    with pytest.raises(BadExpression, match=why):
        calculate(text)


@given(st.text("0123456789+-*/(). ^", max_size=60))
def test_any_text_gives_a_number_or_says_why(text):
    try:
        Fraction(calculate(text))
    except BadExpression:
        return


@given(st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]}{t[1]}{t[2]})"),
    max_leaves=8,
))  # fmt: skip
def test_values_are_pythons(text):
    assert calculate(text) == str(eval(text))


# -- episodes --------------------------------------------------------------------------------------------------------


def exact(problem: Problem, response: str) -> Verdict:
    right = response.rpartition(";")[2] == str(problem.answer)
    return Verdict(float(right), right)


def make(**options: Any) -> CalculatorEnv:
    return CalculatorEnv(**{"verifier": exact, "max_prompt_bytes": 300, **options})


def respond(env: CalculatorEnv, text: str) -> tuple[float, bool, bool]:
    action = env.spec.action.neutral()
    instructions.write(text, action)
    return env.step(action)


def asked(env: CalculatorEnv) -> str:
    out = np.ones(env.spec.obs["instruction"].shape, np.uint8)
    env.observe({"instruction": out})
    return instructions.read(out)


def test_keeps_the_protocol():
    check_env(make())
    check_env(make(chat=True, max_turns=1))


def test_a_call_is_answered_in_the_next_observation():
    env = make()
    env.reset(Start(0, 0, 0))
    prompt = asked(env)
    assert respond(env, "Let me see: <calc>17*23</calc> and then <calc>1</calc>")[:3] == (0.0, False, False)
    assert asked(env) == f"{prompt}Let me see: <calc>17*23</calc><result>391</result>"
    assert respond(env, "<calc>1/0</calc>")[:3] == (0.0, False, False)
    assert asked(env).endswith("<result>391</result><calc>1/0</calc><result>error: division by zero</result>")
    answer = Numbers()[0]["answer"]
    assert respond(env, f";{answer}")[:3] == (1.0, True, True)


def test_a_prompt_that_is_no_unicode_is_answered_like_others(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    data = tmp_path / "some.jsonl"
    data.write_text(r'{"prompt": "half a sign \ud83d 1+1=", "answer": "2"}' + "\n", encoding="utf-8")
    env = make(data=str(data))
    env.reset(Start(0, 0, 0))
    prompt = asked(env)
    assert respond(env, "<calc>1+1</calc>")[:3] == (0.0, False, False)
    assert asked(env) == f"{prompt}<calc>1+1</calc><result>2</result>"


def test_in_a_conversation_the_result_is_a_message():
    env = make(chat=True, max_prompt_bytes=600)
    env.reset(Start(0, 0, 0))
    respond(env, "<calc>2+2</calc> so")
    assert instructions.messages(asked(env))[1:] == [
        {"role": "assistant", "content": "<calc>2+2</calc>"},
        {"role": "tool", "content": "<result>4</result>"},
    ]


@pytest.mark.parametrize("text", ["no call ;1", "<calc>1+1", "1+1</calc>", "</calc>1<calc>", ""])
def test_a_response_without_a_whole_call_ends_the_episode(text):
    env = make()
    env.reset(Start(0, 0, 0))
    assert respond(env, text)[:3] == (0.0, True, False)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("1/0", "division by zero"),
        ("9**9**9", "an exponent is a whole number up to 64"),
        ("1+", "unexpected end"),
        ("", "unexpected end"),
        ("two", "unexpected t"),
        ("1<calc>2", "unexpected <"),
        ("9" * 201, "too long"),
    ],
)
def test_a_call_that_fails_costs_a_turn_and_nothing_else(expression, said):
    env = make(max_prompt_bytes=1024)
    env.reset(Start(0, 0, 0))
    prompt, call = asked(env), f"<calc>{expression}</calc>"
    assert respond(env, call)[:3] == (0.0, False, False)
    assert asked(env) == f"{prompt}{call}<result>error: {said}</result>"
    assert respond(env, f";{Numbers()[0]['answer']}")[:3] == (1.0, True, True)


def test_without_results_a_call_is_answered_with_nothing():
    env = make(results=False)
    env.reset(Start(0, 0, 0))
    prompt = asked(env)
    for call in ("<calc>17*23</calc>", "<calc>1/0</calc>"):
        assert respond(env, call)[:3] == (0.0, False, False)
        prompt += f"{call}<result></result>"
        assert asked(env) == prompt
    assert respond(env, f";{Numbers()[0]['answer']}").success


def test_the_last_turn_is_verified_whatever_it_says():
    env = make(max_turns=2)
    assert env.spec.max_episode_steps == 2
    env.reset(Start(0, 0, 0))
    assert not respond(env, "<calc>1</calc>").terminated
    assert respond(env, f"<calc>1</calc>;{Numbers()[0]['answer']}")[:3] == (1.0, True, True)


def test_a_transcript_that_does_not_fit_ends_the_episode():
    env = make(max_prompt_bytes=48, max_turns=9)
    env.reset(Start(0, 0, 0))
    prompt = asked(env)
    assert not respond(env, "<calc>1</calc>").terminated
    assert asked(env) == f"{prompt}<calc>1</calc><result>1</result>"
    assert respond(env, "<calc>1</calc>").terminated


def test_a_reset_leaves_no_trace_and_a_state_goes_back_into_the_middle():
    env = make()
    env.reset(Start(0, 3, 0))
    before = asked(env)
    respond(env, "<calc>1+1</calc>")
    state, middle = env.get_state(), asked(env)
    env.reset(Start(0, 3, 0))
    assert asked(env) == before
    env.reset(Start(0, 4, 0))
    env.set_state(state)
    assert asked(env) == middle
    assert respond(env, f";{Numbers()[3]['answer']}").success
    assert env.frame().shape == (540, 960, 3)


def test_many_opened_calls_take_no_time():
    env = make(max_response_bytes=2**20)
    env.reset(Start(0, 0, 0))
    began = time.process_time()
    assert respond(env, "<calc>" * 150_000).terminated
    assert time.process_time() - began < 5.0  # a search that is quadratic would take minutes


# -- problems --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operations", [["+"], ["*"], ["-"], ["+", "-", "*"]])
def test_numbers(operations):
    numbers = Numbers([3, 5], [2, 3], operations, 1000)
    seen, lengths = set(), set()
    for number in range(200):
        row = numbers[number]
        expression = row["prompt"].removesuffix("=")
        assert str(eval(expression)) == row["answer"]
        assert split_of(row["prompt"]) == "train"
        used = {sign for sign in "+-*" if sign in expression}
        assert len(used) == 1
        seen |= used
        lengths |= {len(part) for part in expression.replace(used.pop(), " ").split()}
    assert seen == set(operations)
    assert lengths == {3, 4, 5}
    assert numbers[7] == Numbers([3, 5], [2, 3], operations, 1000)[7]
    assert {split_of(numbers.for_evaluation()[n]["prompt"]) for n in range(50)} == {"eval"}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"digits": [0, 3]}, ConfigError),
        ({"terms": [2, 9]}, ConfigError),
        ({"operations": ["/"]}, UnknownNameError),
        ({"operations": []}, ConfigError),
        ({"digits": [3, 8], "terms": [2, 8]}, ConfigError),
        ({"split": "test"}, UnknownNameError),
    ],
)
def test_options_that_cannot_be(options, error):
    with pytest.raises(error, match="data_args"):
        Numbers(**options)


def test_too_many_turns():
    with pytest.raises(ConfigError, match="max_turns is 0"):
        make(max_turns=0)


def test_demonstrations_call_in_the_wanted_share():
    rows = demonstrations(400, call_share=0.25)
    calls = [row for row in rows if row["response"].startswith("<calc>")]
    assert 60 <= len(calls) <= 140
    assert len(rows) == 400 + len(calls)
    assert len(demonstrations(50, call_share=1.0)) == 100
    assert len(demonstrations(50, call_share=0.0)) == 50


@pytest.mark.parametrize("results", [True, False])
def test_a_policy_that_repeats_the_demonstrations_is_right(results):
    told = {row["prompt"]: row["response"] for row in demonstrations(60, results=results)}
    env = make(results=results)
    for number in range(60):
        env.reset(Start(0, number, 0))
        while not (result := respond(env, told[asked(env)])).terminated:
            pass
        assert result.success


def test_the_shipped_configuration():
    options = target_kwargs(compose(["env=calculator"]).config.env.train, "env.train")
    env = CalculatorEnv(**{**options, "verifier": exact})
    check_env(env)
    assert env.spec.max_episode_steps == 4
