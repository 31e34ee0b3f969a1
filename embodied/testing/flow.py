"""A policy of continuous actions: a short chain of denoising steps, each with a Gaussian of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from embodied.errors import SpecMismatchError
from embodied.testing.policy import task_rows
from embodied.types import ArraySpec, Decision, Elements, EnvSpec, Evaluation, Noise, PolicySpec, Sampling


class FlowPolicy(nn.Module):
    """State and task → K actions, by ``steps`` Euler steps along a learnt velocity with noise in each (Flow-SDE).

    The chain ``x_0 ~ N(0, 1)``, ``x_{d+1} ~ N(x_d + v(x_d, d) / D, σ²)`` has one Gaussian a step; the log-prob of each
    number of each step is an element ``[D, K, A]``. The action is the last link, clipped to the env's range.

    Args:
        levels: what ``algorithm.logprob_type`` may ask for. A ratio of a single number of one denoising step compares
            nothing that a user would call an action, so ``token_level`` is not offered unless it is named here.
        sigma: standard deviation of the noise of a step, in units of half the action range.
    """

    low: Tensor
    high: Tensor

    def __init__(
        self, num_action_chunks: int = 4, action_dim: int = 7, state_dim: int = 8, steps: int = 3, num_tasks: int = 64,
        levels: Sequence[str] = ("action_level", "chunk_level"), sigma: float = 0.2, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self._steps, self._state_dim, self._sigma = steps, state_dim, sigma
        self._chunk = (num_action_chunks, action_dim)
        self._tasks: Sequence[str] = ()
        chain, links = (steps, *self._chunk), (steps + 1, *self._chunk)
        decision = {
            "actions": ArraySpec(self._chunk, "float32"),
            "chain": ArraySpec(links, "float32"),
            "logprobs": ArraySpec(chain, "float32"),
        }
        self.spec = PolicySpec(
            num_action_chunks, decision, Elements(chain, action_axis=1, levels=tuple(levels)), Noise(links, "normal"),
            entropy=False, distribution=False, random_weights=True,
        )  # fmt: skip
        flat = num_action_chunks * action_dim
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.task = nn.Embedding(num_tasks, 8)
            self.body = nn.Sequential(nn.Linear(state_dim + 8 + flat + steps, 32), nn.Tanh(), nn.Linear(32, flat))
        self.register_buffer("low", torch.zeros(action_dim), persistent=False)
        self.register_buffer("high", torch.zeros(action_dim), persistent=False)

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
        scale = sampling.temperature if sampling.do_sample else 0.0
        links = [noise[:, 0] * scale]
        logprobs = []
        for step in range(self._steps):
            mean = self._mean(obs, links[-1], step)
            links.append(mean + scale * self._sigma * noise[:, step + 1])
            logprobs.append(self._log_prob(links[-1], mean, sampling))
        actions = self.low + (links[-1].clamp(-1, 1) + 1) / 2 * (self.high - self.low)
        return Decision({"actions": actions, "chain": torch.stack(links, 1), "logprobs": torch.stack(logprobs, 1)})

    def evaluate(self, records: Mapping[str, Tensor], sampling: Sampling, distribution: bool = False) -> Evaluation:
        links = records["chain"].unbind(1)
        found = [
            self._log_prob(links[step + 1], self._mean(records, links[step], step), sampling)
            for step in range(self._steps)
        ]
        return Evaluation(torch.stack(found, dim=1))

    def demonstration_loss(self, records: Mapping[str, Tensor], actions: Tensor, noise: Tensor) -> Tensor:
        """Flow matching: the squared error of the velocity at each step of the chain, on straight lines from noise to
        ``actions``; the mean over steps and dimensions, [B, K]."""
        half = ((self.high - self.low) / 2).clamp(min=1e-6)
        wanted = ((actions - self.low) / half - 1).clamp(-1, 1)
        errors = []
        for step in range(self._steps):
            first, share = noise[:, step], step / self._steps
            link = first + share * (wanted - first)
            errors.append((self._velocity(records, link, step) - (wanted - first)).square().mean(dim=-1))
        return torch.stack(errors).mean(dim=0)

    def describe(self) -> Mapping[str, str]:
        return {"model": "flow", "parameters": str(sum(p.numel() for p in self.parameters()))}

    def _mean(self, obs: Mapping[str, Tensor], link: Tensor, step: int) -> Tensor:
        """Mean of the next link, float32 [B, K, A]."""
        return link + self._velocity(obs, link, step) / self._steps

    def _velocity(self, obs: Mapping[str, Tensor], link: Tensor, step: int) -> Tensor:
        time = torch.zeros(len(link), self._steps, device=link.device)
        time[:, step] = 1.0
        state = obs["state"][:, : self._state_dim]
        features = torch.cat([state, self.task(obs["task"]), link.flatten(1), time], dim=-1)
        velocity: Tensor = self.body(features).view_as(link)
        return velocity

    def _log_prob(self, link: Tensor, mean: Tensor, sampling: Sampling) -> Tensor:
        sigma = self._sigma * sampling.temperature
        return -(((link - mean) / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi))
