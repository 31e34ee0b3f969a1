"""The main job at its smallest: real LIBERO, pixels, the small OpenVLA-OFT policy, GRPO, as a user starts it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import imageio.v3 as iio
import pytest
import torch
import torch.distributed.checkpoint as dcp
import warm

SMALL = (
    "env=libero_object", "tracker=jsonl", "runner.save_interval=1", "runner.val_check_interval=-1",
    "algorithm.group_size=2", "algorithm.rollout_epoch=2", "env.train.max_episode_steps=20", "env.train.task_ids=[0]",
    "env.eval.max_episode_steps=10", "env.eval.task_ids=[0]", "env.eval.episodes_per_task=1",
)  # fmt: skip
TIMED = re.compile(r"time/|memory/|.*_per_s$|rollout/batch_size_mean$")

pytestmark = pytest.mark.sim


def start(folder: Path, *overrides: str, entry: str = "train") -> str:
    """Run the command in ``folder``; what it printed."""
    done = warm.python(["-m", f"embodied.{entry}", *SMALL, *overrides], folder, timeout_s=560.0)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def metrics(folder: Path, name: str) -> list[dict[str, float]]:
    lines = (folder / "runs" / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if not TIMED.match(k)} for line in lines]


def weights(folder: Path, name: str, iteration: int) -> dict[str, torch.Tensor]:
    """The policy's trained parameters in a checkpoint."""
    path = folder / "runs" / name / "checkpoints" / f"{iteration:06d}"
    shapes = json.loads((path / "meta.json").read_text(encoding="utf-8"))["parameters"]
    state = {f"policy/{key}": torch.empty(shape) for key, shape in shapes.items()}
    dcp.load(state, checkpoint_id=path, no_dist=True)
    return state


def test_train_then_resume_then_evaluate(tmp_path: Path) -> None:
    name = "small"
    said = start(tmp_path, f"runner.experiment_name={name}", "runner.max_epochs=1")
    assert "renderer: " in said
    assert "The policy begins with random weights" in said
    first = metrics(tmp_path, name)[0]
    assert (first["rollout/episodes"], first["rollout/env_steps"], first["rollout/records"]) == (4, 80, 12)
    assert first["rollout/zero_advantage_share"] == 0
    assert first["train/optimizer_steps"] == 1
    assert first["train/grad_norm"] > 0
    assert first["train/logprob_gap"] < 1e-4

    said = start(tmp_path, f"runner.experiment_name={name}", "runner.max_epochs=2")
    assert "going on after iteration 1" in said
    assert [row["step"] for row in metrics(tmp_path, name)] == [1, 2]
    before, after = weights(tmp_path, name, 1), weights(tmp_path, name, 2)
    assert any("lora" in key for key in before)
    assert all(not torch.equal(before[key], after[key]) for key in before if "lora_B" in key or "lm_head" in key)

    checkpoint = f"runner.ckpt_path=runs/{name}/checkpoints/000002"
    held_to = ("protocol=held_out", "env.eval.episodes_per_task=1")
    said = start(tmp_path, "runner.experiment_name=judged", checkpoint, *held_to, entry="eval")
    report = json.loads((tmp_path / "runs" / "judged" / "eval" / "000000.json").read_text(encoding="utf-8"))
    assert [(row["task_id"], row["episodes"]) for row in report["tasks"]] == [(0, 1), (-1, 1)]
    assert report["tasks"][0]["instruction"] in said
    under = report["conditions"]
    assert (under["max_steps"], under["env_max_steps"], under["init_states_per_task"]) == (10, 280, [50])
    assert re.search("steps of an episode +cut at 10 of 280 control steps, so success is not the benchmark's", said)
    assert "each episode cut at 10 of 280 control steps\n" in said
    held_to = report["protocol"]
    assert held_to["changed"] == {"env.eval.max_episode_steps": 10, "env.eval.episodes_per_task": 1}
    assert (held_to["held_out_in_training"], report["episodes"][0]["start"]["init_state_id"]) == (False, 40)
    assert "these weights were trained on the initial states that are held out here" in said
    simulator = held_to["keys"]["simulator"]
    assert simulator["renderer"] in ("egl", "osmesa")
    assert {"driver", "mujoco", "robosuite", "bddl"} < set(simulator)
    assert report["failures"][0]["progress"] > 0
    video = iio.imread(tmp_path / report["episodes"][0]["video"])
    assert video.shape[0] == 11  # the start and ten control steps
    assert video.std() > 10


