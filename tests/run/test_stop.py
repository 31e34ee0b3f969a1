"""A run that is asked to stop, at any moment: it ends soon, and goes on as if nothing had been."""

from __future__ import annotations

import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from slow_policies import Slow
from test_kill_and_resume import OPTIONS
from test_run import FAST, lasting
from torch.distributed.checkpoint import FileSystemReader

from embodied import sft, train
from embodied.learn.checkpoint.checkpoint import Checkpoints
from embodied.observe.terminal.console import PlainConsole
from embodied.run import summary
from embodied.run.build import policy
from embodied.run.evaluation.evaluator import EvaluationRunner
from embodied.tools import demos

HERE = Path(__file__).parents[1]
SLOW = ("actor.model._target_=slow_policies.Slow", "+actor.model.act_s=0.01", "+actor.model.evaluate_s=0.02")
RL = (*FAST, *OPTIONS, *SLOW, "runner.save_interval=3", "runner.val_check_interval=2")
SFT = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", *SLOW, "runner.max_epochs=3",
    "runner.val_check_interval=2", "runner.save_interval=2", "sft.steps_per_iteration=6", "sft.val_samples=20",
    "actor.global_batch_size=16", "actor.micro_batch_size=4", "env.eval.video_cfg.save_video=false",
    "env.eval.max_episode_steps=6", "env.num_workers=1",
)  # fmt: skip
SOON_S = 30.0  # a stop takes about one; the machine may be busy
FEW, MANY = range(2), range(2, 20)
MOMENTS = [*FEW, *(pytest.param(seed, marks=pytest.mark.slow) for seed in MANY)]


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def late_signals_do_no_harm() -> Iterator[None]:
    """One that comes after the run has ended would end the tests."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Demonstrations of the fake env."""
    folder = tmp_path_factory.mktemp("demos") / "fake"
    options = ["env=fake", "episodes=10", "noise_std=0.5", f"demos.path={folder}", "env.num_workers=1"]
    assert demos.main([*options, "env.train.horizon=60", "--config-dir", str(HERE / "config")]) == 0
    return folder


def command(options: tuple[str, ...], *more: str, name: str = "run") -> list[str]:
    return [*options, *more, f"runner.experiment_name={name}", "--config-dir", str(HERE / "config")]


def whole(main: Callable[[list[str]], int], arguments: list[str]) -> float:
    """Seconds of a run that nobody stops."""
    began = time.monotonic()
    assert main(arguments) == 0
    return time.monotonic() - began


@contextmanager
def signalled(after_s: float) -> Iterator[list[float]]:
    """SIGTERM to this process after so long, unless the block has ended; when it was sent."""
    sent: list[float] = []

    def send() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    timer = threading.Timer(after_s, send)
    timer.start()
    try:
        yield sent
    finally:
        timer.cancel()
        timer.join()


def rows(name: str = "run") -> list[dict[str, float]]:
    path = Path("runs", name, "metrics.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def last(name: str) -> str:
    return max(path.name for path in Path("runs", name, "checkpoints").iterdir())


def outcome(name: str) -> dict[str, Any]:
    """All metrics that a second run must repeat, its evaluations, and its last checkpoint."""
    checkpoint = Path("runs", name, "checkpoints", last(name))
    meta = json.loads((checkpoint / "meta.json").read_text(encoding="utf-8"))
    del meta["files"][".metadata"], meta["checksums"][".metadata"], meta["checksum"]  # it knows its folder's name
    evaluations = {path.name: path.read_text(encoding="utf-8") for path in Path("runs", name, "eval").glob("*.json")}
    tensors = (checkpoint / "__0_0.distcp").read_bytes()
    return {"tensors": tensors, "meta": meta, "rows": lasting(rows(name)), "evaluations": evaluations}


def send_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int) -> list[int]:
    """SIGTERM to this process in the ``call``-th call of ``owner.name``; a list that grows with each call after it."""
    original, calls, after = getattr(owner, name), [], []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(len(calls))
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGTERM)
        elif len(calls) > call:
            after.append(len(calls))
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, counted)
    return after


@pytest.mark.parametrize("seed", MOMENTS)
def test_training_stopped_at_any_moment_ends_as_one_that_never_was(seed, never_stopped_rl):
    seconds, expected = never_stopped_rl
    with signalled(random.Random(seed).uniform(0, seconds)) as sent:
        status = train.main(command(RL))
    if sent:
        assert time.monotonic() - sent[0] < SOON_S
    assert status in (0, 143)
    assert train.main(command(RL)) == 0
    assert outcome("run") == expected


