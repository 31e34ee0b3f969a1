"""Errors of one command come together."""

from __future__ import annotations

from functools import partial

import pytest

from embodied.errors import CheckpointError, ConfigError, broken, printed, refuse


def fails(error: Exception) -> None:
    raise error


def test_all_that_is_wrong_is_said_once_in_one_error():
    rules = [ConfigError("one", "a"), CheckpointError("two", "b"), ConfigError("one", "a"), KeyError("of an error")]
    found = broken(partial(fails, error) for error in rules)
    assert [error.message for error in found] == ["one", "two"]
    with pytest.raises(ConfigError) as refused:
        refuse(found)
    refused.value.add_note("  more: a note")
    assert printed(refused.value).splitlines() == [
        "error: one", "  fix: a", "  more: a note", "  kind: ConfigError (embodied explain ConfigError)",
        "error: two", "  fix: b", "  kind: CheckpointError (embodied explain CheckpointError)",
    ]  # fmt: skip


def test_rules_that_hold_refuse_nothing_and_a_defect_of_ours_stays_one():
    refuse(broken([lambda: None]))
    with pytest.raises(KeyError):
        broken([partial(fails, KeyError("a defect")), partial(fails, ConfigError("one", "a"))])


def test_which_rule_is_next_may_depend_on_the_one_before():
    known: list[int] = []

    def rules():
        yield partial(known.append, 1)
        if known:
            yield partial(fails, ConfigError("found", "it"))

    assert [error.message for error in broken(rules())] == ["found"]