@pytest.mark.slow
def test_one_worker_and_two_give_the_same_run_bit_by_bit(tmp_path: Path) -> None:
    for workers in (1, 2):
        start(tmp_path, f"runner.experiment_name=w{workers}", "runner.max_epochs=2", f"env.num_workers={workers}")
    assert metrics(tmp_path, "w1") == metrics(tmp_path, "w2")
    one, two = weights(tmp_path, "w1", 2), weights(tmp_path, "w2", 2)
    assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.slow
def test_the_checkpoint_of_the_quickstart_is_evaluated_by_the_rules_of_others_with_one_word(tmp_path: Path) -> None:
    def embodied(*words: str) -> str:
        done = warm.python(["-m", "embodied", *words], tmp_path, timeout_s=560.0)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    small = ("runner.max_epochs=1", "algorithm.rollout_epoch=4", "env.train.max_episode_steps=8")
    once = ("runner.val_check_interval=-1", "runner.val_before_train=false", "actor.global_batch_size=16")
    embodied("train", "experiment=quickstart_libero", *small, *once, "actor.micro_batch_size=16")
    short = ("env.eval.episodes_per_task=1", "env.eval.max_episode_steps=8", "env.eval.video_cfg.save_video=false")
    said = embodied("eval", "runs/quickstart-libero", "protocol=openvla_oft", *short)
    assert re.search(r"actor\.model\.image_preset +as it was built +oft_libero +protocol openvla_oft has it", said)
    file = tmp_path / "runs/quickstart-libero-000001-eval-openvla_oft/eval/000000.json"
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["protocol"]["name"] == "openvla_oft"
    assert found["protocol"]["changed"]["actor.model.image_preset"] == "rlinf"
    assert found["protocol"]["changed"]["actor.model.center_crop"] is False
    assert found["env"]["task_ids"] == [0, 2, 7]
    assert found["env"]["init_params"]["camera_names"] == ["agentview", "robot0_eye_in_hand"]
    assert found["env"]["init_params"]["camera_heights"] == 256
    assert found["seen_in_training"]["text"] == "all 3 starts", "the first states, from which its demonstrations began"
    said = embodied("eval", "runs/quickstart-libero", "env=libero_object", "runner.dry_run=true")
    assert "7 of them were not trained" in said


@pytest.mark.slow
def test_simulators_of_hosts_make_the_run_of_the_processs_own(tmp_path: Path) -> None:
    """Pixels of LIBERO travel over TCP from two hosts; every metric and weight keeps its bits."""
    short = (
        "env.train.total_num_envs=2", "env.eval.total_num_envs=2", "env.train.max_episode_steps=10",
        "runner.max_epochs=1", "env.train.video_cfg.save_video=false",
    )  # fmt: skip
    start(tmp_path, *short, "runner.experiment_name=own")
    start(tmp_path, *short, "runner.experiment_name=hosts", "cluster.simulator_hosts=2")
    logs = {path.parent.name for path in (tmp_path / "runs" / "hosts" / "logs").rglob("worker-*.log")}
    assert logs == {"host-00", "host-01"}
    found, expected = (metrics(tmp_path, name) for name in ("hosts", "own"))
    assert found == expected
    assert found[0]["train/grad_norm"] > 0
    weights_found, weights_expected = (weights(tmp_path, name, 1) for name in ("hosts", "own"))
    assert [name for name, value in weights_expected.items() if not torch.equal(weights_found[name], value)] == []
