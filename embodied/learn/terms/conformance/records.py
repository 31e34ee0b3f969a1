"""Records, log-probs and weights that are made up to try a term of the loss on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from embodied.algorithms.conformance.inputs import LITTLE, RECORDS, made_up
from embodied.algorithms.kl import Coefficient
from embodied.algorithms.layout import Counts
from embodied.instructions import fields_of
from embodied.learn.batch import RECORDED
from embodied.learn.terms.term import Forward, Need, OptimizerBatch, Setup
from embodied.protocols import Policy
from embodied.schema import AlgorithmConfig
from embodied.types import ArraySpec, Elements, EnvSpec, Evaluation, Gaussian, Noise, PolicySpec

Fields = Callable[[int], Mapping[str, Tensor]]
CHOICES = 5  # number of choices of each element, in a made-up distribution


@dataclass(frozen=True)
class Case:
    """Made-up input to try a loss term on: n records of two sequences in one optimizer batch, on one device."""

    setup: Setup
    batch: OptimizerBatch
    records: Mapping[str, Tensor]
    leaves: Mapping[str, Tensor]  # outputs of the policy: logprobs, and entropy, value, distribution if it has them
    reference: Evaluation | None

    def forward(self, leaves: Mapping[str, Tensor], index: Tensor | None = None) -> Forward:
        """The pass over the records ``index`` int64 [m] (all of them) in which the policy gives ``leaves``."""
        index = torch.arange(len(self.batch)) if index is None else index
        layout, level = self.setup.layout, self.setup.algorithm.logprob_type
        here = index.to(self.batch.mask.device)
        part = self.batch.part(here, here.device)
        records = {name: values[here] for name, values in self.records.items()}
        result = Evaluation(**{name: values[here] for name, values in leaves.items()})
        reference = None
        if self.reference is not None:
            distribution = self.reference.distribution
            assert not isinstance(distribution, Gaussian), "made-up ones are of choices"
            reference = Evaluation(
                self.reference.logprobs[here], distribution=None if distribution is None else distribution[here]
            )
        new, old = (layout.reduce(values, part.counts, level) for values in (result.logprobs, records["logprobs"]))
        return Forward(part, records, result, reference, new, old, untrained=False)

    def with_other_values(self) -> Case:
        """Copies the records with other numbers wherever nothing counts, which no term may read."""
        layout, level = self.setup.layout, self.setup.algorithm.logprob_type
        counted, mask = layout.element_mask(self.batch.counts), layout.mask(self.batch.counts, level)
        rewarded = self.setup.rewards.mask(self.batch.counts)
        leaves = {
            name: torch.where(_like(rewarded if name == "value" else counted, values), values, values + 1.5)
            for name, values in self.leaves.items()
        }
        old = self.records["logprobs"]
        records = {**self.records, "logprobs": torch.where(counted.view(old.shape), old, old - 1.5)}
        advantages = torch.where(mask, self.batch.advantages, 3.0)
        return replace(self, batch=replace(self.batch, advantages=advantages), leaves=leaves, records=records)


def tensors(seen: Forward) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors of a forward pass that all terms share, by name: none may change them."""
    yield from (("new", seen.new), ("old", seen.old))
    for name in ("mask", "weights", "advantages", "positive", "drift", "value_targets", "proximal"):
        if (values := getattr(seen.batch, name)) is not None:
            yield f"batch.{name}", values
    yield from ((f"records['{name}']", values) for name, values in seen.records.items())


def _like(mask: Tensor, values: Tensor) -> Tensor:
    """``mask`` [n, M] for values [n, M, …], where they have as many elements."""
    if mask.shape != values.shape[:2]:
        return torch.ones_like(values, dtype=torch.bool)
    return mask.view(*mask.shape, *[1] * (values.dim() - 2)).expand_as(values)


def usual_setup() -> Setup:
    """Makes the set-up of a small policy of action tokens with a value head: four actions of three numbers."""
    shape = (4, 3)
    decision = {
        "actions": ArraySpec(shape, "float32"), "action_tokens": ArraySpec(shape, "int32"),
        "logprobs": ArraySpec(shape, "float32"), "value": ArraySpec((1,), "float32"),
    }  # fmt: skip
    spec = PolicySpec(
        4, decision, Elements(shape, action_axis=0), Noise(shape), {"action_tokens": 8}, distribution=True
    )
    return Setup(spec, AlgorithmConfig(), 16, Coefficient(0.1))


