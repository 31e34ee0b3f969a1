"""−log-prob of demonstrated decisions: the loss of supervised training."""

from __future__ import annotations

from torch import Tensor

from embodied.learn.terms.term import Forward, Need, OptimizerBatch, Share, Term


class NllTerm(Term):
    """``−Σ log p / count`` over the elements that count. The count is that of the whole optimizer step."""

    needs: frozenset[Need] = frozenset()
    metrics = ()

    def weights(self, batch: OptimizerBatch) -> Tensor:
        return batch.weights

    def carries_gradient(self, batch: OptimizerBatch, weights: Tensor) -> Tensor:
        return (weights > 0).any(dim=1)

    def losses(self, seen: Forward, weights: Tensor) -> Tensor:
        """Returns −log-prob of the elements that count, float32 [c]; c may be 0."""
        return -seen.new[weights > 0]

    def share(self, seen: Forward, weights: Tensor) -> Share:
        # The sum is divided, because a sum of weighted losses rounds in another way.
        return Share(self.losses(seen, weights).sum() / seen.batch.elements)
