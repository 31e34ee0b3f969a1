"""Crops and brightness: a function of the sample's place in the run."""

from __future__ import annotations

import numpy as np
import torch

from embodied.learn.augment import Augmentation

IMAGES = torch.randint(0, 256, (3, 2, 16, 16, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_off_is_off():
    augment = Augmentation(1.0, 0.0, seed=1)
    assert augment(IMAGES, np.arange(3)) is IMAGES


def test_it_depends_on_the_place_and_not_on_the_batch():
    augment = Augmentation(0.8, 0.3, seed=1)
    whole = augment(IMAGES, np.array([7, 8, 9]))
    assert whole.dtype == torch.uint8
    assert whole.shape == IMAGES.shape
    assert torch.equal(augment(IMAGES[1:], np.array([8, 9])), whole[1:])
    assert not torch.equal(augment(IMAGES, np.array([8, 8, 9]))[0], whole[0])
    assert not torch.equal(Augmentation(0.8, 0.3, seed=2)(IMAGES, np.array([7, 8, 9])), whole)


def test_brightness_is_one_factor_for_all_cameras_of_a_sample():
    images = torch.full((2, 2, 4, 4, 3), 100, dtype=torch.uint8)
    changed = Augmentation(1.0, 0.5, seed=1)(images, np.array([0, 1]))
    assert all(len(changed[i].unique()) == 1 for i in range(2))
    assert changed[0].unique() != changed[1].unique()
    assert 50 <= changed.min() <= changed.max() <= 150


def test_a_crop_shows_a_part_enlarged():
    """Columns are numbered: what a crop of a quarter of the area shows is a run of half of them."""
    columns = torch.arange(0, 256, 16, dtype=torch.uint8).view(1, 1, 1, 16, 1).expand(1, 1, 16, 16, 3).contiguous()
    lefts = set()
    for place in range(20):
        row = Augmentation(0.25, 0.0, seed=1)(columns, np.array([place]))[0, 0, 8, :, 0].int()
        assert (row.diff() >= 0).all()
        assert 100 <= row[-1] - row[0] <= 128
        lefts.add(int(row[0]))
    assert len(lefts) > 10
    assert min(lefts) < 30
    assert max(lefts) > 90
