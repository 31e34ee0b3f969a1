"""Checkpoints: bit for bit, and what damage, strangers and full disks get."""

from __future__ import annotations

import copy
import json
import random
import resource
import threading
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from learner import learner, save_and_wait, state, trained, update

from embodied.errors import CheckpointError
from embodied.learn.checkpoint import checkpoint, metadata, snapshot
from embodied.learn.checkpoint.checkpoint import Checkpoints
from embodied.learn.checkpoint.loading import load, resume
from embodied.learn.checkpoint.metadata import read_meta
from embodied.learn.checkpoint.state import load_optimizer, optimizer_tree
from embodied.parallel import collectives
from embodied.testing import FakePolicy


@pytest.fixture(params=[False, True], ids=["waiting", "async"])
def make_checkpoints(request):
    """The class, both ways of saving; nothing is being written after the test."""
    with ExitStack() as opened:

        def make(folder, max_keep=3):
            return opened.enter_context(closing(Checkpoints(folder, max_keep, async_save=request.param)))

        yield make


def assert_same_bits(got, expected):
    assert got.keys() == expected.keys()
    different = [name for name in expected if not torch.equal(got[name], expected[name])]
    assert not different


@pytest.mark.parametrize("value_head", [False, True])
def test_weights_and_optimizer_come_back_bit_by_bit(tmp_path, value_head, make_checkpoints):
    saved = trained(value_head=value_head)
    checkpoints = make_checkpoints(tmp_path)
    path = checkpoints.save(saved, iteration=4, run_ids={"a tracker": "id 7"})
    before = copy.deepcopy(state(saved))
    update(saved, 9)  # while it is being written
    checkpoints.wait()
    other = trained(seed=1, steps=0, value_head=value_head)
    meta = resume(path, other)
    assert (meta.iteration, meta.weight_version, meta.trackers) == (4, 3, {"a tracker": "id 7"})
    assert_same_bits(state(other), before)
    assert other.own == {"weight_version": 3}
    groups = [[group[k] for k in ("lr", "betas", "eps", "name")] for group in other.optimizer.param_groups]
    assert groups == [[group[k] for k in ("lr", "betas", "eps", "name")] for group in saved.optimizer.param_groups]


def test_the_next_update_after_loading_is_the_same(tmp_path):
    saved = trained()
    path = Checkpoints(tmp_path, 3).save(saved, 1)
    other = trained(seed=1, steps=0)
    resume(path, other)
    for made in (saved, other):
        update(made, 5)
    assert_same_bits(state(other), state(saved))


def test_what_had_no_gradient_yet_has_no_state_after_a_resume_either(tmp_path):
    """As while a value head warms up: a first step after the resume is Adam's first step, not its second."""

    def value_head(name):
        return name.startswith("value_head")

    saved = learner(FakePolicy(value_head=True))
    update(saved, 1, value_head)
    path = Checkpoints(tmp_path, 3).save(saved, 1)
    other = learner(FakePolicy(value_head=True, seed=1))
    resume(path, other)
    assert_same_bits(state(other), state(saved))
    for made in (saved, other):
        update(made, 2)
    assert_same_bits(state(other), state(saved))


def test_saving_and_resuming_before_the_first_update_changes_nothing(tmp_path):
    saved, untouched = trained(steps=0), trained(steps=0)
    path = Checkpoints(tmp_path, 3).save(saved, 1)
    other = trained(seed=1, steps=0)
    resume(path, other)
    for made in (saved, untouched, other):
        update(made, 3)
    assert_same_bits(state(saved), state(untouched))
    assert_same_bits(state(other), state(untouched))


def test_what_the_trainer_keeps_comes_back_exactly(tmp_path):
    own = {
        "weight_version": 7, "coefficient": 0.1 + 0.2, "limit": float("inf"), "text": "none yet", "nothing": None,
        "schedule": {"epoch": 3, "lrs": [1e-4, 1 / 3]}, "ema": {"head.weight": torch.randn(4, 3, dtype=torch.float64)},
        "counts": torch.tensor(5),
    }  # fmt: skip
    saved = trained()
    saved.own = own
    path = Checkpoints(tmp_path, 3).save(saved, 1)
    other = trained(seed=1, steps=0)
    resume(path, other)
    for name, tensor in (("ema", own["ema"]["head.weight"]), ("counts", own["counts"])):
        got = other.own.pop(name)
        got = got["head.weight"] if name == "ema" else got
        assert (got.dtype, got.tolist()) == (tensor.dtype, tensor.tolist())
    assert other.own == {name: value for name, value in own.items() if name not in ("ema", "counts")}


