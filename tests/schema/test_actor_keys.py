"""Keys of other systems for what trains, and for the memory in which records wait for it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from embodied import schema, train
from embodied.errors import ConfigError
from embodied.schema.compose.compose import compose

CONFIG = str(Path(__file__).parents[1] / "config")
FAKE = ("env=fake", "model=fake")
RUN = (
    *FAKE, "tracker=jsonl", "runner.logger.report=false", "runner.device=cpu", "env.num_workers=1",
    "env.train.total_num_envs=4", "algorithm.rollout_epoch=2", "env.train.max_episode_steps=6",
    "env.eval.video_cfg.save_video=false", "runner.experiment_name=run", "--config-dir", CONFIG,
)  # fmt: skip


def config(*overrides: str) -> schema.Config:
    return compose([*FAKE, *overrides], "train", [CONFIG]).config


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as failed:
        config(*overrides)
    return str(failed.value)


@pytest.mark.parametrize(
    ("backend", "told", "strategy"),
    [
        ("null", "strategy=auto", "auto"),
        ("fsdp", "strategy=fsdp", "fsdp"),
        ("fsdp", "sharding_strategy=no_shard", "replicate"),
        ("fsdp", "sharding_strategy=shard_grad_op", "fsdp2"),
        ("ddp", "sharding_strategy=no_shard", "replicate"),
        ("ddp", "strategy=replicate", "replicate"),
        ("fsdp2", "strategy=replicate", "fix: leave actor.training_backend out, or set it to ddp"),
        ("ddp", "strategy=fsdp", "which is strategy replicate, and actor.fsdp_config.strategy is fsdp"),
        ("ddp", "sharding_strategy=full_shard", "actor.fsdp_config.sharding_strategy is full_shard"),
    ],
)
def test_a_backend_fills_in_the_strategy_and_contradicts_none(backend, told, strategy):
    given = (f"actor.training_backend={backend}", f"actor.fsdp_config.{told}")
    if " " in strategy:
        assert strategy in refused(*given)
    else:
        assert config(*given).actor.fsdp_config.strategy == strategy


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ((), ["embodied.action_buffer.obs_buffer.0", "embodied.replay_buffer"]),
        (("env.channel.name=e",), ["e.replay_buffer", "embodied.action_buffer.e.obs_buffer.0"]),
        (
            ("env.channel.name=e", "rollout.channel.name=r", "actor.channel.name=a", "actor.channel.queue_name=q"),
            ["a.q", "r.action_buffer.e.obs_buffer.0"],
        ),
    ],
)
def test_shared_memory_has_the_names_of_its_channels(told, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen: list[str] = []
    make = os.memfd_create
    monkeypatch.setattr(os, "memfd_create", lambda name, *flags: seen.append(name) or make(name, *flags))
    assert train.main([*RUN, *told, "runner.max_epochs=1"]) == 0
    assert sorted(seen) == named


def test_records_that_may_not_all_wait_for_the_update_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    dry = (*RUN, "runner.dry_run=true")
    assert train.main([*dry, "actor.channel.queue_size=1"]) == 2
    said = capsys.readouterr().err
    (most,) = re.findall(r"queue_size is 1, and an iteration has up to (\d+) records in the process", said)
    assert f"set actor.channel.queue_size to {most} or more" in said
    assert train.main([*dry, f"actor.channel.queue_size={int(most) - 1}"]) == 2
    assert train.main([*dry, f"actor.channel.queue_size={most}"]) == 0
    assert train.main([*RUN, "runner.max_epochs=1", f"actor.channel.queue_size={most}"]) == 0
