"""The optimizer-step engine of reinforcement and supervised learning: passes → gradients → one optimizer step.

    parts of a rank ─▶ backward, part by part ─▶ sum over ranks ─▶ (hook) ─▶ unscale, clip ─▶ step, average
                                                                               └▶ left out: overflow, not finite

The loss of a step is a sum whose weights hold the denominators of the whole optimizer batch. So parts and ranks only
bound memory. What a part is, and what its loss is, the callers say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from embodied.learn.step.finite import FiniteUpdates
from embodied.learn.step.loss_scale import LossScale
from embodied.learn.step.optimizer import RateSchedule, make_optimizer
from embodied.learn.step.passes import Part, until_stopped
from embodied.learn.step.reference import Average
from embodied.learn.step.resting import RestingState
from embodied.learn.watch import Passed
from embodied.parallel.group import Group
from embodied.parallel.sharding import Parallel, Replicas
from embodied.protocols import Policy
from embodied.schema import ActorConfig


class Outcome(Enum):
    """Outcome of an optimizer step: made, or left out and why."""

    MADE = "made"
    OVERFLOW = "overflow"  # left out: the loss was scaled too far for fp16
    NOT_FINITE = "not finite"  # left out: loss or gradient norm
    ABANDONED = "abandoned"  # left out: the hook said so


@dataclass(frozen=True)
class OptimizerStep:
    """The result of one optimizer step, the same on all ranks: outcome, loss, gradient norm."""

    outcome: Outcome
    loss: float = 0.0
    norm: float = 0.0  # 2-norm of the gradient before it was clipped


class StepEngine:
    """Owns the optimizer and what surrounds it: learning rates, loss scale, guard, moving average, weight version.

    Args:
        parallel: how ranks share the policy; None = one process.
        iterations: of the run, what shares of the learning rate's schedule refer to.
        max_bad_updates: so many updates in a row that are not finite end the run.
    """

    def __init__(
        self, policy: Policy, actor: ActorConfig, parallel: Parallel | None, iterations: int, max_bad_updates: int
    ) -> None:
        self.policy, self.parallel = policy, parallel or Replicas(policy, Group())
        self.optimizer = make_optimizer(policy, actor.optim)
        self._state = RestingState(self.optimizer, actor.offload_optimizer)
        self.loss_scale = LossScale.of(actor)
        self.finite = FiniteUpdates(max_bad_updates)
        self.weight_version = 0
        self._optim, self._frees = actor.optim, actor.offload_grad
        self._schedule = RateSchedule(actor.optim, actor.lr_sched, iterations)
        self._average = Average(policy) if actor.optim.ema_decay is not None else None

    @property
    def lr(self) -> float:
        """The present learning rate of the policy."""
        return self.optimizer.param_groups[0]["lr"]

    def set_rates(self, position: float) -> None:
        """Set the learning rates for a ``position`` in iterations: 2.5 is the middle of the third."""
        self._schedule.apply(self.optimizer, position)

    def take(
        self,
        parts: Sequence[Part],
        passed: Passed,
        backward: Callable[[Part], float],
        before_clip: Callable[[], bool] = lambda: True,
        on_norm: Callable[[float], None] = lambda norm: None,
        passes_within: AbstractContextManager[Any] | None = None,
    ) -> OptimizerStep:
        """Takes one optimizer step: backward passes of all parts, gradients summed over ranks, clipped, applied. All
        ranks call it.

        Args:
            parts: what this rank computes, in order. Under FSDP all ranks have equally many.
            passed: told of each pass; may end the update between two of them.
            backward: forward and backward pass of a part; its share of the loss.
            before_clip: called when the gradients are summed, before they are clipped; False: leave the step out.
            on_norm: given the norm of a gradient that will be applied, after it was clipped.
            passes_within: entered for the passes.

        Raises:
            NumericalError: too many updates in a row were not finite.
            Stopped: on all ranks; ``passed`` has ended the update on one.
        """
        self.optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        with passes_within or nullcontext():
            for part, last in until_stopped(parts, passed, self.parallel):
                self.parallel.last_pass(last)
                loss += backward(part)
        loss = self.parallel.group.add(loss)
        self.parallel.sum_gradients()
        if not before_clip():
            return self._leave_out(Outcome.ABANDONED, loss)
        self.loss_scale.unscale(self.optimizer)
        norm = self.parallel.clip(self._optim.clip_grad)
        if self.loss_scale.overflowed(loss, norm):
            return self._leave_out(Outcome.OVERFLOW, loss, norm)
        if not self.finite.accepts(loss, norm, self.weight_version + 1):
            return self._leave_out(Outcome.NOT_FINITE, loss, norm)
        on_norm(norm)
        self._apply()
        return OptimizerStep(Outcome.MADE, loss, norm)

    def _leave_out(self, outcome: Outcome, loss: float, norm: float = 0.0) -> OptimizerStep:
        self._let_go()
        return OptimizerStep(outcome, loss, norm)

    def _let_go(self) -> None:
        """Frees the gradients, so that they take no memory while the policy acts."""
        if self._frees:
            self.optimizer.zero_grad(set_to_none=True)

    def _apply(self) -> None:
        self._state.wake()
        self.optimizer.step()
        self._let_go()
        self.loss_scale.updated()
        if self._average is not None and self._optim.ema_decay is not None:
            self._average.follow(1 - self._optim.ema_decay)
        self.weight_version += 1

    def rest(self) -> None:
        """Moves the optimizer's state to host memory until the next step, if ``actor.offload_optimizer`` says so. Call
        it when an update ends."""
        self._state.rest()

    def evaluated(self) -> AbstractContextManager[None]:
        """Within it the policy has the weights that are evaluated and exported: the average with ``ema_decay``, else
        the present ones."""
        return nullcontext() if self._average is None else self._average.acting()

    def state_dict(self) -> dict[str, Any]:
        """Returns the engine's state beside policy and optimizer, for checkpoints (embodied/learn/checkpoint/state.py):
        numbers and tensors (not copies) by name. Which names there are is a function of the configuration."""
        state: dict[str, Any] = {"weight_version": self.weight_version, **self.finite.state_dict()}
        if self.loss_scale.enabled:
            state["loss_scale"] = self.loss_scale.state_dict()
        if self._average is not None:
            state |= {f"average.{name}": tensor for name, tensor in self._average.state_dict().items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what :meth:`state_dict` returned; other entries are left alone. Call it when the optimizer has its
        state."""
        self.weight_version = int(state["weight_version"])
        self.finite.load_state_dict(state)
        if self.loss_scale.enabled and "loss_scale" in state:  # supervised runs of earlier versions did not save it
            self.loss_scale.load_state_dict(state["loss_scale"])
        if self._average is not None:
            self._average.load_state_dict(under("average", state))
        self.rest()  # torch puts the state that an optimizer is given on the device


