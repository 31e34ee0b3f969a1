"""Chooses which statistics of the training data become −1 and 1.

| kind | −1 and 1 are | used by |
|---|---|---|
| ``bounds_q99`` | 1 % and 99 % quantile | OFT for LIBERO and BRIDGE (7 action dimensions); OpenVLA before OFT |
| ``bounds`` | minimum and maximum | OFT for ALOHA (14 action dimensions) |

A checkpoint folder of OFT does not say its kind: OFT takes it from the robot's name on its command line
(prismatic/vla/constants.py). The wrong kind moves the robot by wrong amounts without an error. Actions and state of a
checkpoint have the same kind.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from embodied.errors import CheckpointError

from ...shared.keys import bad
from ..files.checkpoint import Folder
from ..network.config import NetConfig
from .action_tokenizer import BOUNDS, BOUNDS_Q99, ENTRIES, Range

AUTO = "auto"
BY_DIMENSIONS = {7: (BOUNDS_Q99, "LIBERO and BRIDGE"), 14: (BOUNDS, "ALOHA")}  # action dimensions → OFT's choice
KEY = "action_normalization"


@dataclass(frozen=True)
class Normalization:
    """Which statistics bound a dimension's range (quantiles, or minimum and maximum), and why they do."""

    kind: str = BOUNDS_Q99
    reason: str = field(default="the default", compare=False)  # explains to the user how the kind was found

    @classmethod
    def asked(cls, key: str) -> Normalization:
        """Chooses the kind of bounds without a checkpoint, by ``actor.model.action_normalization``; auto means the
        default."""
        return cls() if key == AUTO else cls(key, "as configured")

    @classmethod
    def of_checkpoint(cls, folder: Folder, action: Mapping[str, Any], key: str, net: NetConfig) -> Normalization:
        """Chooses the kind of bounds for a checkpoint's folder.

        Args:
            action: the folder's statistics of actions.
            key: ``actor.model.action_normalization``.

        Raises:
            ConfigError: ``key`` contradicts policy.json.
            CheckpointError: policy.json has an unknown kind, or ``key`` is auto and nothing tells the kind.
        """
        said = _recorded(folder)
        if said is None:
            return _told(folder, action, net) if key == AUTO else cls(key, "as configured")
        if key not in (AUTO, said):
            raise bad(KEY, key, f"{folder.path}/policy.json says {said!r}", f"set it to {said!r} or auto")
        return cls(said, "as policy.json says")

    def of_statistics(self, action: Mapping[str, Any], key: str) -> Normalization:
        """Chooses the kind of bounds for other statistics of actions.

        It is the same one, unless ``key`` is auto and ``action`` has only the other kind's entries. Statistics that
        come back from a run have only one kind.
        """
        kinds = _kinds(action)
        if key != AUTO or self.kind in kinds or not kinds:
            return self
        return Normalization(kinds[0], f"as the statistics have {' and '.join(ENTRIES[kinds[0]])} alone")


def _recorded(folder: Folder) -> str | None:
    """Kind in policy.json. Folders from before the key existed use quantiles."""
    if "net" not in folder.policy:
        return None
    said = folder.policy.get(KEY, BOUNDS_Q99)
    if said not in ENTRIES:
        raise CheckpointError(
            f"{folder.path}/policy.json has {KEY} {said!r}, known are {', '.join(ENTRIES)}", "correct it there"
        )
    return said


