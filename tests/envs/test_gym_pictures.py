"""``env=gym``: pictures in the forms that envs give them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from embodied.envs.gym import GymEnv, env, probe
from embodied.envs.gym.facts import GymFacts
from embodied.envs.gym.mapping.images import _ways
from embodied.envs.gym.pictures import form_of, rendered
from embodied.envs.gym.sources import TEXT

from embodied.errors import ConfigError, SpecMismatchError
from embodied.types import Start

H, W = 30, 40


class Shows(gymnasium.Env[Any, Any]):
    """Its observation is of one kind. A colour is dark at the left and bright at the right."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self, shape: Any, dtype: str = "uint8", low: float = 0, high: float = 255, nested: bool = False,
        drawn: Any = None, later: Any = None, render_mode: str | None = None,
    ) -> None:  # fmt: skip
        self.render_mode, self._nested, self._drawn, self._later = render_mode, nested, drawn, later
        box = gymnasium.spaces.Box(low, high, tuple(shape), np.dtype(dtype).type)
        self.box = box
        self.observation_space = gymnasium.spaces.Dict({"cam": box, "arm": BOX}) if nested else box
        self.action_space = BOX

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self._obs(), 0.0, False, False, {"success": False}

    def _obs(self) -> Any:
        if self._later and self._steps > 4:
            return np.zeros(self._later, self.box.dtype)
        value = ramp(self.box.shape, self.box.dtype, float(self.box.low.min()), float(self.box.high.max()))
        return {"cam": value, "arm": np.zeros(2, np.float32)} if self._nested else value

    def render(self) -> Any:
        shape, dtype = self._drawn or ((H, W, 3), "uint8")
        return ramp(tuple(shape), np.dtype(dtype), 0, 1 if dtype.startswith("float") else 255)


BOX = gymnasium.spaces.Box(-1, 1, (2,))


def ramp(shape: tuple[int, ...], dtype: np.dtype[Any], low: float, high: float) -> np.ndarray:
    """Dark to bright along the width, the longest axis; the first of several pictures is darker."""
    axis = shape.index(W)
    line = low + (high - low) * np.arange(W) / (W - 1)
    value = np.broadcast_to(line.reshape([W if place == axis else 1 for place in range(len(shape))]), shape).copy()
    return np.rint(value).astype(dtype) if dtype.kind in "ui" else value.astype(dtype)


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    """Envs are asked in this process, which takes milliseconds."""
    monkeypatch.setattr(env, "facts_of", lambda making, remake, python: probe.describe(making, remake))


def shows(shape: Any, *about: Any, drawn: Any = None, later: Any = None, nested: bool = False, **more: Any) -> GymEnv:
    names = dict(zip(("dtype", "low", "high"), about, strict=False))
    made = {"shape": list(shape), **names, "nested": nested, "drawn": drawn, "later": later}
    return GymEnv(entry_point=f"{__name__}.Shows", make_kwargs=made, success="info.success", **more)


