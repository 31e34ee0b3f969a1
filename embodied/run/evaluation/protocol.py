"""The protocol of an evaluation: all settings on which success depends, without the weights, and their hash.

    keys of the configuration ┐
    facts of the env workers  ┴▶ keys ─▶ canonical JSON ─▶ SHA-256, its first 12 digits

Two evaluations of equal hash were made under equal conditions, as far as these are the evaluation's: how a model
computes (its number format, how many actions a decision has) is its own. Name and hash stand in every file of results,
in the trackers' table and on model cards.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from embodied.evaluation.kinds import kinds_of
from embodied.evaluation.provenance import left_out_by
from embodied.evaluation.results import MEANS
from embodied.protocols import PreparesPictures
from embodied.run.build.given import ConfiguredEnv
from embodied.run.evaluation.conditions import Conditions, env_of
from embodied.schema.compose.compose import Composed
from embodied.schema.keys.paths import MISSING, at
from embodied.schema.rules.protocols import protocol_values
from embodied.types import WorkerFacts

PICTURES = ("image_size", "num_images_in_input", "image_preset", "center_crop")
"""Keys of ``actor.model`` that say how a picture is prepared, of models that do not say it themselves."""
MODEL = "actor.model."

NOT_HELD_TO = ("weights", "env_max_steps", "reward_mode", "reward_coef", "use_rel_reward")
"""Conditions on which success does not depend, or which are compared by themselves."""


@dataclass(frozen=True)
class Protocol:
    """The protocol that an evaluation was made under: its name, the hash of its keys, deviations from the named one."""

    name: str | None  # protocol=NAME; None: the keys as they were
    hash: str
    changed: Mapping[str, Any]  # keys that NAME sets and that had another value, with that value
    keys: Mapping[str, Any]
    held_out_in_training: bool | None = None  # True: training left the starts out; None: not known, or none held out

    @property
    def named(self) -> dict[str, str | None]:
        """Name and hash, as the files of results have them."""
        return {"name": self.name, "hash": self.hash}

    @property
    def head(self) -> str:
        """A line that names the protocol above the success table."""
        but = ", but " + ", ".join(f"{key}={value}" for key, value in self.changed.items()) if self.changed else ""
        return f"protocol {self.name or 'of no name'} ({self.hash}){but}"


def protocol(
    composed: Composed, side: ConfiguredEnv, under: Conditions, facts: Sequence[WorkerFacts], policy: object
) -> Protocol:
    """Determines the protocol of an evaluation of ``side`` under the conditions ``under``.

    Args:
        facts: what its env workers have found.
        policy: what answered.
    """
    config, resolved = composed.config, composed.resolved
    changed = {key: found for key, value in protocol_values(resolved).items() if (found := at(resolved, key)) != value}
    prepared = pictures(policy, config.actor.model.model_extra or {}) if side.spec.cameras else {}
    if prepared and isinstance(policy, PreparesPictures):
        changed = {key: value for key, value in changed.items() if value is not MISSING}  # the policy says them
        changed |= {
            key: prepared.get(key.removeprefix(MODEL), "not known") for key in deviating_keys(resolved, prepared)
        }
    env = {key: value for key, value in env_of(side).items() if key not in MEANS}
    varied = kinds_of(side.env)
    keys = {
        **{key: value for key, value in asdict(under).items() if key not in NOT_HELD_TO},
        "env": env, "tasks": list(side.spec.tasks),
        **({"task_names": list(varied.names)} if varied else {}),  # instructions do not tell variations apart
        "pictures": prepared,
        "simulator": described(facts),
    }  # fmt: skip
    left_out = left_out_by(resolved, under.held_out_states, trains=not config.runner.only_eval)
    return Protocol(config.protocol.name, short_hash(keys), changed, keys, left_out)


def pictures(policy: object, model: Mapping[str, Any]) -> dict[str, Any]:
    """Returns how the policy prepares pictures: as it says itself, else as the keys of ``actor.model`` do."""
    if isinstance(policy, PreparesPictures):
        return dict(policy.pictures())
    return {key: model[key] for key in PICTURES if key in model}


def deviating_keys(config: Mapping[str, Any], prepared: Mapping[str, Any]) -> list[str]:
    """Lists the protocol's keys on pictures that an exported program, whose ``prepared`` cannot be changed, deviates
    from."""
    wanted: dict[str, list[Any]] = {}
    for keys in config["protocol"]["of_model"].values():
        for key, value in keys.items():
            if key.removeprefix(MODEL) in PICTURES:
                wanted.setdefault(key, []).append(value)
    return [key for key, values in wanted.items() if prepared.get(key.removeprefix(MODEL)) not in values]


def short_hash(value: Any) -> str:
    """Returns the first 12 hexadecimal digits of the SHA-256 of a value as JSON, with sorted keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def described(facts: Sequence[WorkerFacts]) -> dict[str, str]:
    """Summarises renderer, driver and versions that the env workers report; where workers differ, all of them."""
    found: dict[str, dict[str, None]] = {}
    for fact in facts:
        for name, value in {"renderer": fact.renderer, "driver": fact.driver, **fact.versions}.items():
            found.setdefault(name, {})[value] = None
    return {name: " / ".join(sorted(values)) for name, values in found.items() if any(values)}


def warning(evaluated: Protocol) -> str | None:
    """Returns a warning if initial states are evaluated as held out although training may have started from them; else
    None."""
    if not evaluated.keys["held_out_states"] or evaluated.held_out_in_training:
        return None
    if evaluated.held_out_in_training is None:
        return "whether training left out the initial states that are held out here is not known"
    return (
        "these weights were trained on the initial states that are held out here: their run, or one that it began "
        f"from, or its demonstrations did not have protocol.held_out_states={evaluated.keys['held_out_states']}"
    )
