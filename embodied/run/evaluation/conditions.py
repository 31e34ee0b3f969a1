"""The conditions of an evaluation. Success cannot be compared without them, so they stand in ``eval/*.json``, at the
head of its table, and among the numbers that are printed before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from embodied import schema
from embodied.learn.checkpoint.metadata import read_meta
from embodied.observe.reach import actions
from embodied.protocols import NamesSampler, Policy
from embodied.run.build.given import ConfiguredEnv
from embodied.run.build.policy import sampling
from embodied.schema import EnvEvalConfig
from embodied.types import PolicySpec, Sampling


@dataclass(frozen=True)
class Conditions:
    """Settings on which an evaluation's success depends, beside the tasks."""

    weights: str  # origin of the weights: a checkpoint's folder, or a run and how far it is
    max_steps: int  # control steps at which episodes are cut off
    env_max_steps: int  # the env's own limit, control steps
    episodes_per_task: int
    init_states_per_task: tuple[int, ...]  # how many fixed ones each task has
    use_fixed_reset_state_ids: bool  # the first of these; else drawn by the seed
    ignore_terminations: bool
    reward_mode: str
    reward_coef: float
    use_rel_reward: bool
    sampling: Mapping[str, Any]  # how actions are drawn
    env_seed: int  # offset of the starts' seeds
    seed: int
    group_size: int = 1  # episodes of each start
    held_out_states: int = 0  # initial states of each task that training leaves out; these alone are taken

    @property
    def head(self) -> list[str]:
        """Lines that describe the conditions above the success table."""
        episodes = "1 episode" if self.episodes_per_task == 1 else f"{self.episodes_per_task} episodes"
        episodes += f" × {self.group_size}" if self.group_size > 1 else ""
        return [f"{episodes} of each task, {self.starts}, {self.drawn}".rstrip(", "), f"each episode {self._cut}"]

    @property
    def drawn(self) -> str:
        """``sampled`` or ``greedy``; empty for answers that were drawn elsewhere."""
        return actions(bool(self.sampling["do_sample"])) if "do_sample" in self.sampling else ""

    @property
    def starts(self) -> str:
        """Describes in words which initial states are used."""
        states, wanted = sorted(set(self.init_states_per_task)), self.episodes_per_task
        if states == [1]:
            return "each with a seed of its own"
        if self.held_out_states:
            held_out = f"the last {self.held_out_states} of {states[-1]} initial states, which are held out"
            if not self.use_fixed_reset_state_ids:
                return f"drawn from {held_out}"
            return f"from {f'the first {wanted} of ' if wanted < self.held_out_states else ''}{held_out}"
        has = f"{states[0]}" if len(states) == 1 else f"{states[0]} to {states[-1]}"
        if not self.use_fixed_reset_state_ids:
            return f"drawn from {has} initial states"
        if wanted >= states[-1]:
            again = wanted > states[-1] and "max_new_tokens" in self.sampling and _repeats(self.sampling)
            same = f"; a greedy answer does not change, so env.eval.episodes_per_task={states[-1]} says as much"
            return f"from all {has} initial states{same if again else ''}"
        return f"from the first {f'{wanted} ' if wanted > 1 else ''}of {has} initial states"

    @property
    def limit(self) -> str:
        """The step limit of an episode in words, compared with the env's own limit, and what that means for success:
        said once, before the evaluations."""
        if self.max_steps == self.env_max_steps:
            return self._cut
        unless = "" if self.max_steps < self.env_max_steps else " unless the env itself ends its episodes there"
        return f"{self._cut}, so success is not the benchmark's{unless}"

    @property
    def _cut(self) -> str:
        after = ", also after success" if self.ignore_terminations else ""
        if self.max_steps == self.env_max_steps:
            return f"at most {self.max_steps} control steps, the env's own limit{after}"
        if self.max_steps < self.env_max_steps:
            return f"cut at {self.max_steps} of {self.env_max_steps} control steps{after}"
        return f"at most {self.max_steps} control steps where the env's own limit is {self.env_max_steps}{after}"


