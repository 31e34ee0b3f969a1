"""What a ring of replayed records costs: records appended and sampled a second, CPU time, and memory.

    python benchmarks/replay.py --records 20000

A record has two 64×64 pictures, 24,576 bytes, and a state. The ring holds half of the records, so files are deleted
while others are written. CPU time (all threads of this process) repeats on a shared machine; the wall clock does not.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _measure import machine, save

from embodied.learn.replay.ring import Replay
from embodied.learn.replay.sampling import sampled
from embodied.types import ArraySpec

FIELDS = {
    "images": ArraySpec((2, 64, 64, 3), "uint8"), "state": ArraySpec((8,), "float32"),
    "chunk": ArraySpec((56,), "float32"), "rewards": ArraySpec((8,), "float32"),
    "num_steps": ArraySpec((), "int32"), "terminated": ArraySpec((), "bool"),
}  # fmt: skip


def resident_bytes() -> int:
    """Memory of this process that no file backs."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def timed(count: int, each: int, work: Callable[[int], None]) -> dict[str, Any]:
    """Calls ``work`` for every ``each`` of ``count`` records."""
    wall, cpu, before = time.perf_counter(), time.process_time(), 0
    for number in range(0, count, each):
        work(number)
        if number <= count // 4:  # what the first calls take stays
            before = resident_bytes()
    return {
        "records_per_s": count / (time.perf_counter() - wall),
        "cpu_us_per_record": 1e6 * (time.process_time() - cpu) / count,
        "rss_growth_mib": (resident_bytes() - before) / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=256, help="records of a call")
    parser.add_argument("--folder", type=Path, help="of the disk to measure; default: the one for temporary files")
    args = parser.parse_args()
    random = np.random.default_rng(0)
    piece = {
        name: random.integers(0, 2 if spec.dtype == "bool" else 200, (args.batch, *spec.shape)).astype(spec.dtype)
        for name, spec in FIELDS.items()
    }
    piece["num_steps"][:], piece["terminated"][-1] = 8, True
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        ring = Replay.open(Path(folder), FIELDS, args.records // 2, None, "benchmark")

        def append(number: int) -> None:
            ring.append(piece)
            if number // args.batch % 10 == 9:
                ring.saved(ring.state_dict())

        def sample(number: int) -> None:
            drawn = sampled(len(ring.transitions), 0, number // args.batch, args.batch)
            ring.batch(ring.transitions[drawn])

        found = {"append": timed(args.records, args.batch, append), "sample": timed(args.records, args.batch, sample)}
        state = ring.state_dict()
        begun = time.perf_counter()
        ring.load_state_dict(state)
        found["return to a checkpoint"] = {"s": time.perf_counter() - begun, "records": len(ring)}
        held = sum(path.stat().st_size for path in Path(folder).glob("*.records"))
        found["disk"] = {"bytes_over_records": held / (len(ring) * ring.record_bytes)}
        ring.close()
    for name, values in found.items():
        print(name, {key: round(value, 3) for key, value in values.items()})
    numbers = {"records": args.records, "batch": args.batch, "record_bytes": ring.record_bytes}
    print("→", save("replay", {"machine": machine(["numpy"]), "arguments": numbers, "found": found}))


if __name__ == "__main__":
    main()
