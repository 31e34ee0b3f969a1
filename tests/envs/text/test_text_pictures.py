"""Problems with pictures: what a column may hold, where they stand in a prompt, what the observation has, errors."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embodied.envs.text.env import MathEnv
from embodied.envs.text.reading import Reading
from PIL import Image

from embodied import instructions
from embodied.errors import ConfigError, DatasetError
from embodied.types import Start

RED, BLUE = (250, 0, 0), (0, 0, 250)
CUSTOM = """
from PIL import Image

def rows():
    return [
        {"prompt": "<image>which?", "answer": "1", "images": Image.new("RGB", (8, 8), (250, 0, 0))},
        {"prompt": "none", "answer": "2"},
    ]

class Made:
    def __len__(self):
        return 2

    def __getitem__(self, number):
        return rows()[0]
"""


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "custom.py").write_text(CUSTOM, encoding="utf-8")


def coloured(size: tuple[int, int], colour: tuple[int, int, int] = RED, mode: str = "RGB") -> Image.Image:
    return Image.new("RGB", size, colour).convert(mode)


def write(folder: Path, *rows: dict[str, Any]) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "rows.jsonl").write_text(
        "".join(f"{json.dumps({'answer': '1', **row})}\n" for row in rows), encoding="utf-8"
    )
    return str(folder / "rows.jsonl")


def env_of(data: str, **keys: Any) -> MathEnv:
    return MathEnv(data, **{"image_key": "images", "image_size": 8, "max_images": 2, **keys})


def seen(env: MathEnv, row: int = 0) -> dict[str, np.ndarray]:
    out = {name: np.full(field.shape, 7, field.dtype) for name, field in env.spec.obs.items()}
    env.reset(Start(0, row, 0))
    env.observe(out)
    return out


def test_pictures_of_files_keep_their_shape_in_the_middle_of_black(tmp_path):
    data = write(
        tmp_path / "data",
        {"prompt": "<image> and <image>", "images": ["wide.png", {"bytes": None, "path": "sub/high.png"}]},
        {"prompt": "<image>", "images": "wide.png"},
        {"prompt": "no picture", "images": []},
        {"prompt": "no picture"},
    )
    (tmp_path / "data" / "sub").mkdir()
    coloured((16, 8)).save(tmp_path / "data" / "wide.png")
    coloured((2, 4), BLUE, "RGBA").save(tmp_path / "data" / "sub" / "high.png")
    env = env_of(data)
    assert {name: field.shape for name, field in env.spec.obs.items()} == {
        "instruction": (2048,), "pictures": (2, 8, 8, 3)
    }  # fmt: skip
    wide, high = seen(env)["pictures"]
    assert (wide[2:6] == RED).all()
    assert not wide[:2].any()
    assert not wide[6:].any()
    assert (high[:, 2:6] == BLUE).all()
    assert not high[:, :2].any()
    first, second = seen(env, 1)["pictures"]
    assert (first == wide).all()
    assert not second.any()
    assert not seen(env, 2)["pictures"].any()
    assert not seen(env, 3)["pictures"].any()

    seen(env, 1)
    state = env.get_state()
    seen(env, 2)
    env.set_state(state)
    out = {name: np.zeros(field.shape, field.dtype) for name, field in env.spec.obs.items()}
    env.observe(out)
    assert (out["pictures"][0] == wide).all()


def test_pictures_inside_a_parquet_file_and_of_a_function(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    data = io.BytesIO()
    coloured((4, 4), BLUE).save(data, "PNG")
    asked = [{"role": "user", "content": [{"type": "text", "text": "is "}, {"type": "image"}]}]
    row = {"prompt": asked, "answer": "1", "images": [{"bytes": data.getvalue(), "path": "4.png"}]}
    parquet.write_table(arrow.Table.from_pylist([row]), tmp_path / "rows.parquet")
    out = seen(env_of("rows.parquet"))
    assert instructions.messages(instructions.read(out["instruction"])) == [{"role": "user", "content": "is <image>"}]
    assert (out["pictures"][0] == BLUE).all()
    for name in ("rows", "Made"):
        assert (seen(env_of(f"custom.py:{name}"))["pictures"][0] == RED).all()


def test_without_pictures_in_the_data_the_observation_is_what_it_was(tmp_path):
    data = write(tmp_path, {"prompt": "1+1"})
    env = env_of(data, image_size=None)
    assert env.spec == MathEnv(data).spec
    assert list(seen(env)) == ["instruction"]
    named = write(tmp_path / "named", {"prompt": "what is <image> in HTML?"})
    assert list(MathEnv(named).spec.obs) == ["instruction"]


def test_a_verifier_gets_no_pictures(tmp_path):
    coloured((8, 8)).save(tmp_path / "one.png")
    asked = []

    def verifier(problem: Any, response: str) -> Any:
        asked.append(problem)
        raise RuntimeError

    env = env_of(write(tmp_path, {"prompt": "<image>", "images": ["one.png"], "more": 3}), verifier=verifier)
    seen(env)
    with pytest.raises(RuntimeError):
        env.step(np.zeros(4096, np.uint8))
    assert asked[0].pictures == ()
    assert asked[0].fields == {"more": 3}


@pytest.mark.parametrize(
    ("row", "keys", "parts"),
    [
        ({"prompt": "<image>"}, {}, ["row 1: the prompt has 1 times <image>", "holds 0 pictures"]),
        ({"prompt": "?", "images": ["a.png"]}, {}, ["0 times <image>", "holds 1 pictures", "template"]),
        ({"prompt": "<image>" * 3, "images": ["a.png"] * 3}, {}, ["row 1 has 3 pictures", "env.eval.max_images to 3"]),
        ({"prompt": [{"role": "user", "content": [{"type": "video"}]}]}, {}, ["row 1: the conversation in 'prompt'"]),
        ({"prompt": "<image>", "images": ["a.png"]}, {"image_size": None}, ["in which size", "env.train.image_size"]),
        ({"prompt": "<image>", "images": ["a.png"]}, {"max_images": 0}, ["env.train.max_images"]),
    ],
)
def test_rows_and_options_that_cannot_be_are_refused_at_the_start(tmp_path, row, keys, parts):
    with pytest.raises((DatasetError, ConfigError)) as failed:
        env_of(write(tmp_path, {"prompt": "fine"}, row), **keys)
    assert all(part in str(failed.value) for part in parts), str(failed.value)


@pytest.mark.parametrize("picture", ["nowhere.png", "rows.jsonl", {"bytes": None, "path": None}, 3])
def test_a_picture_that_cannot_be_read_is_named(tmp_path, picture):
    env = env_of(write(tmp_path, {"prompt": "fine"}, {"prompt": "<image>", "images": [picture]}))
    with pytest.raises(DatasetError, match=r"rows\.jsonl, row 1: picture 0 cannot be read"):
        seen(env, 1)


def test_a_template_may_say_where_the_picture_stands():
    reading = Reading(image_key="picture", template="<image>{prompt}", answer_key=None)
    problem = reading.problem({"prompt": "which?", "picture": coloured((2, 2))}, 0)
    assert problem.prompt == "<image>which?"
    assert len(problem.pictures) == 1
