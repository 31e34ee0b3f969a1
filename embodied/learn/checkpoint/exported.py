"""Reads folders that ``embodied.tools.export`` has written: their ``embodied.json``, and the policy in them.

    {"format": "hf", "dtype": "fp32", "env_spec": {…}, "policy": {"num_action_chunks": 8, …},
     "model": {"_target_": "embodied.models.openvla_oft.build_policy", "model_path": ".", …},
     "source": {"checkpoint": …, "iteration": …, "weight_version": …, "trainings": […]},
     "measured": {…}, "files": {…}}

No simulator is needed, and no configuration of the run::

    policy, env = open_export(Path("FOLDER"))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from embodied.errors import CheckpointError, ConfigError, DamagedCheckpointError
from embodied.learn.origin import Restored
from embodied.lib.files import EXPORT_FILE, check_export, checksums, reading, sealed
from embodied.lib.spec_json import from_json
from embodied.lib.targets import arguments_of, load_target
from embodied.lib.trusted import HERE as HERE
from embodied.lib.trusted import OWN_CODE, TRUST, check_addresses
from embodied.lib.trusted import check_trusted as check_trusted
from embodied.protocols import ROUNDINGS
from embodied.types import EnvSpec

NOT_CHECKED = ("README.md", "verified.json", EXPORT_FILE)
"""Files that may change after the export: the card, the result of ``--verify``."""


@dataclass(frozen=True)
class ExportFile:
    """Content of ``embodied.json``, the file that describes an exported folder; all values are JSON."""

    format: str  # export format, as --format named it
    dtype: str  # number format of the tensors: fp32, bf16 or fp16
    env_spec: Mapping[str, Any]  # embodied.lib.spec_json
    policy: Mapping[str, Any]  # num_action_chunks, and what the policy says of itself
    model: Mapping[str, Any]  # ``_target_`` and keyword arguments; empty if nothing here builds a policy from it
    source: Mapping[str, Any]  # the checkpoint, how far and by which trainings it was trained
    measured: Mapping[str, Any] = field(default_factory=dict)  # measurements of the export
    rounding: str = "none"  # difference in precision from the run: one of embodied.protocols.ROUNDINGS
    files: Mapping[str, str] = field(default_factory=dict)  # name → size and checksum (embodied.lib.files)


def is_export(folder: Path) -> bool:
    """Returns whether ``folder`` is an exported policy, with an ``embodied.json``."""
    return (folder / EXPORT_FILE).exists()


def with_files(facts: ExportFile, folder: Path) -> dict[str, Any]:
    """Content of ``embodied.json`` for a folder whose other files are written."""
    names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
    noted = checksums(folder, [name for name in names if name not in NOT_CHECKED])
    return sealed({**asdict(facts), "files": noted})


def read_export(folder: Path) -> ExportFile:
    """Read ``embodied.json``, and check that every file is the one that was written.

    Raises:
        CheckpointError: no such folder, or one whose links leave it.
        DamagedCheckpointError: a file is not what was written.
        ConfigError: it names a server by itself.
    """
    if not is_export(folder):
        raise CheckpointError(
            f"{folder} has no {EXPORT_FILE}, so no export has written it",
            "give a folder that python -m embodied.tools.export has written, or a checkpoint (runs/NAME/checkpoints/…)",
        )
    values = check_export(folder)
    with reading(folder / EXPORT_FILE):
        facts = ExportFile(**values)
    for one in fields(ExportFile):
        value, kind = getattr(facts, one.name), str if one.name in ("format", "dtype", "rounding") else dict
        if not isinstance(value, kind) or (one.name == "rounding" and value not in ROUNDINGS):
            raise DamagedCheckpointError(
                f"{folder / EXPORT_FILE} is damaged: {one.name} is {value!r:.80}", "export again"
            )
    check_addresses(facts.model, folder)
    return facts


def open_export(
    folder: Path, device: torch.device | str = "cpu", trust: bool = False
) -> Restored:  # fmt: skip
    """Build the policy in an exported folder, bound to the spec of the env that it was trained for.

    Args:
        trust: as in :func:`build`.

    Raises:
        CheckpointError, DamagedCheckpointError: as :func:`read_export`; or nothing here can read the format.
        ConfigError: what builds the policy cannot be imported.
    """
    return build(read_export(folder), folder, device, trust=trust)


def build(
    facts: ExportFile, folder: Path, device: torch.device | str = "cpu", env: EnvSpec | None = None,
    trust: bool = False,
) -> Restored:  # fmt: skip
    """Builds the policy as :func:`open_export` does, from an ``embodied.json`` that was read already.

    Args:
        env: to bind to, if not the one that the policy was trained for.
        trust: the folder is your own. Whatever it names builds its policy, and code in it is run.

    Raises:
        ConfigError: it wants more than a folder of a stranger may.
    """
    if "_target_" not in facts.model:
        raise ConfigError(
            f"{folder} has format {facts.format}, and its policy cannot be built from it alone",
            "export its checkpoint with --format hf",
        )
    keys = dict(facts.model)
    target = str(keys.pop("_target_"))
    if TRUST in keys:
        raise ConfigError(
            f"{folder} says of itself that it is to be trusted ('{TRUST}' in {EXPORT_FILE}), which no export writes",
            "do not use it if it comes from strangers; if it is your own, export its checkpoint again",
        )
    if not trust:
        check_trusted(target, keys, folder)
    make = load_target(target, "_target_")
    own = {key: True for key in (TRUST, *OWN_CODE) if trust and key in arguments_of(target, "_target_").named}
    policy = make(**{name: str(folder) if value == HERE else value for name, value in keys.items()}, **own)
    bound = from_json(facts.env_spec) if env is None else env
    policy.to(device)
    policy.bind(bound)
    return Restored(policy, bound)
