"""Puts what a checkpoint brings into a configuration. What the command line says wins.

===================================  ===================================================================================
of the command line                  then the checkpoint brings
===================================  ===================================================================================
nothing                              ``actor.model``, both sides of ``env``, ``protocol``, how actions are drawn, seed
``model=``                           no ``actor.model``
``env=``, ``experiment=``            of the env what the policy sees and moves, if the class is the same
``protocol=``, ``experiment=``       neither protocol nor what that protocol has set
a single key                         all but that key
===================================  ===================================================================================

A protocol does not change ``actor.model``: the policy reads what it learnt from.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied.errors import ConfigError, UnknownKeyError
from embodied.lib.targets import load_target
from embodied.lib.trusted import OWN_CODE, TRUST, check_trusted, check_trusted_env
from embodied.lib.weights_folder import find
from embodied.protocols import SaysWhatKeysMean
from embodied.schema.compose.binding import check_target_keys
from embodied.schema.compose.brought.reading import read
from embodied.schema.compose.brought.sections import OWN_OF_A_COMMAND, refuse
from embodied.schema.compose.origins import Origin, Trail
from embodied.schema.keys.paths import MISSING, SIDES, at, leaves, with_changes, without
from embodied.schema.keys.sections.task_type import task_of
from embodied.schema.rules.protocols import HELD_OUT

MODEL = "actor.model"
OF_ALGORITHM = ("value_head", "value_type")
"""Keys of ``actor.model`` that follow the algorithm in a training, whatever the checkpoint has: a value head that it
lacks is learnt anew."""
TRUSTED_BY = "--trust"


class Bringing:
    """What a checkpoint brings into one command.

    Args:
        overrides: of the command line, without the checkpoint.
        trusted: the folder is the user's own; it may name code of others.

    Raises:
        ConfigError: demonstrations are asked for, which take no checkpoint.
        CheckpointError: nothing that can be used is there.
    """

    def __init__(self, folder: str, overrides: Sequence[str], config_name: str, trusted: bool) -> None:
        if config_name == "demos":
            raise ConfigError(
                f"{folder}: demonstrations are made by the env's own expert, without a checkpoint",
                "leave it out; embodied eval and embodied play take one",
            )
        self.brought = read(find(folder))
        self._keys = [one.lstrip("+~").partition("=")[0] for one in overrides]
        self._trains, self._trusted = config_name != "eval", trusted
        if self.brought.model is None and not self.chosen("model", "experiment"):
            raise ConfigError(
                f"{self.brought.place.file} does not say what builds its policy: an earlier version wrote it",
                "name the model as its run did: model=NAME, and actor.model.… as there",
            )

    @property
    def name(self) -> str:
        """The beginning of the name of a run that has no name of its own: run and iteration of the checkpoint."""
        place = self.brought.place
        last = f"{self.brought.iteration:06d}-{self.brought.kind}" if place.is_export else place.folder.resolve().name
        return re.sub(r"[^A-Za-z0-9_.+-]", "-", f"{self.brought.run}-{last}").lstrip("-.+") or "checkpoint"

    @property
    def keeps_protocol(self) -> bool:
        """Whether the evaluation is held to the protocol of the checkpoint's run."""
        return self.brought.sections is not None and not self.chosen("protocol", "experiment")

    def begin(self, raw: dict[str, Any], trail: Trail) -> None:
        """Sets what other keys refer to: seed, and the kind of the task."""
        sections, runner = self.brought.sections, raw["runner"]
        if sections is None or self.chosen("experiment"):
            return
        if not self._trains and "runner.seed" not in self._keys:
            runner["seed"] = sections["runner"]["seed"]
            trail.note({"runner.seed": self._origin()})
        task_type = sections["runner"]["task_type"]
        if task_of(task_type).of_texts and "runner.task_type" not in self._keys:
            runner.setdefault("task_type", task_type)
            trail.note({"runner.task_type": self._origin()})

    def over(self, mapping: dict[str, Any], trail: Trail | None = None) -> dict[str, Any]:
        """Returns the configuration with what the checkpoint brings.

        Raises:
            ConfigError: it names code of others, and is not trusted.
        """
        changes = {**self._model(mapping), **self._envs(mapping), **self._rules(mapping)}
        if not self.brought.place.is_export:
            changes["runner.ckpt_path"] = str(self.brought.place.folder)
        if trail is not None:
            brought = [leaf for key, value in changes.items() for leaf, _ in leaves(key, value)]
            trail.note({leaf: self._origin() for leaf in brought if leaf not in self._keys})
        return with_changes(mapping, changes)

    def fixed(self) -> list[str]:
        """Returns the keys that no protocol changes: those of the model, and what the run's own protocol had."""
        found = [] if self.chosen("model") or self.brought.model is None else [MODEL]
        sides = [f"env.{side}" for side in SIDES if self._brings_side(side)]
        return found + ([*sides, "algorithm.val_sampling_params"] if self.keeps_protocol else [])

    def _model(self, mapping: Mapping[str, Any]) -> dict[str, Any]:
        """The section of the model. What the command line sets, and in a training what its algorithm needs, stays."""
        if self.brought.model is None or self.chosen("model"):
            return {}
        model = dict(self.brought.model)
        target, there = str(model["_target_"]), mapping["actor"]["model"]
        if not (self._trusted or self._names(f"{MODEL}._target_", target, mapping)):
            check_trusted(target, model, self.brought.place.folder, TRUSTED_BY)
        self._check_taken(MODEL, model, self.brought.place.file)
        if self._trusted and self.brought.place.is_export:
            taken = _parameters(target, MODEL)
            model |= {key: True for key in (TRUST, *OWN_CODE) if key in taken}
        for key in OF_ALGORITHM if self._trains else ():
            if key in there and (key in model or there[key]):
                model[key] = there[key]
        return {MODEL: self._with_own(MODEL, model, mapping)}

    def _envs(self, mapping: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for side in SIDES:
            brought, key = self.brought.side(side), f"env.{side}"
            if brought is None or key in self._keys:
                continue
            if self._brings_side(side):
                found[key] = self._whole_side(key, brought, mapping)
            else:
                found |= self._seen(key, brought, mapping)
        return found

    def _whole_side(self, key: str, brought: Mapping[str, Any], mapping: Mapping[str, Any]) -> dict[str, Any]:
        there = at(mapping, key)
        side = {**{name: there[name] for name in OWN_OF_A_COMMAND if name in there}, **brought}
        if not self.keeps_protocol:
            for one in self.brought.protocol.get("sets", {}):
                name = one.removeprefix(f"{key}.")
                side = without(side, name) if name != one and at(side, name) is not MISSING else side
        own = {name: value for name, value in side.items() if name not in OWN_OF_A_COMMAND}
        if not self._trusted:
            check_trusted_env(str(own["_target_"]), own, self.brought.file, TRUSTED_BY)
        self._check_taken(key, side, self.brought.file)
        if mapping["env"].get("python") and "python" in _parameters(str(own["_target_"]), key):
            side["python"] = mapping["env"]["python"]
        return self._with_own(key, side, mapping)

    def _check_taken(self, section: str, values: Mapping[str, Any], file: Path) -> None:
        """Refuses keys that what builds a model or an env does not take. Raises :class:`DamagedCheckpointError`."""
        try:
            check_target_keys(with_changes({}, {section: values}))
        except UnknownKeyError as error:
            refuse(error.message.split("\n"), file, "name it yourself: model=NAME, env=NAME")

    def _seen(self, key: str, brought: Mapping[str, Any], mapping: Mapping[str, Any]) -> dict[str, Any]:
        """Of another env of the same class: what the policy sees and moves."""
        target = at(mapping, f"{key}._target_")
        if target != brought["_target_"] or self.chosen("experiment"):
            return {}
        kind = load_target(target, f"{key}._target_")
        names = kind.keys_of_policy if isinstance(kind, SaysWhatKeysMean) else ()
        own = [f"{key}.{name}" for name in names if at(brought, name) is not MISSING]
        values = {one: at(brought, one.removeprefix(f"{key}.")) for one in own if one not in self._keys}
        return {one: value for one, value in values.items() if at(mapping, one) != value}

    def _rules(self, mapping: Mapping[str, Any]) -> dict[str, Any]:
        """The protocol of the run, and how it draws actions."""
        sections = self.brought.sections
        if sections is None or not self.keeps_protocol:
            return {}
        protocol, algorithm = dict(sections["protocol"]), sections["algorithm"]
        protocol["sets"] = {key: value for key, value in protocol.get("sets", {}).items() if key != HELD_OUT}
        target = at(mapping, "env.eval._target_") if not self._brings_side("eval") else protocol.get("env")
        if protocol.get("env") not in (None, target):
            protocol = {"held_out_states": protocol.get("held_out_states", 0)}
        found = {"protocol": self._with_own("protocol", {**mapping["protocol"], **protocol}, mapping)}
        key = "algorithm.val_sampling_params"
        found[key] = self._with_own(key, dict(algorithm["val_sampling_params"]), mapping)
        if "algorithm.val_group_size" not in self._keys:
            found["algorithm.val_group_size"] = algorithm["val_group_size"]
        return found

    def _with_own(self, section: str, values: dict[str, Any], mapping: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a section with those that the command line sets below it."""
        own = [key for key in self._keys if key.startswith(f"{section}.")]
        given = {key.removeprefix(f"{section}."): at(mapping, key) for key in own}
        return with_changes(values, {key: value for key, value in given.items() if value is not MISSING})

    def _names(self, key: str, value: str, mapping: Mapping[str, Any]) -> bool:
        """Whether the command line itself sets a key to this value."""
        return key in self._keys and at(mapping, key) == value

    def _brings_side(self, side: str) -> bool:
        return self.brought.side(side) is not None and not self.chosen("env", f"env@env.{side}", "experiment")

    def chosen(self, *groups: str) -> bool:
        """Returns whether the command line chooses a file of one of these groups."""
        return any(group in self._keys for group in groups)

    def _origin(self) -> Origin:
        return Origin("checkpoint", str(self.brought.place.folder))


def _parameters(target: str, key: str) -> Collection[str]:
    return tuple(inspect.signature(load_target(target, f"{key}._target_")).parameters)
