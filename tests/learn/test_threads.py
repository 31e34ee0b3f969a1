"""Threads of torch while the policy is trained."""

import pytest
import torch

from embodied.learn.step.threads import training_threads


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("count", "seen"), [(None, 1), (1, 1), (3, 3)])
def test_for_the_time_of_training(count, seen):
    with training_threads(count):
        assert torch.get_num_threads() == seen
    assert torch.get_num_threads() == 1


def test_put_back_after_an_error():
    with pytest.raises(KeyError), training_threads(2):
        raise KeyError
    assert torch.get_num_threads() == 1
