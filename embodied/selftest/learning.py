"""What policies of the self-test decide and learn, and how far two of them lie apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from embodied.learn.step.engine import StepEngine
from embodied.learn.watch import unwatched
from embodied.parallel.sharding import Parallel
from embodied.selftest.policies import BuiltPolicy, Question, to_device
from embodied.types import Evaluation, PolicySpec


@dataclass(frozen=True)
class LearnedStep:
    """Results of one optimizer step, copied to the CPU: loss, gradients, weights, log-probs afterwards."""

    loss: float
    gradients: Mapping[str, Tensor]  # unclipped
    weights: Mapping[str, Tensor]  # trained ones, after the step
    after: Evaluation  # evaluates the same records after the step


def decide(built: BuiltPolicy, question: Question) -> dict[str, Tensor]:
    """Has the policy act on observations, on its device; returns the decision on the CPU."""
    here = question.on(built.device)
    with torch.inference_mode():
        fields = built.policy.act(here.obs, here.noise, built.drawn).fields
    return {name: values.cpu().clone() for name, values in fields.items()}


def evaluate(built: BuiltPolicy, records: Mapping[str, Tensor]) -> Evaluation:
    """Evaluates records on the policy's device, without gradients; returns the result on the CPU."""
    with torch.no_grad():
        found = built.policy.evaluate(to_device(records, built.device), built.drawn)
    return _on_cpu(found)


def learn(built: BuiltPolicy, records: Mapping[str, Tensor], engine: StepEngine | None = None) -> LearnedStep:
    """Makes one optimizer step on records (:func:`step`), and copies what it computed.

    Args:
        engine: whose step it is, for several steps; None = a new one.
    """
    gradients = dict[str, Tensor]()

    def look() -> bool:
        for name, parameter in built.policy.named_parameters():
            if parameter.grad is not None:
                gradients[name] = _whole(parameter.grad).clone()
        return True

    loss = step(built, to_device(records, built.device), engine or engine_of(built), look)
    return LearnedStep(loss, gradients, trained(built), evaluate(built, records))


def trained(built: BuiltPolicy) -> dict[str, Tensor]:
    """Copies the trained weights to the CPU, by name."""
    return {n: _whole(p.detach()).clone() for n, p in built.policy.named_parameters() if p.requires_grad}


def step(
    built: BuiltPolicy, records: Mapping[str, Tensor], engine: StepEngine,
    before_step: Callable[[], bool] = lambda: True,
) -> float:  # fmt: skip
    """Makes one optimizer step on records, in one pass, with numbers from −1 to 1 as advantages; returns the loss.

    Args:
        before_step: called when the gradients are there, before they are clipped.
    """
    here, rows = to_device(records, built.device), len(records["logprobs"])
    used = counted(built.policy.spec, here)
    advantages = torch.linspace(-1, 1, rows + 1, device=built.device)[1:]

    def backward(part: Tensor) -> float:
        found = built.policy.evaluate(here, built.drawn)
        loss = -(advantages[:, None] * found.logprobs.flatten(1) * used).sum() / used.sum()
        if found.value is not None:
            loss = loss + found.value.square().mean()
        loss.backward()
        return loss.item()

    with unwatched("update", rows) as passed:
        return engine.take([torch.arange(rows)], passed, backward, before_clip=before_step).loss


def engine_of(built: BuiltPolicy, parallel: Parallel | None = None) -> StepEngine:
    """Makes the optimizer-step engine that a training run would use."""
    return StepEngine(built.policy, built.config.actor, parallel, iterations=10, max_bad_updates=1)


def counted(spec: PolicySpec, records: Mapping[str, Tensor]) -> Tensor:
    """Marks the log-probs of records that count, bool [B, n]: of texts those up to their length."""
    logprobs = records["logprobs"].flatten(1)
    if spec.elements.length_axis is None:
        return torch.ones_like(logprobs, dtype=torch.bool)
    return torch.arange(logprobs.shape[1], device=logprobs.device) < records["length"][:, None]


def tokens_of(spec: PolicySpec, fields: Mapping[str, Tensor]) -> Tensor:
    """Returns the tokens of decisions, int [B, n]."""
    return fields["action_tokens" if spec.elements.length_axis is None else "tokens"].flatten(1)


def same_so_far(spec: PolicySpec, first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> Tensor:
    """Marks tokens that two decisions share, bool [B, n]; of texts those before the first that differs, since what
    comes behind answers something else."""
    same = tokens_of(spec, first) == tokens_of(spec, second)
    if spec.elements.length_axis is None:
        return same
    return (same.cumprod(1) > 0) & counted(spec, first) & counted(spec, second)


def other_decisions(spec: PolicySpec, first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> tuple[int, int]:
    """Counts differing decisions of two answers to the same observations, and all: tokens of robots; texts whose tokens
    differ anywhere.

    Returns:
        how many, and of how many.
    """
    differ = tokens_of(spec, first) != tokens_of(spec, second)
    if spec.elements.length_axis is not None:
        differ = differ.any(1) | (first["length"] != second["length"])
    return int(differ.sum()), differ.numel()


def largest(first: Tensor, second: Tensor, where: Tensor | None = None) -> float:
    """Computes the largest absolute difference of two tensors; NaN if there is one anywhere."""
    gap = (first.double() - second.double()).abs().flatten(1 if where is not None else 0)
    gap = gap if where is None else gap[where]
    return float(gap.max()) if gap.numel() else float("nan")


def rms(first: Tensor, second: Tensor, where: Tensor) -> float:
    """Computes the root mean square of two tensors' differences."""
    gap = (first.double() - second.double()).flatten(1)[where]
    return float(gap.square().mean().sqrt())


def relative(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    """Computes the 2-norm of two sets' difference over that of ``second``; NaN if the names are not the same."""
    if first.keys() != second.keys():
        return float("nan")
    apart = sum(float((first[name].double() - second[name].double()).square().sum()) for name in second)
    whole = sum(float(values.double().square().sum()) for values in second.values())
    return (apart / whole) ** 0.5 if whole else float("nan")


def unequal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> int:
    """Counts the tensors that differ in a bit between two sets, or that one of them lacks."""
    names = first.keys() | second.keys()
    return sum(name not in first or name not in second or not same_bits(first[name], second[name]) for name in names)


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Returns whether two tensors have the same type, shape and bits; those of NaN count, too."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return torch.equal(*(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in (first, second)))


def fields_of(evaluation: Evaluation) -> dict[str, Tensor]:
    """Returns the tensors of a policy's evaluation by name: log-probs, entropy, value."""
    named = {"logprobs": evaluation.logprobs, "entropy": evaluation.entropy, "value": evaluation.value}
    return {name: values for name, values in named.items() if values is not None}


def _on_cpu(found: Evaluation) -> Evaluation:
    value = None if found.value is None else found.value.cpu()
    entropy = None if found.entropy is None else found.entropy.cpu()
    return Evaluation(found.logprobs.cpu(), entropy, value)


def _whole(tensor: Tensor) -> Tensor:
    """Returns a tensor on the CPU; of a shard all of it."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu()
