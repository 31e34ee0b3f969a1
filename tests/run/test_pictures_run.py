"""Problems with pictures through the commands that users type, with a small vision-language model at random."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from logged import rows_of
from PIL import Image, ImageDraw

from embodied import sft, train

sys.path.append(str(Path(__file__).parents[1] / "models"))
from tiny_vision import make_folder

RUN = (
    "env=math", "model=causal_lm", "tracker=jsonl", "runner.device=cpu", "runner.task_type=math", "runner.seed=3",
    "env.num_workers=2", "runner.num_threads=1", "env.train.total_num_envs=8", "env.eval.total_num_envs=8",
    "env.eval.episodes_per_task=4", "env.eval.video_cfg.save_video=false", "algorithm.group_size=4",
    "algorithm.rollout_epoch=1", "actor.global_batch_size=16", "actor.micro_batch_size=8", "runner.save_interval=1",
    "runner.max_epochs=2", "runner.val_check_interval=2", "actor.model.precision=fp32", "actor.optim.lr=0.01",
    "data.max_prompt_length=80", "actor.model.max_new_tokens=4", "data.image_key=images",
    "reward.custom_reward_function.path=rewards.py", "data=train.jsonl", "data.val_data_paths=[test.parquet]",
)  # fmt: skip
TIMES = ("time/", "perf/")
COLOURS = {"red": (220, 30, 30), "blue": (30, 30, 220)}
REWARDS = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return (solution_str.count(ground_truth[0]) + len(set(solution_str)) / 8) / 4
"""


def drawn(colour: str, number: int) -> Image.Image:
    """A circle or a square of a colour, in pictures of different shapes."""
    image = Image.new("RGB", (40 + number, 30), (10, 10, 10))
    pen = ImageDraw.Draw(image)
    (pen.ellipse if number % 2 else pen.rectangle)((4, 4, 30, 26), fill=COLOURS[colour])
    return image


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a data set whose pictures are files, and one that has them inside."""
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    folder = tmp_path_factory.mktemp("pictures")
    make_folder("smolvlm", folder / "model")
    (folder / "drawn").mkdir()
    rows, inside = [], []
    for number in range(8):
        colour = [*COLOURS][number % 2]
        name = f"drawn/{number}.png"
        drawn(colour, number).save(folder / name)
        rows.append({"prompt": "<image>which colour?", "answer": colour, "images": [name]})
        picture = {"bytes": (folder / name).read_bytes(), "path": None}
        asked = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "which colour?"}]}]
        inside.append({"prompt": asked, "answer": colour, "images": [picture]})
    (folder / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    parquet.write_table(pyarrow.Table.from_pylist(inside), folder / "test.parquet")
    taught = [{**row, "response": row["answer"]} for row in rows] * 4
    (folder / "demonstrations.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in taught), encoding="utf-8")
    (folder / "rewards.py").write_text(REWARDS, encoding="utf-8")
    return folder


def run(place: Path, monkeypatch: pytest.MonkeyPatch, name: str, *options: str) -> int:
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    return train.main([*RUN, "actor.model.model_path=model", f"runner.experiment_name={name}", *options])


def test_two_iterations_learn_from_pictures_and_have_the_same_bits_twice(place, monkeypatch):
    assert run(place, monkeypatch, "one") == 0
    assert run(place, monkeypatch, "two") == 0
    rows, again = (rows_of(place / "runs" / name) for name in ("one", "two"))
    assert [row["step"] for row in rows] == [1, 2]
    for row, other in zip(rows, again, strict=True):
        assert {k: v for k, v in row.items() if not k.startswith(TIMES)} == {
            k: v for k, v in other.items() if not k.startswith(TIMES)
        }
        assert row["train/grad_norm"] > 0
        assert row["train/logprob_gap"] < 1e-4


def test_supervised_training_learns_to_name_colours(place, monkeypatch):
    """The tower was never trained: the language model learns to read what it says."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    taught = (
        "data=demonstrations.jsonl", "data.val_data_paths=[demonstrations.jsonl]", "env.train.data=train.jsonl",
        "env.eval.data=test.parquet", "runner.task_type=sft", "runner.max_epochs=1", "sft.steps_per_iteration=40",
        "runner.val_check_interval=1", "sft.val_samples=4", "actor.optim.lr=0.01", "env.eval.verifier=[{name: exact}]",
        "env.eval.episodes_per_task=8", "algorithm.val_sampling_params.do_sample=false",
        "runner.experiment_name=taught", "actor.model.model_path=model", "actor.model.max_new_tokens=6",
    )  # fmt: skip
    assert sft.main([*RUN[:-3], *taught]) == 0
    (row,) = rows_of(place / "runs" / "taught")
    assert row["eval/success_rate"] == 1
    assert row["sft/val_loss"] < 0.3
