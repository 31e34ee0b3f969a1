"""Small folders of weights, and changes to them as other programs and broken downloads make them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from embodied.weights.listing import INDEX, WHOLE

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"
PREFIXES = (
    "base_model.model.", "_orig_mod.", "_fsdp_wrapped_module.", "module.", "model.", "module._orig_mod.",
    "_orig_mod.module.", "_fsdp_wrapped_module._fsdp_wrapped_module.", "_forward_module.module.", "policy.network.",
)  # fmt: skip
WITHIN: dict[str, Callable[[str], str]] = {
    "torch.compile of a layer": lambda name: name.replace("layers.0.", "layers.0._orig_mod."),
    "checkpointed layers": lambda name: name.replace("mlp.", "_checkpoint_wrapped_module.mlp."),
    "FSDP of layers": lambda n: f"module.{n}".replace("layers.1.", "layers.1._fsdp_wrapped_module."),
    "Lightning": lambda name: name.replace("self_attn.", "self_attn._forward_module."),
    "peft": lambda name: "base_model.model." + name.replace("q_proj.", "q_proj.base_layer."),
}


def changed(folder: Path, change: Callable[[dict[str, Tensor]], Any], file: str = WHOLE) -> None:
    """Writes tensors anew; ``change`` alters them in place or gives others."""
    state = load_file(folder / file)
    found = change(state)
    save_file(found if isinstance(found, dict) else state, folder / file, metadata={"format": "pt"})


def renamed(folder: Path, new: Callable[[str], str]) -> None:
    renamed_in(folder, WHOLE, new)


def renamed_in(folder: Path, file: str, new: Callable[[str], str]) -> None:
    changed(folder, lambda state: {new(name): tensor for name, tensor in state.items()}, file)


def filled(name: str, value: float, place: int | None = 3) -> Callable[[dict[str, Tensor]], None]:
    """One number, or all of them."""

    def change(state: dict[str, Tensor]) -> None:
        (state[name].view(-1)[place : place + 1] if place is not None else state[name]).fill_(value)

    return change


def in_shards(folder: Path) -> None:
    """Two files with an index in the place of one."""
    state = load_file(folder / WHOLE)
    names = sorted(state)
    places = {name: f"model-0000{1 + (i % 2)}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(places.values()):
        save_file({n: state[n] for n in names if places[n] == file}, folder / file, metadata={"format": "pt"})
    (folder / INDEX).write_text(json.dumps({"weight_map": places}), encoding="utf-8")
    (folder / WHOLE).unlink()


def as_bin(folder: Path, prefix: str = "", **options: Any) -> None:
    """A file of torch in the place of safetensors."""
    state = {prefix + name: tensor for name, tensor in load_file(folder / WHOLE).items()}
    (folder / WHOLE).unlink()
    torch.save(state, folder / "pytorch_model.bin", **options)


def config(folder: Path, **fields: Any) -> None:
    """Other fields in config.json."""
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**values, **fields}), encoding="utf-8")
