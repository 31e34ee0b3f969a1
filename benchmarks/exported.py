"""Time of one decision: the policy in Python against the programs that are exported of it.

    python benchmarks/exported.py
    python benchmarks/exported.py --size mid --compiled

All variants answer the same random observations with greedy actions: the whole ``act``, from uint8 pictures to actions.
They run in turns in one process, the order reversed in every second round; the first rounds are thrown away. ``eager``
is the policy in Python with adapters merged, ``lora`` the one that trains.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _measure import begin, judge, save, spread
from embodied.models.exported import build_policy as build_exported
from embodied.models.openvla_oft import Settings
from embodied.models.openvla_oft.build import build

from embodied.protocols import Examples
from embodied.types import ArraySpec, ContinuousAction, EnvSpec, Sampling

GREEDY = Sampling(do_sample=False)
INSTRUCTION = "put both the alphabet soup and the tomato sauce in the basket"
SIZES: Mapping[str, Mapping[str, Any]] = {
    "tiny": {},
    "mid": {
        "image_size": 224, "patch_size": 14, "vision_hidden_size": 192, "hidden_size": 384, "intermediate_size": 1024,
        "num_hidden_layers": 6, "num_attention_heads": 6,
    },
}  # fmt: skip
BARS = {"torch_export": ("<=", 1.0), "onnx": ("<=", 1.0)}  # of the time of eager


@dataclass
class Variant:
    name: str
    act: Callable[[], Any]
    wall: list[float] = field(default_factory=list)  # ms a decision, one entry a round
    cpu: list[float] = field(default_factory=list)

    def measure(self, calls: int) -> None:
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(calls):
            self.act()
        self.wall.append(1000 * (time.perf_counter() - began) / calls)
        self.cpu.append(1000 * (time.process_time() - cpu) / calls)


def env_of(size: int) -> EnvSpec:
    return EnvSpec(
        obs={"images": ArraySpec((1, size, size, 3), "uint8"), "state": ArraySpec((8,), "float32")},
        cameras=("front",), action=ContinuousAction((-1.0,) * 7, (1.0,) * 7), tasks=(INSTRUCTION,),
        num_init_states=(1,), max_episode_steps=400, control_hz=20.0,
    )  # fmt: skip


def policies(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The policy in Python, with adapters and without, and its programs, all bound to the same env."""
    keys = {**SIZES[args.size], "use_proprio": True, "lora_init_weights": False}
    lora = build(Settings.from_kwargs({**keys, "is_lora": True}))
    env = env_of(lora.model.net.image_size)
    lora.bind(env)
    merged = build(Settings.from_kwargs({name: value for name, value in keys.items() if name != "lora_init_weights"}))
    made = {"eager": merged, "lora": lora}
    kinds = [("torch_export", None), ("onnx", None), ("torch_export", "int8"), ("onnx", "int8")]
    for kind, quantize in [*kinds, *([("aoti", None)] if args.compiled else [])]:
        name = f"{kind}_{quantize}" if quantize else kind
        began = time.perf_counter()
        (folder / name).mkdir()
        notes = lora.export(kind, folder / name, "fp32", Examples(), {"quantize": quantize}).notes
        print(f"{name}: exported in {time.perf_counter() - began:.0f} s; {'; '.join(notes)}", flush=True)
        made[name] = build_exported(model_path=str(folder / name), threads=args.threads, trust=True)
    for policy in made.values():
        policy.bind(env)
        policy.eval()
    return made


def variant(name: str, policy: Any, rows: int) -> Variant:
    drawn = torch.Generator().manual_seed(0)
    spec = policy.env.obs["images"]
    obs = {
        "images": torch.randint(0, 256, (rows, *spec.shape), dtype=torch.uint8, generator=drawn),
        "state": torch.randn(rows, 8, generator=drawn),
        **policy.encode_instructions([INSTRUCTION] * rows),
    }
    noise = torch.rand(rows, *policy.spec.noise.shape, generator=drawn)
    return Variant(name, lambda: policy.act(obs, noise, GREEDY))


def measure(made: Mapping[str, Any], rows: int, args: argparse.Namespace) -> dict[str, Any]:
    variants = [variant(name, policy, rows) for name, policy in made.items()]
    for number in range(args.rounds + 2):
        for one in variants if number % 2 else reversed(variants):
            one.measure(args.calls)
    eager = variants[0]
    results, ratios = [], {}
    for one in variants:
        wall, cpu = one.wall[2:], one.cpu[2:]
        against = median(own / other for own, other in zip(cpu, eager.cpu[2:], strict=True))
        wall_ratio = median(own / other for own, other in zip(wall, eager.wall[2:], strict=True))
        ratios[one.name] = against
        results.append(
            {"variant": one.name, "ms": spread(wall), "cpu_ms": spread(cpu), "cpu_ratio": against, "ratio": wall_ratio}
        )
        print(
            f"batch {rows}  {one.name:18s} {median(wall):8.2f} ms  {median(cpu):8.2f} ms CPU  "
            f"{wall_ratio:.2f} and {against:.2f} of eager",
            flush=True,
        )
    return {"batch": rows, "rows": results, "cpu_ratios": ratios, "kept": judge(ratios, BARS)}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=[*SIZES], default="tiny")
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=20, help="decisions of a variant in a round")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--compiled", action="store_true", help="aoti, too: minutes of g++")
    parser.set_defaults(device="cpu")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    facts = begin(args)
    with tempfile.TemporaryDirectory() as folder:
        made = policies(args, Path(folder))
        found = [measure(made, rows, args) for rows in args.batch]
    facts["load_after"] = os.getloadavg()[0]
    print("wrote", save(f"exported_{args.size}_cpu", {"machine": facts, "settings": vars(args), "batches": found}))


if __name__ == "__main__":
    main()
