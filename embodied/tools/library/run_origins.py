"""Says what a key is in a run, and where its value came from: ``embodied explain KEY --run DIR``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from embodied.errors import ConfigError, did_you_mean
from embodied.lib import hidden
from embodied.schema import defaults
from embodied.schema.compose.origins import FILE, Origins, read
from embodied.schema.keys.paths import MISSING, at, leaves
from embodied.tools.library.sources import settings

CONFIG = "config.yaml"


def of_run(name: str, run: Path) -> list[str]:
    """Explains where a run's values come from: a line for each value under a key, below a section, or under keys that
    end so.

    Raises:
        ConfigError: the folder is none of a run, or the run has no such key.
    """
    resolved, known = _configuration(run), read(run)
    wanted = name.partition("=")[0].lstrip("+~")
    lines = [*_under(wanted, resolved, known)]
    if not lines and wanted:
        same = [key for key, _ in leaves("", resolved) if key.endswith(f".{wanted}")]
        lines = [line for key in same for line in _under(key, resolved, known)]
    if not lines:
        names = [*(key for key, _ in leaves("", resolved)), *(known.left_out if known else ())]
        raise ConfigError(
            f"the run in {run} has no key '{wanted}'.{did_you_mean(wanted, names)}",
            f"give a key or a section of {run / CONFIG}, or the end of a key",
        )
    if known is None:
        lines.append(
            f"{run / FILE} is not there or cannot be read, so what set these values is not known: an earlier "
            "version started the run"
        )
    return lines


def _configuration(run: Path) -> dict[str, Any]:
    file = run / CONFIG
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"cannot read {file}: {getattr(error, 'strerror', None) or error}",
            "give the folder of a run, e.g. --run runs/NAME",
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file} has no keys", "give the folder of a run, e.g. --run runs/NAME")
    return content


def _under(key: str, resolved: Mapping[str, Any], known: Origins | None) -> Iterator[str]:
    if known is not None:
        yield from known.lines(resolved, below=key)
        return
    value = at(resolved, key)
    for name, inner in leaves(key, value) if value is not MISSING else ():
        yield f"{name}: {json.dumps(hidden.in_value(name, inner), ensure_ascii=False)}  # {_compared(name, inner)}"
        yield from (f"  today {line}" for line in settings(name))


def _compared(key: str, value: Any) -> str:
    """Compares a value with the default of this version, where it is not known who set it."""
    usual = at(defaults(), key)
    if usual is MISSING:
        return "set by a file or on the command line: the key has no default"
    shown = json.dumps(hidden.in_value(key, usual), ensure_ascii=False)
    return "the default" if value == usual else f"not the default, which is {shown}"
