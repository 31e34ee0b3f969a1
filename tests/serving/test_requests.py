"""From a request's keys and values to what the policy takes."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from serving_rig import ENV, observation

from embodied.client import wire
from embodied.errors import ConfigError, RequestError, UnknownNameError
from embodied.serving.keys import in_order, keys_of, parse
from embodied.serving.wire.requests import QuestionReader
from embodied.testing import FakeEnv
from embodied.types import ArraySpec

READER = QuestionReader(ENV)
PICTURES = observation()["images"]
STATE = observation()["state"]


def file_of(picture: np.ndarray, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture).save(out, kind)
    return out.getvalue()


@pytest.mark.parametrize(
    "given",
    [
        {"images": PICTURES},
        {"images": [PICTURES[0], PICTURES[1]]},
        {"images": [file_of(PICTURES[0]), PICTURES[1]]},
        {"images/camera1": PICTURES[1], "images/camera0": PICTURES[0]},
        {"observation/image": PICTURES[0], "observation/wrist_image": file_of(PICTURES[1])},
        {"full_image": PICTURES[0], "images/camera1": PICTURES[1]},
    ],
    ids=lambda given: " ".join(given),
)
def test_pictures_may_come_in_many_ways(given):
    question = READER.read({**given, "observation/state": STATE, "prompt": "go"})
    assert [picture.tolist() for picture in question.pictures] == PICTURES.tolist()
    assert question.fields["state"].tolist() == STATE.tolist()
    assert question.prompt == "go"


def test_a_jpeg_is_nearly_its_picture():
    smooth = np.broadcast_to(np.linspace(0, 200, 16, dtype=np.uint8)[:, None, None], (16, 16, 3))
    question = READER.read({"images": [file_of(smooth, "JPEG")] * 2, "state": STATE, "prompt": "go"})
    assert np.abs(question.pictures[0].astype(int) - smooth).max() < 12


@pytest.mark.parametrize("state", [STATE.astype(">f8"), STATE.tolist(), STATE.astype(np.float16)])
def test_numbers_are_converted(state):
    found = READER.read({**observation(), "state": state}).fields["state"]
    assert found.dtype == np.float32
    assert np.allclose(found, STATE, atol=1e-2)


def without(*names: str) -> dict:
    return {key: value for key, value in observation().items() if key not in names}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (without("prompt"), "no 'prompt'"),
        (without("state"), "no 'state'"),
        (without("images"), "no picture of the camera 'camera0'"),
        ({**without("state"), "stat": STATE}, r"no 'state'.*Did you mean 'stat'"),
        ({**without("images"), "images/camera0": PICTURES[0]}, "no picture of the camera 'camera1'"),
        ({**observation(), "images/camera0": PICTURES[0]}, "both give a picture"),
        ({**observation(), "observation/state": STATE}, "both give 'state'"),
        ({**observation(), "prompt": ""}, "expected an instruction"),
        ({**observation(), "prompt": "x" * 5000}, "5000 characters"),
        ({**observation(), "prompt": 5}, "a int, expected an instruction"),
        ({**observation(), "state": STATE[:7]}, r"float32 \[7\], expected float32 \[8\]"),
        ({**observation(), "state": STATE > 0}, "bool"),
        ({**observation(), "state": [[1.0], [2.0, 3.0]]}, "expected numbers"),
        ({**observation(), "state": "zero"}, "expected numbers"),
        ({**observation(), "state": STATE * np.nan}, "not finite"),
        ({**observation(), "state": np.full(8, 1e300)}, "not finite"),
        ({**observation(), "images": PICTURES[:1]}, "1 pictures"),
        ({**observation(), "images": PICTURES[0, 0, 0, 0]}, "expected uint8"),
        ({**observation(), "images": PICTURES / np.float32(255)}, "float32"),
        ({**observation(), "images": PICTURES.transpose(0, 3, 1, 2)}, r"uint8 \[3, 16, 16\]"),
        ({**observation(), "images": [PICTURES[0, :8], PICTURES[1]]}, "8 × 16 pixels"),
        ({**observation(), "images": [b"no picture", PICTURES[1]]}, "no JPEG or PNG file"),
        ({**observation(), "images": [file_of(PICTURES[0])[:60], PICTURES[1]]}, "damaged"),
        ({**observation(), "images": [file_of(PICTURES[0], "GIF"), PICTURES[1]]}, "no JPEG or PNG file"),
        ({**observation(), "images": [file_of(PICTURES[0, :8]), PICTURES[1]]}, "8 × 16 pixels"),
        ({**observation(), "embodied/greeedy": True}, r"unknown key.*Did you mean 'embodied/greedy'"),
        ({**observation(), wire.GREEDY: 1}, "expected true or false"),
        ({**observation(), wire.DELAY_STEPS: -1}, "0 or more"),
        ({**observation(), wire.SESSION: 2**63}, "0 or more"),
        ({**observation(), wire.DELAY_STEPS: 1.5}, "0 or more"),
        ({**observation(), wire.REQUEST_ID: [1]}, "list"),
    ],
)
def test_what_does_not_fit_is_said(message, said):
    with pytest.raises(RequestError, match=said) as caught:
        READER.read(message)
    assert caught.value.kind == "request"
    assert caught.value.remedy


def test_a_large_picture_is_refused_before_its_pixels_exist():
    bomb = file_of(np.zeros((6000, 6000, 3), np.uint8))
    assert len(bomb) < 400_000
    reader = QuestionReader(ENV, max_pixels=10**6, resize=True)
    with pytest.raises(RequestError, match="at most 1000000"):
        reader.read({**observation(), "images": [bomb, PICTURES[1]]})


def test_pictures_of_another_size_are_scaled_if_asked():
    reader = QuestionReader(ENV, resize=True)
    large = np.full((40, 60, 3), 77, np.uint8)
    found = reader.read({**observation(), "images": [large, file_of(large)]})
    assert [picture.shape for picture in found.pictures] == [(16, 16, 3)] * 2
    assert {int(value) for picture in found.pictures for value in np.unique(picture)} == {77}


def test_pictures_that_are_not_square_keep_their_height_and_their_width():
    """Dark above, bright below, and a red left quarter: nothing is turned, whatever way the picture comes."""
    env = replace(ENV, obs={**ENV.obs, "images": ArraySpec((2, 12, 20, 3), "uint8")})

    def picture(height: int, width: int) -> np.ndarray:
        made = np.zeros((height, width, 3), np.uint8)
        made[height // 2 :] = 200
        made[:, : width // 4, 0] = 255
        return made

    right = picture(12, 20)
    for given in (right, file_of(right), picture(48, 80), file_of(picture(48, 80)), file_of(picture(48, 80), "JPEG")):
        found = QuestionReader(env, resize=True).read({**observation(), "images": [given, given]})
        for one in found.pictures:
            assert (one.shape, one.dtype) == ((12, 20, 3), np.uint8)
            off = np.abs(one.astype(int) - right)
            off[5:7] = off[:, 4:7] = 0  # at the edges between the colours pixels are mixed
            assert off.max() < 12
    assert QuestionReader(env).read({**observation(), "images": [right, right]}).pictures[0].shape == (12, 20, 3)
    for turned in (right.transpose(1, 0, 2).copy(), file_of(right.transpose(1, 0, 2).copy())):
        with pytest.raises(RequestError, match="20 × 12 pixels"):
            QuestionReader(env).read({**observation(), "images": [turned, right]})


def test_options_are_read():
    options = READER.read(
        {**observation(), wire.REQUEST_ID: "a", wire.GREEDY: False, wire.DELAY_STEPS: np.int64(3), wire.SESSION: 4}
    ).options
    assert (options.request_id, options.greedy, options.delay_steps, options.session) == ("a", False, 3, 4)


def test_keys_of_the_users_own():
    reader = QuestionReader(
        ENV, parse(["cam_high=images/camera0", "cam_low=images/camera1", "qpos=state", "task=prompt"])
    )
    question = reader.read({"cam_high": PICTURES[0], "cam_low": PICTURES[1], "qpos": STATE, "task": "go"})
    assert question.pictures[1].tolist() == PICTURES[1].tolist()
    assert question.prompt == "go"
    with pytest.raises(UnknownNameError, match=r"Did you mean 'state'"):
        keys_of(ENV, {"qpos": "stat"})
    with pytest.raises(ConfigError, match="KEY=FIELD"):
        parse(["qpos"])


def test_wrist_cameras_in_the_order_of_their_keys():
    env = FakeEnv(cameras=3).spec
    assert in_order(env, keys_of(env, {}), ["full_image", "left_wrist_image", "state", "right_wrist_image", "x"]) == {
        "left_wrist_image": "images/camera1",
        "right_wrist_image": "images/camera2",
    }


def test_an_env_without_pictures_and_one_with_sentences():
    bare = FakeEnv(pictures=False, sentences=True).spec
    question = QuestionReader(bare).read({"state": STATE, "instruction": "go"})
    assert question.pictures == ()
    assert [*question.fields] == ["state"]


def test_whole_numbers_must_fit():
    env = replace(ENV, obs={"buttons": ArraySpec((2,), "uint8")}, cameras=())
    assert QuestionReader(env).read({"buttons": [1, 255], "prompt": "go"}).fields["buttons"].tolist() == [1, 255]
    for wrong in ([1, 256], [-1, 0], [0.5, 1]):
        with pytest.raises(RequestError):
            QuestionReader(env).read({"buttons": wrong, "prompt": "go"})


KINDS = {"bool": [True, False], "uint8": [1, 2], "int64": [1, 2], "float32": [1.0, 2.0], "float64": [1.0, 2.0]}


@pytest.mark.parametrize("wanted", KINDS)
@pytest.mark.parametrize("sent", KINDS)
@pytest.mark.parametrize("as_list", [False, True])
def test_numbers_of_one_kind_stand_for_another_only_if_they_say_as_much(wanted, sent, as_list):
    """Whole numbers for any number, bools for bools alone. A float for an integer is a mistake also if it is whole: the
    next one is not."""
    env = replace(ENV, obs={"field": ArraySpec((2,), wanted)}, cameras=())
    value = KINDS[sent] if as_list else np.array(KINDS[sent], sent)
    accepted = {"bool": ("bool",), "uint8": ("uint8", "int64"), "int64": ("uint8", "int64")}
    if sent in accepted.get(wanted, ("uint8", "int64", "float32", "float64")):
        found = QuestionReader(env).read({"field": value, "prompt": "go"}).fields["field"]
        assert (found.dtype, found.tolist()) == (wanted, KINDS[wanted])
    else:
        with pytest.raises(RequestError, match=rf"expected {wanted} \[2\]"):
            QuestionReader(env).read({"field": value, "prompt": "go"})


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_damaged_files_are_decoded_or_refused(kind):
    random = np.random.default_rng(0)
    whole = file_of(PICTURES[0], kind)
    refused = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(random.integers(1, 6)):
            data[random.integers(len(data))] = random.integers(256)
        try:
            READER.read({**observation(), "images": [bytes(data[: random.integers(1, len(data) + 1)]), PICTURES[1]]})
        except RequestError:
            refused += 1
    assert refused > 200