@pytest.mark.parametrize("seed", MOMENTS)
def test_cloning_stopped_at_any_moment_ends_as_if_it_never_was(seed, never_stopped_sft, made):
    seconds, expected = never_stopped_sft
    with signalled(random.Random(seed).uniform(0, seconds)) as sent:
        status = sft.main(command(SFT, f"data={made}"))
    if sent:
        assert time.monotonic() - sent[0] < SOON_S
    assert status in (0, 143)
    assert sft.main(command(SFT, f"data={made}")) == 0
    assert outcome("run") == expected


@pytest.mark.parametrize("async_save", [True, False])
@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, 5))])
def test_a_run_stopped_while_it_saves_ends_as_one_that_never_was(monkeypatch, seed, async_save, never_stopped_rl):
    """It saves each iteration, to a disk that takes longer than everything else."""
    seconds, expected = never_stopped_rl
    saves = ("runner.save_interval=1", f"runner.checkpoint.async_save={async_save}")
    with monkeypatch.context() as patch, signalled(random.Random(seed).uniform(0.3, 1.0) * seconds):
        save = torch.save
        patch.setattr(torch, "save", lambda *args, **options: time.sleep(0.02) or save(*args, **options))
        assert train.main(command(RL, *saves)) in (0, 143)
    assert train.main(command(RL, *saves)) == 0
    assert outcome("run") == expected


@pytest.fixture(scope="module")
def never_stopped_rl(tmp_path_factory: pytest.TempPathFactory) -> tuple[float, dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("rl"))
        return whole(train.main, command(RL)), outcome("run")


@pytest.fixture(scope="module")
def never_stopped_sft(tmp_path_factory: pytest.TempPathFactory, made: Path) -> tuple[float, dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("sft"))
        return whole(sft.main, command(SFT, f"data={made}")), outcome("run")


# -- an update ---------------------------------------------------------------------------------------------------------

LARGE = (
    "actor.micro_batch_size=1", "runner.stop_timeout_s=0.4", "runner.save_interval=-1", "+actor.model.evaluate_s=0.05",
)  # fmt: skip


def large(name: str = "run") -> list[str]:
    """An update that takes several times as long as a stop may."""
    without = tuple(option for option in RL if not option.startswith("+actor.model.evaluate_s"))
    return command(without, *LARGE, "runner.max_epochs=2", name=name)


