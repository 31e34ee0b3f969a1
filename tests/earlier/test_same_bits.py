"""The rebuilt house gives the numbers of the one before it: seeded runs of both versions, compared bit by bit."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import seeded_runs
import torch

ROOT = Path(__file__).resolve().parents[2]
BEFORE = "126b5aae759b386c985c69ea68af31af18b8c7e7"  # the commit that enumerated the random streams


@pytest.mark.slow
@pytest.mark.parametrize("name", seeded_runs.RUNS)
def test_a_seeded_run_has_the_bits_that_it_had_before_the_house_was_rebuilt(tmp_path: Path, name: str) -> None:
    tree = tmp_path / "before"
    added = subprocess.run(["git", "worktree", "add", "--detach", str(tree), BEFORE], cwd=ROOT, capture_output=True)
    if added.returncode:
        pytest.skip(f"the history has no commit {BEFORE[:7]} here: {added.stderr.decode().strip()}")
    try:
        seeded_runs.record(tree, tmp_path / "old", [name])
        seeded_runs.record(ROOT, tmp_path / "new", [name])
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)
    assert seeded_runs.compare(tmp_path / "old", tmp_path / "new") == []


def test_the_comparison_sees_one_bit_of_a_metric_and_of_a_tensor(tmp_path: Path) -> None:
    for folder, loss, weight in (("a", 0.5, 1.0), ("same", 0.5, 1.0), ("b", 0.5 + 2**-53, 1.0), ("c", 0.5, 1 + 2**-23)):
        run = tmp_path / folder / "runs" / "one"
        seeded_runs.dcp.save({"w": torch.tensor([weight])}, checkpoint_id=run / "checkpoints" / "000001", no_dist=True)
        (run / "metrics.jsonl").write_text(
            json.dumps({"train/loss": loss, "time/train_s": len(folder)}) + "\n", encoding="utf-8"
        )
    a = tmp_path / "a"
    assert seeded_runs.compare(a, tmp_path / "same") == []
    assert seeded_runs.compare(a, tmp_path / "b") == [f"one: row 0: train/loss was 0.5, is {0.5 + 2**-53}"]
    assert seeded_runs.compare(a, tmp_path / "c") == ["one: tensor w differs"]
