"""Whole runs of two processes, as torchrun starts them: the same numbers as one, and how they end."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import warm
from test_run import arguments, checkpoints, lasting, lines, rows, run, wait_for

from embodied.learn.checkpoint import loading
from embodied.testing import FakePolicy
from embodied.tools import demos

WAIT_S = 120.0
HERE = Path(__file__).parents[1]
PATHS = f"{HERE / 'helpers'}:{HERE.parent}"  # of this tree, whichever is installed
USUAL = (
    "env.train.reward_mode=dense",
    "env.train.total_num_envs=4",
    "env.eval.total_num_envs=4",
    "algorithm.rollout_epoch=2",
)
SLOW = (
    *USUAL,
    "actor.fsdp_config.strategy=replicate",
    "env.train.step_s=0.01",
    "runner.max_epochs=500",
    "runner.save_interval=1",
)


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def command(
    *overrides: str, name: str = "run", entry: str = "train", forks: bool = False, size: int = 2
) -> list[str]:  # fmt: skip
    """Args:
    forks: start the ranks as forks, in a third of the time; torchrun is what ends them in order.
    """
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}", "-m"]
    launch = [str(HERE / "helpers" / "fork_ranks.py"), str(size)] if forks else torchrun
    return [*launch, f"embodied.{entry}", *arguments(*overrides, name=name)]


@contextmanager
def started(*overrides: str, **options) -> Iterator[warm.Program]:
    """Ended with everything that it started, whatever happens."""
    # else torchrun sets the number of threads, with a paragraph about that
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONPATH": PATHS}
    with warm.Program(command(*overrides, **options), env=quiet, files=(Path("out"), Path("error"))) as process:
        try:
            yield process
        finally:
            for pid in descendants(process.pid):
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Process ids of all children, theirs, and so on."""
    try:
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text(encoding="utf-8").split()
        ]
    except OSError:
        return []
    return [found for child in children for found in (child, *descendants(child))]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def pid_of_rank(launcher: warm.Program, rank: int) -> int:
    def variables(pid: int) -> list[bytes]:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")

    children = [
        int(pid)
        for pid in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text(encoding="utf-8").split()
    ]
    (found,) = [pid for pid in children if f"RANK={rank}".encode() in variables(pid)]
    return found


def finished(process: warm.Program) -> int:
    try:
        return process.wait(WAIT_S)
    finally:
        print(Path("out").read_text(encoding="utf-8"), Path("error").read_text(encoding="utf-8"))


def weights(iteration: int, name: str) -> dict[str, torch.Tensor]:
    policy = FakePolicy(seed=99)
    loading.load(Path("runs", name, "checkpoints", f"{iteration:06d}"), policy)
    return {name: parameter.detach() for name, parameter in policy.named_parameters()}


def test_two_processes_make_the_run_that_one_makes():
    options = (*USUAL, "runner.max_epochs=3", "runner.val_check_interval=2", "actor.fsdp_config.strategy=replicate")
    with started(*options, name="two", forks=True) as process:
        assert finished(process) == 0
    out = Path("out").read_text(encoding="utf-8")
    assert out.count("3 iterations done") == 1, "rank 0 alone speaks"
    assert "2, each with the whole policy" in out
    assert run(*options, name="one") == 0
    for two, one in zip(lasting(rows("two")), lasting(rows("one")), strict=True):
        assert 0 < two.pop("time/rank_wait_share", 0.5) < 1
        assert two == pytest.approx(one, rel=1e-4, abs=1e-5)
    for name, expected in weights(3, "one").items():
        torch.testing.assert_close(weights(3, "two")[name], expected, rtol=0, atol=1e-5)
    assert sorted(path.name for path in Path("runs/two/logs").iterdir()) == ["rank-00", "rank-01"]
    one, two = (Path(f"runs/{name}/eval/000003.json").read_text(encoding="utf-8") for name in ("one", "two"))
    assert two.replace("runs/two after", "runs/one after") == one


SUPERVISED = (
    "data=demos", "sft.steps_per_iteration=4", "sft.val_samples=12", "actor.global_batch_size=12",
    "actor.micro_batch_size=4", "actor.optim.ema_decay=0.5", "runner.max_epochs=3", "runner.val_check_interval=2",
    "env.eval.total_num_envs=2",
)  # fmt: skip


