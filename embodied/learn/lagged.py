"""Several sets of older weights that act at the same time (``algorithm.max_staleness`` of 2 and more).

    rollout of            3     4     5     6        s = 3, after 5 iterations
    weights after         0*    1*    2     3
                                      └ rollouts 5, 6, 7 have the kept sets 2, 3, 4; rollout 8 the present weights, 5

Rollout ``i`` acts with the weights after ``i − s`` iterations, or with the first. When update ``k`` begins, rollout
``k`` has ended: its set takes the weights that the update is about to change, and rollout ``k + s`` acts with it.
Before that the present weights act in their place. So s sets are enough, and checkpoints hold those s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from embodied.learn.acting import Acting, check_acts_alone, copy_of, make_acting
from embodied.learn.step.reference import OtherWeights
from embodied.parallel.sharding import Parallel
from embodied.protocols import HasExtraState, Policy


class Lagged(Acting):
    """A copy of the policy that is given one of ``lag`` sets of trained tensors, or the present ones, for each call.

    Attributes:
        present: version of the present weights while they may act; None while an update changes them.

    Raises:
        ConfigError: the policy cannot be copied.
    """

    def __init__(self, policy: Policy, lag: int) -> None:
        super().__init__(policy)
        self._learns, self.policy, self._lag = policy, copy_of(policy), lag
        self._sets = [OtherWeights(policy) for _ in range(lag)]
        self._versions = [0] * lag
        self._evaluates, self._shown = False, -1
        self.present: int | None = 0

    def begin(self, iteration: int, version: int) -> None:
        """Keeps the present weights for the rollout of ``iteration``. Call it before the update that changes them."""
        self._sets[iteration % self._lag].follow(1.0)
        self._versions[iteration % self._lag] = version
        self.present, self._shown = None, -1

    def version_of(self, iteration: int) -> int:
        """Returns the version with which the rollout of ``iteration`` acts, whose set is kept."""
        return self._versions[iteration % self._lag]

    def use(self, version: int) -> None:
        """Gives the acting policy the weights of a version.

        Raises:
            LookupError: they are gone, or not there yet.
        """
        if self._evaluates or version == self._shown:
            return
        if version in self._versions:
            self._sets[self._versions.index(version)].stand_in(self.policy)
        elif version == self.present:
            self._show_present()
        else:
            raise LookupError(f"weights of version {version} are not kept: {self._versions}, {self.present}")
        self._shown = version

    def _show_present(self) -> None:
        present = dict(self._learns.named_parameters())
        for name, parameter in self.policy.named_parameters():
            parameter.data = present[name].data

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        self._evaluates = True
        self._show_present()
        try:
            yield
        finally:
            self._evaluates, self._shown = False, -1

    def state_dict(self) -> dict[str, Any]:
        tensors: dict[str, Tensor] = {}
        for number, kept in enumerate(self._sets):
            tensors |= {f"acting.{number}.{name}": tensor for name, tensor in kept.state_dict().items()}
        return {"acting_versions": [*self._versions], **tensors}

    def load_state_dict(self, state: Mapping[str, Any], version: int) -> None:
        versions = state.get("acting_versions", ())
        known = len(versions) == self._lag  # else saved by a run with another lag, whose sets are of other iterations
        self._versions, self.present = [*versions] if known else [version] * self._lag, version
        for number, kept in enumerate(self._sets):
            own = f"acting.{number}."
            found = {name.removeprefix(own): tensor for name, tensor in state.items() if name.startswith(own)}
            kept.load_state_dict(found) if known else kept.follow(1.0)
        if isinstance(self.policy, HasExtraState) and isinstance(self._learns, HasExtraState):
            self.policy.load_extra_state(self._learns.extra_state())
        self._shown = -1


def acting_of(policy: Policy, max_staleness: int, interval: int, parallel: Parallel | None = None) -> Acting:
    """Makes the acting policy for ``policy``, which learns: see :func:`embodied.learn.acting.make_acting`.

    Args:
        parallel: how processes share the policy; None = one process.

    Raises:
        ConfigError: the policy has no copy that acts while it learns.
    """
    if max_staleness:
        check_acts_alone(parallel)
    return Lagged(policy, max_staleness) if max_staleness > 1 else make_acting(policy, max_staleness, interval)
