"""Calls a policy loss on made-up log-probs and compares what it gives with the protocol.

A loss that averages over its batch, or forgets a gradient, trains with wrong gradients and without a word: the numbers
are spread over the elements by broadcasting, and the loss curve looks like any other.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from embodied.algorithms.conformance.blame import Check
from embodied.algorithms.conformance.inputs import LITTLE, MOST_ELEMENTS, RECORDS, STEPS, Inputs, made_up, ratio_range
from embodied.algorithms.conformance.isolation import isolated_copy, one_line, random_state_kept, seed_all
from embodied.algorithms.importance import sequence_level
from embodied.algorithms.policy_loss import Anchor, Loss, PolicyLoss
from embodied.errors import ConfigError

TOLERANCE = 1e-4
FIELDS = "PolicyLoss(per_token, ratio, clipped)"
ORDER = ("logprobs", "old_logprobs", "advantages")
CALL = f"__call__(self, {', '.join(ORDER)})"
REPEATS = 4


def check_loss(
    loss: Loss, elements: int = 6, name: str = "the loss", device: torch.device | str = "cpu"
) -> None:  # fmt: skip
    """Check that a policy loss keeps to :class:`embodied.algorithms.policy_loss.Loss`.

    Copies of ``loss`` are called on a few made-up records: log-probs that are those of the old policy, and others that
    differ little or much. Checks: it gives a ``PolicyLoss`` of [N, M]; its numbers and gradients are finite; the loss
    depends on the log-probs; a record's loss does not depend on other records, nor on elements that do not count; it
    does not change its inputs. Of a loss that differs from call to call (it draws numbers, or counts calls in its
    class) the gradients alone say whether records are mixed. Random generators are left as they are.

    Args:
        elements: M, elements of a record.
        name: of the loss, for errors.
        device: on which it is called.

    Raises:
        ConfigError: what was got and expected, with the line of the loss where it has raised.
    """
    with random_state_kept(), torch.enable_grad():
        check = _Check(loss, name, torch.device(device))
        check.anchor()
        check.parameters()
        for step in STEPS:
            check.result(made_up(elements, step))
        check.gradients(elements)
        check.records_alone(made_up(elements, LITTLE))
        check.padding(elements)
        if loss.anchor is Anchor.PROXIMAL:
            check.importance(made_up(elements, LITTLE))


class _Check(Check):
    likely = "all tensors are float32 [N, M], and logprobs need a gradient"

    def __init__(self, loss: Any, name: str, device: torch.device) -> None:
        super().__init__(loss, name)
        self._loss, self._device = loss, device

    def anchor(self) -> None:
        if not isinstance(self._loss.anchor, Anchor):
            raise self._wrong(
                f"has the anchor {self._loss.anchor!r}", "a member of embodied.algorithms.policy_loss.Anchor",
                "anchor: ClassVar[Anchor] = Anchor.ACTING",
            )  # fmt: skip
        if self._loss.anchor is Anchor.PROXIMAL and not callable(getattr(self._loss, "importance", None)):
            raise self._wrong(
                "has Anchor.PROXIMAL and no method importance", "importance(proximal, acting) -> Tensor [N, M]",
                "write the method (see losses/tis.py), or choose Anchor.ACTING",
            )  # fmt: skip

    def parameters(self) -> None:
        """The tensors are given in the order of the protocol, whatever the parameters are called."""
        try:
            given = list(inspect.signature(self._loss).parameters.values())
        except (TypeError, ValueError):  # it is no code of Python
            return
        if named := [one.name for one in given if one.kind is one.KEYWORD_ONLY and one.default is one.empty]:
            raise self._wrong(f"takes {', '.join(named)} by keyword alone", f"{CALL}, by place", f"write def {CALL}")
        for place, one in enumerate(given):
            if one.name in ORDER and ORDER.index(one.name) != place:
                raise self._wrong(f"has {one.name} as parameter {place + 1}", CALL, f"write def {CALL}")

    def result(self, inputs: Inputs) -> None:
        """Type, shape, number format and numbers of what is given."""
        found = self._called(inputs)
        self._tensor(found.per_token, "per_token", inputs, torch.float32)
        self._tensor(found.ratio, "ratio", inputs, torch.float32)
        self._tensor(found.clipped, "clipped", inputs, torch.bool)
        if not found.per_token.requires_grad:
            raise self._wrong(
                "gives a per_token without gradient", "one that depends on logprobs",
                "leave out .detach(), .item(), torch.no_grad and numpy between logprobs and per_token",
            )  # fmt: skip
        if found.ratio.requires_grad:
            raise self._wrong("gives a ratio with a gradient", "a detached one", "give ratio.detach()")
        self._finite(found.per_token, "per_token", inputs)
        self._finite(found.ratio, "ratio", inputs)

    def gradients(self, elements: int) -> None:
        """Gradients are finite, and not zero everywhere."""
        moved = False
        for inputs in (made_up(elements, step) for step in STEPS):
            grad = self._gradient(inputs, slice(None))
            if grad is None:
                break
            if not bool(grad.isfinite().all()):
                raise self._wrong(
                    f"has a gradient that is not finite {ratio_range(inputs)}", "finite gradients",
                    "look for a root, a logarithm or a quotient at 0, and for torch.where around what is not finite",
                )  # fmt: skip
            moved |= bool(grad.any())
        if not moved and not self._moves_later(elements):
            raise self._wrong(
                "does not depend on logprobs: its gradient is 0 everywhere", "a gradient where an advantage is not 0",
                "compute per_token from logprobs, not from a detached ratio alone",
            )  # fmt: skip

    def _moves_later(self, elements: int) -> bool:
        """Whether the second call has a gradient, as where the loss is faded in."""
        grads = []
        for inputs in (made_up(elements, step) for step in STEPS):
            used = isolated_copy(self._loss)
            for _ in range(2):
                grads.append(self._gradient(inputs, slice(None), used))
        return any(grad is not None and bool(grad.any()) for grad in grads)

    def records_alone(self, inputs: Inputs) -> None:
        """The loss of a record is the same whatever else is in the batch, and so is its gradient."""
        whole, everything = self._call(inputs).per_token.detach(), slice(None)
        for row in range(RECORDS):
            part = self._call(inputs.part(slice(row, row + 1), everything)).per_token.detach()
            if not _close(part, whole[row : row + 1]) and self._repeats(inputs, whole):
                raise self._mixes()
        grad = self._gradient(inputs, slice(1))
        if grad is not None and bool(grad[1:].any()):
            raise self._mixes()

    def padding(self, elements: int) -> None:
        """Elements that do not count, behind those of a record, change nothing. All of their values are 0."""
        if elements < 2:
            return
        inputs, half = made_up(elements, LITTLE), (min(elements, MOST_ELEMENTS) + 1) // 2
        for values in (inputs.logprobs, inputs.old, inputs.advantages):
            values[:, half:] = 0
        whole = self._call(inputs).per_token.detach()
        try:
            alone = self._call(inputs.part(slice(None), slice(half))).per_token.detach()
        except ConfigError:  # it is made for this number of elements
            return
        if not _close(alone, whole[:, :half]) and self._repeats(inputs, whole):
            raise self._wrong(
                "changes with the number of elements behind a record that do not count", "a loss of each element",
                "leave out means over elements: algorithm.loss_agg_func weighs them and knows which count "
                "(a sum is not changed by them, as they are 0)",
            )  # fmt: skip

    def importance(self, inputs: Inputs) -> None:
        """Shape and numbers of the importance weights."""
        proximal, acting = inputs.logprobs.to(self._device), inputs.old.to(self._device)
        weights = self._guarded(lambda: isolated_copy(self._loss).importance(proximal, acting))
        self._tensor(weights, "importance()", inputs, torch.float32)
        self._finite(weights, "importance()", inputs)

    def _called(self, inputs: Inputs) -> PolicyLoss:
        """As :meth:`_call`; finds inputs that were changed."""
        given = Inputs(*(t.to(self._device).clone() for t in (inputs.logprobs, inputs.old, inputs.advantages)))
        given.logprobs.requires_grad_()
        handed = Inputs(given.logprobs.clone(), given.old.clone(), given.advantages.clone())
        found = self._call(handed)
        for name, before, after in zip(Inputs.__dataclass_fields__, _values(given), _values(handed), strict=True):
            if not torch.equal(before, after):
                raise self._wrong(
                    f"changes its input {name} in place", "inputs that stay as they are",
                    "write x = x.clone() first, or leave out methods whose names end in _ and assignments to parts",
                )  # fmt: skip
        return found

    def _repeats(self, inputs: Inputs, found: Tensor) -> bool:
        """Whether equal calls give again what was ``found``. One could do so by chance, where few numbers are drawn."""
        return all(_close(found, self._call(inputs, seed).per_token.detach()) for seed in range(1, 1 + REPEATS))

    def _gradient(self, inputs: Inputs, rows: slice, loss: Any = None) -> Tensor | None:
        """Gradient [N, M] of the loss of some rows; None if it does not depend on the log-probs."""
        leaf = inputs.logprobs.to(self._device).requires_grad_()
        per_token = self._call(Inputs(leaf.clone(), inputs.old, inputs.advantages), loss=loss).per_token
        try:
            (grad,) = torch.autograd.grad(per_token[rows].sum(), leaf, allow_unused=True)
        except RuntimeError as error:
            raise self._wrong(
                f"gives a per_token that cannot be differentiated ({one_line(error)})", "one that depends on logprobs",
                "leave out .backward(), torch.autograd.grad and in-place changes of what per_token is computed from",
            ) from error  # fmt: skip
        return grad

    def _call(self, inputs: Inputs, seed: int = 0, loss: Any = None) -> PolicyLoss:
        """Calls ``loss``, else a copy of its own, as a loss may count its calls. Numbers are drawn from ``seed``."""
        logprobs = inputs.logprobs.to(self._device)
        if not logprobs.requires_grad:
            logprobs = logprobs.clone().requires_grad_().clone()
        old, advantages = inputs.old.to(self._device), inputs.advantages.to(self._device)
        if self._loss.anchor is Anchor.SEQUENCE:
            old = sequence_level(logprobs, (logprobs.detach() - old)[:, :1])
        called = isolated_copy(self._loss) if loss is None else loss
        seed_all(seed)
        found = self._guarded(lambda: called(logprobs, old, advantages))
        if not isinstance(found, PolicyLoss):
            fix = "give PolicyLoss(*result)" if _is_three(found) else f"give {FIELDS} alone, each [N, M]"
            raise self._wrong(f"gives a {type(found).__name__}", FIELDS, fix)
        return found

    def _tensor(self, found: Any, what: str, inputs: Inputs, dtype: torch.dtype) -> None:
        wanted = list(inputs.logprobs.shape)
        if not isinstance(found, Tensor):
            raise self._wrong(
                f"gives a {type(found).__name__} as {what}", f"a tensor {wanted}",
                "compute with torch alone: numbers of Python and arrays of numpy have no gradient",
            )  # fmt: skip
        if list(found.shape) != wanted:
            raise self._wrong(
                f"gives {what} of shape {list(found.shape)}", f"{wanted}, one number an element",
                "leave out .mean() and .sum(): algorithm.loss_agg_func adds the elements up",
            )  # fmt: skip
        if found.layout != torch.strided or found.device.type != self._device.type:
            raise self._wrong(
                f"gives {what} as {found.layout} on {found.device}", f"a dense tensor on {self._device}",
                "leave out .to_sparse(), and make tensors on logprobs.device",
            )  # fmt: skip
        if found.dtype != dtype:
            kind = str(dtype).removeprefix("torch.")
            shown = str(found.dtype).removeprefix("torch.")
            raise self._wrong(f"gives {what} as {shown}", kind, f"write {what}.to(torch.{kind})")

    def _finite(self, found: Tensor, what: str, inputs: Inputs) -> None:
        if not bool(found.isfinite().all()):
            bad = int((~found.isfinite()).sum())
            raise self._wrong(
                f"gives {what} with {bad} of {found.numel()} numbers that are not finite {ratio_range(inputs)}",
                "finite numbers", "look for a root, a logarithm or a quotient at 0",
            )  # fmt: skip

    def _mixes(self) -> ConfigError:
        return self._wrong(
            "gives a record another loss when other records are in the batch",
            "a loss that depends on the record alone: a batch is computed in parts",
            "leave out means, sums and deviations over the first axis: algorithm.loss_agg_func adds records up, and "
            "algorithm.adv_type and algorithm.normalize_advantages compare them",
        )


def _values(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    return inputs.logprobs.detach(), inputs.old, inputs.advantages


def _close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, atol=TOLERANCE, rtol=TOLERANCE)


def _is_three(found: Any) -> bool:
    return isinstance(found, tuple) and len(found) == 3 and all(isinstance(one, Tensor) for one in found)