def look(one: GymEnv) -> dict[str, np.ndarray]:
    out = {name: np.zeros(field.shape, field.dtype) for name, field in one.spec.obs.items()}
    one.observe(out)
    return out


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("about", "told"),
    [
        (((H, W, 3),), None),
        (((3, H, W),), "rgb, channels first"),
        (((H, W),), "grey, without a channel"),
        (((H, W, 1),), "grey, channels last"),
        (((1, H, W),), "grey, channels first"),
        (((H, W, 3), "float32", 0, 1), "rgb, channels last, 0 is black and 1 white"),
        (((3, H, W), "float64", 0, 1), "rgb, channels first, 0 is black and 1 white"),
        (((3, H, W), "float16", 0, 255), "rgb, channels first"),
        (((H, W, 3), "int64", 0, 255), "rgb, channels last"),
        (((2, H, W, 3),), "rgb, channels last, 2 pictures one after another"),
        (((1, H, W, 3),), "rgb, channels last"),
        (((2, 3, H, W), "float32", 0, 1), "rgb, channels first, 2 pictures one after another, 0 is black and 1 white"),
    ],
)
def test_a_picture_of_one_meaning_is_shown_and_said(about, told, nested):
    one = shows(*about, nested=nested)
    name = "obs.cam" if nested else "obs"
    dtype = (*about, "uint8")[1]
    assert one.reads().get("pictures") == (told and f"{name} {dtype} {about[0]} as {told}")
    count = 2 if len(about[0]) == 4 and about[0][0] == 2 else 1
    assert one.spec.obs["images"].shape == (count, H, W, 3)
    assert len(one.spec.cameras) == count
    assert one.spec.obs.get("state") == (one.spec.obs.get("state") if nested else None)
    one.reset(Start(0, 0, 0))
    expected = np.rint(255 * np.arange(W) / (W - 1))
    for picture in look(one)["images"]:
        assert np.abs(picture - expected[None, :, None]).max() <= 1
    assert one.frame().shape == (H, W, 3)


@pytest.mark.parametrize(
    ("about", "why", "more", "count"),
    [
        (((H, W, 4),), r"alpha \(rgba\) or four grey", {"image_layout": "rgba"}, 1),
        (((H, W, 4),), r"alpha \(rgba\) or four grey", {"image_layout": "grey_frames"}, 4),
        (((4, H, W),), r"alpha \(rgba\) or four grey", {"image_layout": "grey_frames", "images": ["obs"]}, 4),
        (((H, W, 12),), "12 channels", {"image_layout": "rgb_frames"}, 4),
        (((12, H, W),), "12 channels", {"image_layout": "grey_frames"}, 12),
        (((H, W, 2),), "2 channels", {"image_layout": "grey_frames"}, 2),
        (((H, W), "uint16", 0, 65535), "a depth of uint16 from 0 to 65535", {"image_range": [0, 65535]}, 1),
        (((H, W, 1), "uint16", 0, 9000), "a depth of uint16 from 0 to 9000", {"image_range": [0, 9000]}, 1),
        (((H, W), "float32", 0, 1), "a grey picture, a depth or a map", {"images": ["obs"]}, 1),
        (((1, H, W), "float32", 0, 1), "a grey picture, a depth or a map", {"images": ["obs"]}, 1),
        (((H, W, 3), "float32", -1, 1), "float32 from -1 to 1", {"image_range": [-1, 1]}, 1),
        (((H, W, 4), "float32", 0, 1), "alpha", {"image_layout": "rgba"}, 1),
        (((2, H, W, 4),), "alpha", {"image_layout": "rgba"}, 2),
    ],
)
def test_a_picture_of_several_meanings_is_asked_for(about, why, more, count):
    with pytest.raises(ConfigError, match=why) as caught:
        shows(*about)
    assert "env.train.image_layout" in caught.value.remedy
    one = shows(*about, **more)
    assert one.spec.obs["images"].shape == (count, H, W, 3)
    one.reset(Start(0, 0, 0))
    expected = np.rint(255 * np.arange(W) / (W - 1))
    for picture in look(one)["images"]:
        assert np.abs(picture - expected[None, :, None]).max() <= 1
    as_numbers = shows(*about, images=[], state=["obs"])
    assert list(as_numbers.spec.obs) == ["state"]


@pytest.mark.parametrize("bounds", [None, (-np.inf, np.inf), (0, np.inf)])
def test_without_bounds_a_float_picture_is_asked_for(bounds):
    assert "without bounds: which numbers are black" in str(form_of((H, W, 3), "float32", bounds))