@pytest.fixture(scope="module")
def never_stopped_large(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any]]:
    """The number of a pass in the midst of the second update, and what the run leaves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("large"))
        passes: list[int] = []
        evaluate = Slow.evaluate
        patch.setattr(Slow, "evaluate", lambda *args: passes.append(len(rows())) or evaluate(*args))
        assert train.main(large()) == 0
        return passes.index(1) + passes.count(1) // 2, outcome("run")


def test_a_long_update_ends_with_the_pass_in_progress_and_no_earlier_iteration_is_lost(
    monkeypatch, capfd, never_stopped_large
):
    middle, expected = never_stopped_large
    with monkeypatch.context() as patch:
        after = send_at(patch, Slow, "evaluate", middle)
        assert train.main(large()) == 143
    assert after == []
    said = capfd.readouterr()
    assert said.err.startswith("SIGTERM: stopping within 0.4 s")
    assert "stopped: 1 iteration done. The same command goes on from here." in said.out
    assert last("run") == "000001", "though save_interval is -1"
    assert [row["step"] for row in rows("run")] == [1]
    assert train.main(large()) == 0
    assert outcome("run") == expected


def test_an_update_that_is_soon_done_is_finished(monkeypatch, capfd):
    after = send_at(monkeypatch, Slow, "evaluate", 1)
    assert train.main(command(RL)) == 143
    assert len(after) > 1
    assert "stopped: 1 iteration done" in capfd.readouterr().out
    assert last("run") == "000001"


def test_without_a_copy_in_memory_the_last_checkpoint_is_what_is_left(monkeypatch, capfd, never_stopped_large):
    middle, _ = never_stopped_large
    with monkeypatch.context() as patch:
        send_at(patch, Slow, "evaluate", middle)
        assert train.main([*large(), "runner.checkpoint.async_save=false"]) == 143
    said = capfd.readouterr().out
    assert "the update of iteration 2 was cut short, and no iteration was saved before it" in said
    assert "stopped: 0 iterations done" in said
    assert not Path("runs/run/checkpoints").exists()


def test_a_stopped_evaluation_is_made_anew(monkeypatch, capfd, never_stopped_rl):
    _, expected = never_stopped_rl
    with monkeypatch.context() as patch:
        send_at(patch, EvaluationRunner, "_report", 1)  # written, and not logged yet
        assert train.main(command(RL)) == 143
    assert "stopped: 2 iterations done" in capfd.readouterr().out
    assert last("run") == "000002"
    assert train.main(command(RL)) == 0
    assert outcome("run") == expected


def test_a_stop_while_a_checkpoint_is_loaded_is_no_damage(monkeypatch, capfd):
    assert train.main(command(FAST, "runner.max_epochs=1")) == 0
    weights = "runner.ckpt_path=runs/run/checkpoints/000001"
    for arguments in (command(FAST), command(FAST, weights, name="other")):
        with monkeypatch.context() as patch:
            send_at(patch, FileSystemReader, "read_data", 1)
            assert train.main(arguments) == 143
        assert "damaged" not in capfd.readouterr().err
    assert train.main(command(FAST)) == 0
    assert [row["step"] for row in rows()] == [1, 2]


def test_a_stop_waits_for_the_copy_that_is_written(monkeypatch, never_stopped_rl):
    _, expected = never_stopped_rl
    with monkeypatch.context() as patch:
        send_at(patch, Checkpoints, "_complete", 1)
        assert train.main(command(RL)) == 143
    assert last("run") == "000003"
    assert train.main(command(RL)) == 0
    assert outcome("run") == expected


def test_a_stopped_iteration_of_cloning_goes_on_at_its_next_step(monkeypatch, capfd, made, never_stopped_sft):
    _, expected = never_stopped_sft
    with monkeypatch.context() as patch:
        after = send_at(patch, Slow, "evaluate", 4 * 3 + 2)  # four passes a step
        assert sft.main(command(SFT, f"data={made}")) == 143
    assert after == []
    assert "stopped: 0 iterations done and 3 optimizer steps of the next." in capfd.readouterr().out
    assert last("run") == "000000+003"
    assert sft.main(command(SFT, f"data={made}")) == 0
    assert outcome("run") == expected


BUSY = """
import ctypes
import signal
from embodied.runtime.signals import Stopped, StopSignal
with StopSignal(7.0) as stop:
    # the thread that answers gets them, so that the call goes on, and Python runs no handler until its end
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    try:
        with stop.hold():
            print("computing", flush=True)
            ctypes.CDLL(None).read(0, ctypes.create_string_buffer(1), 1)
            print("computed", flush=True)
    except Stopped:
        print("stopped", flush=True)
"""


@contextmanager
def computing(script: str, number: signal.Signals) -> Iterator[tuple[subprocess.Popen, Any]]:
    """The process, in one long call in which Python runs no handler, as in a backward pass, after the answer to a
    signal has come; and its standard output. The call ends when the process's standard input is closed."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", script], text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "computing\n"
        process.send_signal(number)
        assert process.stderr.readline().startswith(f"{number.name}: stopping within 7 s")
        yield process, process.stdout


def test_the_answer_comes_while_a_pass_takes_long():
    with computing(BUSY, signal.SIGTERM) as (process, out):
        assert select.select([out], [], [], 0)[0] == [], "it still computes"
        process.stdin.close()
        assert out.read() == "computed\nstopped\n"


def test_ctrl_c_twice_in_a_call_that_takes_long_ends_it_without_saving():
    """Python runs the handler once for both."""
    with computing(BUSY.replace("except Stopped", "except KeyboardInterrupt"), signal.SIGINT) as (process, out):
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)  # until it is counted
        process.stdin.close()
        assert out.read() == "stopped\n"


# -- other jobs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(s, marks=pytest.mark.slow) for s in range(2, 6))])
def test_an_evaluation_leaves_its_result_or_none(seed):
    options = (*FAST, *SLOW, "runner.only_eval=true", "env.eval.episodes_per_task=8")
    seconds = whole(train.main, command(options, name="whole"))
    with signalled(random.Random(seed).uniform(0, seconds)):
        status = train.main(command(options))
    result = Path("runs/run/eval/000000.json")
    assert status in (0, 143)
    assert status == 143 or result.exists()
    assert train.main(command(options)) == 0
    assert result.read_text(encoding="utf-8") == Path("runs/whole/eval/000000.json").read_text(encoding="utf-8")