@pytest.mark.parametrize("value", [{3: 1}, object(), np.float32(1)], ids=["key", "object", "numpy"])
def test_a_state_that_would_not_come_back_is_a_defect(tmp_path, value):
    saved = trained()
    saved.own = {"weight_version": 0, "value": value}
    with pytest.raises(TypeError, match="trainer/value"):
        Checkpoints(tmp_path, 3).save(saved, 1)


def test_random_generators_go_on_where_they_were(tmp_path):
    def draw():
        return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3).tolist()]

    draw()  # an odd number of Gaussians: one is kept for the next call
    path = Checkpoints(tmp_path, 3).save(trained(), 1)
    expected = draw()
    resume(path, trained(seed=1))
    assert draw() == expected


class Settled(FakePolicy):
    found = "nothing"

    def extra_state(self):
        return {} if self.found == "nothing" else {"mask": self.found}

    def load_extra_state(self, found):
        self.found = found["mask"]


def test_what_a_probe_found_out_is_kept(tmp_path):
    saved, other, weights = learner(Settled()), learner(Settled(seed=1)), Settled(seed=1)
    saved.policy.found = "causal"
    path = Checkpoints(tmp_path, 3).save(saved, 1)
    resume(path, other)
    load(path, weights)
    assert (other.policy.found, weights.found) == ("causal", "causal")
    saved.policy.found = "nothing"
    resume(Checkpoints(tmp_path, 3).save(saved, 2), other)
    assert other.policy.found == "causal"


def test_weights_alone_can_be_loaded(tmp_path):
    saved = trained()
    path = Checkpoints(tmp_path, 3).save(saved, 1)
    other = FakePolicy(seed=1)
    load(path, other)
    assert_same_bits(dict(other.state_dict()), dict(saved.policy.state_dict()))


@pytest.mark.parametrize(("there", "here"), [(False, True), (True, False)])
def test_weights_are_loaded_where_one_alone_has_a_value_head(tmp_path, there, here):
    """Whoever begins to learn values, or stops it, keeps what the policy has learned."""
    saved, other, told = trained(value_head=there), FakePolicy(seed=1, value_head=here), []
    path = Checkpoints(tmp_path, 3).save(saved, 1)
    before = {name: value.clone() for name, value in other.state_dict().items() if name.startswith("value_head.")}
    load(path, other, told.append)
    body = {name: value for name, value in saved.policy.state_dict().items() if not name.startswith("value_head.")}
    assert_same_bits(dict(other.state_dict()), {**body, **before})
    (line,) = told
    assert ("values are learned anew" if here else "its value head is left out") in line
    with pytest.raises(CheckpointError, match=rf"value_head.bias: {'not' if here else 'only'} in the checkpoint"):
        resume(path, trained(steps=0, value_head=here))


def test_saving_changes_nothing(tmp_path, make_checkpoints):
    saved = trained()
    before = copy.deepcopy(state(saved))
    make_checkpoints(tmp_path).save(saved, 1)
    assert_same_bits(state(saved), before)


def test_frozen_parameters_are_not_saved(tmp_path):
    policy = FakePolicy()
    policy.body.requires_grad_(False)
    path = Checkpoints(tmp_path, 3).save(learner(policy), 1)
    assert set(read_meta(path).parameters) == {"task.weight", "head.weight", "head.bias"}
    assert path.joinpath("__0_0.distcp").stat().st_size < 1.5 * sum(
        parameter.nbytes for parameter in policy.parameters() if parameter.requires_grad
    )