class Stepping:
    """Properties of its :class:`StepEngine` that every learner offers to checkpoints and recipes."""

    engine: StepEngine

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.engine.optimizer

    @property
    def weight_version(self) -> int:
        """Optimizer steps so far. Every record carries that of the policy that acted."""
        return self.engine.weight_version

    def evaluated(self) -> AbstractContextManager[None]:
        """Context in which the policy has the weights that are evaluated; see :meth:`StepEngine.evaluated`."""
        return self.engine.evaluated()


def under(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Selects the entries ``prefix.name`` of a state dict, as ``name``."""
    return {name.partition(".")[2]: value for name, value in state.items() if name.startswith(f"{prefix}.")}


def value_grad_norm(optimizer: torch.optim.Optimizer, norm: float, clip_grad: float) -> float:
    """2-norm of the value head's gradient before all gradients, of ``norm``, were clipped; 0 without one."""
    groups = [group for group in optimizer.param_groups if group["name"] == "value"]
    gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
    if not gradients or norm == 0:
        return 0.0
    clipped: Any = torch.nn.utils.get_total_norm(gradients)
    clipped = clipped.full_tensor() if hasattr(clipped, "full_tensor") else clipped  # sharded
    return clipped.item() / min(clip_grad / (norm + 1e-6), 1.0)
