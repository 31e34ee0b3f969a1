"""Demonstrations and supervised training on real ManiSkill with pixels and the small policy, as a user starts them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from embodied.envs.maniskill.rendering import check_vulkan

from embodied import sft
from embodied.data import reading
from embodied.data.demonstrations import FieldSelection
from embodied.errors import RendererUnavailableError
from embodied.tools import demos

pytestmark = [pytest.mark.sim, pytest.mark.slow]

SIZE = "init_params.camera_heights=64", "init_params.camera_widths=64", "init_params.control_mode=pd_ee_delta_pos"
ENV = [
    "env=maniskill_pushcube", "env.num_workers=1", *(f"env.{side}.{key}" for side in ("train", "eval") for key in SIZE),
]  # fmt: skip


def test_demonstrations_of_a_simulator_are_learnt_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        check_vulkan()
    except RendererUnavailableError as error:
        pytest.skip(str(error))
    monkeypatch.chdir(tmp_path)
    assert demos.main([*ENV, "episodes=4", "noise_std=0.2", "demos.path=push"]) == 0
    found = reading.read(Path("push"), FieldSelection(["base_camera"])).episodes
    assert len(found) == 4
    assert all(8 <= len(episode) <= 50 for episode in found)
    first, last = found[0].pictures(0), found[0].pictures(len(found[0]) - 1)
    assert first.shape == (1, 64, 64, 3)
    assert first.std() > 10
    assert np.abs(first.astype(int) - last).max() > 50, "the arm moved"
    state = found[0].fields["state"].shape[1]
    learn = [
        "data=push", "data.test_size=1", "model=openvla_oft_tiny", "actor.model.is_lora=false",
        "actor.model.lora_modules_to_save=null", "actor.model.action_dim=4", "actor.model.num_action_chunks=4",
        f"actor.model.proprio_dim={state}", "actor.optim.lr=1e-3", "actor.global_batch_size=16",
        "actor.micro_batch_size=16", "sft.steps_per_iteration=10", "sft.val_samples=16", "runner.max_epochs=2",
        "runner.val_check_interval=2", "env.eval.episodes_per_task=2", "env.eval.max_episode_steps=8",
        "env.eval.total_num_envs=1", "runner.experiment_name=cloned", "tracker=jsonl",
    ]  # fmt: skip
    assert sft.main([*ENV, *learn]) == 0
    rows = [json.loads(line) for line in Path("runs/cloned/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows[1]["sft/clean_loss"] < rows[0]["sft/clean_loss"] < 5.6, "ln 256 = 5.5 is what knows nothing"
    assert rows[1]["eval/episodes"] == 2
    assert sft.main([*ENV, *learn, "env.train.init_params.control_mode=pd_ee_delta_pose", "runner.max_epochs=3"]) == 2
