"""Reads what a checkpoint or an exported folder says of itself, as JSON and YAML: no tensor, no code is loaded.

=============  ===================================================  =================================================
of             a checkpoint                                         an exported folder
=============  ===================================================  =================================================
model          ``origin`` of its ``meta.json``                      ``model`` of its ``embodied.json``
env, protocol  ``config.yaml`` of its run, else ``origin``: the      ``source``; of an older one ``config.yaml`` of the
               env alone                                            run, if that is where it was
=============  ===================================================  =================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied.errors import CheckpointError, EmbodiedError
from embodied.lib.files import check_export, check_seal, inside, read_json, reading
from embodied.lib.spec_json import from_json
from embodied.lib.trusted import HERE, check_addresses
from embodied.lib.weights_folder import Place
from embodied.schema.compose.brought import sections
from embodied.types import EnvSpec


@dataclass(frozen=True)
class Brought:
    """What some weights bring. What they do not say is None."""

    place: Place
    run: str  # name of the run that made them
    iteration: int
    model: Mapping[str, Any] | None  # section actor.model
    spec: EnvSpec | None  # of the env that they were trained in
    sections: Mapping[str, Any] | None  # sections.noted() of their run
    file: Path  # that has the sections
    kind: str = "checkpoint"  # or the format of an export

    def side(self, name: str) -> Mapping[str, Any] | None:
        """The section ``env.NAME`` of the run."""
        if self.sections is None:
            return None
        own = self.sections["env"][name]
        return {key: value for key, value in own.items() if key not in sections.OWN_OF_A_COMMAND}

    @property
    def protocol(self) -> Mapping[str, Any]:
        """The section ``protocol`` of the run."""
        return {} if self.sections is None else self.sections["protocol"]


def read(place: Place) -> Brought:
    """Reads a folder with weights.

    Raises:
        CheckpointError: a file is damaged, or holds what the schema does not take; it names the file.
        ConfigError: an exported folder names a server by itself.
    """
    return _of_export(place) if place.is_export else _of_checkpoint(place)


def _of_checkpoint(place: Place) -> Brought:
    meta = check_seal(place.file, read_json(inside(place.folder, place.file.name)))
    with reading(place.file, "it is no checkpoint's"):
        origin, iteration = dict(meta.get("origin") or {}), int(meta["iteration"])
        model, simulator = _model_of(origin), origin.get("simulator")
        spec = from_json(origin["env"]) if origin else None
    configured, file = sections.read_config(place.run), place.run / sections.CONFIG
    if model is None and configured is not None:
        model = sections.model_of(place.run)
    if configured is None and simulator is not None:
        configured, file = _of_simulator(simulator, place, origin["policy"]["seed"]), place.file
    return _checked(Brought(place, place.run.name, iteration, model, spec, configured, file))


def _model_of(origin: Mapping[str, Any]) -> dict[str, Any] | None:
    if not origin:
        return None
    made = origin["policy"]
    frozen = [str(one) for one in made["freeze_patterns"]]
    patterns = {"freeze_pattern": frozen} if frozen else {}
    return {"_target_": str(made["_target_"]), **{str(key): value for key, value in made["kwargs"].items()}, **patterns}


def _of_simulator(simulator: Mapping[str, Any], place: Place, seed: int) -> dict[str, Any]:
    """The sections of a checkpoint that was copied without its run: its env, with the defaults of all else."""
    with reading(place.file, "it does not say its env"):
        side = {"_target_": str(simulator["target"]), **dict(simulator["kwargs"])}
    own = {name: value for name, value in side.items() if name not in sections.OWN_OF_A_COMMAND}
    return sections.of_env(own, seed)


def _of_export(place: Place) -> Brought:
    values = check_export(place.folder)
    with reading(place.file):
        model, source = dict(values["model"]), dict(values["source"])
        spec, iteration = from_json(values["env_spec"]), int(source.get("iteration", 0))
        configured = source.get(sections.NOTED)
        run = Path(str(source.get("checkpoint", ""))).parent.parent
    if "_target_" not in model:
        raise CheckpointError(
            f"{place.folder} has format {values['format']}, and its policy cannot be built from it alone",
            "export its checkpoint with --format hf, or name the checkpoint itself",
        )
    check_addresses(model, place.folder)
    model = {key: str(place.folder) if value == HERE else value for key, value in model.items()}
    file = place.file
    if configured is None:
        configured, file = _of_run(run), run / sections.CONFIG
    name, kind = str(source.get("run") or run.name), str(values["format"])
    return _checked(Brought(place, name, iteration, model, spec, configured, file, kind))


def _of_run(run: Path) -> dict[str, Any] | None:
    """The sections of the run that an older export names, if it is still there."""
    try:
        return sections.read_config(run) if run.name else None
    except EmbodiedError:
        return None


def _checked(found: Brought) -> Brought:
    if found.model is not None:
        sections.check_model(found.model, found.place.file)
    if found.sections is not None:
        sections.check_sections(found.sections, found.file)
    return found
