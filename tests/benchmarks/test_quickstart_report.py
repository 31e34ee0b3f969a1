"""benchmarks/quickstart.py: what it runs is remembered, and what it reports is what the runs left."""

import json

import benchmark_file
import imageio.v3 as iio
import numpy as np
import pytest


@pytest.fixture(scope="module")
def quickstart():
    return benchmark_file.load("quickstart")


def write_run(out, name, rates, evaluated):
    """What a run leaves: a metrics row an iteration, evaluations at some of them."""
    folder = out / "runs" / name
    (folder / "eval").mkdir(parents=True)
    rows = []
    for index, rate in enumerate(rates):
        row = {"step": index + 1, "rollout/success_rate": rate, "time/iteration_s": 30.0}
        if index + 1 in evaluated:
            row["eval/success_rate"] = evaluated[index + 1] / 100
        rows.append(json.dumps(row))
    (folder / "metrics.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    for number, solved in evaluated.items():
        task = {"successes": solved, "episodes": 100, "success_rate": solved / 100, "low": 0.1, "high": 0.9}
        (folder / "eval" / f"{number:06d}.json").write_text(json.dumps({"tasks": [{}, task]}), encoding="utf-8")
    (out / f"{name}.json").write_text(json.dumps({"command": [], "wall_s": 90.0, "load": 2.0}), encoding="utf-8")


@pytest.fixture
def out(tmp_path, quickstart):
    for name in ("demos", quickstart.CLONED):
        (tmp_path / f"{name}.json").write_text(
            json.dumps({"command": [], "wall_s": 60.0, "load": 1.0}), encoding="utf-8"
        )
    write_run(tmp_path, "unmoved", [], {0: 88})
    write_run(tmp_path, "before", [], {0: 34})
    write_run(tmp_path, "quickstart-grpo-1", [0.3, 0.5, 0.7], {2: 60, 3: 85})
    write_run(tmp_path, "quickstart-grpo-1-after", [], {0: 84})
    write_run(tmp_path, "quickstart-ppo-1", [0.25, 0.45], {2: 70})
    write_run(tmp_path, "quickstart-ppo-1-after", [], {0: 71})
    write_run(tmp_path, "quickstart-ppo-2", [0.25], {})  # not evaluated yet
    return tmp_path


def test_the_evaluation_on_other_starts_counts(quickstart, out):
    found = quickstart.collect(out)
    assert found["before"]["successes"] == 34
    assert list(found["runs"]) == ["grpo 1", "ppo 1"]
    assert found["runs"]["grpo 1"]["after"]["successes"] == 84
    assert [row["minutes"] for row in found["runs"]["grpo 1"]["iterations"]] == [0.5, 1.0, 1.5]


def test_tables(quickstart, out):
    lines = quickstart.tables(quickstart.collect(out)).splitlines()
    assert "| cloned, camera moved | 34/100 = 34% (10% to 90%) | | |" in lines
    assert "| grpo 1 | 84/100 = 84% (10% to 90%) | 1.5 min | 3 |" in lines
    assert lines[-3:] == ["| 1 | 30 | 25 |", "| 2 | 50 (60) | 45 (70) |", "| 3 | 70 (85) |  |"]


def test_the_pictures_are_of_a_start_that_was_regained_and_of_one_that_was_never_lost(quickstart, out, tmp_path):
    solved = {"before": [False, False, True], "grpo": [False, True, True], "ppo": [True, True, True]}
    for shade, (name, successes) in enumerate(solved.items()):
        episodes = []
        for start, success in enumerate(successes):
            video = np.full((9, 16, 16, 3), 60 * shade + 20 * start, np.uint8)
            iio.imwrite(tmp_path / f"{name}{start}.mp4", video, fps=5, macro_block_size=1)
            episodes.append({"success": success, "video": f"{name}{start}.mp4"})
        folder = tmp_path / "runs" / f"{name}-shown" / "eval"
        folder.mkdir(parents=True)
        (folder / "000000.json").write_text(json.dumps({"episodes": episodes}), encoding="utf-8")
    quickstart.strips(tmp_path, [f"{name}-shown" for name in solved], tmp_path / "strips.png")
    picture = iio.imread(tmp_path / "strips.png")
    assert picture.shape == (6 * 8, 8 * 8, 3)
    rows = picture.reshape(6, -1).mean(axis=1)
    assert rows == pytest.approx([20, 80, 140, 40, 100, 160], abs=6)


def test_the_page_keeps_what_was_written_by_hand(quickstart, out, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "quickstart.md").write_text(
        f"above\n\n{quickstart.BEGIN}\nold\n{quickstart.END}\n\nbelow\n", encoding="utf-8"
    )
    saved = {}
    monkeypatch.setattr(quickstart, "DOCS", docs)
    monkeypatch.setattr(quickstart, "save", lambda name, result: saved.update({name: result}))
    monkeypatch.setattr(quickstart, "record", lambda steps: [])
    monkeypatch.setattr(quickstart, "strips", lambda out, names, path: None)
    quickstart.report(quickstart.Steps(out))
    text = (docs / "quickstart.md").read_text(encoding="utf-8")
    assert text.startswith("above\n")
    assert text.endswith(f"{quickstart.END}\n\nbelow\n")
    assert "old" not in text
    assert "| 3 | 70 (85) |  |" in text
    assert (docs / "quickstart.png").stat().st_size > 5000
    assert saved["quickstart"]["runs"].keys() == {"grpo 1", "ppo 1"}


def test_a_step_that_is_complete_is_not_run_again(quickstart, tmp_path, monkeypatch):
    steps = quickstart.Steps(tmp_path / "new")
    with pytest.raises(SystemExit, match="ended with status 2"):
        steps.run("help", "train", "nonsense")
    assert not (tmp_path / "new" / "help.json").exists()
    wall = steps.run("help", "train", "--help")
    monkeypatch.setattr(quickstart.subprocess, "run", None)
    assert steps.run("help", "train", "--help") == wall > 0
