"""What 16-bit arithmetic, and frozen layers in 8 or 4 bits, cost OpenVLA-OFT in precision:
``python benchmarks/model.py --gaps``."""

from __future__ import annotations

import argparse
import importlib.util
from typing import Any

import torch
from _measure import save
from embodied.models.openvla_oft import Settings
from embodied.models.openvla_oft.build import build
from embodied.models.openvla_oft.policy import OpenVLAOFTPolicy
from embodied.models.shared.files import FORMATS
from torch import Tensor

from embodied.types import ArraySpec, ContinuousAction, EnvSpec, Sampling

INSTRUCTION = "put both the alphabet soup and the tomato sauce in the basket"
SAMPLING = Sampling(temperature=1.6)
GAP_BATCH, GAP_CALL = 32, 8


def env_of(size: int) -> EnvSpec:
    return EnvSpec(
        obs={"images": ArraySpec((1, size, size, 3), "uint8")}, cameras=("front",),
        action=ContinuousAction((-1.0,) * 7, (1.0,) * 7), tasks=(INSTRUCTION,), num_init_states=(1,),
        max_episode_steps=8, control_hz=20.0,
    )  # fmt: skip


LOSS_SCALE = {"fp32": 1.0, "bf16": 1.0, "fp16": 65536.0}


def gaps_of(args: argparse.Namespace, precision: str, bits: int | None = None) -> dict[str, float]:
    """One number format against float32, on the same weights (those of the format) and the same records.

    Args:
        bits: 8 or 4: of the frozen layers. They are compared with the float32 weights that they were made of.
    """
    keys = {"size": args.size, "is_lora": True, "lora_rank": 32, "lora_init_weights": False}
    asked = ({"precision": precision, "quantization_bit": bits}, {"precision": "fp32"})
    policy, exact = (
        build(Settings.from_kwargs({**keys, **more}), args.device).to(args.device).train() for more in asked
    )
    if bits is None:
        exact.load_state_dict({name: tensor.float() for name, tensor in policy.state_dict().items()})
    for made in (policy, exact):
        made.bind(env_of(policy.model.net.image_size))
    obs, uniform, advantages = _gap_inputs(policy, args.device)
    parts = [
        policy.act({n: t[rows] for n, t in obs.items()}, uniform[rows], SAMPLING).fields
        for rows in torch.arange(GAP_BATCH).split(GAP_CALL)
    ]
    records = {**obs, **{name: torch.cat([part[name] for part in parts]) for name in parts[0]}}
    logprobs, loss, gradient = _pass(policy, records, advantages, LOSS_SCALE[precision])
    true_logprobs, true_loss, true_gradient = _pass(exact, records, advantages, 1.0)
    rollout, error = (logprobs - records["logprobs"]).abs(), (logprobs - true_logprobs).abs()
    return {
        "act_evaluate_max": rollout.max().item(),
        "act_evaluate_mean": rollout.mean().item(),
        "logprob_error_max": error.max().item(),
        "logprob_error_mean": error.mean().item(),
        "loss_relative_error": abs(loss - true_loss) / abs(true_loss),
        "gradient_relative_error": ((gradient - true_gradient).norm() / true_gradient.norm()).item(),
        "gradient_cosine": torch.cosine_similarity(gradient, true_gradient, dim=0).item(),
    }


def _gap_inputs(policy: OpenVLAOFTPolicy, device: str) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Observations, noise and advantages, the same in every call."""
    generator, net = torch.Generator().manual_seed(0), policy.model.net
    shape = (GAP_BATCH, 1, net.image_size, net.image_size, 3)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(device)
    obs = {"images": images, "prompt": torch.zeros(GAP_BATCH, dtype=torch.int32, device=device)}
    uniform = torch.rand(GAP_BATCH, net.action_tokens, generator=generator).to(device)
    return obs, uniform, torch.randn(GAP_BATCH, 1, generator=generator).to(device)


def _pass(
    policy: OpenVLAOFTPolicy, records: dict[str, Tensor], advantages: Tensor, scale: float
) -> tuple[Tensor, float, Tensor]:
    """Log-probs [B, T], the policy-gradient loss −mean(A · lp), and its gradient as one vector."""
    logprobs = policy.evaluate(records, SAMPLING).logprobs
    loss = -(advantages * logprobs).mean()
    (loss * scale).backward()
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]) / scale
    return logprobs.detach(), loss.item(), gradient.double()


def report_gaps(args: argparse.Namespace, facts: dict[str, Any]) -> None:
    rows = {precision: gaps_of(args, precision) for precision in FORMATS}
    if importlib.util.find_spec("bitsandbytes") is not None:
        rows |= {f"{bits} bits": gaps_of(args, "fp32", bits) for bits in (8, 4)}
    for precision, row in rows.items():
        print(precision, " ".join(f"{name} {value:.2g}" for name, value in row.items()))
    result = {"machine": facts, "batch": GAP_BATCH, "call": GAP_CALL, "rows": rows}
    print("wrote", save(f"model_gaps_{args.size}_{args.device.partition(':')[0]}", result))
