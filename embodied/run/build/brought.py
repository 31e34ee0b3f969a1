"""What of a configuration differs from what its checkpoint brings, all in one table. Needs no torch, no simulator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from embodied.errors import ConfigError
from embodied.run.build.given import ConfiguredEnv
from embodied.schema.compose.brought.merging import OF_ALGORITHM
from embodied.schema.compose.brought.reading import Brought
from embodied.schema.compose.brought.sections import OWN_OF_A_COMMAND
from embodied.schema.compose.compose import Composed
from embodied.schema.keys.paths import MISSING, at, leaves
from embodied.schema.keys.sections.env import EnvEvalConfig
from embodied.schema.rules.protocols import protocol_values
from embodied.types import ActionSpec, ContinuousAction, DiscreteAction, EnvSpec

HEAD = ["key", "of the checkpoint", "asked", "effect"]
MODEL, EVAL = "actor.model.", "env.eval."
SHAPES = (
    "size", "image_size", "num_images_in_input", "use_proprio", "proprio_dim", "action_dim", "num_action_chunks",
    "is_lora", "lora_rank", "lora_target_modules", "lora_modules_to_save", "hidden", "hidden_size",
    "num_hidden_layers", "num_attention_heads", "intermediate_size", "patch_size", "vision_hidden_size",
    "vision_num_layers", "vision_num_attention_heads", "override_config", "use_film",
)  # fmt: skip
"""Keys of ``actor.model`` on which the layers depend, by the models of this library."""
PICTURES = ("image_preset", "center_crop")
"""Keys of ``actor.model`` on which depends what the layers read."""
LONGEST = 40  # characters of a value in the table


@dataclass(frozen=True)
class Row:
    """A difference from the checkpoint."""

    key: str
    brought: Any
    asked: Any
    effect: str
    fatal: bool = False  # the weights are of no use so

    @property
    def cells(self) -> list[str]:
        """The row of the table."""
        return [self.key, _short(self.brought), _short(self.asked), ("ERROR: " if self.fatal else "") + self.effect]


def check(composed: Composed, sides: Mapping[str, ConfiguredEnv]) -> None:
    """Refuses what makes the weights of no use.

    Raises:
        ConfigError: it does; the message has all differences.
    """
    found = differences(composed, sides)
    fatal = [row.key for row in found if row.fatal]
    if composed.brought is None or not fatal:
        return
    keys = [key for key in fatal if key.startswith(MODEL)]
    fixes = ["leave out model= and actor.model.…: the checkpoint brings them"] if keys else []
    if len(keys) < len(fatal):
        fixes.append("leave out env= and env.…, or choose an env with the same cameras and sizes")
    raise ConfigError(
        f"the weights in {composed.brought.place.folder} cannot be used so:\n{as_text(found)}", "; ".join(fixes)
    )


def differences(composed: Composed, sides: Mapping[str, ConfiguredEnv]) -> list[Row]:
    """Returns all differences from what the checkpoint brings, those first that make the weights of no use."""
    brought = composed.brought
    if brought is None:
        return []
    found = [*_of_model(composed, brought), *_of_env(composed, brought)]
    side = sides.get("eval" if composed.config.runner.only_eval else "train")
    if side is not None and brought.spec is not None:
        found += _of_spec(brought.spec, side.spec, composed.resolved["actor"]["model"])
    return sorted(found, key=lambda row: not row.fatal)


def table(composed: Composed, sides: Mapping[str, ConfiguredEnv]) -> list[list[str]]:
    """Returns the table with its head; empty if nothing differs."""
    rows = [row.cells for row in differences(composed, sides)]
    return [HEAD, *rows] if rows else []


def as_text(rows: Sequence[Row]) -> str:
    """Returns the table for a message."""
    cells = [HEAD, *(row.cells for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    return "\n".join(f"  {line.rstrip()}" for line in lines)


def _of_model(composed: Composed, brought: Brought) -> Iterator[Row]:
    """Keys of the model. A key that one of both does not have has its default there, which is not known here."""
    if brought.model is None:
        return
    here, wanted = composed.resolved["actor"]["model"], protocol_values(composed.resolved)
    if brought.model["_target_"] != here["_target_"]:
        yield Row(f"{MODEL}_target_", brought.model["_target_"], here["_target_"], "another network", fatal=True)
        return
    own = () if composed.config.runner.only_eval else OF_ALGORITHM
    for name, value in brought.model.items():
        if name in here and name not in own and here[name] != value:
            yield Row(f"{MODEL}{name}", value, here[name], *_effect(name, brought.model, here))
    for key, value in wanted.items():
        name = key.removeprefix(MODEL)
        if name != key and at(composed.resolved, key) != value and brought.model.get(name) == here.get(name):
            kept = brought.model.get(name, "as it was built")
            by = composed.config.protocol.name
            yield Row(key, kept, value, f"protocol {by} has it; the checkpoint's stays, with which it learnt")


def _effect(name: str, brought: Mapping[str, Any], here: Mapping[str, Any]) -> tuple[str, bool]:
    if name == "num_action_chunks" and _denoises_more(brought) and _denoises_more(here):
        return "so many actions of a chunk are executed", False
    if name in SHAPES:
        return "layers of other sizes", True
    if name in PICTURES:
        return "pictures unlike those that it learnt from", True
    return ("other weights below the trained ones" if name in ("model_path", "lora_path") else "built otherwise"), False


def _denoises_more(model: Mapping[str, Any]) -> bool:
    """Whether a policy denoises a chunk of its own length, of which no layer depends on how much is executed."""
    own = model.get("action_horizon") is not None or model.get("model_path") is not None
    heads = model.get("value_head") and model.get("value_type") == "action_level"
    return "num_steps" in model and model.get("noise_method") != "noise_policy" and own and not heads


def _of_env(composed: Composed, brought: Brought) -> Iterator[Row]:
    """Keys of the env that is evaluated, beside those of the run's own."""
    before, here = brought.side("eval"), composed.resolved["env"]["eval"]
    if before is None:
        return
    name, wanted = composed.config.protocol.name, protocol_values(composed.resolved)
    if (own := brought.protocol.get("name")) != name:
        yield Row("protocol.name", own, name, "success is measured by other rules")
    if before["_target_"] != here["_target_"]:
        yield Row(f"{EVAL}_target_", before["_target_"], here["_target_"], "another simulator")
        return
    for key, value in leaves("", before):
        now = at(here, key)
        if key.partition(".")[0] in OWN_OF_A_COMMAND or now in (MISSING, value):
            continue
        effect = "success is measured otherwise" if key in EnvEvalConfig.model_fields else "another env than there"
        by = f" (protocol {name})" if wanted.get(f"{EVAL}{key}", MISSING) == now else ""
        yield Row(f"{EVAL}{key}", value, now, f"{effect}{by}")