@pytest.mark.parametrize(
    ("shape", "dtype", "bounds"),
    [
        ((19, 19), "uint8", (0, 2)),
        ((3, 19, 19), "float32", (0, 1)),
        ((17, 8, 8), "bool", (0, 1)),
        ((7, 7), "uint8", (0, 255)),
        ((360, 4), "float32", (0, 30)),
        ((1024, 3), "float32", (-1, 1)),
        ((64, 64), "float32", (-np.inf, np.inf)),
        ((64, 64), "float32", (0, 10)),
        ((64, 64), "int64", (0, 9)),
        ((20, 20, 5), "uint8", (0, 1)),
        ((128,), "uint8", (0, 255)),
        ((5, 4, 4, 2), "float32", (0, 1)),
        ((), "float32", None),
    ],
)
def test_boards_matrices_and_clouds_are_no_pictures(shape, dtype, bounds):
    assert form_of(shape, dtype, bounds) is None


@pytest.mark.parametrize("later", [(H, W, 1), (H, W), (W,), (3, H, W)])
def test_a_picture_that_takes_another_form_is_said(later):
    one = shows((H, W, 3), later=list(later))
    one.reset(Start(0, 0, 0))
    for _ in range(5):
        one.step(np.zeros(2, np.float32))
    with pytest.raises(SpecMismatchError, match="expected a picture as at first: rgb, channels last"):
        look(one)


@pytest.mark.parametrize(
    ("about", "more", "message"),
    [
        (((H, W, 3),), {"image_layout": "rbg"}, "Did you mean 'rgb'"),
        (((H, W, 4),), {"image_layout": "rgb"}, "of 4 channels, which are not rgb"),
        (((H, W, 4),), {"images": ["obs"]}, "of 4 channels, whose meaning is not said"),
        (((H, W), "uint16", 0, 9000), {"image_range": [5, 5]}, "two different numbers"),
        (((H, W), "uint16", 0, 9000), {"image_range": [0, np.inf]}, "two different numbers"),
        (((H, W), "uint16", 0, 9000), {"images": ["obs"]}, "which numbers are black and white is not said"),
    ],
)
def test_what_is_said_of_pictures_is_checked(about, more, message):
    with pytest.raises(ConfigError, match=message):
        shows(*about, **more)


@pytest.mark.parametrize(
    "drawn",
    [((H, W, 3), "uint8"), ((H, W, 4), "uint8"), ((H, W), "uint8"), ((H, W, 1), "uint8"), ((3, H, W), "uint8"),
     ((H, W, 3), "float32"), ((4, H, W), "float64")],
)  # fmt: skip
def test_what_is_rendered_becomes_a_picture(drawn):
    one = shows((H, W, 3), drawn=drawn, images=["render"])
    one.reset(Start(0, 0, 0))
    (picture,) = look(one)["images"]
    assert np.abs(picture - np.rint(255 * np.arange(W) / (W - 1))[None, :, None]).max() <= 1


@pytest.mark.parametrize("drawn", [np.zeros(5), np.zeros((9, 9, 7), np.uint8), "a picture", None, np.zeros((0, 5, 3))])
def test_what_is_rendered_and_no_picture_is_refused(drawn):
    with pytest.raises(ConfigError, match=r"render\(\) is"):
        rendered(drawn)


def test_what_is_said_of_one_entry_keeps_the_others():
    """Both keys leave out what they do not name: a fix that named the depth alone would lose camera and joints."""
    entries = {"obs.rgb": ((H, W, 3), "uint8"), "obs.depth": ((H, W), "uint16"), "obs.q": ((3,), "float32"),
               "obs.task": ((), TEXT), "info.is_success": ((), "bool")}  # fmt: skip
    facts = GymFacts(entries, {}, 9, 10.0, None, None, "", "", {}, "1", bounds={"obs.rgb": (0.0, 255.0)})
    said = _ways("obs.depth", facts)
    assert "images=[obs.rgb,obs.depth] env.train.state=[obs.q] with" in said
    assert "as numbers: env.train.images=[obs.rgb] env.train.state=[obs.q,obs.depth];" in said
    assert said.endswith("without it: env.train.images=[obs.rgb] env.train.state=[obs.q]")
