"""Which action a control step takes from overlapping chunks. No thread, no clock: time is counted in control steps.

    control step   0 1 2 3 4 5 6 7 8 9 …          H = 8 actions a chunk, s = 4, d = 2
    first chunk    0 1 2 3 4 5 6 7                observed before step 0
    second chunk           · · 2 3 4 5 6 7        observed before step 4, arrives before step 6: its first d are dropped
    executed       0 1 2 3 4 5 2 3 …              with real-time chunking 6 and 7 are blended into 2 and 3

H: actions of a chunk. s: control steps from one observation to the next that is sent. d: control steps from an
observation to the arrival of its answer; these execute what was planned before, which cannot be changed any more. With
requests ahead of time the next answer must come before its predecessor runs out, and one at a time: d ≤ s ≤ H − d
(Black et al., Real-Time Execution of Action Chunking Flow Policies, arXiv 2506.07339). The denoising guidance of that
paper needs a flow policy, on a server that goes on from what is planned; of any policy, the part of a new chunk that
overlaps the old one can be blended with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from embodied.errors import ConfigError, DelayError, SpecMismatchError

Mode = Literal["wait", "ahead", "realtime"]
MODES = ("wait", "ahead", "realtime")


@dataclass(frozen=True)
class Rule:
    """How action chunks follow each other: actions executed of each, when the next is asked for, how they are blended.

    Raises:
        ConfigError: ``execute`` or ``mode`` cannot be.
    """

    execute: int  # s
    mode: Mode = "ahead"  # wait: ask when s are executed; ahead: ask every s, switch at arrival; realtime: and blend
    blend: int | None = None  # realtime: control steps over which it goes from the old to the new; None = the overlap
    gripper: tuple[int, ...] = (-1,)  # dimensions of an action that are never blended: half closed is neither

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"mode '{self.mode}' is not one of {', '.join(MODES)}", "choose one of them")
        if self.execute < 1:
            raise ConfigError(f"execute is {self.execute}, expected a number of control steps", "set it to 1 or more")

    @property
    def ahead(self) -> bool:
        """Whether the next answer is asked for while actions are left."""
        return self.mode != "wait"

    def longest_delay(self, horizon: int) -> int:
        """The largest d that chunks of ``horizon`` actions allow; 0 if each answer is waited for.

        Raises:
            ConfigError: they allow none.
        """
        most = min(self.execute, horizon - self.execute)
        if most < (1 if self.ahead else 0):
            raise ConfigError(
                f"execute is {self.execute} and the policy's chunks have {horizon} actions"
                + (": there is no delay d with d ≤ execute ≤ actions − d" if self.execute == horizon else ""),
                f"set execute to {max(1, horizon // 2)}" if self.ahead else f"set execute to {horizon} or less",
            )
        return most

    def check_delay(self, delay: int, horizon: int) -> None:
        """Raises :class:`embodied.errors.DelayError` unless delay ≤ execute ≤ horizon − delay."""
        if not self.ahead or delay <= self.longest_delay(horizon):
            return
        best = max(0, horizon // 2)
        fix = (
            f"set execute to {delay} or more and {horizon - delay} or less"
            if delay <= best
            else f"chunks of {horizon} actions bear a delay of {best} at most: a faster server, a nearer one, smaller "
            "pictures, or a lower control rate"
        )
        raise DelayError(
            f"an answer came {delay} control steps after its observation, and execute is {self.execute} with chunks of "
            f"{horizon} actions: {delay} ≤ {self.execute} ≤ {horizon} − {delay} does not hold",
            fix,
        )


class Plan:
    """The queue of actions for the coming control steps, filled from chunks by a :class:`Rule`."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._planned: np.ndarray | None = None  # [n, A], the first is that of the present control step
        self._now = 0  # number of the present control step
        self._asked_at: int | None = None  # control step of the observation that was sent last

    @property
    def is_empty(self) -> bool:
        """Whether the present control step has no action."""
        return self._planned is None or not len(self._planned)

    @property
    def has_begun(self) -> bool:
        """Whether any chunk has come since the episode began."""
        return self._planned is not None

    @property
    def wants_request(self) -> bool:
        """Whether an observation should be sent now, if none is under way."""
        if self.is_empty or self._asked_at is None:
            return True
        return self._rule.ahead and self._now - self._asked_at >= self._rule.execute

    @property
    def left(self) -> np.ndarray:
        """The planned actions, [n, A]; the first is that of the present control step."""
        return np.zeros((0, 0), np.float32) if self._planned is None else self._planned

    def asked(self) -> None:
        """Notes that the observation of this moment is sent to the server, so that the delay of its answer is known."""
        self._asked_at = self._now

    def answered(self, chunk: np.ndarray, blends: bool = True) -> int:
        """Takes the chunk, [H, A] (or choices, [H]), that answers the observation sent last. Returns the delay d in
        control steps.

        Args:
            blends: False: the chunk goes on from what is planned already.

        Raises:
            SpecMismatchError: its actions have another shape than those before, or are choices and to be blended.
        """
        assert self._asked_at is not None
        if self._planned is not None and self._planned.shape[1:] != chunk.shape[1:]:
            raise SpecMismatchError(
                f"the server's actions have the shape {chunk.shape[1:]}, and had {self._planned.shape[1:]} before",
                "begin a new episode (reset) when the server's policy has changed",
            )
        if self._rule.mode == "realtime" and chunk.ndim == 1:
            raise SpecMismatchError("the server's actions are choices, which cannot be blended", "use mode='ahead'")
        delay = self._now - self._asked_at
        if not self._rule.ahead:
            self._planned = chunk[: self._rule.execute]
            return delay
        new = chunk[delay:].copy()
        if self._rule.mode == "realtime" and blends and self._planned is not None:
            new = blended(self._planned, new, self._rule.blend, self._rule.gripper)
        self._planned = new if len(new) else chunk[:0]
        return delay

    def take(self) -> np.ndarray:
        """Returns the action of the present control step, [A] or [], and goes on to the next step."""
        assert self._planned is not None
        action, self._planned = self._planned[0], self._planned[1:]
        self._now += 1
        return action.copy()

    def skip(self) -> None:
        """Go on to the next step: the present one did something else."""
        self._now += 1


def blended(old: np.ndarray, new: np.ndarray, length: int | None, gripper: Sequence[int]) -> np.ndarray:
    """Blends the planned actions into a new chunk, linearly over the first ``length`` control steps that both have;
    dimensions in ``gripper`` switch at once.

    The i-th of n such steps takes (n − i) / (n + 1) of the old and (i + 1) / (n + 1) of the new, i from 0.

    Args:
        old: [m, A]; new: [n, A]; the first of each is for the present control step.
        length: control steps of the passage; None = as many as both have.
        gripper: dimensions that are the new chunk's at once.

    >>> blended(np.zeros((2, 2)), np.ones((4, 2)), None, (-1,)).round(2).tolist()
    [[0.33, 1.0], [0.67, 1.0], [1.0, 1.0], [1.0, 1.0]]
    """
    steps = min(len(old), len(new), len(new) if length is None else length)
    share = (np.arange(1, steps + 1) / (steps + 1)).astype(new.dtype)[:, None]
    mixed = new.copy()
    mixed[:steps] = old[:steps] + share * (new[:steps] - old[:steps])
    mixed[:, list(gripper)] = new[:, list(gripper)]
    return mixed
