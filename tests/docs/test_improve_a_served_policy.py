"""``docs/how_to/improve_a_served_policy.md`` in a small form: a served policy, a head, an evaluation, a proxy."""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from serving_rig import ENV, export
from test_how_to import commands, environment, run, write_files

from embodied.client import Client
from embodied.schema.compose.compose import compose

PAGE = "improve_a_served_policy.md"
SMALL = (
    " runner.max_epochs=1 env.train.total_num_envs=2 env.eval.total_num_envs=2 env.train.max_episode_steps=8 "
    "env.eval.max_episode_steps=8 env.eval.episodes_per_task=2 algorithm.rollout_epoch=1 actor.model.hidden=16 "
    "algorithm.sac.learning_starts=4 actor.global_batch_size=8 actor.micro_batch_size=8 runner.save_interval=1 "
    "runner.val_check_interval=-1 env.eval.video_cfg.save_video=false tracker=jsonl"
)


def free() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def serving(command: str, folder: Path) -> Iterator[None]:
    words = shlex.split(command)
    process = subprocess.Popen(
        [sys.executable, *words[1:]], cwd=folder, env=environment(), text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
     encoding="utf-8")  # fmt: skip
    assert process.stdout is not None
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if line.startswith("ready: "):
                break
        else:
            raise AssertionError(said)
        yield
    finally:
        process.kill()
        process.communicate()


def test_the_page_s_training_composes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert write_files(PAGE, tmp_path) == ["my/env/reach.yaml"]
    monkeypatch.chdir(tmp_path)
    train = commands(PAGE)[1]
    config = compose(train.split("--config-dir my ")[1].split(), "train", ["my"]).config
    assert config.algorithm.learner == "sac"
    assert (config.actor.model.model_extra or {})["base"]["url"] == "ws://127.0.0.1:8765"


@pytest.mark.slow
def test_a_served_policy_is_improved_and_served_again(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    export(tmp_path / "policy", 3)
    ports = {"8765": str(free()), "8766": str(free())}

    def here(command: str) -> str:
        for written, port in ports.items():
            command = command.replace(written, port)
        return command

    serve, train, judge, proxy, export_it, judge_it, serve_it = map(here, commands(PAGE))
    with serving(serve, tmp_path):
        run(train.replace(" runner.max_epochs=20", SMALL), tmp_path)
        assert "evaluation of" in run(judge, tmp_path)
        run(export_it, tmp_path)
        assert "evaluation of" in run(judge_it, tmp_path)
        for command in (proxy, serve_it):
            asked(command, tmp_path, ports["8766"])


def asked(command: str, folder: Path, port: str) -> None:
    """Serves a head, and asks it."""
    with serving(command, folder), Client(f"ws://127.0.0.1:{port}") as client:
        obs = {name: np.zeros(field.shape, field.dtype) for name, field in ENV.obs.items()}
        assert client.infer({**obs, "prompt": "go"}).shape == (4, 7)
