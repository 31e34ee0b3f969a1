"""Calls a policy loss on made-up log-probs and compares what it gives with the protocol.

A loss that averages over its batch, or forgets a gradient, trains with wrong gradients and without a word: the numbers
are spread over the elements by broadcasting, and the loss curve looks like any other.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied.algorithms.conformance.blame import blame
from embodied.algorithms.importance import sequence_level
from embodied.algorithms.policy_loss import Anchor, Loss, PolicyLoss
from embodied.errors import ConfigError, EmbodiedError

RECORDS = 4  # N of the made-up batch
MOST_ELEMENTS = 512  # of a record; a text may have more, and an element is like any other
TOLERANCE = 1e-4
FIELDS = "PolicyLoss(per_token, ratio, clipped)"


@dataclass(frozen=True)
class Inputs:
    """Log-probs now and of the old policy, and advantages: float32 [N, M] each."""

    logprobs: Tensor
    old: Tensor
    advantages: Tensor

    def part(self, rows: slice, elements: slice) -> Inputs:
        return Inputs(*(t[rows, elements] for t in (self.logprobs, self.old, self.advantages)))


def check_loss(
    loss: Loss, elements: int = 6, name: str = "the loss", device: torch.device | str = "cpu"
) -> None:  # fmt: skip
    """Check that a policy loss keeps to :class:`embodied.algorithms.policy_loss.Loss`.

    It is called on a copy of ``loss`` and a few made-up records: log-probs that are those of the old policy, and others
    that differ. Checks: it gives a ``PolicyLoss`` of [N, M]; its numbers and gradients are finite; the loss depends on
    the log-probs; a record's loss does not depend on other records, nor on elements that do not count; it does not
    change its inputs. Random generators are left as they are.

    Args:
        elements: M, elements of a record.
        name: of the loss, for errors.
        device: on which it is called.

    Raises:
        ConfigError: what was got and expected, with the line of the loss where it has raised.
    """
    with _random_state_kept():
        check = _Check(_copied(loss), name, torch.device(device))
        check.anchor()
        for inputs in (_made_up(elements, False), _made_up(elements, True)):
            check.result(inputs)
        check.gradients(elements)
        check.records_alone(_made_up(elements, True))
        check.padding(elements)
        if loss.anchor is Anchor.PROXIMAL:
            check.importance(_made_up(elements, True))


class _Check:
    def __init__(self, loss: Any, name: str, device: torch.device) -> None:
        self._loss, self._name, self._device = loss, name, device

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
        for inputs in (_made_up(elements, False), _made_up(elements, True)):
            leaf = inputs.logprobs.to(self._device).requires_grad_()
            per_token = self._call(Inputs(leaf.clone(), inputs.old, inputs.advantages)).per_token
            (grad,) = torch.autograd.grad(per_token.sum(), leaf, allow_unused=True)
            if grad is None:
                break
            if not bool(grad.isfinite().all()):
                raise self._wrong(
                    f"has a gradient that is not finite {_where(inputs)}", "finite gradients",
                    "look for a root, a logarithm or a quotient at 0, and for torch.where around what is not finite",
                )  # fmt: skip
            moved |= bool(grad.any())
        if not moved:
            raise self._wrong(
                "does not depend on logprobs: its gradient is 0 everywhere", "a gradient where an advantage is not 0",
                "compute per_token from logprobs, not from a detached ratio alone",
            )  # fmt: skip

    def records_alone(self, inputs: Inputs) -> None:
        """The loss of a record is the same whatever else is in the batch, and so is its gradient."""
        whole, everything = self._call(inputs).per_token.detach(), slice(None)
        for row in range(RECORDS):
            part = self._call(inputs.part(slice(row, row + 1), everything)).per_token.detach()
            if not torch.allclose(part, whole[row : row + 1], atol=TOLERANCE, rtol=TOLERANCE):
                raise self._mixes()
        leaf = inputs.logprobs.to(self._device).requires_grad_()
        per_token = self._call(Inputs(leaf.clone(), inputs.old, inputs.advantages)).per_token
        (grad,) = torch.autograd.grad(per_token[0].sum(), leaf, allow_unused=True)
        if grad is not None and bool(grad[1:].any()):
            raise self._mixes()

    def padding(self, elements: int) -> None:
        """Elements that do not count, behind those of a record, change nothing. All of their values are 0."""
        if elements < 2:
            return
        inputs, half = _made_up(elements, True), (min(elements, MOST_ELEMENTS) + 1) // 2
        for values in (inputs.logprobs, inputs.old, inputs.advantages):
            values[:, half:] = 0
        whole = self._call(inputs).per_token.detach()
        try:
            alone = self._call(inputs.part(slice(None), slice(half))).per_token.detach()
        except ConfigError:  # it is made for this number of elements
            return
        if not torch.allclose(alone, whole[:, :half], atol=TOLERANCE, rtol=TOLERANCE):
            raise self._wrong(
                "changes with the number of elements behind a record that do not count", "a loss of each element",
                "leave out means over elements: algorithm.loss_agg_func weighs them and knows which count "
                "(a sum is not changed by them, as they are 0)",
            )  # fmt: skip

    def importance(self, inputs: Inputs) -> None:
        """Shape and numbers of the importance weights."""
        proximal, acting = inputs.logprobs.to(self._device), inputs.old.to(self._device)
        weights = self._guarded(lambda: self._loss.importance(proximal, acting))
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

    def _call(self, inputs: Inputs) -> PolicyLoss:
        logprobs = inputs.logprobs.to(self._device)
        if not logprobs.requires_grad:
            logprobs = logprobs.clone().requires_grad_().clone()
        old, advantages = inputs.old.to(self._device), inputs.advantages.to(self._device)
        if self._loss.anchor is Anchor.SEQUENCE:
            old = sequence_level(logprobs, (logprobs.detach() - old)[:, :1])
        found = self._guarded(lambda: self._loss(logprobs, old, advantages))
        if not isinstance(found, PolicyLoss):
            fix = "give PolicyLoss(*result)" if isinstance(found, tuple) else f"give {FIELDS}, each [N, M]"
            raise self._wrong(f"gives a {type(found).__name__}", FIELDS, fix)
        return found

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except EmbodiedError:
            raise
        except Exception as error:
            place = blame(error, type(self._loss))
            raise ConfigError(
                f"{self._name} raises {type(error).__name__}: {error} ({place})",
                "mend that line; all tensors are float32 [N, M], and logprobs need a gradient "
                "(docs/how_to/add_a_loss.md)",
            ) from error

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
        if found.dtype != dtype:
            kind = str(dtype).removeprefix("torch.")
            shown = str(found.dtype).removeprefix("torch.")
            raise self._wrong(f"gives {what} as {shown}", kind, f"write {what}.to(torch.{kind})")

    def _finite(self, found: Tensor, what: str, inputs: Inputs) -> None:
        if not bool(found.isfinite().all()):
            bad = int((~found.isfinite()).sum())
            raise self._wrong(
                f"gives {what} with {bad} of {found.numel()} numbers that are not finite {_where(inputs)}",
                "finite numbers", "look for a root, a logarithm or a quotient at 0",
            )  # fmt: skip

    def _mixes(self) -> ConfigError:
        return self._wrong(
            "gives a record another loss when other records are in the batch",
            "a loss that depends on the record alone: a batch is computed in parts",
            "leave out means, sums and deviations over the first axis: algorithm.loss_agg_func adds records up, and "
            "algorithm.adv_type and algorithm.normalize_advantages compare them",
        )

    def _wrong(self, got: str, expected: str, fix: str) -> ConfigError:
        return ConfigError(f"{self._name} {got}, expected {expected}", f"{fix} (docs/how_to/add_a_loss.md)")


def _made_up(elements: int, moved: bool) -> Inputs:
    """Advantages of both signs and 0, and log-probs.

    Args:
        moved: the log-probs differ from the old ones, by at most 0.1 nats; else all ratios are 1.
    """
    count = min(elements, MOST_ELEMENTS)
    steps = torch.arange(RECORDS * count, dtype=torch.float32).view(RECORDS, count)
    old = -0.2 - 1.5 * torch.sin(steps).abs()
    step = 0.1 * torch.cos(2.3 * steps) * torch.where(steps % 3 == 0, 0.1, 1.0)
    advantages = torch.where(steps % 5 == 4, 0.0, torch.cos(1.7 * steps + 0.3))
    return Inputs(old + step if moved else old.clone(), old, advantages)


def _values(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    return inputs.logprobs.detach(), inputs.old, inputs.advantages


def _where(inputs: Inputs) -> str:
    return "where all ratios are 1" if torch.equal(inputs.logprobs, inputs.old) else "at ratios between 0.9 and 1.11"


def _copied(loss: Any) -> Any:
    """A loss may count its calls, and these are none of the run's."""
    try:
        return copy.deepcopy(loss)
    except (TypeError, ValueError, RuntimeError, AttributeError):  # what cannot be copied, say a handle of a file
        return loss


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """A loss may draw numbers; the run's stay the same."""
    python, arrays = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=list(devices)):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(arrays)