def _of_spec(before: EnvSpec, here: EnvSpec, model: Mapping[str, Any]) -> Iterator[Row]:
    """What the env offers."""
    if before.action.field(1) != here.action.field(1):
        yield Row("(actions)", before.action.field(1), here.action.field(1), "actions of another kind", fatal=True)
    elif before.action != here.action:
        told = (_told(before.action, here.action), _told(here.action, before.action))
        yield Row("(actions)", *told, "not those that it learnt with: units or meaning may be others")
    reads = model.get("num_images_in_input", len(before.cameras))
    if before.cameras != here.cameras:
        few = isinstance(reads, int) and len(here.cameras) < reads
        effect = f"the policy reads {reads} pictures" if few else "the policy sees with other cameras"
        yield Row("(cameras)", _names(before.cameras), _names(here.cameras), effect, fatal=few)
    for name, field in before.obs.items():
        now = here.obs.get(name)
        if name == "images" or now == field:
            continue
        unread = name == "state" and model.get("use_proprio") is False
        effect = "it is not read" if unread else f"the policy reads {list(field.shape)}"
        yield Row(f"({name})", list(field.shape), None if now is None else list(now.shape), effect, not unread)
    if before.control_hz != here.control_hz:
        yield Row("(control steps a second)", before.control_hz, here.control_hz, "actions last longer or shorter")
    if new := [task for task in here.tasks if task not in before.tasks]:
        yield Row("(tasks)", f"{len(before.tasks)}", f"{len(here.tasks)}", f"{len(new)} of them were not trained")


def _told(action: ActionSpec, other: ActionSpec) -> str:
    """Returns an action in words, as far as it differs from another one with the same field."""
    if isinstance(action, ContinuousAction) and isinstance(other, ContinuousAction):
        own, others = ([*zip(one.low, one.high, strict=True)] for one in (action, other))
        differing = [number for number, bounds in enumerate(own) if bounds != others[number]]
        return ", ".join(f"{number}: {own[number][0]:g} to {own[number][1]:g}" for number in differing)
    return f"one of {action.num_actions}" if isinstance(action, DiscreteAction) else str(action)


def _names(cameras: Sequence[str]) -> str:
    return ", ".join(cameras) or "none"


def _short(value: Any) -> str:
    text = "–" if value is None else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
