"""Functions that several exporters share: choice of the number format, checks of options that a format cannot keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from embodied.errors import ConfigError, unknown_name
from embodied.protocols import EXPORT_DTYPES, QUANTIZATIONS, Examples
from embodied.types import EnvSpec

from .files import SHARD_BYTES

LOSES_MEAN = 0.01
"""Nats that log-probs may move on average for ``--dtype auto`` to write 16 bits."""
PROGRAMS = {
    "torch_export": "a program of torch.export: one decision, without this library's code",
    "onnx": "a program of ONNX for onnxruntime and others: one decision",
    "aoti": "a program compiled by AOTInductor for this machine's CPU: one decision",
}
MODEL = {"_target_": "embodied.models.exported.build_policy", "model_path": "."}
USAGE = """\
# in embodied: python -m embodied.eval model=exported actor.model.model_path=FOLDER env=…
from embodied.models.exported import build_policy

policy = build_policy(model_path="FOLDER")
print(policy.env)  # what it was made for: fields of observations, cameras, actions"""
MADE_UP = 4  # observations where there are no real ones


class Computed(Protocol):
    """Interface of settings under ``actor.model`` that decide the number format."""

    @property
    def is_lora(self) -> bool: ...
    @property
    def precision(self) -> str: ...


def check_dtype(dtype: str) -> None:
    """Raises :class:`ConfigError` unless ``dtype`` is one in which folders of weights are written."""
    if dtype not in EXPORT_DTYPES:
        raise unknown_name("dtype", dtype, EXPORT_DTYPES, "--dtype")


def precision_of(settings: Computed, dtype: str) -> str:
    """Returns the number format in which a folder with weights of ``dtype`` is computed. Merged weights are computed
    with in the format that they were written in: in fewer bits they would be rounded once more."""
    return "fp32" if settings.is_lora and dtype == "fp32" else settings.precision


def shard_bytes(options: Mapping[str, Any]) -> int:
    """Returns how many bytes a file of weights may have (``max_shard_size``)."""
    return options.get("max_shard_size") or SHARD_BYTES


def check_plain(options: Mapping[str, Any], kind: str) -> None:
    """Raises :class:`ConfigError` if ``options`` ask a format of floating-point tensors to quantize."""
    if (quantize := options.get("quantize")) is not None:
        raise ConfigError(
            f"--quantize {quantize}: format {kind} holds tensors of floating point alone", "leave --quantize out"
        )


def check_undivided(options: Mapping[str, Any], kind: str) -> None:
    """Raises :class:`ConfigError` if ``options`` ask a format to divide its weights among files by their size, which it
    cannot."""
    if (size := options.get("max_shard_size")) is not None:
        raise ConfigError(
            f"--shard-size of {size} bytes: format {kind} does not divide its weights among files",
            "leave --shard-size out, or write --format hf",
        )


def check_program(dtype: str, quantize: str | None) -> None:
    """Raises :class:`ConfigError` unless a program can be written with weights of ``dtype`` and ``quantize``."""
    if dtype not in ("fp32", "auto"):
        raise ConfigError(
            f"programs compute in fp32, not in {dtype}", "leave --dtype out; --quantize int8 makes the file smaller"
        )
    if quantize is not None and quantize not in QUANTIZATIONS:
        raise unknown_name("quantisation", quantize, QUANTIZATIONS, "--quantize")


def made_up(env: EnvSpec) -> Examples:
    """Makes random pictures and states, with instructions of the env's tasks, to check a program on."""
    random = np.random.default_rng(0)
    obs: dict[str, np.ndarray] = {}
    for name, spec in env.obs.items():
        shape = (MADE_UP, *spec.shape)
        obs[name] = (
            random.integers(0, 256, shape, dtype=np.uint8)
            if spec.dtype == "uint8"
            else random.standard_normal(shape).astype(spec.dtype)
        )
    return Examples(obs=obs, instructions=[env.tasks[row % len(env.tasks)] for row in range(MADE_UP)])


def observations(count: int, real: bool) -> str:
    """Says what a program was checked on."""
    return f"{count} {'observations' if real else 'made-up observations, as no real ones could be had'}"


def megabytes(size: int) -> str:
    """Formats a size in bytes."""
    return f"{size / 1e6:.1f} MB"
