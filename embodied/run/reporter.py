"""How a run watches its own work: bars and estimates on the console, stop signals, and the machine's other users."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, perf_counter, process_time

from embodied.learn.threads import training_threads
from embodied.learn.watch import Passed, Watch
from embodied.observe.progress import Phase
from embodied.run.build import Parts
from embodied.types import EpisodeResult

STARVED = 3.0  # wall time over CPU time of an update from which on it is said that something else takes the cores
SHORT_S = 5.0  # updates shorter than this are not worth a word


def watched(parts: Parts, title: str, go_on: Callable[[float | None], bool]) -> Watch:
    """Shows the passes of an update on the console, and ends the update where ``go_on`` says no.

    Args:
        title: what the name of each phase begins with, e.g. ``iteration 3/100``.
        go_on: given the seconds that the phase still needs (None: nobody knows).
    """

    @contextmanager
    def watch(name: str, total: int) -> Iterator[Passed]:
        with parts.console.progress(f"{title} {name}{parts.world.share_note}", total, brief=True) as bar:

            def passed(records: int) -> bool:
                bar.advance(records)
                return go_on(bar.left_s)

            yield passed

    return watch


def counting_successes(bar: Phase) -> Callable[[EpisodeResult], None]:
    """Advances ``bar`` by each episode that ends, and shows how many of them succeeded."""
    done: list[bool] = []

    def advance(result: EpisodeResult) -> None:
        done.append(result.success)
        bar.advance(1, success=f"{sum(done)}/{len(done)}")

    return advance


@contextmanager
def training(parts: Parts) -> Iterator[None]:
    """Within it the policy is trained: with ``actor.num_threads`` threads, on a CPU that should be its own."""
    wall, cpu = perf_counter(), process_time()
    with training_threads(parts.config.actor.num_threads):
        yield
    alone = parts.device.type == "cpu" and parts.world.size == 1  # else it waits for a device or for ranks
    if alone and (text := starved(perf_counter() - wall, process_time() - cpu)):
        parts.console.say(text)


def starved(wall_s: float, cpu_s: float) -> str:
    """What to say of an update on a CPU that took ``wall_s`` seconds and got ``cpu_s`` of CPU time; else empty."""
    if wall_s < SHORT_S or wall_s <= STARVED * cpu_s:
        return ""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    return (
        f"  the update took {wall_s:.0f} s, and this process got {cpu_s:.0f} s of CPU time in them: other processes "
        f"take the cores (load {load:.1f} on {cores}), or it waits for a disk"
    )


class Pace:
    """How long the rest of a run will take.

    Args:
        iteration: iterations that were done before this process went on.
        last: iterations of the whole run.
    """

    def __init__(self, iteration: int, last: int) -> None:
        self._first, self._last, self._began = iteration, last, monotonic()

    def left_s(self, iteration: int) -> float:
        """Seconds until the last iteration is done, when ``iteration`` have been; 0 if nobody knows."""
        made = iteration - self._first
        return (monotonic() - self._began) / made * (self._last - iteration) if made else 0.0
