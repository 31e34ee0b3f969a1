"""Compares the memory that env workers are counted with, against that of workers that were really started."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from embodied.parallel.group import Group
from embodied.run.build.given import ConfiguredEnv
from embodied.run.build.preflight import check
from embodied.run.build.shares import pools_of
from embodied.run.build.workers.pools import pool_config
from embodied.run.build.workers.worker_memory import memories_of
from embodied.runtime.channel import Command, Completion, Kind
from embodied.runtime.pool.fork_server import ForkServer
from embodied.runtime.pool.pool import Pool, PoolConfig
from embodied.runtime.slab import Slab, info_fields, runtime_fields
from embodied.schema.compose.compose import compose

CHUNK, SLAB = 12, "forecast.slab"
LIBERO = ("model=openvla_oft_tiny", "env.eval.video_cfg.save_video=false")
CASES: dict[str, Sequence[str]] = {
    "libero_object, 1 task": ("env=libero_object", "env.train.task_ids=[0]", "env.num_workers=1", *LIBERO),
    "libero_object, 3 tasks": ("env=libero_object", "env.train.task_ids=[0,1,2]", "env.num_workers=1", *LIBERO),
    "libero_10, 3 tasks": ("env=libero_10", "env.train.task_ids=[0,1,2]", "env.num_workers=1", *LIBERO),
    "libero_object, 3 tasks, forked": (
        *("env=libero_object", "env.train.task_ids=[0,1,2]", "env.num_workers=1", "env.start_method=forkserver"),
        *LIBERO,
    ),
    "quickstart_libero": ("experiment=quickstart_libero", "env.num_workers=2"),
    "PickCube, 1 slot": (
        *("env=maniskill_pickcube", "env.num_workers=1", "env.train.total_num_envs=1", "env.eval.total_num_envs=1"),
        *("algorithm.group_size=1", "algorithm.adv_type=raw", *LIBERO),
    ),
    "PickCube, 4 slots of a worker": (
        *("env=maniskill_pickcube", "env.num_workers=1", "env.train.total_num_envs=4", "env.eval.total_num_envs=4"),
        *("algorithm.group_size=4", *LIBERO),
    ),
}


def compare(overrides: Sequence[str], folders: Sequence[str] = ()) -> dict[str, Any]:
    """Starts the workers of a configuration, brings each of their slots to each task, and looks at their memory.

    Args:
        folders: those with more group files.

    Returns:
        bytes that were counted and measured, libraries' files left out, and ``off``: by how much the count is higher.
    """
    with tempfile.TemporaryDirectory() as folder:
        composed = compose([*overrides, f"runner.output_dir={folder}"], "train", folders)
        checked = check(composed, Group())
        asked = checked.config, checked.sides, Group()
        (pool,), (counted,) = pools_of(*asked), memories_of(*asked)
        settings = pool_config(pool.side, pool.slots, checked.config, Path(folder), Group())
        forecast = counted.all - counted.says.files
        measured = _play(settings, pool.side, checked.config.env.start_method, folder)
    return {"forecast": forecast, "measured": measured, "off": round(forecast / measured - 1, 4)}


def _play(settings: PoolConfig, side: ConfiguredEnv, start_method: str, folder: str) -> int:
    fields = {**side.spec.obs, "actions": side.spec.action.field(CHUNK), **runtime_fields(CHUNK)}
    slab = Slab.create({**fields, **info_fields(side.spec.info)}, 2 * settings.num_slots, SLAB)
    server = None
    if start_method != "spawn":
        server = ForkServer([(settings.env_target, settings.env_kwargs)], Path(folder), settings.deadlines.init)
    try:
        pool = Pool(replace(settings, server=server, max_restarts=0), slab)
        try:
            _visit(pool, side, slab, settings.num_slots)
            return _own([*pool.pids, *([] if server is None else [server.pid])], (SLAB, *_channels(settings)))
        finally:
            pool.close()
    finally:
        if server is not None:
            server.close()
        slab.close()


def _channels(settings: PoolConfig) -> tuple[str, str]:
    return settings.env_channel[0], settings.rollout_channel[0]


def _visit(pool: Pool, side: ConfiguredEnv, slab: Slab, slots: int) -> None:
    random = np.random.default_rng(0)
    for task in range(len(side.spec.tasks)):
        for slot in range(slots):
            _do(pool, Command(
                Kind.RESET, slot, next_row=2 * slot, task_id=task, init_state_id=0, seed=0, max_steps=side.max_steps,
                ignore_terminations=True,
            ))  # fmt: skip
        for slot in range(slots):
            slab.arrays["actions"][2 * slot] = side.spec.action.sample(random, CHUNK)
            _do(pool, Command(Kind.STEP, slot, row=2 * slot, next_row=2 * slot + 1))


def _do(pool: Pool, command: Command) -> None:
    pool.send(command)
    (done,) = pool.recv(1)
    assert isinstance(done, Completion), done


def _own(pids: Iterable[int], shared: Sequence[str]) -> int:
    """Bytes of processes, pages that they share divided among them: without files, and without the memory that the
    launcher made for them, whose names begin with ``shared``."""
    return sum(_anonymous(Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8"), shared) for pid in pids)


def _anonymous(smaps: str, shared: Sequence[str]) -> int:
    total = 0
    for mapping in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", smaps):
        path = mapping.splitlines()[0].split(maxsplit=5)[5:]
        name = path[0] if path else ""
        if any(name.startswith(f"/memfd:{one}") for one in shared):
            continue
        sizes = {key: int(value) for key, value in re.findall(r"^(Pss|Pss_Anon|Anonymous): +(\d+) kB", mapping, re.M)}
        is_file = name.startswith("/") and not name.startswith("/memfd:")
        total += 1024 * (min(sizes["Pss"], sizes["Anonymous"]) if is_file else sizes["Pss"])
    return total
