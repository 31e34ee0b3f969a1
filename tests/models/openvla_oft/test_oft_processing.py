"""Prompt, tokens and pixels against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from embodied.models.openvla_oft.build_tokenizer import build
from embodied.models.openvla_oft.tokens.processing import (
    PixelProcessor,
    bicubic_weights,
    centre_crop,
    eight_bits,
    lanczos3_weights,
    prompt,
    resize,
    resize_lanczos3,
)
from embodied.models.openvla_oft.tokens.tokenizer import EMBEDDED, PromptTokenizer
from embodied.models.shared.constants import constant
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from embodied.errors import CheckpointError


@pytest.fixture(scope="module")
def tokenizer() -> PromptTokenizer:
    return PromptTokenizer(EMBEDDED, 1024)


def test_prompt_text() -> None:
    assert prompt("Lift the CUBE") == "In: What action should the robot take to lift the cube?\nOut:"


def test_prompts_begin_with_bos_and_end_with_the_space_token(tokenizer: PromptTokenizer) -> None:
    ids = tokenizer.encode("lift the cube")
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
    assert ids[0] == 1
    assert ids[-1] == tokenizer.space_id
    assert ids.count(tokenizer.space_id) == 1
    assert tokenizer.tokenizer.decode(ids) == prompt("lift the cube") + " "


def test_a_trailing_space_gives_the_same_ids(tokenizer: PromptTokenizer) -> None:
    spaced = tokenizer.tokenizer.encode(prompt("lift the cube") + " ", add_special_tokens=False).ids
    assert tokenizer.encode("lift the cube")[1:] == spaced


@pytest.mark.parametrize("text", ["", "größe 漢字 🙂", "tabs\tand\nlines", "x" * 300, "<0x41>"])
def test_any_text_survives_and_stays_below_the_action_tokens(tokenizer: PromptTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert max(ids) < 768
    assert tokenizer.tokenizer.decode(ids) == prompt(text) + " "


def test_a_word_is_the_same_token_at_the_end_of_the_sentence(tokenizer: PromptTokenizer) -> None:
    plate = tokenizer.tokenizer.token_to_id("▁plate")
    assert plate in tokenizer.encode("lift the plate")
    assert plate in tokenizer.encode("put the plate on the stove")


def test_the_committed_tokenizer_is_what_the_script_makes() -> None:
    assert build().to_str(pretty=True) == EMBEDDED.read_text(encoding="utf-8")


def test_padding_stands_between_bos_and_text(tokenizer: PromptTokenizer) -> None:
    ids, present = tokenizer.table(["lift the cube", "put the cube on the stove"])
    short, long = tokenizer.encode("lift the cube"), tokenizer.encode("put the cube on the stove")
    gap = len(long) - len(short)
    assert ids[1].tolist() == long
    assert ids[0].tolist() == [1, *[tokenizer.pad_id] * gap, *short[1:]]
    assert present[0].tolist() == [True, *[False] * gap, *[True] * (len(short) - 1)]
    assert present[1].all()


def test_a_file_that_is_no_tokenizer(tmp_path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match="is not a tokenizer"):
        PromptTokenizer(tmp_path / "tokenizer.json", 1024)
    with pytest.raises(CheckpointError, match="no tokenizer at"):
        PromptTokenizer(tmp_path / "none.json", 1024)


def test_pixels_are_normalised_for_each_tower() -> None:
    """White through DINOv2's and SigLIP's numbers, black likewise; channels first, image by image."""
    images = torch.zeros(1, 2, 4, 4, 3, dtype=torch.uint8)
    images[0, 1] = 255
    out = PixelProcessor(4, crop=False)(images)
    assert out.shape == (1, 12, 4, 4)
    black = [-0.484375 / 0.228515625, -0.455078125 / 0.2236328125, -0.40625 / 0.224609375, -1.0, -1.0, -1.0]
    white = [(1 - 0.484375) / 0.228515625, (1 - 0.455078125) / 0.2236328125, (1 - 0.40625) / 0.224609375, 1.0, 1.0, 1.0]
    assert out[0, :, 2, 1].tolist() == pytest.approx(black + white, abs=1e-6)


def test_channels_and_axes_keep_their_order() -> None:
    images = torch.arange(2 * 3 * 3, dtype=torch.uint8).view(1, 1, 2, 3, 3)[:, :, :, :2]
    out = PixelProcessor(2, crop=False)(images)
    assert torch.equal((out[0, 3:] * 0.5 + 0.5).mul(255).round(), images[0, 0].permute(2, 0, 1).float())


def test_centre_crop_samples_as_crop_and_resize_does() -> None:
    """Sample i of n lies at (n − 1)·((1 − s)/2 + s·i/(n − 1)), s = √0.9; linear pictures show where."""
    ramp = torch.arange(5.0).expand(1, 3, 5, 5)
    side = math.sqrt(0.9)
    want = [4 * ((1 - side) / 2 + side * i / 4) for i in range(5)]
    assert centre_crop(ramp)[0, 0, 2].tolist() == pytest.approx(want, abs=1e-5)
    assert centre_crop(ramp.transpose(2, 3))[0, 0, :, 2].tolist() == pytest.approx(want, abs=1e-5)


def test_resize_is_antialiased_bounded_and_free_at_the_right_size() -> None:
    stripes = torch.zeros(1, 3, 64, 64)
    stripes[..., ::2] = 255.0
    small = resize(stripes, 16)
    assert small[..., 4:12].sub(127.5).abs().max() < 1.0  # without antialiasing: 0 or 255
    step = torch.zeros(1, 3, 8, 8)
    step[..., 4:] = 255.0
    assert 0.0 <= float(resize(step, 24).min()) <= float(resize(step, 24).max()) <= 255.0
    assert resize(stripes, 64) is stripes


def test_lanczos3_by_hand() -> None:
    """Halving 12 pixels: new pixel 2 lies at 4.5 of the old, and takes sinc(x/2)·sinc(x/6) of those at a distance
    x < 6: symmetric, and of old pixel 4 (x = 0.5) sin(π/4)/(π/4) · sin(π/12)/(π/12) before the sum is brought to 1."""
    weights = lanczos3_weights(12, 6, torch.device("cpu"))
    assert weights.shape == (6, 12)
    torch.testing.assert_close(weights.sum(1), torch.ones(6))
    row = weights[2]
    torch.testing.assert_close(row[:10], row[:10].flip(0))
    assert row[11] == 0  # 6.5 away
    four, five = (math.sin(a) / a * math.sin(a / 3) / (a / 3) for a in (math.pi / 4, 3 * math.pi / 4))
    assert float(row[4] / row[3]) == pytest.approx(four / five, rel=1e-6)
    enlarged = lanczos3_weights(6, 12, torch.device("cpu"))
    assert float(enlarged[4, 2]) > float(enlarged[4, 1]) > 0 > float(enlarged[4, 0])


@pytest.mark.parametrize("shape", [(256, 256), (480, 640), (100, 100)])
def test_lanczos3_is_that_of_pillow_to_one_level(shape) -> None:
    """Pillow rounds to 8 bits between its two passes, and cuts off there; these levels are far from both ends."""
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(90, 166, (*shape, 3), dtype=np.uint8)
    wanted = np.asarray(image.fromarray(pixels).resize((224, 224), image.Resampling.LANCZOS)).astype(int)
    got = resize_lanczos3(torch.from_numpy(pixels).permute(2, 0, 1)[None].float(), 224).round()[0].permute(1, 2, 0)
    assert np.abs(got.numpy() - wanted).max() <= 1


def bicubic_levels(pixels: np.ndarray, size: int) -> np.ndarray:
    """uint8 [H, W, 3] → float64 [size, size, 3] before rounding: what torchvision makes of a uint8 tensor (bicubic,
    antialias) is this, cut off at 0 and 255 and rounded, halves to even. Cubic kernel with a = −1/2."""

    def weights(length: int) -> np.ndarray:
        scale = length / size
        x = np.abs(np.arange(length) + 0.5 - (np.arange(size)[:, None] + 0.5) * scale) / max(scale, 1.0)
        near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
        kernel = np.where(x <= 1, near, np.where(x < 2, far, 0.0))
        return kernel / kernel.sum(1, keepdims=True)

    rows, columns = (weights(length) for length in pixels.shape[:2])
    return np.clip(np.einsum("ih,hwc,jw->ijc", rows, pixels.astype(np.float64), columns, optimize=True), 0, 255)


def levels_of(processor: PixelProcessor, pixels: np.ndarray) -> np.ndarray:
    """What SigLIP's three channels say, back in levels: float64 [size, size, 3]."""
    out = processor(torch.from_numpy(pixels)[None, None])[0, 3:].double()
    return ((out * 0.5 + 0.5) * 255).permute(1, 2, 0).numpy()


