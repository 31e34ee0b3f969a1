"""``env=gym``: the trial of an env is over in seconds, and nothing that the env starts outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from embodied.envs.gym import asking
from embodied.envs.gym.settings import Making, making_of

from embodied import train
from embodied.errors import ConfigError

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("MUJOCO_GL", os.environ.get("MUJOCO_GL", "egl"))  # no search for a renderer


def odd(**kwargs: str) -> Making:
    return making_of(None, "odd_processes.Odd", kwargs, None, None, [], [], {})


def left(file: Path) -> list[int]:
    """The helpers that were started, and still run."""
    started = [int(number) for number in file.read_text(encoding="utf-8").split()]
    assert started
    return [pid for pid in started if runs(pid)]


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    "reset",
    ["helper", "deaf helper", "helper of another session", "daemon", "thread", "prints", "speaks binary", "forks",
     "moves", "listens", "closes its output"],
)  # fmt: skip
def test_what_an_env_does_to_its_process_keeps_no_answer(tmp_path, reset):
    file = tmp_path / "helpers"
    answer = asking.probed(odd(reset=reset, file=str(file)), False, None)
    assert answer["entries"]["obs"] == [[2], "float32"], answer
    assert answer["whole"]
    if "helper" in reset or reset == "daemon":
        assert left(file) == []


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"reset": "ends"}, r"the process that tried Odd ended with status 0 in reset\(\)"),
        ({"reset": "exits"}, r"ended with status 1 in reset\(\): no licence"),
        ({"reset": "crashes"}, r"was ended by SIGSEGV in reset\(\)"),
        ({"reset": "interrupts"}, r"ended with status 1 in reset\(\): KeyboardInterrupt"),
    ],
)
def test_how_a_process_ended_is_said_with_the_call_that_ended_it(kwargs, message):
    with pytest.raises(ConfigError, match=message):
        asking.probed(odd(**kwargs), False, None)


def test_an_env_that_asks_the_user_is_told_that_there_is_nobody():
    answer = asking.probed(odd(reset="reads"), False, None)
    assert "EOFError" in answer["message"]


@pytest.mark.parametrize(("kwargs", "call"), [({"reset": "hangs"}, "reset"), ({"hangs_in": "step"}, "step")])
def test_a_hang_is_said_with_its_call(monkeypatch, kwargs, call):
    monkeypatch.setattr(asking, "LIMIT_S", 8.0)
    with pytest.raises(ConfigError, match=rf"Odd was tried for 8 s and was then still in {call}\(\)"):
        asking.probed(odd(**kwargs), False, None)


@pytest.mark.parametrize("kwargs", [{"hangs_in": "close"}, {"late": "hangs"}, {"late": "ends"}, {"late": "crashes"}])
def test_what_fails_after_the_answer_does_not_take_it_back(monkeypatch, kwargs):
    monkeypatch.setattr(asking, "GRACE_S", 1.0)
    answer = asking.probed(odd(**kwargs), False, None)
    assert answer["entries"]["info.success"] == [[], "bool"]
    assert answer["whole"] == ("hangs_in" in kwargs)


@pytest.mark.parametrize("count", [1, 2])
def test_a_close_that_hangs_before_the_answer_is_left(count):
    """An env with pictures is made twice, and all tasks but the last are closed before there is an answer."""
    tasks = [{"instruction": f"task {number}"} for number in range(count)]
    making = making_of(None, "odd_processes.Shown", {"hangs_in": "close"}, None, tasks, [], [], {})
    code = AT_ONCE.format(here=str(HERE), root=str(ROOT), making=json.dumps(asdict(making)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["frame"] == [16, 16, 3]
    assert answer["entries"]["info.success"] == [[], "bool"]


AT_ONCE = """
import json, sys
sys.path[:0] = [{here!r}, {root!r}]
from embodied.envs.gym import probe
probe.CLOSE_S = 0.2
answer = probe.answer(json.loads({making!r}), False)
answer["bounds"] = {{}}
print(json.dumps(answer), flush=True)
import os
os._exit(0)
"""

ASK = """
import sys
sys.path[:0] = [{here!r}, {root!r}]
from embodied.envs.gym import asking
from embodied.envs.gym.settings import making_of
asking.probed(making_of(None, "odd_processes.Odd", {kwargs!r}, None, None, [], [], {{}}), False, None)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_trial_ends_with_the_run_that_asked_for_it(tmp_path, how):
    file = tmp_path / "helpers"
    code = ASK.format(here=str(HERE), root=str(ROOT), kwargs={"reset": "daemon", "hangs_in": "step", "file": str(file)})
    asks = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not file.exists() or not file.read_text(encoding="utf-8"):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert left(file)
    asks.send_signal(how)
    asks.wait(30)
    while left(file):
        assert time.monotonic() < until + 30, "the helper goes on"
        time.sleep(0.02)


def test_an_env_that_changes_its_folder_leaves_the_videos_where_they_belong(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run = (
        "env=gym", "env.train.entry_point=odd_processes.Odd", "env.train.make_kwargs={reset: moves}", "model=mlp",
        "runner.device=cpu", "runner.max_epochs=1", "runner.experiment_name=run", "tracker=jsonl",
    )  # fmt: skip
    assert train.main(run) == 0
    assert [*(tmp_path / "videos/run/eval").rglob("episode*.mp4"), *(tmp_path / "videos/run/eval").rglob("task*.mp4")]
