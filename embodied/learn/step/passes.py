"""The passes of one rank over its own records of an update: how they are cut, evaluated and ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from embodied import instructions
from embodied.errors import ConfigError, Stopped
from embodied.learn.batch import RECORDED, gather, micro_batches, packed
from embodied.learn.ranks.arrived import Arrived
from embodied.learn.step.reference import Reference
from embodied.learn.watch import Passed
from embodied.parallel.modes import evaluating, modules_of
from embodied.parallel.sharding import Replicas
from embodied.protocols import CountsTokens, Policy
from embodied.types import EnvSpec, EpisodeResult, Evaluation, Sampling

Part = TypeVar("Part", Tensor, np.ndarray)
"""Records of one pass: indices, int64 [n]."""


def until_stopped(parts: Sequence[Part], passed: Passed, parallel: Replicas) -> Iterator[tuple[Part, bool]]:
    """Yields each part, and whether it is the last; ends early if ``passed`` says so on a rank. All ranks call it.

    Raises:
        Stopped: on all ranks, once ``passed`` has said so on one: where passes are collectives, after the same pass;
            else after the passes that the others still have.
    """
    go_on = True
    for number, part in enumerate(parts, start=1):
        yield part, number == len(parts)
        go_on = passed(len(part))
        if parallel.in_step.size > 1:
            go_on = not parallel.in_step.any(not go_on)
        if not go_on:
            break
    if parallel.world.any(not go_on):
        raise Stopped


def check_counts_tokens(policy: Policy, max_tokens: int | None) -> None:
    """Raises :class:`ConfigError` if passes are to be filled by tokens, and the policy does not count them."""
    if max_tokens is not None and not isinstance(policy, CountsTokens):
        raise ConfigError(
            f"runner.enable_dynamic_batch_size fills passes by tokens, and {type(policy).__name__} does not count them",
            "set runner.enable_dynamic_batch_size=false, or add tokens() (embodied.protocols.CountsTokens)",
        )


@dataclass(frozen=True)
class RankRecords:
    """This rank's records of one update, as they stand in the slab.

    Args:
        arrays: the slab's; some may be replaced (:mod:`embodied.learn.score.recompute`).
        results: this rank's episodes, at least one.
        env: whose observations the records hold.
        max_tokens: of a pass, if passes are filled by tokens; the policy then counts them.
        forward_tokens: of a pass without gradients; None = ``max_tokens``.
        spare: row of a record that a pass reads that counts nothing; None = this rank's first.
    """

    arrays: Mapping[str, np.ndarray]
    results: Sequence[EpisodeResult]
    policy: Policy
    env: EnvSpec
    device: torch.device
    parallel: Replicas
    max_tokens: int | None = None
    forward_tokens: int | None = None
    spare: int | None = None

    @property
    def are_elsewhere(self) -> bool:
        """True if other processes have collected the records, and have what passes read of them."""
        return isinstance(self.arrays, Arrived)

    def fetch(self, rows: np.ndarray) -> None:
        """Gets what passes read of ``rows`` int64 [n], where other processes have collected them. Once an update; all
        processes of the run take part."""
        if isinstance(self.arrays, Arrived):
            self.arrays.fetch(rows)

    def light(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Copies the decisions in ``rows`` int64 [n] with their encoded instructions, [n, …]; no observations."""
        decisions = {name: self.arrays[name][rows] for name in self.policy.spec.decision}
        return decisions | {name: values.numpy() for name, values in self.encoded_instructions(rows).items()}

    def gather(self, rows: np.ndarray) -> dict[str, Tensor]:
        """Copies what the policy reads of ``rows`` int64 [n] to the device, tensors [n, …].

        With no rows, gives one record: under FSDP this rank must still run the forward pass, and counts nothing of it.
        """
        rows = rows if len(rows) else self.placeholder
        fields = [*instructions.fields_of(self.env), *self.policy.spec.decision]
        fields += [RECORDED] if RECORDED in self.arrays else []
        told = {name: values.to(self.device) for name, values in self.encoded_instructions(rows).items()}
        return gather(self.arrays, fields, rows, self.device) | told

    def encoded_instructions(self, rows: np.ndarray) -> Mapping[str, Tensor]:
        """Encodes the instructions of ``rows`` int64 [n], tensors [n, …]."""
        return self.policy.encode_instructions(instructions.of_rows(self.env, self.arrays, rows))

    @property
    def placeholder(self) -> np.ndarray:
        """Slab row of a placeholder record, for passes that FSDP requires and nothing is counted of: int64 [1]."""
        return np.asarray(self.results[0].rows[:1] if self.spare is None else [self.spare], np.int64)

    def among(self, ranks: Tensor, chosen: Tensor) -> Tensor:
        """Selects those of the ``chosen`` records that this rank has: their indices, int64.

        Args:
            ranks: the rank of each of n records, int64 [n].
            chosen: bool [n].
        """
        return (chosen & (ranks == self.parallel.group.rank)).nonzero().flatten()

    def parts(
        self, ranks: Tensor, chosen: Tensor, rows: np.ndarray, size: int, costs: Tensor | None = None,
        forward_only: bool = False,
    ) -> list[Tensor]:  # fmt: skip
        """Cuts :meth:`among` into parts of near-equal size, records of like cost together; with ``max_tokens`` into
        parts of near-equal numbers of tokens. Under FSDP a forward pass runs collectives: empty parts then give all
        ranks equally many. All ranks call it.

        Args:
            rows: of the n records, in the slab of the rank that has them, int64 [n].
            size: most records of a part.
            forward_only: the passes have no gradients.
        """
        own = self.among(ranks, chosen)
        if self.max_tokens is None:
            parts = micro_batches(own, size, costs) if len(own) else []
            most = max((-(-int(count) // size) for count in torch.bincount(ranks[chosen])), default=0)
        else:
            budget = self.forward_tokens or self.max_tokens if forward_only else self.max_tokens
            parts = self._packed(own, rows, size, budget)
            most = max(self.parallel.group.gather(len(parts))) if self.parallel.collective_passes else 0
        if self.parallel.collective_passes:
            parts += [own[:0]] * (most - len(parts))
        return parts

    def _packed(self, own: Tensor, rows: np.ndarray, size: int, budget: int) -> list[Tensor]:
        assert isinstance(self.policy, CountsTokens)
        if not len(own):
            return []
        tokens = self.policy.tokens(self.light(rows[own.numpy()]))
        return packed(own, torch.from_numpy(tokens), budget, size)

    @property
    def rows(self) -> np.ndarray:
        """Slab rows of all of this rank's records, int64 [R]."""
        return np.concatenate([np.asarray(result.rows, np.int64) for result in self.results])


def offloaded(enabled: bool) -> AbstractContextManager[object]:
    """Makes a context whose forward passes keep their activations in host memory, if ``enabled``."""
    if not enabled or not torch.is_grad_enabled():
        return nullcontext()
    return torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available())


@dataclass(frozen=True)
class ForwardPasses:
    """Makes the forward passes of the policy and of its reference.

    Args:
        distribution: ask for the log-probs of all choices of each element, beside that of the recorded one.
        offload: keep what a backward pass needs in host memory until then.
    """

    policy: Policy
    sampling: Sampling
    parallel: Replicas
    reference_weights: Reference | None
    distribution: bool
    offload: bool = False

    def __call__(self, records: Mapping[str, Tensor]) -> Evaluation:
        with offloaded(self.offload):
            return self._evaluate(records)

    def _evaluate(self, records: Mapping[str, Tensor]) -> Evaluation:
        if self.distribution:
            return self.policy.evaluate(records, self.sampling, distribution=True)
        return self.policy.evaluate(records, self.sampling)

    def reference(self, records: Mapping[str, Tensor]) -> Evaluation | None:
        """Evaluates the reference, without gradients and dropout; None if there is none."""
        if self.reference_weights is None:
            return None
        self.parallel.reshard()
        with self.reference_weights.acting(), evaluating(self._modules):
            result = self(records)
        self.parallel.reshard()
        return result

    @cached_property
    def _modules(self) -> Sequence[nn.Module]:
        """The policy's, listed once: there is a reference to ask in each micro-batch."""
        return modules_of(self.policy)
