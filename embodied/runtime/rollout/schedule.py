"""Decides when the policy answers which slots: lockstep, pipeline stages and ready-set are settings of one rule.

The rule looks at the slots whose observation waits for the policy (in the order in which they came) and at those whose
simulator works. It changes no result, only who waits for whom:

| setting                   | the policy runs when                                                       |
|---------------------------|----------------------------------------------------------------------------|
| ready, ``min_batch`` m    | m slots wait, or all that run do, or the first has waited ``max_wait_s``    |
| lockstep, one stage       | every slot that runs waits                                                 |
| lockstep, k ``stages``    | every slot of one of k fixed parts waits; the other parts' simulators work |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Decides when slots that wait are answered: in lockstep, or in batches of ``min_batch`` and more. The policy
    itself forms the batches (``OnePass``)."""

    lockstep: bool
    min_batch: int
    stages: int = 1
    max_wait_s: float = float("inf")

    def due(self, ready: Sequence[int], working: Collection[int], waited: float, num_slots: int) -> list[int]:
        """Lists the slots that the policy should answer now; empty: wait.

        Args:
            ready: slots whose observation waits, in the order in which they came.
            working: slots with a command in flight that will be done without answers to other slots. The rest run no
                episode, or wait in a batch for those of ``ready``.
            waited: seconds since the first of ``ready`` came.
            num_slots: slots of the rollout, of which the stages are equal parts.
        """
        if self.lockstep:
            last = {self._stage(slot, num_slots): place for place, slot in enumerate(ready)}
            whole = set(last) - {self._stage(slot, num_slots) for slot in working}
            first = min(whole, key=lambda stage: last[stage], default=None)
            return [slot for slot in ready if self._stage(slot, num_slots) == first]
        floor = min(self.min_batch, len(ready) + len(working))
        return list(ready) if ready and (len(ready) >= floor or waited >= self.max_wait_s) else []

    def missing(self, ready: Sequence[int], working: Collection[int], num_slots: int) -> int:
        """Returns how many completions to wait for before asking again. Without them no slot becomes due, except by
        ``max_wait_s``, which counts from the first slot that waits."""
        if not self.lockstep and not ready and self.max_wait_s < float("inf"):
            return min(1, len(working))
        if not self.lockstep:
            return min(self.min_batch - len(ready), len(working))
        return min(Counter(self._stage(slot, num_slots) for slot in working).values(), default=0)

    def patience(self, ready: Sequence[int], waited: float) -> float | None:
        """Seconds until ``min_batch`` no longer counts; None where it always does."""
        if self.lockstep or not ready or self.max_wait_s == float("inf"):
            return None
        return max(0.0, self.max_wait_s - waited)

    def _stage(self, slot: int, num_slots: int) -> int:
        """Stage of a slot. Neighbouring slots lie on different workers, so each worker with enough slots has some in
        every stage."""
        return min(slot, num_slots - 1) * self.stages // num_slots
