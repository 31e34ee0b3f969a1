"""The slab: a struct of arrays in shared memory, one row a record, written once and read in place.

    env worker ── images, state of row r ──▶ │ slab │ ◀── the decision of row r (actions, logprobs, …) ── policy
    env worker ── rewards, end flags of r ─▶ │      │ ──▶ all fields of row r ──▶ trainer

The memory is a memfd: it has no name that could leak, no /dev/shm size limit, and is freed with its last process. It is
populated once at creation, because the first touch of a fresh page costs ten times a copy into a warm one.

This module does not know what the fields mean; they are derived from the env's and the policy's specs.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Mapping

import numpy as np

from embodied.errors import ConfigError
from embodied.protocols import DEMONSTRATED
from embodied.runtime.memory import available_memory
from embodied.types import ArraySpec

ALIGN = 64  # bytes; no two fields share a cache line
INFO = "info/"  # begins the names of fields that hold what steps tell (EnvSpec.info)
FEATURES = "progress_features"  # embodied.protocols.HasProgressFeatures


def runtime_fields(num_action_chunks: int) -> dict[str, ArraySpec]:
    """The fields that the runtime adds to the env's and the policy's. K = ``num_action_chunks``."""
    return {
        "task_id": ArraySpec((), "int32"),
        "episode_id": ArraySpec((), "int64"),
        "t": ArraySpec((), "int32"),  # index of the record in its episode
        "version": ArraySpec((), "int64"),  # weight version that acted
        "rewards": ArraySpec((num_action_chunks,), "float32"),
        "num_steps": ArraySpec((), "int32"),  # control steps executed, 1..K; 0 in the row of a final observation
        "terminated": ArraySpec((), "bool"),
        "truncated": ArraySpec((), "bool"),
        "success": ArraySpec((), "bool"),
        "progress": ArraySpec((), "float32"),  # largest reward of the env's own in the episode so far
        "solved_at": ArraySpec((), "int32"),  # control step of the episode with its first success; 0 = none yet
    }


def info_fields(names: Iterable[str]) -> dict[str, ArraySpec]:
    """The fields for values that control steps report beside their reward (``EnvSpec.info``)."""
    return {f"{INFO}{name}": ArraySpec((), "int64") for name in names}


def feature_fields(features: int) -> dict[str, ArraySpec]:
    """The field for F ``progress_features``, before and after the record's control steps."""
    return {FEATURES: ArraySpec((2, features), "float32")}


def intervention_fields() -> dict[str, ArraySpec]:
    """The field of an env whose actions a human may override."""
    return {DEMONSTRATED: ArraySpec((), "bool")}


def slab_bytes(fields: Mapping[str, ArraySpec], rows: int) -> int:
    """Bytes that a slab of ``rows`` records takes."""
    return _layout(fields, rows)[1]


def _layout(fields: Mapping[str, ArraySpec], rows: int) -> tuple[dict[str, int], int]:
    offsets, end = {}, 0
    for name, spec in fields.items():
        offsets[name] = end
        end += -(-spec.nbytes * rows // ALIGN) * ALIGN
    return offsets, max(end, ALIGN)


class Slab:
    """Arrays of R rows in one shared memory: ``arrays[name]`` is [R, *shape], a row is ``{name: arrays[name][r]}``.

    Example:
        >>> slab = Slab.create({"state": ArraySpec((8,), "float32")}, rows=4)
        >>> slab.arrays["state"][2, 0] = 1.5
        >>> Slab.attach(slab.fd, slab.fields, 4).arrays["state"][2, 0]
        np.float32(1.5)
    """

    def __init__(self, fd: int, fields: Mapping[str, ArraySpec], rows: int, populate: bool) -> None:
        self.fd, self.fields, self.rows = fd, dict(fields), rows
        offsets, self.nbytes = _layout(fields, rows)
        flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if populate else 0)
        memory = mmap.mmap(fd, self.nbytes, flags=flags)
        self.arrays = {
            name: np.ndarray((rows, *spec.shape), spec.dtype, buffer=memory, offset=offsets[name])
            for name, spec in fields.items()
        }

    @classmethod
    def create(cls, fields: Mapping[str, ArraySpec], rows: int, name: str = "slab") -> Slab:
        """Allocate and populate. Raises :class:`ConfigError` if the machine has not that much memory."""
        size, free = slab_bytes(fields, rows), available_memory()
        if free is not None and size > 0.9 * free:
            raise ConfigError(
                f"the slab of {rows} records needs {size / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free",
                "lower algorithm.rollout_epoch, env.train.max_episode_steps, or the camera size in "
                "env.train.init_params",
            )
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
        return cls(fd, fields, rows, populate=True)

    @classmethod
    def attach(cls, fd: int, fields: Mapping[str, ArraySpec], rows: int) -> Slab:
        """Attach to the same memory in another process, by an inherited file descriptor."""
        return cls(fd, fields, rows, populate=False)

    def views(self, names: Mapping[str, object], row: int) -> dict[str, np.ndarray]:
        """Writable views of some fields of one row, e.g. the observation that an env fills."""
        return {name: self.arrays[name][row : row + 1].reshape(self.fields[name].shape) for name in names}

    def close(self) -> None:
        """Forget the arrays and close the descriptor; the memory goes when the last view does."""
        self.arrays = {}
        os.close(self.fd)
