"""The last table of a run names what is there, and nothing else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from embodied.run.build.given import Sides
from embodied.run.summary import places


def sides(folder: Path) -> Sides:
    made = (
        SimpleNamespace(
            name=name,
            config=SimpleNamespace(
                video_cfg=SimpleNamespace(records=True, video_base_dir=str(folder / "videos" / name))
            ),
        )
        for name in ("train", "eval")
    )
    return Sides(*made)  # type: ignore[arg-type]


PLACES = {
    "TensorBoard": "tensorboard/events", "evaluations": "eval/000001.json", "metrics": "metrics.jsonl",
    "texts of evaluations": "generations/1.jsonl", "report": "report.html", "videos (eval)": "videos/eval/1.mp4",
    "videos (train)": "videos/train/1.mp4",
}  # fmt: skip


def test_a_run_that_wrote_nothing_has_its_folder_alone(tmp_path):
    for name in ("eval", "tensorboard", "generations", "videos/eval"):
        (tmp_path / name).mkdir(parents=True)
    gone = tmp_path / "checkpoints" / "000001"
    assert places(["jsonl"], sides(tmp_path), tmp_path, [gone]) == [["run folder", str(tmp_path)]]


@pytest.mark.parametrize("title", PLACES)
def test_what_is_there_is_named(tmp_path, title):
    file = tmp_path / PLACES[title]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("x", encoding="utf-8")
    rows = places(["jsonl"], sides(tmp_path), tmp_path)
    assert [row[0] for row in rows] == ["run folder", title]
