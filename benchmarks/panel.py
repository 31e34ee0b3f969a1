"""CPU time of the panel of a run on a terminal.

    python benchmarks/panel.py --seconds 20

A fake run on a real pseudo-terminal (40 × 120), which another process reads: a phase that advances 100 times a second,
an iteration every two seconds with all the metrics that a run has, files that are looked for. In turn, medians over
rounds:
- ``threads_share``: CPU time of the panel's threads (drawing, writing) a second, of one core. The bar is 1 %.
- ``run_share``: CPU time of the fake run's own thread a second.
- ``draw_ms``: CPU time of the threads a drawing.
Cell ``bars`` is the same without the panel, where a bar is drawn ten times a second by a thread of its own.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import struct
import sys
import termios
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from _measure import judge, machine, save, spread

from embodied.observe.terminal import screen
from embodied.observe.terminal.console import make_console
from embodied.run.folder.latest_files import newest_checkpoint, newest_video

BARS = {"threads_share": ("<=", 0.01)}
ITERATION_S = 2.0


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(argv)
    facts = machine(["rich"])
    found: dict[str, dict[str, list[float]]] = {"panel": {}, "bars": {}}
    for _ in range(args.rounds):
        for cell, own in found.items():
            for name, value in on_terminal(cell == "panel", args.seconds).items():
                own.setdefault(name, []).append(value)
    cells = {cell: {name: spread(values) for name, values in own.items()} for cell, own in found.items()}
    kept: dict[str, bool] = {}
    for cell, spreads in cells.items():
        print(cell)
        found_here = {name: value["median"] for name, value in spreads.items()}
        kept |= judge(found_here, BARS if cell == "panel" else {})
    save("panel", {**facts, "seconds": args.seconds, "rounds": args.rounds, "cells": cells, "bars_kept": kept})


def on_terminal(panel: bool, seconds: float) -> dict[str, float]:
    """What a fake run of so many seconds takes, in a process on a terminal of its own; this one reads what is shown."""
    reader, writer = os.pipe()
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        os.environ["TERM"] = "xterm-256color"
        os.write(writer, json.dumps(fake_run(panel, seconds)).encode())
        os._exit(0)
    os.close(writer)
    while True:
        try:
            if not os.read(terminal, 1 << 16):
                break
        except OSError:  # the other end is closed
            break
    os.waitpid(pid, 0)
    with open(reader, encoding="utf-8") as file:
        return json.load(file)


def fake_run(panel: bool, seconds: float) -> dict[str, float]:
    drawings = 0
    own_draw = screen.Panel.outdated

    def counted(self: Any) -> None:
        nonlocal drawings
        drawings += sys._getframe(1).f_code.co_name == "_draw"
        own_draw(self)

    screen.Panel.outdated = counted  # type: ignore[method-assign]
    console = make_console(sys.stdout)
    with TemporaryDirectory() as folder:
        checkpoints, videos = Path(folder, "checkpoints"), Path(folder, "videos", "000010")
        for number in range(3):
            (checkpoints / f"{number:06d}").mkdir(parents=True)
            (checkpoints / f"{number:06d}" / "meta.json").touch()
        videos.mkdir(parents=True)
        for number in range(50):
            (videos / f"{number}.mp4").touch()

        def look() -> dict[str, Path]:
            files = newest_checkpoint(checkpoints), newest_video({videos.parent})
            return {kind: file for kind, file in zip(("checkpoint", "video"), files, strict=True) if file is not None}

        began, run_began, others_began = time.monotonic(), time.thread_time(), _others_s()
        end = began + seconds
        with console.panel("fake run", look) if panel else nullcontext():
            iteration = 0
            while time.monotonic() < end:
                with console.progress(f"iteration {iteration} rollout", 200) as bar:
                    for step in range(round(100 * ITERATION_S)):
                        if time.monotonic() >= end:
                            break
                        time.sleep(0.01)
                        bar.advance(1, success=f"{step}/200")
                iteration += 1
                console.iteration(metrics(iteration))
        others, took = _others_s() - others_began, time.monotonic() - began
    return {
        "threads_share": others / took, "run_share": (time.thread_time() - run_began) / took,
        **({"draw_ms": 1000 * others / drawings} if drawings else {}),
    }  # fmt: skip


def _others_s() -> float:
    """CPU seconds of all other threads of this process so far."""
    return time.process_time() - time.thread_time()


def metrics(iteration: int) -> dict[str, float]:
    rate = 0.5 + 0.4 * ((iteration * 7919) % 100 / 100 - 0.5)
    shares = ("policy", "env_wait", "slot_idle", "rank_wait", "rollout", "train", "eval", "save")
    return {
        "iteration": iteration, "iterations": 1000, "left_s": 7200.0, "rollout/success_rate": rate,
        "rollout/success_low": rate - 0.1, "rollout/success_high": rate + 0.1, "eval/success_rate": rate,
        "eval/success_low": rate - 0.1, "eval/success_high": rate + 0.1, "rollout/return_mean": rate,
        "rollout/env_steps_per_s": 812.0, "train/approx_kl": 0.01, "train/kl_reference": 0.02,
        "train/clip_share": 0.03, "train/records": 100, "time/train_s": 2.0, "time/iteration_s": 10.0,
        "memory/pss_gb": 3.2, "memory/device_peak_gb": 20.0, **{f"time/{name}_share": 0.2 for name in shares},
    }  # fmt: skip


if __name__ == "__main__":
    main()
