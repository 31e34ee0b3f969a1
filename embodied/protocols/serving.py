"""What a policy may offer to other programs: inference engines, and readers of exported folders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from embodied.types import Decision, Sampling

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor


@dataclass(frozen=True)
class EngineFacts:
    """Facts on a policy that its inference engine needs: number format, limits, tokens that end a text."""

    dtype: str  # torch's name for weights and arithmetic: float32, bfloat16, float16
    max_tokens: int  # limit for prompt and answer together
    max_new_tokens: int  # limit for an answer
    ends: tuple[int, ...]  # tokens that end a text


class EngineText(NamedTuple):
    """A text that an inference engine wrote."""

    tokens: tuple[int, ...]  # includes the end token
    logprobs: tuple[float, ...]  # nats, each in the distribution that was sampled


@dataclass(frozen=True)
class Examples:
    """Prompts or observations on which an export measures what it changes.

    Example: 8 observations of an env with pictures → ``obs={"images": uint8 [8, C, H, W, 3], "state": float32 [8, S]}``
    and 8 instructions.
    """

    prompts: Sequence[str] = ()  # prompts for policies that write texts; may be empty
    obs: Mapping[str, np.ndarray] | None = None  # real observations of the env, fields of EnvSpec.obs [N, …]
    instructions: Sequence[str] = ()  # instructions of the N observations


@runtime_checkable
class ContinuesChunks(Protocol):
    """Interface of a policy that goes on from what a robot still executes (real-time chunking, arXiv 2506.07339):
    policy servers say that they offer it, and ask it where a request brings the rest of the chunk before."""

    def act_after(
        self, obs: Mapping[str, Tensor], noise: Tensor, sampling: Sampling, left_over: Tensor, left: Tensor,
        delay: Tensor,
    ) -> Decision:  # fmt: skip
        """Decides like :meth:`embodied.protocols.Policy.act`, and in agreement with what is left of the chunks before.
        Of a new chunk the first ``delay`` actions come too late: meanwhile the robot executes those of the old one.

        Args:
            left_over: float32 [B, K, A], the env's units: the actions that were planned from this control step on. Only
                the first ``left`` count, the others are 0.
            left: int64 [B], 1..K.
            delay: int64 [B], 0..left, control steps until the answer arrives, as far as the client knows.
        """
        ...


ROUNDINGS = ("none", "16 bits", "int8")
"""What may be coarser in an exported folder, or in the run that it comes from."""


EXPORT_DTYPES = ("fp32", "bf16", "fp16", "auto")
"""Of the tensors that an export writes. auto: bf16 if it loses little, else fp32."""

QUANTIZATIONS = ("int8",)
"""Weights in fewer bits than a dtype has, for formats that have them."""


@dataclass(frozen=True)
class Exported:
    """Description of a written export, for the folder's model card and its ``embodied.json``."""

    library: str  # library that reads the folder, e.g. "transformers"
    usage: str  # Python code that reads it; ``FOLDER`` stands for its path
    notes: tuple[str, ...] = ()  # sentences for the user about the folder
    dtype: str = "fp32"  # dtype that was written: fp32, bf16 or fp16 ("auto" is resolved)
    # what builds a policy of this library from the folder: ``_target_`` and its keyword arguments, values of JSON; "."
    # stands for the folder. Empty if nothing does
    model: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)  # numbers behind the notes, values of JSON
    rounding: str = "none"  # one of ROUNDINGS: weights or arithmetic of the folder against those of the run


@runtime_checkable
class ServedByEngine(Protocol):
    """Interface of a policy of texts whose generation an inference engine can do, in a process of its own
    (``rollout.backend``). The engine gets tokens and gives tokens; texts and bytes stay with the policy.
    ``embodied.runtime.engine`` uses it."""

    @property
    def engine_facts(self) -> EngineFacts: ...

    def engine_folder(self, folder: Path) -> None:
        """Write the configuration and the tokenizer as the engine reads them (a Hugging Face folder), without weights.
        Files of an earlier call are replaced."""
        ...

    def engine_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each present weight under its name in such a folder, adapters merged, in the format of
        ``engine_facts.dtype``. One tensor exists at a time."""
        ...

    def engine_prompts(self, obs: Mapping[str, Tensor]) -> list[list[int]]:
        """The tokens of the prompts of B observations.

        Args:
            obs: the fields of :meth:`Policy.encode_instructions`, [B, …].
        """
        ...

    def engine_decision(self, texts: Sequence[EngineText], sampling: Sampling) -> Decision:
        """The decisions that n texts of the engine are, [n, …]. A text that goes on behind one of ``sampling.stop`` is
        cut where the policy itself would have ended it."""
        ...


@runtime_checkable
class Exports(Protocol):
    """Interface of a policy that can be written as folders that other programs read (``embodied.tools.export``)."""

    @property
    def export_formats(self) -> Mapping[str, str]:
        """The formats that can be written: name → what it is."""
        ...

    def export(
        self, kind: str, folder: Path, dtype: str, examples: Examples, options: Mapping[str, Any]
    ) -> Exported:  # fmt: skip
        """Write the policy, which is bound to its env, as one of the formats.

        Args:
            kind: one of ``export_formats``.
            folder: new, or empty.
            dtype: one of :data:`EXPORT_DTYPES`.
            examples: what it may measure its own loss on.
            options: ``max_shard_size`` (bytes of a file of weights at most; None = 5 GB) and ``quantize`` (None or one
                of :data:`QUANTIZATIONS`). A format refuses an option that it cannot keep.

        Raises:
            ConfigError: the format cannot hold what was trained, or not in ``dtype``.
        """
        ...
