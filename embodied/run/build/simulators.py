"""Starts env workers, with the slab and the rollout that belong to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch

from embodied import schema
from embodied.errors import ConfigError
from embodied.observe.terminal.console import Console
from embodied.parallel.barrier import Gathers, Interruptible, gather_shares
from embodied.parallel.group import Group
from embodied.protocols import AnswersLater, Decodes, Policy
from embodied.run.build.engine import MAX_LANES, max_gap
from embodied.run.build.given import ConfiguredEnv, Sides
from embodied.run.build.policy import Model, record_fields, reproducible_arithmetic
from embodied.run.build.shares import folder_of_rank, render_gpus_of, slots_of
from embodied.run.build.workers.hosts import Hosts, hosts_of, open_port
from embodied.run.build.workers.pools import forks, pool_config
from embodied.run.folder.reporter import Reporter
from embodied.runtime.engine.engine import Engine
from embodied.runtime.engine.port import EnginePort
from embodied.runtime.policy.by_version import ByVersion
from embodied.runtime.policy.decoder import Decoder
from embodied.runtime.policy.later import Later
from embodied.runtime.policy.policy_port import OffersPort, OnePass, PolicyPort
from embodied.runtime.pool.fork_server import ForkServer
from embodied.runtime.ports import EnvPort
from embodied.runtime.records import RecordStore
from embodied.runtime.rollout.flowing import Flowing
from embodied.runtime.rollout.rollout import Job, Rollout, RolloutStats, Schedule
from embodied.runtime.rollout.traces import Traces
from embodied.runtime.slab import Slab
from embodied.runtime.worker.shown import Shown
from embodied.types import Episode, EpisodeResult, WorkerFacts

T = TypeVar("T")
FIRST_OBSERVATIONS = "first observations"
MAX_POLICY_BATCH = 8  # rows of a policy call unless rollout.policy_batch is set; a 7B model saturates a GPU there


@dataclass
class Workers:
    """The env workers of one side, with their slab and the rollout that drives them."""

    identity: str
    pool: EnvPort
    slab: Slab
    rollout: Rollout
    engine: Engine | None = None
    server: ForkServer | None = None  # forks the workers
    resting: bool = False

    def rest(self) -> None:
        """Ends the workers until the next :meth:`run` or :meth:`wake`; the slab stays."""
        self.pool.rest()
        self.rollout.forget()
        self.resting = True

    def wake(self, console: Console) -> None:
        """Starts the workers again if they rest."""
        if self.resting:
            with console.progress("starting env workers again", brief=True):
                self.pool.wake()
            self.resting = False

    def run(
        self, plan: Sequence[Episode], job: Job, name: str, reporter: Reporter,
        on_episode: Callable[[EpisodeResult], Mapping[str, str] | None] = lambda result: None,
    ) -> tuple[list[EpisodeResult], RolloutStats]:  # fmt: skip
        """Runs the episodes of ``plan`` on the workers, under a progress bar called ``name``.

        Args:
            on_episode: given each episode that ends, while its last row still stands in the slab; may return facts for
                the progress bar.
        """
        self.wake(reporter.console)
        with reporter.episodes(name, len(plan)) as bar:
            count = reporter.counting(bar, job)

            def ended(result: EpisodeResult) -> None:
                count(result, on_episode(result) or {})

            return self.rollout.collect(plan, job, ended, bar.at)

    def close(self) -> None:
        """Ends the workers and frees the slab."""
        self.pool.close()
        self.slab.close()


class Simulators:
    """Starts the workers of a run. All of them drive one policy.

    Args:
        folder: the run's.
        server: forks the workers; None = each is started by itself.
        engine: generates in the policy's place.
        is_run: False = the folder is that of no run, and gets no traces unless each rollout is to have one.
        learns: the policy of which ``model`` has a copy that acts; None = there is one policy.
        use: gives the policy the weights of a version; None = there is one version at a time.
        processes: those of the run, as the thread that runs rollouts speaks with them.
        hosts: have the workers; None = those that the configuration asks for, if it does.
    """

    def __init__(
        self, config: schema.Config, sides: Sides, processes: Group, model: Model, folder: Path, reporter: Reporter,
        server: ForkServer | None = None, engine: Engine | None = None, is_run: bool = True,
        learns: Policy | None = None, use: Callable[[int], None] | None = None, hosts: Hosts | None = None,
    ) -> None:  # fmt: skip
        self._config, self.sides = config, sides
        self.processes, self.model, self.reporter, self.engine = processes, model, reporter, engine
        self.collecting = processes.of("rollout")
        self._folder, self._server, self._is_run = folder, server, is_run
        self._hosts = hosts or hosts_of(config, processes)
        self._said: set[str] = set()
        self._probed = False
        self._learns = model.policy if learns is None else learns
        self._use = use if config.algorithm.max_staleness > 1 else None

    def open(self, side: ConfiguredEnv, rows: int, own_slots: int | None = None, live: bool = False) -> Workers:
        """Starts env workers for a side, with a slab of ``rows`` records.

        Args:
            own_slots: env slots that they have; None = as many as the side is configured with. The policy is asked in
                the configured batches either way, so that its answers are the same to the bit.
            live: videos are shown in a window while they are recorded.
        """
        config, processes, console = self._config, self.processes, self.reporter.console
        model, fields = self.model, record_fields(self.sides, self.model.policy.spec)
        shared = self.sides.train.identity == self.sides.eval.identity
        logs = folder_of_rank(self._folder / "logs", processes)
        if not shared and side.name != "train":
            logs /= side.name
        slots = slots_of(config, processes) if shared else self.collecting.divide(side.config.total_num_envs)
        records = config.actor.channel
        slab = Slab.create(fields, rows, f"{records.name or config.env.channel.name}.{records.queue_name}")
        try:
            usual = pool_config(side, own_slots or slots, config, logs, processes)
            shown = Shown.of(model.policy.spec, value=config.algorithm.adv_type == "gae")
            workers = replace(usual, server=self._server, live=live, shown=shown)
            with console.progress(f"starting {workers.num_workers} env workers", brief=True):
                pool = open_port(config, side, workers, slab, self._hosts, console.say)
        except BaseException:
            slab.close()
            raise
        self._say_once([*_renderers(pool.facts), *_eager_note(config, model.device)])
        rollout = (Flowing if self._use else Rollout)(
            pool, self._policy_port(slab, side, slots), RecordStore(slab), model.policy.spec.num_action_chunks,
            _schedule(config, slots), self.reporter.sections,
            self._traces(),
        )  # fmt: skip
        return Workers(side.identity, pool, slab, rollout, self.engine, self._server)

    def _traces(self) -> Traces:
        """Chooses which rollouts leave a trace; with the default only those of rank 0, in the folder of a run."""
        wanted = self._config.rollout.trace
        if wanted is False or (wanted == "first" and not (self._is_run and self.processes.is_main)):
            return Traces()
        which = "all" if wanted is True else wanted
        return Traces(folder_of_rank(self._folder / "trace", self.processes), which, self.reporter.console.say)

    def _policy_port(self, slab: Slab, side: ConfiguredEnv, slots: int) -> PolicyPort:
        """Returns the port through which the policy answers: its own if it has one, an engine's, one with lanes if it
        decodes, or one of whole passes."""
        config, model = self._config, self.model
        if isinstance(model.policy, OffersPort):
            return model.policy.port(slab)
        if self.engine is not None:
            gap = max_gap(config, model.policy)
            return EnginePort(self.engine, model.policy, slab, side.spec, model.device, gap, self._probe_once)
        if isinstance(model.policy, AnswersLater):
            if self._use is not None:
                raise ConfigError(
                    f"algorithm.max_staleness is {config.algorithm.max_staleness}, and answers of a policy behind a "
                    "server are waited for by one version of the weights at a time",
                    "set algorithm.max_staleness to 1 or 0",
                )
            return Later(model.policy, slab, side.spec, model.device, self._probe_once)
        own = config.algorithm.val_rollout_batch_size_per_gpu if side.name == "eval" else None
        rows = own or rows_of_call(model.policy, config.rollout, slots_of_call(slots, self.processes))
        eager = config.rollout.eager(rows)

        def make() -> PolicyPort:
            if isinstance(model.policy, Decodes):
                return Decoder(model.policy, slab, side.spec, model.device, rows, self._probe_once, eager)
            return OnePass(
                model.policy, slab, side.spec, model.device, rows,
                fixed_shape=config.runner.deterministic or not eager, enforce_eager=eager, before_act=self._probe_once,
            )  # fmt: skip

        return make() if self._use is None else ByVersion(make, self._use)

    def gather(self, stop: Interruptible, work: Callable[[], T], group: Gathers | None = None) -> list[T]:
        """Runs ``work`` in every process and gathers the results by rank.

        Args:
            group: through which it gathers, if not through :attr:`processes` itself.

        Raises:
            Stopped: in all processes; a signal has ended ``work`` in one.
        """
        return gather_shares(group or self.processes, stop, work, self._release, self.reporter.waiting)

    def _release(self) -> None:
        """Lets the processes go on that wait for the first observations of this one. It may have had none: it was
        stopped, or had nothing left to run."""
        if _sees_first(self.processes):
            self.processes.post(FIRST_OBSERVATIONS, None)

    def acting(self) -> AbstractContextManager[None]:
        """Context in which the policy acts in each process that collects. All that train enter it."""
        apart = {*self.collecting.members}.isdisjoint(self.processes.of("train").members)
        return nullcontext() if apart else self.model.sharding.acting()

    def probe_of_others(self) -> None:
        """Shows the policy the first observations in a process that collects none."""
        self._probe_once({})

    def _probe_once(self, obs: Mapping[str, torch.Tensor]) -> None:
        if not self._probed:
            self._probed = True
            seen = first_observations(obs, self.model.device, self.processes)
            if seen:
                for policy in {id(one): one for one in (self.model.policy, self._learns)}.values():
                    self._say_once(policy.probe(seen))

    def _say_once(self, texts: Iterable[str]) -> None:
        for text in texts:
            if text not in self._said:
                self._said.add(text)
                self.reporter.console.say(text)


@contextmanager
def open_fork_server(
    config: schema.Config, played: Sequence[ConfiguredEnv], processes: Group, folder: Path, console: Console
) -> Iterator[ForkServer | None]:
    """Starts the process that forks env workers, if ``env.start_method`` wants it. It imports and builds simulators
    while the policy is built, so start it before that.

    Args:
        played: the envs of its workers, the one that begins first.
    """
    elsewhere = config.runner.dry_run or hosts_of(config, processes) is not None  # hosts fork their workers themselves
    collects = processes.of("rollout").here
    if elsewhere or not collects or not forks(config.env, *(side.env for side in played)):
        yield None
        return
    if config.runner.deterministic:
        reproducible_arithmetic()
    envs = [(side.config.target, side.kwargs) for side in played]
    logs, gpus = folder_of_rank(folder / "logs", processes), render_gpus_of(config, processes)
    server = ForkServer(envs, logs, config.env.init_timeout_s, gpus, config.env.python, console.say)
    try:
        yield server
    finally:
        server.close()


def _sees_first(processes: Group) -> bool:
    """Returns whether this process is the first of those that collect."""
    return processes.of("rollout").is_main


def first_observations(
    obs: Mapping[str, torch.Tensor], device: torch.device, processes: Group
) -> Mapping[str, torch.Tensor] | None:
    """Returns the first observations of the first process that collects, so that all conclude the same from them; None
    if it stopped before it had any.

    It is no collective: a process that a signal stops never comes here.
    """
    if processes.size == 1:
        return obs
    if _sees_first(processes):
        processes.post(FIRST_OBSERVATIONS, {name: tensor.cpu().numpy() for name, tensor in obs.items()})
        return obs
    seen = processes.read(FIRST_OBSERVATIONS)
    return seen and {name: torch.from_numpy(array).to(device) for name, array in seen.items()}


def _schedule(config: schema.Config, slots: int) -> Schedule:
    rollout = config.rollout
    return Schedule(
        lockstep=rollout.schedule == "lockstep",
        min_batch=rollout.min_batch or max(1, slots // 8),
        stages=rollout.pipeline_stage_num,
        max_wait_s=float("inf") if rollout.max_wait_ms is None else rollout.max_wait_ms / 1000,
    )


def rows_of_call(policy: Policy, rollout: schema.RolloutConfig, slots: int) -> int:
    """Returns the most rows that a policy call has; of a policy that decodes, its lanes."""
    if isinstance(policy, Decodes):
        return rollout.policy_batch or min(slots, MAX_LANES)
    return policy_batch(rollout, slots)


def slots_of_call(slots: int, processes: Group) -> int:
    """Returns for how many slots a policy call is sized, where a process has ``slots``: those that it would have if all
    that train collected, so that bits depend on their number alone."""
    return max(1, slots * processes.of("rollout").size // processes.of("train").size)


def policy_batch(rollout: schema.RolloutConfig, slots: int) -> int:
    """Returns the rows of one policy call (``rollout.policy_batch``), for ``slots`` env slots of a process."""
    return rollout.policy_batch or min(slots, MAX_POLICY_BATCH)


def _renderers(facts: Iterable[WorkerFacts]) -> Iterator[str]:
    """Yields what the workers found: renderer with its reason, versions, warnings."""
    for fact in facts:
        yield f"renderer: {fact.renderer} ({fact.reason})"
        yield from (f"{name}: {text}" for name, text in fact.extra.items())


def _eager_note(config: schema.Config, device: torch.device) -> list[str]:
    if config.rollout.enforce_eager or device.type == "cuda":
        return []
    return [f"rollout.enforce_eager=false changes nothing on {device}: CUDA graphs need a GPU"]
