"""vla-eval's own command against the policy server: a benchmark of the test's own, in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from environments import python_with
from serving_rig import ENV, serving

from embodied.testing import FakePolicy
from embodied.types import Sampling

PACKAGES = ("vla-eval==0.8.0",)
TOKEN = "0123456789abcdef0123"
SEEN = replace(ENV, cameras=("front", "robot0_eye_in_hand"))  # the benchmark calls them agentview and wrist


@pytest.fixture(scope="module")
def python(pytestconfig: pytest.Config) -> Path:
    """The interpreter of that environment; it is made once and kept with pytest's cache."""
    assert pytestconfig.cache is not None
    return Path(python_with(PACKAGES, pytestconfig.cache.mkdir("vla-eval") / "venv"))


def run(python: Path, folder: Path, url: str, **params: object) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Runs ``vla-eval run`` in a process; returns it, and the file with the actions that its benchmark got."""
    file = folder / "actions.jsonl"
    benchmark = {
        "benchmark": "vla_eval_benchmark:Line", "episodes_per_task": 2, "params": {"file": str(file), **params}
    }  # fmt: skip
    config = folder / "config.yaml"
    config.write_text(
        json.dumps({"server": {"url": url}, "output_dir": str(folder / "results"), "benchmarks": [benchmark]}),
        encoding="utf-8",
    )
    environ = {"no_proxy": "*", "PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parent)}
    command = [python.parent / "vla-eval", "run", "--config", config]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environ, encoding="utf-8")
    return done, file


@pytest.mark.slow
def test_its_command_measures_a_policy_in_a_benchmark(python: Path, tmp_path: Path):
    policy = FakePolicy()
    policy.bind(SEEN)
    with serving(policy, SEEN, token=TOKEN) as served:
        done, file = run(python, tmp_path, f"ws://embodied:{TOKEN}@{served.address}/vla-eval")
        assert done.returncode == 0, done.stderr
        assert served.metric("requests_total", {"protocol": "vla_eval"}) == 2 * 2 * 6
        assert served.metric("batch_size_sum") == 2 * 2 * 2 + sum((1, 2, 4, 8)), (
            "two chunks an episode, and the warm-up"
        )
    episodes = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [(one["task"], one["episode"]) for one in episodes] == [(task, n) for task in ENV.tasks[:2] for n in (0, 1)]
    for one in episodes:
        assert np.array_equal(np.float32(one["actions"]), in_process(policy, one["task"], one["episode"]))
    assert "100.0%" in done.stdout


@pytest.mark.slow
def test_it_is_told_what_an_observation_lacks(python: Path, tmp_path: Path):
    policy = FakePolicy()
    policy.bind(SEEN)
    with serving(policy, SEEN) as served:
        done, _ = run(python, tmp_path, f"ws://{served.address}/vla-eval", sends=1)
    assert "no picture of the camera 'robot0_eye_in_hand'" in done.stderr
    assert "--map KEY=images/robot0_eye_in_hand" in done.stderr


def in_process(policy: FakePolicy, task: str, episode: int) -> np.ndarray:
    """The actions of an episode without a server, [6, 7]."""
    at, got = np.zeros(8), list[np.ndarray]()
    told = policy.encode_instructions([task])
    for step in range(6):
        if step % 4 == 0:
            seen = np.random.default_rng((episode, step)).integers(0, 256, (2, 16, 16, 3), np.uint8)
            obs = {"images": torch.from_numpy(seen)[None], "state": torch.from_numpy(at.astype(np.float32))[None]}
            noise = torch.zeros(1, *policy.spec.noise.shape)
            chunk = policy.act({**obs, **told}, noise, Sampling(do_sample=False)).fields["actions"][0].numpy()
        got.append(chunk[step % 4])
        at[:7] += got[-1]
    return np.stack(got)
