"""The objective: the sum of the loss terms that the configuration asks for.

| term | file | default |
|---|---|---|
| policy loss, aggregated by ``loss_agg_func`` | ``terms/policy.py`` | on |
| value loss, mean over rewards that count | ``terms/value.py`` | with ``adv_type: gae`` |
| entropy, aggregated like the policy loss | ``terms/entropy.py`` | measured only |
| KL towards the reference, aggregated like the policy loss | ``terms/kl.py`` | off |
| −log-prob, mean over episodes with a positive return | ``terms/positive_nll.py`` | off |
| terms of the user's, by dotted path (``algorithm.terms``) | ``terms/custom.py`` | none |

The weights of elements are fixed by the optimizer batch (:mod:`embodied.algorithms.aggregation`), so that micro-batches
only bound memory. What depends on a whole sequence (``gspo``, ``off_policy_masking_delta``) is found in a pass without
gradients over the optimizer batch before; the proximal policy of ``tis`` in one before the iteration's first update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from embodied.algorithms.importance import log_ratio
from embodied.algorithms.layout import Counts
from embodied.learn.batch import Batch
from embodied.learn.terms.conformance.records import blank_fields
from embodied.learn.terms.conformance.term import check_term
from embodied.learn.terms.custom import make_terms
from embodied.learn.terms.entropy import EntropyTerm
from embodied.learn.terms.kl import KlTerm
from embodied.learn.terms.measured import rows_of
from embodied.learn.terms.policy import PolicyTerm
from embodied.learn.terms.positive_nll import PositiveNllTerm
from embodied.learn.terms.term import Forward, Need, OptimizerBatch, Setup, Share, Term
from embodied.learn.terms.value import ValueTerm
from embodied.protocols import Policy
from embodied.types import EnvSpec, Evaluation

COMPUTED = (PolicyTerm, KlTerm, ValueTerm, EntropyTerm, PositiveNllTerm)
"""The terms, in the order in which a pass computes them. Gradients are added in the opposite order."""

_BRACKETS: tuple[tuple[type[Term], ...], ...] = (
    (PolicyTerm,), (ValueTerm,), (PositiveNllTerm, EntropyTerm), (KlTerm,),
)  # fmt: skip
ADDED = (*_BRACKETS, *((kind,) for kind in COMPUTED if not any(kind in bracket for bracket in _BRACKETS)))
"""The terms, in the order in which their shares are added; those in one bracket are added first. Terms that no bracket
names follow, and then those of the user's.

Both orders only decide how sums are rounded. They stay as they are, so that a seeded run repeats bit by bit.
"""


class Objective:
    """The loss that ``setup.algorithm`` describes, for policies of ``setup.spec``.

    Raises:
        ConfigError: the policy does not offer what a term needs, or a metric of a term has no row of its own.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup, self.layout, self._level = setup, setup.layout, setup.algorithm.logprob_type
        self.layout.check(self._level, "algorithm.logprob_type")
        made = [kind.make(setup) for kind in COMPUTED]
        self._custom = make_terms(setup)
        self.terms: tuple[Term, ...] = (*(term for term in made if term is not None), *self._custom.values())
        built_in = {type(term).__name__: term for term in made if term is not None}
        self.rows = rows_of({**built_in, **self._custom})
        self.needs: frozenset[Need] = frozenset().union(*(term.needs for term in self.terms))

    def checked(self, policy: Policy, env: EnvSpec, device: torch.device) -> Objective:
        """Tries the user's own loss and terms on made-up records, before any rollout, and returns the objective. Raises
        ConfigError if one does not fit."""
        for term in self.terms:
            if isinstance(term, PolicyTerm):
                term.check(device)
        for name, term in self._custom.items():
            check_term(term, self._setup, name, device, lambda n: blank_fields(policy, env, n))
        return self

    def optimizer_batch(self, batch: Batch, chosen: Tensor) -> OptimizerBatch:
        """Makes the optimizer batch of the records ``chosen`` int64 [n], with masks and weights."""
        counts, ids = batch.counts.at(chosen), batch.sequence_ids[chosen]
        mask = self.layout.mask(counts, self._level)
        if batch.shared is not None:
            mask &= torch.arange(mask.shape[1]) >= batch.shared[chosen][:, None]
        made = OptimizerBatch(
            counts,
            ids,
            mask,
            self._setup.weights(mask, ids, self._level),
            self.layout.spread(batch.advantages[chosen], self._level),
            batch.positive[chosen],
            torch.zeros(len(chosen), 1),
            None if batch.value_targets is None else batch.value_targets[chosen],
            None if batch.proximal is None else batch.proximal[chosen],
            elements=int(mask.sum()),
        )
        return replace(made, of_terms=tuple(term.weights(made) for term in self.terms))

    def carries_gradient(self, batch: OptimizerBatch) -> Tensor:
        """Returns the mask of records that change the gradient, bool [n]."""
        found = [term.carries_gradient(batch, own) for term, own in zip(self.terms, batch.of_terms, strict=True)]
        return torch.stack(found).any(dim=0)

    def shares(
        self, batch: OptimizerBatch, records: Mapping[str, Tensor], result: Evaluation, reference: Evaluation | None,
        untrained: bool = False,
    ) -> list[Share]:  # fmt: skip
        """Computes each term's part of the loss (:class:`Share`) for m records of an optimizer batch, on one device.

        Args:
            batch: of the m records.
            reference: what the reference says of the same records; None if no term needs it, or while the value head
                warms up: a term that needs it then has no share.
            untrained: the weights are still those that acted.
        """
        new, old = self._logprobs(result, records, batch.counts)
        seen = Forward(batch, records, result, reference, new, old, untrained)
        pairs = zip(self.terms, batch.of_terms, strict=True)
        absent = {Need.REFERENCE} if reference is None else set()
        return [Share(None) if term.needs & absent else term.share(seen, own) for term, own in pairs]

    def total(self, shares: Sequence[Share], value_only: bool = False) -> Tensor:
        """Sums the terms' parts to the loss that is minimised, []; with ``value_only`` those of the value head alone.

        Args:
            shares: of one pass, as :meth:`shares` gave them.
            value_only: the value loss alone (``critic_warmup_steps``).
        """
        losses = [
            (term, share.loss)
            for term, share in zip(self.terms, shares, strict=True)
            if share.loss is not None and (isinstance(term, ValueTerm) or not value_only)
        ]
        brackets = [[loss for kind in bracket for term, loss in losses if type(term) is kind] for bracket in ADDED]
        brackets += [[loss] for term, loss in losses if type(term) not in COMPUTED]
        first, *rest = [sum(found[1:], start=found[0]) for found in brackets if found]
        return sum(rest, start=first)

    def log_ratio_sums(self, result: Evaluation, records: Mapping[str, Tensor], counts: Counts) -> Tensor:
        """``Σ (lp − lp_old)`` of each of m records, float [m]."""
        new, old = self._logprobs(result, records, counts)
        return log_ratio(new, old).sum(dim=1)

    def _logprobs(
        self, result: Evaluation, records: Mapping[str, Tensor], counts: Counts
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Log-probs now and at action time, at ``logprob_type``: float32 [m, M] each."""
        new = self.layout.reduce(result.logprobs, counts, self._level)
        return new, self.layout.reduce(records["logprobs"], counts, self._level)