def conditions(config: schema.Config, side: ConfiguredEnv, policy: Policy, folder: Path, iteration: int) -> Conditions:
    """Returns the conditions of ``side``'s evaluation after ``iteration`` iterations of the run in ``folder``."""
    own = side.config
    assert isinstance(own, EnvEvalConfig)
    return Conditions(
        weights=_weights(config, policy.spec, folder, iteration), max_steps=side.max_steps,
        env_max_steps=side.spec.max_episode_steps,
        episodes_per_task=own.episodes_per_task, init_states_per_task=side.spec.num_init_states,
        use_fixed_reset_state_ids=own.use_fixed_reset_state_ids, ignore_terminations=own.ignore_terminations,
        reward_mode=own.reward_mode, reward_coef=own.reward_coef, use_rel_reward=own.use_rel_reward,
        sampling=sampling_facts(sampling(config.algorithm.val_sampling_params), side, policy),
        env_seed=own.seed, seed=config.runner.seed,
        group_size=config.algorithm.val_group_size,
        held_out_states=config.protocol.held_out_states if max(side.spec.num_init_states) > 1 else 0,
    )  # fmt: skip


def env_of(side: ConfiguredEnv) -> dict[str, Any]:
    """Returns the evaluated env with its arguments. With equal ones, equal numbers name equal starts."""
    return {"_target_": side.config.target, **side.kwargs}


def checkpoint_of(config: schema.Config) -> dict[str, Any] | None:
    """Returns the checkpoint that is evaluated, and the network below it; None if there is none."""
    if not config.runner.only_eval or config.runner.ckpt_path is None or config.runner.answers is not None:
        return None
    identity = read_meta(Path(config.runner.ckpt_path)).identity
    base = schema.target_kwargs(config.actor.model, "actor.model").get("model_path")
    return {"path": config.runner.ckpt_path, "identity": identity, "model_path": base}


def sampling_facts(drawn: Sampling, side: ConfiguredEnv, policy: Policy) -> dict[str, Any]:
    """Returns how actions are drawn; for robots without the fields that only texts have, and with the policy's own."""
    fields = asdict(drawn)
    del fields["logprob_dtype"]  # a training's alone
    own = policy.sampler(drawn) if isinstance(policy, NamesSampler) else {}
    noisy = {"greedy_noise": True} if policy.spec.noise.greedy else {}
    return {**side.kind.sampling_fields(fields), **own, **noisy}


def _repeats(drawn: Mapping[str, Any]) -> bool:
    """Whether an answer to an equal observation is equal."""
    return not drawn["do_sample"] and "greedy_noise" not in drawn


def _weights(config: schema.Config, spec: PolicySpec, folder: Path, iteration: int) -> str:
    """Says whose weights are evaluated."""
    if config.runner.answers is not None:
        return config.runner.answers
    if config.runner.only_eval:
        named = (config.actor.model.model_extra or {}).get("model_path") or "that actor.model names"
        as_built = "random weights" if spec.random_weights else f"the weights {named}"
        return config.runner.ckpt_path or as_built
    average = ", their moving average" if config.actor.optim.ema_decay is not None else ""
    return f"{folder} after {iteration} iterations{average}"


def what_to_expect(config: schema.Config, reward_mode: str, spec: PolicySpec) -> list[str]:
    """Returns lines that tell the user which metrics will move, for a training that starts from random weights; else
    none."""
    if not spec.random_weights or config.runner.ckpt_path is not None:
        return []
    if reward_mode == "dense":
        what = (
            "Expect success to stay at 0 or near it, as tasks are hardly ever solved by chance, and the return to "
            "rise: env.train.reward_mode=dense pays for progress."
        )
    else:
        what = (
            "Tasks are hardly ever solved by chance, and with env.train.reward_mode=sparse nothing is learnt before "
            "one is: env.train.reward_mode=dense pays for progress."
        )
    return [
        f"The policy begins with random weights: no demonstrations, no checkpoint. {what} Success takes a policy that "
        "was cloned first (embodied.tools.demos, embodied.sft, then embodied.train with runner.ckpt_path); "
        "docs/results/quickstart.md shows one that learns."
    ]


def limit_of(side: ConfiguredEnv) -> str:
    """Formats a note beside a step limit that differs from the env's own; else empty."""
    own = side.spec.max_episode_steps
    return "" if side.max_steps == own else f" (the env's own limit: {own})"
