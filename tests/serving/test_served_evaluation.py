"""Evaluations of a policy behind a real server in a process of its own: the numbers are those of the same policy here,
also when the server dies meanwhile and comes again. With other weights it is found out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from serving_rig import ENV, export, listening, serving

from embodied import train
from embodied.runtime.policy.later import Later
from embodied.testing import FakePolicy

CONFIG = str(Path(__file__).parents[1] / "config")
EVALUATION = (
    "env=fake", "tracker=jsonl", "runner.device=cpu", "env.eval.video_cfg.save_video=false",
    "env.eval.max_episode_steps=8", "env.eval.success_distance=0.6", "env.train.success_distance=0.6",
    "env.eval.episodes_per_task=10", "env.num_workers=1", "--config-dir", CONFIG,
)  # fmt: skip


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@contextmanager
def server(folder: Path, port: int = 0, *options: str) -> Iterator[tuple[subprocess.Popen, int]]:
    """``embodied.tools.serve`` in a process, and its port."""
    words = [sys.executable, "-m", "embodied.tools.serve", str(folder), "--port", str(port), *options]
    root = str(Path(__file__).parents[2])
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
    with listening(words, environ) as found:
        yield found


def evaluate(name: str, *keys: str) -> int:
    return train.main([*keys, *EVALUATION, f"runner.experiment_name={name}"], "eval")


def results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("runs", name, "eval", "000000.json").read_text(encoding="utf-8"))
    return found


def test_an_evaluation_over_the_wire_is_that_of_the_policy_itself(tmp_path: Path, capsys: Any):
    assert evaluate("here", "model=fake", "actor.model.seed=3") == 0
    with server(export(tmp_path / "policy", 3)) as (_, port):
        url = f"ws://127.0.0.1:{port}"
        assert evaluate("there", "model=served", f"actor.model.url={url}") == 0
    here, there = results("here"), results("there")
    assert here["episodes"] == there["episodes"]
    assert here["tasks"] == there["tasks"]
    assert 0 < sum(episode["success"] for episode in here["episodes"]) < len(here["episodes"])
    assert there["conditions"]["weights"].startswith(f"server {url}, fingerprint ")
    assert f"evaluation of server {url}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "key"),
    [
        (("model=served",), "actor.model.url"),
        (("model=head_residual", "actor.model.hidden=8"), "actor.model.base.url"),  # one that has learnt nothing
    ],
    ids=["served", "head"],
)
def test_an_evaluation_of_another_server_does_not_replace_it(model: tuple[str, ...], key: str, capsys: Any):
    one, other = FakePolicy(seed=3), FakePolicy(seed=4)
    for policy in (one, other):
        policy.bind(ENV)
    with serving(one) as here, serving(other) as there:
        assert evaluate("same", *model, f"{key}=ws://{here.address}") == 0
        before = results("same")
        assert evaluate("same", *model, f"{key}=ws://{there.address}") == 2
    assert f"{key}: 'ws://{here.address}' there" in capsys.readouterr().err
    assert results("same") == before


def test_training_it_is_refused_with_the_way_out(capsys: Any):
    assert train.main(["model=served", "actor.model.url=ws://127.0.0.1:9", *EVALUATION]) == 2
    said = capsys.readouterr().err
    assert "nothing here to train" in said
    assert "embodied.eval" in said


def test_nobody_there_ends_with_the_fix(capsys: Any):
    keys = "model=served", "actor.model.url=ws://127.0.0.1:9", "actor.model.connect_s=0.2"
    assert evaluate("nobody", *keys) != 0
    assert "nobody answers at ws://127.0.0.1:9" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4], ids=["the same weights", "other weights"])
def test_a_server_that_is_killed_and_comes_again(tmp_path: Path, monkeypatch: Any, capsys: Any, seed: int):
    assert evaluate("here", "model=fake", "actor.model.seed=3") == 0
    take, opened, calls, over = Later._take, [], [0], threading.Event()
    with server(export(tmp_path / "policy", 3)) as (first, port):

        def come_again() -> None:
            with server(export(tmp_path / "policy", seed), port) as (second, _):
                opened.append(second)
                over.wait(120)

        restart = threading.Thread(target=come_again)

        def then_kill(self: Later, timeout_s: float) -> None:
            take(self, timeout_s)
            calls[0] += 1
            if calls[0] == 6:  # some episodes have ended, and questions are under way
                first.kill()
                first.wait()
                restart.start()

        monkeypatch.setattr(Later, "_take", then_kill)
        keys = "model=served", f"actor.model.url=ws://127.0.0.1:{port}", "actor.model.reconnect_s=100"
        try:
            status = evaluate("there", *keys)
        finally:
            over.set()
            with suppress(RuntimeError):
                restart.join(60)
    assert opened, "it was restarted"
    if seed == 3:
        assert status == 0
        assert results("here")["episodes"] == results("there")["episodes"]
    else:
        assert status != 0
        assert "serves another policy than before" in capsys.readouterr().err
        assert not Path("runs", "there", "eval", "000000.json").exists()
        assert not Path("runs", "there", ".unfinished", "000000.jsonl").exists()
