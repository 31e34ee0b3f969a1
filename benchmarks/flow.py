"""Flow policies: chunks and training records, against LeRobot's own SmolVLAPolicy with equal random weights.

    python benchmarks/flow.py               # in an environment with LeRobot: see peers/lerobot_smolvla.py
    python benchmarks/flow.py --sizes tiny  # a minute; true: 5 GB of memory, a minute a round on an idle core

Both read one folder, which ours has saved, and take turns within each round, on one thread. Ratios are those of CPU
time, of which other programs on the machine take nothing; wall time stands beside.

- ``chunk``: the ODE in ten steps from drawn noise, for two cameras. Ours is ``act``, from uint8 pictures to actions in
  the env's units; LeRobot's is ``predict_action_chunk``, whose pictures are floats already and whose chunk stays
  normalised.
- ``tower``, ``trunk``, ``step``: parts of ours, and their shares of a chunk.
- ``record D``: forward and backward of the log-probs of a record with D random steps, the expert trained and all else
  frozen. ``joint``: one of D joint passes of LeRobot, forward and backward, with the same weights trained.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _measure import begin, judge, save, spread
from embodied.models.flow_vla import build_policy
from embodied.models.flow_vla.files.save import save_folder
from embodied.models.flow_vla.network.model import FlowVLA
from embodied.models.flow_vla.network.sizes import Sizes, StreamSizes, TowerSizes
from embodied.models.flow_vla.network.tower import shuffled
from embodied.models.flow_vla.policy import FlowVLAPolicy
from torch import Tensor

from embodied.types import ArraySpec, ContinuousAction, EnvSpec, Sampling

STEPS, RECORD_STEPS = 10, (4, 10)
SHUFFLE = 4
TRUE = Sizes(
    "smolvla", TowerSizes(768, 3072, 12, 12, 16, 32), StreamSizes(960, 2560), StreamSizes(720, 2048), 16, 15, 5, 64,
    49280, 50, 512, shuffle=SHUFFLE, norm_eps=1e-5, cross_every=2,
)  # fmt: skip
TINY = {"action_horizon": 6, "expert_intermediate_size": 256, "image_size": 64}  # a width that LeRobot derives, too
BARS = {
    "tiny: chunk": (">=", 1.3), "true: chunk": (">=", 1.0), "true: record 4": (">=", 3.0),
    "true: record 10": (">=", 5.0),
}  # fmt: skip
GREEDY = Sampling(do_sample=False)
INSTRUCTION = "put the black bowl on the plate"


@dataclass
class Call:
    """A thing that is timed."""

    run: Callable[[], Any]
    times: int = 1  # in a round
    cpu: list[float] = field(default_factory=list)  # seconds of one, an entry a round
    wall: list[float] = field(default_factory=list)

    def measure(self) -> None:
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(self.times):
            self.run()
        self.wall.append((time.perf_counter() - began) / self.times)
        self.cpu.append((time.process_time() - cpu) / self.times)


def env_of(side: int) -> EnvSpec:
    return EnvSpec(
        obs={"images": ArraySpec((2, side, side, 3), "uint8"), "state": ArraySpec((8,), "float32")},
        cameras=("agentview", "wrist"), action=ContinuousAction((-1.0,) * 7, (1.0,) * 7), tasks=(INSTRUCTION,),
        num_init_states=(1,), max_episode_steps=100, control_hz=20.0,
    )  # fmt: skip


def write_folder(path: Path, sizes: Sizes | None) -> None:
    """Saves a policy of random weights. LeRobot, too, is to leave the state's projection as it is: in front of the
    frozen trunk it would ask for a backward pass through it."""
    policy = build_policy(layout="smolvla", num_steps=STEPS, **TINY)
    policy.bind(env_of(policy.model.sizes.image_size))
    parts = policy.parts if sizes is None else replace(policy.parts, model=FlowVLA(sizes))
    save_folder(parts, path)
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    (path / "config.json").write_text(json.dumps({**config, "train_state_proj": False}), encoding="utf-8")


def observations(policy: FlowVLAPolicy, rows: int) -> dict[str, Tensor]:
    side = policy.model.sizes.image_size
    images = torch.randint(0, 256, (rows, 2, side, side, 3), dtype=torch.uint8)
    return {"images": images, "state": torch.randn(rows, 8), **policy.encode_instructions([INSTRUCTION] * rows)}


def noise_of(policy: FlowVLAPolicy, rows: int) -> Tensor:
    return torch.randn(rows, *policy.spec.noise.shape).clamp(-3, 0.99)  # its last number is a share


def opened(folder: Path, side: int, **keys: Any) -> FlowVLAPolicy:
    policy = build_policy(model_path=str(folder), num_action_chunks=4, **keys)
    policy.bind(env_of(side))
    return policy


def record_call(policy: FlowVLAPolicy, obs: Mapping[str, Tensor]) -> Callable[[], None]:
    records = {**obs, **policy.act(obs, noise_of(policy, len(obs["state"])), Sampling()).fields}

    def step() -> None:
        policy.zero_grad(set_to_none=True)
        policy.evaluate(records, Sampling()).logprobs.mean().backward()

    return step


def calls_of(folder: Path, rows: int, times: int, training: bool) -> dict[str, Call]:
    from peers import lerobot_smolvla as peer

    theirs = peer.open_policy(folder)
    side = theirs.config.resize_imgs_with_padding[0]
    ours = opened(folder, side, num_steps=STEPS)
    obs, noise = observations(ours, rows), noise_of(ours, rows)
    horizon, width = ours.model.sizes.horizon, ours.model.sizes.action_width
    first = noise[:, : horizon * width].view(rows, horizon, width)
    batch = peer.batch_of(theirs, obs)
    check_equal(ours, obs, noise, peer.chunk_of(theirs, dict(batch), first))
    found = {
        "chunk": Call(lambda: ours.act(obs, noise, GREEDY), times),
        "LeRobot's chunk": Call(lambda: peer.chunk_of(theirs, dict(batch), first), times),
        **parts_of(ours, obs, first, times),
    }
    if training:
        drawn, at = torch.randn_like(first), torch.full((rows,), 0.5)

        def joint() -> None:
            theirs.zero_grad(set_to_none=True)
            peer.joint_pass(theirs, dict(batch), drawn, first, at).mean().backward()

        found["joint"] = Call(joint, times)
        for count in RECORD_STEPS:
            policy = share_weights(opened(folder, side, num_steps=count, noise_steps="all"), ours)
            found[f"record {count}"] = Call(record_call(policy, obs), times)
    return found


def share_weights(policy: FlowVLAPolicy, other: FlowVLAPolicy) -> FlowVLAPolicy:
    """Several policies of one network take its memory once."""
    for name, parameter in policy.named_parameters():
        parameter.data = other.get_parameter(name).data
    return policy


@torch.no_grad()
def check_equal(ours: FlowVLAPolicy, obs: Mapping[str, Tensor], noise: Tensor, theirs: Tensor) -> None:
    chunk = ours.act(obs, noise, GREEDY).fields["actions"]
    wanted = theirs[:, : chunk.shape[1], :7].clamp(-1, 1)  # the env's range is −1 … 1, and so are its statistics
    assert torch.allclose(chunk, wanted, atol=1e-4), (chunk - wanted).abs().max()


def parts_of(policy: FlowVLAPolicy, obs: Mapping[str, Tensor], first: Tensor, times: int) -> dict[str, Call]:
    model, inputs = policy.model, policy.parts.inputs(obs)
    at = torch.full((len(first),), 0.5)

    @torch.no_grad()
    def tower() -> Tensor:
        return model.projector(shuffled(model.vision(inputs.pixels.flatten(0, 1)), model.sizes.shuffle))

    with torch.no_grad():
        context = model.read(inputs)
    read, step = torch.no_grad()(model.read), torch.no_grad()(model.velocity)
    return {
        "tower": Call(tower, times), "tower and trunk": Call(lambda: read(inputs), times),
        "step": Call(lambda: step(context, first, at), times),
    }  # fmt: skip


def figures_of(calls: Mapping[str, Call]) -> dict[str, Any]:
    return {
        name: {"cpu_ms": spread([1000 * s for s in one.cpu]), "wall_ms": spread([1000 * s for s in one.wall])}
        for name, one in calls.items()
    }


def ratios_of(name: str, calls: Mapping[str, Call]) -> dict[str, float]:
    """How many times as long LeRobot takes, each the median of the rounds' own ratios of CPU time."""

    def ratio(theirs: str, ours: str, times: int = 1) -> float:
        return median(times * a / b for a, b in zip(calls[theirs].cpu, calls[ours].cpu, strict=True))

    found = {f"{name}: chunk": ratio("LeRobot's chunk", "chunk")}
    records = [count for count in RECORD_STEPS if f"record {count}" in calls]
    return found | {f"{name}: record {count}": ratio("joint", f"record {count}", count) for count in records}


