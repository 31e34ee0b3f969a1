"""How many processes their file asks for, one a GPU: machines, and processes on each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import ceil, prod
from typing import Any

from embodied.errors import ConfigError
from embodied.migrate.machine import gpus
from embodied.migrate.result import Migration, Note
from embodied.parallel.placement.place import place
from embodied.parallel.placement.table import Node
from embodied.schema import ClusterConfig
from embodied.schema.keys.placement import placed
from embodied.schema.others.counts import SLOTS
from embodied.schema.others.translation import number_of

NODES, GPUS, PLACEMENT = "cluster.num_nodes", "cluster.num_gpus_per_node", "cluster.component_placement"
NODE_GROUPS = "cluster.node_groups"
BATCH = "data.rollout_batch_size"
USUAL = 8
"""GPUs of a machine, where their file does not say it."""
DEGREES = ("dp_shard_size", "dp_replicate_size", "tp_size", "cp_size", "pp_size")
"""What of ``policy.parallelism`` says how many GPUs a replica of Cosmos-RL's policy has."""


def count_processes(migration: Migration, system: str, flat: Mapping[str, Any]) -> None:
    """Sets how many processes on how many machines their file asks for, where it says so by its placement alone."""
    if GPUS in migration.settings and system != "roll":  # whose number is that of a machine, not of those in use
        return
    found = {"rlinf": _of_rlinf, "roll": _of_roll, "cosmos-rl": _of_cosmos}.get(system, lambda flat: None)(flat)
    if found is None:
        return
    nodes, here = found
    for number, note in enumerate(migration.notes):
        if GPUS in note.settings:
            migration.notes[number] = replace(note, how="nothing", settings={}, why="the devices in use say it")
            migration.settings.pop(GPUS, None)
    if prod(found) == 1:
        return
    settings = {GPUS: here, **({NODES: nodes} if nodes > 1 else {})}
    migration.settings |= settings
    migration.notes.append(Note("(placement)", nodes * here, "derived", settings, "a process for each of their GPUs"))


def launch(migration: Migration, devices: int | None) -> tuple[int, int]:
    """Returns machines, and processes on each. Where this machine has fewer GPUs, the file does not say them, so that
    the experiment runs here, too: the command does.

    Args:
        devices: GPUs of this machine; None = they are counted.
    """
    nodes, here = (migration.settings.get(key) or 1 for key in (NODES, GPUS))
    if not (isinstance(nodes, int) and isinstance(here, int) and nodes * here > 1 and here > 0):
        return 1, 1
    started = nodes, _ranks_of_node(migration, nodes, here)
    if (gpus() if devices is None else devices) < here:
        where = migration.settings.get(PLACEMENT)
        everywhere = isinstance(where, Mapping) and set(map(str, where.values())) <= {"all"}
        for key in (NODES, GPUS, *(() if everywhere else (PLACEMENT, NODE_GROUPS))):
            _to_command(migration, key)
    _share_slots(migration, prod(started))
    return started


def _ranks_of_node(migration: Migration, nodes: int, here: int) -> int:
    """Returns how many of ``here`` devices of a machine have a process: those of simulators alone have none. Machines
    that differ are taken to have one on each device."""
    try:
        keys = ClusterConfig(
            component_placement=migration.settings.get(PLACEMENT), node_groups=migration.settings.get(NODE_GROUPS)
        )
        groups, places = placed(keys)
        table = place(places, groups, [Node(f"node-{number}", here) for number in range(nodes)], nodes * here)
    except (ConfigError, ValueError):  # the trial says what is wrong
        return here
    counts = Counter(rank.node for rank in table.ranks)
    return max(counts.values()) if len(counts) == nodes and len({*counts.values()}) == 1 else here


