"""Counts what off-policy learning takes: a pass of actor and critics, and the copies of what is remembered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from embodied import schema
from embodied.learn.actor_critic.memory import copied_bytes, entry_fields
from embodied.protocols import CHUNK, ActorCritic, Policy
from embodied.run.build.given import ConfiguredEnv
from embodied.run.memory.footprint import Footprint
from embodied.types import Evaluation, Sampling


def run(
    policy: Policy, records: Mapping[str, Tensor], config: schema.Config, sampling: Sampling
) -> Evaluation | Tensor:  # fmt: skip
    """Makes the forward pass of an update: an evaluation of ``records``; of soft actor-critic a number that hangs on
    actor and critics as its loss does."""
    if config.algorithm.learner != "sac" or not isinstance(policy, ActorCritic):
        return policy.evaluate(records, sampling)
    noise, records = torch.zeros_like(records[CHUNK]), policy.prepare(records)
    with torch.no_grad():
        policy.judge(records, policy.propose(records, noise)[0], "target")
    judged = policy.judge(records, records[CHUNK])
    chunks, logprobs = policy.propose(records, noise)
    acted = policy.judge(records, chunks, "frozen").sum() - logprobs.sum()
    return judged.sum() + acted + policy.log_temperature


def total(result: Evaluation | Tensor) -> Tensor:
    """Returns one number of all that a pass has computed."""
    if isinstance(result, Tensor):
        return result
    parts = (result.logprobs, result.entropy, result.value)
    return sum((part.float().sum() for part in parts if part is not None), start=torch.zeros(()))


def most_entries(config: schema.Config, side: ConfiguredEnv, policy: Policy, processes: int) -> int:
    """Returns how many entries a process remembers at most until the run ends: the chunks of its episodes, and a last
    observation of each."""
    episodes = -(-schema.episodes_per_iteration(config) // processes) * config.runner.max_epochs
    return episodes * (-(-side.max_steps // policy.spec.num_action_chunks) + 1)


def with_replay(
    taken: Footprint, config: schema.Config, side: ConfiguredEnv, policy: Policy, processes: int
) -> Footprint:  # fmt: skip
    """Adds the copy in host memory of the records that a process remembers when the run ends."""
    runs = config.algorithm.learner == "sac" and not (config.runner.only_eval or config.runner.task.supervised)
    if not runs or not isinstance(policy, ActorCritic):
        return taken
    kept = config.algorithm.replay
    fields = entry_fields(policy, side.spec, kept.share(side.spec.interventions) > 0)
    copies = copied_bytes(fields, kept, most_entries(config, side, policy, processes))
    return replace(taken, host={**taken.host, "copies of replayed records": copies})
