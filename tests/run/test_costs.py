"""What a run keeps of what it has taken: over all launches, of all processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from small_run import RUN

from embodied import train
from embodied.lib import cpu_time
from embodied.parallel.group import Group
from embodied.run.folder import costs
from embodied.run.folder.costs import Costs
from embodied.testing import FakePolicy

BUSY = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"


def _start(folder: Path) -> None:
    with (folder / "starts.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"command": "x"}\n')


def _found(folder: Path) -> dict:
    return json.loads((folder / costs.FILE).read_text(encoding="utf-8"))


def test_cpu_seconds_of_children_count_while_they_live_and_when_they_have_ended():
    before = cpu_time.tree_seconds(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    alive = cpu_time.tree_seconds(os.getpid())
    child.communicate(b"\n")
    ended = cpu_time.tree_seconds(os.getpid())
    assert alive - before >= 0.45
    assert ended - before >= 0.45
    assert cpu_time.tree_seconds(2**22 + 1) is None, "no such process"


def test_processors_are_named(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text("processor : 0\nmodel name\t: Fast 9000\nmodel name\t: Slow\n", encoding="utf-8")
    assert cpu_time.processors(file).endswith(" × Fast 9000")
    assert " × " in cpu_time.processors(tmp_path / "none")


def test_launches_add_up(tmp_path):
    _start(tmp_path)
    first = Costs(tmp_path, Group())
    first.describe(FakePolicy(), torch.device("cpu"))
    early = first.measure()
    assert early["time/run_s"] >= 0
    assert _found(tmp_path)["launches"]["1"]["whole"] is False
    assert _found(tmp_path)["policy"]["parameters"] == sum(p.numel() for _, p in FakePolicy().named_parameters())
    first.close()
    own = _found(tmp_path)["launches"]["1"]
    assert own["whole"] is True
    _start(tmp_path)
    second = Costs(tmp_path, Group())
    late = second.measure()
    assert late["time/run_s"] >= own["wall_s"]
    assert late["time/run_cpu_s"] >= own["cpu_s"]
    assert list(_found(tmp_path)["launches"]) == ["1", "2"]
    assert _found(tmp_path)["launches"]["2"]["whole"] is False, "as a launch that is killed leaves it"


def test_a_launch_of_an_older_version_is_not_guessed(tmp_path):
    _start(tmp_path)
    _start(tmp_path)
    assert Costs(tmp_path, Group()).measure() == {}


def test_a_damaged_file_is_as_none(tmp_path):
    (tmp_path / costs.FILE).write_text("{half", encoding="utf-8")
    _start(tmp_path)
    assert set(Costs(tmp_path, Group()).measure()) == {"time/run_s", "time/run_cpu_s"}


def test_where_the_kernel_does_not_say_it_only_the_wall_clock_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(costs, "tree_seconds", lambda pid: None)
    _start(tmp_path)
    assert set(Costs(tmp_path, Group()).measure()) == {"time/run_s"}


class Two(Group):
    """A group whose other rank has taken seven CPU seconds."""

    def __init__(self) -> None:
        super().__init__(0, 2)

    def gather(self, value):
        return [value, 7.0]


def test_what_other_ranks_take_until_their_end_counts(tmp_path, monkeypatch):
    _start(tmp_path)
    made = Costs(tmp_path, Two())
    made.measure()
    monkeypatch.setattr(Two, "gather", lambda self, value: [value, 9.0])
    made.finish()
    monkeypatch.setattr(Two, "gather", None)  # an end has no collectives
    made.finish()
    made.close()
    assert _found(tmp_path)["launches"]["1"]["whole"] is True
    assert _found(tmp_path)["launches"]["1"]["cpu_s"] >= 9


@pytest.mark.parametrize("text", ["[]", "3", '{"launches": []}', '{"policy": {}, "launches": {"1": 2}}'])
def test_a_file_of_another_form_is_as_none(tmp_path, text):
    (tmp_path / costs.FILE).write_text(text, encoding="utf-8")
    _start(tmp_path)
    assert set(Costs(tmp_path, Group()).measure()) == {"time/run_s", "time/run_cpu_s"}


def test_a_launch_that_could_not_be_recorded_overwrites_none(tmp_path):
    """Neither the first is in ``starts.jsonl``, nor the third."""
    for number, recorded in enumerate((False, True, False), start=1):
        if recorded:
            _start(tmp_path)
        made = Costs(tmp_path, Group())
        assert made.measure()["time/run_s"] > 0
        made.close()
        assert list(_found(tmp_path)["launches"]) == [str(n) for n in range(1, number + 1)]


def test_other_ranks_count_and_without_an_end_theirs_is_not_known(tmp_path):
    _start(tmp_path)
    made = Costs(tmp_path, Two())
    assert made.measure()["time/run_cpu_s"] >= 7
    made.close()
    assert _found(tmp_path)["launches"]["1"]["whole"] is False
    assert _found(tmp_path)["launches"]["1"]["cpu_s"] >= 7


def test_a_run_and_its_continuation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seconds = []
    for epochs in (1, 2):
        began = time.monotonic()
        assert train.main([*RUN, f"runner.max_epochs={epochs}"]) == 0
        seconds.append(time.monotonic() - began)
    (folder,) = Path("runs").iterdir()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    launches = _found(folder)["launches"]
    assert [row["whole"] for row in launches.values()] == [True, True]
    assert rows[0]["time/run_s"] < launches["1"]["wall_s"] < rows[1]["time/run_s"] < sum(seconds)
    assert rows[0]["time/run_cpu_s"] < rows[1]["time/run_cpu_s"]
