"""Checkpoints of several ranks: sharded and replicated, saved by one number of ranks and resumed by another.

Two real processes with gloo go through the scenarios below once; what they say of each is asserted in its test.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from learner import Learner, learner, save_and_wait, state, update
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from embodied.errors import CheckpointError
from embodied.learn.checkpoint.checkpoint import Checkpoints
from embodied.learn.checkpoint.loading import load, resume
from embodied.learn.checkpoint.metadata import read_meta
from embodied.run.folder import saves

WORLD = 2
WAIT = 120  # seconds until the ranks must be through


class Net(nn.Module):
    """A frozen base, something to train whose rows two ranks cannot share evenly, and a value head."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.base = nn.Linear(4, 6).requires_grad_(False)
        self.body = nn.Linear(6, 5)
        self.value_head = nn.Linear(5, 1)

    def forward(self, x):
        return self.value_head(torch.tanh(self.body(self.base(x))))

    def describe(self) -> dict[str, str]:
        return {"model": "net"}


def plain(seed: int, steps: int = 2) -> Learner:
    made = learner(Net(seed), steps)
    for step in range(steps):
        update(made, step)
    return made


def sharded(seed: int, steps: int = 2) -> Learner:
    """As :func:`plain`, with every parameter a DTensor; the root is left gathered, as after an evaluation."""
    net, mesh = Net(seed), init_device_mesh("cpu", (WORLD,))
    fully_shard(net.body, mesh=mesh)
    fully_shard(net, mesh=mesh)
    made = learner(net, steps)
    for step in range(steps):
        update(made, step)
    with torch.no_grad():
        net(torch.ones(3, 4))
    return made


