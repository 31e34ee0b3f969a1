"""``+perturb=…`` as a user types it: an evaluation with its table and picture, a training that draws conditions."""

from __future__ import annotations

import contextlib
import io
import json
from importlib import util
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import pytest

from embodied import train
from embodied.evaluation import robustness
from embodied.observe.statistics import wilson
from embodied.perturbations import Condition, Perturbation, Perturbed
from embodied.types import Episode, EpisodeResult, Start

HERE = Path(__file__).parents[1]
FAKE = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "env.eval.video_cfg.save_video=false",
    "env.eval.success_distance=0.9",
)  # fmt: skip
ENDS = ("--config-dir", str(HERE / "config"))


def run(folder: Path, *overrides: str, entry: str = "eval", name: str = "run") -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return train.main([*FAKE, *overrides, f"runner.experiment_name={name}", *ENDS], entry)


def read(folder: Path, name: str = "run", file: str = "000000.json") -> dict[str, Any]:
    return json.loads((folder / "runs" / name / "eval" / file).read_text(encoding="utf-8"))


# -- one evaluation --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of an evaluation of eight starts under all conditions, and what it printed."""
    folder, said = tmp_path_factory.mktemp("robust"), io.StringIO()
    options = ("env.eval.episodes_per_task=4", "env.eval.total_num_envs=3", "env.num_workers=1")
    with contextlib.redirect_stdout(said):
        assert run(folder, "+perturb=robot", *options) == 0
    return folder, said.getvalue()


def test_an_evaluation_compares_each_condition_with_the_same_starts(made):
    found = read(made[0], file="robustness.json")
    assert len(found["conditions"]) == 36
    starts = [one["start"] for one in found["unperturbed"]]
    assert len(starts) == 8
    before = [one["success"] for one in found["unperturbed"]]
    assert 0 < sum(before) < 8, "else nothing can be lost or gained"
    for row in found["conditions"]:
        outcomes = row["outcomes"]
        assert [one["start"] for one in outcomes] == starts
        now = [one["success"] for one in outcomes]
        assert row["successes"] == sum(now)
        assert row["lost"] == sum(a and not b for a, b in zip(before, now, strict=True))
        assert row["gained"] == sum(b and not a for a, b in zip(before, now, strict=True))
        assert row["difference"] == pytest.approx((sum(now) - sum(before)) / 8)
        assert row["difference_low"] <= row["difference"] <= row["difference_high"]
        assert (row["low"], row["high"]) == wilson(sum(now), 8)
        assert row["perturbation"]
    strong = {row["kind"]: row for row in found["conditions"] if row["strength"] == "strong"}
    assert strong["action_noise"]["perturbation"] == {"action_noise": 0.2}
    assert any(row["lost"] + row["gained"] for row in found["conditions"])


def test_the_unperturbed_part_is_that_of_an_evaluation_without(made):
    folder, _ = made
    assert run(folder, "env.eval.episodes_per_task=4", name="plain") == 0
    plain, beside = read(folder, "plain"), read(folder)
    assert "robustness" not in plain
    rows = read(folder, file="robustness.json")["conditions"]
    assert [{key: row[key] for key in row if key != "outcomes"} for row in rows] == beside.pop("robustness")
    assert beside == plain
    assert not (folder / "runs" / "plain" / "eval" / "robustness.json").exists()


