"""CPU seconds of an update of ``noise_policy`` beside those of Flow-SDE: forward, backward, AdamW on the same records.

    python benchmarks/flow_noise_policy.py                  # SmolVLA's true size at random: 4 GB, two minutes
    python benchmarks/flow_noise_policy.py --size tiny      # seconds

Float32, one thread, a frozen trunk, two cameras, one random step a chunk, one micro-batch an update. The same for
``act`` in four denoising steps, where noise_policy makes one pass of the expert more. Ratios are Flow-SDE's seconds
over those of noise_policy. One comes after the other: only one network of true size is in memory.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from _measure import judge, machine, save, spread
from embodied.models.flow_vla import Settings
from embodied.models.flow_vla.build import build
from embodied.models.flow_vla.network.sizes import Sizes
from embodied.models.flow_vla.policy import FlowVLAPolicy

from embodied.types import ArraySpec, ContinuousAction, EnvSpec, Sampling

WAYS = ("flow_sde", "noise_policy")
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"image_size": 64, "num_hidden_layers": 2, "num_action_chunks": 4},
    "smolvla": {
        "image_size": 512, "vision_hidden_size": 768, "vision_intermediate_size": 3072, "vision_num_layers": 12,
        "vision_heads": 12, "hidden_size": 960, "intermediate_size": 2560, "expert_hidden_size": 720,
        "expert_intermediate_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 15,
        "num_key_value_heads": 5, "head_dim": 64, "action_horizon": 50, "num_action_chunks": 10,
    },
}  # fmt: skip
TASK = "put the black bowl there"
BARS = {"update": (">=", 20.0)}


class SizedSettings(Settings):
    """Settings of random weights whose pictures become as few tokens as SmolVLA's."""

    def random_sizes(self, vocab: int) -> Sizes:
        return replace(super().random_sizes(vocab), shuffle=4 if self.image_size == 512 else 1)


def policy_of(method: str, size: str) -> FlowVLAPolicy:
    """Builds a policy with random weights, bound to a made-up env."""
    policy = build(SizedSettings.from_kwargs({"layout": "smolvla", "noise_method": method, **SIZES[size]}))
    pixels = SIZES[size]["image_size"]
    policy.bind(
        EnvSpec(
            obs={"images": ArraySpec((2, pixels, pixels, 3), "uint8"), "state": ArraySpec((8,), "float32")},
            cameras=("front", "wrist"), action=ContinuousAction((-1.0,) * 7, (1.0,) * 7),
            tasks=(TASK,), num_init_states=(1,), max_episode_steps=50, control_hz=20.0,
        )
    )  # fmt: skip
    return policy


def measured(method: str, size: str, records: int, rounds: int) -> dict[str, Any]:
    """Measures a policy; returns its parameters and the CPU seconds of each call."""
    policy, pixels = policy_of(method, size), SIZES[size]["image_size"]
    obs = {
        "images": torch.randint(0, 256, (records, 2, pixels, pixels, 3), dtype=torch.uint8),
        "state": torch.randn(records, 8), **policy.encode_instructions([TASK] * records),
    }  # fmt: skip
    noise, parameters = torch.rand(records, *policy.spec.noise.shape), list(policy.parameters())
    fields = policy.act(obs, noise, Sampling()).fields
    optimizer = torch.optim.AdamW([p for p in parameters if p.requires_grad], lr=1e-5)

    def update() -> None:
        optimizer.zero_grad()
        (-policy.evaluate({**obs, **fields}, Sampling()).logprobs.mean()).backward()
        optimizer.step()

    update()  # it does not count: AdamW makes its state
    calls = {"update": update, "act": lambda: policy.act(obs, noise, Sampling())}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            seconds[name].append(cpu_seconds(call))
    return {
        "parameters": sum(p.numel() for p in parameters),
        "trained": sum(p.numel() for p in parameters if p.requires_grad),
        "cpu_s": {name: spread(found) for name, found in seconds.items()},
    }


def cpu_seconds(call: Callable[[], Any], least: float = 0.2) -> float:
    """CPU seconds of a call, repeated until it fills ``least`` of them."""
    began, count = time.process_time(), 0
    while not count or time.process_time() - began < least:
        call()
        count += 1
    return (time.process_time() - began) / count


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="smolvla", choices=SIZES)
    parser.add_argument("--records", type=int, default=1, help="of an update")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    facts = machine(["torch"])
    ways = {method: measured(method, args.size, args.records, args.rounds) for method in WAYS}
    sde, steered = (ways[method]["cpu_s"] for method in WAYS)
    ratios = {name: sde[name]["median"] / steered[name]["median"] for name in ("update", "act")}
    kept = judge(ratios, BARS)
    print(save("flow_noise_policy", {**facts, **vars(args), "ways": ways, "ratios": ratios, "kept": kept}))


if __name__ == "__main__":
    main()
