"""Demonstrated answers of rows: which prompt each of them has."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from embodied import instructions
from embodied.data.texts.text import Columns, DemonstratedAnswer, TextSamples, answers_by_row
from embodied.errors import DatasetError
from embodied.types import ArraySpec

TALK = [
    {"role": "user", "content": "48*37="}, {"role": "assistant", "content": "<calc>48*37</calc>"},
    {"role": "tool", "content": "1776"}, {"role": "assistant", "content": ";1776"},
    {"role": "user", "content": "+1?"}, {"role": "assistant", "content": ";1777"},
    {"role": "user", "content": "thanks"},
]  # fmt: skip
SYSTEM = {"role": "system", "content": "be brief"}


def answers(rows: list[dict], columns: Columns, where: str) -> list[DemonstratedAnswer]:
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


def test_each_answer_has_the_pictures_that_its_prompt_speaks_of(tmp_path):
    for number, colour in enumerate(((200, 0, 0), (0, 0, 200))):
        Image.new("RGB", (4, 4), colour).save(tmp_path / f"{number}.png")
    talk = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]},
        {"role": "assistant", "content": "red"},
        {"role": "user", "content": "and <image>?"},
        {"role": "assistant", "content": "blue"},
    ]
    rows = [{"messages": talk, "images": ["0.png", "1.png"]}, {"prompt": "1+1", "response": "2"}]
    found = [one for row in answers_by_row(rows, Columns(images="images"), "rows", tmp_path) for one in row]
    samples = TextSamples(found, 8, ArraySpec((2, 4, 4, 3), "uint8"))
    shown = samples.batch(np.arange(3))["pictures"][:, :, 2, 2].tolist()
    red, blue, black = [200, 0, 0], [0, 0, 200], [0, 0, 0]
    assert shown == [[red, black], [red, blue], [black, black]]
    assert instructions.messages(found[0].instruction)[0]["content"] == "<image>what?"
    for room, said in ((None, "give the env problems with pictures"), (1, "max_images to 2 or more")):
        with pytest.raises(DatasetError, match=said):
            TextSamples(found, 8, room and ArraySpec((room, 4, 4, 3), "uint8"))
    wrong = {"prompt": "<image>", "response": "2", "images": ["0.png", "1.png"]}
    with pytest.raises(DatasetError, match="rows, row 1: the prompt has 1 times <image>"):
        answers_by_row([rows[0], wrong], Columns(images="images"), "rows")
    assert "pictures" not in TextSamples(found[2:], 8).batch(np.arange(1))