def shares_of(calls: Mapping[str, Call]) -> dict[str, float]:
    whole, tower, read, step = (median(calls[n].cpu) for n in ("chunk", "tower", "tower and trunk", "step"))
    return {"tower": tower / whole, "trunk": (read - tower) / whole, "steps": STEPS * step / whole}


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", choices=["tiny", "true"], default=["tiny", "true"])
    parser.add_argument("--rounds", type=int, default=3, help="of true size; tiny takes ten times as many")
    parser.add_argument("--times", type=int, default=5, help="calls of tiny size in a round")
    parser.add_argument("--threads", type=int, default=1)
    parser.set_defaults(device="cpu")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    facts = begin(args)
    facts["versions"] |= {"lerobot": importlib.metadata.version("lerobot")}
    result: dict[str, Any] = {"machine": facts, "settings": vars(args), "cells": {}, "ratios": {}}
    for name in args.sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "policy")
            write_folder(path, TRUE if name == "true" else None)
            tiny = name == "tiny"
            calls = calls_of(path, 2 if tiny else 1, args.times if tiny else 1, training=True)
            for number in range(args.rounds * 10 if tiny else args.rounds):
                for call in calls.values():
                    call.measure()
                if not tiny:
                    shown = ", ".join(f"{key} {call.cpu[-1]:.2f}" for key, call in calls.items())
                    print(f"round {number + 1}, CPU seconds: {shown}", flush=True)
        result["ratios"] |= ratios_of(name, calls)
        result["cells"][name] = {"figures": figures_of(calls), "shares": shares_of(calls)}
    result["bars_kept"] = judge(result["ratios"], BARS)
    print("wrote", save("flow", result))


if __name__ == "__main__":
    main()
