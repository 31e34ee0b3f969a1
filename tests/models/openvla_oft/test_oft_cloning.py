"""OpenVLA-OFT learns from demonstrations: ranges, gripper, and what a checkpoint keeps of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from embodied.data.demonstrations import Demonstration
from embodied.data.statistics import statistics_of
from embodied.learn.checkpoint import loading, statistics
from embodied.learn.checkpoint.checkpoint import Checkpoints
from embodied.learn.cloning import Cloner
from embodied.protocols import Clonable
from embodied.schema import bind
from embodied.testing import check_policy
from embodied.types import EnvSpec

CONFIG = {
    "runner": {"logger": {"log_path": "x"}},
    "env": {
        side: {"_target_": "x", "video_cfg": {"video_base_dir": "x"}} for side in ("train", "eval")
    },
    "actor": {
        "model": {"_target_": "x"}, "global_batch_size": 8, "micro_batch_size": 8, "optim": {"lr": 3e-3},
    },
    "sft": {"steps_per_iteration": 8, "val_samples": 16},
}  # fmt: skip


def episodes(count: int = 3, length: int = 10) -> list[Demonstration]:
    """The action says where the bright square is."""
    random = np.random.default_rng(0)
    made = []
    for _ in range(count):
        pictures = np.zeros((length, 1, 64, 64, 3), np.uint8)
        actions = random.uniform(-0.3, 0.3, (length, 7)).astype(np.float32).round(1)
        actions[:, 6] = np.where(np.arange(length) < length // 2, -1, 1)
        pictures[:, :, :32] = np.where(actions[:, 6] > 0, 255, 60)[:, None, None, None, None]
        state = {"state": np.repeat(actions[:, 6:], 8, axis=1)}
        made.append(Demonstration("lift the cube", actions, state, lambda t, p=pictures: np.repeat(p[t], 2, axis=0)))
    return made


def test_the_policy_keeps_the_contract(make, env: EnvSpec) -> None:
    policy = make(use_proprio=True, num_action_chunks=2)
    assert isinstance(policy, Clonable)
    check_policy(policy, env)
    policy.use_statistics("demonstrations", statistics_of(episodes()))
    assert statistics.known(policy)["name"] == "demonstrations"
    policy.bind(env)
    assert statistics.known(policy)["action"]["q99"][0] < 0.31, "the env's range does not come back"


def test_a_gripper_that_is_converted_keeps_its_two_ends(make) -> None:
    policy = make(policy_setup="libero", num_action_chunks=1)
    policy.use_statistics("demonstrations", statistics_of(episodes()))
    actions = torch.tensor([[[0.1] * 6 + [gripper]] for gripper in (-1.0, 1.0)])
    again = policy.decode_actions(policy.encode_actions(actions)["action_tokens"])
    assert again[..., 6].tolist() == [[-1.0], [1.0]]
    assert (again - actions)[..., :6].abs().max() < 0.6 / 255 + 1e-6
    other = make(policy_setup="libero", num_action_chunks=1)
    other.load_extra_state(policy.extra_state())
    assert statistics.known(other) == statistics.known(policy)


def test_it_learns_and_a_checkpoint_brings_the_ranges_back(make, env: EnvSpec, tmp_path: Path) -> None:
    keys = {"use_proprio": True, "num_action_chunks": 2, "num_images_in_input": 2, "seed": 3}
    policy = make(**keys)
    cloner = Cloner(policy, env, bind(CONFIG), episodes(), episodes(1), torch.device("cpu"))
    before = cloner.validate()
    rows = []
    for i in range(2):
        cloner.iterate(i)
        rows.append(cloner.close_iteration(i))
    after = cloner.validate()
    assert rows[1]["sft/loss"] < rows[0]["sft/loss"]
    assert after["sft/clean_loss"] < 0.9 * before["sft/clean_loss"]
    assert cloner.weight_version == 16
    saved = Checkpoints(tmp_path, 1).save(cloner, 2)
    fresh = make(**{**keys, "seed": 4})
    loading.load(saved, fresh)
    assert json.loads(fresh.extra_state()["statistics"]) == statistics.known(policy)
    records = {"images": torch.zeros(1, 2, 64, 64, 3, dtype=torch.uint8), "state": torch.zeros(1, 8)}
    records |= {"prompt": torch.zeros(1, dtype=torch.int32), "actions": torch.full((1, 2, 7), 0.1)}
    fresh.bind(env)
    policy.bind(env)
    assert torch.equal(*(p.encode_actions(records["actions"])["action_tokens"] for p in (fresh, policy)))


def test_only_tokens_that_count_are_learnt(make, env: EnvSpec) -> None:
    """An episode of one step: the loss is that of its first action, whatever follows in the chunk."""
    policy = make(num_action_chunks=4)
    one = Cloner(policy, env, bind(CONFIG), episodes(1, 2), [], torch.device("cpu"))

    def measured(*chosen: int) -> tuple[torch.Tensor, torch.Tensor]:
        return one._measured(one.samples, np.array(chosen), one.samples.batch(np.array(chosen)))

    losses, right = measured(1, 1)
    assert losses.shape == right.shape == (14,)
    assert one.validate()["sft/clean_loss"] == pytest.approx(measured(0, 1)[0].double().mean().item(), rel=1e-5)
