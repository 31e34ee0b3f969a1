"""Where a part runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from embodied.selftest.measured import NotRun


@dataclass(frozen=True)
class Place:
    """Where a part of the self-test runs: the device, and a folder for its files."""

    device: str  # cpu, cuda or cuda:1
    folder: Path
    vllm_python: str = ""  # the interpreter of an environment that has vLLM; empty: that of this process

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    def need_gpu(self, for_what: str) -> None:
        """Raises :class:`NotRun` on a CPU."""
        if not self.on_gpu:
            raise NotRun(f"{for_what}: a GPU alone has that, and the device is cpu")
