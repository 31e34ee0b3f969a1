"""Code in the pages: commands are parsed and composed, Python is compiled, names of keys, metrics and verbs exist.

Nothing trains here. What of the pages is run in seconds runs in ``test_docs_run.py``; the pages of ``docs/how_to/`` and
``docs/deploy.md`` have tests of their own.
"""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from brought_folders import run

from embodied import cli
from embodied.errors import EmbodiedError, did_you_mean
from embodied.observe.metrics import METRICS
from embodied.run.arguments import parse_argv
from embodied.schema.compose.compose import compose
from embodied.schema.others import tables
from embodied.schema.others.key_table import keys
from embodied.tools import docs, doctor, play

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
RUN_ELSEWHERE = {*(ROOT / "docs" / "how_to").glob("*.md"), ROOT / "docs" / "deploy.md"}
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
VERBS = {verb.module: name for name, verb in cli.VERBS.items()}
TORCHRUN = {"--standalone", "--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint"}
TABLES = {"eval/generations"}  # what trackers get beside metrics
OBJECTS = {"env.obs"}  # of an example in Python, no key
OF_OTHERS = {row.key for row in tables.rows()}
OF_THE_CLASS = ("env.train.", "env.eval.", "actor.model.", "reward.model.")  # arguments of what _target_ names
KEYS = {key.name for key in keys()}
SECTIONS = {key.partition(".")[0] for key in KEYS}


def blocks(page: Path, *languages: str) -> list[str]:
    return [text for language, text in BLOCK.findall(page.read_text(encoding="utf-8")) if language in languages]


def lines(page: Path) -> Iterator[list[str]]:
    """The words of each command of a page, without comments, variables and what stands for more words."""
    for text in blocks(page, "", "bash"):
        for line in text.replace("\\\n", " ").splitlines():
            for command in line.split(" && "):
                try:
                    words = shlex.split(re.sub(r"\[[^=\s]*? …\]", "", command), comments=True)
                except ValueError:
                    continue  # a line of output with one quote
                while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                    words.pop(0)
                yield [word for word in words if word != "…"]


def embodied(words: list[str]) -> tuple[str, list[str]] | None:
    """The verb of a command and its arguments; None for a command of another program."""
    if words[:1] == ["embodied"] and words[1:]:
        assert words[1] in cli.VERBS, f"no verb '{words[1]}'"
        return words[1], words[2:]
    if words[:1] == ["torchrun"]:
        at = words.index("-m")
        unknown = {word.partition("=")[0] for word in words[1:at]} - TORCHRUN
        assert not unknown, f"torchrun has no {unknown}"
        words = ["python", *words[at:]]
    if words[:2] == ["python", "-m"] and words[2].partition(".")[0] == "embodied":
        assert words[2] in VERBS, f"no command '{words[2]}'"
        return VERBS[words[2]], words[3:]
    return None


def is_script(words: list[str]) -> bool:
    return len(words) > 1 and words[0] == "python" and words[1].startswith(("benchmarks/", "examples/"))


COMMANDS = sorted(
    {
        (found[0], tuple(found[1]))
        for page in PAGES
        if page not in RUN_ELSEWHERE
        for words in lines(page)
        if (found := embodied(words))
    }
)
CONFIGS = {"sft": "sft", "demos": "demos", "eval": "eval", "play": "eval"}  # verb → what it composes; the others train


def chosen(words: tuple[str, ...]) -> dict[str, str]:
    """Groups and short forms of a command, which change everything; keys have a dot."""
    return {word: "" for word in words if "." not in word.partition("=")[0]}


def together(commands: list[tuple[str, ...]]) -> list[list[str]]:
    """Commands of the same groups as one, as long as no key has two values: composing is what takes time here."""
    merged: list[dict[str, str]] = []
    for words in sorted(commands, key=len, reverse=True):
        mine = {word.partition("=")[0]: word for word in words}
        for found in merged:
            if all(found.get(key, word) == word for key, word in mine.items()) and (
                chosen(tuple(found.values())) == chosen(words)
            ):
                found.update(mine)
                break
        else:
            merged.append(mine)
    return [[*found.values()] for found in merged]


