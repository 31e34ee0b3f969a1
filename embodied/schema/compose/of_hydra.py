"""Keys of Hydra that work without its launcher: the folder of a run, and Hydra's record in it.

``config/train.yaml`` sets the defaults, as Hydra's own are for its launcher.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from embodied.errors import ConfigError
from embodied.lib import hidden
from embodied.schema.keys.sections.task_type import task_of

SEARCH, RUN_DIR, SUBDIR = "hydra.searchpath", "hydra.run.dir", "hydra.output_subdir"
OF_HYDRA: Mapping[str, tuple[str, str, str]] = {
    RUN_DIR: (
        "str", "`.`",
        "Folder in which relative folders that a run writes begin: runner.output_dir, runner.logger.log_path, "
        "env.train.video_cfg.video_base_dir and that of env.eval, demos.path, rollout.validate_save_dir. Files that "
        "are read stay relative to the folder of the command, which no run leaves. Other keys may stand in it "
        "(${runner.seed}); the time (${now:…}) is refused, because a run that goes on would look for itself elsewhere.",
    ),
    SUBDIR: (
        "str | null", "null",
        "Folder in the run's own in which config.yaml (what Hydra composed, with its references) and overrides.yaml "
        "(those of the command line) are written when the run starts, as Hydra has them in .hydra, without secrets; "
        "null = neither is written.",
    ),
    SEARCH: ("list of str", "`[]`", "Folders with more group files (file://…), beside those of --config-dir."),
}  # fmt: skip
"""Key → type, default and meaning."""
WRITTEN = (
    "runner.output_dir", "runner.logger.log_path", "env.train.video_cfg.video_base_dir",
    "env.eval.video_cfg.video_base_dir", "demos.path", "rollout.validate_save_dir",
)  # fmt: skip
"""Keys of folders that a run writes. A later one may refer to an earlier one."""
PATHS = (*WRITTEN, "runner.ckpt_path", "runner.resume_dir", "runner.answers", "env.python")
"""Keys of one path each, in which ``~`` at the beginning is the user's folder."""
OF_RUN = (
    "checkpoints", "eval", "exports", "first", "generations", "logs", "meta", "profile", "tensorboard", "trace",
)  # fmt: skip
"""Folders in a run's own that something else is in."""


@dataclass(frozen=True)
class Record:
    """Hydra's record of a run; its ``folder`` is within the run's own."""

    folder: str
    config: Mapping[str, Any]
    overrides: Sequence[str]

    def write(self, run: Path) -> None:
        """Writes the record into the folder of the run, in place of that of an earlier start."""
        folder = run / self.folder
        folder.mkdir(parents=True, exist_ok=True)
        shown = {
            "config.yaml": hidden.in_value("", self.config),
            "overrides.yaml": [hidden.in_override(one) for one in self.overrides],
        }
        for name, value in shown.items():
            (folder / name).write_text(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), encoding="utf-8")


def record(hydra: Mapping[str, Any], config: Mapping[str, Any], overrides: Sequence[str]) -> Record | None:
    """Returns the record that ``hydra.output_subdir`` asks for; None if it asks for none.

    Args:
        hydra: the section of that name.
        config: the others, as Hydra composed them.
        overrides: of the command line.

    Raises:
        ConfigError: the folder is not within the run's own, or something else is in it.
    """
    folder = hydra["output_subdir"]
    if folder is None:
        return None
    path = PurePath(str(folder))
    if path.is_absolute() or ".." in path.parts or not path.parts or path.parts[0] in OF_RUN:
        raise ConfigError(
            f"{SUBDIR} is {folder}, and has to be a folder of its own within the run's",
            f"set {SUBDIR}=.hydra, or null to record nothing; in which folder the run is says runner.output_dir",
        )
    return Record(str(path), deepcopy(config), [one for one in overrides if not one.lstrip("+~").startswith("hydra.")])


def expand_user(config: DictConfig | ListConfig) -> None:
    """Expands ``~`` at the beginning of the paths :data:`PATHS` to the user's folder, in place.

    Args:
        config: the merged configuration, with its references; it is changed.
    """
    for key in PATHS:
        value = OmegaConf.select(config, key)
        if isinstance(value, str) and value.startswith("~"):
            OmegaConf.update(config, key, os.path.expanduser(value))


def begin_in_run_dir(config: DictConfig | ListConfig, told: str | None) -> list[str]:
    """Prepends ``hydra.run.dir`` to the relative folders that a run writes, in place; returns their keys.

    Args:
        config: the merged configuration, with its references; it is changed.
        told: the value of ``hydra.run.dir``, with its references; None = the folder of the command.

    Raises:
        ConfigError: it has the time, or refers to what is not there.
    """
    told = "." if told is None else told
    if "${now:" in told:
        raise ConfigError(
            f"{RUN_DIR} is {told}, which is another folder at each start: a run that goes on, and each of several "
            "processes, would look for itself elsewhere",
            f"let the shell write the time: {RUN_DIR}=outputs/$(date +%F)",
        )
    folder = os.path.expanduser(_resolved(config, told) if "${" in told else told)
    if PurePath(folder) == PurePath("."):
        return []
    if task_of(config.runner.get("task_type")).records and OmegaConf.select(config, "demos.path") is None:
        OmegaConf.update(config, "demos.path", "demos/${runner.experiment_name}")
    before = {key: OmegaConf.select(config, key) for key in WRITTEN}
    changed = []
    for key, value in before.items():
        if isinstance(value, str) and OmegaConf.select(config, key) == value:  # else it refers to one that has it
            OmegaConf.update(config, key, str(Path(folder) / value))
            changed.append(key)
    return changed


def _resolved(config: DictConfig | ListConfig, told: str) -> str:
    """The folder, with what it refers to."""
    try:
        whole = OmegaConf.merge(config, {"hydra": {"run": {"dir": told}}})
        return str(OmegaConf.select(whole, RUN_DIR))
    except OmegaConfBaseException as error:
        raise ConfigError(f"cannot resolve {RUN_DIR}: {error}", "correct the ${…} reference that it names") from error
