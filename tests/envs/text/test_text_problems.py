"""Which rows are problems, in which order, and how many starts each source has."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from embodied.envs.text import problems
from embodied.envs.text.env import MathEnv
from embodied.envs.text.problems import EVAL_SEEDS, Selection, Source, Survey, open_sources
from embodied.envs.text.reading import Reading

from embodied.errors import ConfigError, DatasetError
from embodied.rows import hub
from embodied.rows.hub import Part
from embodied.runtime import plan


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(path: Path, table: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in table), encoding="utf-8")
    return str(path)


def sums(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"prompt": f"{n}+{n}=", "answer": 2 * n, **more} for n in range(count)]


def sources(
    *data: str, weights: list[float] | None = None, arguments: dict[str, Any] | None = None,
    selection: Selection = Selection(), **reading: Any,  # noqa: B008 (frozen)
) -> list[Source]:  # fmt: skip
    return open_sources(data, arguments or {}, Reading(**reading), selection, weights)


def numbers(source: Source) -> list[int]:
    return [source.problem(start, 0).number for start in range(len(source))]


def test_without_the_cache_each_process_reads_files_anew(tmp_path):
    path = write(tmp_path / "some.jsonl", [*sums(3), {"prompt": "lost"}])
    env = MathEnv(path, enable_dataset_cache=False)
    assert env.spec.num_init_states == (3,)
    assert not (tmp_path / "cache").exists()
    MathEnv(path)
    assert (tmp_path / "cache").exists()


# -- a source --------------------------------------------------------------------------------------------------------


def test_rows_without_answer_or_prompt_are_skipped_counted_and_shown(tmp_path):
    table = [*sums(3), {"prompt": "lost", "answer": ""}, {"prompt": "lost too"}, {"answer": 1}, *sums(2)]
    (source,) = sources(write(tmp_path / "some.jsonl", table))
    assert numbers(source) == [0, 1, 2, 6, 7]
    assert source.name == "some.jsonl"
    assert source.notes == (
        "2 of 8 rows skipped, without an answer ('answer'); the first is row 3: {'prompt': 'lost', 'answer': ''}",
        "1 of 8 rows skipped, without a prompt ('prompt'); the first is row 5: {'answer': 1}",
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prompt_key": "promt"}, r"no row has a prompt \('promt'\)\. Did you mean 'prompt'\?"),
        ({"answer_key": "reward_model.truth"}, r"no row has an answer \('reward_model\.truth'\)"),
        ({"messages_key": "chat"}, r"no row has a prompt \('chat'\)"),
    ],
)
def test_a_missing_column_lists_the_columns(tmp_path, options, said):
    path = write(tmp_path / "some.jsonl", sums(3, reward_model={"style": "rule"}))
    with pytest.raises(DatasetError, match=said + r".*columns: prompt, answer, reward_model"):
        sources(path, **options)


def test_files_without_rows(tmp_path):
    (tmp_path / "a.json").write_text("[]", encoding="utf-8")
    (tmp_path / "b.csv").write_text("prompt,answer\n", encoding="utf-8")
    for name in ("a.json", "b.csv"):
        with pytest.raises(DatasetError, match="has no rows"):
            sources(str(tmp_path / name))


def test_a_prompt_that_is_too_long_is_found_at_the_start(tmp_path):
    path = write(tmp_path / "some.jsonl", [*sums(2), {"prompt": "x" * 80, "answer": 1}])
    with pytest.raises(DatasetError, match=r"row 2: the prompt has 80 bytes, and 64 fit") as raised:
        sources(path, max_prompt_bytes=64)
    assert "filter_overlong_prompts=true" in raised.value.remedy
    for truncation in ("error", "left"):
        leave_out = Selection(filter_overlong_prompts=True)
        (source,) = sources(path, max_prompt_bytes=64, truncation=truncation, selection=leave_out)
        assert numbers(source) == [0, 1]
    assert "1 of 3 rows skipped, with a prompt of more than 64 bytes" in source.notes[0]
    with pytest.raises(DatasetError, match="all 3 rows are skipped"):
        sources(path, max_prompt_bytes=2, selection=Selection(filter_overlong_prompts=True))
    (source,) = sources(path, max_prompt_bytes=64, truncation="left")
    assert source.problem(2, 0).prompt == "x" * 64


def test_a_second_process_reads_no_row(tmp_path, monkeypatch):
    path = write(tmp_path / "some.jsonl", sums(5))
    sources(path)
    problems._open_file.cache_clear()  # as in another process
    monkeypatch.setattr(Survey, "of", lambda *_: pytest.fail("the rows were read again"))
    assert numbers(sources(path)[0]) == [0, 1, 2, 3, 4]


def test_other_options_are_another_survey(tmp_path):
    path = write(tmp_path / "some.jsonl", [*sums(3), {"prompt": "p", "other": 1}])
    assert len(sources(path)[0]) == 3
    assert len(sources(path, answer_key="other")[0]) == 1


@pytest.mark.parametrize("size", [0, 40, 300, -30, -1])
def test_a_damaged_survey_is_made_again(tmp_path, size):
    path = write(tmp_path / "some.jsonl", [*sums(3), {"prompt": "p"}])
    expected = sources(path)[0].notes
    (survey,) = (tmp_path / "cache").rglob("*survey*")
    survey.write_bytes(survey.read_bytes()[:size])
    problems._open_file.cache_clear()  # as in another process
    (source,) = sources(path)
    assert (numbers(source), source.notes) == ([0, 1, 2], expected)


def test_a_survey_does_not_outlive_the_copy_of_a_data_set(tmp_path, monkeypatch):
    arrow = pytest.importorskip("pyarrow")
    table = sums(3)
    monkeypatch.setattr(hub, "_splits", lambda *_: [SimpleNamespace(with_format=lambda _: Batches())])

    class Batches:
        def iter(self, batch_size: int):
            return iter([arrow.Table.from_pylist(table)])

    assert numbers(sources("some/name")[0]) == [0, 1, 2]
    table = [{"prompt": "", "answer": 1}, *sums(4)]
    (copy,) = (tmp_path / "cache").rglob("*.arrow")
    copy.unlink()
    problems._open_file.cache_clear()
    assert numbers(sources("some/name")[0]) == [1, 2, 3, 4]


def test_slots_of_a_process_share_a_source(tmp_path):
    path = write(tmp_path / "some.jsonl", sums(5))
    assert sources(path)[0] is sources(path)[0]


def test_shuffle_is_a_permutation_by_seed(tmp_path):
    path = write(tmp_path / "some.jsonl", sums(50))
    first, again, other = (
        numbers(sources(path, selection=Selection(shuffle=True, seed=seed))[0]) for seed in (1, 1, 2)
    )
    assert sorted(first) == list(range(50))
    assert first == again
    assert first != other != list(range(50))


def test_max_samples_keeps_the_first_of_the_order(tmp_path):
    path = write(tmp_path / "some.jsonl", sums(50))
    assert numbers(sources(path, selection=Selection(max_samples=4))[0]) == [0, 1, 2, 3]
    whole = numbers(sources(path, selection=Selection(shuffle=True))[0])
    assert numbers(sources(path, selection=Selection(shuffle=True, max_samples=4))[0]) == whole[:4]


def test_no_samples():
    with pytest.raises(ConfigError, match="max_samples is 0"):
        Selection(max_samples=0)


def test_weights_are_shares_of_the_starts(tmp_path):
    many, few = write(tmp_path / "many.jsonl", sums(90)), write(tmp_path / "few.jsonl", sums(10))
    assert [len(source) for source in sources(many, few)] == [90, 10]
    less, more = sources(many, few, weights=[1, 1])
    assert [len(less), len(more)] == [50, 50]
    assert len(set(numbers(less))) == 50
    assert set(Counter(numbers(more)).values()) == {5}
    assert numbers(less) != numbers(sources(many, few, weights=[1, 1], selection=Selection(seed=1))[0])


@pytest.mark.parametrize("weights", [[1.0], [1.0, 0.0], [1.0, -1.0], [1.0, float("nan")]])
def test_weights_that_cannot_be(tmp_path, weights):
    path = write(tmp_path / "some.jsonl", sums(3))
    with pytest.raises(ConfigError, match="expected 2 positive numbers"):
        sources(path, path, weights=weights)


def test_files_of_one_name_are_told_apart(tmp_path):
    (tmp_path / "a").mkdir()
    paths = [write(tmp_path / "a" / "some.jsonl", sums(3)), write(tmp_path / "some.jsonl", sums(4))]
    assert [source.name for source in sources(*paths)] == paths


# -- custom data sets ------------------------------------------------------------------------------------------------

CUSTOM = """
class Squares:
    def __init__(self, count=3):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, number):
        if number == 7:
            raise RuntimeError("seven")
        return {"prompt": f"{number}^2=", "answer": None if number == 5 else number**2}

