"""Runs that go on with another number of processes than they began with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import seeded_runs
import torch
from test_run import lasting, rows, run
from test_run_ranks import USUAL, finished, in_tmp_path, started, weights  # noqa: F401 (a fixture)

from embodied.run.folder import saves

OPTIONS = (
    *USUAL, "algorithm.group_size=2", "actor.fsdp_config.strategy=replicate", "runner.save_interval=1",
    "actor.optim.ema_decay=0.5",
)  # fmt: skip
SAID = "processes that train: {} so far, {} from here on"


def go_on(size: int, iterations: int, name: str = "run") -> str:
    """Goes on with ``size`` processes; returns what they print."""
    options = (*OPTIONS, f"runner.max_epochs={iterations}")
    with started(*options, name=name, forks=True, size=size) as process:
        assert finished(process) == 0
    return Path("out").read_text(encoding="utf-8")


def close(one: str, other: str, iterations: int) -> None:
    """Compares metrics and weights but for the order of sums."""
    for row, expected in zip(lasting(rows(one)), lasting(rows(other)), strict=True):
        for found in (row, expected):
            found.pop("time/rank_wait_share", None)
        assert row == pytest.approx(expected, rel=1e-4, abs=1e-5)
    same = weights(iterations, other)
    for name, value in weights(iterations, one).items():
        torch.testing.assert_close(value, same[name], rtol=0, atol=1e-5)


def bits(name: str) -> dict[str, bytes]:
    return {key: value.numpy().tobytes() for key, value in seeded_runs.tensors(Path("runs", name)).items()}


def test_another_number_of_processes_is_said_and_one_that_cannot_share_is_refused(monkeypatch, capsys):
    options = (*OPTIONS, "runner.max_epochs=1")
    assert run(*options) == 0
    resume = saves.loading.resume
    with monkeypatch.context() as patch:  # as if two had saved it
        patch.setattr(saves.loading, "resume", lambda *found: replace(resume(*found), ranks=2))
        assert run(*options) == 0
    said = capsys.readouterr().out
    assert "going on after iteration 1, from " in said
    assert SAID.format(2, 1) in said
    before = checkpoint()
    for name, value in {"WORLD_SIZE": 3, "LOCAL_RANK": 0, "RANK": 0, "MASTER_ADDR": "a", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    assert run(*options) == 2
    assert "is 4, and the 3 processes of the run cannot share it equally" in capsys.readouterr().err
    assert checkpoint() == before, "what is refused changes nothing"


def checkpoint() -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in Path("runs/run/checkpoints").rglob("*") if file.is_file()}


@pytest.mark.slow
def test_two_then_one_then_four_make_the_run_of_two_but_for_the_order_of_sums():
    go_on(2, 4, name="whole")
    go_on(2, 1)
    assert SAID.format(2, 1) in go_on(1, 2)
    assert SAID.format(1, 4) in go_on(4, 4)
    close("run", "whole", 4)


@pytest.mark.slow
def test_two_that_go_on_as_two_make_the_same_bits():
    go_on(2, 3, name="whole")
    go_on(2, 1)
    assert "processes that train" not in go_on(2, 3)
    assert lasting(rows()) == lasting(rows("whole"))
    assert bits("run") == bits("whole")
