"""Calls on which a written program is checked: observations greedily and sampled, a few rows at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from embodied.errors import ConfigError
from embodied.protocols import Examples
from embodied.types import Sampling

ROWS = 8  # rows of one call while the program is verified
TRACED_ROWS = 3

MakeInputs = Callable[[Mapping[str, Tensor], Sequence[str], Sampling, int], dict[str, Tensor]]
"""Observations, instructions, how to decide, and the number of the first row → inputs of the program in their order."""


@dataclass(frozen=True)
class Case:
    """A call of an exported program that is checked: its inputs, and the same observations as the policy takes them."""

    inputs: Mapping[str, Tensor]
    texts: Sequence[str]
    sampling: Sampling

    def traced(self) -> dict[str, Tensor]:
        """Returns example inputs of the same shapes for tracing: a few rows."""
        rows = torch.arange(TRACED_ROWS) % len(self.texts)
        return {name: values[rows].contiguous() for name, values in self.inputs.items()}


def cases_of(examples: Examples, samplings: Iterable[Sampling], make: MakeInputs) -> list[Case]:
    """Returns all observations in each way to decide, in calls of at most :data:`ROWS` rows."""
    obs, texts = examples.obs, examples.instructions
    assert obs is not None
    cases = []
    for sampling in samplings:
        for begin in range(0, len(texts), ROWS):
            part = {name: torch.from_numpy(values[begin : begin + ROWS]) for name, values in obs.items()}
            asked = texts[begin : begin + ROWS]
            cases.append(Case(make(part, asked, sampling, begin), asked, sampling))
    return cases


def differs(kind: str, gaps: str, tolerance: float) -> ConfigError:
    """Makes the error that a program answers otherwise than the policy. Args: ``gaps`` says how far apart they are."""
    return ConfigError(
        f"the {kind} program differs from the policy: {gaps}, and at most {tolerance:g} is right",
        "this is a defect of the exporter or of a library; write another format, and report it with the versions "
        f"of torch ({torch.__version__}), onnx and onnxruntime",
    )
