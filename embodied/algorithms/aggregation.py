"""Weights with which the losses of elements add up to one number, known before the first forward pass.

``loss = Σ weights · per_token_loss``. The weights come from the masks and sequence ids of the *whole* optimizer batch,
of all processes. After that the loss is a plain sum: cutting the batch into micro-batches, sharing it among processes,
or leaving out records of advantage 0 changes nothing, as long as gradients are summed (not averaged).

A sequence is an episode (a response, in text). Only the part of it that lies in the optimizer batch counts.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from embodied.errors import unknown_name

_DIVISORS: dict[str, Callable[[Tensor, Tensor, float | None], Tensor]] = {
    "token-mean": lambda lengths, sequences, constant: lengths.sum(),
    "token-sum": lambda lengths, sequences, constant: torch.ones_like(sequences),
    "seq-mean-token-sum": lambda lengths, sequences, constant: sequences,
    "seq-mean-token-mean": lambda lengths, sequences, constant: sequences * lengths,
    "seq-mean-token-sum-norm": lambda lengths, sequences, constant: sequences * _positive(constant),
}
"""Mode → what the losses of a sequence are divided by, [] or [S]; from the lengths [S], S and the constant."""

MODES = tuple(_DIVISORS)


def weights(mask: Tensor, sequence_ids: Tensor, mode: str, norm_constant: float | None = None) -> Tensor:
    """Returns each element's weight in the loss (``algorithm.loss_agg_func``), float32 [N, M]; 0 where
    ``mask`` is False.

    With n valid elements in the batch, S sequences that have one, and n_s valid elements of sequence s, the weight of a
    valid element is: ``token-mean`` 1/n; ``token-sum`` 1; ``seq-mean-token-sum`` 1/S; ``seq-mean-token-mean``
    1/(S·n_s); ``seq-mean-token-sum-norm`` 1/(S·norm_constant) (Dr. GRPO, arXiv 2503.20783, listing 1).

    Args:
        mask: bool [N, M], all records of the optimizer batch.
        sequence_ids: int [N], any numbers.
        mode: ``algorithm.loss_agg_func``, one of :data:`MODES`.
        norm_constant: elements that the longest possible sequence has; for ``seq-mean-token-sum-norm`` alone.

    Raises:
        UnknownNameError: ``mode`` is not known.
        ValueError: ``seq-mean-token-sum-norm`` without a positive ``norm_constant``.
    """
    if mode not in MODES:
        raise unknown_name("loss aggregation", mode, MODES, "algorithm.loss_agg_func")
    index, lengths = _sequence_lengths(mask, sequence_ids)
    sequences = (lengths > 0).sum().clamp(min=1)
    divisor = _DIVISORS[mode](lengths, sequences, norm_constant).double().expand(lengths.shape)
    # Without valid elements this divides by zero, but then nothing of it is selected.
    return torch.where(mask, divisor.reciprocal()[index][:, None], 0.0).float()


def sequence_means(sums: Tensor, mask: Tensor, sequence_ids: Tensor) -> Tensor:
    """The mean over the valid elements of each record's sequence, float32 [N, 1]; 0 for sequences that have none.

    Args:
        sums: of each record's valid elements, float [N].
        mask: bool [N, M], which elements are valid.
        sequence_ids: int [N], any numbers.
    """
    index, lengths = _sequence_lengths(mask, sequence_ids)
    totals = torch.zeros(len(lengths), dtype=torch.float64, device=sums.device).index_add_(0, index, sums.double())
    return (totals / lengths.clamp(min=1))[index][:, None].float()


def _sequence_lengths(mask: Tensor, sequence_ids: Tensor) -> tuple[Tensor, Tensor]:
    """The sequence of each record, int64 [N], and the number of valid elements of each sequence, int64 [S]."""
    unique, index = torch.unique(sequence_ids, return_inverse=True)
    lengths = torch.zeros(len(unique), dtype=torch.long, device=mask.device)
    return index, lengths.index_add_(0, index, mask.sum(dim=1))


def _positive(norm_constant: float | None) -> float:
    if norm_constant is None or norm_constant <= 0:
        raise ValueError(f"seq-mean-token-sum-norm needs a positive norm_constant, got {norm_constant}")
    return norm_constant
