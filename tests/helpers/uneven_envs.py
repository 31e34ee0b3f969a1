"""Envs whose slots are not equally fast."""

from __future__ import annotations

import random
import time
from pathlib import Path

from embodied.testing import FakeEnv, FakeTextEnv


class Erratic(FakeEnv):
    """Each control step takes a time of its own, from no seed: another one in each run."""

    def step(self, action):
        time.sleep(random.SystemRandom().uniform(0, 0.004))
        return super().step(action)


class Straggles(FakeEnv):
    """Episodes from the first start of an iteration wait, in their first control step, until one of a later iteration
    is stepped. So they end only if slots flow over the borders between both.

    Args:
        folder: where files are left: ``stepped-N`` of iteration N, and ``in-vain`` of an episode that has waited for
            ``patience_s``.
        starts: of an iteration; a start's seed is its number in the run.
        since, until: iterations whose episodes are the first and the last that wait.
        ahead: iterations between both.
    """

    keys_without_start = (*FakeEnv.keys_without_start, "folder", "starts", "patience_s", "since", "until", "ahead")

    def __init__(
        self, folder: str, starts: int, patience_s: float = 60.0, since: int = 0, until: int = 0, ahead: int = 1,
        **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        self._folder, self._starts, self._patience_s = Path(folder), starts, patience_s
        self._waits, self._ahead = range(since, until + 1), ahead

    def step(self, action):
        if self._steps == 0:
            iteration, place = divmod(self._start.seed, self._starts)
            (self._folder / f"stepped-{iteration}").touch()
            if place == 0 and iteration in self._waits:
                self._wait(self._folder / f"stepped-{iteration + self._ahead}")
        return super().step(action)

    def _wait(self, file: Path) -> None:
        until = time.monotonic() + self._patience_s
        while not file.exists():
            if time.monotonic() > until:
                (self._folder / "in-vain").touch()
                return
            time.sleep(0.001)


class ErraticText(FakeTextEnv):
    """Each verdict takes a time of its own, from no seed. One, in the whole run, never comes.

    Args:
        hangs: a file that says that it has hung already; None = all verdicts come.
    """

    keys_without_start = ("hangs",)

    def __init__(self, hangs: str | None = None, **kwargs):
        super().__init__(**kwargs)
        self._hangs = None if hangs is None else Path(hangs)

    def step(self, action):
        if self._hangs is not None and self._turn == 1 and not self._hangs.exists():
            self._hangs.touch()
            time.sleep(3600)
        time.sleep(random.SystemRandom().uniform(0, 0.004))
        return super().step(action)
