"""The tool that measures a machine and proposes sizes for it."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from embodied.schema.compose.compose import compose
from embodied.tools import bench
from embodied.tools.library import sizes
from embodied.tools.library.sizes import EnvCost, Machine, propose

CONFIG = str(Path(__file__).parents[1] / "config")
FAKE = ("env=fake", "model=fake")
GB = 10**9


def config(*overrides: str):
    return compose([*FAKE, "algorithm.group_size=4", "algorithm.rollout_epoch=8", *overrides], "train", [CONFIG]).config


def env(chunk_s: float = 1.0, cpu_share: float = 1.0, memory: int = GB, reset_s: float = 0.0) -> EnvCost:
    return EnvCost(1.0, 5.0, reset_s, 0.8 * chunk_s, 0.2 * chunk_s, cpu_share, memory)


QUICK = {1: 0.001, 8: 0.001}


def test_one_worker_a_core_when_they_compute():
    found = propose(env(), QUICK, Machine(16, 100 * GB), config(), 10)
    assert (found.num_workers, found.total_num_envs, found.min_batch) == (16, 16, 1)
    assert "16 cores" in found.reasons["env.num_workers"]


def test_more_workers_than_cores_when_they_wait():
    assert propose(env(cpu_share=0.25), QUICK, Machine(16, 1000 * GB), config(), 10).num_workers == 64


def test_memory_bounds_the_workers():
    found = propose(env(memory=4 * GB), QUICK, Machine(16, 20 * GB), config(), 10)
    assert found.num_workers == 4
    assert "20.0 GB are free and a worker takes 4.00 GB" in found.reasons["env.num_workers"]


def test_slots_that_share_a_simulator_need_little_memory():
    """Two workers of 8 GB fit into 21; a further slot takes what the env says, not another 8."""
    slow, machine = {1: 0.3, 8: 0.4}, Machine(2, 21 * GB)
    slots = [propose(replace(env(memory=8 * GB), slot=slot), slow, machine, config(), 10).total_num_envs
             for slot in (None, GB // 100)]  # fmt: skip
    assert slots == [2, 4]


def test_a_second_slot_where_a_worker_would_wait_for_the_policy():
    slow = {1: 0.3, 8: 0.4}
    assert propose(env(), slow, Machine(4, 100 * GB), config(), 10).total_num_envs == 8
    assert propose(env(memory=20 * GB), slow, Machine(4, 100 * GB), config(), 10).total_num_envs == 4, "no memory left"


@pytest.mark.parametrize(("epoch", "group"), [(8, 4), (1, 8), (3, 6)])
def test_episodes_are_whole_groups_and_about_as_many(epoch, group):
    given = config(f"algorithm.rollout_epoch={epoch}", f"algorithm.group_size={group}", "env.train.total_num_envs=6") \
        if (epoch * 6) % group == 0 else config()  # fmt: skip
    found = propose(env(), QUICK, Machine(5, 100 * GB), given, 10)
    episodes = found.rollout_epoch * found.total_num_envs
    assert episodes % given.algorithm.group_size == 0
    assert episodes >= given.algorithm.rollout_epoch * given.env.train.total_num_envs


def test_the_batch_is_the_smallest_that_keeps_up():
    """4 workers make 4 records a second; a call takes 0.45 s whatever its rows, so two rows a call are enough."""
    flat = {1: 0.45, 8: 0.45}
    assert propose(env(), flat, Machine(4, 100 * GB), config("runner.deterministic=false"), 10**6).min_batch == 2
    assert "slower than" in propose(env(), {1: 9.0, 8: 72.0}, Machine(4, 100 * GB), config(), 10).reasons[
        "rollout.min_batch"
    ]  # fmt: skip


def test_filled_up_batches_cost_their_whole_shape():
    calls = {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0}
    fixed, free = config(), config("runner.deterministic=false")
    assert sizes.call_s(calls, fixed, 8, 3) == 8.0
    assert sizes.call_s(calls, free, 8, 3) == 3.0
    assert sizes.call_s(calls, fixed, 8, 9) == 16.0
    assert sizes.call_s(calls, free, 8, 9) == 9.0
    assert sizes.call_s(calls, fixed, 2, 2) == 2.0, "the shape is the number of slots"
    assert sizes._seconds(calls, 16) == 16.0


def test_it_measures_and_its_proposal_is_accepted(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = [*FAKE, "runner.device=cpu", "env.train.step_s=0.002", "algorithm.rollout_epoch=4"]
    assert bench.main([*options, "--config-dir", CONFIG]) == 0
    said = capsys.readouterr().out
    for part in ("one worker, alone", "policy on cpu", "where the time of a record goes", "steps of a chunk"):
        assert part in said
    proposed = re.search(r"embodied\.train … (.*)$", said, re.M)
    assert proposed
    compose([*FAKE, *proposed.group(1).split()], "train", [CONFIG])
    assert os.listdir(tmp_path) == [], "nothing stays"


def test_an_env_that_fails_is_explained(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = [*FAKE, "runner.device=cpu", "env.train.fault=exception"]
    assert bench.main([*options, "--config-dir", CONFIG]) == 2
    assert "told to fail in step" in capsys.readouterr().err
