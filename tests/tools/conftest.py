"""Evaluations that are compared."""

from __future__ import annotations

import contextlib
import copy
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from comparisons import Found, read

from embodied import train

CONFIG = Path(__file__).parents[1] / "config"
FAKE = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "env.eval.video_cfg.save_video=false",
    "env.eval.success_distance=0.9", "env.eval.episodes_per_task=8", "env.num_workers=1", "--config-dir", str(CONFIG),
)  # fmt: skip
SAMPLED = "algorithm.val_sampling_params.do_sample=true"


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two evaluations, one greedy and one of sampled actions."""
    folder = tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.chdir(folder)
        for name, options in (("greedy", ()), ("sampled", (SAMPLED,))):
            assert train.main([*FAKE, f"runner.experiment_name={name}", *options], "eval") == 0
    return folder


@pytest.fixture
def at(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    return made


@pytest.fixture
def write(at: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes a copy of the greedy evaluation, with ``count`` starts of two tasks, successful where ``rule`` says so."""
    found = read("greedy")
    monkeypatch.chdir(tmp_path)

    def make(
        name: str, rule: Callable[[int, int], bool | None] = lambda task, k: True, count: int = 40,
        change: Callable[[Found], object] = lambda found: None, times: int = 1, seed: int = 0,
    ) -> str:  # fmt: skip
        own = copy.deepcopy(found)
        own["conditions"] |= {"episodes_per_task": count, "group_size": times}
        own["episodes"] = [
            {"start": {"task_id": task, "init_state_id": k % 4, "seed": seed + k}, "success": rule(task, k),
             "return": 0.0, "steps": 1, "video": None}
            for task in range(2) for k in range(count) for _ in range(times)
        ]  # fmt: skip
        change(own)
        file = Path("runs", name, "eval", "000000.json")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(own), encoding="utf-8")
        return f"runs/{name}"

    return make