def test_a_stopped_evaluation_says_that_there_is_no_result(monkeypatch, capfd):
    send_at(monkeypatch, Slow, "act", 1)
    assert train.main(command((*FAST, *SLOW, "runner.only_eval=true"))) == 143
    assert "stopped before there was a result to keep" in capfd.readouterr().err
    assert not Path("runs/run/eval").exists()


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, 6))])
def test_demonstrations_stopped_at_any_moment_are_those_of_one_command(seed, tmp_path, made):
    options = ["env=fake", "episodes=10", "noise_std=0.5", "env.num_workers=1", "env.train.horizon=60"]
    arguments = [*options, "demos.path=demos/fake", "--config-dir", str(HERE / "config")]
    with signalled(random.Random(seed).uniform(0, 4.0)):
        assert demos.main(arguments) in (0, 143)
    assert demos.main(arguments) == 0
    for name in ("data", "meta"):
        files = {path.relative_to(made): path for path in (made / name).rglob("*") if path.is_file()}
        assert len(files) > 1
        for relative, path in files.items():
            assert (Path("demos/fake") / relative).read_bytes() == path.read_bytes(), relative


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, 5))])
def test_start_up_ends_at_once(seed):
    arguments = command(FAST)
    moment = random.Random(seed).uniform(0.0, 4.0)
    with subprocess.Popen(
        [sys.executable, "-m", "embodied.train", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as process:
        time.sleep(moment)
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=SOON_S)
    assert process.returncode in (0, 143, -signal.SIGTERM)
    assert "Traceback" not in error
    if "stopped before there was a result to keep" in error:
        assert process.returncode == 143
    assert train.main(arguments) == 0
    assert re.fullmatch(r"00000\d", last("run"))


def test_a_signal_after_the_last_save_changes_nothing(monkeypatch, capfd):
    send_at(monkeypatch, summary, "places", 1)
    assert train.main(command(FAST)) == 143, "what follows in the shell is still to stop"
    said = capfd.readouterr()
    assert "2 iterations done. The same command with a larger" in said.out
    assert "where things are" in said.out
    assert said.err.count("\n") == 1


def test_what_stops_a_run_stops_it_before_its_workers_start(monkeypatch, capfd):
    send_at(monkeypatch, policy, "build_policy", 1)
    assert train.main(command(FAST)) == 143
    assert "rollout" not in capfd.readouterr().out
    assert not Path("runs/run/metrics.jsonl").exists()


# -- silence -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def talkative(monkeypatch: pytest.MonkeyPatch) -> None:
    """A console without a terminal that speaks every 50 ms."""
    monkeypatch.setattr(
        "embodied.observe.terminal.console.make_console", lambda: PlainConsole(sys.stdout, interval_s=0.05)
    )


def said_of(phase: str, out: str) -> list[str]:
    return [line for line in out.splitlines() if line.startswith(f"{phase}: ")]


@pytest.mark.usefixtures("talkative")
def test_reinforcement_learning_says_where_it_is(capfd):
    assert train.main(command(RL, "runner.max_epochs=2", "actor.model.act_s=0.1")) == 0
    out = capfd.readouterr().out
    assert len(said_of("evaluation", out)) > 2
    for phase in ("iteration 1/2 rollout", "iteration 2/2 update"):
        assert len(lines := said_of(phase, out)) > 2, phase
        assert any(re.search(r"\d+/\d+ .*elapsed .* s  about \d+ s left", line) for line in lines), phase
    assert re.search(r"iteration 1/2  success .* s  about \d+ s left", out)
    assert said_of("starting 1 env workers", out)


@pytest.mark.usefixtures("talkative")
def test_cloning_says_at_which_sample_it_is(capfd, made):
    assert sft.main(command(SFT, f"data={made}")) == 0
    out = capfd.readouterr().out
    for phase in ("iteration 2/3 training", "iteration 3/3 validation"):
        assert len(lines := said_of(phase, out)) > 2, phase
        assert any(re.search(r"\d+/\d+  elapsed .* s  about \d+ s left", line) for line in lines), phase
    assert "iteration 2/3 training: 96/96" in out


@pytest.mark.usefixtures("talkative")
def test_a_call_that_takes_long_is_not_silent(monkeypatch, capfd):
    """No record is done for a second, and no count changes."""
    evaluate = Slow.evaluate
    monkeypatch.setattr(Slow, "evaluate", lambda *args: time.sleep(1.0) or evaluate(*args))
    assert train.main(command(RL, "runner.max_epochs=1", "actor.micro_batch_size=8", "algorithm.update_epoch=1")) == 0
    assert len([line for line in said_of("iteration 1/1 update", capfd.readouterr().out) if ": 0/" in line]) > 3
