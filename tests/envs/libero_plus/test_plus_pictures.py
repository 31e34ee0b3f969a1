"""LIBERO-Plus's camera poses and its noise. Expected values are those of the package's own functions."""

import hashlib

import numpy as np
import pytest
from embodied.envs.libero.plus.cameras import pose
from embodied.envs.libero.plus.noise import _GLASS, _blurred, corrupted
from embodied.envs.libero.plus.varied import noise_seed

POSES = {  # beginning of the problem, view → position, quaternion before it is normed
    ("tabletop", (0, 0, 100, 0, 0)): ([0.6586, 0.0, 1.6104], [0.638, 0.3048, 0.3048, 0.638]),
    ("tabletop", (346, 15, 100, 0, 0)): ([0.4137, -0.1032, 1.7532], [-0.7493, -0.244, -0.1907, -0.5854]),
    ("kitchen_tabletop", (0, 0, 121, 0, 0)): ([0.7969, 0.0, 1.7806], [0.638, 0.3048, 0.3048, 0.638]),
    ("study_tabletop", (346, 15, 100, 0, 0)): ([0.2264, -0.0564, 1.7014], [-0.7493, -0.244, -0.1907, -0.5854]),
    ("floor", (0, 0, 121, 0, 0)): ([1.0849, 0.0, 0.6185], [0.6182, 0.3432, 0.3432, 0.6182]),
    ("living_room_tabletop", (0, 0, 100, 4, 352)): ([0.6066, 0.0, 0.96], [-0.5701, -0.3748, -0.3957, -0.6148]),
}
DIGESTS = {  # noise → SHA-256 of the picture, from the package with ImageMagick 6.9.11
    1: "d42bfa8ea10b9712", 7: "8a2f3139f7f28391", 10: "8ee8c4ea50364bda", 13: "c6f7a92ed6ac3fdf",
    25: "8407705bc56e0c81", 34: "9aa523f90957eabf", 42: "20b871fa079e5b9c", 50: "a3f0116bf5d77661",
}  # fmt: skip


def picture(side: int = 256) -> np.ndarray:
    return np.random.RandomState(0).randint(0, 256, (side, side, 3)).astype(np.uint8)


@pytest.mark.parametrize(("scene", "view"), POSES)
def test_cameras_stand_where_the_package_puts_them(scene, view):
    position, quaternion = pose(f"libero_{scene}_manipulation", view)
    expected = POSES[scene, view]
    assert position.tolist() == expected[0]
    np.testing.assert_allclose(quaternion, np.array(expected[1]) / np.linalg.norm(expected[1]), rtol=1e-15, atol=0)


@pytest.mark.parametrize("number", DIGESTS)
def test_noise_equals_the_packages(number):
    noisy = corrupted(picture(), number, seed=number)
    assert hashlib.sha256(noisy.tobytes()).hexdigest()[:16] == DIGESTS[number]


def test_glass_moves_pixels_as_its_loop_does():
    given, (sigma, most, passes) = picture(32), _GLASS[2]
    draws, pixels = np.random.RandomState(5), (_blurred(given, sigma) * 255).astype(np.uint8)
    for _ in range(passes):
        for row in range(32 - most, most, -1):
            for column in range(32 - most, most, -1):
                right, down = draws.randint(-most, most, size=(2,))
                pixels[row, column] = pixels[row + down, column + right].copy()
    expected = (np.clip(_blurred(pixels, sigma), 0, 1) * 255).astype(np.uint8)
    assert np.array_equal(corrupted(given, 43, seed=5), expected)


@pytest.mark.parametrize("number", [4, 14, 24, 34, 44])
def test_small_pictures_have_noise_too_which_the_seed_draws(number):
    given = picture(64)
    noisy = corrupted(given, number, 1)
    assert (noisy.shape, noisy.dtype) == (given.shape, np.uint8)
    assert not np.array_equal(noisy, given)
    assert np.array_equal(noisy, corrupted(given, number, 1))
    if number not in (14, 24):  # these draw nothing
        assert not np.array_equal(noisy, corrupted(given, number, 2))


def test_each_picture_of_an_episode_draws_anew():
    seeds = {noise_seed(task, seed, step) for task in "ab" for seed in (0, 1, 2**30) for step in range(50)}
    assert len(seeds) == 300
