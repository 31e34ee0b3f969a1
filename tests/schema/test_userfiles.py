"""What is wrong with a file of a user's folder is an error with the file and its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from embodied.errors import ConfigError
from embodied.schema.compose.compose import compose
from embodied.schema.compose.userfiles.yaml_text import check_text
from embodied.tools.migrate import read
from embodied.train import main

HEAD = "# @package _global_\n"
GIVEN = ("env=math", "model=causal_lm_tiny", "experiment=mine")
WRONG = [
    ("algorithm: {loss_type: ???}\n", 2, "found '?'", "a value in the place of"),
    ("algorithm:\n\tgroup_size: 8\n", 3, "found character", "spaces"),
    ("algorithm:\n  group_size: 8\n   adv_type: gae\n", 4, "mapping values are not allowed", "that line"),
    ("seed: 1\nalgorithm:\n  group_size: 8\n  group_size: 4\n", 5, "duplicate key group_size", "keep one"),
    ("algorithm: {group_size: 8, group_size: 4}\n", 2, "duplicate key", "keep one"),
    ("- a\n- b\n", 2, "KEY: VALUE is expected", "that line"),
    ("hello\n", 2, "KEY: VALUE is expected", "that line"),
    ("a: 1\n---\nb: 2\n", 3, "another document", "keep one"),
    ("a: &x\n  b: *x\n", 2, "within what it names", "anchor"),
    ("a: &x [1, *x]\n", 2, "within what it names", "anchor"),
    ("a: *nope\n", 2, "undefined alias", "anchor"),
    ("a:\n  b: !Foo 1\n", 3, "!Foo", "without the tag"),
    ("a: !!python/object/apply:os.system [ls]\n", 2, "python", "without the tag"),
    ("? [a, b]\n: 5\n", 2, "stands as a key", "that line"),
    ("algorithm:\n  group_size: ${a\n", 3, "no reference", "as ${KEY}"),
    ("a: ok\nb: 'never closed\n", 4, "end of stream", "that line"),
    ("a: 1\nb: \x07\n", 3, "#x0007", "remove it"),
    ("a: [" * 4000, 1, "too deep", "that line"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "said", "fix"), WRONG)
def test_an_error_names_file_and_line(text, line, said, fix, tmp_path):
    file = tmp_path / "experiment" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(HEAD + text, encoding="utf-8")
    for reading in (lambda: compose(GIVEN, "train", [str(tmp_path)]), lambda: read(file)):
        with pytest.raises(ConfigError) as raised:
            reading()
        assert raised.value.message.startswith(f"{file}, line {line}: ")
        assert said in raised.value.message
        assert fix in raised.value.remedy


def test_aliases_that_repeat_each_other_are_no_endless_work():
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    with pytest.raises(ConfigError, match="more than"):
        check_text("\n".join(lines), "f")


@pytest.mark.parametrize(
    "text", ["base: &b {x: 1}\na:\n  <<: *b\n  x: 2\n", "a: 2024-01-01\n", "a: ${b}\nb: 010\n", "a: '$'\nyes: no\n"]
)
def test_what_yaml_has_is_read(text):
    assert check_text(text, "f")


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_file_has_no_keys(text, tmp_path):
    assert not check_text(text, "f")
    for name in ("a.yaml", "a.yml", *(["a.toml"] if not text.startswith("-") else [])):
        (tmp_path / name).write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match="has no keys"):
            read(tmp_path / name)


@pytest.mark.parametrize("value", ["'???'", '"???"', "???"])
def test_a_key_that_has_to_be_given_is_not_left_at_its_default(value, tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(f"{HEAD}algorithm:\n  loss_type: {value}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"algorithm\.loss_type is not set: .*mine\.yaml"):
        compose(GIVEN, "train", [str(tmp_path)])
    config = compose([*GIVEN, "algorithm.loss_type=gspo"], "train", [str(tmp_path)]).config
    assert config.algorithm.loss_type == "gspo"


def test_a_mark_of_the_encoding_and_another_encoding_are_said(tmp_path):
    file = tmp_path / "experiment" / "mine.yaml"
    file.parent.mkdir()
    for data, said in ((b"\xef\xbb\xbf# @package _global_\n", "byte-order mark"), (b"\xff\xfea", "no text in UTF-8")):
        file.write_bytes(data)
        with pytest.raises(ConfigError, match=said):
            compose(GIVEN, "train", [str(tmp_path)])


def test_a_file_that_another_one_names_is_checked_too(tmp_path):
    for name, text in (("mine", "defaults: [other]\n"), ("other", "a: 1\na: 2\n")):
        (tmp_path / "experiment").mkdir(exist_ok=True)
        (tmp_path / "experiment" / f"{name}.yaml").write_text(HEAD + text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"other\.yaml, line 3: duplicate key a"):
        compose(GIVEN, "train", [str(tmp_path)])


def test_a_run_ends_with_status_2(tmp_path, capsys):
    (tmp_path / "experiment").mkdir()
    Path(tmp_path / "experiment" / "mine.yaml").write_text(f"{HEAD}a: {{b: ???}}\n", encoding="utf-8")
    assert main(["--config-dir", str(tmp_path), *GIVEN]) == 2
    assert "mine.yaml, line 2" in capsys.readouterr().err