@pytest.mark.parametrize("strategy", ["replicate", pytest.param("fsdp2", marks=pytest.mark.slow)])
def test_two_processes_learn_from_demonstrations_what_one_does(strategy):
    made = ["env=fake", "episodes=8", "noise_std=0.5", "demos.path=demos", "env.num_workers=1", "env.train.horizon=60"]
    assert demos.main([*made, "--config-dir", str(HERE / "config")]) == 0
    options = (*SUPERVISED, f"actor.fsdp_config.strategy={strategy}")
    with started(*options, name="two", entry="sft", forks=True) as process:
        assert finished(process) == 0
    out = Path("out").read_text(encoding="utf-8")
    assert out.count("3 iterations done") == 1, "rank 0 alone speaks"
    assert "2, each with" in out
    assert run(*options, name="one", entry="sft") == 0
    for two, one in zip(lasting(rows("two")), lasting(rows("one")), strict=True):
        two.pop("eval/worker_restarts", None)
        one.pop("eval/worker_restarts", None)
        assert two == pytest.approx(one, rel=1e-4, abs=1e-5)
    for name, expected in weights(3, "one").items():
        torch.testing.assert_close(weights(3, "two")[name], expected, rtol=0, atol=1e-5)
    one, two = (Path(f"runs/{name}/eval/000003.json").read_text(encoding="utf-8") for name in ("one", "two"))
    assert two.replace("runs/two after", "runs/one after") == one


def test_demonstrations_are_made_by_one_process():
    with started("episodes=2", entry="tools.demos", forks=True) as process:
        assert finished(process) != 0
    assert "demonstrations are made by one process with many workers" in Path("error").read_text(encoding="utf-8")


@pytest.mark.parametrize("target", ["all", pytest.param("rank 1", marks=pytest.mark.slow)])
def test_sigterm_ends_all_ranks_at_one_point_with_a_checkpoint(target):
    with started(*SLOW) as process:
        wait_for(lambda: lines(Path("runs/run/metrics.jsonl")) >= 2 or process.poll() is not None, WAIT_S)
        os.kill(process.pid if target == "all" else pid_of_rank(process, 1), signal.SIGTERM)
        status = finished(process)
    done = int(re.search(r"(\d+) iterations? done", Path("out").read_text(encoding="utf-8")).group(1))
    assert 2 <= done < 500
    assert status, "torchrun says that it was ended, or that its ranks were"
    assert int(checkpoints()[-1]) == done == rows()[-1]["step"]
    assert run(*SLOW, f"runner.max_epochs={done + 1}") == 0
    assert [row["step"] for row in rows()] == list(range(1, done + 2))


UPDATES = (
    *USUAL, "actor.model._target_=slow_policies.Slow", "+actor.model.evaluate_s=0.08", "actor.micro_batch_size=1",
    "runner.stop_timeout_s=1", "runner.max_epochs=2", "runner.save_interval=-1",
)  # fmt: skip


@pytest.mark.parametrize("strategy", ["replicate", pytest.param("fsdp2", marks=pytest.mark.slow)])
@pytest.mark.parametrize("target", ["all", pytest.param("rank 1", marks=pytest.mark.slow)])
def test_sigterm_in_an_update_ends_all_ranks_between_two_passes(strategy, target):
    options = (*UPDATES, f"actor.fsdp_config.strategy={strategy}")
    with started(*options) as process:
        wait_for(lambda: lines(Path("runs/run/metrics.jsonl")) == 1 or process.poll() is not None, WAIT_S)
        wait_for(
            lambda: "iteration 2/2 rollout" in Path("out").read_text(encoding="utf-8") or process.poll() is not None,
            WAIT_S,
        )
        os.kill(process.pid if target == "all" else pid_of_rank(process, 1), signal.SIGTERM)
        status = finished(process)
    assert status, "torchrun says that it was ended, or that its ranks were"
    assert "stopped: 1 iteration done" in Path("out").read_text(encoding="utf-8")
    assert checkpoints() == ["000001"]
    assert "rank 1: SIGTERM: stopping within 1 s" in Path("error").read_text(encoding="utf-8")
    Path("hurry").touch()
    with started(*options, forks=True) as process:
        assert finished(process) == 0
    with started(*options, name="whole", forks=True) as process:
        assert finished(process) == 0
    assert lasting(rows()) == lasting(rows("whole"))
    assert all(torch.equal(weights(2, "run")[name], expected) for name, expected in weights(2, "whole").items())


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_rank_ends_all_and_their_workers(rank):
    with started(*SLOW) as process:
        wait_for(lambda: Path("runs/run/checkpoints/000001/meta.json").exists() or process.poll() is not None, WAIT_S)
        pid, everyone = pid_of_rank(process, rank), descendants(process.pid)
        assert len(everyone) >= 4, "two ranks and their workers"
        os.kill(pid, signal.SIGKILL)
        assert finished(process) != 0
        wait_for(lambda: not any(map(alive, everyone)), WAIT_S)
    error = Path("error").read_text(encoding="utf-8")
    root = error[error.index("Root Cause") :]
    assert f"exitcode  : -9 (pid: {pid})" in root
    assert f"rank      : {rank} " in root
    assert int(checkpoints()[-1]) >= 1


