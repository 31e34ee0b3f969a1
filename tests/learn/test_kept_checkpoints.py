"""A copy in memory that is written only if it is needed, and checkpoints in the midst of an iteration."""

from __future__ import annotations

import copy
from contextlib import closing
from pathlib import Path

import pytest
from learner import state, trained, update
from test_checkpoints import assert_same_bits

from embodied.errors import CheckpointError
from embodied.learn.checkpoint.checkpoint import Checkpoints
from embodied.learn.checkpoint.loading import resume
from embodied.learn.checkpoint.metadata import read_meta


def test_what_was_kept_is_written_as_it_was_then(tmp_path):
    learner = trained()
    with closing(Checkpoints(tmp_path, 3, async_save=True)) as checkpoints:
        checkpoints.keep(learner, 4, {"a tracker": "id 7"})
        before = copy.deepcopy(state(learner))
        update(learner, 9)
        assert checkpoints.all() == []
        assert checkpoints.save_kept() == tmp_path / "000004"
        assert checkpoints.save_kept() is None, "once"
    other = trained(seed=1, steps=0)
    meta = resume(tmp_path / "000004", other)
    assert (meta.iteration, meta.steps, meta.trackers) == (4, 0, {"a tracker": "id 7"})
    assert_same_bits(state(other), before)


def test_a_save_takes_the_place_of_what_was_kept(tmp_path):
    learner = trained()
    with closing(Checkpoints(tmp_path, 3, async_save=True)) as checkpoints:
        checkpoints.keep(learner, 4)
        checkpoints.save(learner, 5)
        assert checkpoints.save_kept() is None
    assert [path.name for path in checkpoints.all()] == ["000005"]


def test_without_a_copy_for_saving_none_is_kept(tmp_path):
    with closing(Checkpoints(tmp_path, 3, async_save=False)) as checkpoints:
        checkpoints.keep(trained(), 4)
        assert checkpoints.save_kept() is None


def test_keeping_waits_for_what_is_being_written(tmp_path, monkeypatch):
    """With a GPU both lie in the same pinned memory."""
    learner, events = trained(), []
    with closing(Checkpoints(tmp_path, 3, async_save=True)) as checkpoints:
        checkpoints.save(learner, 4)
        wait = checkpoints.wait
        monkeypatch.setattr(checkpoints, "wait", lambda: events.append(wait()))
        checkpoints.keep(learner, 5)
    assert events
    assert [path.name for path in checkpoints.all()] == ["000004"]


@pytest.mark.parametrize("steps", [7, 1234])
def test_a_checkpoint_in_the_midst_of_an_iteration_lies_between_the_whole_ones(tmp_path, steps):
    learner = trained()
    with closing(Checkpoints(tmp_path, max_keep=3)) as checkpoints:
        for iteration, done in ((10, 0), (9, 0), (9, steps), (9, steps + 1)):
            checkpoints.save(learner, iteration, steps=done)
        names = [path.name for path in checkpoints.all()]
        assert names == ["000009", f"000009+{steps:03d}", f"000009+{steps + 1:03d}", "000010"]
        newest = checkpoints.newest_loadable()
        assert newest is not None
        assert newest[0].name == "000010"
        checkpoints.save(learner, 11)
        assert [path.name for path in checkpoints.all()] == [f"000009+{steps + 1:03d}", "000010", "000011"]
    meta = read_meta(tmp_path / f"000009+{steps + 1:03d}")
    assert (meta.iteration, meta.steps) == (9, steps + 1)


@pytest.mark.parametrize("call", [1, 2])
def test_a_checkpoint_that_is_replaced_is_there_at_every_moment(tmp_path, monkeypatch, call):
    """Killed between the two renames, and before the first."""
    learner = trained()
    with closing(Checkpoints(tmp_path, 3)) as checkpoints:
        checkpoints.save(learner, 4)
        before = copy.deepcopy(state(learner))
        update(learner, 9)
        rename, calls = Path.rename, []

        def killed(self: Path, target: Path) -> Path:
            calls.append(target)
            if len(calls) == call:
                raise KeyboardInterrupt
            return rename(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", killed)
            with pytest.raises(KeyboardInterrupt):
                checkpoints.save(learner, 4)
        checkpoints.clean()
        assert [path.name for path in tmp_path.iterdir()] == ["000004"]
    other = trained(seed=1, steps=0)
    resume(tmp_path / "000004", other)
    assert_same_bits(state(other), before)


def test_a_checkpoint_that_was_replaced_is_removed(tmp_path):
    learner = trained()
    with closing(Checkpoints(tmp_path, 3)) as checkpoints:
        for _ in range(2):
            update(learner, 9)
            checkpoints.save(learner, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["000004"]
    other = trained(seed=1, steps=0)
    resume(tmp_path / "000004", other)
    assert_same_bits(state(other), state(learner))


def test_a_disk_that_refuses_the_last_rename_leaves_what_was_there(tmp_path, monkeypatch):
    learner = trained()
    with closing(Checkpoints(tmp_path, 3)) as checkpoints:
        checkpoints.save(learner, 4)
        before, rename = copy.deepcopy(state(learner)), Path.rename
        update(learner, 9)

        def refused(self: Path, target: Path) -> Path:
            if self.name.startswith(".writing-"):
                raise OSError(30, "Read-only file system")
            return rename(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", refused)
            with pytest.raises(CheckpointError, match="Read-only"):
                checkpoints.save(learner, 4)
        assert [path.name for path in tmp_path.iterdir()] == ["000004"]
    other = trained(seed=1, steps=0)
    resume(tmp_path / "000004", other)
    assert_same_bits(state(other), before)
