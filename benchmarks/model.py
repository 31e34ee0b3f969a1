"""OpenVLA-OFT: chunks a second of ``act`` and samples a second of a training step, against the path others run.

    python benchmarks/model.py --device cpu --size tiny
    python benchmarks/model.py --device cuda --size 7b
    python benchmarks/model.py --gaps                    # no times: what 16-bit arithmetic costs in precision

Random weights (drawn on the device), LoRA 32 on every linear layer as in training, one image, a prompt of about 30
tokens. Variants take turns within each round:

- ``matmul``: the device's rate on a large square product in the same number format; shares refer to its median.
- ``eager``, ``graph``: ``policy.act`` as the rollout calls it; ``graph`` replays it as a CUDA graph (GPU only).
- ``plain``: the same network as other systems call it: prompt padded to 128 tokens, an attention mask, all hidden
  states kept, logits of all positions over the whole vocabulary in float32, eager.
- ``train``: forward with recomputed layers, backward, AdamW on the adapters.

``--gaps`` gives, for each number format, how far log-probs of ``act`` (batches of 8) and ``evaluate`` (one of 32) lie
apart, and how far log-probs, loss and gradient lie from those of float32 arithmetic on exactly the same weights.

FLOPs are those that a chunk needs (embodied.models.openvla_oft.network.flops), the same for all variants of a batch:
what ``plain`` computes besides lowers its share. Peak memory is torch's on a GPU, that of the process on a CPU.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from _measure import begin, save, spread
from _model_gaps import SAMPLING, env_of, report_gaps
from embodied.models.openvla_oft import Settings
from embodied.models.openvla_oft.build import build
from embodied.models.openvla_oft.network.flops import forward_flops, training_flops
from embodied.models.openvla_oft.network.model import Inputs
from embodied.models.openvla_oft.policy import OpenVLAOFTPolicy
from embodied.models.shared.files import FORMATS
from torch import Tensor

from embodied.runtime.policy.capture import CapturedAct
from embodied.selftest.meters import peak_memory, seconds_of

PLAIN_PROMPT = 128
Call = Callable[[], Any]


@dataclass
class Variant:
    """One row of the result. ``open`` gives a call to be timed; what it holds is released before the next variant."""

    name: str
    batch: int
    flops: int  # of one call
    open: Callable[[], Call]
    seconds: list[float] = field(default_factory=list)  # of one call, one entry a round
    peak: float = 0.0  # bytes


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.device, self.precision = torch.device(args.device), args.precision
        settings = Settings.from_kwargs(
            {
                "size": args.size, "precision": args.precision, "is_lora": True, "lora_rank": 32,
                "gradient_checkpointing": True, "lora_init_weights": False, "torch_compile": args.compile,
            }
        )  # fmt: skip
        self.policy: OpenVLAOFTPolicy = build(settings, self.device)
        self.policy.to(self.device).train()
        self.net = self.policy.model.net
        self.policy.bind(env_of(self.net.image_size))
        trained = [p for p in self.policy.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-6, fused=self.device.type == "cuda")

    @property
    def prompt(self) -> int:
        return self.policy.prompts.shape[1]

    def observations(self, batch: int) -> tuple[dict[str, Tensor], Tensor]:
        size = self.net.image_size
        images = torch.randint(0, 256, (batch, 1, size, size, 3), dtype=torch.uint8, device=self.device)
        task = torch.zeros(batch, dtype=torch.int32, device=self.device)
        return {"images": images, "prompt": task}, torch.rand(batch, self.net.action_tokens, device=self.device)

    def eager(self, batch: int) -> Call:
        obs, uniform = self.observations(batch)
        return lambda: self.policy.act(obs, uniform, SAMPLING)

    def graph(self, batch: int) -> Call:
        obs, uniform = self.observations(batch)
        act = CapturedAct(self.policy)
        return lambda: act(obs, uniform, SAMPLING)

    def plain(self, batch: int) -> Call:
        obs, _ = self.observations(batch)
        return lambda: plain_act(self.policy, obs)

    def train(self, batch: int) -> Call:
        obs, uniform = self.observations(batch)
        records = {**obs, **self.policy.act(obs, uniform, SAMPLING).fields}

        def step() -> None:
            self.optimizer.zero_grad(set_to_none=True)
            self.policy.evaluate(records, SAMPLING).logprobs.mean().backward()
            self.optimizer.step()

        return step

    def matmul(self, side: int) -> Call:
        dtype = FORMATS[self.precision]
        a, b = (torch.randn(side, side, device=self.device, dtype=dtype) for _ in range(2))
        return lambda: a @ b

    def variants(self, args: argparse.Namespace) -> list[Variant]:
        forward = forward_flops(self.net, self.prompt).total
        training = training_flops(self.net, self.prompt, lora=True, checkpointing=True)
        side = args.matmul
        found = [Variant("matmul", side, 2 * side**3, lambda: self.matmul(side))]
        ways = {"eager": self.eager, "plain": self.plain}
        if self.device.type == "cuda":
            ways["graph"] = self.graph
        for batch in args.batches:
            for name, way in ways.items():
                found.append(Variant(name, batch, batch * forward, lambda w=way, b=batch: w(b)))  # type: ignore[misc]
        for batch in args.micro_batches:
            found.append(Variant("train", batch, batch * training, lambda b=batch: self.train(b)))  # type: ignore[misc]
        return found

    def measure(self, variant: Variant, min_seconds: float) -> None:
        """One round: warm up, then as many calls as fill ``min_seconds``."""
        gc.collect()  # the last variant's tensors, graph included
        call = variant.open()
        with peak_memory(self.device) as peak:
            call()
            once = seconds_of(call, 1, self.device)
            count = max(1, round(min_seconds / once))
            variant.seconds.append(seconds_of(call, count, self.device) / count)
        variant.peak = max(variant.peak, peak[0])


@torch.no_grad()
def plain_act(policy: OpenVLAOFTPolicy, obs: dict[str, Tensor]) -> Tensor:
    """Actions [B, K, A] of the same network, computed as other systems do."""
    scaled = plain_logits(policy, obs) / SAMPLING.temperature
    drawn = torch.multinomial(scaled.softmax(-1).flatten(0, 1), 1).view(len(scaled), -1)
    return policy.decode_actions(drawn + policy.model.net.first_action_id)


def plain_logits(policy: OpenVLAOFTPolicy, obs: dict[str, Tensor]) -> Tensor:
    """Action logits [B, T, 256], cut out of those of all positions and all words."""
    model, language, batch = policy.model, policy.model.language_model, len(obs["images"])
    prompt, present = _padded_prompt(policy, batch)
    with policy.parts.number_format():
        context = model._context(Inputs(policy.pixels(obs["images"]), prompt))
        prefix = model._prefix(prompt, context)
        embeddings = torch.cat([prefix, *model._tail(prompt, prefix, None)], dim=1)
        mask = model._present(present, context.shape[1], model.net.tail_tokens)
        assert mask is not None
        output = language.model(
            inputs_embeds=embeddings, attention_mask=mask.long(), output_hidden_states=True,
            position_ids=(mask.long().cumsum(1) - 1).clamp(min=0),
        )  # fmt: skip
        logits = language.lm_head(output.last_hidden_state).float()
    last = PLAIN_PROMPT + context.shape[1] - 1
    return logits[:, last : last + model.net.action_tokens, language.action_rows]


def _padded_prompt(policy: OpenVLAOFTPolicy, batch: int) -> tuple[Tensor, Tensor]:
    """Padding stands behind BOS, as RLinf has it."""
    row = policy.prompts[0]
    fill = row.new_full((PLAIN_PROMPT - len(row),), policy.tokenizer.pad_id)
    prompt = torch.cat([row[:1], fill, row[1:]])
    present = torch.ones_like(prompt, dtype=torch.bool)
    present[1 : 1 + len(fill)] = False
    return prompt.expand(batch, -1), present.expand(batch, -1)


def rows_of(variants: list[Variant]) -> list[dict[str, Any]]:
    rate = next(v.flops / median(v.seconds) for v in variants if v.name == "matmul")
    rows = []
    for v in variants:
        per_s = [1 / s if v.name == "matmul" else v.batch / s for s in v.seconds]
        rows.append(
            {
                "variant": v.name,
                "batch": v.batch,
                "unit": {"matmul": "products", "train": "samples"}.get(v.name, "chunks") + "/s",
                "rate": spread(per_s),
                "ms": spread([1000 * s for s in v.seconds]),
                "tflops": v.flops / median(v.seconds) / 1e12,
                "matmul_share": v.flops / median(v.seconds) / rate,
                "peak_gb": v.peak / 1e9,
            }
        )
    return rows


def ratios_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    """How many times the chunks a second of ``plain``."""
    rate = {(row["variant"], row["batch"]): row["rate"]["median"] for row in rows}
    return {
        f"{name}/plain at {batch}": value / rate["plain", batch]
        for (name, batch), value in rate.items()
        if name in ("eager", "graph")
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", choices=["tiny", "7b"], help="default: 7b on a GPU, tiny on a CPU")
    parser.add_argument("--precision", choices=list(FORMATS), help="default: bf16 on a GPU, fp32 on a CPU")
    parser.add_argument("--batches", type=int, nargs="*", help="of act; default: 1 8 32 (64 128 on a GPU)")
    parser.add_argument("--micro-batches", type=int, nargs="*", default=[8, 32], help="of the training step")
    parser.add_argument("--matmul", type=int, help="side of the square product; default: 8192 on a GPU, 1024 on a CPU")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--min-seconds", type=float, default=1.0, help="time of one variant in one round")
    parser.add_argument("--compile", action="store_true", help="with compiled blocks (actor.model.torch_compile)")
    parser.add_argument("--gaps", action="store_true", help="precision instead of speed, all number formats")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    args = parser.parse_args()
    gpu = args.device.startswith("cuda")
    args.size = args.size or ("7b" if gpu else "tiny")
    args.precision = args.precision or ("bf16" if gpu else "fp32")
    args.batches = [1, 8, 32, 64, 128] if args.batches is None and gpu else args.batches or [1, 8, 32]
    args.matmul = args.matmul or (8192 if gpu else 1024)
    return args


def main() -> None:
    args = arguments()
    facts = begin(args)
    if args.gaps:
        report_gaps(args, facts)
        return
    bench = Bench(args)
    variants = bench.variants(args)
    for number in range(args.rounds):
        for variant in variants:
            bench.measure(variant, args.min_seconds)
            print(
                f"round {number + 1}  {variant.name:7s} {variant.batch:5d}  {1000 * variant.seconds[-1]:9.2f} ms",
                flush=True,
            )
    report(args, facts, bench, variants)


def report(args: argparse.Namespace, facts: dict[str, Any], bench: Bench, variants: list[Variant]) -> None:
    rows = rows_of(variants)
    for row in rows:
        print(
            f"{row['variant']:7s} {row['batch']:5d} {row['rate']['median']:9.2f} {row['unit']:11s} "
            f"{row['ms']['median']:9.2f} ms  {100 * row['matmul_share']:5.1f} % of matmul  {row['peak_gb']:6.2f} GB"
        )
    ratios = ratios_of(rows)
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f} times the chunks/s")
    chunk = forward_flops(bench.net, bench.prompt)
    result = {
        "machine": facts,
        "settings": vars(args),
        "prompt_tokens": bench.prompt,
        "gflop_per_chunk": chunk.total / 1e9,
        "rows": rows,
        "ratios": ratios,
    }
    name = f"model_{args.size}_{args.device.partition(':')[0]}" + ("_compiled" if args.compile else "")
    print("wrote", save(name, result))


if __name__ == "__main__":
    main()
