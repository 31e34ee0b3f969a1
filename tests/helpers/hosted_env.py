"""Envs that tell about the worker in which they run."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from embodied.testing import FakeEnv
from embodied.types import WorkerFacts

IMPORTED_WITH = os.environ.get("EMBODIED_RENDER_GPU", "")


class TellsItsHost(FakeEnv):
    def prepare(self) -> WorkerFacts:
        heavy = ("torch", "pydantic", "hydra", "PIL", "imageio_ffmpeg")
        extra = {
            "finds envs": str(find_spec("embodied.envs") is not None),
            "imported with": IMPORTED_WITH,
            "gpu": os.environ.get("EMBODIED_RENDER_GPU", ""),
            "cores": str(sorted(os.sched_getaffinity(0))),
            "prefix": sys.prefix,
            "loaded": str([name for name in heavy if name in sys.modules]),
            "path": ":".join(sys.path),
        }
        return WorkerFacts(os.getpid(), "none", "a fake env", extra)


class SharesSimulators(FakeEnv):
    """Says that the slots of a worker share simulators."""

    def prepare(self) -> WorkerFacts:
        return replace(super().prepare(), shares_simulators=True)


class WritesItsDevice(FakeEnv):
    """Each worker writes which GPU it was told to render on into the folder that the variable SEEN names."""

    def prepare(self) -> WorkerFacts:
        told = [os.environ.get(name, "") for name in ("RANK", "EMBODIED_RENDER_GPU", "CUDA_VISIBLE_DEVICES")]
        Path(os.environ["SEEN"], f"{os.getpid()}").write_text(" ".join(told), encoding="utf-8")
        return super().prepare()
