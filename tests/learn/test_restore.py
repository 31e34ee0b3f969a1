"""A policy from a checkpoint folder alone: no simulator, no configuration, at another place."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_run import HIDDEN, RUN

from embodied import train
from embodied.errors import CheckpointError
from embodied.learn.origin import restore
from embodied.testing import FakeEnv, FakePolicy
from embodied.types import Sampling

ANSWERS = """
import sys
for name in {hidden}: sys.modules[name] = None
import json, torch
from pathlib import Path
from embodied.learn.origin import restore
from embodied.types import Sampling
torch.set_num_threads(1)  # as the run has: the number of threads decides the last bits
policy, env = restore(Path(sys.argv[1]))
obs = {{n: torch.zeros(1, *f.shape, dtype=getattr(torch, f.dtype)) for n, f in env.obs.items()}}
answers = []
for text in (env.tasks[0], "open the second drawer, slowly"):
    told = policy.encode_instructions([text])
    noise = torch.full((1, *policy.spec.noise.shape), 0.5)
    answers.append(policy.act({{**obs, **told}}, noise, Sampling()).fields)
print(json.dumps([a["actions"].tolist() for a in answers]))
print(json.dumps([a["logprobs"].tolist() for a in answers]))
"""


def answers(checkpoint: Path) -> tuple[list, list]:
    """Actions and log-probs of a task's instruction and of a new sentence, in a process without simulators."""
    command = [sys.executable, "-c", ANSWERS.format(hidden=HIDDEN), str(checkpoint)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=checkpoint, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    actions, logprobs = map(json.loads, done.stdout.splitlines())
    return actions, logprobs


def trained(*overrides: str) -> Path:
    assert train.main([*RUN, *overrides]) == 0
    (path,) = Path("runs/run/checkpoints").iterdir()
    return path


@pytest.mark.parametrize(
    "more",
    [
        pytest.param((), id="fake policy"),
        pytest.param(("actor.optim.ema_decay=0.5", "actor.optim.lr=0.01"), id="average", marks=pytest.mark.slow),
        pytest.param(("model=openvla_oft_tiny",), id="OpenVLA-OFT", marks=pytest.mark.slow),
    ],
)
def test_a_folder_that_was_moved_answers_without_a_simulator(tmp_path, monkeypatch, more):
    monkeypatch.chdir(tmp_path)
    moved = Path(shutil.move(trained(*more), tmp_path / "elsewhere"))
    policy, env = restore(moved)
    assert env == FakeEnv(success_distance=0.3).spec
    obs = {n: torch.zeros(1, *f.shape, dtype=getattr(torch, f.dtype)) for n, f in env.obs.items()}
    noise = torch.full((1, *policy.spec.noise.shape), 0.5)
    expected = policy.act({**obs, **policy.encode_instructions([env.tasks[0]])}, noise, Sampling()).fields
    actions, logprobs = answers(moved)
    assert actions[0] == expected["actions"].tolist()
    assert logprobs[0] == expected["logprobs"].tolist()
    if "model=openvla_oft_tiny" not in more:  # whose random weights hardly read
        assert logprobs[1] != logprobs[0], "the new sentence is another question"


def test_the_weights_are_those_that_were_saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = trained("actor.optim.lr=0.01")
    policy, fresh = restore(path).policy, FakePolicy()
    assert any(not torch.equal(a, b) for a, b in zip(policy.parameters(), fresh.parameters(), strict=True))


def test_restoring_leaves_the_generators_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = trained()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    restore(path)
    assert torch.equal(torch.rand(3), expected)


def test_what_is_no_checkpoint_is_said(tmp_path):
    with pytest.raises(CheckpointError, match=r"no meta.json"):
        restore(tmp_path)
