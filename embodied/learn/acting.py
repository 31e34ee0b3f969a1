"""Chooses the weights that act in training rollouts; they may be older than those that learn.

| configuration | rollout ``i`` acts with the weights after | which stand in |
|---|---|---|
| usual | ``i`` iterations | the policy |
| ``runner.weight_sync_interval: n`` | ``i − i mod n`` | second tensors, exchanged with the policy's own |
| ``algorithm.max_staleness: 1`` | ``i − 1``; 0 of the first | a copy of the policy with its own trained tensors |
| ``algorithm.max_staleness: s`` | ``i − s``; 0 of the first s | the same with s sets (:mod:`embodied.learn.lagged`) |

With the second and third it is ``j − 1`` iterations, of the last multiple ``j`` of n up to ``i``. Frozen weights are
there once. An evaluation always has the present weights.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn

from embodied.errors import ConfigError
from embodied.learn.step.reference import OtherWeights
from embodied.parallel.sharding import REPLICATE, Parallel
from embodied.protocols import HasExtraState, Policy


class Acting:
    """The policy that acts: the one that learns, with its present weights.

    Attributes:
        policy: the module that acts.
        version: optimizer steps that its weights have seen.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy, self.version = policy, 0

    def begin(self, iteration: int, version: int) -> None:
        """Takes the present weights, of ``version``, if they are due. Call it before the rollout of ``iteration``, and
        with ``max_staleness`` before the update that runs beside it."""
        self.version = version

    def takes(self, iteration: int) -> bool:
        """Returns whether the rollout of ``iteration`` takes the weights that are present at :meth:`begin`."""
        return True

    def use(self, version: int) -> None:
        """Gives :attr:`policy` the weights of ``version``, where several act at a time."""

    def trained(self) -> Mapping[str, Tensor]:
        """Returns the trained tensors that act, by name, not copies."""
        return {name: p.detach() for name, p in self.policy.named_parameters() if p.requires_grad}

    def weights(self) -> AbstractContextManager[None]:
        """Context in which :attr:`policy` has the weights that act."""
        return nullcontext()

    def check(self) -> None:
        """Raises what will end the run as soon as weights are to act that did not arrive."""

    def evaluated(self) -> AbstractContextManager[None]:
        """Context in which :attr:`policy` has the weights of the policy that learns."""
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """Returns a rollout's state beside the policy that learns, for checkpoints: numbers and tensors (not copies) by
        name. Which names there are is a function of the configuration."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], version: int) -> None:
        """Loads what :meth:`state_dict` returned; other entries are left alone.

        Args:
            version: of the present weights, which act if ``state`` has no others.
        """
        self.version = version


class Exchanged(Acting):
    """Older weights, which change places with the policy's own for a rollout.

    Args:
        policy: the one that learns.
        interval: iterations between two of which the present weights are taken.
    """

    def __init__(self, policy: Policy, interval: int) -> None:
        super().__init__(policy)
        self._interval, self._older = interval, OtherWeights(policy)

    def takes(self, iteration: int) -> bool:
        return iteration % self._interval == 0

    def begin(self, iteration: int, version: int) -> None:
        if self.takes(iteration):
            self._take(version)

    def _take(self, version: int) -> None:
        self._older.follow(1.0)
        self.version = version

    def trained(self) -> Mapping[str, Tensor]:
        return self._older.state_dict()

    def weights(self) -> AbstractContextManager[None]:
        return self._older.acting()

    def state_dict(self) -> dict[str, Any]:
        tensors: dict[str, Tensor] = self._older.state_dict()
        return {"acting_version": self.version, **{f"acting.{name}": tensor for name, tensor in tensors.items()}}

    def load_state_dict(self, state: Mapping[str, Any], version: int) -> None:
        if "acting_version" not in state:  # saved by a run whose present weights acted
            self._take(version)
            return
        kept = {name.removeprefix("acting."): value for name, value in state.items() if name.startswith("acting.")}
        self._older.load_state_dict(kept)
        self.version = int(state["acting_version"])


class Apart(Exchanged):
    """A copy of the policy, which acts in one thread while the policy learns in another.

    Raises:
        ConfigError: the policy cannot be copied.
    """

    def __init__(self, policy: Policy, interval: int) -> None:
        super().__init__(policy, interval)
        self._learns, self.policy = policy, copy_of(policy)
        self._older.stand_in(self.policy)

    def weights(self) -> AbstractContextManager[None]:
        return nullcontext()

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        present = dict(self._learns.named_parameters())
        for name, parameter in self.policy.named_parameters():
            parameter.data = present[name].data
        try:
            yield
        finally:
            self._older.stand_in(self.policy)

    def load_state_dict(self, state: Mapping[str, Any], version: int) -> None:
        super().load_state_dict(state, version)
        if isinstance(self.policy, HasExtraState) and isinstance(self._learns, HasExtraState):
            self.policy.load_extra_state(self._learns.extra_state())


def make_acting(policy: Policy, max_staleness: int, interval: int, acts: bool = True) -> Acting:
    """Makes the acting policy for ``policy``, which learns.

    Args:
        max_staleness: ``algorithm.max_staleness``.
        interval: ``runner.weight_sync_interval``.
        acts: False: other processes collect, and this one keeps the weights that act there.
    """
    if max_staleness and acts:
        return Apart(policy, interval)
    return Exchanged(policy, interval) if max_staleness or interval > 1 else Acting(policy)


def check_acts_alone(parallel: Parallel | None) -> None:
    """Refuses a policy whose copy could not act while it learns. Raises :class:`ConfigError`."""
    if parallel is not None and parallel.collective_passes:
        raise ConfigError(
            "algorithm.max_staleness needs a copy of the policy in each process, which acts while the policy learns, "
            f"and the processes share it out: {parallel}",
            f"set {REPLICATE}, or algorithm.max_staleness=0",
        )


def copy_of(policy: Policy) -> Policy:
    """Copies a policy, all but its frozen parameters: these are the same tensors in both.

    Raises:
        ConfigError: the copy would compute with parts of the policy itself.
    """
    own = copy.deepcopy(policy, {id(p): p for _, p in policy.named_parameters() if not p.requires_grad})
    if isinstance(policy, nn.Module):
        theirs = {id(module) for module in policy.modules()} | {id(p) for p in policy.parameters() if p.requires_grad}
        if any(id(found) in theirs for found in _reached(own)):
            raise ConfigError(
                "algorithm.max_staleness needs a copy of the policy, which acts while the policy learns, and "
                f"{type(policy).__name__} has a function that refers to the policy by variables of its own (a closure, "
                "a lambda): it is the same in a copy",
                "make that function a method, or set algorithm.max_staleness=0",
            )
    return own


def _reached(value: object) -> Iterator[object]:
    """Yields what ``value`` refers to, also through the variables of functions, but not through global names."""
    seen, waiting = set[int](), [value]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, Tensor | type | types.ModuleType | str | bytes):
            if isinstance(one, Tensor):
                yield one
            continue
        seen.add(id(one))
        yield one
        waiting += _referred(one)


def _referred(one: object) -> list[Any]:
    """Returns the objects that one value refers to."""
    if isinstance(one, types.FunctionType):
        return [*(one.__closure__ or ()), *(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
    if isinstance(one, types.CellType):
        try:
            return [one.cell_contents]
        except ValueError:  # it has none yet
            return []
    if isinstance(one, types.MethodType):
        return [one.__func__, one.__self__]
    if isinstance(one, functools.partial):
        return [one.func, *one.args, *one.keywords.values()]
    if isinstance(one, Mapping):
        return [*one.values()]
    if isinstance(one, list | tuple | set | frozenset):
        return [*one]
    return [*vars(one).values()] if hasattr(one, "__dict__") else []
