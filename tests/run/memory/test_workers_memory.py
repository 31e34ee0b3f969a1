"""What env workers take of the machine's memory: counted, proposed, refused, and measured."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from embodied import train
from embodied.errors import DeviceMemoryError
from embodied.lib.host_memory import ForkMemory, SimulatorMemory
from embodied.parallel.group import Group
from embodied.run.build.preflight import check
from embodied.run.build.workers import worker_memory
from embodied.run.build.workers.worker_memory import UNKNOWN, WorkerMemory, memories_of, workers_that_fit
from embodied.run.memory import fitting, say, workers
from embodied.runtime import memory, slab
from embodied.schema.compose.compose import compose
from embodied.testing import FakeEnv

HERE = Path(__file__).parents[2]
CONFIG = str(HERE / "config")
MB = 2**20
SHORT = (
    *(
        "env=fake",
        "model=fake",
        "tracker=jsonl",
        "runner.device=cpu",
        "runner.max_epochs=1",
        "actor.micro_batch_size=8",
    ),
    *("env.train.max_episode_steps=4", "runner.save_interval=-1", "runner.val_check_interval=-1"),
    *("algorithm.group_size=2", "algorithm.rollout_epoch=2", "env.eval.video_cfg.save_video=false"),
)
SAYS = SimulatorMemory(
    100, (400, 440, 490), slot=1, files=70, building=1000, keeps=2, rebuilding=300,
    forked=ForkMemory(30, 35, 7), addresses=(1000, 3000, 5000), slot_addresses=10,
)  # fmt: skip
sys.path.append(str(HERE.parent / "benchmarks"))

import _forecast  # noqa: E402


def both(key: str, value: object) -> tuple[str, str]:
    return f"{key.replace('SIDE', 'train')}={value}", f"{key.replace('SIDE', 'eval')}={value}"


def checked_of(tmp_path, *more):
    return check(compose([*SHORT, f"runner.output_dir={tmp_path}", *more], "train", [CONFIG]), Group())


def asked(checked):
    return checked.config, checked.sides, checked.processes


def test_spawned_workers():
    """2 workers of 8 slots, each with the three tasks that its four slots are in."""
    pool = WorkerMemory(3, 8, 2, "spawn", replace(SAYS, keeps=3))
    assert (pool.kept, pool.worker, pool.further) == (3, 590, 3)
    assert (pool.all, pool.at_once) == (2 * 590 + 6 * 3 + 70, 2000)
    assert pool.addressed == 7000 + 3 * 10
    assert (replace(pool, says=SAYS).kept, replace(pool, says=SAYS).worker) == (3, 890), "some are built again"
    few = WorkerMemory(3, 2, 2, "spawn", SAYS)
    assert (few.kept, few.worker) == (2, 100 + 440 + 300), "two are kept of three, so that tasks are built again"
    assert SAYS.with_tasks(5) == 590, "further tasks add what the last did"


def test_forked_workers():
    imports = WorkerMemory(2, 4, 2, "forkserver", SAYS)
    assert (imports.server, imports.worker) == (100, 30 + 440)
    assert imports.all == 100 + 2 * 470 + 2 * 2 + 70
    builds = replace(imports, says=replace(SAYS, forked=ForkMemory(30, 35, 7, built=True)))
    assert (builds.server, builds.worker) == (100 + 440, 35 + 2 * 7)
    assert (builds.all, builds.at_once) == (540 + 2 * 49 + 2 * 2 + 70, 1000), "the server builds one after the other"
    more = replace(builds, tasks=3, slots=2)
    assert more.worker == 49 + 440 + 300, "the third task is built by a worker"
    assert replace(imports, says=replace(SAYS, forked=None)).all == WorkerMemory(2, 4, 2, "spawn", SAYS).all


def test_as_many_workers_as_fit():
    pools = [WorkerMemory(1, 64, 16, "spawn", SAYS)]
    assert workers_that_fit(pools, None) == 16
    assert workers_that_fit(pools, 10**6) == 16
    room = WorkerMemory(1, 64, 5, "spawn", SAYS)
    assert workers_that_fit(pools, round((room.all + room.at_once) / 0.8) + 1) == 5
    assert workers_that_fit(pools, 1) == 1
    assert workers_that_fit([], 1) == 1


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_workers_take_what_their_env_says(tmp_path, start_method):
    """Fake simulators that really take memory, one a slot and task."""
    options = (*SHORT, "env.train.task_mb=40", "env.num_workers=2", *both("env.SIDE.total_num_envs", 4))
    (counted,) = memories_of(*asked(checked_of(tmp_path, *options)))
    assert counted.all == 2 * (18 + 80) * MB + 2 * 80 * MB
    found = _forecast.compare((*options, f"env.start_method={start_method}"), [CONFIG])
    assert found["forecast"] == counted.all
    assert abs(found["off"]) < 0.1, found


def test_the_memory_of_a_run_has_parts(tmp_path, monkeypatch):
    """The parts add up, and only a run with a server that forks has a template."""
    monkeypatch.chdir(tmp_path)
    for method in ("spawn", "forkserver"):
        name = f"runner.experiment_name={method}"
        assert (
            train.main([*SHORT, name, "env.train.task_mb=30", f"env.start_method={method}", "--config-dir", CONFIG])
            == 0
        )
        row = json.loads(Path(f"runs/{method}/metrics.jsonl").read_text(encoding="utf-8").splitlines()[0])
        policy, slots = row["memory/pss_policy_gb"], row["memory/pss_slots_gb"]
        template = row.get("memory/pss_template_gb")
        assert (template is None) == (method == "spawn")
        assert row["memory/pss_gb"] == pytest.approx(policy + slots + (template or 0))
        assert policy > 0.1
        assert 0.06 < slots < 0.3, "two workers with 30 or 60 MB each, and what they import"


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.parametrize("case", _forecast.CASES)
def test_simulators_take_what_is_counted(case):
    if find_spec("mani_skill" if case.startswith("PickCube") else "libero") is None:
        pytest.skip("needs the simulator")
    found = _forecast.compare(_forecast.CASES[case])
    assert abs(found["off"]) < 0.1, found


class Simulated(FakeEnv):
    """A fake env that says what a simulator takes, as LIBERO does, in MB."""

    def __init__(self, cache: int = 2, says: dict | None = None, forks: bool = False, **more) -> None:
        super().__init__(num_tasks=3, **more)
        self._cache, self._says, self._forks = cache, says or {}, forks

    def host_memory(self) -> SimulatorMemory:
        usual = {
            "imports": 100 * MB, "tasks": (400 * MB, 440 * MB, 490 * MB), "slot": MB, "keeps": self._cache,
            "rebuilding": 300 * MB, "keys": {"keeps": "cache"}, "addresses": (MB, 3000 * MB),
        }  # fmt: skip
        fork = {"forked": ForkMemory(30 * MB, 35 * MB, 7 * MB, built=True)} if self._forks else {}
        return SimulatorMemory(**{**usual, **fork, **self._says})


SIMULATED = (
    *("env.train._target_=test_workers_memory.Simulated", "env.eval._target_=test_workers_memory.Simulated"),
    *("+env.train.cache=2", "+env.eval.cache=2"),
)
MANY = ("env.train.total_num_envs=16", "env.eval.total_num_envs=16", "env.num_workers=8")


NO_KEY = both("+env.SIDE.says", "{keys: {}}")
CACHE_OF_1 = both("env.SIDE.cache", 1)
FORKS = (*NO_KEY, *both("+env.SIDE.forks", True), *both("env.SIDE.cache", 3))


@pytest.mark.parametrize(
    ("free", "more", "ways"),
    [
        (3000, (), ["env.num_workers=3", "env.train.total_num_envs=3"]),
        (4800, (), ["env.num_workers=5", "env.train.cache=3", "env.train.total_num_envs=5"]),
        (850, CACHE_OF_1, ["env.train.total_num_envs=1"]),
        (2000, FORKS, ["env.num_workers=3", "env.start_method=forkserver", "env.train.total_num_envs=3"]),
        (620, (), ["env.num_workers=1 env.train.cache=3 env.eval.cache=3 env.train.total_num_envs=11"]),
        (450, NO_KEY, []),
    ],
)
def test_what_cannot_fit_is_refused_with_values_that_do(tmp_path, monkeypatch, free, more, ways):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.setattr(workers, "free_memory", lambda: free * MB)
    options = (*SIMULATED, *MANY, *more)
    with pytest.raises(DeviceMemoryError) as refused:
        workers.check(*asked(checked_of(tmp_path, *options)))
    assert f"the machine has {workers.readable(free * MB)} left" in refused.value.message
    proposed = re.findall(r"set ((?:[\w.]+=\S+ ?)+)", refused.value.remedy)
    assert len(proposed) == len(ways), refused.value.remedy
    for way, begins in zip(proposed, ways, strict=True):
        assert way.startswith(begins), refused.value.remedy
        assert workers.check(*asked(checked_of(tmp_path, *options, *way.split()))) is None, way
    if not ways:
        assert "use a machine with more memory" in refused.value.remedy


def test_address_space_that_is_limited_is_refused(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.setattr(workers, "address_limit", lambda: 7000 * MB)
    options = (*SIMULATED, *MANY, *both("env.SIDE.cache", 3))
    with pytest.raises(DeviceMemoryError, match=r"needs 8.79 GiB of address space.*\(ulimit -v\)") as refused:
        workers.check(*asked(checked_of(tmp_path, *options)))
    assert refused.value.remedy.startswith("ulimit -v unlimited")
    assert "env.train.cache=2 env.eval.cache=2" in refused.value.remedy
    assert workers.check(*asked(checked_of(tmp_path, *options, *both("env.SIDE.cache", 2)))) is None
    dry = checked_of(tmp_path, *options, "runner.dry_run=true")
    with pytest.raises(DeviceMemoryError, match="of address space"):
        say.plan(*asked(dry), dry.demonstrations).check()


def test_a_run_that_cannot_fit_ends_before_anything_starts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = [*SHORT, "env.train.task_mb=100000000", "--config-dir", CONFIG]
    assert train.main(options) == 2
    refused = capsys.readouterr().err
    assert "error: the env workers need" in refused
    assert "with the same arguments, says all that is wrong" in refused
    assert list(tmp_path.iterdir()) == []
    assert train.main([*options, "runner.dry_run=true"]) == 2
    shown = capsys.readouterr()
    assert "memory of env workers" in shown.out
    assert "and the machine has" in shown.err


def test_a_kernel_that_says_nothing_refuses_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert memory.available_memory(tmp_path / "meminfo") is None
    for module in (memory, slab):
        monkeypatch.setattr(module, "available_memory", lambda: None)
    monkeypatch.setattr(memory, "container_memory", lambda: None)
    options = [*SHORT, "env.num_workers=auto", "--config-dir", CONFIG]
    assert train.main(options) == 0
    assert "what the machine has left of its memory is not known" in capsys.readouterr().out
    assert train.main([*options, "runner.dry_run=true"]) == 0
    assert "no /proc/meminfo" in capsys.readouterr().out


def test_a_container_has_what_its_group_leaves(monkeypatch):
    for free, limit, left in ((9, 5, 5), (9, None, 9), (3, 5, 3), (None, 5, 5), (None, None, None)):
        monkeypatch.setattr(memory, "available_memory", lambda free=free: free)
        monkeypatch.setattr(memory, "container_memory", lambda limit=limit: limit)
        assert memory.free_memory() == left


@pytest.mark.parametrize(("free", "count"), [(10**6, 4), (2600, 2), (10, 1), (None, 4)])
def test_workers_are_chosen_by_cores_and_memory(tmp_path, monkeypatch, free, count):
    """Four cores. Two workers with two of three tasks take 840 MB each, and a few slots."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr(worker_memory, "free_memory", lambda: free and free * MB)
    checked = checked_of(tmp_path, *SIMULATED, *MANY, "env.num_workers=auto")
    assert checked.config.env.num_workers == count
    assert checked.composed.resolved["env"]["num_workers"] == "auto", "a run that goes on may have others"
    (counted,) = memories_of(*asked(checked))
    assert (counted.workers, counted.slots) == (count, 16)
    with pytest.raises(Exception, match=r"env\.num_workers"):
        checked_of(tmp_path, "env.num_workers=most")


