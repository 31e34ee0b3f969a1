"""Demonstrated answers of rows: which prompt each of them has."""

from __future__ import annotations

import pytest

from embodied import instructions
from embodied.data.text import Columns, Written, answers_by_row
from embodied.errors import DatasetError

TALK = [
    {"role": "user", "content": "48*37="}, {"role": "assistant", "content": "<calc>48*37</calc>"},
    {"role": "tool", "content": "1776"}, {"role": "assistant", "content": ";1776"},
    {"role": "user", "content": "+1?"}, {"role": "assistant", "content": ";1777"},
    {"role": "user", "content": "thanks"},
]  # fmt: skip
SYSTEM = {"role": "system", "content": "be brief"}


def answers(rows: list[dict], columns: Columns, where: str) -> list[Written]:
    return [one for row in answers_by_row(rows, columns, where) for one in row]


def test_each_answer_of_a_conversation_follows_all_that_came_before():
    found = answers([{"messages": TALK}], Columns(), "talk")
    assert [one.response for one in found] == ["<calc>48*37</calc>", ";1776", ";1777"]
    assert [instructions.messages(one.instruction) for one in found] == [TALK[:1], TALK[:3], TALK[:5]]


def test_a_system_prompt_comes_first_unless_the_data_has_one():
    columns = Columns(system_prompt="be brief")
    own = [{"role": "system", "content": "sing"}, *TALK[:2]]
    first, second = answers([{"messages": TALK[:2]}, {"messages": own}], columns, "talk")
    assert instructions.messages(first.instruction) == [SYSTEM, TALK[0]]
    assert instructions.messages(second.instruction) == own[:2]
    (plain,) = answers([{"prompt": "1+1=", "response": "2"}], columns, "rows")
    assert instructions.messages(plain.instruction) == [SYSTEM, {"role": "user", "content": "1+1="}]


def test_rows_of_both_kinds_and_other_columns():
    rows = [{"q": "1+1=", "a": "2", "talk": None}, {"talk": TALK[:2]}]
    found = answers(rows, Columns("q", "a", "talk"), "rows")
    assert [(one.instruction, one.response) for one in found] == [
        ("1+1=", "2"), (instructions.of_messages(TALK[:1]), "<calc>48*37</calc>"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "message", [{"role": "robot", "content": "2"}, {"role": "user"}, {"role": "user", "content": 2}, "2"]
)
def test_a_message_that_is_none_is_named_with_its_row(message):
    with pytest.raises(DatasetError, match="talk, row 1 has the message"):
        answers([{"messages": TALK}, {"messages": [*TALK, message]}], Columns(), "talk")
