"""Folders of checkpoints and exports as far as their JSON goes: no tensor is in them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from embodied.lib.files import sealed
from embodied.lib.spec_json import to_json
from embodied.schema.compose.compose import compose
from embodied.testing import FakeEnv

CONFIG = str(Path(__file__).parents[1] / "config")
FAKE = ("env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu")


def run(
    name: str, *overrides: str, iterations: Sequence[str] = ("000001",), common: Sequence[str] = FAKE, **changes: Any
) -> Path:  # fmt: skip
    """Writes the folder of a training below ``runs``; returns its newest checkpoint.

    Args:
        changes: sections of ``config.yaml`` in place of what ``overrides`` compose, by dotted key with ``__`` for dots.
    """
    composed = compose([*common, f"runner.experiment_name={name}", *overrides], "train", [CONFIG])
    config, folder = composed.resolved, Path("runs", name)
    for key, value in changes.items():
        section: Any = config
        *parents, last = key.split("__")
        for parent in parents:
            section = section[parent]
        section[last] = value
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    for iteration in iterations:
        checkpoint(folder / "checkpoints" / iteration, config)
    return folder / "checkpoints" / iterations[-1]


def checkpoint(folder: Path, config: Mapping[str, Any]) -> None:
    """Writes ``meta.json`` of a checkpoint of the run."""
    model, side = dict(config["actor"]["model"]), config["env"]["train"]
    own = {key: value for key, value in model.items() if key not in ("_target_", "freeze_pattern", "external_lib")}
    policy = {"_target_": model["_target_"], "kwargs": own, "freeze_patterns": [], "seed": config["runner"]["seed"]}
    simulated = {"target": side["_target_"], "kwargs": kwargs_of(side), "python": None}
    origin = {"policy": policy, "env": to_json(FakeEnv(**kwargs_of(side)).spec), "simulator": simulated}
    folder.mkdir(parents=True)
    meta = {"iteration": int(folder.name.partition("+")[0]), "origin": origin}
    (folder / "meta.json").write_text(json.dumps(sealed(meta)), encoding="utf-8")


def kwargs_of(side: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the fake env in a side."""
    names = FakeEnv.__init__.__annotations__
    return {key: value for key, value in side.items() if key in names}


def export(folder: Path, model: Mapping[str, Any], **source: Any) -> Path:
    """Writes ``embodied.json`` of an export."""
    folder.mkdir(parents=True)
    found = {
        "format": "hf", "dtype": "fp32", "env_spec": to_json(FakeEnv().spec), "model": dict(model), "files": {},
        "policy": {"num_action_chunks": 8}, "measured": {}, "rounding": "none",
        "source": {"checkpoint": "runs/gone/checkpoints/000003", "run": "gone", "iteration": 3, **source},
    }  # fmt: skip
    (folder / "embodied.json").write_text(json.dumps(sealed(found)), encoding="utf-8")
    return folder


def rewrite(file: Path, **changes: Any) -> None:
    """Changes values of a JSON file, by key with ``__`` for dots, and takes its seal off."""
    found = json.loads(file.read_text(encoding="utf-8"))
    found.pop("checksum", None)
    for key, value in changes.items():
        section: Any = found
        *parents, last = key.split("__")
        for parent in parents:
            section = section[parent]
        section[last] = value
    file.write_text(json.dumps(found), encoding="utf-8")
