"""``python -m embodied.tools.migrate THEIRS --from SYSTEM``: another system's configuration as an experiment.

    python -m embodied.tools.migrate libero_10_grpo.yaml --from rlinf --out mine
    python -m embodied.train --config-dir mine experiment=libero_10_grpo
    python -m embodied.tools.migrate train.py --from trl --processes 8 --out mine

The report says what became of each of their keys. Nothing is run.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied.cli import piped
from embodied.errors import ConfigError, EmbodiedError, printed

SUFFIXES = {
    ".yaml": "YAML", ".yml": "YAML", ".toml": "TOML", ".sh": "a script", ".txt": "KEY=VALUE lines",
    ".py": "a script that makes TRL's GRPOTrainer",
}  # fmt: skip
SYSTEMS = ("rlinf", "verl", "roll", "cosmos-rl", "trl")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 after an explained error."""
    given = _arguments().parse_args(argv)
    try:
        theirs, remarks = read_with_remarks(Path(given.file))
        theirs, rewards = _with_launch(theirs, given)
        from embodied.migrate import migrate
        from embodied.migrate.origin import check_origin
        from embodied.migrate.report import command, lines_of

        check_origin(theirs, given.system)
        found = migrate(theirs, given.system, given.overrides)
        text = found.as_yaml()
        if given.out is None:
            print(text, end="")
        else:
            file = Path(given.out) / "experiment" / f"{name_of(Path(given.file))}.yaml"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            if rewards is not None:
                Path(given.out, rewards[0]).write_text(rewards[1], encoding="utf-8")
                remarks.append(f"{given.out}/{rewards[0]} has the reward functions of the script: look at it")
            print(f"{file}\n{command(found, given.out, file.stem)}")
    except EmbodiedError as error:
        print(printed(error), file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error}\n  fix: name a file that can be read, and a folder that can be written", file=sys.stderr)
        return 2
    print("\n".join([*(f"note: {one}" for one in remarks), *lines_of(found, given.system)]), file=sys.stderr)
    return 0


def _with_launch(
    theirs: Mapping[str, Any], given: argparse.Namespace
) -> tuple[Mapping[str, Any], tuple[str, str] | None]:  # fmt: skip
    """Adds to TRL's keys what stands beside its file: how many processes there are, and where its reward functions go.
    Returns the keys, and that file's name and text; None if there is none."""
    if given.system != "trl":
        if given.processes is not None:
            raise ConfigError(f"--processes is for TRL, and a file of {given.system} says it", "leave it out")
        return theirs, None
    from embodied.migrate.trl import launch, rewards

    file = Path(given.file)
    theirs = launch.with_processes(theirs, file.parent, given.processes)
    functions = rewards.of_script(theirs)
    if not functions or given.out is None:
        return theirs, None
    name = f"{re.sub(r'[^0-9A-Za-z_]', '_', file.stem)}_rewards.py"
    text = rewards.module_of(file.read_text(encoding="utf-8-sig"), functions, file.name)
    return rewards.with_path(theirs, f"{given.out}/{name}"), (name, text)


def name_of(theirs: Path) -> str:
    """Chooses the name of a migrated experiment: that of the foreign file, unless ours has it or an override cannot say
    it."""
    import yaml

    from embodied.schema.keys.groups import group_options

    name = re.sub(r"[^\w.-]+", "_", theirs.stem, flags=re.ASCII)
    taken = name in group_options("experiment") or not isinstance(yaml.safe_load(name), str)
    return name if name[0].isalpha() and not taken else f"my_{name}"


def read(file: Path) -> Mapping[str, Any]:
    """Reads a foreign configuration as a nested mapping: YAML with its references, TOML, or the ``KEY=VALUE`` words of
    a script, with the values that its shell would give them (:mod:`embodied.migrate.shell`). Nothing is run.

    Raises:
        ConfigError: it is none of these.
    """
    return read_with_remarks(file)[0]


def read_with_remarks(file: Path) -> tuple[Mapping[str, Any], list[str]]:
    """Reads a foreign configuration as :func:`read` does, with remarks on how its values were determined."""
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES:
        kinds = ", ".join(f"{suffix} ({kind})" for suffix, kind in SUFFIXES.items())
        raise ConfigError(f"{file}: what kind of file is this?", f"give one of: {kinds}")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is no text in UTF-8: {error.reason}", "save it as UTF-8") from None
    if suffix in (".toml", ".yaml", ".yml"):
        keys = _toml(file, text) if suffix == ".toml" else _yaml(file, text)
        if not keys:
            raise ConfigError(f"{file} has no keys", "give the file of a configuration")
        return keys, []
    if suffix == ".py":
        from embodied.migrate.trl.script import read_script as read_python

        return read_python(text, str(file))
    from embodied.migrate.shell.keys import read_script

    script = read_script(text, str(file))
    return script.keys, script.remarks


def _toml(file: Path, text: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is no TOML: {error}", "correct the line that is named") from None


def _yaml(file: Path, text: str) -> dict[str, Any]:
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from embodied.schema.compose.userfiles.yaml_text import check_text

    if not check_text(text, str(file)):
        return {}
    try:
        config = OmegaConf.create(text)
    except (YAMLError, OmegaConfBaseException) as error:
        what = " ".join(str(error).split())
        raise ConfigError(f"{file} cannot be read: {what}", "correct the value or the ${…} that it names") from None
    assert isinstance(config, DictConfig)

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
    parser.add_argument(
        "file", metavar="THEIRS", help="their file: .yaml, .toml, a script with KEY=VALUE words, or TRL's in Python"
    )
    parser.add_argument("--from", dest="system", choices=SYSTEMS, required=True, help="whose file it is")
    parser.add_argument("--out", metavar="FOLDER", help="write FOLDER/experiment/NAME.yaml; default: print it")
    parser.add_argument(
        "--processes", type=int, metavar="N", help="TRL: processes that accelerate starts; default: its file's, or 1"
    )  # fmt: skip
    parser.add_argument(
        "--with", dest="overrides", nargs="*", default=[], metavar="KEY=VALUE",
        help="overrides of ours with which the result is tried",
    )  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(piped(main))
