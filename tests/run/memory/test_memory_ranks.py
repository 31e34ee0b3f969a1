"""What one of several processes will take, against the live tensors of a run of two."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import warm
from ranks import free_port

from embodied.parallel.group import Group
from embodied.run.build.given import Checked, Sides
from embodied.run.build.preflight import check
from embodied.run.memory import counting
from embodied.run.memory.counting import Counted
from embodied.run.memory.say import MemoryPlan
from embodied.schema import Config
from embodied.schema.compose.compose import compose

HERE = Path(__file__).parents[2]
CONFIG = str(HERE / "config")
RUN = (
    *("env=fake", "tracker=jsonl", "runner.device=cpu", "runner.max_epochs=2", "env.train.max_episode_steps=10"),
    *("runner.save_interval=-1", "runner.val_check_interval=-1", "env.eval.video_cfg.save_video=false"),
    *("env.num_workers=1", "env.train.total_num_envs=4", "env.eval.total_num_envs=4", "algorithm.group_size=2"),
    *("algorithm.rollout_epoch=1", "actor.micro_batch_size=2", "actor.global_batch_size=8", "algorithm.adv_type=raw"),
    *("model=openvla_oft_tiny", "actor.model.hidden_size=512", "actor.model.intermediate_size=1408"),
    "runner.experiment_name=run",
)
ALL = "actor.model.is_lora=false"
LIVE = """
import json, sys
from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group
from torch.distributed.tensor import DTensor
from embodied import train
from embodied.learn.step.meters.live_bytes import LiveBytes

class Live(LiveBytes):
    def _add(self, tensor):  # a DTensor says that it is as large as the whole
        super()._add(tensor._local_tensor if isinstance(tensor, DTensor) else tensor)

live, sizes = Live(), {}
alloc, free = _fsdp_param.alloc_storage, _fsdp_param.free_storage

def alloc_storage(tensor):  # fsdp2 gives storages their memory, and takes it away
    had = tensor.untyped_storage().size()
    alloc(tensor)
    if not had:
        live._known.pop(tensor.untyped_storage()._cdata, None)
        live._add(tensor)

def free_storage(tensor):
    storage = tensor.untyped_storage()
    if live._known.pop(storage._cdata, None) is not None:
        live.now -= storage.nbytes()
    free(tensor)

_fsdp_param.alloc_storage = _fsdp_param_group.alloc_storage = alloc_storage
_fsdp_param.free_storage = free_storage
with live:
    status = train.main(sys.argv[1:])
print(json.dumps({"status": status, "peak": live.peak}))
"""


def asked(checked: Checked) -> tuple[Config, Sides, Group]:
    return checked.config, checked.sides, checked.processes


def counted(checked: Checked, **more: int) -> Counted:
    return counting.count(*asked(checked), checked.demonstrations, **more)


def checked_of(tmp_path: Path, *more: str, size: int = 2) -> Checked:
    composed = compose([*RUN, f"runner.output_dir={tmp_path}", *more], "train", [CONFIG])
    return check(composed, Group(0, size, 0, size))


def started(folder: Path, code: tuple[str, ...], *more: str) -> list[list[str]]:
    """What each of two processes printed."""
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    usual = {**world, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE / 'helpers'}:{HERE.parent}"}
    command = [*code, *RUN, *more, "--config-dir", CONFIG]
    with ExitStack() as running:
        ranks = [
            running.enter_context(warm.Program(command, folder, {**usual, "RANK": rank, "LOCAL_RANK": rank}))
            for rank in ("0", "1")
        ]
        said = [rank.communicate(timeout=300) for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], said
    return [f"{error}{out}".splitlines() for out, error in said]


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        ("actor.fsdp_config.strategy=replicate", ALL),
        ("actor.fsdp_config.strategy=fsdp2", ALL),
        ("actor.fsdp_config.strategy=fsdp2", "actor.fsdp_config.reshard_after_forward=false", ALL),
    ],
)
def test_two_processes_hold_what_was_said(tmp_path, more):
    """Within 5 %, copies of what is saved included. A policy acts first, before any pass of the sharded network."""
    taken = counted(checked_of(tmp_path, *more)).footprint(checked_of(tmp_path, *more), on_gpu=False)
    said = taken.on_device + taken.host["copy of what is saved"]
    peaks = [json.loads(lines[-1])["peak"] for lines in started(tmp_path, ("-c", LIVE), *more)]
    assert abs(said / max(peaks) - 1) < 0.05, (said, peaks, taken)


def test_a_share_has_its_part_of_what_is_trained(tmp_path):
    by_strategy = {
        name: counted(checked_of(tmp_path, f"actor.fsdp_config.strategy={name}", *more), limit=0)
        for name, more in {"replicate": (ALL,), "fsdp2": (ALL,)}.items()
    }
    whole, part = by_strategy["replicate"], by_strategy["fsdp2"]
    assert abs(2 * part.weights.trained / whole.weights.trained - 1) < 0.01
    assert part.gathered.act == whole.weights.trained, "all are gathered while it acts"
    assert part.gathered.update < whole.weights.trained < part.gathered.update + 2 * part.gathered.gradients
    assert whole.gathered.summed == whole.weights.trained
    of_one = counted(checked_of(tmp_path, ALL, size=1), limit=0)
    assert of_one.gathered == counting.NOTHING
    assert of_one.weights == whole.weights
    assert of_one.passes.update == whole.passes.update, "two records a pass"
    keys = ("actor.fsdp_config.strategy=fsdp2", ALL, "actor.fsdp_config.mixed_precision.param_dtype=bf16")
    bf16 = counted(checked_of(tmp_path, *keys, "actor.model.precision=bf16"), limit=0)
    assert 2 * bf16.gathered.act == part.gathered.act
    offloaded = checked_of(tmp_path, "actor.fsdp_config.strategy=fsdp2", ALL)
    on_host = replace(part, gathered=replace(part.gathered, on_host=True)).footprint(*asked(offloaded), on_gpu=True)
    assert not {"trained weights", "gradients", "optimizer"} & on_host.device.keys()
    assert on_host.host["optimizer"] == 2 * part.weights.trained


def test_a_dry_run_of_two_processes_says_what_each_takes(tmp_path, monkeypatch):
    said, silent = started(tmp_path, ("-m", "embodied.train"), "runner.dry_run=true", ALL)
    rows = {line.strip().split("  ")[0]: line for line in said}
    assert "gathered weights" in rows["memory of the process (each of 2)"], said
    assert "(fsdp2, 10 units)" in rows["processes"]
    assert silent == []
    # As large as to be counted without memory: nothing is built, and the processes need not meet.
    monkeypatch.setattr(counting.count, "__defaults__", (0,))
    checked = checked_of(tmp_path, ALL, "runner.dry_run=true")
    found = counted(checked)
    plan = MemoryPlan(
        checked.config, checked.processes, found, found.footprint(*asked(checked), on_gpu=False), None, 2**40
    )
    assert plan.policy is found.policy
    assert any("memory of the process (each of 2)" in row[0] for row in plan.rows())