def _told(folder: Folder, action: Mapping[str, Any], net: NetConfig) -> Normalization:
    """Kind of a checkpoint that another program wrote, found from its contents."""
    if net.autoregressive:
        return Normalization(BOUNDS_Q99, "as OpenVLA before OFT knows no other")
    kinds = _kinds(action)
    dimensions = len(action[ENTRIES[kinds[0]][0]]) if kinds else net.action_dim
    if dimensions in BY_DIMENSIONS:
        kind, robots = BY_DIMENSIONS[dimensions]
        return Normalization(kind, f"as OFT has it for {robots}, {dimensions} action dimensions")
    if len(kinds) == 1:
        return Normalization(kinds[0], f"as the statistics have {' and '.join(ENTRIES[kinds[0]])} alone")
    raise CheckpointError(
        f"{folder.path} does not tell how actions were normalised: OFT has a kind for 7 and for 14 action dimensions, "
        f"the statistics have {dimensions}, with {sorted(action)}",
        f"set actor.model.{KEY} to what the checkpoint was trained with: {BOUNDS_Q99} (quantiles q01 and q99) or "
        f"{BOUNDS} (min and max)",
    )


def _kinds(block: Mapping[str, Any]) -> list[str]:
    """The kinds whose entries ``block`` has."""
    return [kind for kind, names in ENTRIES.items() if all(name in block for name in names)]


@dataclass(frozen=True)
class Statistics:
    """Ranges of the training data, by which actions and state are scaled. Without them (None) actions use the env's
    range and the state stays unscaled."""

    name: str = "env"
    action: Range | None = None
    proprio: Range | None = None
    normalization: Normalization = Normalization()

    @classmethod
    def from_block(
        cls, name: str, values: Mapping[str, Any], net: NetConfig, normalization: Normalization
    ) -> Statistics:
        """Reads one entry of a dataset_statistics.json.

        Raises:
            CheckpointError: its dimensions do not fit ``net``, or entries of this kind of normalisation are missing.
        """
        action = Range.from_statistics(action_block(name, values), "action", normalization.kind)
        reads_state = bool(net.proprio_dim) and "proprio" in values
        if reads_state and not isinstance(values["proprio"], Mapping):
            raise CheckpointError(f"statistics '{name}' have no lists by name in 'proprio'", "choose other statistics")
        proprio = Range.from_statistics(values["proprio"], "proprio", normalization.kind) if reads_state else None
        for what, found, wanted in (("action", action, net.action_dim), ("proprio", proprio, net.proprio_dim)):
            if found is not None and len(found.low) != wanted:
                raise CheckpointError(
                    f"statistics '{name}' have {len(found.low)} {what} dimensions, actor.model.{what}_dim is {wanted}",
                    f"set actor.model.{what}_dim={len(found.low)}, or choose another actor.model.unnorm_key",
                )
        return cls(name, action, proprio, normalization)

    def with_gripper(self, low: float, high: float) -> Statistics:
        """Returns the same statistics with another range of the last action dimension."""
        assert self.action is not None
        lows, highs = (*self.action.low[:-1], low), (*self.action.high[:-1], high)
        return replace(self, action=replace(self.action, low=lows, high=highs))

    def as_text(self) -> dict[str, str]:
        """Encodes the statistics for a checkpoint, ``{"statistics": JSON}``; nothing if the env's range is used."""
        ranges = {"action": self.action, "proprio": self.proprio}
        blocks = {key: value.to_statistics() for key, value in ranges.items() if value is not None}
        return {"statistics": json.dumps({"name": self.name, **blocks})} if self.action is not None else {}

    def describe(self) -> str:
        """Describes the ranges for the user: name, kind, and how the kind was found."""
        if self.action is None:
            return "the env's action range"
        return f"'{self.name}', {self.normalization.kind} ({self.normalization.reason})"


def action_block(name: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the actions' block of a dataset's statistics. Raises CheckpointError if there is none."""
    if not isinstance(values, Mapping) or not isinstance(values.get("action", {}), Mapping):
        raise CheckpointError(
            f"statistics '{name}' are {str(values)[:60]!r}, expected an entry 'action' with lists by name",
            "use the dataset_statistics.json of the checkpoint's training data",
        )
    if "action" not in values:
        raise CheckpointError(f"statistics '{name}' have no entry 'action'", "choose other dataset statistics")
    return values["action"]