def same(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert got.keys() == expected.keys()
    different = [name for name in expected if not torch.equal(got[name], expected[name])]
    assert not different, different


def resharded_state(made: Learner) -> dict[str, torch.Tensor]:
    for module in made.policy.modules():
        if hasattr(module, "reshard"):
            module.reshard()
    assert all(isinstance(p, DTensor) for _, p in made.policy.named_parameters())
    return state(made)


def seed_generators(rank: int) -> None:
    random.seed(rank)
    torch.manual_seed(rank)


def draw() -> list[float]:
    return [random.random(), torch.rand(()).item()]


def save_sharded(rank: int, folder: Path) -> None:
    """Other collectives, and the next update, go on while it is being written."""
    made = sharded(0)
    seed_generators(rank)
    with closing(Checkpoints(folder / "sharded", 3, async_save=True)) as checkpoints:
        checkpoints.save(made, 2)
        drawn, expected = draw(), resharded_state(made)
        total = torch.zeros(1000)
        for _ in range(50):
            dist.all_reduce(total.fill_(rank))
            assert total.eq(1).all()
        update(made, 7)
        checkpoints.wait()
    if rank == 0:
        torch.save({"state": expected, "drawn": drawn}, folder / "sharded.pt")
    torch.save(drawn, folder / f"drawn{rank}.pt")


def resume_sharded(rank: int, folder: Path) -> None:
    made = sharded(1, steps=0)
    seed_generators(9)
    assert resume(folder / "sharded" / "000002", made).iteration == 2
    assert draw() == torch.load(folder / f"drawn{rank}.pt")
    same(resharded_state(made), torch.load(folder / "sharded.pt")["state"])
    assert made.own == {"weight_version": 2}


def resume_sharded_what_one_rank_saved(rank: int, folder: Path) -> None:
    made, expected = sharded(1, steps=0), torch.load(folder / "one.pt")
    resume(folder / "one" / "000003", made)
    same(resharded_state(made), expected)
    weights = sharded(1, steps=0)
    load(folder / "one" / "000003", weights.policy)
    got = resharded_state(weights)
    same(got, {name: tensor for name, tensor in expected.items() if name in got})


def replicate(rank: int, folder: Path) -> None:
    made = plain(0)
    checkpoints = Checkpoints(folder / "replicated", 3)
    checkpoints.save(made, 2)
    fresh = plain(1, steps=0)
    resume(folder / "replicated" / "000002", fresh)
    same(state(fresh), state(made))


def fail_on_one_rank(rank: int, folder: Path) -> None:
    """The error of one rank is that of all, in the background as well, and the next save is whole again."""
    made = sharded(0)

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    for async_save in (False, True):
        checkpoints = Checkpoints(folder / f"failed-{async_save}", 3, async_save)
        with pytest.MonkeyPatch.context() as patch:
            if rank == 1:
                patch.setattr("torch.save", full)
            with pytest.raises(CheckpointError, match=r"cannot write checkpoint .*No space left on device"):
                save_and_wait(checkpoints, made, 2)
        dist.barrier()
        assert list(checkpoints.folder.iterdir()) == []
        dist.barrier()
        checkpoints.save(made, 4)
        checkpoints.close()
        dist.barrier()
        assert [path.name for path in checkpoints.all()] == ["000004"]


def fail_to_resume_on_one_rank(rank: int, folder: Path) -> None:
    """As with a file that one machine does not see: no rank goes on, and none has changed."""
    made = sharded(1, steps=1)
    before = resharded_state(made)

    def gone(*args: Any, **kwargs: Any) -> None:
        raise FileNotFoundError("not on this machine")

    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(dcp, "load", gone)
        with pytest.raises(CheckpointError, match="not on this machine"):
            resume(folder / "sharded" / "000002", made)
    same(resharded_state(made), before)


def agree_on_the_time(rank: int, folder: Path) -> None:
    """Clocks differ between machines: what rank 0 reads counts."""
    runner: Any = SimpleNamespace(save_interval=-1, save_interval_s=50.0, max_epochs=9)
    long_ago, just_now = saves.monotonic() - 100, saves.monotonic()
    assert saves.save_due(runner, 1, long_ago if rank == 0 else just_now)
    assert not saves.save_due(runner, 1, just_now if rank == 0 else long_ago)


SCENARIOS: tuple[Callable[[int, Path], None], ...] = (
    save_sharded, resume_sharded, resume_sharded_what_one_rank_saved, replicate, fail_on_one_rank,
    fail_to_resume_on_one_rank, agree_on_the_time,
)  # fmt: skip


def go_through_all(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD, timeout=timedelta(seconds=WAIT)
    )
    for scenario in SCENARIOS:
        said = folder / f"{scenario.__name__}-{rank}"
        try:
            scenario(rank, folder)
            said.write_text("done", encoding="utf-8")
        except BaseException:
            said.write_text(traceback.format_exc(), encoding="utf-8")
            raise
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which two ranks have gone through the scenarios."""
    folder = tmp_path_factory.mktemp("ranks")
    one = plain(0, steps=3)
    Checkpoints(folder / "one", 3).save(one, 3)
    torch.save(state(one), folder / "one.pt")
    processes = mp.spawn(go_through_all, (folder,), WORLD, join=False)
    try:
        for process in processes.processes:
            process.join(WAIT)
        yield folder
    finally:
        for process in processes.processes:
            process.kill()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_two_ranks(ranks, scenario):
    said = [ranks / f"{scenario.__name__}-{rank}" for rank in range(WORLD)]
    for file in said:
        assert file.exists(), f"{file.name}: never came to its end"
        assert file.read_text(encoding="utf-8") == "done"


def test_one_rank_resumes_what_two_saved_sharded(ranks):
    expected, made = torch.load(ranks / "sharded.pt"), plain(1, steps=0)
    path = ranks / "sharded" / "000002"
    assert (resume(path, made).ranks, read_meta(path).ranks) == (2, 2)
    same(state(made), expected["state"])
    resume(path, made)
    assert draw() == expected["drawn"], "rank 0 has its generators again"


def test_a_sharded_checkpoint_holds_each_part_once_and_no_frozen_base(ranks):
    metadata = dcp.FileSystemReader(ranks / "sharded" / "000002").read_metadata()
    parts = [index for index in metadata.storage_data if index.fqn == "policy/body.weight"]
    assert len(parts) == WORLD
    assert not [name for name in metadata.state_dict_metadata if "base" in name]


def test_what_all_ranks_have_is_written_by_the_first(ranks):
    metadata = dcp.FileSystemReader(ranks / "replicated" / "000002").read_metadata()
    of_second = {i.fqn for i, at in metadata.storage_data.items() if at.relative_path.startswith("__1_")}
    assert of_second == {"rng/1/torch", "rng/1/others"}
    assert "policy/body.weight" in metadata.state_dict_metadata
