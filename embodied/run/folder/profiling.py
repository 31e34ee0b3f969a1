"""Records some iterations of a run with torch's profiler (``runner.profiler``): ``<run>/profile/rank0.json.gz``. Marks
its phases for Nsight Systems.

with profiled(config, folder, rank, say) as step:
    …            an iteration
    step()       it has ended
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from embodied.observe.timing import Marks
from embodied.schema.keys.sections.runner import ProfilerConfig


def has_gpu() -> bool:
    """Returns whether torch finds a GPU."""
    return torch.cuda.is_available()


def marks(config: ProfilerConfig, say: Callable[[str], None]) -> Marks | None:
    """Returns the NVTX marker for Nsight Systems; None without ``runner.profiler.nsys`` or without a GPU."""
    if not config.nsys:
        return None
    if not has_gpu():
        say("runner.profiler.nsys marks nothing: torch finds no GPU here, and NVTX comes with one")
        return None
    return torch.cuda.nvtx


@contextmanager
def profiled(
    config: ProfilerConfig, folder: Path, rank: int, say: Callable[[str], None]
) -> Iterator[Callable[[], None]]:
    """Context that profiles the configured iterations; yields a function to call at the end of each iteration. Without
    ``enable`` and for other ranks it does nothing.

    A trace that cannot be written is said, and the run goes on.

    Args:
        folder: the run's.
    """
    if not config.enable or (config.rank_filter and rank not in config.rank_filter):
        yield lambda: None
        return
    from torch.profiler import profile, schedule

    file = folder / "profile" / f"rank{rank}.json.gz"

    def write(recorded: profile) -> None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            recorded.export_chrome_trace(str(file))
        except (OSError, RuntimeError) as error:
            say(f"the profile was not written: {error}")
            return
        say(f"profile of {config.active_steps} iterations: {file} (ui.perfetto.dev opens it)")

    with profile(
        schedule=schedule(wait=config.wait_steps, warmup=config.warmup_steps, active=config.active_steps, repeat=1),
        on_trace_ready=write, record_shapes=config.record_shapes, profile_memory=config.profile_memory,
        with_stack=config.with_stack, with_modules=config.with_modules,
    ) as profiler:  # fmt: skip
        yield profiler.step
