"""Small runs and exports of every policy that an earlier version wrote, and what that version answered from them.

    PYTHONPATH=ROOT:tests/helpers python tests/earlier/earlier_policies.py [NAME …]

writes both anew (all, or NAME), with the code that lies in ROOT.

``2b4d132/NAME.tar.xz`` is the folder of a run with the checkpoint of its first iteration and, of policies that can be
exported, exports of it. ``2b4d132/numbers.json`` is what :data:`MEASURES` gave there.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from logged import rows_of

from embodied import train
from embodied.client import Client
from embodied.learn.origin import restore
from embodied.serving.build import build_server
from embodied.serving.loading import load
from embodied.tools import export
from embodied.types import EnvSpec, Sampling, TextAction

HERE = Path(__file__).parent
WRITTEN = HERE / "2b4d132"
COMMON = (
    "tracker=jsonl", "runner.device=cpu", "runner.save_interval=1", "runner.val_check_interval=1", "env.num_workers=1",
    "env.eval.video_cfg.save_video=false", "env.train.reward_mode=dense", "algorithm.rollout_epoch=4",
)  # fmt: skip
ROBOT = (*COMMON, "env=fake", "env.train.max_episode_steps=10", "env.eval.max_episode_steps=8")
OFT = {
    "image_size": "[16,16]", "patch_size": 8, "vision_hidden_size": 16, "vision_num_layers": 2,
    "vision_num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_action_chunks": 4, "lora_rank": 2,
}  # fmt: skip
TEXT = (
    *COMMON, "env=arithmetic", "runner.task_type=math", "env.train.data_args={terms: [2, 2], count: 50}",
    "env.eval.data_args={terms: [2, 2], count: 50}", "env.train.total_num_envs=8", "env.eval.total_num_envs=8",
    "env.eval.episodes_per_task=8", "algorithm.group_size=4",
    "algorithm.kl_beta=0.1", "algorithm.entropy_bonus=0.01", "actor.model.max_prompt_tokens=12",
    "actor.model.max_new_tokens=8", "actor.model.override_config.hidden_size=16",
    "actor.model.override_config.intermediate_size=24", "actor.model.override_config.num_hidden_layers=2",
    "actor.model.override_config.num_attention_heads=2",
)  # fmt: skip
POLICIES: Mapping[str, tuple[str, ...]] = {  # name → overrides of its training
    "fake": (*ROBOT, "model=fake"),
    "flow": (
        *ROBOT, "model=fake", "actor.model._target_=embodied.testing.FlowPolicy",
        "algorithm.logprob_type=action_level",
    ),
    "mlp": (
        *ROBOT, "env=gym", "env.train.id=CartPole-v1", "env.train.success=return>=12", "env.train.max_episode_steps=16",
        "env.eval.max_episode_steps=16", "model=mlp", "algorithm=ppo",
        "actor.model.hidden=16", "actor.model.value_head=true",
    ),
    "openvla_oft": (
        *ROBOT, "model=openvla_oft_tiny", "algorithm.kl_beta=0.1", "actor.optim.ema_decay=0.9",
        *(f"actor.model.{name}={value}" for name, value in OFT.items()),
    ),
    "causal_lm": (*TEXT, "model=causal_lm_tiny"),
}  # fmt: skip
EXPORTS: Mapping[str, tuple[str, ...]] = {"openvla_oft": ("hf", "torch_export"), "causal_lm": ("hf",)}
"""Policy → formats."""


def command(name: str, entry: str, *overrides: str) -> None:
    """Runs a recipe in this process; its run's folder is ``runs/NAME``."""
    groups = ("--config-dir", str(HERE.parent / "config"))
    status = train.main([*POLICIES[name], *overrides, *groups], entry)
    assert status == 0, (name, entry, status)


def write(name: str) -> None:
    """Trains for one iteration and exports; leaves ``runs/NAME`` and ``exports/NAME/FORMAT``."""
    command(name, "train", "runner.max_epochs=1", f"runner.experiment_name={name}")
    for kind in EXPORTS.get(name, ()):
        out = Path("exports", name, kind)
        assert export.main([str(checkpoint(name)), "--format", kind, "--out", str(out)]) == 0


