"""Workers with their slab and the rollout that drives them, as the configuration wants them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied import schema
from embodied.observe.console import Console
from embodied.observe.timing import Sections
from embodied.parallel.group import World
from embodied.protocols import Batched
from embodied.run.preflight import Checked, EnvSide, render_gpus_of, slots_of, workers_of
from embodied.types import ArraySpec, WorkerFacts

if TYPE_CHECKING:  # torch takes seconds to import
    import torch

    from embodied.protocols import Policy
    from embodied.runtime.fork_server import ForkServer
    from embodied.runtime.pool import Pool
    from embodied.runtime.rollout import Rollout
    from embodied.runtime.slab import Slab

FIRST_OBSERVATIONS = "first observations"
# rows of a policy call unless rollout.policy_batch says otherwise; a 7B model saturates a GPU there
MAX_POLICY_BATCH = 8


@dataclass
class Collector:
    """A pool of workers with the rollout that drives it."""

    identity: str
    pool: Pool
    slab: Slab
    rollout: Rollout

    def close(self) -> None:
        self.pool.close()
        self.slab.close()


@dataclass
class Collectors:
    """Opens the collectors of a run; all of them drive one policy."""

    checked: Checked
    policy: Policy
    device: torch.device
    fields: Mapping[str, ArraySpec]  # of a record
    sections: Sections
    folder: Path  # the run's
    console: Console
    server: ForkServer | None  # what forks the workers; None: each is started by itself
    _said: set[str] = field(default_factory=set)  # what the console knows already
    _probed: bool = False

    def open(self, side: EnvSide, rows: int) -> Collector:
        """Starts the workers of a side, with a slab of ``rows`` records."""
        from embodied.runtime.policy_port import OnePass
        from embodied.runtime.pool import Pool
        from embodied.runtime.rollout import Rollout
        from embodied.runtime.slab import Slab

        config, world = self.checked.config, self.checked.world
        shared = self.checked.train.identity == self.checked.eval.identity
        logs = folder_of_rank(self.folder / "logs", world)
        if not shared and side.name != "train":
            logs /= side.name
        slots = slots_of(config, world) if shared else world.divide(side.config.total_num_envs)
        slab = Slab.create(self.fields, rows, f"{config.env.channel.name}.slab")
        try:
            workers = replace(pool_config(side, slots, config, logs, world), server=self.server)
            with self.console.progress(f"starting {workers.num_workers} env workers", brief=True):
                pool = Pool(workers, slab, self.console.say)
        except BaseException:
            slab.close()
            raise
        self._say_once([*_renderers(pool.facts), *_eager_note(config, self.device)])
        policy = OnePass(
            self.policy, slab, side.spec, self.device, policy_batch(config.rollout, slots),
            fixed_shape=config.runner.deterministic or not config.rollout.enforce_eager,
            enforce_eager=config.rollout.enforce_eager, before_act=self._probe_once,
        )  # fmt: skip
        rollout = Rollout(
            pool, policy, slab, self.policy.spec.num_action_chunks, _schedule(config, slots), self.sections,
            trace=folder_of_rank(self.folder / "trace", world) if config.rollout.trace else None,
        )  # fmt: skip
        return Collector(side.identity, pool, slab, rollout)

    def _probe_once(self, obs: Mapping[str, torch.Tensor]) -> None:
        if not self._probed:
            self._probed = True
            seen = first_observations(obs, self.device, self.checked.world)
            self._say_once(self.policy.probe(seen) if seen else ())

    def _say_once(self, texts: Iterable[str]) -> None:
        for text in texts:
            if text not in self._said:
                self._said.add(text)
                self.console.say(text)


def folder_of_rank(folder: Path, world: World) -> Path:
    """Where this process leaves what each rank has of its own."""
    return folder if world.size == 1 else folder / f"rank-{world.rank:02d}"


def first_observations(
    obs: Mapping[str, torch.Tensor], device: torch.device, world: World
) -> Mapping[str, torch.Tensor] | None:
    """Those of rank 0, so that all ranks conclude the same from them; None if it stopped before it had any.

    Not a meeting: a rank that a signal stops never comes here.
    """
    if world.size == 1:
        return obs
    if world.is_main:
        world.post(FIRST_OBSERVATIONS, {name: tensor.cpu().numpy() for name, tensor in obs.items()})
        return obs
    import torch

    seen = world.read(FIRST_OBSERVATIONS)
    return seen and {name: torch.from_numpy(array).to(device) for name, array in seen.items()}


def pool_config(side: EnvSide, slots: int, config: schema.Config, logs: Path, world: World) -> Any:
    from embodied.runtime.pool import Deadlines, PoolConfig
    from embodied.runtime.reward import ShapedReward

    env, commands, completions = config.env, config.rollout.channel, config.env.channel
    return PoolConfig(
        num_slots=slots, num_workers=workers_of(side, config, slots, world), env_target=side.config.target,
        env_kwargs=side.kwargs, reward=ShapedReward(*side.reward),
        deadlines=Deadlines(env.init_timeout_s, env.reset_timeout_s, env.step_timeout_s), log_dir=logs,
        info_on_video=side.config.video_cfg.info_on_video,
        env_channel=(completions.name, completions.queue_name, completions.queue_size),
        rollout_channel=(commands.name, commands.queue_name, commands.queue_size),
        max_restarts=env.max_worker_restarts, python=env.python, pin=env.pin_workers,
        gpus=render_gpus_of(config, world), rank=world.local_rank, ranks=world.local_size,
        batch=isinstance(side.env, Batched),
    )  # fmt: skip


def _schedule(config: schema.Config, slots: int) -> Any:
    from embodied.runtime.rollout import Schedule

    rollout = config.rollout
    return Schedule(
        lockstep=rollout.schedule == "lockstep",
        min_batch=rollout.min_batch or max(1, slots // 8),
        stages=rollout.pipeline_stage_num,
        max_wait_s=float("inf") if rollout.max_wait_ms is None else rollout.max_wait_ms / 1000,
    )


def policy_batch(rollout: schema.RolloutConfig, slots: int) -> int:
    """Rows of one policy call, for the slots of a rank."""
    return rollout.policy_batch or min(slots, MAX_POLICY_BATCH)


def _renderers(facts: Iterable[WorkerFacts]) -> Iterator[str]:
    """What the workers found: renderer with its reason, versions, warnings."""
    for fact in facts:
        yield f"renderer: {fact.renderer} ({fact.reason})"
        yield from (f"{name}: {text}" for name, text in fact.extra.items())


def _eager_note(config: schema.Config, device: torch.device) -> list[str]:
    if config.rollout.enforce_eager or device.type == "cuda":
        return []
    return [f"rollout.enforce_eager=false changes nothing on {device}: CUDA graphs need a GPU"]
