"""Measures how far a policy's answers move when it is written in another form: the same observations, asked of both.

Shapes: N observations, K actions of A numbers, M₀ log-probs of a decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from embodied.protocols import Examples, Policy
from embodied.random import Stream, generator
from embodied.types import Sampling

ROWS = 4  # rows of one call: the policy may be a large one
GREEDY = Sampling(do_sample=False)


class Answers(NamedTuple):
    """Greedy decisions of a policy and their log-probs."""

    actions: Tensor  # [N, K, A], in the env's units
    logprobs: Tensor  # float32 [N, M₀], nats


class Change(NamedTuple):
    """Differences of greedy actions, and of the log-probs of the same decisions, between two policies."""

    logprob_largest: float  # nats
    logprob_mean: float  # mean size of the changes, nats
    action_largest: float  # unit of the env's actions
    action_mean: float
    observations: int
    elements: int  # log-probs

    def __str__(self) -> str:
        return (
            f"log-probs move by at most {self.logprob_largest:.2g} nats (mean {self.logprob_mean:.2g}), un-normalised "
            f"actions by at most {self.action_largest:.2g} (mean {self.action_mean:.2g})"
        )

    def as_json(self) -> dict[str, Any]:
        return self._asdict()


def change(
    live: Policy, other: Policy, examples: Examples, device: torch.device,
    inside: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Change:  # fmt: skip
    """Compares ``other`` with ``live`` on the observations of ``examples``. Log-probs are those that both give the
    greedy decisions of ``live``; actions are the greedy ones of each.

    Args:
        inside: makes the context in which ``other`` answers; with it ``other`` may be ``live`` itself, altered.
    """
    here, there = [], []
    for rows, records in decided(live, examples, device):
        here.append(Answers(records["actions"], _logprobs(live, records)))
        with inside():
            own = {**records, **_told(other, examples, rows, device)}
            greedy = other.act(own, _noise(other, rows, device), GREEDY).fields["actions"]
            there.append(Answers(greedy, _logprobs(other, own)))
    one, two = (Answers(*map(torch.cat, zip(*parts, strict=True))) for parts in (here, there))
    logprobs = (one.logprobs - two.logprobs).abs()
    actions = (one.actions.double() - two.actions.double()).abs()
    return Change(
        logprobs.max().item(), logprobs.mean().item(), actions.max().item(), actions.mean().item(),
        len(actions), logprobs.numel(),
    )  # fmt: skip


def decided(policy: Policy, examples: Examples, device: torch.device) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Yields, a few observations at a time, their indices int64 [B] and records with the policy's greedy decisions."""
    for first in range(0, len(examples.instructions), ROWS):
        rows = torch.arange(first, min(first + ROWS, len(examples.instructions)))
        obs = {name: torch.from_numpy(values[rows.numpy()]).to(device) for name, values in _obs(examples).items()}
        obs |= _told(policy, examples, rows, device)
        yield rows, {**obs, **policy.act(obs, _noise(policy, rows, device), GREEDY).fields}


def _noise(policy: Policy, rows: Tensor, device: torch.device) -> Tensor:
    """Noise of greedy decisions on the observations ``rows`` int64 [B], equal for every policy of equal spec:
    float32 [B, …]."""
    declared = policy.spec.noise
    drawn = [declared.draw(generator(0, Stream.MEASURED_NOISE, row)) for row in rows.tolist()]
    return torch.from_numpy(np.stack(drawn)).to(device)


def _obs(examples: Examples) -> Mapping[str, np.ndarray]:
    assert examples.obs is not None
    return examples.obs


def _told(policy: Policy, examples: Examples, rows: Tensor, device: torch.device) -> dict[str, Tensor]:
    texts = [examples.instructions[row] for row in rows.tolist()]
    return {name: values.to(device) for name, values in policy.encode_instructions(texts).items()}


@torch.no_grad()
def _logprobs(policy: Policy, records: Mapping[str, Tensor]) -> Tensor:
    return policy.evaluate(records, Sampling()).logprobs.flatten(1).float()
