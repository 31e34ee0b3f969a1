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
from embodied.protocols import NamesSampler, NamesWeights, Policy
from embodied.run.build.action_kind import ActionKind, kind_of_sampling
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
        words, number = self.kind.words, self.episodes_per_task
        episodes = f"{number} {words.episode if number == 1 else words.episodes}"
        episodes += f" × {self.group_size}" if self.group_size > 1 else ""
        length = self.kind.length(self._cut, self.max_steps)
        said = f"{episodes} of each task, {self.starts}, {self.drawn}".rstrip(", ")
        return [said, *([f"each {words.episode} {length}"] if length else [])]

    @property
    def kind(self) -> ActionKind:
        """Whether these are conditions of robots or of texts."""
        return kind_of_sampling(self.sampling)

    @property
    def drawn(self) -> str:
        """``sampled`` or ``greedy``; empty for answers that were drawn elsewhere."""
        return actions(bool(self.sampling["do_sample"])) if "do_sample" in self.sampling else ""

    @property
    def starts(self) -> str:
        """Describes in words which initial states are used."""
        states, wanted = sorted(set(self.init_states_per_task)), self.episodes_per_task
        called = self.kind.words.states
        if states == [1]:
            return "each with a seed of its own"
        if self.held_out_states:
            held_out = f"the last {self.held_out_states} of {states[-1]} {called}, which are held out"
            if not self.use_fixed_reset_state_ids:
                return f"drawn from {held_out}"
            return f"from {f'the first {wanted} of ' if wanted < self.held_out_states else ''}{held_out}"
        has = f"{states[0]}" if len(states) == 1 else f"{states[0]} to {states[-1]}"
        if not self.use_fixed_reset_state_ids:
            return f"drawn from {has} {called}"
        if wanted >= states[-1]:
            return f"from all {has} {called}{self._once}"
        return f"from the first {f'{wanted} ' if wanted > 1 else ''}of {has} {called}"

    @property
    def _once(self) -> str:
        """Says why each problem is asked once, where that may be fewer than ``env.eval.episodes_per_task``."""
        once = self.kind.asks_once(bool(self.sampling.get("do_sample")) or "greedy_noise" in self.sampling)
        return ", each once (a greedy answer does not change)" if once else ""

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
        weights=_weights(config, policy, folder, iteration), max_steps=side.max_steps,
        env_max_steps=side.spec.max_episode_steps,
        episodes_per_task=episodes_per_task(config, side), init_states_per_task=side.spec.num_init_states,
        use_fixed_reset_state_ids=own.use_fixed_reset_state_ids, ignore_terminations=own.ignore_terminations,
        reward_mode=own.reward_mode, reward_coef=own.reward_coef, use_rel_reward=own.use_rel_reward,
        sampling=sampling_facts(sampling(config.algorithm.val_sampling_params), side, policy),
        env_seed=own.seed, seed=config.runner.seed,
        group_size=config.algorithm.val_group_size,
        held_out_states=config.protocol.held_out_states if max(side.spec.num_init_states) > 1 else 0,
    )  # fmt: skip


def asks_once(config: schema.Config, side: ConfiguredEnv) -> bool:
    """Returns whether the evaluation runs each initial state once at most, because its episode would be the same."""
    sampled, states = config.algorithm.val_sampling_params.do_sample is not False, max(side.spec.num_init_states)
    assert isinstance(side.config, EnvEvalConfig)
    return side.kind.asks_once(sampled) and states > 1 and side.config.use_fixed_reset_state_ids


def episodes_per_task(config: schema.Config, side: ConfiguredEnv) -> int:
    """Returns how many initial states of a task are run at most."""
    wanted = config.env.eval.episodes_per_task
    return min(wanted, max(side.spec.num_init_states)) if asks_once(config, side) else wanted


def episode_count(config: schema.Config, side: ConfiguredEnv) -> int:
    """Returns the initial states of all tasks that are run, without further episodes of each."""
    each, once = episodes_per_task(config, side), asks_once(config, side)
    return sum(min(each, states) if once else each for states in side.spec.num_init_states)


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


def _weights(config: schema.Config, policy: Policy, folder: Path, iteration: int) -> str:
    """Says whose weights are evaluated."""
    if config.runner.answers is not None:
        return config.runner.answers
    if config.runner.only_eval:
        if isinstance(policy, NamesWeights) and config.runner.ckpt_path is None:
            return ", ".join(f"{name} {value}" for name, value in policy.weights().items())
        named = (config.actor.model.model_extra or {}).get("model_path") or "that actor.model names"
        as_built = "random weights" if policy.spec.random_weights else f"the weights {named}"
        return config.runner.ckpt_path or as_built
    average = ", their moving average" if config.actor.optim.ema_decay is not None else ""
    return f"{folder} after {iteration} iterations{average}"


def what_to_expect(config: schema.Config, side: ConfiguredEnv, spec: PolicySpec) -> list[str]:
    """Returns lines that tell the user which metrics will move, for a training that starts from random weights; else
    none."""
    if not spec.random_weights or config.runner.ckpt_path is not None:
        return []
    return [side.kind.from_random_weights(side.config.reward_mode == "dense", "images" in side.spec.obs)]


def limit_of(side: ConfiguredEnv) -> str:
    """Formats a note beside a step limit that differs from the env's own; else empty."""
    own = side.spec.max_episode_steps
    return "" if side.max_steps == own else f" (the env's own limit: {own})"
