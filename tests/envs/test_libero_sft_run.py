"""Demonstrations and supervised training on real LIBERO with two cameras and the small policy, as a user does it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from embodied import sft
from embodied.data import reading
from embodied.data.demonstrations import FieldSelection
from embodied.tools import demos

pytestmark = [pytest.mark.sim, pytest.mark.slow]

CAMERAS = ["agentview", "robot0_eye_in_hand"]
SIZE = (
    f"init_params.camera_names=[{','.join(CAMERAS)}]", "init_params.camera_heights=64", "init_params.camera_widths=64",
    "task_ids=[1]",
)  # fmt: skip
ENV = ["env=libero_object", "env.num_workers=1", *(f"env.{side}.{key}" for side in ("train", "eval") for key in SIZE)]


def test_demonstrations_of_libero_are_learnt_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert demos.main([*ENV, "episodes=2", "noise_std=0.1", "demos.path=cheese"]) == 0
    found = reading.read(Path("cheese"), FieldSelection(CAMERAS)).episodes
    assert len(found) == 2
    assert all(60 <= len(episode) <= 280 for episode in found)
    first, last = found[0].pictures(0), found[0].pictures(len(found[0]) - 1)
    assert first.shape == (2, 64, 64, 3)
    assert first.std() > 10
    assert all(np.abs(first[i].astype(int) - last[i]).max() > 50 for i in range(2)), "the arm moved"
    assert {-1.0, 1.0} == {float(value) for value in found[0].actions[:, 6]}
    learn = [
        "data=cheese", "data.test_size=1", "model=openvla_oft_tiny", "actor.model.is_lora=false",
        "actor.model.lora_modules_to_save=null", "actor.model.num_images_in_input=2", "actor.model.num_action_chunks=4",
        "actor.model.proprio_dim=8", "actor.optim.lr=1e-3", "actor.global_batch_size=8", "actor.micro_batch_size=8",
        "sft.steps_per_iteration=4", "sft.val_samples=8", "runner.max_epochs=2", "runner.val_check_interval=-1",
        "runner.experiment_name=cloned", "tracker=jsonl",
    ]  # fmt: skip
    assert sft.main([*ENV, *learn]) == 0
    rows = [json.loads(line) for line in Path("runs/cloned/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows[1]["sft/clean_loss"] < rows[0]["sft/clean_loss"] < 5.6, "ln 256 = 5.5 is what knows nothing"