class Split(Squares):
    def for_evaluation(self):
        return Evaluated(min(self.count, 6))

class Unsplit(Squares):
    def for_evaluation(self):
        return None

class Lost(Squares):
    def for_evaluation(self):
        raise KeyError("part")

class Evaluated(Squares):
    def __getitem__(self, number):
        return {"prompt": f"eval {number}", "answer": 1}

def cubes(count):
    yield {"prompt": "", "answer": 0}
    for number in range(count):
        yield {"prompt": f"{number}^3=", "answer": number**3}

def words():
    return ["one", "two"]

def number():
    return 3

def fails():
    raise RuntimeError("no luck")

constant = 3
"""


@pytest.fixture
def custom(tmp_path: Path) -> str:
    (tmp_path / "my_data.py").write_text(CUSTOM, encoding="utf-8")
    return f"{tmp_path / 'my_data.py'}:"


def test_a_class_with_random_access(custom):
    (source,) = sources(f"{custom}Squares", arguments={"count": 4})
    assert len(source) == 4
    assert source.problem(3, 0).answer == 9
    assert source.problem(3, EVAL_SEEDS).answer == 9


def test_it_is_not_asked_for_rows_before_they_are_used(custom):
    (source,) = sources(f"{custom}Squares", arguments={"count": 10**9})
    assert source.problem(10**9 - 1, 0).prompt == "999999999^2="


def test_a_row_that_is_no_problem_or_raises(custom):
    (source,) = sources(f"{custom}Squares", arguments={"count": 8})
    with pytest.raises(DatasetError, match=r"row 5 of .*Squares is without an answer.*columns are: prompt, answer"):
        source.problem(5, 0)
    with pytest.raises(DatasetError, match=r"row 7 of .*Squares raised RuntimeError: seven"):
        source.problem(7, 0)


def test_evaluations_take_what_is_held_out(custom):
    (source,) = sources(f"{custom}Split")
    assert plan.EVAL_SEEDS == EVAL_SEEDS
    assert source.problem(1, EVAL_SEEDS - 1).prompt == "1^2="
    assert source.problem(1, EVAL_SEEDS).prompt == "eval 1"


def test_evaluations_of_another_length_are_refused_at_the_start(custom):
    with pytest.raises(DatasetError, match=r"has 8 rows for training, and its for_evaluation\(\) gives 6"):
        sources(f"{custom}Split", arguments={"count": 8})


@pytest.mark.parametrize(
    ("name", "said"),
    [("Unsplit", r"for_evaluation\(\) of .*Unsplit gave a NoneType, expected an object with __len__"),
     ("Lost", r"for_evaluation\(\) of .*Lost raised KeyError: 'part'")],
)  # fmt: skip
def test_what_evaluations_would_take_is_checked_at_the_start(custom, name, said):
    with pytest.raises(DatasetError, match=said):
        sources(f"{custom}{name}")


def test_rows_that_are_made_when_they_are_asked_for_cannot_be_filtered(custom):
    with pytest.raises(ConfigError, match=r"filter_overlong_prompts is true, and .*Squares makes its rows when"):
        sources(f"{custom}Squares", selection=Selection(filter_overlong_prompts=True))
    long = Selection(filter_overlong_prompts=True)
    (source,) = sources(f"{custom}cubes", arguments={"count": 40}, max_prompt_bytes=4, selection=long)
    assert len(source) == 10  # those of an iterator are read once


def test_an_iterator_is_read_once(custom):
    (source,) = sources(f"{custom}cubes", arguments={"count": 4})
    assert [source.problem(n, 0).answer for n in (3, 0, 3)] == [27, 0, 27]
    assert len(source) == 4
    assert "1 of 5 rows skipped, without a prompt" in source.notes[0]


def test_a_module(tmp_path, monkeypatch):
    (tmp_path / "some_module_of_mine.py").write_text(CUSTOM, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert len(sources("some_module_of_mine:Squares")[0]) == 3
    del sys.modules["some_module_of_mine"]


@pytest.mark.parametrize(
    ("name", "arguments", "error", "said"),
    [
        ("Square", {}, ConfigError, r"no class or function 'Square'\. Did you mean 'Squares'"),
        ("constant", {}, ConfigError, "no class or function 'constant'"),
        ("Squares", {"size": 3}, ConfigError, r"takes \(count=3\)"),
        ("cubes", {}, ConfigError, "data_args are {}"),
        ("words", {}, DatasetError, "row 0 of .*words has|row 0 of .*words is a str"),
        ("number", {}, DatasetError, "gave a int"),
        ("fails", {}, DatasetError, "raised RuntimeError: no luck"),
    ],
)
def test_custom_data_sets_that_do_not_fit(custom, name, arguments, error, said):
    with pytest.raises(error, match=said):
        sources(f"{custom}{name}", arguments=arguments)[0].problem(0, 0)


def test_custom_data_sets_that_are_not_there(tmp_path):
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="there is no file"):
        sources(f"{tmp_path / 'none.py'}:Squares")
    for _ in range(2):  # what failed is not half there the second time
        with pytest.raises(ConfigError, match=r"cannot import .*nothing_of_that_name"):
            sources(f"{tmp_path / 'broken.py'}:Squares")
    with pytest.raises(ConfigError, match="cannot import no_such_package"):
        sources("no_such_package.module:Squares")


def test_arguments_without_a_custom_data_set(tmp_path):
    with pytest.raises(ConfigError, match="names no custom data set"):
        sources(write(tmp_path / "some.jsonl", sums(1)), arguments={"count": 3})


def test_a_file_may_have_a_colon_in_its_name(tmp_path):
    path = tmp_path / "some:name"
    path.write_text("x", encoding="utf-8")
    with pytest.raises(DatasetError, match="format ''"):
        sources(str(path))


def test_numbers_of_a_large_source_take_no_memory(custom):
    (source,) = sources(f"{custom}Squares", arguments={"count": 10**9}, selection=Selection(max_samples=10**8))
    assert isinstance(source.numbers, range)
    shuffled = problems.shuffled(1000, 0)
    assert shuffled.dtype == np.int32


@pytest.mark.parametrize(
    ("verifier", "kept"),
    [("gsm8k", [0, 2, 3]), ("integer_after", [2]), ("choice", [1]), ("exact", [0, 1, 2, 3]), ("format", [0, 1, 2, 3])],
)
def test_answers_that_the_verifier_cannot_read_are_left_out(tmp_path, verifier, kept):
    answers = ["so it is\n#### 1.5", "B. Paris", "7", "-2.0 apples"]
    path = write(tmp_path / "some.jsonl", [{"prompt": "?", "answer": answer} for answer in answers])
    part = {"name": verifier, **({"pattern": "x"} if verifier == "format" else {})}
    (source,) = open_sources([path], {}, Reading(), Selection(), None, verifier=json.dumps([part]))
    assert numbers(source) == kept
    assert source.skipped == 4 - len(kept)
    if source.skipped:
        assert f"{source.skipped} of 4 rows skipped, with an answer that the verifier cannot read" in source.notes[0]


@pytest.mark.parametrize("verifier", ["boxed", "math"])
def test_worked_solutions_in_place_of_answers_are_left_out_and_said(tmp_path, verifier):
    if verifier == "math":
        pytest.importorskip("math_verify")
    prose = "First we add three and four, which gives seven apples in all."
    given = json.dumps([{"name": verifier}])

    def opened(name: str, *answers: Any) -> Source:
        path = write(tmp_path / name, [{"prompt": "?", "answer": answer} for answer in answers])
        return open_sources([path], {}, Reading(), Selection(), None, verifier=given)[0]

    source = opened("some.jsonl", prose, ["5"], ["5", "6"], {"a": 1}, 7, True)
    assert numbers(source) == [1, 4, 5]
    assert source.skipped == 3
    assert "3 of 6 rows skipped, with an answer that the verifier cannot read; the first is row 0" in source.notes[0]
    assert "is a text of several words, and has no box" in source.notes[0]
    with pytest.raises(DatasetError, match=r"all 1 rows are skipped.*\(the answer 'First we add .* has no box\)"):
        opened("all.jsonl", prose)


def test_a_verifier_that_can_read_no_answer(tmp_path):
    path = write(tmp_path / "some.jsonl", [{"prompt": "?", "answer": "none"}])
    with pytest.raises(
        DatasetError, match="all 1 rows are skipped, 1 of them with an answer that the verifier"
    ) as raised:
        open_sources([path], {}, Reading(), Selection(), None, verifier='[{"name": "gsm8k"}]')
    assert "data.answer_key" in raised.value.remedy


def test_what_is_held_out_is_not_trained_on(tmp_path):
    path = write(tmp_path / "some.jsonl", sums(40))
    found = {
        (part, size, seed): numbers(sources(path, selection=Selection(part=part, test_size=size, seed=seed))[0])
        for part in ("train", "held_out") for size in (0.25, 3) for seed in (0, 1)
    }  # fmt: skip
    for size, count in ((0.25, 10), (3, 3)):
        for seed in (0, 1):
            train, out = found["train", size, seed], found["held_out", size, seed]
            assert sorted(train + out) == list(range(40))
            assert len(out) == count
            assert out == sorted(out) == found["held_out", size, 0]
    shuffled = numbers(sources(path, selection=Selection(part="held_out", test_size=0.25, shuffle=True, seed=3))[0])
    assert sorted(shuffled) == found["held_out", 0.25, 0] != shuffled


def test_sides_that_skip_other_rows_hold_the_same_ones_out(tmp_path):
    table = [{"prompt": f"{n}?", "answer": "x" if n == 3 else f"#### {n}"} for n in range(100)]
    path = write(tmp_path / "some.jsonl", table)

    def rows(part: str, verifier: str) -> set[int]:
        given = json.dumps([{"name": verifier}])
        return set(numbers(open_sources([path], {}, Reading(), Selection(part=part), None, verifier=given)[0]))

    train, out = rows("train", "exact"), rows("held_out", "gsm8k")
    assert not train & out
    assert train | out | {3} == set(range(100))


def test_a_custom_data_set_is_divided_too(custom):
    found = [
        numbers(sources(f"{custom}Squares", arguments={"count": 4}, selection=Selection(part=part, test_size=1))[0])
        for part in ("train", "held_out")
    ]
    assert sorted(found[0] + found[1]) == [0, 1, 2, 3]
    assert len(found[1]) == 1
    for part in ("train", "held_out"):  # it keeps problems back itself
        (source,) = sources(f"{custom}Split", selection=Selection(part=part))
        assert (len(source), source.problem(0, 0).prompt, source.problem(0, EVAL_SEEDS).prompt) == (3, "0^2=", "eval 0")


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"part": "test"}, ConfigError, "part 'test'"),
        ({"part": "train", "test_size": 1.5}, ConfigError, "test_size is 1.5"),
        ({"part": "train", "test_size": 3}, DatasetError, "holds 3 of 3 rows out, .* leaves none for training"),
        ({"part": "held_out", "test_size": 0}, DatasetError, "leaves none for evaluation"),
    ],
)
def test_shares_that_leave_nothing(tmp_path, options, error, said):
    path = write(tmp_path / "some.jsonl", sums(3))
    with pytest.raises(error, match=said):
        sources(path, selection=Selection(**options))


def test_a_custom_data_set_has_no_parts_of_hugging_face(custom):
    with pytest.raises(ConfigError, match=r"custom data set, which has no \(split test\)"):
        open_sources([f"{custom}Squares"], {}, Reading(), Selection(), None, Part(split=("test",)))
