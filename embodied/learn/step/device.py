"""The device that a name on the command line means."""

from __future__ import annotations

import re

import torch

from embodied.errors import ConfigError


def device_named(name: str, key: str) -> torch.device:
    """Returns the device that is named: ``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``cuda:1``.

    Args:
        key: what the name was given for, for messages, e.g. ``--device``.

    Raises:
        ConfigError: another name, or torch finds no such GPU.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ConfigError(f"{key} is {name}, expected auto, cpu, cuda or cuda:1", f"give {key} one of these")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            f"{key} is {name} and torch {torch.__version__} finds no GPU",
            f"set {key} to auto, or install a CUDA build of torch",
        )
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"{key} is {name}, and torch finds {torch.cuda.device_count()} GPUs, which are numbered from 0",
            f"set {key} to auto, or to cuda",
        )
    return device
