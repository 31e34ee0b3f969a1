"""Shows what env workers take of a machine's memory, and refuses those that cannot fit. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from embodied import schema
from embodied.errors import DeviceMemoryError
from embodied.parallel.group import Group
from embodied.run.build.given import Sides
from embodied.run.build.shares import render_gpus_of
from embodied.run.build.workers.worker_memory import UNKNOWN, WorkerMemory, memories_of, workers_that_fit
from embodied.run.memory.fitting import MANY, Pools, most_slots, needed, remedies
from embodied.run.memory.footprint import readable
from embodied.runtime.memory import address_limit, free_memory
from embodied.runtime.pool.placement import Gpu


def check(config: schema.Config, sides: Sides, processes: Group) -> str | None:
    """Refuses env workers that cannot fit into what the machine has left, or whose address space is limited
    (``ulimit -v``). Whatever else the run needs is not counted here.

    Returns:
        what could not be looked at; None if all was.

    Raises:
        DeviceMemoryError: it names keys with values that fit.
    """
    pools = memories_of(config, sides, processes)
    check_addresses(config, processes, pools)
    if (free := free_memory()) is None:
        return "what the machine has left of its memory is not known (no /proc/meminfo), so env workers may not fit"
    room, least = free // processes.local_size, needed(at_least(pools, config, processes))
    if least > room:
        each = "" if processes.local_size == 1 else f" of each of the {processes.local_size} processes"
        raise DeviceMemoryError(
            f"the env workers{each} need {readable(least)}, and the machine has {readable(room)} left for them: "
            f"{'; '.join(map(described, pools))}",
            "; or ".join(remedies_within(room, config, processes, pools)),
        )
    return None


def at_least(pools: Pools, config: schema.Config, processes: Group) -> Pools:
    """Returns the workers of a process with what they take for certain: where they may draw on a GPU, without what it
    then holds."""
    return [_undrawn(pool) for pool in pools] if render_gpus_of(config, processes) else pools


def remedies_within(room: int, config: schema.Config, processes: Group, pools: Pools) -> list[str]:
    """Returns settings with which the workers of a process fit into ``room`` bytes."""
    return remedies(config, processes, pools, lambda pools: needed(at_least(pools, config, processes)) <= room)


def _undrawn(pool: WorkerMemory) -> WorkerMemory:
    tasks = tuple(int(size * (1 - pool.says.drawn)) for size in pool.says.tasks)
    return replace(pool, says=replace(pool.says, tasks=tasks))


def check_addresses(config: schema.Config, processes: Group, pools: Pools) -> None:
    """Refuses workers whose address space is limited (``ulimit -v``). Raises :class:`DeviceMemoryError`."""
    limit = address_limit()
    most = max((pool.addressed for pool in pools), default=0)
    if limit is None or most <= limit:
        return

    def fits(pools: Pools) -> bool:
        return max(pool.addressed for pool in pools) <= limit

    raise DeviceMemoryError(
        f"an env worker needs {readable(most)} of address space, and the shell allows {readable(limit)} (ulimit -v): "
        "MuJoCo and its kin reserve more than they use",
        "; or ".join(["ulimit -v unlimited, in the shell that starts it", *remedies(config, processes, pools, fits)]),
    )


def described(pool: WorkerMemory) -> str:
    """Says what the workers of a pool take.

    >>> described(WorkerMemory(1, 8, 2, "spawn"))
    '2 workers · 20.0 MiB, 6 further slots · 0.0 MiB (spawn)'
    """
    more = pool.slots - pool.workers
    tasks = f" with {pool.kept} of {pool.tasks} tasks" if pool.tasks > 1 else ""
    parts = [f"{pool.workers} workers{tasks} · {readable(pool.worker)}"]
    parts += [f"{more} further slots · {readable(pool.further)}"] if more else []
    parts += [f"the server that forks them {readable(pool.server)}"] if pool.server else []
    parts += [f"libraries {readable(pool.says.files)}"] if pool.says.files else []
    return f"{', '.join(parts)} ({pool.start_method})"


def rows_of(pools: Sequence[WorkerMemory], each: str, gpus: Sequence[Gpu]) -> list[list[str]]:
    """Returns rows of a dry run's table.

    Args:
        each: what is behind the names, if there are several processes.
        gpus: those that workers draw on.
    """
    rows = []
    for pool in pools:
        least = ", at the least" if pool.says == UNKNOWN else ""
        rows.append([f"memory of env workers{each}", f"{readable(pool.all)}{least}: {described(pool)}"])
        if pool.at_once:
            more = f"{readable(pool.at_once)} more for a moment, while all of them build a task at once"
            rows.append(["while simulators are built", more])
        if pool.says.note:
            rows.append(["of simulators", pool.says.note])
        if gpus and pool.says.drawn:
            gpu = f"{pool.says.drawn:.0%} of the tasks are textures and meshes, which are then in its memory"
            rows.append(["drawn on a GPU", f"{gpu}; its driver takes host memory in their place. Neither was measured"])
    return rows


def fitting_rows(pools: Pools, room: int, cores: int, processes: Group) -> list[list[str]]:
    """Returns the row that proposes numbers of workers and slots.

    Args:
        room: bytes that the policy leaves to a process's workers.
    """
    if not pools or any(pool.says == UNKNOWN for pool in pools):
        return []
    cores = max(1, cores // processes.local_size)
    wider = [replace(pool, workers=min(pool.slots, cores)) for pool in pools]
    count, slots = workers_that_fit(wider, room), most_slots(pools, room)
    more = "or more" if slots and slots >= MANY else "at most"
    text = f"env.num_workers={count}, of {cores} cores and what is free (auto chooses so)"
    return [["proposal", f"{text}; env.train.total_num_envs={slots * processes.size} {more} fit"]] if slots else []