def test_only_the_newest_stay(tmp_path, make_checkpoints):
    saved = trained(steps=1)
    checkpoints = make_checkpoints(tmp_path, max_keep=2)
    for iteration in (2, 4, 6, 10):
        checkpoints.save(saved, iteration)
    checkpoints.wait()
    assert [path.name for path in checkpoints.all()] == ["000006", "000010"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000006", "000010"]
    saved.own["weight_version"] = 11
    checkpoints.save(saved, 10)
    checkpoints.wait()
    assert read_meta(tmp_path / "000010").weight_version == 11
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000006", "000010"]


def test_going_on_from_an_earlier_one_does_not_delete_what_is_saved_then(tmp_path):
    saved = trained(steps=1)
    for iteration in (6, 8, 10):
        Checkpoints(tmp_path, 3).save(saved, iteration)
    Checkpoints(tmp_path, 1).save(saved, 7)
    assert [path.name for path in Checkpoints(tmp_path, 1).all()] == ["000007", "000008", "000010"]


def test_an_old_one_that_cannot_be_deleted_does_not_fail_the_new_one(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.save(trained(steps=1), 2)

    def refuse(folder):
        if folder.exists():
            raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_remove", refuse)
        checkpoints.save(trained(steps=1), 4)
    assert [path.name for path in checkpoints.all()] == ["000002", "000004"]
    checkpoints.save(trained(steps=1), 6)
    assert [path.name for path in checkpoints.all()] == ["000006"]


class Gate:
    """Holds up ``torch.save``, and with it the writing of a checkpoint."""

    def __init__(self, monkeypatch):
        self.open, self.reached, save = threading.Event(), threading.Event(), torch.save

        def wait_and_save(*args, **kwargs):
            self.reached.set()
            assert self.open.wait(60)
            return save(*args, **kwargs)

        monkeypatch.setattr("torch.save", wait_and_save)


def test_the_run_goes_on_while_a_checkpoint_is_written_and_older_ones_stay_until_it_is_whole(tmp_path, monkeypatch):
    saved = trained(steps=1)
    with closing(Checkpoints(tmp_path, 1, async_save=True)) as checkpoints:
        checkpoints.save(saved, 2)
        checkpoints.wait()
        gate = Gate(monkeypatch)
        checkpoints.save(saved, 4)
        assert gate.reached.wait(60)
        assert sorted(path.name for path in tmp_path.iterdir()) == [".writing-000004", "000002"]
        gate.open.set()
    assert [path.name for path in tmp_path.iterdir()] == ["000004"]


def test_one_checkpoint_is_written_at_a_time(tmp_path, monkeypatch):
    saved, gate, done = trained(steps=1), Gate(monkeypatch), []
    with closing(Checkpoints(tmp_path, 3, async_save=True)) as checkpoints:
        checkpoints.save(saved, 2)
        assert gate.reached.wait(60)
        second = threading.Thread(target=lambda: (checkpoints.save(saved, 4), done.append(checkpoints.all()[0].name)))
        second.start()
        second.join(0.2)
        assert not done
        gate.open.set()
        second.join(60)
        assert done == ["000002"], "the first was whole when the second began"


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
    saved = trained(steps=1)
    checkpoints, said = Checkpoints(tmp_path, 3), []
    for iteration in (2, 4):
        checkpoints.save(saved, iteration)
    damage(tmp_path / "000004")
    path, meta = checkpoints.newest_loadable(said.append)
    assert (path.name, meta.iteration) == ("000002", 2)
    (line,) = said
    assert "000004" in line
    assert word in line
    with pytest.raises(CheckpointError, match="damaged"):
        resume(tmp_path / "000004", saved)


def test_content_that_cannot_be_read_is_an_error_and_changes_nothing(tmp_path):
    saved = trained()
    path = Checkpoints(tmp_path, 3).save(saved, 1)
    file = path / "__0_0.distcp"
    file.write_bytes(b"x" * file.stat().st_size)
    other = trained(seed=1)
    before = copy.deepcopy(state(other))
    with pytest.raises(CheckpointError, match="damaged") as failed:
        resume(path, other)
    assert "remove this folder" in failed.value.remedy
    assert "Traceback" not in failed.value.message
    assert_same_bits(state(other), before)


@pytest.mark.parametrize(("rank", "sums"), [(0, 2), (1, 0)])
def test_one_rank_sums_the_bytes_that_all_resume_from(tmp_path, monkeypatch, rank, sums):
    path = Checkpoints(tmp_path, 3).save(trained(), 1)
    noted = []
    monkeypatch.setattr(metadata, "check_checksums", lambda _, names: noted.extend(names))
    monkeypatch.setattr(collectives, "here", lambda among=None: rank)
    resume(path, trained(seed=1))
    assert len(noted) == sums


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_refused_and_nothing_is_overwritten(tmp_path, value):
    saved = trained()
    with torch.no_grad():
        name, parameter = next((n, p) for n, p in saved.policy.named_parameters() if p.requires_grad)
        parameter.view(-1)[1] = value
    path = Checkpoints(tmp_path, 3).save(saved, 3)
    other = trained(seed=1)
    before = copy.deepcopy(state(other))
    for read in (lambda: load(path, other.policy), lambda: resume(path, other)):
        with pytest.raises(CheckpointError, match=rf"is damaged: policy/{name} has numbers that are not finite"):
            read()
        assert_same_bits(state(other), before)


def test_an_unfinished_checkpoint_is_not_seen(tmp_path):
    saved = trained(steps=1)
    checkpoints = Checkpoints(tmp_path, 3)
    (tmp_path / ".writing-000008").mkdir()
    (tmp_path / ".writing-000008" / "meta.json").write_text("{}", encoding="utf-8")
    (tmp_path / "000006").mkdir()  # no meta.json
    assert checkpoints.newest_loadable() is None
    checkpoints.save(saved, 8)
    assert [path.name for path in checkpoints.all()] == ["000008"]
    assert not (tmp_path / ".writing-000008").exists()


def test_another_model_is_refused_by_the_names_that_differ(tmp_path):
    saved = trained()
    path = Checkpoints(tmp_path, 3).save(saved, 1)
    other = FakePolicy(bins=8, value_head=True)
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(CheckpointError) as refused:
        load(path, other)
    for part in (
        "2 parameters differ in shape, 0 are missing, 0 are unknown",
        "head.weight: [448, 32] there, [224, 32]",
    ):
        assert part in refused.value.message
    assert "model fake" in refused.value.remedy
    assert_same_bits(dict(other.state_dict()), before)


def test_no_checkpoint_there(tmp_path):
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*nowhere"):
        load(tmp_path / "nowhere", FakePolicy())


@pytest.mark.parametrize("format_number", [1, 99])
def test_another_format_is_refused_and_never_passed_over(tmp_path, format_number):
    """Passing over it would start the run anew and drop its metrics."""
    checkpoints, said = Checkpoints(tmp_path, 3), []
    for iteration in (2, 4):
        path = checkpoints.save(trained(steps=1), iteration)
    meta = json.loads((path / "meta.json").read_text(encoding="utf-8"))
    del meta["trainer"]
    (path / "meta.json").write_text(json.dumps({**meta, "format": format_number}), encoding="utf-8")
    for read in (lambda: read_meta(path), lambda: checkpoints.newest_loadable(said.append)):
        with pytest.raises(CheckpointError, match=f"000004 has format {format_number}, this version reads 2"):
            read()
    assert said == []


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_anew(tmp_path):
    checkpoints, said = Checkpoints(tmp_path, 3), []
    for iteration in (2, 4):
        truncate(checkpoints.save(trained(steps=1), iteration) / "__0_0.distcp")
    with pytest.raises(CheckpointError, match=r"none of the 2 checkpoints in .* is whole") as refused:
        checkpoints.newest_loadable(said.append)
    assert "to start anew" in refused.value.remedy
    assert len(said) == 2


def test_other_parameter_groups_are_refused(tmp_path):
    path = Checkpoints(tmp_path, 3).save(trained(), 1)
    other = learner(FakePolicy(seed=1))
    other.optimizer = torch.optim.AdamW([{"params": [p]} for p in other.policy.parameters()])
    before = copy.deepcopy(state(other))
    with pytest.raises(CheckpointError, match=r"groups of \[5\] parameters, this one of \[1, 1, 1, 1, 1\]"):
        resume(path, other)
    assert_same_bits(state(other), before)


def test_what_a_killed_process_left_is_removed(tmp_path):
    checkpoints = Checkpoints(tmp_path, 3)
    checkpoints.save(trained(steps=1), 2)
    for name in (".writing-000004", ".removing-000001"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__0_0.distcp").write_bytes(b"half")
    checkpoints.clean()
    assert [path.name for path in tmp_path.iterdir()] == ["000002"]
    Checkpoints(tmp_path / "none yet", 3).clean()


@contextmanager
def largest_file(size):
    """A limit of the kernel: a write beyond it fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def fill(monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.save", full)


def test_a_folder_that_cannot_be_written(tmp_path, make_checkpoints):
    (tmp_path / "file").write_text("", encoding="utf-8")
    checkpoints = make_checkpoints(tmp_path / "file")
    with pytest.raises(CheckpointError, match="cannot write checkpoint") as failed:
        save_and_wait(checkpoints, trained(steps=1), 1)
    assert "earlier checkpoints are intact" in failed.value.remedy
    assert "Traceback" not in failed.value.message


def test_a_disk_that_fills_up_leaves_what_was_there(tmp_path, monkeypatch, make_checkpoints):
    checkpoints = make_checkpoints(tmp_path)
    save_and_wait(checkpoints, trained(steps=1), 2)
    fill(monkeypatch)
    with pytest.raises(CheckpointError, match=r"cannot write checkpoint .*000004: .*No space left on device"):
        save_and_wait(checkpoints, trained(steps=1), 4)
    assert [path.name for path in tmp_path.iterdir()] == ["000002"]


def test_a_write_that_the_kernel_refuses_in_the_middle_of_a_file(tmp_path, make_checkpoints):
    checkpoints = make_checkpoints(tmp_path)
    save_and_wait(checkpoints, trained(steps=1), 2)
    with largest_file(20_000), pytest.raises(CheckpointError, match="cannot write checkpoint"):
        save_and_wait(checkpoints, trained(steps=1), 4)
    assert [path.name for path in tmp_path.iterdir()] == ["000002"]
    save_and_wait(checkpoints, trained(steps=1), 4)
    assert [path.name for path in checkpoints.all()] == ["000002", "000004"]


def test_an_error_in_the_background_is_raised_once_by_what_comes_next(tmp_path, monkeypatch, capsys):
    checkpoints = Checkpoints(tmp_path, 3, async_save=True)
    with monkeypatch.context() as patch:
        fill(patch)
        checkpoints.save(trained(steps=1), 2)
        with pytest.raises(CheckpointError, match=r"000002: .*No space left"):
            checkpoints.save(trained(steps=1), 4)
        checkpoints.save(trained(steps=1), 6)
        checkpoints.close()
    assert "000006: No space left" in capsys.readouterr().out.replace("[Errno 28] ", "")
    assert list(tmp_path.iterdir()) == []


def test_an_optimizer_with_other_groups_is_refused():
    """Not cut to those that fit."""
    one, two = trained(), trained(value_head=True)
    tree = optimizer_tree(two.policy, two.optimizer)
    assert len(tree["groups"]) == 2 > len(one.optimizer.param_groups)
    with pytest.raises(ValueError, match=r"zip\(\) argument 2 is longer"):
        load_optimizer(one.optimizer, tree)


def test_the_host_memory_for_a_gpus_tensors_is_kept_while_their_layout_stays(monkeypatch):
    made = []

    class Stager:
        def __init__(self, cache_staged_state_dict: bool) -> None:
            made.append(cache_staged_state_dict)

        def stage(self, tensors):
            return {name: (len(made), tensor.shape) for name, tensor in tensors.items()}

    class OnGpu(torch.Tensor):
        is_cuda = True

    monkeypatch.setattr(snapshot, "BlockingAsyncStager", Stager)
    stager = snapshot.Stager()
    small, large = torch.zeros(2).as_subclass(OnGpu), torch.zeros(3).as_subclass(OnGpu)
    assert [stager({"a": tensor})["a"] for tensor in (small, small, large)] == [(1, (2,)), (1, (2,)), (2, (3,))]
    assert made == [True, True]