def test_the_error_of_a_rank_is_readable_and_first():
    with started(*USUAL, "env.train.fault=exception", "env.train.fault_task=1") as process:
        assert finished(process) != 0
    error = Path("error").read_text(encoding="utf-8")
    assert re.match(r"rank \d: error: worker 0 has failed \d+ times .*\nenv worker 0 \(pid", error)
    assert "the fake env was told to fail in step" in error
    assert "fix: " in error
    assert "Connection closed" not in error
    root = error[error.index("Root Cause") :]
    assert "traceback : worker 0 has failed" in root
    assert "fix: " in root


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (
            ["env.train.total_num_envs=3", "algorithm.group_size=3"],
            "env.train.total_num_envs is 3, and the 2 processes",
        ),
        (["algorithm.group_size=8"], "group_size 8, is 1, and the 2 processes"),
        (["env.num_workers=4"], "env.num_workers 4 is more than the 2 env slots of each process"),
        (["actor.fsdp_config.strategy=fsdp2", "actor.fsdp_config.fsdp_size=4"], "fsdp_size 4 does not divide the 2"),
        (
            ["actor.fsdp_config.strategy=replicate", "actor.fsdp_config.cpu_offload=true"],
            "strategy is replicate, and cpu_offload of it are for fsdp2",
        ),
        (["actor.fsdp_config.strategy=fsdp2", "actor.fsdp_config.fsdp_size=0"], "fsdp_size is 0"),
    ],
)
def test_what_cannot_be_shared_is_refused_once(monkeypatch, capsys, overrides, text):
    for name, value in {"WORLD_SIZE": 2, "LOCAL_RANK": 0, "RANK": 0, "MASTER_ADDR": "a", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    assert run(*USUAL, *overrides) == 2
    assert text in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert run(*USUAL, *overrides) == 2
    assert capsys.readouterr().err == ""


def test_what_two_processes_saved_in_parts_one_goes_on_with():
    """With refills of groups that teach nothing, and the average of the weights."""
    options = (
        "env.train.total_num_envs=8", "env.eval.total_num_envs=2", "env.train.success_distance=0.8",
        "algorithm.group_size=2", "algorithm.rollout_epoch=1", "algorithm.dynamic_sampling=true",
        "algorithm.max_sampling_rounds=4", "actor.optim.ema_decay=0.5",
        "actor.fsdp_config.strategy=fsdp2", "actor.micro_batch_size=4",
    )  # fmt: skip
    with started(*options, "runner.max_epochs=2", name="two", forks=True) as process:
        assert finished(process) == 0
    assert "each with its part of the policy (fsdp2, 1 units)" in Path("out").read_text(encoding="utf-8")
    parts = {path.name for path in Path("runs/two/checkpoints/000002").iterdir()}
    assert {"__0_0.distcp", "__1_0.distcp"} <= parts
    assert run(*options, "runner.max_epochs=3", name="two") == 0
    assert run(*options, "runner.max_epochs=3", name="one") == 0
    assert max(row.get("rollout/sampling_rounds", 1) for row in rows("one")) > 1
    for two, one in zip(lasting(rows("two")), lasting(rows("one")), strict=True):
        two.pop("time/rank_wait_share", None)
        # fsdp2 of several does not measure them
        for name in ("train/signal_to_noise", "train/noise_scale_episodes", "train/signal_to_noise_error"):
            two.pop(name, None)
            one.pop(name, None)
        assert two == pytest.approx(one, rel=1e-4, abs=1e-5)
    for name, expected in weights(3, "one").items():
        torch.testing.assert_close(weights(3, "two")[name], expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_an_evaluation_goes_on_although_rank_0_has_nothing_left():
    options = (*USUAL, "env.eval.episodes_per_task=4", "env.eval.step_s=0.02")
    assert run(*options, name="whole", entry="eval") == 0
    parts = [Path(f"runs/run/.unfinished/000000.rank-{rank:02d}.jsonl") for rank in range(2)]
    with started(*options, entry="eval") as process:
        wait_for(lambda: lines(parts[1]) > 1, WAIT_S)
        os.kill(pid_of_rank(process, 1), signal.SIGSTOP)
        wait_for(lambda: lines(parts[0]) == 5, WAIT_S)
    assert lines(parts[1]) < 5
    with started(*options, entry="eval") as process:
        assert finished(process) == 0
    assert "4 of 4 episodes were run before" in Path("out").read_text(encoding="utf-8")
    found, whole = (
        json.loads(Path("runs", name, "eval/000000.json").read_text(encoding="utf-8")) for name in ("run", "whole")
    )
    assert found["episodes"] == whole["episodes"]
