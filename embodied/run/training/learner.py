"""Makes what a process has of reinforcement learning: the learner, or what stands for it where others train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from embodied.errors import ConfigError
from embodied.learn.actor_critic.learner import ActorCriticLearner
from embodied.learn.ranks.deal import Dealer
from embodied.learn.ranks.sides import Learner, Links, RolloutSide, TrainSide, links
from embodied.learn.score.own_successes import OwnSuccesses
from embodied.learn.score.start_memory import StartMemory
from embodied.learn.step.meters.mfu import peak_flops
from embodied.learn.trainer import Trainer
from embodied.observe.terminal.console import Console
from embodied.parallel.acting_replica import acting_dtypes
from embodied.parallel.group import Group
from embodied.protocols import HasProgressFeatures
from embodied.run.build.given import ConfiguredEnv, Sides
from embodied.run.build.policy import Model, record_fields, sampling
from embodied.run.memory.replay_memory import most_entries
from embodied.schema import Config

FEW = 0.1  # share of demonstrated chunks from which on it is said that they are clamped


def make_learner(
    config: Config, sides: Sides, model: Model, processes: Group, folder: Path,
    stops: Callable[[], bool] = lambda: False,
) -> Learner:  # fmt: skip
    """Makes the learner of a training, or what stands for it in a process that only collects. A collective where
    processes have different roles.

    Args:
        folder: of the run.
        stops: whether a stop signal has come here.
    """
    if config.algorithm.learner == "sac":
        if processes.is_split:
            raise ConfigError(
                "cluster.component_placement has processes that only collect or only train, and algorithm.learner sac "
                "keeps the records where they were collected",
                "leave cluster.component_placement out",
            )
        return _make_actor_critic(config, sides.train, model, folder, processes.size)
    if not processes.is_split:
        return make_trainer(config, sides.train, model)
    connected = _links(config, sides, model, processes, stops)
    if processes.of("train").here:
        return make_trainer(config, sides.train, model, links=connected)
    return RolloutSide(model.policy, model.device, connected, memory_of_starts(config, sides.train))


def _make_actor_critic(
    config: Config, side: ConfiguredEnv, model: Model, folder: Path, processes: int
) -> ActorCriticLearner:  # fmt: skip
    runner, kept = config.runner, config.algorithm.replay
    replay = folder / "replay" if kept.path is None else Path(kept.path) / folder.name
    return ActorCriticLearner(
        policy=model.policy, env=side.spec, actor=config.actor, algorithm=config.algorithm, device=model.device,
        seed=runner.seed, max_bad_updates=runner.max_bad_updates, iterations=runner.max_epochs,
        peak_flops=peak_flops(runner.peak_tflops, model.policy, model.device), parallel=model.sharding,
        weight_sync_interval=runner.weight_sync_interval, replay=None if runner.dry_run else replay,
        origin=f"{side.config.target} and {config.actor.model.target}",
        expected=most_entries(config, side, model.policy, processes),
    )  # fmt: skip


def show_demonstrations(
    learner: ActorCriticLearner, episodes: Sequence[Any], reward: float, console: Console
) -> None:  # fmt: skip
    """Gives a learner the demonstrations of ``algorithm.replay.demonstrations``, and says if it can follow few of them.
    A dry run gives none.

    Args:
        episodes: demonstrated ones (:class:`embodied.data.demonstrations.Demonstration`), or none.
        reward: of the success that ends each.

    Raises:
        EmbodiedError: see :meth:`ActorCriticLearner.show`.
    """
    if not episodes or learner.replay is None:
        return
    learner.show(
        episodes, reward,
        partial(console.progress, "asking the base about demonstrated observations"),
    )  # fmt: skip
    assert learner.shown is not None
    count, clamped = len(learner.shown.entries), learner.shown.clamped
    if clamped > FEW * count:
        console.say(
            f"  {clamped} of {count} demonstrated chunks lie beyond what the policy can do, and the nearest that it "
            "can stand in their place (train/demonstrations_clamped); a residual head reaches further with a larger "
            "actor.model.residual_scale"
        )


def _links(config: Config, sides: Sides, model: Model, processes: Group, stops: Callable[[], bool]) -> Links:
    spec, texts = model.policy.spec, config.algorithm.min_filter_prefix_tokens is not None
    dealer = Dealer(processes, sides.train.spec, spec, record_fields(sides, spec), texts)
    dtypes = acting_dtypes(model.policy, config.actor.fsdp_config, model.sharding.collective_passes)
    checks = config.rollout.validate_weight is not False
    return links(dealer, dtypes, checks, stops)


def make_trainer(config: Config, side: ConfiguredEnv, model: Model, **more: Any) -> Trainer:
    """Makes the learner of a training in the env of ``side``.

    Args:
        more: what else a :class:`TrainSide` needs.
    """
    kind = partial(TrainSide, **more) if more else Trainer
    return kind(
        policy=model.policy, env=side.spec, actor=config.actor, algorithm=config.algorithm,
        sampling=sampling(config.algorithm.sampling_params, config.algorithm.logprob_dtype), device=model.device,
        seed=config.runner.seed,
        max_steps=side.max_steps, max_bad_updates=config.runner.max_bad_updates, parallel=model.sharding,
        reward=config.reward, iterations=config.runner.max_epochs,
        max_tokens=config.runner.max_tokens_per_mbs if config.runner.enable_dynamic_batch_size else None,
        recompute_logprobs=config.rollout.recompute_logprobs, weight_sync_interval=config.runner.weight_sync_interval,
        peak_flops=peak_flops(config.runner.peak_tflops, model.policy, model.device),
        starts=memory_of_starts(config, side), successes=_successes(config, side, model.policy.spec.num_action_chunks),
    )  # fmt: skip


def _successes(config: Config, side: ConfiguredEnv, chunk: int) -> OwnSuccesses | None:
    """Makes what remembers successes, if ``env.train.reward_mode`` asks for it."""
    if side.config.reward_mode != "own_successes":
        return None
    assert isinstance(side.env, HasProgressFeatures)  # preflight refuses the others
    kept, points = config.reward.own_successes, -(-side.max_steps // chunk) + 1
    return OwnSuccesses(
        len(side.spec.tasks), kept.per_task, points, side.env.num_progress_features, config.algorithm.gamma,
        kept.weight * side.config.reward_coef,
    )  # fmt: skip


def memory_of_starts(config: Config, side: ConfiguredEnv) -> StartMemory | None:
    """Makes what remembers the starts of ``side``, if advantages or plans are made from it."""
    plans = config.data.start_sampling == "informative"
    if not plans and config.algorithm.adv_type != "start_value":
        return None
    return StartMemory(side.spec, config.algorithm.start_value, config.algorithm.max_staleness if plans else None)
