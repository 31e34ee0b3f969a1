"""Soft actor-critic by the command line: the same bits again, after a stop, beside rollouts, in two processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from embodied import schema
from embodied.errors import ConfigError
from embodied.schema.compose.compose import compose

SIZES = (
    "env@env.train=gym", "env@env.eval=gym", "env.train.id=Pendulum-v1", "algorithm=sac", "experiment=null",
    'env.train.success="reward>=-0.05"', "env.train.images=[]", "env.train.reward_mode=dense",
    "env.eval.reward_mode=dense", "env.train.total_num_envs=2", "env.eval.total_num_envs=2",
    "env.train.max_episode_steps=20", "env.eval.max_episode_steps=20", "env.eval.episodes_per_task=2",
    "env.eval.video_cfg.save_video=false", "actor.model.hidden=16", "actor.model.num_action_chunks=2",
    "algorithm.sac.learning_starts=20", "actor.global_batch_size=16", "actor.micro_batch_size=16",
    "runner.save_interval=1", "runner.val_check_interval=5", "runner.experiment_name=run",
    "runner.checkpoint.max_keep=-1",
)  # fmt: skip


def run(folder, *keys, ranks=1):
    done = subprocess.run(
        command_of(folder, *keys, ranks=ranks), capture_output=True, text=True, timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
     encoding="utf-8")  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout, logged(folder)


def command_of(folder, *keys, ranks=1):
    command = [sys.executable, "-m", "embodied.train"]
    if ranks > 1:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
                   "-m", "embodied.train"]  # fmt: skip
    return [*command, *SIZES, f"runner.output_dir={folder}", *keys]


def logged(folder):
    path = folder / "run" / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def replayed(folder, iteration):
    """What the checkpoint knows of the records that are remembered, with the checksum of all of them."""
    meta = folder / "run" / "checkpoints" / f"{iteration:06d}" / "meta.json"
    return json.loads(meta.read_text(encoding="utf-8"))["trainer"]["replay"]


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 1])
def test_a_run_that_goes_on_is_the_run_that_was_not_stopped(tmp_path, staleness):
    keys = (f"algorithm.max_staleness={staleness}",)
    _, whole = run(tmp_path / "whole", *keys, "runner.max_epochs=5")
    run(tmp_path / "parts", *keys, "runner.max_epochs=3")
    _, parts = run(tmp_path / "parts", *keys, "runner.max_epochs=5")
    assert whole[-1]["train/optimizer_steps"] == 20
    for name in ("train/critic_loss", "train/actor_loss", "train/temperature", "rollout/return_mean", "train/q_mean"):
        assert [line.get(name) for line in whole] == [line.get(name) for line in parts], name
    assert whole[-1]["eval/return_mean"] == parts[-1]["eval/return_mean"]


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path):
    keys = ("runner.max_epochs=10", "runner.save_interval=3", "runner.checkpoint.max_keep=2",
            "algorithm.replay.capacity=100")  # fmt: skip
    _, whole = run(tmp_path / "whole", *keys)
    child = subprocess.Popen(
        command_of(tmp_path / "killed", *keys), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    while len(logged(tmp_path / "killed")) < 5 and child.poll() is None:
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    assert child.wait(60) == -signal.SIGKILL
    assert not (tmp_path / "killed" / "run" / "checkpoints" / "000010").exists()
    said, killed = run(tmp_path / "killed", *keys)
    assert "going on after iteration" in said
    for name in ("train/critic_loss", "train/actor_loss", "train/temperature", "rollout/return_mean", "train/q_mean"):
        assert [line.get(name) for line in whole] == [line.get(name) for line in killed], name
    assert replayed(tmp_path / "whole", 10) == replayed(tmp_path / "killed", 10)
    assert replayed(tmp_path / "whole", 10)[0]["total"] == 10 * 2 * 11


@pytest.mark.slow
def test_two_processes_learn_together(tmp_path):
    said, found = run(tmp_path, "runner.max_epochs=3", ranks=2)
    assert "replicate" in said
    assert found[-1]["train/optimizer_steps"] == 20
    assert found[-1]["train/records"] == 20 * 16
    assert found[-1]["train/replay_entries"] == 3 * 2 * 11
    said, found = run(tmp_path, "runner.max_epochs=4", ranks=2)  # ranks compare their weights when they go on
    assert found[-1]["train/replay_entries"] == 4 * 2 * 11


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (("algorithm.filter_rewards=true",), r"algorithm\.filter_rewards is for learners"),
        (("algorithm.kl_beta=0.1",), r"algorithm\.kl_beta is for learners"),
        (("algorithm.adv_type=grpo", "algorithm.group_size=2"), "makes no advantages"),
        (("algorithm.max_staleness=2",), "one rollout runs beside an update"),
        (("algorithm.max_staleness=1", "algorithm.sac.reset_beside_update=true"), "a whole rollout runs beside"),
        (("algorithm.replay.capacity=10",), "would be dropped before"),
        (("algorithm.sampling_params.do_sample=false",), "explores by what the actor draws"),
        (("actor.fsdp_config.strategy=fsdp2",), "not sharded"),
        (("algorithm.learner=policy_gradient",), "nothing is replayed"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_means_nothing_is_refused(keys, said):
    with pytest.raises(ConfigError, match=said):
        schema.check(compose([*SIZES, *keys]).config)