@pytest.mark.parametrize("shape", [(256, 256), (480, 640), (100, 100)])
def test_the_preset_of_rlinf_rounds_as_torchvision_does(shape) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    got, exact = levels_of(PixelProcessor(224, crop=False), pixels), bicubic_levels(pixels, 224)
    certain = np.abs(exact % 1 - 0.5) > 0.01  # float32 is up to 0.005 off and may round the other way
    assert certain.mean() > 0.97
    np.testing.assert_allclose(got[certain], np.rint(exact)[certain], atol=1e-3)
    assert np.abs(got - exact).max() < 0.51
    image = pytest.importorskip("PIL.Image")
    grey = np.random.default_rng(0).integers(90, 166, (*shape, 3), dtype=np.uint8)  # far from both ends
    pillow = np.asarray(image.fromarray(grey).resize((224, 224), image.Resampling.BICUBIC))
    assert np.abs(levels_of(PixelProcessor(224, crop=False), grey) - pillow).max() < 1.001


def test_halves_are_rounded_to_even() -> None:
    """One row of 2 pixels enlarged to 3: the middle is the mean of both, (a + b)/2; rows are alike."""
    for low, high, middle in ((10, 11, 10), (11, 12, 12)):
        pixels = np.array([low, high], np.uint8)[None, :, None].repeat(2, 0).repeat(3, 2)
        assert levels_of(PixelProcessor(3, crop=False), pixels)[1, 1].tolist() == pytest.approx([middle] * 3, abs=1e-3)


