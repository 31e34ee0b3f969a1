"""A run's folder is enough: evaluate, serve, play, export, train on, compare. The policy is a small OpenVLA-OFT."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied import cli
from embodied.client import Client
from embodied.serving.build import build_server
from embodied.serving.loading import load

CONFIG = ("--config-dir", str(Path(__file__).parents[1] / "config"))
SMALL = (
    "image_size=[16,16]", "patch_size=8", "vision_hidden_size=16", "vision_num_layers=2", "num_action_chunks=4",
    "vision_num_attention_heads=2", "hidden_size=16", "intermediate_size=24", "num_hidden_layers=2",
    "num_attention_heads=2", "lora_rank=2",
)  # fmt: skip
COMMON = ("tracker=jsonl", "runner.device=cpu", "env.num_workers=1", "env.eval.video_cfg.save_video=false")
FIRST = (
    "env=fake", "model=openvla_oft_tiny", *(f"actor.model.{one}" for one in SMALL), *COMMON, *CONFIG,
    "env.train.max_episode_steps=8", "env.eval.max_episode_steps=8", "env.train.reward_mode=dense",
    "algorithm.rollout_epoch=2", "runner.max_epochs=1", "runner.save_interval=1", "runner.val_check_interval=-1",
    "env.eval.episodes_per_task=2", "runner.experiment_name=first", "runner.seed=5",
)  # fmt: skip


def embodied(*words: str) -> None:
    assert cli.main(list(words)) == 0, words


def evaluation(run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("runs", run, "eval", "000000.json").read_text(encoding="utf-8"))
    return found


async def served(folder: str) -> list[Any]:
    policy, env, _ = load(Path(folder))
    server = build_server(policy, env)
    port = await server.start("127.0.0.1", 0)
    try:
        obs = {name: np.zeros(field.shape, field.dtype) for name, field in env.obs.items()}
        with await asyncio.to_thread(Client, f"ws://127.0.0.1:{port}") as client:
            reply = await asyncio.to_thread(client.infer, {**obs, "prompt": "move the point to goal 0"})
            return list(np.shape(reply))
    finally:
        await server.drain()


def test_one_word_takes_a_checkpoint_from_command_to_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    embodied("train", *FIRST)
    embodied("eval", "runs/first", *COMMON)
    by_hand = [word for word in FIRST if not word.startswith(("runner.max", "runner.save", "runner.exp", "runner.val"))]
    by_hand += [
        "env.eval.reward_mode=dense",
        "env.eval.use_rel_reward=true",
    ]  # those of experiment=laptop
    embodied("eval", *by_hand, "runner.ckpt_path=runs/first/checkpoints/000001", "runner.experiment_name=by_hand")
    brought, hand = evaluation("first-000001-eval"), evaluation("by_hand")
    assert {**brought, "conditions": 0, "protocol": 0} == {**hand, "conditions": 0, "protocol": 0}
    assert brought["conditions"] == hand["conditions"]
    assert brought["protocol"]["hash"] == hand["protocol"]["hash"]
    assert asyncio.run(served("runs/first")) == [4, 7]
    capsys.readouterr()
    embodied("play", "runs/first", *COMMON, "--task", "1")
    assert "played by  runs/first/checkpoints/000001" in capsys.readouterr().out
    embodied("export", "runs/first", "--out", "out", "--observations", "0")
    embodied("eval", "out", *COMMON)
    of_export = evaluation("first-000001-hf-eval")
    assert [one["start"] for one in of_export["episodes"]] == [one["start"] for one in brought["episodes"]]
    assert of_export["protocol"]["hash"] == brought["protocol"]["hash"]
    assert of_export["seen_in_training"] == brought["seen_in_training"]
    assert of_export["seen_in_training"]["unknown"] == 0
    assert asyncio.run(served("out")) == [4, 7]
    more = (*COMMON, "algorithm.rollout_epoch=2", "runner.max_epochs=1", "runner.val_check_interval=-1")
    embodied("train", "runs/first", *more)
    embodied("eval", "runs/first-000001-grpo", *COMMON)
    later = evaluation("first-000001-grpo-000001-eval")
    assert later["checkpoint"]["path"] == "runs/first-000001-grpo/checkpoints/000001"
    capsys.readouterr()
    embodied("compare", "runs/first/checkpoints/000001", "runs/first-000001-grpo/checkpoints/000001")
    said = capsys.readouterr().out
    assert "the same conditions" not in said, "the first run had another seed"
    assert "runs/by_hand/eval/000000.json" in said, "the newest of these weights: their run has evaluated none"
    assert "runs/first-000001-grpo-000001-eval/eval/000000.json" in said
    capsys.readouterr()
    assert cli.main(["eval", "runs/first", "actor.model.num_action_chunks=8", "actor.model.lora_rank=4", *COMMON]) == 2
    error = capsys.readouterr().err
    assert "actor.model.num_action_chunks" in error
    assert "actor.model.lora_rank" in error


@pytest.mark.parametrize("verb", ["train", "eval", "play", "serve", "export", "compare"])
def test_help_says_that_a_checkpoint_is_taken(verb, capsys):
    with pytest.raises(SystemExit):
        cli.main([verb, "--help"])
    said = capsys.readouterr().out
    assert "checkpoint" in said.lower()
    assert "runs/NAME" in said