def checkpoint(name: str, iteration: int = 1) -> Path:
    return Path("runs", name, "checkpoints", f"{iteration:06d}")


def pack(name: str, archive: Path) -> None:
    """What :func:`write` left, as a file; traces, logs and locks aside."""
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for path in files(name):
            packed.add(path)


def files(name: str) -> Iterator[Path]:
    left_out = {"trace", "logs", ".lock"}
    for path in sorted([*Path("runs", name).rglob("*"), *Path("exports", name).rglob("*")]):
        if path.is_file() and not left_out & set(path.parts):
            yield path


def unpack(name: str) -> None:
    """The folders of :func:`write`, in the current folder."""
    with tarfile.open(WRITTEN / f"{name}.tar.xz") as packed:
        packed.extractall(".", filter="data")


def resumed(name: str) -> dict[str, Any]:
    """What one further iteration measures, and the length of each tensor of the policy that it leaves."""
    command(name, "train", "runner.max_epochs=2", f"runner.experiment_name={name}")
    rows = rows_of(Path("runs", name))
    assert all(row["train/grad_norm"] > 1e-5 for row in rows), "an iteration that learns nothing shows nothing"
    policy, _ = restore(checkpoint(name, 2))
    lengths = {key: tensor.double().norm().item() for key, tensor in policy.state_dict().items()}  # type: ignore[attr-defined]
    return {"metrics": rows, "lengths": lengths}


def evaluated(name: str) -> dict[str, Any]:
    """The evaluation of the first checkpoint by a run of its own."""
    options = (f"runner.ckpt_path={checkpoint(name)}", f"runner.experiment_name={name}-evaluated")
    command(name, "eval", *options)
    file = Path("runs", f"{name}-evaluated", "eval", "000000.json")
    written: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if len(written["protocol"]["keys"].pop("simulator")) > 1:  # versions of packages, which are in the hash
        del written["protocol"]["hash"]
    return written


def served(folder: Path) -> list[Any]:
    """The likeliest actions for an observation, asked of a server; of a policy of texts, its answers to two prompts."""
    policy, env, _ = load(folder)
    if isinstance(env.action, TextAction):
        prompts = policy.encode_instructions(["1+2=", "9-4="])
        decision = policy.act(prompts, torch.zeros(2, *policy.spec.noise.shape), Sampling(do_sample=False))
        return decision.fields["actions"].tolist() + decision.fields["logprobs"].tolist()
    return asyncio.run(_asked(policy, env))


async def _asked(policy: Any, env: EnvSpec) -> list[Any]:
    server = build_server(policy, env)
    port = await server.start("127.0.0.1", 0)
    try:
        return await asyncio.to_thread(_ask, port, env)
    finally:
        await server.drain()


def _ask(port: int, env: EnvSpec) -> list[Any]:
    random = np.random.default_rng(0)
    obs: dict[str, Any] = {"state": random.standard_normal(env.obs["state"].shape).astype(np.float32)}
    if "images" in env.obs:
        obs["images"] = random.integers(0, 256, env.obs["images"].shape, np.uint8)
    client = Client(f"ws://127.0.0.1:{port}", timeout_s=60)
    try:
        return client.infer({**obs, "prompt": env.tasks[0]}).tolist()
    finally:
        client.close()


def exports_of(name: str) -> dict[str, Any]:
    """What each exported folder answers."""
    return {kind: served(Path("exports", name, kind)) for kind in EXPORTS.get(name, ())}


MEASURES: Mapping[str, Callable[[str], Any]] = {
    "served": lambda name: served(checkpoint(name)),
    "exports": exports_of,
    "evaluated": evaluated,
    "resumed": resumed,
}


def main(arguments: Sequence[str]) -> int:
    """See this module's docstring."""
    numbers_file = WRITTEN / "numbers.json"
    numbers = json.loads(numbers_file.read_text(encoding="utf-8")) if numbers_file.exists() else {}
    for name in arguments or POLICIES:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            write(name)
            pack(name, WRITTEN / f"{name}.tar.xz")
            shutil.rmtree("runs")
            unpack(name)
            numbers[name] = {measure: give(name) for measure, give in MEASURES.items()}
            os.chdir(HERE)
    numbers_file.write_text(json.dumps(numbers, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