def make_case(setup: Setup, needs: frozenset[Need], step: float, device: torch.device, fields: Fields | None) -> Case:
    """Makes the input to try a loss term on: records whose log-probs differ from those at action time by at most
    ``step`` nats."""
    layout, spec, n = setup.layout, setup.spec, RECORDS
    counts = _counts(setup)
    inputs = made_up(layout.size, step)
    columns = torch.arange(layout.size) % inputs.old.shape[1]  # columns repeat where a text is longer than the inputs
    new, old, wave = inputs.logprobs[:, columns], inputs.old[:, columns], _wave(n, layout.size)
    leaves = {"logprobs": new, **({"entropy": 1 + 0.5 * wave} if spec.entropy else {})}
    records = {name: _field(declared, spec.categories.get(name, 2)) for name, declared in spec.decision.items()}
    records |= {"logprobs": old.reshape(n, *spec.decision["logprobs"].shape), **(fields(n) if fields else {})}
    if setup.recompute:
        records[RECORDED] = records["logprobs"].clone()
    if "value" in spec.decision:
        leaves["value"] = records["value"] + step
    if Need.DISTRIBUTION in needs:
        leaves["distribution"] = _distribution(new)
    reference = Evaluation(old + LITTLE * wave, distribution=_distribution(old) if "distribution" in leaves else None)
    batch = _batch(setup, needs, counts, old)
    return Case(
        setup, batch.part(torch.arange(n), device), {name: values.to(device) for name, values in records.items()},
        {name: values.to(device) for name, values in leaves.items()},
        _moved(reference, device) if Need.REFERENCE in needs else None,
    )  # fmt: skip


def blank_fields(policy: Policy, env: EnvSpec, count: int) -> dict[str, Tensor]:
    """Observations of zeros, and the encoded instructions of an empty text, for ``count`` records."""
    made = {name: np.zeros((count, *env.obs[name].shape), env.obs[name].dtype) for name in fields_of(env)}
    arrays = {name: torch.from_numpy(values) for name, values in made.items()}
    return arrays | dict(policy.encode_instructions([""] * count))


def _counts(setup: Setup) -> Counts:
    """Whole records, and some that end early."""
    actions, axis = setup.layout.num_actions, setup.layout.elements.length_axis
    steps = torch.tensor([actions, max(actions - 1, 1), actions, 1])
    if axis is None:
        return Counts(steps)
    longest = setup.layout.elements.shape[axis]
    return Counts(steps, torch.tensor([longest, max(longest // 2, 1), max(longest - 1, 1), 1]))


def _batch(setup: Setup, needs: frozenset[Need], counts: Counts, old: Tensor) -> OptimizerBatch:
    layout, level, ids = setup.layout, setup.algorithm.logprob_type, torch.tensor([0, 0, 1, 1])
    mask, width = layout.mask(counts, level), setup.rewards.width
    advantages = torch.tensor([1.3, -0.7, 0.0, 0.4])[:, None] * (1 + 0.1 * _wave(len(ids), width))
    return OptimizerBatch(
        counts, ids, mask, setup.weights(mask, ids, level), layout.spread(advantages, level).contiguous(),
        torch.tensor([True, True, False, False]), torch.tensor([[0.05], [0.05], [-0.1], [-0.1]]),
        0.5 + _wave(len(ids), width) if Need.VALUES in needs else None,
        old + 0.5 * LITTLE if Need.PROXIMAL in needs else None, elements=int(mask.sum()),
    )  # fmt: skip


def _field(declared: ArraySpec, categories: int) -> Tensor:
    count = RECORDS * int(torch.tensor(declared.shape).prod()) if declared.shape else RECORDS
    numbers = torch.arange(count).view(RECORDS, *declared.shape)
    if declared.dtype.startswith("float"):
        return torch.cos(1.1 * numbers).to(getattr(torch, declared.dtype))
    return (numbers % categories).to(getattr(torch, declared.dtype))


def _wave(rows: int, columns: int) -> Tensor:
    return torch.sin(0.7 * torch.arange(rows * columns).view(rows, columns) + 0.2)


def _distribution(logprobs: Tensor) -> Tensor:
    """The log-probs of all choices of each element, [n, M₀, choices]."""
    others = torch.sin(1.9 * torch.arange(logprobs.numel() * CHOICES)).view(*logprobs.shape, CHOICES)
    return (others + logprobs[..., None]).log_softmax(dim=-1)


def _moved(result: Evaluation, device: torch.device) -> Evaluation:
    distribution = result.distribution
    assert not isinstance(distribution, Gaussian), "made-up ones are of choices"
    return Evaluation(
        result.logprobs.to(device), distribution=None if distribution is None else distribution.to(device)
    )
