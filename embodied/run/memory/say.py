"""Reports the memory of a run (``runner.dry_run``), and refuses a run that cannot fit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from embodied import schema
from embodied.errors import DeviceMemoryError
from embodied.learn.step.meters.live_bytes import resident
from embodied.observe.terminal.console import Console
from embodied.parallel.group import Group, Role
from embodied.parallel.placement.table import roles_told
from embodied.protocols import Policy
from embodied.run.build.demonstrations import Demonstrated
from embodied.run.build.given import Sides
from embodied.run.build.policy import device_of
from embodied.run.build.shares import render_gpus_of
from embodied.run.memory.counting import Counted, count
from embodied.run.memory.fitting import needed
from embodied.run.memory.footprint import Footprint, Pass, Weights, footprint, in_files, readable
from embodied.run.memory.remedies import Phase, remedies
from embodied.run.memory.replay_memory import with_replay
from embodied.run.memory.weights import kinds_of
from embodied.run.memory.workers import at_least, check_addresses, fitting_rows, remedies_within, rows_of
from embodied.run.placement.table import Planned, table_of
from embodied.runtime.memory import free_memory


@dataclass(frozen=True)
class MemoryPlan:
    """The memory that a run will take, compared with what this machine has."""

    config: schema.Config
    processes: Group
    counted: Counted
    taken: Footprint
    device: int | None  # bytes of the GPU that are free, or that the run is planned for; None = no GPU
    machine: int | None  # bytes of the machine that the run may have, with those that it has; None = nothing tells
    others: Mapping[frozenset[Role], Footprint] = field(default_factory=dict)  # of processes with other roles, by these

    @property
    def policy(self) -> Policy | None:
        """The policy that was counted: good for questions about its sizes, and for nothing else. None of several
        processes, if they can build it: that they hold the same weights is then checked, too."""
        builds = self.processes.size > 1 and not isinstance(self.processes, Planned)
        return None if self.counted.with_memory and builds else self.counted.policy

    def say(self, console: Console) -> None:
        """Prints the memory, and refuses what cannot fit. Raises :class:`DeviceMemoryError`."""
        console.table("memory", self.rows())
        self.check()

    def rows(self) -> list[list[str]]:
        """Returns the memory's rows in the table of a run."""
        taken = self.taken
        rows = [row for roles, own in self._by_roles().items() for row in self._rows_of(roles, own)]
        whole = ", of the whole policy" if self.processes.size > 1 else ""
        rows.insert(1, ["weights, tensor by tensor", _kinds(self.counted.policy) + whole])
        rows[2:2] = self._activations()
        if not isinstance(self.processes, Planned):
            rows += self._room()
        model = self.config.actor.model.model_extra or {}
        if "model_path" in model and model["model_path"] is None:
            rows.append(["weights counted", "random ones of the configured sizes: actor.model.model_path is not set"])
        if cached := in_files(schema.target_kwargs(self.config.actor.model, "actor.model")):
            rows.append(["page cache", f"{readable(cached)} of weights are mapped from their files"])
        if taken.unknown:
            why = f" ({self.counted.why_not})" if self.counted.why_not else ""
            rows.append(["memory not counted", ", ".join(taken.unknown) + why])
        if (given := self.config.runner.ckpt_path) is not None and not self.counted.with_memory:
            rows.append(["not looked at", f"what is in {given}: so large a policy is counted without its weights"])
        return rows

    def _by_roles(self) -> dict[frozenset[Role], Footprint]:
        table = table_of(self.config, self.processes)
        return {table.kinds[0]: self.taken, **self.others}

    def _rows_of(self, roles: frozenset[Role], taken: Footprint) -> list[list[str]]:
        """Returns the rows of the processes with some roles."""
        ranks = [rank for rank in table_of(self.config, self.processes).ranks if rank.roles == roles]
        told = f": {roles_told(roles)}" if self.others else ""
        each = "" if self.processes.size == 1 else f" (each of {len(ranks)}{told})"
        device = dict(taken.device) if self.device is not None else {**taken.device, **taken.host}
        where = f"memory of the {'process' if self.device is None else 'GPU'}{each}"
        have = "" if self.device is None else f" of {readable(self.device)}"
        rows = [[where, f"{readable(sum(device.values()))}{have} at its fullest ({taken.moment}): {_parts(device)}"]]
        if self.device is not None:
            rows.append([f"memory of the process{each}", f"{readable(taken.on_host)}: {_parts(taken.host)}"])
        hosted = table_of(self.config, self.processes).hosts
        whose = f" (of each of {len(ranks)}, on its hosts)" if hosted else each
        return [*rows, *rows_of(taken.pools, whose, render_gpus_of(self.config, self.processes))]

    def _room(self) -> list[list[str]]:
        """Says what fits beside the policy into the machine's memory."""
        if self.machine is None:
            return [["not looked at", "what the machine has left: its kernel does not say (no /proc/meminfo)"]]
        taken, here = self.taken, self.machine // self.processes.local_size
        room = here - taken.on_host - (0 if self.device is not None else taken.on_device)
        return fitting_rows(taken.pools, room, os.cpu_count() or 1, self.processes)

    def _activations(self) -> list[list[str]]:
        passes = self.counted.passes
        if passes.update is None:
            return []
        told = {None: ("", ""), True: (" recomputed", "not"), False: (" not recomputed", "")}[passes.checkpointed]
        text = f"of a micro-batch{told[0]}: {_described(passes.update)}"
        if passes.otherwise is not None:
            text += f"; {told[1]} recomputed".replace(";  ", "; ") + f": {_described(passes.otherwise)}"
        return [["activations", text]]

    def check(self) -> None:
        """Raises :class:`DeviceMemoryError` if the run cannot fit.

        Raises:
            DeviceMemoryError: it names the keys to lower.
        """
        planned = self.config.runner.device_memory_gib is not None or isinstance(self.processes, Planned)
        if not planned:
            check_addresses(self.config, self.processes, self.taken.pools)
        for roles, taken in self._by_roles().items():
            phase: Phase = "rollout" if self.counted.passes.update is None or "train" not in roles else "update"
            _hold(self.config, self.processes, taken, self.device, None if planned else self.machine, phase)


