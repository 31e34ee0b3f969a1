"""A policy of continuous actions: a short chain of denoising steps, each with a Gaussian of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from embodied.errors import SpecMismatchError
from embodied.testing.policy import task_rows
from embodied.types import ArraySpec, Decision, Elements, EnvSpec, Evaluation, Gaussian, Noise, PolicySpec, Sampling


class FlowPolicy(nn.Module):
    """State and task → K actions, by ``steps`` Euler steps along a learnt velocity with noise in each (Flow-SDE).

    The chain ``x_0 ~ N(0, 1)``, ``x_{d+1} ~ N(x_d + v(x_d, d) / D, σ²)`` has one Gaussian a step; the log-prob of each
    number of each step is an element ``[D, K, A]``. The action is the last link, clipped to the env's range.

    With ``one_step`` a single step, chosen by a uniform number, adds noise. Its Gaussian has the elements ``[K, A]``,
    and is given as the distribution. A greedy decision is then the ODE from drawn noise.

    Args:
        levels: what ``algorithm.logprob_type`` may ask for. A ratio of a single number of one denoising step compares
            nothing that a user would call an action, so ``token_level`` is not offered unless it is named here.
        sigma: standard deviation of the noise of a step, in units of half the action range.
        horizon: H ≥ K, the actions that the chain holds and demonstrations teach; None = K. Needs ``one_step``.
    """

    low: Tensor
    high: Tensor

    def __init__(
        self, num_action_chunks: int = 4, action_dim: int = 7, state_dim: int = 8, steps: int = 3, num_tasks: int = 64,
        levels: Sequence[str] = ("action_level", "chunk_level"), sigma: float = 0.2, seed: int = 0,
        one_step: bool = False, horizon: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._steps, self._state_dim, self._sigma, self._one_step = steps, state_dim, sigma, one_step
        self._chunk, self._whole = (num_action_chunks, action_dim), (horizon or num_action_chunks, action_dim)
        self._tasks: Sequence[str] = ()
        self.spec = self._one_step_spec(levels) if one_step else self._chain_spec(levels)
        flat = self._whole[0] * action_dim
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.task = nn.Embedding(num_tasks, 8)
            self.body = nn.Sequential(nn.Linear(state_dim + 8 + flat + steps, 32), nn.Tanh(), nn.Linear(32, flat))
        self.register_buffer("low", torch.zeros(action_dim), persistent=False)
        self.register_buffer("high", torch.zeros(action_dim), persistent=False)

    def _chain_spec(self, levels: Sequence[str]) -> PolicySpec:
        chain, links = (self._steps, *self._chunk), (self._steps + 1, *self._chunk)
        decision = {
            "actions": ArraySpec(self._chunk, "float32"),
            "chain": ArraySpec(links, "float32"),
            "logprobs": ArraySpec(chain, "float32"),
        }
        return PolicySpec(
            self._chunk[0], decision, Elements(chain, action_axis=1, levels=tuple(levels)), Noise(links, "normal"),
            entropy=False, distribution=False, random_weights=True, sampling=("temperature",),
        )  # fmt: skip

    def _one_step_spec(self, levels: Sequence[str]) -> PolicySpec:
        decision = {
            "actions": ArraySpec(self._chunk, "float32"),
            "chain": ArraySpec((2, *self._whole), "float32"),  # before and after the step that adds noise
            "step": ArraySpec((), "int32"),
            "logprobs": ArraySpec(self._chunk, "float32"),
        }
        return PolicySpec(
            self._chunk[0], decision, Elements(self._chunk, action_axis=0, levels=tuple(levels)),
            Noise((3, *self._whole), "normal", uniform=1, greedy=1), entropy=False, random_weights=True,
            sampling=("temperature",), horizon=self._whole[0],
            demonstration_noise=Noise((2, *self._whole), "normal", uniform=1),
        )  # fmt: skip

    def sampler(self, sampling: Sampling) -> Mapping[str, Any]:
        """See :meth:`embodied.protocols.NamesSampler.sampler`."""
        if not self._one_step:
            return {}
        return {"sampler": "flow_sde" if sampling.do_sample else "ode", "num_steps": self._steps}

    def bind(self, env: EnvSpec) -> None:
        if env.action_dim != self._chunk[1]:
            raise SpecMismatchError(
                f"the env has {env.action_dim} action dimensions and the policy {self._chunk[1]}",
                f"set actor.model.action_dim={env.action_dim}",
            )
        self._tasks = env.tasks
        self.low, self.high = (torch.tensor(bound).to(self.low) for bound in (env.action_low, env.action_high))

    def encode_instructions(self, texts: Sequence[str]) -> Mapping[str, Tensor]:
        return {"task": task_rows(texts, self._tasks, self.task.num_embeddings)}

    def probe(self, obs: Mapping[str, Tensor]) -> Sequence[str]:
        return ()

    @torch.no_grad()
    def act(self, obs: Mapping[str, Tensor], noise: Tensor, sampling: Sampling) -> Decision:
        if self._one_step:
            return self._act_in_one_step(obs, noise, sampling)
        scale = sampling.temperature if sampling.do_sample else 0.0
        links = [noise[:, 0] * scale]
        logprobs = []
        for step in range(self._steps):
            mean = self._mean(obs, links[-1], step)
            links.append(mean + scale * self._sigma * noise[:, step + 1])
            logprobs.append(self._log_prob(links[-1], mean, sampling))
        chain, logprob = torch.stack(links, 1), torch.stack(logprobs, 1)
        return Decision({"actions": self._actions(links[-1]), "chain": chain, "logprobs": logprob})

    def _act_in_one_step(self, obs: Mapping[str, Tensor], noise: Tensor, sampling: Sampling) -> Decision:
        link, added = noise[:, 0], self._sigma * sampling.temperature * noise[:, 1]
        chosen = self._step_of(noise[:, 2]) if sampling.do_sample else torch.zeros_like(noise[:, 0, 0, 0]).long()
        before = after = mean = link
        for step in range(self._steps):
            here = (chosen == step)[:, None, None]
            next_mean = self._mean(obs, link, step)
            moved = next_mean + added * here if sampling.do_sample else next_mean
            before, after, mean = (
                torch.where(here, new, old) for new, old in ((link, before), (moved, after), (next_mean, mean))
            )
            link = moved
        k = self._chunk[0]
        fields = {"actions": self._actions(link[:, :k]), "chain": torch.stack([before, after], 1), "step": chosen.int()}
        return Decision({**fields, "logprobs": self._log_prob(after[:, :k], mean[:, :k], sampling)})

    def act_after(
        self, obs: Mapping[str, Tensor], noise: Tensor, sampling: Sampling, left_over: Tensor, left: Tensor,
        delay: Tensor,
    ) -> Decision:  # fmt: skip
        """Begins with all that is left. See :meth:`embodied.protocols.ContinuesChunks.act_after`."""
        fields = self.act(obs, noise, sampling).fields
        keeps = torch.arange(self._chunk[0], device=left.device) < left[:, None]
        return Decision({**fields, "actions": torch.where(keeps[..., None], left_over, fields["actions"])})

    def _step_of(self, uniform: Tensor) -> Tensor:
        """Chooses a step by the first of the uniform numbers [B, H, A]: int64 [B]."""
        return (uniform[:, 0, 0] * self._steps).long().clamp(max=self._steps - 1)

    def _actions(self, link: Tensor) -> Tensor:
        return self.low + (link.clamp(-1, 1) + 1) / 2 * (self.high - self.low)

    def evaluate(self, records: Mapping[str, Tensor], sampling: Sampling, distribution: bool = False) -> Evaluation:
        links = records["chain"].unbind(1)
        if self._one_step:
            k = self._chunk[0]
            mean = self._mean(records, links[0], records["step"].long())[:, :k]
            gaussian = Gaussian(mean, torch.full_like(mean, self._sigma * sampling.temperature))
            logprobs = self._log_prob(links[1][:, :k], mean, sampling)
            return Evaluation(logprobs, distribution=gaussian if distribution else None)
        found = [
            self._log_prob(links[step + 1], self._mean(records, links[step], step), sampling)
            for step in range(self._steps)
        ]
        return Evaluation(torch.stack(found, dim=1))

    def demonstration_loss(self, records: Mapping[str, Tensor], actions: Tensor, noise: Tensor) -> Tensor:
        """Flow matching: the squared error of the velocity on straight lines from noise to ``actions``, [B, H]; the
        mean over the dimensions and over all steps, or at a step that is drawn (``one_step``)."""
        half = ((self.high - self.low) / 2).clamp(min=1e-6)
        wanted = ((actions - self.low) / half - 1).clamp(-1, 1)
        if self._one_step:
            return self._error(records, wanted, noise[:, 0], self._step_of(noise[:, 1]))
        return torch.stack([self._error(records, wanted, noise[:, step], step) for step in range(self._steps)]).mean(0)

    def _error(self, records: Mapping[str, Tensor], wanted: Tensor, first: Tensor, step: int | Tensor) -> Tensor:
        share = step[:, None, None] / self._steps if isinstance(step, Tensor) else step / self._steps
        link = first + share * (wanted - first)
        return (self._velocity(records, link, step) - (wanted - first)).square().mean(dim=-1)

    def describe(self) -> Mapping[str, str]:
        return {"model": "flow", "parameters": str(sum(p.numel() for p in self.parameters()))}

    def _mean(self, obs: Mapping[str, Tensor], link: Tensor, step: int | Tensor) -> Tensor:
        """Mean of the next link, float32 [B, H, A]."""
        return link + self._velocity(obs, link, step) / self._steps

    def _velocity(self, obs: Mapping[str, Tensor], link: Tensor, step: int | Tensor) -> Tensor:
        rows = link.shape[0]  # no len(): it would be a constant of an exported program
        time = torch.zeros(rows, self._steps, device=link.device)
        time[torch.arange(rows, device=link.device), step] = 1.0
        state = obs["state"][:, : self._state_dim]
        features = torch.cat([state, self.task(obs["task"]), link.flatten(1), time], dim=-1)
        velocity: Tensor = self.body(features).view_as(link)
        return velocity

    def _log_prob(self, link: Tensor, mean: Tensor, sampling: Sampling) -> Tensor:
        sigma = self._sigma * sampling.temperature
        return -(((link - mean) / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi))