def test_the_table_is_on_the_console_and_in_a_page(made):
    folder, said = made
    page = (folder / "runs" / "run" / "eval" / "robustness.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 1 + 36
    found = read(folder, file="robustness.json")["conditions"][4]
    cells = [cell.strip() for cell in rows[3 + 4].strip("|").split("|")]
    assert cells[:3] == ["camera_turn", "medium", f"{found['successes']}/8 ({found['success_rate']:.0%})"]
    assert cells[4:6] == [
        f"{found['difference']:+.0%}", f"{found['difference_low']:+.0%} to {found['difference_high']:+.0%}",
    ]  # fmt: skip
    assert "![success under perturbations](robustness.png)" in page
    named = {key: read(folder)["protocol"][key] for key in ("name", "hash")}
    assert read(folder, file="robustness.json")["protocol"] == named
    assert f"Protocol of no name `{named['hash']}`, and the perturbations." in page
    table = said.partition("robustness of random weights, on the same starts")[2]
    (line,) = (line for line in table.splitlines() if line.split()[:2] == ["camera_turn", "medium"])
    assert all(cell in line for cell in cells)


def test_the_picture_is_one(made):
    picture = iio.imread(made[0] / "runs" / "run" / "eval" / "robustness.png")
    height, width, _ = picture.shape
    assert 400 < height < 1200
    assert 700 < width < 1200
    assert len({tuple(pixel) for pixel in picture[::4, ::4].reshape(-1, picture.shape[2])}) > 10


def test_more_workers_and_another_order_change_no_number(made):
    folder, _ = made
    options = ("env.eval.total_num_envs=6", "env.num_workers=3", "rollout.min_batch=4")
    assert run(folder, "+perturb=robot", "env.eval.episodes_per_task=4", *options, name="other") == 0
    assert read(folder, "other", "robustness.json") == read(folder, file="robustness.json")


def test_what_will_run_is_said_before(tmp_path, capsys):
    assert run(tmp_path, "+perturb=robot", "env.eval.episodes_per_task=5", "runner.dry_run=true") == 0
    said = capsys.readouterr().out
    assert "360 more = 36 conditions × 10" in said
    assert "at most 8,880 control steps" in said  # 370 episodes of 24


def test_without_matplotlib_there_is_a_table_and_the_fix(tmp_path, monkeypatch, capsys):
    found = util.find_spec
    monkeypatch.setattr(robustness, "find_spec", lambda name: None if name == "matplotlib" else found(name))
    options = ("env.eval.perturb.kinds=[noise]", "env.eval.perturb.strengths=[mild]", "env.eval.episodes_per_task=1")
    assert run(tmp_path, "+perturb=robot", *options) == 0
    assert "pip install 'embodied-rl[plot]'" in capsys.readouterr().out
    folder = tmp_path / "runs" / "run" / "eval"
    assert sorted(path.name for path in folder.iterdir()) == ["000000.json", "robustness.json", "robustness.md"]
    assert "png" not in (folder / "robustness.md").read_text(encoding="utf-8")


# -- training --------------------------------------------------------------------------------------------------------

SHORT = (
    "runner.max_epochs=2", "runner.save_interval=-1", "runner.val_check_interval=2", "algorithm.rollout_epoch=4",
    "env.train.max_episode_steps=8", "env.eval.max_episode_steps=8", "env.eval.episodes_per_task=2",
    "env.train.success_distance=0.9",
)  # fmt: skip


def test_a_training_draws_conditions_and_evaluates_under_others(tmp_path, capsys):
    several = (
        "+perturb=robot_random", "env.train.perturb.kinds=[action_delay]", "env.train.perturb.unperturbed=0",
        "+perturb@env.eval.perturb=robot", "env.eval.perturb.strengths=[strong]",
    )  # fmt: skip
    assert run(tmp_path, *SHORT, *several, entry="train") == 0
    said = capsys.readouterr().out
    assert "each group has one of 2 conditions, 0% of them none" in said
    rows = [
        json.loads(line)
        for line in (tmp_path / "runs" / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    found = read(tmp_path, file="000002.json")["robustness"]
    rates = [row["success_rate"] for row in found]
    assert len(rates) == 12
    assert rows[-1]["eval/perturbed_success_rate"] == pytest.approx(sum(rates) / 12)
    assert rows[-1]["eval/perturbed_success_lowest"] == min(rates)
    assert run(tmp_path, *SHORT, entry="train", name="plain") == 0
    plain = [
        json.loads(line)
        for line in (tmp_path / "runs" / "plain" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert rows[0]["rollout/return_mean"] != plain[0]["rollout/return_mean"]
    assert "eval/perturbed_success_rate" not in plain[-1]


# -- the comparison --------------------------------------------------------------------------------------------------


def result(number: int, success: bool, perturbed: Perturbed | None = None) -> EpisodeResult:
    return EpisodeResult(Episode(number, 0, Start(0, number, 0), None, perturbed), (), 0.0, success, 1, success, False)


def test_pairs_are_found_by_place_in_whatever_order():
    one, other = (
        Condition("blur", strength, Perturbation(blur=amount)) for strength, amount in (("a", 0.1), ("b", 0.2))
    )
    plain = [result(number, number < 6) for number in range(10)]  # 0 to 5 are solved
    worse = [result(10 + number, number in (0, 1, 8), Perturbed(one, number)) for number in reversed(range(10))]
    same = [result(20 + number, number < 6, Perturbed(other, number)) for number in range(10)]
    alone, perturbed = robustness.split([*worse, *plain, *same])
    assert (alone, dict(perturbed)) == (plain, {one: worse, other: same})
    first, second = robustness.compare(plain, perturbed)
    assert (first.successes, first.lost, first.gained) == (3, 4, 1)
    assert first.difference == pytest.approx(-0.3)
    assert (second.successes, second.lost, second.gained, second.difference) == (6, 0, 0, 0.0)
    assert first.perturbation == {"blur": 0.1}
    cells = robustness.cells(plain, [first])
    assert cells[1][:4] == ["none", "", "6/10 (60%)", "31% to 83%"]
    assert cells[2][:3] == ["blur", "a", "3/10 (30%)"]
    assert cells[2][4] == "-30%"
    assert cells[2][6] == "4, 1"
