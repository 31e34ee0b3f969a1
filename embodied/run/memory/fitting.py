"""Finds sizes with which the env workers of a run fit into memory. Needs no torch and no simulator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from embodied import schema
from embodied.parallel.group import Group
from embodied.run.build.workers.worker_memory import WorkerMemory

Pools = Sequence[WorkerMemory]
MANY = 4096  # env slots beyond which none are counted


@dataclass(frozen=True)
class Change:
    """Other values of keys, and the workers of a process with them."""

    keys: Mapping[str, object]
    pools: Pools
    present: str = ""  # the present value

    @property
    def overrides(self) -> str:
        """The values as they are typed."""
        return " ".join(f"{key}={value}" for key, value in self.keys.items())

    @property
    def bytes(self) -> int:
        """Bytes of all workers of the process."""
        return needed(self.pools)


def needed(pools: Pools) -> int:
    """Returns the bytes of all workers of a process."""
    return sum(pool.all for pool in pools)


def remedies(config: schema.Config, processes: Group, pools: Pools, fits: Callable[[Pools], bool]) -> list[str]:
    """Returns settings with which the workers fit, each by itself; all of them together where none does by itself.

    Args:
        pools: those of a process.
        fits: whether these may be started.
    """
    now = Change({}, pools)
    ways: list[Callable[[Change], Iterator[Change]]] = [
        fewer_workers, _other_cache, _forks, lambda change: fewer_slots(config, processes, change),
    ]  # fmt: skip
    alone = [next((change for change in way(now) if fits(change.pools)), None) for way in ways]
    found = [_said(change) for change in alone if change is not None]
    if found:
        return found
    together = now
    for way in ways:  # what fits, else the least of each, on top of the one before
        for change in way(together):
            if fits(change.pools):
                return [_said(change)]
        together = min((together, *way(together)), key=lambda change: change.bytes)
    tasks = next((pool.says.keys["tasks"] for pool in pools if "tasks" in pool.says.keys), None)
    fewer = f"take fewer tasks (env.train.{tasks}), or " if tasks is not None else ""
    return [f"{fewer}use a machine with more memory: with {together.overrides or 'the least sizes'} "
            f"the workers take {together.bytes / 1e9:.2f} GB"]  # fmt: skip


def fewer_workers(change: Change) -> Iterator[Change]:
    """Yields fewer workers for the same slots, the most first."""
    most = max((pool.workers for pool in change.pools), default=0)
    for count in range(most - 1, 0, -1):
        pools = [pool.with_workers(count) for pool in change.pools]
        yield Change({**change.keys, "env.num_workers": count}, pools, f"now {most}")


def _other_cache(change: Change) -> Iterator[Change]:
    """Yields how many tasks a worker keeps, the least memory first. It may be more than now: tasks that come and go
    leave more behind than they take."""
    key = next((pool.says.keys["keeps"] for pool in change.pools if "keeps" in pool.says.keys), None)
    if key is None:
        return
    most = max(pool.tasks for pool in change.pools)
    ways = [[pool.keeping(count) for pool in change.pools] for count in range(most, 0, -1)]
    for pools in sorted(ways, key=needed):
        kept, present = pools[0].says.keeps, change.pools[0].says.keeps
        keys = {f"env.{side}.{key}": kept for side in ("train", "eval")}
        yield Change({**change.keys, **keys}, pools, f"now {present}")


def _forks(change: Change) -> Iterator[Change]:
    """Yields workers that are forked, where it is known what these take."""
    if any(pool.start_method == "spawn" and pool.says.forked for pool in change.pools):
        pools = [replace(pool, start_method="forkserver") for pool in change.pools]
        yield Change({**change.keys, "env.start_method": "forkserver"}, pools, "now spawn")


def fewer_slots(config: schema.Config, processes: Group, change: Change) -> Iterator[Change]:
    """Yields fewer env slots, the most first, with as many epochs as give whole groups and no fewer episodes."""
    if config.runner.task.records or config.data.rollout_batch_size is not None:
        return
    size, most = processes.of("rollout").size, max((pool.slots for pool in change.pools), default=0)
    for slots in range(most - 1, 0, -1):
        pools = [pool.with_slots(slots) for pool in change.pools]
        totals = {"train": config.env.train.total_num_envs, "eval": config.env.eval.total_num_envs}
        keys = {f"env.{side}.total_num_envs": min(total, slots * size) for side, total in totals.items()}
        if not schema.only_evaluates(config):
            keys["algorithm.rollout_epoch"] = whole_groups(config, keys["env.train.total_num_envs"], size)
        if isinstance(config.env.num_workers, int) and config.env.num_workers > slots:
            keys["env.num_workers"] = max(pool.workers for pool in pools)
        yield Change({**change.keys, **keys}, pools, f"now {most * size}")


def whole_groups(config: schema.Config, slots: int, processes: int = 1) -> int:
    """Returns the epochs with which ``slots`` make as many episodes as now or a few more, in groups that the processes
    can share equally."""
    episodes = config.algorithm.rollout_epoch * config.env.train.total_num_envs
    epochs, unit = math.ceil(episodes / slots), config.algorithm.group_size * processes
    return next(count for count in range(epochs, epochs + unit) if (count * slots) % unit == 0)


def most_slots(pools: Pools, room: int) -> int | None:
    """Returns how many env slots of a process fit, on the workers that there are, at most :data:`MANY`; None: no
    pool."""
    if not pools:
        return None
    first = max(pool.slots for pool in pools)
    fits = (n for n in range(MANY, first, -1) if needed([replace(pool, slots=n) for pool in pools]) <= room)
    return next(fits, first)


def _said(change: Change) -> str:
    return f"set {change.overrides} ({change.present})"
