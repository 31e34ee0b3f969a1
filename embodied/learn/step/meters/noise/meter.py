"""The meter of gradient noise: sketches of an update's groups ─▶ sum over ranks ─▶ averages ─▶ metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from embodied.learn.batch import Batch
from embodied.learn.step.meters.noise.estimate import NoiseScale
from embodied.learn.step.meters.noise.sketch import GradientSketch
from embodied.learn.step.meters.update_metrics import UpdateMetrics
from embodied.parallel.sharding import Replicas
from embodied.protocols import Policy
from embodied.types import Evaluation


class NoiseMeter:
    """Measures the gradient noise of the first pass over an iteration's records. It changes nothing of the training.

    All ranks find the same, up to rounding whatever their number: the sketches of a group add up over ranks. An update
    is not counted if steps of its first pass were left out, if it trains the value head alone, or if it has a single
    group.

    Args:
        on: measure at all (``algorithm.calculate_noise_scale``).
    """

    def __init__(self, policy: Policy, parallel: Replicas, seed: int, device: torch.device, on: bool) -> None:
        self._parallel, self._device, self._sketch = parallel, device, GradientSketch(policy, seed)
        self._on, self.why_not = on, _why_not(policy, parallel, self._sketch) if on else ""
        self._scale, self._groups = NoiseScale(), torch.zeros(0, dtype=torch.int64)
        self.advised = False  # the run has said how many episodes an iteration should have
        self._count = 0  # groups of the update in progress; 0: it is not measured

    @contextmanager
    def first_pass(self, batch: Batch, iteration: int, metrics: UpdateMetrics, episodes: int) -> Iterator[None]:
        """Context of the first pass over an update's records. All ranks enter it.

        Args:
            metrics: of the update, which begins.
            episodes: of the iteration, also those that are not trained on; 0 = the update is not measured: the value
                head alone is trained.
        """
        ids, self._groups = batch.group_ids.unique(return_inverse=True)
        if not self._on or self.why_not or len(ids) < 2 or not episodes:
            yield
            return
        self._count = len(ids)
        try:
            with self._sketch.measuring(self._count, iteration, self._device) as sketches:
                yield
        finally:
            self._count = 0
        if not (metrics.early_stops or metrics.bad or metrics.overflows):
            self._take(sketches, episodes)

    def records(self, chosen: Tensor, scale: float) -> AbstractContextManager[None]:
        """Context of a forward and backward pass.

        Args:
            chosen: its records in the batch, int64 [m].
            scale: factor on the loss.
        """
        if not self._count:
            return nullcontext()
        return self._sketch.records(self._groups[chosen], self._count, self._device, scale)

    def check(self, evaluate: Callable[[Mapping[str, Tensor]], Evaluation], records: Mapping[str, Tensor]) -> None:
        """See :meth:`GradientSketch.check`."""
        self._sketch.check(evaluate, records)

    def _take(self, sketches: Mapping[str, Tensor], episodes: int) -> None:
        """Adds up the sketches of all ranks. A layer that one of them cannot sketch is left out on all."""
        unfit = torch.tensor([float(name in self._sketch.unfit) for name in self._sketch.layers]).to(self._device)
        buffer = self._parallel.world.sum(torch.cat([unfit, *(part.flatten() for part in sketches.values())]))
        unfit, *parts = buffer.cpu().double().split([len(unfit), *(part.numel() for part in sketches.values())])
        names = {name for name, bad in zip(self._sketch.layers, unfit.tolist(), strict=True) if bad}
        whole = [part.view(len(sketch), -1) for (name, sketch), part in zip(sketches.items(), parts, strict=True)
                 if name not in names]  # fmt: skip
        self._sketch.leave_out(names)
        if not self._sketch.layers:
            self.why_not = "no trained linear layer keeps the records of a pass apart"
        if whole:
            self._scale.take(torch.cat(whole, dim=1), episodes)

    def metrics(self, episodes: int) -> dict[str, float]:
        """See :meth:`NoiseScale.metrics`."""
        return self._scale.metrics(episodes)

    def state_dict(self) -> dict[str, float]:
        """Returns the averages and :attr:`advised`, for checkpoints."""
        return {**self._scale.state_dict(), "advised": self.advised}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Loads what :meth:`state_dict` returned."""
        self._scale.load_state_dict(state)
        self.advised = bool(state.get("advised", False))


def _why_not(policy: Policy, parallel: Replicas, sketch: GradientSketch) -> str:
    """Returns why the noise cannot be measured; empty if it can."""
    if parallel.collective_passes:
        return "fsdp2 runs collectives in the hooks of a backward pass"
    if parallel.teams.team.size > 1:
        return "neighbours compute each text together, and each has a part of its rows"
    modules = policy.modules() if isinstance(policy, nn.Module) else ()
    if any(module._compiled_call_impl is not None for module in modules):
        return "a hook within compiled layers would change them"
    return "" if sketch.layers else "no linear layer is trained"
