"""A small head that chooses the noise with which the ODE of a frozen flow policy begins (DSRL, arXiv 2506.15799).

    observation ─▶ trunk ─▶ feature ─▶ head: N(mean, std²) ─▶ first noise ─▶ ODE ─▶ actions
                              └── recorded ──────────────────────┘

The feature has three parts: the mean of the trunk's last tokens that are computed, scaled to mean 0 and variance 1; the
normalised state, cut off at ±3; and the frozen policy's mean action, which is minus its velocity at zero noise. In the
first part an observation is a small change of large numbers, which a head finds slowly; in the last one it is not.

Drawn is the noise of the K executed actions in their real dimensions; the rest of the chunk begins with noise as ever,
because it hardly moves what is executed, and its density would only add variance to a ratio. An update evaluates
records with the head alone. The head begins as N(0, 1), so that the untrained policy is the frozen one. DSRL learns by
SAC; here any loss does that reads log-probs.

Shapes: B rows, H actions of a chunk, W padded dimensions, K executed actions, A dimensions, d numbers of a feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from embodied.types import ArraySpec, Elements, Evaluation, Gaussian, Noise, PolicySpec, Sampling

from ..shared.quantized import numbers_of
from .inputs.normalization import padded
from .network.heads import feature_width, mean_present
from .network.model import Context
from .policy import FlowVLAPolicy, Integrate
from .sampling.chains import at, solve
from .sampling.steps import entropy, log_prob

STATE_BOUND = 3.0  # of the normalised state in the feature


class NoisePolicy(FlowVLAPolicy):
    """A frozen flow policy whose first noise is chosen. A greedy decision draws it, too, as the frozen policy does."""

    demonstration_loss = None  # type: ignore[assignment]  # nothing that demonstrations could teach is trained

    @property
    def spec(self) -> PolicySpec:
        base, sizes = super().spec, self.model.sizes
        chunk = base.decision["actions"].shape
        decision = {
            "actions": base.decision["actions"],
            "feature": ArraySpec((feature_width(sizes, chunk[0]),), "float32"),
            "noise": ArraySpec(chunk, "float32"),
            "logprobs": ArraySpec(chunk, "float32"),
            **{name: field for name, field in base.decision.items() if name == "value"},
        }
        whole = sizes.horizon * sizes.action_width
        # The noise of a late action moves earlier ones: all of it counts, also where an episode ends inside the chunk.
        return replace(
            base, decision=decision, elements=Elements(chunk, levels=("chunk_level",)), entropy=True,
            noise=Noise((whole,), "normal", greedy=whole), horizon=None, demonstration_noise=None,
        )  # fmt: skip

    def decide(self, context: Context, noise: Tensor, sampling: Sampling) -> dict[str, Tensor]:
        """Computes the fields of a decision. Sampled and greedy ones differ in the number of steps alone."""
        count = self.parts.settings.num_steps if sampling.do_sample else self.eval_steps
        return self._solved(context, noise, partial(solve, count=count))

    def _solved(self, context: Context, noise: Tensor, integrate: Integrate) -> dict[str, Tensor]:
        velocity, (k, a) = self.parts.velocity(context), self.spec.decision["noise"].shape
        first = noise.unflatten(1, (self.model.sizes.horizon, self.model.sizes.action_width)).clone()
        feature = self._feature(context, -velocity(torch.zeros_like(first), at(first, 1.0))[:, :k, :a])
        mean, std = self._gaussian(feature)
        chosen = mean + std * first[:, :k, :a]
        first[:, :k, :a] = chosen
        fields = {
            "actions": self.parts.actions(integrate(velocity, first)), "feature": feature, "noise": chosen,
            "logprobs": log_prob(chosen, mean.double(), std).float(),
        }  # fmt: skip
        value = self._value(feature)
        return fields if value is None else {**fields, "value": value}

    def _feature(self, context: Context, expected: Tensor) -> Tensor:
        """What the heads read, float32 [B, d]. Args: ``expected`` is the mean action, float32 [B, K, A]."""
        assert context.hidden is not None
        sizes, rows = self.model.sizes, context.hidden.shape[0]  # compiled layers are given more of them
        mean = mean_present(context.hidden, context.present[:rows])
        # π0.5 reads all of a wider state in its text. A number that hardly varied in the demonstrations may elsewhere
        # be a hundred times its range away, and each step of the head would move the ratio of such a record too far.
        state = context.state[:rows, : sizes.state_width].float().clamp(-STATE_BOUND, STATE_BOUND)
        return torch.cat(
            [F.layer_norm(mean, mean.shape[1:]), state, padded(expected, sizes.action_width).flatten(1)], 1
        )

    def _gaussian(self, feature: Tensor) -> Gaussian:
        """Mean and standard deviation of the first noise, float32 [B, K, A]."""
        assert self.noise_policy is not None
        a = self.spec.decision["noise"].shape[1]
        return Gaussian(*(each[..., :a] for each in self.noise_policy(feature)))

    def _value(self, feature: Tensor) -> Tensor | None:
        """Values float32 [B, V], with a value head."""
        if self.value_head is None:
            return None
        return self.value_head(feature[:, None], torch.ones_like(feature[:, :1], dtype=torch.bool))

    def evaluate(
        self, records: Mapping[str, Tensor], sampling: Sampling, distribution: bool = False
    ) -> Evaluation:  # fmt: skip
        """See :meth:`embodied.protocols.Policy.evaluate`. Reads the records' features, and no observation."""
        gaussian = self._gaussian(records["feature"])
        logprobs = log_prob(records["noise"], gaussian.mean.double(), gaussian.std).float()
        value = self._value(records["feature"])
        return Evaluation(logprobs, entropy(gaussian.std), value, gaussian if distribution else None)

    def flops(self, records: Mapping[str, np.ndarray], training: bool) -> np.ndarray:
        """Counts the FLOPs of records: those of the heads alone, which read what the records keep."""
        heads = [head for head in (self.noise_policy, self.value_head) if head is not None]
        passes = 3 if training else 1
        return np.full(len(records["feature"]), float(2 * passes * sum(map(numbers_of, heads))))

    def sampler(self, sampling: Sampling) -> Mapping[str, Any]:
        """Returns sampler and steps. See :class:`embodied.protocols.NamesSampler`."""
        count = self.parts.settings.num_steps if sampling.do_sample else self.eval_steps
        return {"sampler": "ode", "num_steps": count, "noise_policy": True}
