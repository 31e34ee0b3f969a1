"""The memory and the disk that a configuration will take: model, optimizer, rollout, slab, checkpoints."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from embodied import schema
from embodied.doctor.checks import configuration
from embodied.doctor.checks.machine import FEWER, LEAST_DISK, room
from embodied.doctor.findings import Finding, gib, of_error
from embodied.errors import EmbodiedError
from embodied.parallel.group import Group
from embodied.run.build.preflight import Rules
from embodied.run.memory.footprint import Footprint, Weights, footprint, of_files
from embodied.run.memory.workers import at_least, described, fitting_rows, remedies_within
from embodied.runtime.memory import free_memory
from embodied.schema.compose.compose import compose_unchecked

NAME = "memory of the run"
TIGHT = 0.8  # share of the memory that a run should not exceed


def sizes(overrides: Sequence[str], folders: Sequence[str], command: str = "train") -> Iterator[Finding]:
    """Adds up what the run will take, and holds it against this machine; in a process of its own. Whether the machine
    can draw does not matter for it."""
    composed = compose_unchecked(overrides, command, folders)
    if composed.config.runner.task.records or composed.config.runner.answers is not None:
        yield Finding(NAME, "skipped", "no policy is built")
        return
    rules = Rules(composed, configuration.processes_of(composed.config), machine=False)
    if configuration.errors(composed, rules):
        yield Finding(NAME, "skipped", "the configuration is refused, see there")
        return
    checked, processes = rules.checked, rules.processes
    config, sides = checked.config, checked.sides
    model = config.actor.model
    kwargs = schema.target_kwargs(model, "actor.model")
    gpu = _gpu_memory(config.runner.device)
    try:
        weights = of_files(kwargs)
    except EmbodiedError as error:
        yield of_error("policy", error)
        return
    if weights is not None:
        taken = footprint(config, sides, processes, weights, None, on_gpu=gpu is not None)
        yield from held(config, taken, gpu, weights, processes=processes)
        return
    from embodied.run.memory.counting import count

    try:
        counted = count(config, sides, processes, checked.demonstrations)
    except EmbodiedError as error:
        yield of_error("policy", error)
        return
    except (MemoryError, RuntimeError) as error:
        free = free_memory()
        room = "in this machine's memory" if free is None else f"in the {gib(free)} that are free"
        said = f"the policy cannot be built {room}: {str(error).splitlines()[:1]}"
        yield Finding(NAME, "fail", said, "use a smaller model (model=…), or a machine with more memory")
        return
    taken = counted.footprint(config, sides, processes, gpu is not None)
    yield from held(config, taken, gpu, counted.weights, processes=processes)


def _gpu_memory(wanted: str) -> int | None:
    """Bytes that are free on the GPU of the run; None where it runs on the CPU."""
    import torch

    if wanted == "cpu" or not torch.cuda.is_available():
        return None
    return torch.cuda.mem_get_info()[0]


def held(
    config: schema.Config, taken: Footprint, gpu: int | None, weights: Weights, free: int | None = None,
    processes: Group | None = None,
) -> Iterator[Finding]:  # fmt: skip
    """Compares the memory that a run takes at the least with what is free.

    Args:
        gpu: bytes that are free on the GPU; None = the policy is on the CPU.
        free: bytes of the machine, which its processes share; None = it is asked.
        processes: of the run; None = this one alone.
    """
    free, processes = free_memory() if free is None else free, processes or Group()
    sharers = processes.local_size
    where = "the machine" if sharers == 1 else f"the machine for each of its {sharers} processes"
    policy = taken.host if gpu is not None else {**taken.device, **taken.host}
    if gpu is not None:
        fix = "set actor.model.precision=bf16, train adapters alone (LoRA), or use fsdp2 over several GPUs"
        yield _compared("memory of the GPU", taken.device, gpu, "the GPU", fix, taken)
    if free is None:
        yield Finding(NAME, "skipped", "the kernel does not say what the machine has left (no /proc/meminfo)")
    else:
        free //= sharers
        room = int(TIGHT * free) - sum(policy.values())
        fix = "; or ".join(remedies_within(room, config, processes, taken.pools)) if room > 0 else FEWER
        workers = {described(pool): pool.all for pool in at_least(taken.pools, config, processes)}
        said = _compared(NAME, {**policy, **workers}, free, where, fix, taken)
        fitting = fitting_rows(taken.pools, room, os.cpu_count() or 1, processes)
        yield replace(said, found="; ".join([said.found, *(f"{name}: {text}" for name, text in fitting)]))
    if not config.runner.only_eval:
        yield _checkpoints(config, weights, weights.optimizer)


def _compared(
    name: str, parts: Mapping[str, int], free: int, where: str, fix: str, taken: Footprint
) -> Finding:  # fmt: skip
    need = sum(parts.values())
    each = ", ".join(f"{what} {gib(size)}" for what, size in parts.items() if size)
    said = f"at least {gib(need)} of {gib(free)} that are free on {where}: {each}"
    said += "".join(f"; {what} not counted" for what in taken.unknown)
    if need <= TIGHT * free:
        return Finding(name, "ok", said)
    return Finding(name, "fail" if need > free else "warn", said, fix)


def _checkpoints(config: schema.Config, weights: Weights, optimizer: int) -> Finding:
    one = (weights.trained if weights.trained is not None else weights.all) + optimizer
    most = config.runner.checkpoint.max_keep
    kept = (most if most > 0 else max(1, config.runner.max_epochs // max(1, config.runner.save_interval))) + 1
    path = Path(config.runner.logger.log_path).absolute()
    folder = next(p for p in (path, *path.parents) if p.exists())
    why = f"; {kept} checkpoints take about {gib(kept * one)}"
    return room("disk of checkpoints", folder, one + LEAST_DISK, kept * one + LEAST_DISK, why)