@pytest.mark.parametrize("preset", ["rlinf", "oft_libero"])
def test_pixels_do_not_depend_on_the_number_format(preset) -> None:
    pixels = torch.randint(0, 256, (2, 1, 96, 128, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    processor = PixelProcessor(64, crop=True, preset=preset)
    exact = processor(pixels)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(processor(pixels), exact)


def test_eight_bits_round_as_tensorflow_does() -> None:
    """floor(x · 255.5) of x in [0, 1]: 0.4 and 0.6 levels below and above a whole one."""
    levels = torch.tensor([0.0, 0.4, 0.6, 100.4, 100.9, 254.4, 255.0])
    assert eight_bits(levels).tolist() == [0, 0, 0, 100, 101, 254, 255]


def test_the_preset_of_oft_gives_whole_levels() -> None:
    pixels = torch.randint(0, 256, (1, 1, 96, 128, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    plain, oft = (PixelProcessor(64, crop=True, preset=preset)(pixels) for preset in ("rlinf", "oft_libero"))
    levels = (oft[0, 3:] * 0.5 + 0.5) * 255
    assert (levels - levels.round()).abs().max() < 1e-3
    assert 0 < (oft - plain).abs().max() < 1.0


def test_constants_of_a_checkpoint_replace_ours() -> None:
    statistics = [{"mean": [0.0] * 3, "std": [1.0] * 3}, {"mean": [0.5] * 3, "std": [0.25] * 3}]
    out = PixelProcessor(2, crop=False, statistics=statistics)(torch.full((1, 1, 2, 2, 3), 255, dtype=torch.uint8))
    assert np.allclose(out[0, :, 0, 0], [1, 1, 1, 2, 2, 2])


def test_constants_that_were_made_without_memory_are_given_to_no_other_call():
    with FakeTensorMode():
        assert isinstance(constant((1.5, 7.25), torch.float32, torch.device("cpu")), FakeTensor)
        assert isinstance(bicubic_weights(31, 17, torch.device("cpu")), FakeTensor)
    for _ in range(2):
        assert constant((1.5, 7.25), torch.float32, torch.device("cpu")).tolist() == [1.5, 7.25]
        assert bicubic_weights(31, 17, torch.device("cpu")).sum().item() == pytest.approx(17)
    made = constant((1.5, 7.25), torch.float32, torch.device("cpu"))
    assert constant((1.5, 7.25), torch.float32, torch.device("cpu")) is made
