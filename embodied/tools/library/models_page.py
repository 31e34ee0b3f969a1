"""``docs/models.md``: each ``model=`` with its sizes, its keys, and where its weights come from."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

import embodied.config
from embodied.errors import ConfigError
from embodied.lib.targets import load_target
from embodied.run.memory.footprint import CONTEXT, readable
from embodied.tools.library.sources import Argument, arguments, choices_called

KEY = "actor.model"
READS, RELEASED = "reads", "released.RELEASED"
"""Names beside a model's ``_target_``: a function that says what a policy reads, and released weights."""
HEAD = """# Models

Generated from `config/model/`, the models' settings and `benchmarks/results/models.json` by `make docs`.

`model=NAME` chooses one of these, and `actor.model.KEY=VALUE` changes a key of it. `embodied explain KEY` finds a key
by a part of its name. A policy of your own is [one class and one file](how_to/add_a_policy.md).

**`model=auto`** asks the env: without pictures it takes `{state}`, with pictures `{pictures}`. For texts, name a model.

**Sizes that the env says are never asked for.** A key below that is `null`, *the env's*, takes cameras, state and
actions of the env, also in a model that is named. A checkpoint keeps its own. The run's head says under *not read*
which cameras a policy leaves out. `--cfg=origin` prints these values with their origin, and a run's `config.yaml`
holds them.

## Sizes

Memory is that of the policy's device as `runner.dry_run=true` counts it (`python benchmarks/model_sizes.py`): counted,
not measured. *acting*: one observation a call. *training*: one record a pass, at its fullest moment; *a record*: what
each further record of `actor.micro_batch_size` adds. CUDA takes {context} besides, and [simulators](scaling.md) take
memory of the machine.

| `model=` | parameters | trained | reads | acting | training | a record | weights |
|---|---|---|---|---|---|---|---|
"""
WEIGHTS = """## Where weights come from

`actor.model.model_path` is a folder on this machine; nothing is downloaded. `hf download OWNER/NAME` brings one, and
its name on the hub may then stand in place of the folder. `unnorm_key: auto` takes the statistics of the env's task
suite. Checkpoints with a continuous action head (`moojink/openvla-7b-oft-finetuned-*`) are refused.

"""


def page(results: Path) -> str:
    """Makes the page.

    Args:
        results: the file with counted sizes.
    """
    counted = json.loads(results.read_text(encoding="utf-8"))
    models = {file.stem: merged(file) for file in _files()}
    auto = models["auto"]
    parts = [HEAD.format(**auto, context=readable(CONTEXT))]
    parts += [f"{_row(name, own, counted.get(name))}\n" for name, own in models.items()]
    parts += ["\n## What each is\n\n", *(f"- `model={name}`: {_meaning(name)}\n" for name in models)]
    parts += ["\n", WEIGHTS, *_released(models), *_keys(models)]
    return "".join(parts).rstrip() + "\n"


def merged(file: Path) -> dict[str, Any]:
    """Reads a file of the group ``model`` with those that it begins with."""
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    before = [name for name in content.pop("defaults", ()) if name != "_self_"]
    return {key: value for name in before for key, value in merged(file.with_name(f"{name}.yaml")).items()} | content


def _files() -> list[Path]:
    return sorted(file for root in embodied.config.__path__ for file in Path(root).glob("model/*.yaml"))


def _meaning(name: str) -> str:
    (choice,) = [one for one in choices_called(name) if one.name == f"model={name}"]
    return " ".join(map(str.strip, choice.meaning)).partition(" Meaning of every key:")[0]


def _row(name: str, own: Mapping[str, Any], counted: Mapping[str, int] | None) -> str:
    cells = [f"`{name}`", *_sizes(counted)]
    cells.insert(3, _reads(own))
    return f"| {' | '.join([*cells, _weights(own)])} |"


def _sizes(counted: Mapping[str, int] | None) -> list[str]:
    if counted is None:
        return ["–"] * 5
    numbers = [f"{counted[name] / 1e6:,.1f} M" for name in ("parameters", "trained")]
    return numbers + [readable(counted[name]) for name in ("act", "train", "record")]


def _reads(own: Mapping[str, Any]) -> str:
    function = load_target(f"{_package(own)}.{READS}", KEY)
    return str(function(**{name: own[name] for name in inspect.signature(function).parameters if name in own}))


def _weights(own: Mapping[str, Any]) -> str:
    if "model_path" not in own:
        return "random" if "seed" in own else "–"
    path = own["model_path"]
    return {None: "random", "???": "a checkpoint (`model_path`)"}.get(path, f"`{path}`")


def _released(models: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Rows of released checkpoints, of all models that know some."""
    yield "| on the Hugging Face hub | `model=` | trained for | `unnorm_key` |\n|---|---|---|---|\n"
    for package in dict.fromkeys(map(_package, models.values())):
        try:
            released = load_target(f"{package}.{RELEASED}", KEY)
        except ConfigError:
            continue
        yield from (f"| `{one.name}` | `{one.model}` | {one.env} | `{one.unnorm_key}` |\n" for one in released)


def _keys(models: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A table of the keys for each ``_target_``."""
    known: dict[str, list[Argument]] = {}
    for argument in arguments(KEY):
        known.setdefault(argument.target, []).append(argument)
    for target, keys in known.items():
        files = {name: own for name, own in models.items() if own["_target_"] == target}
        yield f"\n## Keys of {', '.join(files)}\n\n`{target}`\n\n"
        yield "| `actor.model.` | default | in files | meaning |\n|---|---|---|---|\n"
        yield from (
            f"| `{one.name}` | `{one.default}` | {_set(one.name, files)} | {_cell(one.meaning)} |\n" for one in keys
        )


def _set(key: str, files: Mapping[str, Mapping[str, Any]]) -> str:
    """The values of a key in files, each with the names of the models."""
    found: dict[str, list[str]] = {}
    for name, own in files.items():
        if key in own:
            found.setdefault(json.dumps(own[key], ensure_ascii=False), []).append(name)
    if len(found) == 1 and len(files) == len(*found.values()):
        return _cell(f"`{next(iter(found))}`")
    return _cell("; ".join(f"`{value}`: {', '.join(names)}" for value, names in found.items()))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _package(own: Mapping[str, Any]) -> str:
    return str(own["_target_"]).rpartition(".")[0]
