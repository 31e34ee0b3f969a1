"""What cameras do to pictures: exact arithmetic, and nothing at strength 0."""

from __future__ import annotations

import numpy as np
import pytest

from embodied.runtime.worker import picture_effects as effects

RANDOM = np.random.default_rng(0)
BYTES = RANDOM.integers(0, 256, (2, 9, 7, 3), dtype=np.uint8)
PICTURES = BYTES.astype(np.float32)


@pytest.mark.parametrize(
    "unchanged",
    [
        effects.brighten(PICTURES, 0.0),
        effects.stretch_contrast(PICTURES, 0.0),
        effects.blur(PICTURES, 0.0),
        effects.add_noise(PICTURES, 0.0, RANDOM.standard_normal(PICTURES.shape, dtype=np.float32)),
    ],
    ids=["brightness", "contrast", "blur", "noise"],
)
def test_strength_0_changes_no_byte(unchanged):
    assert np.array_equal(effects.to_bytes(unchanged), BYTES)


def test_brightness_multiplies_and_is_cut_off():
    one = np.array([0, 10, 200], np.float32).reshape(1, 1, 1, 3)
    assert effects.to_bytes(effects.brighten(one, 0.5)).ravel().tolist() == [0, 15, 255]
    assert effects.to_bytes(effects.brighten(one, -0.25)).ravel().tolist() == [0, 8, 150]  # 7.5 goes to the even one


def test_contrast_stretches_about_the_mean_of_each_picture():
    two = np.array([[0, 100, 200], [60, 60, 60]], np.float32).reshape(2, 1, 1, 3)
    assert effects.stretch_contrast(two, 0.5).reshape(2, 3).tolist() == [[-50, 100, 250], [60, 60, 60]]
    assert effects.stretch_contrast(two, -1.0).reshape(2, 3).tolist() == [[100, 100, 100], [60, 60, 60]]


def test_the_weights_of_a_blur_are_a_gaussian_of_its_standard_deviation():
    for sigma in (0.5, 1.0, 3.584):
        weights = effects.gaussian(sigma)
        offsets = np.arange(len(weights)) - len(weights) // 2
        assert weights.sum() == pytest.approx(1, abs=1e-6)
        assert weights @ offsets == pytest.approx(0, abs=1e-6)
        assert np.sqrt(weights @ offsets**2) == pytest.approx(sigma, rel=0.08)
        assert np.log(weights[1] / weights[0]) == pytest.approx(
            (offsets[0] ** 2 - offsets[1] ** 2) / (2 * sigma**2), rel=1e-3
        )


def test_blur_spreads_a_point_and_keeps_a_plane():
    point = np.zeros((1, 11, 11, 3), np.float32)
    point[0, 5, 5] = 255
    weights = effects.gaussian(1.0)
    expected = np.zeros((11, 11), np.float32)
    expected[2:9, 2:9] = 255 * np.outer(weights, weights)
    for colour in range(3):
        assert effects.blur(point, 1.0)[0, :, :, colour] == pytest.approx(expected, abs=1e-4)
    plane = np.full((1, 5, 6, 3), 77, np.float32)
    assert effects.blur(plane, 4.0) == pytest.approx(plane, abs=1e-3)  # also at the edges, and wider than the picture


def test_noise_has_its_standard_deviation_and_no_mean():
    grey = np.full((2, 64, 64, 3), 128, np.float32)
    noisy = effects.add_noise(grey, 0.1, RANDOM.standard_normal(grey.shape, dtype=np.float32))
    assert noisy.std() == pytest.approx(25.5, rel=0.02)
    assert noisy.mean() == pytest.approx(128, abs=0.6)