def _share_slots(migration: Migration, processes: int) -> None:
    """Gives each process equally many env slots where their file says no number of them: of texts, whose iteration
    has a number of problems, and of evaluations it changes no number."""
    keys = {f"env.{side}.total_num_envs": side for side in ("eval", "train")}
    for key, side in keys.items():
        if key in migration.settings or SLOTS % processes == 0 or (side == "train" and BATCH not in migration.settings):
            continue
        migration.settings[key] = slots = ceil(SLOTS / processes) * processes
        migration.notes.append(Note(f"({key})", slots, "derived", {key: slots}, f"shared by {processes} processes"))


def start_one(migration: Migration, why: str) -> None:
    """Leaves their processes out, for the reason ``why``: the command starts one."""
    nodes, here = migration.launch
    migration.launch = (1, 1)
    said = f"the command starts one, because {why}; with another number start torchrun yourself"
    migration.notes.append(Note("(processes for their GPUs)", nodes * here, "extra", why=said))
    for key in (NODES, GPUS):
        _to_command(migration, key, "one process is started")


def _to_command(
    migration: Migration, key: str, why: str = "the command says it: torchrun starts the processes"
) -> None:  # fmt: skip
    migration.settings.pop(key, None)
    for number, note in enumerate(migration.notes):
        if key in note.settings:
            kept = {name: value for name, value in note.settings.items() if name != key}
            migration.notes[number] = replace(note, how=note.how if kept else "nothing", settings=kept, why=why)


def _of_rlinf(flat: Mapping[str, Any]) -> tuple[int, int] | None:
    placed, nodes = flat.get(PLACEMENT), int(number_of(flat.get(NODES)) or 1)
    values = placed.values() if isinstance(placed, Mapping) else [placed]
    each = [found for value in values if (found := _each_of_rlinf(value, flat.get(NODE_GROUPS), nodes))]
    return (nodes, max(each)) if each else None


def _each_of_rlinf(place: Any, groups: Any, nodes: int) -> int:
    """Devices of a node that a place of RLinf needs at least; 0 = it names no device.

    >>> _each_of_rlinf("0-7", None, 2), _each_of_rlinf({"node_group": "node", "placement": "0-1"}, None, 2)
    (4, 0)
    """
    label = place.get("node_group") if isinstance(place, Mapping) else None
    if label == "node":
        return 0
    own = [group.get("node_ranks") for group in groups or () if str(group.get("label")) == str(label)]
    if own and (numbers := _numbers(own[0])):
        nodes = min(nodes, numbers[-1] - numbers[0] + 1)
    devices = _numbers(place.get("placement") if isinstance(place, Mapping) else place)
    return ceil((max(devices) + 1) / nodes) if devices else 0


def _numbers(ranks: Any) -> list[int]:
    """Numbers of devices or nodes in a text, without those of processes behind colons."""
    return [int(one) for one in re.findall(r"\d+", re.sub(r":[\d-]+", "", str(ranks)))]


def _of_roll(flat: Mapping[str, Any]) -> tuple[int, int] | None:
    ends = [_end(value) for key, value in flat.items() if key.endswith(".device_mapping")]
    total, each = max(ends, default=0), int(number_of(flat.get("num_gpus_per_node")) or USUAL)
    return (ceil(total / each), min(total, each)) if total > 0 else None


def _end(mapping: Any) -> int:
    """One more than the highest device of ``list(range(0,16))`` or of a list."""
    if isinstance(mapping, list):
        return max((int(one) + 1 for one in mapping if str(one).isdigit()), default=0)
    bounds = re.fullmatch(r"list\(range\((?:\d+\s*,\s*)?(\d+)\)\)", str(mapping).strip())
    return int(bounds[1]) if bounds else 0


def _of_cosmos(flat: Mapping[str, Any]) -> tuple[int, int] | None:
    start = "policy.parallelism."
    degrees = [number_of(flat.get(f"{start}{name}", 1)) for name in ("n_init_replicas", *DEGREES)]
    if any(one is None or one < 1 for one in degrees):
        return None  # -1: as many as there are
    total = int(prod(one or 1 for one in degrees))
    return ceil(total / USUAL), min(total, USUAL)
