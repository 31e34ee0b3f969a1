"""Commands that play episodes of an evaluation again."""

from __future__ import annotations

from pathlib import Path

import pytest

from embodied.run.evaluation import replay
from embodied.schema.compose.compose import compose_unchecked

RECORDED = {"start": {"task_id": 0, "init_state_id": 3, "seed": 7}, "video": "a.mp4"}
OTHER = {"start": {"task_id": 2, "init_state_id": 31, "seed": 1073741825}, "video": None}
START = "--task 2 --state 31 --seed 1073741825"
FOLDERS = ["tests/config"]
ENV = ("env=fake", "model=fake")


def of(*overrides: str, iteration: int = 0, entry: str = "train") -> list[str]:
    composed = compose_unchecked([*ENV, *overrides], entry, FOLDERS)
    return replay.commands(composed, Path("runs/a b"), iteration, [RECORDED, OTHER])


def test_an_evaluation_of_its_own_names_what_it_evaluated():
    words = (
        "env.eval.horizon=9",
        "runner.experiment_name=x",
        "runner.seed=5",
        "runner.ckpt_path=runs/A/checkpoints/000004",
    )
    assert of(*words, entry="eval") == [
        "embodied play env=fake model=fake env.eval.horizon=9 runner.seed=5 --config-dir tests/config "
        f"runs/A/checkpoints/000004 {START}"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("iteration", "weights"),
    [(0, ""), (4, "'runs/a b/checkpoints/000004' "), (5, None), (7, "'runs/a b/checkpoints/000007' ")],
)
def test_an_evaluation_of_a_training_names_the_checkpoint_if_there_will_be_one(iteration, weights):
    found = of("runner.max_epochs=7", "runner.save_interval=2", "tracker=jsonl", iteration=iteration)
    expected = [f"embodied play {' '.join(ENV)} --config-dir tests/config {weights}{START}"]
    assert found == ([] if weights is None else expected)


def test_what_one_episode_cannot_have_is_left_out():
    drawn = "algorithm.val_sampling_params.do_sample"
    (found,) = of("+perturb=robot", "env.eval.perturb.without=[texts]", f"{drawn}=true", entry="eval")
    assert found == f"embodied play {' '.join(ENV)} {drawn}=true --config-dir tests/config {START}"
