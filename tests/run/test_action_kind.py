"""Robot or text is chosen in one place, and each kind answers as an env of it needs."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from embodied.errors import ConfigError
from embodied.run.build.action_kind import ROBOT, TEXT, kind_of
from embodied.schema.keys.sections.task_type import TASK_TYPES, task_of
from embodied.testing import FakeEnv, FakeTextEnv
from embodied.types import DiscreteAction, Episode, EpisodeResult, Start

PACKAGE = Path(__file__).resolve().parents[2] / "embodied"
CHOOSERS = {
    "data/samples.py", "run/build/action_kind.py", "serving/service.py", "lib/spec_json.py", "testing/checks.py",
}  # fmt: skip
"""Files that may ask whether an action is a text: those that choose an object by it, or write and check its fields."""


def files():
    return {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}


def asks_for_text(node):
    """Whether a node is ``isinstance(…, TextAction)``, or the same by another name."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
        return "TextAction" in ast.unparse(node.args[1])
    return isinstance(node, ast.MatchClass) and "TextAction" in ast.unparse(node.cls)


def compares_task_type(node):
    """Whether a node compares ``runner.task_type`` with a name, as an attribute or a key."""
    return isinstance(node, ast.Compare) and any(
        isinstance(side, ast.Attribute | ast.Subscript) and ast.unparse(side).endswith(("task_type", "['task_type']"))
        for side in [node.left, *node.comparators]
    )


def count(asks, source):
    return sum(map(asks, ast.walk(ast.parse(source))))


def test_only_choosers_ask_whether_an_action_is_a_text():
    found = {name: count(asks_for_text, source) for name, source in files().items()}
    assert {name: times for name, times in found.items() if times} == dict.fromkeys(CHOOSERS, 1)


def test_nobody_compares_the_task_type():
    assert [name for name, source in files().items() if count(compares_task_type, source)] == []


def test_both_counts_find_what_they_are_for():
    assert count(asks_for_text, "isinstance(spec.action, TextAction)\nisinstance(spec, (A, types.TextAction))") == 2
    assert count(asks_for_text, "match action:\n    case TextAction():\n        pass") == 1
    assert count(compares_task_type, "runner.task_type != 'sft'\nconfig['runner']['task_type'] in ('sft',)") == 2


def test_a_spec_chooses_the_kind():
    robot = FakeEnv().spec
    assert kind_of(robot) is kind_of(replace(robot, action=DiscreteAction(4))) is ROBOT
    assert kind_of(FakeTextEnv().spec) is TEXT


def test_what_is_refused():
    error = ConfigError("no texts", "leave it out")
    ROBOT.refuse_texts(error)
    with pytest.raises(ConfigError, match="no texts"):
        TEXT.refuse_texts(error)


def test_lengths_and_sampling():
    drawn = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": 9}
    assert [kind.max_steps(100, 3) for kind in (ROBOT, TEXT)] == [100, 3]
    assert [kind.max_steps(2, 3) for kind in (ROBOT, TEXT)] == [2, 2]
    assert drawn.keys() - ROBOT.sampling_fields(drawn).keys() == {"max_new_tokens"}
    assert TEXT.sampling_fields(drawn) == drawn


def test_starts_that_differ_by_the_seed_are_one_problem_and_two_scenes():
    one, two = (EpisodeResult(Episode(i, i, Start(1, 2, i)), (), 0.0, False, 1, False, False) for i in (3, 4))
    assert TEXT.origin(one) == TEXT.origin(two)
    assert ROBOT.origin(one) != ROBOT.origin(two)


def test_rows_of_the_summary():
    assert ROBOT.demonstrated(5, 2, 1, "40 chunks of 4 actions") == [
        ["episodes", "5 of 2 tasks, 1 more for validation"], ["samples", "40 chunks of 4 actions"],
    ]  # fmt: skip
    assert TEXT.demonstrated(5, 2, 1, "5 chunks") == [["answers", "5 to 2 prompts, 1 more for validation"]]
    assert ROBOT.not_demonstrated(["push", "pull"], ["pull"]) == [
        ["tasks of env.eval without a demonstration", "1, e.g. 'push'"]
    ]
    assert ROBOT.not_demonstrated(["pull"], ["pull"]) == TEXT.not_demonstrated(["push"], []) == []


def test_the_longest_prompt_is_looked_for_only_where_it_is_not_known():
    assert ROBOT.longest_prompt(["push", "pull it"], (1 / 0 for _ in "x"), lambda: "most") == "pull it"
    assert TEXT.longest_prompt(["a.jsonl"], ["1+1=", "ü="], lambda: "most") == "1+1="
    assert TEXT.longest_prompt(["a.jsonl"], [], lambda: "most") == "most"


def test_who_demonstrates_and_what_is_kept_of_an_episode():
    env = FakeEnv()
    assert (ROBOT.expert(env), TEXT.expert(env)) == (env, None)
    assert (ROBOT.video("a.mp4"), TEXT.video("a.mp4")) == ("a.mp4", None)
    assert (ROBOT.kept_texts(3), TEXT.kept_texts(3)) == (0, 3)


def test_task_types():
    for name, holds in {"embodied": ("by_rewards",), "math": ("by_rewards", "of_texts"), "sft": ("supervised",),
                        "demos": ("records",)}.items():  # fmt: skip
        task = task_of(name)
        flags = ("by_rewards", "supervised", "records", "of_texts")
        assert tuple(flag for flag in flags if getattr(task, flag)) == holds
    assert task_of(None) is task_of("unknown") is TASK_TYPES["embodied"]