def shipped(choice: str) -> bool:
    """Whether ``GROUP=NAME`` is a file of ours, or of the project that the pages tell of."""
    group, _, name = choice.partition("=")
    return any((folder / group / f"{name}.yaml").is_file() for folder in (ROOT / "config", Path("my")))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the commands of the pages refer to."""
    (tmp_path / "my/env").mkdir(parents=True)
    (tmp_path / "my/env/my_task.yaml").write_text("_target_: embodied.testing.FakeEnv\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    libero = ("experiment=quickstart_libero",)
    run("NAME", common=libero, iterations=("000004", "000100"))
    run("quickstart-libero", common=libero, iterations=("000010",))
    return tmp_path


def test_the_commands_of_the_pages_compose(project: Path) -> None:
    given: dict[str, list[tuple[str, ...]]] = {}
    for verb, arguments in COMMANDS:
        if not cli.VERBS[verb].composed:
            continue
        words = [word.replace("…", "SOME") for word in arguments if not word.startswith("rollout.python=")]
        words = ["env=libero_10" if word == "env=NAME" else word for word in words]
        if verb == "play":
            words = play.arguments().parse_intermixed_args(words).words
        if verb == "doctor" and words[:1] and words[0] in CONFIGS:
            verb, words = words[0], words[1:]
        if verb == "doctor":
            _, words = doctor.sampled(words)
            verb = "sft" if any(word.startswith("data=") for word in words) else verb
        words, folders, _ = parse_argv(words, verb)
        assert folders in ([], ["my"])
        given.setdefault(CONFIGS.get(verb, "train"), []).append(tuple(words))
    assert sum(map(len, given.values())) > 50
    wrong = {}
    for config, commands in given.items():
        for words in together(commands):
            if len(words) == 1 and config == "train":
                assert shipped(words[0]), words  # tests/schema/test_shipped_configs.py composes it
                continue
            try:
                compose(words, config, ["my"])
            except EmbodiedError as error:
                wrong[f"{config}: {shlex.join(words)}"] = str(error)
    assert not wrong, "\n".join(f"{command}\n  {error}" for command, error in wrong.items())


class Parsed(Exception):
    """The arguments of a command were parsed: nothing else of it is run."""


@pytest.mark.parametrize(("verb", "arguments"), [c for c in COMMANDS if not cli.VERBS[c[0]].composed], ids=str)
def test_the_arguments_of_other_commands_parse(
    verb: str, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def alone(parse: Callable[..., object]) -> Callable[..., None]:
        def parse_alone(*given: object) -> None:
            parse(*given)
            raise Parsed

        return parse_alone

    for name in ("parse_args", "parse_intermixed_args"):
        monkeypatch.setattr(argparse.ArgumentParser, name, alone(getattr(argparse.ArgumentParser, name)))
    try:
        with pytest.raises(Parsed):
            cli.main([verb, *arguments])
    except SystemExit:
        pytest.fail(capsys.readouterr().err)


SCRIPTS = sorted({(words[1], *words[2:]) for page in PAGES for words in lines(page) if is_script(words)})


def test_scripts_of_the_pages_have_their_options() -> None:
    assert SCRIPTS
    for script, *arguments in SCRIPTS:
        source = (ROOT / script).read_text(encoding="utf-8")
        for option in (word.partition("=")[0] for word in arguments if word.startswith("--")):
            assert f'"{option}"' in source, f"{script} has no option {option}"


def source_of(module: str) -> Path | None:
    """The file of a module, without importing it."""
    found = [ROOT / name for name in (module.replace(".", "/"), module.replace(".", "/").removeprefix("embodied/"))]
    files = [file for path in found for file in (path.with_suffix(".py"), path / "__init__.py")]
    return next((file for file in files if file.is_file()), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_python_of_the_page_compiles_and_its_imports_exist(page: Path) -> None:
    plain = [text for text in blocks(page, "") if re.search(r"^(?:from|import) ", text, re.MULTILINE)]
    for text in [*blocks(page, "python"), *plain]:
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("embodied"):
                continue
            source = source_of(str(node.module))
            assert source is not None, f"no module {node.module}"
            for alias in node.names:
                assert re.search(rf"\b{alias.name}\b", source.read_text(encoding="utf-8")), (
                    f"{node.module} has no {alias.name}"
                )
    for text in blocks(page, "yaml"):
        yaml.safe_load(text)


def known(name: str) -> bool:
    """Whether a dotted name is a key, a section of keys, or an argument of a class that the configuration names."""
    inside = any(name.startswith(f"{key}.") or key.startswith(f"{name}.") for key in KEYS)
    return name in KEYS or inside or name.startswith(OF_THE_CLASS)


WRITTEN = [page for page in PAGES if page.name not in docs.PAGES]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda p: str(p.relative_to(ROOT)))
def test_keys_metrics_and_commands_that_the_page_names_exist(page: Path) -> None:
    wrong = []
    for text in INLINE.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if match := re.match(r"([a-z_]+(?:\.[a-z_]+)+)(?:=|$)", text):
            name = match[1]
            no_key = name in OBJECTS | OF_OTHERS or name.endswith((".py", ".yaml", ".json"))
            if name.partition(".")[0] in SECTIONS and not no_key and not known(name):
                wrong.append(f"{name}: no such key.{did_you_mean(name, KEYS)}")
        elif re.fullmatch(r"(?:rollout|train|eval|time|memory)/[a-z_]+", text):
            if text not in TABLES and not any(name.startswith(text) for name in METRICS):
                wrong.append(f"{text}: no such metric.{did_you_mean(text, METRICS)}")
        elif match := re.match(r"(?:python -m (embodied\.[a-z.]+)|embodied ([a-z]+)\b)", text):
            known_command = match[2] in cli.VERBS or match[1] in {*VERBS, "embodied.tools.docs"}
            wrong += [] if known_command else [f"{text}: no such command"]
    assert not wrong
