"""How a row becomes a problem, and how its prompt is put."""

from __future__ import annotations

import pytest
from embodied.envs.text.reading import Missing, Reading, TooLong, text_of

from embodied import instructions
from embodied.errors import ConfigError, DatasetError, UnknownNameError


def test_a_row_becomes_a_problem():
    row = {"q": "2+2?", "reward_model": {"ground_truth": "4"}, "origin": "gsm8k", "level": 3}
    reading = Reading(prompt_key="q", answer_key="reward_model.ground_truth", data_source_key="origin")
    problem = reading.problem(row, 5)
    assert (problem.prompt, problem.answer, problem.number) == ("2+2?", "4", 5)
    expected = {"reward_model": {"ground_truth": "4"}, "origin": "gsm8k", "level": 3, "data_source": "gsm8k"}
    assert problem.fields == expected


def test_a_column_whose_name_has_a_dot_comes_before_what_lies_inside_another():
    assert Reading(answer_key="a.b").problem({"prompt": "p", "a.b": 1, "a": {"b": 2}}, 0).answer == 1


@pytest.mark.parametrize("answer", [None, "", "  ", []])
def test_an_empty_answer_is_none(answer):
    with pytest.raises(Missing, match=r"an answer \('answer'\)"):
        Reading().problem({"prompt": "p", "answer": answer}, 0)


@pytest.mark.parametrize("answer", [0, False, "0", 0.0])
def test_zero_is_an_answer(answer):
    assert Reading().problem({"prompt": "p", "answer": answer}, 0).answer == answer


def test_data_without_answers():
    assert Reading(answer_key=None).problem({"prompt": "p"}, 0).answer is None


USER = {"role": "user", "content": "2+2?"}
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("row", "options", "expected"),
    [
        ({"prompt": "2+2?"}, {}, "2+2?"),
        ({"prompt": 7}, {}, "7"),
        ({"prompt": "2+2?"}, {"chat": True}, (USER,)),
        ({"prompt": "2+2?"}, {"system_prompt": "Be brief."}, (SYSTEM, USER)),
        ({"prompt": [USER]}, {}, (USER,)),
        ({"prompt": [{**USER, "extra": 1}]}, {"system_prompt": "Be brief."}, (SYSTEM, USER)),
        ({"chat": [SYSTEM, USER]}, {"messages_key": "chat", "system_prompt": "Another."}, (SYSTEM, USER)),
        ({"prompt": "2+2?"}, {"template": "{prompt}\n\\boxed{{}}"}, "2+2?\n\\boxed{}"),
        ({"prompt": "2+2?", "hint": "h"}, {"template": "{hint}: {prompt}"}, "h: 2+2?"),
        ({"prompt": [SYSTEM, USER]}, {"template": "{prompt}!"}, (SYSTEM, {**USER, "content": "2+2?!"})),
    ],
)
def test_how_a_prompt_is_put(row, options, expected):
    problem = Reading(answer_key=None, **options).problem(row, 0)
    assert problem.prompt == expected
    if not isinstance(expected, str):
        assert instructions.messages(text_of(problem.prompt)) == list(expected)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "robot", "content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": ["a picture"]}],
        ["2+2?"],
        {"role": "user"},
        [USER, {"role": "assistant", "content": "4"}],
    ],
)
def test_what_is_no_conversation(messages):
    with pytest.raises(DatasetError, match="row 3: the conversation in 'prompt'"):
        Reading(answer_key=None).problem({"prompt": messages}, 3)


@pytest.mark.parametrize("template", ["Put it into \\boxed{}: {prompt}", "{prompt", "no place", "{0}"])
def test_templates_that_cannot_be(template):
    with pytest.raises(ConfigError, match=r"env\.train\.template"):
        Reading(template=template)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{context}{prompt}", "KeyError: 'context'"),
        ("{prompt:d}", "ValueError: Unknown format code 'd'"),
        ("{prompt[first]}", "TypeError: string indices"),
        ("{prompt.text}", "AttributeError: 'str' object has no attribute 'text'"),
    ],
)
def test_a_template_that_a_row_cannot_fill(template, said):
    with pytest.raises(ConfigError, match=rf"cannot be filled \({said}.*\) from the columns: prompt, answer"):
        Reading(template=template).problem({"prompt": "p", "answer": 1}, 0)


@pytest.mark.parametrize(
    ("side", "text", "expected"),
    [
        ("right", "abcdefgh", "abcde"),
        ("left", "abcdefgh", "defgh"),
        ("right", "abcdé", "abcd"),
        ("left", "éabcd", "abcd"),
    ],
)
def test_a_long_prompt_is_cut_between_characters(side, text, expected):
    problem = Reading(answer_key=None, max_prompt_bytes=5, truncation=side).problem({"prompt": text}, 0)
    assert problem.prompt == expected


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_long_conversation_loses_of_its_last_message(side):
    reading = Reading(answer_key=None, system_prompt="Be brief.", max_prompt_bytes=200, truncation=side)
    content = '"é\n' * 100 + "end"
    problem = reading.problem({"prompt": content}, 0)
    assert 195 <= len(text_of(problem.prompt).encode()) <= 200
    assert problem.prompt[0] == SYSTEM
    kept = problem.prompt[1]["content"]
    assert content.startswith(kept) if side == "right" else content.endswith(kept)


def test_what_cannot_be_cut_enough_is_too_long():
    reading = Reading(answer_key=None, system_prompt="x" * 100, max_prompt_bytes=100, truncation="right")
    with pytest.raises(TooLong):
        reading.problem({"prompt": "p" * 50}, 0)


def test_impossible_options():
    with pytest.raises(UnknownNameError, match="truncation 'middle'"):
        Reading(truncation="middle")
    with pytest.raises(ConfigError, match="max_prompt_bytes"):
        Reading(max_prompt_bytes=0)
