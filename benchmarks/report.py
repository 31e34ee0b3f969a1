"""How long the report of a large run takes, and how large it is: the whole command, with the real charting library.

    python benchmarks/report.py --rounds 3

The run's folder is made here: 1,000 iterations, two evaluations of 100 episodes each, two tasks. The video of each
episode is one of 256×256 pixels and 200 frames. A warm-up comes first: the library is bundled once a machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from _measure import judge, machine, save, spread

from embodied.observe.video.video import VideoWriter

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "helpers"))
from reported_runs import write_run  # noqa: E402

BARS = {"wall_s": ("<=", 10.0), "mb": ("<=", 30.0)}
FRAMES, EDGE = 200, 256


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--per-task", type=int, default=50, help="episodes of each of two tasks, in each evaluation")
    args = parser.parse_args(argv)
    facts = machine(["vl-convert-python", "jinja2"])
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "run"
        recording = film(Path(made) / "one.mp4")
        ends = (0, args.iterations)
        write_run(folder, iterations=args.iterations, evaluations=ends, per_task=args.per_task, recording=recording)
        report(folder)
        rounds = [report(folder) for _ in range(args.rounds)]
        video_kb = recording.stat().st_size / 1e3
    cell = {name: spread([one[name] for one in rounds]) for name in rounds[0]}
    kept = judge({name: found["median"] for name, found in cell.items()}, BARS)
    size = {"iterations": args.iterations, "episodes": 4 * args.per_task, "video_kb": video_kb}
    load = os.getloadavg()[0]
    save("report", {**facts, "load_after": load, "rounds": args.rounds, **size, "cell": cell, "bars_kept": kept})


def film(file: Path) -> Path:
    """Writes a video of squares that move over a ground of noise, which no encoder makes small."""
    draw = np.random.default_rng(0)
    ground = draw.integers(0, 40, (EDGE, EDGE, 3), np.uint8)
    with VideoWriter(file, 20, "move the squares") as writer:
        for step in range(FRAMES):
            picture = ground.copy()
            for number in range(4):
                left, top = (step * (number + 1)) % (EDGE - 40), (37 * number + 2 * step) % (EDGE - 40)
                picture[top : top + 40, left : left + 40] = draw.integers(80, 255, 3, np.uint8)
            writer.add(picture, step, 0.0, False)
    return file


def report(folder: Path) -> dict[str, float]:
    """Runs the command once; returns its wall and CPU seconds and the size of its file, 10⁶ bytes."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "embodied.tools.report", str(folder)], check=True, env=environment)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": wall, "cpu_s": cpu, "mb": (folder / "report.html").stat().st_size / 1e6}


if __name__ == "__main__":
    main()
