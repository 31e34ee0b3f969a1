"""``python -m embodied.tools.migrate THEIRS --from SYSTEM``: another system's configuration as an experiment.

    python -m embodied.tools.migrate libero_10_grpo.yaml --from rlinf --out mine
    python -m embodied.train --config-dir mine experiment=libero_10_grpo

The report says what became of each of their keys. Nothing is run.
"""

from __future__ import annotations

import argparse
import ast
import operator
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied.cli import piped
from embodied.errors import ConfigError, EmbodiedError, told

SUFFIXES = {".yaml": "YAML", ".yml": "YAML", ".toml": "TOML", ".sh": "a script", ".txt": "KEY=VALUE lines"}
NAME = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^{}]*))?\})")
"""A name of the shell, perhaps with what stands for it if it is not set."""
SUM = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)")
OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: lambda a, b: int(a / b),
    ast.Mod: operator.mod,
}  # fmt: skip
SYSTEMS = ("rlinf", "verl", "roll", "cosmos-rl")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 after an explained error."""
    given = _arguments().parse_args(argv)
    try:
        theirs = read(Path(given.file))
        from embodied.migrate import migrate
        from embodied.migrate.report import command, lines_of

        found = migrate(theirs, given.system, given.overrides)
        text = found.as_yaml()
        if given.out is None:
            print(text, end="")
        else:
            file = Path(given.out) / "experiment" / f"{name_of(Path(given.file))}.yaml"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            print(f"{file}\nrun it: {command(found, given.out, file.stem)}")
    except EmbodiedError as error:
        print(told(error), file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error}\n  fix: name a file that can be read, and a folder that can be written", file=sys.stderr)
        return 2
    print("\n".join(lines_of(found, given.system)), file=sys.stderr)
    return 0


def name_of(theirs: Path) -> str:
    """Returns the name of an experiment: that of their file, unless ours has it or an override cannot say it."""
    import yaml

    from embodied.schema.groups import group_options

    name = re.sub(r"[^\w.-]+", "_", theirs.stem, flags=re.ASCII)
    taken = name in group_options("experiment") or not isinstance(yaml.safe_load(name), str)
    return name if name[0].isalpha() and not taken else f"my_{name}"


def read(file: Path) -> Mapping[str, Any]:
    """Reads a nested configuration: YAML with its references, TOML, or ``KEY=VALUE`` words as a script has them.
    Names of the shell stand for what the script sets them to, or for their ``${NAME:-default}``; ``$HOME`` stands for
    the user's folder. Whole numbers in ``$((…))`` are computed. Nothing is run.

    Raises:
        ConfigError: it is none of these.
    """
    if file.suffix not in SUFFIXES:
        kinds = ", ".join(f"{suffix} ({kind})" for suffix, kind in SUFFIXES.items())
        raise ConfigError(f"{file}: what kind of file is this?", f"give one of: {kinds}")
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".toml":
        import tomllib

        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{file} is no TOML: {error}", "correct it") from None
    if file.suffix in (".sh", ".txt"):
        return _words(text)
    return _yaml(file, text)


def _words(text: str) -> dict[str, Any]:
    import yaml

    found: dict[str, Any] = {}
    names = {"HOME": str(Path.home()), "PWD": str(Path.cwd())}  # of the shell; the script itself says what others are
    whole = SUM.sub(lambda at: f"$(({''.join(at[1].split())}))", text.replace("\\\n", " "))  # a word has no blanks
    for word in shlex.split(whole, comments=True):
        key, equals, value = word.partition("=")
        value = _resolved(value, names)
        if equals and key.isidentifier():
            names[key] = value
        if equals and re.fullmatch(r"\+{0,2}[A-Za-z_][\w.@/-]*", key) and "." in key:
            inner = found
            *path, name = key.lstrip("+").split(".")
            for part in path:
                inner = inner.setdefault(part, {})
            inner[name] = value if "$" in value else yaml.safe_load(value)
    return found


def _resolved(value: str, names: Mapping[str, str]) -> str:
    """A word of a script with the values of ``$NAME``, ``${NAME}``, ``${NAME:-default}`` and ``$((sum))``; what cannot
    be known stays as it is."""

    def named(at: re.Match[str]) -> str:
        return names.get(at[1] or at[2], at[0] if at[3] is None else at[3])

    while (new := SUM.sub(lambda at: _sum(at, names), NAME.sub(named, value))) != value:
        value = new
    return value


def _sum(at: re.Match[str], names: Mapping[str, str]) -> str:
    text = re.sub(r"[A-Za-z_]\w*", lambda name: names.get(name[0], name[0]), at[1])
    try:
        return str(_number(ast.parse(text.strip(), mode="eval").body))
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError):
        return at[0]


def _number(node: ast.AST) -> int:
    """The whole number that a sum of the shell gives.

    Raises:
        KeyError: it has anything but whole numbers, + - * / % and brackets.
        ZeroDivisionError: it divides by 0.
    """
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp):
        return OPERATIONS[type(node.op)](_number(node.left), _number(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand)
    raise KeyError(type(node).__name__)


def _yaml(file: Path, text: str) -> dict[str, Any]:
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        config = OmegaConf.create(text)
    except (YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{file} is no YAML: {' '.join(str(error).split())}", "correct it") from None
    if not isinstance(config, DictConfig):
        raise ConfigError(f"{file} has no keys", "give the file of a configuration")

    def resolved(node: Any, plain: Any) -> Any:
        if not isinstance(plain, dict):
            return plain
        found = {}
        for name, value in plain.items():
            try:
                inner = node[name] if node is not None else None
            except OmegaConfBaseException:  # a reference to what their own code knows
                inner = None
            if isinstance(value, dict):
                found[name] = resolved(inner, value)
            elif isinstance(inner, str | int | float | bool):
                found[name] = inner
            else:
                found[name] = OmegaConf.to_container(inner, resolve=False) if OmegaConf.is_config(inner) else value
        return found

    plain = OmegaConf.to_container(config, resolve=False)
    return {str(name): value for name, value in resolved(config, plain).items()}


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m embodied.tools.migrate", description="Turn a configuration of another system into an experiment."
    )
    parser.add_argument("file", metavar="THEIRS", help="their file: .yaml, .toml, or a script with KEY=VALUE words")
    parser.add_argument("--from", dest="system", choices=SYSTEMS, required=True, help="whose file it is")
    parser.add_argument("--out", metavar="FOLDER", help="write FOLDER/experiment/NAME.yaml; default: print it")
    parser.add_argument(
        "--with", dest="overrides", nargs="*", default=[], metavar="KEY=VALUE",
        help="overrides of ours with which the result is tried",
    )  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(piped(main))