def check_large(config: schema.Config, sides: Sides, processes: Group, weights: Weights) -> None:
    """Refuses a run whose large checkpoint cannot fit, with what it brings along: what the doctor fails without
    building the policy.

    Raises:
        DeviceMemoryError: it names the keys to lower.
    """
    device = device_of(config.runner, processes)
    gpu = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
    taken = footprint(config, sides, processes, weights, None, on_gpu=gpu is not None)
    phase: Phase = "rollout" if config.runner.only_eval else "update"
    _hold(config, processes, taken, gpu, free_memory(), phase, "at least ")


def _hold(
    config: schema.Config, processes: Group, taken: Footprint, gpu: int | None, machine: int | None, phase: Phase,
    least: str = "",
) -> None:  # fmt: skip
    """Refuses what exceeds the GPU or the machine.

    Args:
        gpu: its bytes; None = the policy is on the CPU.
        machine: bytes; None = not asked.
        least: ``at least`` if not all is counted.
    """
    policy = taken.on_host + (0 if gpu is not None else taken.on_device)
    here = processes.local_size * (policy + needed(at_least(taken.pools, config, processes)))
    for where, need, have in (("the GPU", taken.on_device, gpu), ("the machine", here, machine)):
        if have is not None and need > have:
            fixes = remedies(config, processes, phase, on_gpu=where == "the GPU")
            if where == "the machine" and (room := have // processes.local_size - policy) > 0:
                fixes = remedies_within(room, config, processes, taken.pools)
            raise DeviceMemoryError(
                f"the run needs {least}{readable(need)}, and {where} has {readable(have)}", "; or ".join(fixes)
            )


def plan_dry_run(
    config: schema.Config, sides: Sides, processes: Group, demonstrations: Demonstrated, console: Console
) -> MemoryPlan | None:  # fmt: skip
    """Counts the memory of a dry run; None for any other run. Each of several processes does, so that all of them know
    whether it can be built."""
    if not config.runner.dry_run:
        return None
    with console.progress("counting the policy", brief=True):
        return plan(config, sides, processes, demonstrations)


def plan(config: schema.Config, sides: Sides, processes: Group, demonstrations: Demonstrated) -> MemoryPlan:
    """Counts the memory of a run. ``runner.device_memory_gib`` stands for the GPU of another machine."""
    planned, gpu, device = config.runner.device_memory_gib, None, device_of(config.runner, processes)
    total = 0
    if planned is not None:
        gpu = total = int(planned * 2**30)
    elif device.type == "cuda":
        gpu, total = torch.cuda.mem_get_info(device)
    counted = count(config, sides, processes, demonstrations)
    replayed = config, sides.train, counted.policy, processes.size
    first, *others = (
        (roles, with_replay(counted.footprint(config, sides, processes, gpu is not None, total, roles), *replayed))
        for roles in table_of(config, processes).kinds
    )
    free = free_memory()
    machine = None if free is None else free + resident()
    return MemoryPlan(config, processes, counted, first[1], gpu, machine, dict(others))


def _parts(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {readable(size)}" for name, size in sizes.items() if size)


def _kinds(policy: Policy) -> str:
    return ", ".join(f"{name} {readable(kind.bytes)} in {kind.tensors}" for name, kind in kinds_of(policy).items())


def _described(found: Pass) -> str:
    return f"{readable(found.saved)} are kept for the backward pass, {readable(found.most)} at most"
