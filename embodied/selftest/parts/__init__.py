"""The parts of the self-test, the cheap ones first. Each is a function that yields what it has measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One part of the self-test, found by name when it is run: the command itself imports neither torch nor
    a simulator."""

    name: str
    meaning: str
    limit_s: float  # the part is ended then
    function: str = ""  # MODULE:FUNCTION; empty: as its name says

    @property
    def place(self) -> str:
        """``MODULE:FUNCTION``."""
        return self.function or f"{__name__}.{self.name}:{self.name}"


_ALL = (
    Part("numbers", "act, evaluate and one update against the CPU, in fp32 and bf16", 120),
    Part("determinism", "the same twice, bit by bit", 90),
    Part("attention", "sdpa and flash-attn against the attention that is written out", 60),
    Part("graphs", "CUDA graphs against calls without them", 60),
    Part("checkpoints", "saved and loaded, also in the background from pinned memory", 60),
    Part("shards", "fsdp2 with one rank against the policy as it is", 90),
    Part("offload", "activations, optimizer and weights in host memory: bits, and memory that is freed", 120),
    Part("quantized", "frozen layers in 8 and 4 bits", 90),
    Part("compiled", "compiled blocks against blocks as they are", 180),
    Part("rendering", "LIBERO's picture by EGL against that of the software renderer", 150),
    Part("resume", "a training that goes on from a checkpoint against one that was not stopped", 150),
    Part("simulation", "ManiSkill: copies in one GPU simulation against the CPU's", 180),
    Part("engine", "greedy texts of vLLM against the policy's own lanes", 240),
    Part("memory", "what a dry run counts against what was taken; small, and 7B with adapters", 300),
    Part("throughput", "act and training step against the measured rate of matrix products", 240),
)
PARTS: Mapping[str, Part] = {part.name: part for part in _ALL}
"""By name, in the order in which they are run."""
