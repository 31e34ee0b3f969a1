"""Prompt, tokens and pixels against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from embodied.models.openvla_oft.build_tokenizer import build
from embodied.models.openvla_oft.processing import PixelProcessor, centre_crop, prompt, resize
from embodied.models.openvla_oft.tokenizer import EMBEDDED, PromptTokenizer

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
    assert build().to_str(pretty=True) == EMBEDDED.read_text()


def test_padding_stands_between_bos_and_text(tokenizer: PromptTokenizer) -> None:
    ids, present = tokenizer.table(["lift the cube", "put the cube on the stove"])
    short, long = tokenizer.encode("lift the cube"), tokenizer.encode("put the cube on the stove")
    gap = len(long) - len(short)
    assert ids[1].tolist() == long
    assert ids[0].tolist() == [1, *[tokenizer.pad_id] * gap, *short[1:]]
    assert present[0].tolist() == [True, *[False] * gap, *[True] * (len(short) - 1)]
    assert present[1].all()


def test_a_file_that_is_no_tokenizer(tmp_path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
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


def test_constants_of_a_checkpoint_replace_ours() -> None:
    statistics = [{"mean": [0.0] * 3, "std": [1.0] * 3}, {"mean": [0.5] * 3, "std": [0.25] * 3}]
    out = PixelProcessor(2, crop=False, statistics=statistics)(torch.full((1, 1, 2, 2, 3), 255, dtype=torch.uint8))
    assert np.allclose(out[0, :, 0, 0], [1, 1, 1, 2, 2, 2])
