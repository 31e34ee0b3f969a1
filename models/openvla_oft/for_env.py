"""Sizes that follow from the env that a policy is for, or from its checkpoint. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied.errors import CheckpointError
from embodied.lib.files import folder_of, inside, read_json, reading
from embodied.types import ContinuousAction, EnvSpec

from .settings import OF_ENV, Settings


def for_env(
    env: EnvSpec, given: Collection[str], model_path: str | None = None, num_images_in_input: int | None = 1,
    use_proprio: bool | None = False, proprio_dim: int | None = None, action_dim: int | None = None,
) -> tuple[Mapping[str, Any], list[str]]:  # fmt: skip
    """See :class:`embodied.protocols.FitsEnv`. Random weights take the sizes of the env, a checkpoint has its own."""
    asked = dict(zip(OF_ENV, (num_images_in_input, use_proprio, proprio_dim, action_dim), strict=True))
    open_ones = [name for name, value in asked.items() if value is None]
    sizes = _of_env(env) if model_path is None else _of_checkpoint(model_path) if open_ones else {}
    values = asked | {name: sizes[name] for name in open_ones}
    if proprio_dim is None and not values["use_proprio"]:
        values["proprio_dim"] = Settings.proprio_dim
    return {name: values[name] for name in open_ones}, list(_unread(env, given, values))


def _unread(env: EnvSpec, given: Collection[str], values: Mapping[str, Any]) -> Iterator[str]:
    reads = values["num_images_in_input"]
    if left := env.cameras[reads:] if isinstance(reads, int) else ():
        yield f"camera {', '.join(left)} (actor.model.num_images_in_input={reads})"
    if not values["use_proprio"] and "proprio_dim" in given:
        size = values["proprio_dim"]
        yield f"the state: actor.model.proprio_dim={size} has no effect without actor.model.use_proprio=true"


def _of_env(env: EnvSpec) -> dict[str, Any]:
    """The sizes of an env. What it lacks is 1 camera, or the usual size: what does not fit is said later."""
    state = env.obs["state"].shape[0] if "state" in env.obs else 0
    action = env.action.dim if isinstance(env.action, ContinuousAction) else Settings.action_dim
    sizes = (max(1, len(env.cameras)), state > 0, state or Settings.proprio_dim, action)
    return dict(zip(OF_ENV, sizes, strict=True))


def _of_checkpoint(model_path: str) -> dict[str, Any]:
    """The sizes that ``policy.json`` says, else those of the released checkpoints."""
    try:
        folder = folder_of(model_path)
    except CheckpointError:  # said when its weights are read; a migrated file may name a folder of another machine
        folder = Path(model_path)
    file = folder / "policy.json"
    found = read_json(inside(folder, file.name)) if file.is_file() else {}
    with reading(file, "its sizes are no numbers by name"):
        net = dict(found.get("net", {}))
        state = int(net.get("proprio_dim", 0))
        sizes = (
            int(net.get("num_images", 1)), state > 0, state or Settings.proprio_dim,
            int(net.get("action_dim", Settings.action_dim)),
        )  # fmt: skip
    return dict(zip(OF_ENV, sizes, strict=True))


def reads(
    image_size: Sequence[int], num_images_in_input: int | None = 1, use_proprio: bool | None = False
) -> str:  # fmt: skip
    """Returns what a policy with such keys reads, for the page of models."""
    cameras = {None: "all cameras", 1: "one camera"}.get(num_images_in_input, f"{num_images_in_input} cameras")
    state = {None: ", the state if there is one", True: ", the state"}.get(use_proprio, "")
    return f"{cameras}, {image_size[0]} px{state}"
