"""The trainings that led to some weights, and the initial states that each of them left out.

    runner.ckpt_path ─▶ config.yaml of the checkpoint's run ─▶ the run that it began from ─▶ …
    actor.model.model_path, lora_path ─▶ embodied.json of an exported folder, where an export has noted the same

Weights have never seen the initial states that all of these left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from embodied.errors import EmbodiedError
from embodied.lib.files import EXPORT_FILE, UNREADABLE, check_seal, folder_of, inside, read_json
from embodied.schema.keys.sections.task_type import task_of

NOTED = "trainings"
"""Key under ``source`` of an exported folder's ``embodied.json``."""


@dataclass(frozen=True)
class Training:
    """One training run behind some weights. Its starts are those of its own episodes, or of the demonstrations that it
    learnt from."""

    run: str | None  # name of its folder; None = not known
    held_out_states: int | None  # initial states of each task, the last ones, that it never began from; None: not known


UNKNOWN = Training(None, None)


def of_checkpoint(checkpoint: Path, later: Sequence[Path] = ()) -> list[Training]:
    """Returns all trainings behind a checkpoint's weights, that of its own run last; runs in ``later`` went on from it
    and are not followed again.

    Args:
        later: runs that went on from it.
    """
    run = checkpoint.absolute().parent.parent
    if run in later:
        return [UNKNOWN]
    try:
        config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
        return [*initial_trainings(config, [*later, run]), *_own(run.name, config)]
    except (*UNREADABLE, OSError, yaml.YAMLError):
        return [Training(run.name, None)]


def initial_trainings(config: Mapping[str, Any], later: Sequence[Path] = ()) -> list[Training]:
    """Returns the trainings behind the initial weights of the run with this configuration: none behind
    random weights."""
    if (checkpoint := config["runner"].get("ckpt_path")) is not None:
        return of_checkpoint(Path(checkpoint), later)
    paths = [config["actor"]["model"].get(key) for key in ("model_path", "lora_path")]
    return [one for path in paths if path is not None for one in _of_folder(path)]


def export_note(checkpoint: Path) -> list[dict[str, Any]]:
    """Returns the trainings behind a checkpoint as JSON values, as an export notes them under :data:`NOTED`."""
    return [asdict(one) for one in of_checkpoint(checkpoint)]


def left_out_by(config: Mapping[str, Any], states: int, trains: bool) -> bool | None:
    """Returns whether all trainings behind some weights left out the last ``states`` initial states of each task. None:
    nothing is held out, or it is not known of one of them.

    Args:
        config: of the run that trains the weights, or that evaluates them.
        trains: whether it trains them.
    """
    if not states:
        return None
    try:
        found = initial_trainings(config)
        found += _own(None, config) if trains else []
    except (*UNREADABLE, OSError, yaml.YAMLError):
        return None
    held_out = [one.held_out_states for one in found]
    if any(count is not None and count < states for count in held_out):
        return False
    return None if None in held_out or not held_out else True


def _of_folder(path: str) -> Sequence[Training]:
    """Returns the trainings that an export noted in a folder; :data:`UNKNOWN` where there is no such note."""
    try:
        file = inside(folder_of(path), EXPORT_FILE)
        trainings = check_seal(file, read_json(file))["source"][NOTED]
        return [Training(one["run"], _count(one["held_out_states"])) for one in trainings]
    except (*UNREADABLE, OSError, EmbodiedError):
        return [UNKNOWN]


def _count(value: Any) -> int | None:
    return None if value is None else int(value)


def _own(run: str | None, config: Mapping[str, Any]) -> Iterator[Training]:
    """Yields the trainings of the run itself: one for its own episodes, one for each set of demonstrations."""
    if task_of(config["runner"]["task_type"]).supervised:
        yield from (Training(run, _of_demonstrations(Path(path))) for path in config["data"]["train_data_paths"])
    else:
        yield Training(run, int(config.get("protocol", {}).get("held_out_states", 0)))
        beside = config.get("algorithm", {}).get("replay", {}).get("demonstrations", [])
        yield from (Training(run, _of_demonstrations(Path(path))) for path in beside)


def _of_demonstrations(folder: Path) -> int | None:
    """Returns the held-out states that ``embodied.tools.demos`` noted in a folder; None if there is no such note."""
    try:
        made = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        return int(made["demos"].get("held_out_states", 0))
    except (*UNREADABLE, OSError, yaml.YAMLError):
        return None
