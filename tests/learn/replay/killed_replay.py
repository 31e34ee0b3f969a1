"""A run that appends and samples, for the test that kills it: ``python killed_replay.py FOLDER STEPS``.

Every line of FOLDER/log is an optimizer step and the checksum of the batch that it read.
"""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path

import numpy as np

from embodied.learn.replay.ring import Replay
from embodied.learn.replay.sampling import shown_of, symmetric
from embodied.lib.whole import write_whole
from embodied.types import ArraySpec

FIELDS = {
    "images": ArraySpec((2, 24, 24, 3), "uint8"), "state": ArraySpec((8,), "float32"),
    "num_steps": ArraySpec((), "int32"), "terminated": ArraySpec((), "bool"), "demonstrated": ArraySpec((), "bool"),
}  # fmt: skip
CAPACITY = 60


def records(step: int) -> dict[str, np.ndarray]:
    """The entries that iteration ``step`` collects: two episodes, of which the second is cut off."""
    random = np.random.default_rng(step)
    count = 4 + step % 5
    steps = np.r_[np.full(count - 1, 5), 0].astype(np.int32)
    return {
        "images": random.integers(0, 256, (count, 2, 24, 24, 3), dtype=np.uint8),
        "state": random.standard_normal((count, 8), dtype=np.float32), "num_steps": steps,
        "terminated": np.arange(count) == 1, "demonstrated": random.random(count) < 0.2,
    }  # fmt: skip


def main(folder: Path, steps: int) -> None:
    ring = Replay.open(folder / "replay", FIELDS, CAPACITY, None, "a run")
    checkpoint, first = folder / "checkpoint.json", 0
    if checkpoint.exists():
        known = json.loads(checkpoint.read_text(encoding="utf-8"))
        ring.load_state_dict(known["ring"])
        first = known["steps"]
    with (folder / "log").open("a", encoding="utf-8") as log:
        for step in range(first, steps):
            ring.append(records(step))
            shown = shown_of(16, 0.5, len(ring.transitions), len(ring.demonstrated))
            batch = ring.batch(symmetric(ring.transitions, ring.demonstrated, shown, 7, step, 16))
            log.write(f"{step} {zlib.crc32(b''.join(values.tobytes() for values in batch.values()))}\n")
            log.flush()
            if step % 4 == 3:
                state = ring.state_dict()
                write_whole(checkpoint, json.dumps({"steps": step + 1, "ring": state}))
                ring.saved(state)
    ring.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
