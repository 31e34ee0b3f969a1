"""What a run has taken over all its launches, interrupted ones too, and on which hardware: ``<run>/costs.json``.

{"policy": {"parameters": 318123, "trained": 318123},
 "launches": {"1": {"hardware": "2 × …", "processes": 1, "wall_s": 301.2, "cpu_s": 580.4, "whole": true}}}

A launch begins when its folder is opened. Its row is written with each iteration, and once more at its end: ``whole``
then says that nothing of it is missing. Numbers of launches are those of the lines in ``starts.jsonl``; where a line
could not be written it is the next that is free.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied.lib.cpu_time import processors, tree_seconds
from embodied.lib.whole import write_whole
from embodied.run.folder import launches

if TYPE_CHECKING:  # the report reads the file, and imports no torch
    import torch

    from embodied.parallel.group import Group
    from embodied.protocols import Policy

FILE = "costs.json"


class Costs:
    """Measures a launch of a run, which begins now, and keeps the sums over all launches in the run's folder.

    Args:
        folder: of the run; only rank 0 writes there.
    """

    def __init__(self, folder: Path, processes: Group) -> None:
        self._file, self._processes = folder / FILE, processes
        self._began, self._cpu_began = time.monotonic(), tree_seconds(os.getpid())
        self._own = self._others = 0.0  # CPU seconds of this process and those below it, and of the other ranks
        self._found: dict[str, Any] = {"policy": {}, "launches": {}}
        self._launch: dict[str, Any] = {"hardware": processors(), "processes": processes.size}
        self._all_ended = processes.size == 1
        if processes.is_main:
            with suppress(OSError, ValueError):
                self._found |= _read(self._file.read_text(encoding="utf-8"))
            self._number = max(launches.count(folder), 1)
            while str(self._number) in self._found["launches"]:  # of a launch before
                self._number += 1
            self._found["launches"][str(self._number)] = self._launch
            self._write(whole=False)

    def describe(self, policy: Policy, device: torch.device) -> None:
        """Notes the size of the policy, and the GPU of this process."""
        count = policy.describe().get("parameters", "").replace(",", "")
        trained = sum(p.numel() for _, p in policy.named_parameters() if p.requires_grad)
        self._found["policy"] = {"parameters": int(count) if count.isdecimal() else None, "trained": trained}
        if device.type == "cuda":
            import torch

            self._launch["hardware"] += f", {torch.cuda.get_device_name(device)}"

    def measure(self) -> dict[str, float]:
        """Returns the ``time/run_`` metrics: seconds of all launches so far. Those that a launch of an older version
        has not left are missing. A collective."""
        self._ask_others()
        if not self._processes.is_main:
            return {}
        self._write(whole=False)
        return totals(self._found["launches"], self._number)

    def finish(self) -> None:
        """Adds what all ranks have taken by the end of a launch that was not broken off. A collective; a second one
        changes nothing."""
        if not self._all_ended:
            self._ask_others()
            self._all_ended = True

    def close(self) -> None:
        """Notes the end of the launch. It is not whole where other ranks have taken what is not known here: there was
        no :meth:`finish`."""
        self._look()
        if self._processes.is_main:
            self._write(whole=self._all_ended)

    def _ask_others(self) -> None:
        self._look()
        self._others = sum(self._processes.gather(self._own)) - self._own if self._processes.size > 1 else 0.0

    def _look(self) -> None:
        now = tree_seconds(os.getpid())
        if now is not None and self._cpu_began is not None:
            self._own = max(self._own, now - self._cpu_began)

    def _write(self, whole: bool) -> None:
        """Writes the file. If that fails nothing is lost but the costs."""
        cpu_s = None if self._cpu_began is None else self._own + self._others
        self._launch |= {"wall_s": time.monotonic() - self._began, "cpu_s": cpu_s, "whole": whole}
        with suppress(OSError):
            write_whole(self._file, json.dumps(self._found))


def _read(text: str) -> dict[str, Any]:
    """What the file of earlier launches holds; nothing if it is of another form. Raises ValueError if it is no JSON."""
    found = json.loads(text)
    entries = [found.get("policy"), found.get("launches")] if isinstance(found, dict) else [None]
    rows = [row for entry in entries[1:] if isinstance(entry, dict) for row in entry.values()]
    return found if all(isinstance(each, dict) for each in (*entries, *rows)) else {}


def totals(rows: Mapping[str, Mapping[str, Any]], launch: int) -> dict[str, float]:
    """Sums the seconds of the launches 1 … ``launch``, as metrics; nothing of what one of them has not left."""
    found = {}
    for name, key in (("time/run_s", "wall_s"), ("time/run_cpu_s", "cpu_s")):
        seconds = [rows.get(str(number), {}).get(key) for number in range(1, launch + 1)]
        known = [one for one in seconds if one is not None]
        if len(known) == len(seconds):
            found[name] = float(sum(known))
    return found
