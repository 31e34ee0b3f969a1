"""Checkpoints: bit for bit, and what damage, strangers and full disks get."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch

from embodied.errors import CheckpointError
from embodied.learn.checkpoint import Checkpoints, load, read_meta
from embodied.learn.optimizer import make_optimizer
from embodied.schema import OptimConfig
from embodied.testing import FakePolicy


def trained(seed=0, steps=3, **kwargs):
    """A policy and an optimizer that have seen some updates."""
    policy = FakePolicy(seed=seed, **kwargs)
    optimizer = make_optimizer(policy, OptimConfig())
    for step in range(steps):
        torch.manual_seed(100 * seed + step)
        for parameter in policy.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
    return policy, optimizer


def state(policy, optimizer):
    """All tensors, flat."""
    tensors = dict(policy.state_dict())
    for index, values in optimizer.state_dict()["state"].items():
        tensors |= {f"{index}.{name}": torch.as_tensor(value) for name, value in values.items()}
    return tensors


def assert_same_bits(got, expected):
    assert got.keys() == expected.keys()
    different = [name for name in expected if not torch.equal(got[name], expected[name])]
    assert not different


@pytest.mark.parametrize("value_head", [False, True])
def test_weights_and_optimizer_come_back_bit_by_bit(tmp_path, value_head):
    policy, optimizer = trained(value_head=value_head)
    path = Checkpoints(tmp_path, 3).save(policy, optimizer, iteration=4, weight_version=11)
    other, fresh = trained(seed=1, steps=0, value_head=value_head)
    meta = load(path, other, fresh)
    assert (meta.iteration, meta.weight_version) == (4, 11)
    assert_same_bits(state(other, fresh), state(policy, optimizer))
    groups = [[group[k] for k in ("lr", "betas", "eps", "name")] for group in fresh.param_groups]
    assert groups == [[group[k] for k in ("lr", "betas", "eps", "name")] for group in optimizer.param_groups]


def test_the_next_update_after_loading_is_the_same(tmp_path):
    policy, optimizer = trained()
    path = Checkpoints(tmp_path, 3).save(policy, optimizer, 1, 1)
    other, fresh = trained(seed=1, steps=0)
    load(path, other, fresh)
    for net, optim in ((policy, optimizer), (other, fresh)):
        torch.manual_seed(5)
        for parameter in net.parameters():
            parameter.grad = torch.randn_like(parameter)
        optim.step()
    assert_same_bits(state(other, fresh), state(policy, optimizer))


def test_a_parameter_that_never_had_a_gradient_may_be_resumed(tmp_path):
    """With a value head that no loss reads, Adam has no state for it."""
    policy = FakePolicy(value_head=True)
    optimizer = make_optimizer(policy, OptimConfig())
    for name, parameter in policy.named_parameters():
        parameter.grad = None if name.startswith("value_head") else torch.ones_like(parameter)
    optimizer.step()
    path = Checkpoints(tmp_path, 3).save(policy, optimizer, 1, 1)
    other = FakePolicy(value_head=True, seed=1)
    load(path, other, make_optimizer(other, OptimConfig()))
    assert_same_bits(dict(other.state_dict()), dict(policy.state_dict()))


def test_weights_alone_can_be_loaded(tmp_path):
    policy, optimizer = trained()
    path = Checkpoints(tmp_path, 3).save(policy, optimizer, 1, 1)
    other = FakePolicy(seed=1)
    load(path, other)
    assert_same_bits(dict(other.state_dict()), dict(policy.state_dict()))


def test_saving_changes_nothing(tmp_path):
    policy, optimizer = trained()
    before = copy.deepcopy(state(policy, optimizer))
    Checkpoints(tmp_path, 3).save(policy, optimizer, 1, 1)
    assert_same_bits(state(policy, optimizer), before)


def test_frozen_parameters_are_not_saved(tmp_path):
    policy = FakePolicy()
    policy.body.requires_grad_(False)
    optimizer = make_optimizer(policy, OptimConfig())
    path = Checkpoints(tmp_path, 3).save(policy, optimizer, 1, 1)
    assert set(read_meta(path).parameters) == {"task.weight", "head.weight", "head.bias"}


def test_only_the_newest_stay(tmp_path):
    policy, optimizer = trained(steps=1)
    checkpoints = Checkpoints(tmp_path, max_keep=2)
    for iteration in (2, 4, 6, 10):
        checkpoints.save(policy, optimizer, iteration, iteration)
    assert [path.name for path in checkpoints.all()] == ["000006", "000010"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000006", "000010"]
    checkpoints.save(policy, optimizer, 10, 11)
    assert read_meta(tmp_path / "000010").weight_version == 11


def truncate(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda path: truncate(path / "__0_0.distcp"), "__0_0.distcp has"),
        (lambda path: (path / "__0_0.distcp").unlink(), "__0_0.distcp has 0 bytes"),
        (lambda path: truncate(path / ".metadata"), ".metadata has"),
        (lambda path: truncate(path / "meta.json"), "meta.json is damaged"),
        (lambda path: (path / "meta.json").write_bytes(b"\xff\xfe\x00"), "meta.json is damaged"),
    ],
)
def test_a_damaged_newest_checkpoint_is_named_and_passed_over(tmp_path, damage, word):
    policy, optimizer = trained(steps=1)
    checkpoints, said = Checkpoints(tmp_path, 3), []
    for iteration in (2, 4):
        checkpoints.save(policy, optimizer, iteration, iteration)
    damage(tmp_path / "000004")
    path, meta = checkpoints.newest_loadable(said.append)
    assert (path.name, meta.iteration) == ("000002", 2)
    (line,) = said
    assert "000004" in line
    assert word in line
    with pytest.raises(CheckpointError, match="damaged"):
        load(tmp_path / "000004", policy, optimizer)


def test_content_that_cannot_be_read_is_an_error_and_changes_nothing(tmp_path):
    policy, optimizer = trained()
    path = Checkpoints(tmp_path, 3).save(policy, optimizer, 1, 1)
    file = path / "__0_0.distcp"
    file.write_bytes(b"x" * file.stat().st_size)
    other, fresh = trained(seed=1)
    before = dict(other.state_dict())
    with pytest.raises(CheckpointError, match="damaged") as failed:
        load(path, other, fresh)
    assert "remove this folder" in failed.value.remedy
    assert_same_bits(dict(other.state_dict()), before)


def test_an_unfinished_checkpoint_is_not_seen(tmp_path):
    policy, optimizer = trained(steps=1)
    checkpoints = Checkpoints(tmp_path, 3)
    (tmp_path / ".writing-000008").mkdir()
    (tmp_path / ".writing-000008" / "meta.json").write_text("{}")
    (tmp_path / "000006").mkdir()  # no meta.json
    assert checkpoints.newest_loadable() is None
    checkpoints.save(policy, optimizer, 8, 8)
    assert [path.name for path in checkpoints.all()] == ["000008"]
    assert not (tmp_path / ".writing-000008").exists()


def test_another_model_is_refused_by_the_names_that_differ(tmp_path):
    policy, optimizer = trained()
    path = Checkpoints(tmp_path, 3).save(policy, optimizer, 1, 1)
    other = FakePolicy(bins=8, value_head=True)
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(CheckpointError) as refused:
        load(path, other)
    for part in (
        "2 parameters differ in shape, 2 are missing, 0 are unknown",
        "head.weight: [448, 32] there, [224, 32]",
        "value_head.bias: not in the checkpoint",
    ):
        assert part in refused.value.message
    assert "model fake" in refused.value.remedy
    assert_same_bits(dict(other.state_dict()), before)


def test_no_checkpoint_there(tmp_path):
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*nowhere"):
        load(tmp_path / "nowhere", FakePolicy())


def test_a_later_format_is_refused(tmp_path):
    policy, optimizer = trained(steps=1)
    path = Checkpoints(tmp_path, 3).save(policy, optimizer, 1, 1)
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps({**meta, "format": 99}))
    with pytest.raises(CheckpointError, match="format 99, this version reads 1"):
        read_meta(path)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    policy, optimizer = trained(steps=1)
    with pytest.raises(CheckpointError, match="cannot write checkpoint") as failed:
        Checkpoints(tmp_path / "file", 3).save(policy, optimizer, 1, 1)
    assert "earlier checkpoints are intact" in failed.value.remedy


def test_a_disk_that_fills_up_leaves_what_was_there(tmp_path, monkeypatch):
    policy, optimizer = trained(steps=1)
    checkpoints = Checkpoints(tmp_path, 3)
    checkpoints.save(policy, optimizer, 2, 2)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.save", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        checkpoints.save(policy, optimizer, 4, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["000002"]
