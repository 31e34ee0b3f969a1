"""Calls a term of the loss on made-up records and compares what it gives with the protocol.

A term that averages over its records, counts what was not executed or forgets a gradient trains with wrong gradients
and without a word; a metric without a row would end the run after its first update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from embodied.algorithms.conformance.blame import Check
from embodied.algorithms.conformance.inputs import LITTLE, MUCH, STEPS
from embodied.algorithms.conformance.isolation import isolated_copy, one_line, random_state_kept, seed_all
from embodied.learn.terms.conformance.records import Case, Fields, make_case, tensors, usual_setup
from embodied.learn.terms.custom import check_members, check_needs
from embodied.learn.terms.measured import DECLARE, names_of, rows_of
from embodied.learn.terms.term import Forward, Setup, Share, Term

TOLERANCE = 1e-4
STEEPNESS = 0.03  # relative difference of slopes that curvature may make
DISTANCES = (1e-2, 3e-3)  # over which a slope is measured: a kink disturbs it over one of them alone
REPEATS = 3
ALL_RECORDS = "write torch.ones(len(batch), dtype=torch.bool)"
ADD_UP = "multiply with weights, which hold the denominators of the whole batch, and leave out means over records"


def check_term(
    term: Term, setup: Setup | None = None, name: str = "the term", device: torch.device | str = "cpu",
    fields: Fields | None = None,
) -> None:  # fmt: skip
    """Check that a term keeps to :class:`embodied.learn.terms.term.Term`.

    Copies of ``term`` are called on a few made-up records. Checks: each metric that it measures is declared and has a
    row of its own; weights are float32 [n, …]; its share is a finite number with finite gradients, which agree with
    numeric ones unless it says ``surrogate = True``; the shares of parts add up to that of the whole; what was not
    executed changes nothing; records that it leaves out get no gradient; it does not change what it is given. Random
    generators are left as they are.

    Args:
        setup: policy and configuration of the run; None = those of a small policy with action tokens and a value head.
        name: of the term, for errors.
        device: on which it is called.
        fields: makes observations and encoded instructions of n records, for terms that read them.

    Raises:
        ConfigError: what was got and expected, with the line of the term where it has raised.
    """
    setup = setup or usual_setup()
    check_members(term, name)
    check_needs(term, name, setup)
    rows_of({name: term})
    with random_state_kept(), torch.enable_grad():
        check = _Check(term, name, setup, torch.device(device), fields)
        cases = [check.case(step) for step in STEPS]
        for case in cases:
            check.share(case)
        check.gradients(cases)
        for case in (check.case(LITTLE), check.case(MUCH)):
            check.slopes(case)
            check.parts(case)
            check.uncounted(case)


class _Check(Check):
    likely = "what is None there must be named in needs"

    def __init__(self, term: Any, name: str, setup: Setup, device: torch.device, fields: Fields | None) -> None:
        super().__init__(term, name)
        self._term, self._setup, self._device, self._fields = term, setup, device, fields

    def case(self, step: float) -> Case:
        """Made-up records, with the weights that the term gives them."""
        made = make_case(self._setup, self._term.needs, step, self._device, self._fields)
        return self._weighted(made)

    def _weighted(self, case: Case) -> Case:
        n = len(case.batch)
        weights = self._guarded(lambda: isolated_copy(self._term).weights(case.batch))
        if not isinstance(weights, Tensor) or weights.dtype != torch.float32 or weights.shape[:1] != (n,):
            raise self._wrong(f"gives weights {_shown(weights)}", f"float32 [{n}, …]", "give batch.weights")
        if not bool(weights.isfinite().all()):
            raise self._wrong("gives weights that are not finite", "finite numbers", "look for a quotient at 0")
        return replace(case, batch=replace(case.batch, of_terms=(weights,)))

    def share(self, case: Case) -> None:
        """A share has the right type, shape and finite numbers; its inputs are unchanged."""
        seen = case.forward(_leaves(case))
        before = [(name, values.detach().clone()) for name, values in tensors(seen)]
        share = self._call(seen)
        for (name, old), (_, new) in zip(before, tensors(seen), strict=True):
            if not torch.equal(old, new):
                raise self._wrong(
                    f"changes {name} in place", "inputs that stay as they are", "write x = x.clone() first"
                )
        self._loss(share)
        self._measured(share)

    def _loss(self, share: Share) -> None:
        loss = share.loss
        if loss is None:
            return
        if not isinstance(loss, Tensor) or loss.shape != () or loss.dtype != torch.float32:
            raise self._wrong(f"gives a loss {_shown(loss)}", "float32 []", "write (loss * weights).sum()")
        if not bool(loss.isfinite()):
            raise self._wrong(
                f"gives the loss {loss.item()}", "a finite number", "look for a logarithm or quotient at 0"
            )
        if not loss.requires_grad:
            raise self._wrong(
                "gives a loss without gradient", "one that depends on seen.new or seen.result",
                "leave out .detach(), .item() and numpy; a term that only measures gives Share(None, …)",
            )  # fmt: skip

    def _measured(self, share: Share) -> None:
        """Metrics have declared names and the right shapes."""
        kinds = {"means": (share.means, (2,)), "largest": (share.largest, ()), "per_batch": (share.per_batch, ())}
        for kind, (values, shape) in kinds.items():
            for name, value in values.items():
                if not isinstance(value, Tensor) or value.shape != shape or value.requires_grad:
                    fix = "give sum_and_count(values, seen.batch.mask)" if kind == "means" else "give value.detach()"
                    raise self._wrong(f"gives {name} in {kind} as {_shown(value)}", f"a detached {list(shape)}", fix)
        stats = [] if share.stats is None else [*share.stats.metrics()]
        names = [*share.means, *share.largest, *share.per_batch, *stats]
        if unknown := [name for name in names if name not in names_of(self._term)]:
            raise self._wrong(
                f"measures {unknown[0]}, which it does not declare", "a metric of its class's metrics", f"add {DECLARE}"
            )

    def gradients(self, cases: list[Case]) -> None:
        """Gradients are finite, 0 for records that are left out, and not 0 everywhere."""
        moved, measures = False, True
        for case in cases:
            grads = self._gradients(case)
            if grads is None:
                continue
            measures = False
            kept = self._kept(case)
            for grad in grads.values():
                self._gradient(grad, kept)
                moved |= bool(grad.any())
        if not moved and not measures:
            raise self._wrong(
                "has a gradient of 0 everywhere", "one that is not", "compute the loss from seen.new or seen.result"
            )

    def _kept(self, case: Case) -> Tensor:
        """The records that get a gradient, as the term says it: bool [n]."""
        batch, n = case.batch, len(case.batch)
        kept = self._guarded(lambda: isolated_copy(self._term).carries_gradient(batch, *batch.of_terms))
        if not isinstance(kept, Tensor) or kept.dtype != torch.bool or kept.shape != (n,):
            raise self._wrong(f"gives carries_gradient() {_shown(kept)}", f"bool [{n}]", ALL_RECORDS)
        return kept

    def _gradient(self, grad: Tensor, kept: Tensor) -> None:
        if not bool(grad.isfinite().all()):
            raise self._wrong("has a gradient that is not finite", "finite ones", "look for a root or quotient at 0")
        if bool(grad[~kept].any()):
            raise self._wrong(
                "gives a gradient to records for which carries_gradient() is False", "none: they are left out",
                ALL_RECORDS,
            )  # fmt: skip

    def slopes(self, case: Case) -> None:
        """The gradient is that of the value, in a direction for each record."""
        grads = self._gradients(case)
        if grads is None or getattr(self._term, "surrogate", False):
            return
        for row in range(len(case.batch)):
            directions = {name: _direction(values, row) for name, values in case.leaves.items()}
            expected = sum(float((grads[name] * directions[name]).sum()) for name in grads)
            slopes = [self._slope(case, directions, distance) for distance in DISTANCES]
            if not any(_agree(expected, slope, distance) for slope, distance in zip(slopes, DISTANCES, strict=True)):
                raise self._wrong(
                    f"has the slope {slopes[-1]:.4g} by its values and {expected:.4g} by its gradient", "equal ones",
                    "leave out .detach() and torch.no_grad on the way from seen.new to the loss; if a factor is "
                    "detached on purpose, write surrogate = True in the class",
                )  # fmt: skip

    def _slope(self, case: Case, directions: Mapping[str, Tensor], distance: float) -> float:
        ends = []
        for way in (distance, -distance):
            moved = {name: values + way * directions[name] for name, values in case.leaves.items()}
            ends.append(self._value(case, moved))
        return (ends[0] - ends[1]) / (2 * distance)

    def parts(self, case: Case) -> None:
        """The shares of single records add up to that of all."""
        whole = self._called(case, _leaves(case))
        if not self._repeats(case, whole):  # it draws numbers
            return
        rows = [self._called(case, _leaves(case), torch.tensor([row])) for row in range(len(case.batch))]
        if whole.loss is not None:
            total = sum(0.0 if row.loss is None else row.loss.item() for row in rows)
            self._added(total, whole.loss.item(), "the loss")
        for name, value in whole.means.items():
            self._added(sum(float(row.means[name][0]) for row in rows if name in row.means), float(value[0]), name)

    def _added(self, parts: float, whole: float, what: str) -> None:
        if abs(parts - whole) > TOLERANCE * max(1.0, abs(whole)):
            raise self._wrong(
                f"gives {what} as {whole:.4g} for all records at once and {parts:.4g} for one after the other",
                "the same: a batch is computed in parts", ADD_UP,
            )  # fmt: skip

    def uncounted(self, case: Case) -> None:
        """Elements that were not executed change neither loss nor metrics."""
        share = self._called(case, _leaves(case))
        other = self._weighted(case.with_other_values())
        changed = self._called(other, _leaves(other))
        pairs = [("the loss", share.loss, changed.loss)]
        pairs += [(name, value, changed.means.get(name)) for name, value in share.means.items()]
        for what, one, two in pairs:
            if one is not None and two is not None and not torch.allclose(one, two, atol=TOLERANCE, rtol=TOLERANCE):
                raise self._wrong(
                    f"changes {what} with values of actions that were not executed", "the same, whatever stands there",
                    "use weights made of batch.mask, and sum_and_count(values, seen.batch.mask)",
                )  # fmt: skip

    def _repeats(self, case: Case, share: Share) -> bool:
        """Returns whether a second call gives the same, whatever the global generators hold."""
        if share.loss is None:
            return True
        again = [self._value(case, case.leaves, seed) for seed in range(1, 1 + REPEATS)]
        return all(abs(value - share.loss.item()) <= TOLERANCE for value in again)

    def _value(self, case: Case, leaves: Mapping[str, Tensor], seed: int = 0) -> float:
        loss = self._called(case, leaves, seed=seed).loss
        return 0.0 if loss is None else loss.item()

    def _gradients(self, case: Case) -> dict[str, Tensor] | None:
        """Returns the gradients of the loss by the policy's outputs; None for a term that only measures."""
        leaves = _leaves(case)
        loss = self._called(case, leaves).loss
        if loss is None:
            return None
        try:
            grads = torch.autograd.grad(loss, [*leaves.values()], allow_unused=True)
        except RuntimeError as error:
            raise self._wrong(
                f"gives a loss that cannot be differentiated ({one_line(error)})", "one that can",
                "leave out .backward(), torch.autograd.grad and in-place changes",
            ) from error  # fmt: skip
        return {name: torch.zeros_like(leaves[name]) if g is None else g for name, g in zip(leaves, grads, strict=True)}

    def _called(
        self, case: Case, leaves: Mapping[str, Tensor], index: Tensor | None = None, seed: int = 0
    ) -> Share:  # fmt: skip
        return self._call(case.forward(leaves, index), seed)

    def _call(self, seen: Forward, seed: int = 0) -> Share:
        """Calls a copy of the term, with global generators at ``seed``."""
        seed_all(seed)
        share = self._guarded(lambda: isolated_copy(self._term).share(seen, *seen.batch.of_terms))
        if not isinstance(share, Share):
            raise self._wrong(
                f"gives a {type(share).__name__}", "a Share", "write return Share((loss * weights).sum())"
            )
        return share


def _leaves(case: Case) -> dict[str, Tensor]:
    return {name: values.clone().requires_grad_() for name, values in case.leaves.items()}


def _direction(values: Tensor, row: int) -> Tensor:
    """Numbers of both signs in one row, 0 in the others."""
    made = torch.zeros_like(values)
    made[row] = torch.cos(2.3 * torch.arange(made[row].numel(), device=values.device)).view(made[row].shape)
    return made


def _agree(expected: float, slope: float, distance: float) -> bool:
    rounding = 1e-6 / distance  # float32 rounding of the two values, divided by their distance
    return abs(expected - slope) <= STEEPNESS * max(abs(expected), abs(slope)) + rounding


def _shown(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"of type {type(value).__name__}"
    gradient = " with a gradient" if value.requires_grad else ""
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}{gradient}"