def test_both_sides_share_what_is_left_if_each_has_workers(tmp_path, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr(worker_memory, "free_memory", lambda: 2000 * MB)
    same = (*both("env.SIDE.total_num_envs", 8), "env.num_workers=auto", "env.train.task_mb=40")
    one = checked_of(tmp_path, *same, "env.eval.task_mb=40")
    two = checked_of(tmp_path, *same, "env.eval.task_mb=80", "runner.val_check_interval=1")
    assert [len(memories_of(*asked(checked))) for checked in (one, two)] == [1, 2]
    assert [checked.config.env.num_workers for checked in (one, two)] == [8, 1]


def test_a_dry_run_says_what_fits(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    note = both("+env.SIDE.says", "{note: measured by hand, building: 1048576, drawn: 0.5}")
    keys = ("env.num_workers=2", *both("env.SIDE.cache", 3), "runner.dry_run=true")
    checked = checked_of(tmp_path, *SIMULATED, *MANY, *note, *keys)
    planned = say.plan(*asked(checked), checked.demonstrations)
    room = planned.taken.on_host + planned.taken.on_device + 2100 * MB
    rows = dict(replace(planned, machine=room).rows())
    (pool,) = planned.taken.pools
    assert pool.all == (2 * 590 + 14 * 3) * MB
    assert rows["memory of env workers"].startswith("1.19 GiB: 2 workers with 3 of 3 tasks · 590.0 MiB, 14 further")
    assert (rows["of simulators"], rows["while simulators are built"][:7]) == ("measured by hand", "2.0 MiB")
    assert re.match(r"env.num_workers=2, .*env.train.total_num_envs=308 at most fit$", rows["proposal"])
    monkeypatch.setattr(workers, "render_gpus_of", lambda *given: (0,))
    assert fitting.needed(workers.at_least([pool], *asked(checked)[::2])) == (2 * 345 + 14 * 3) * MB
    monkeypatch.setattr(say, "render_gpus_of", lambda *given: (0,))
    assert "50% of the tasks" in dict(planned.rows())["drawn on a GPU"]


def test_an_env_that_says_nothing_is_named(tmp_path):
    checked = checked_of(tmp_path, "env.train._target_=embodied.testing.FakeBatchEnv")
    assert memories_of(*asked(checked))[0].says != UNKNOWN
    silent = replace(checked.train, env=object())
    assert WorkerMemory.of(silent, 2, 2, "spawn").says == UNKNOWN
    assert workers.rows_of([WorkerMemory(1, 2, 2, "spawn")], "", ())[0][1].startswith("40.0 MiB, at the least: ")
    assert workers.fitting_rows([WorkerMemory(1, 2, 2, "spawn")], 1, 2, Group()) == []


def test_fewer_slots_keep_whole_groups(tmp_path):
    config = checked_of(tmp_path, "env.train.total_num_envs=6", "algorithm.rollout_epoch=3", "algorithm.group_size=6",
                        "env.eval.total_num_envs=6").config  # fmt: skip
    assert [fitting.whole_groups(config, slots) for slots in (6, 5, 4, 1)] == [3, 6, 6, 18]
    assert fitting.whole_groups(config, 2, processes=2) == 12
