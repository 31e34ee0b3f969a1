"""Seconds of an update for each record that taught something: ours against padded training of the same episodes.

    python benchmarks/trainer.py --device cpu --size tiny
    python benchmarks/trainer.py --device cuda --size 7b

The episodes are made up: random pictures, tokens that the policy samples for them, and for each group of ``--group``
episodes a chance of success out of ``--chances``. An episode that succeeds ends after 30 to 90 % of the horizon, one
that fails at the horizon. Both variants make one optimizer step (forward with recomputed layers, backward, AdamW on
adapters) on all of them, in turns, from the same log-probs and with the same loss and gradients:

- ``ours``: the trainer. Records of groups without an advantage are left out before the forward pass, the others go in
  micro-batches of near-equal size.
- ``padded``: every episode is filled up to the horizon by records that count nowhere, groups without an advantage are
  computed like the others, the last micro-batch is what is left over.

A *useful* record is an executed chunk of a group whose returns differ. How much is saved follows from the share of
these (``records``); what is measured is whether the trainer gets that much faster.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np
import torch
from _measure import begin, save, spread
from embodied.models.openvla_oft import Settings
from embodied.models.openvla_oft.build import build
from torch import Tensor

from embodied.learn.batch import Batch
from embodied.learn.step.meters.update_metrics import UpdateMetrics
from embodied.learn.step.passes import RankRecords
from embodied.learn.trainer import Trainer
from embodied.protocols import Policy
from embodied.runtime.slab import runtime_fields
from embodied.schema import ActorConfig, AlgorithmConfig, ModelConfig, OptimConfig
from embodied.types import ArraySpec, ContinuousAction, EnvSpec, Episode, EpisodeResult, Sampling, Start

INSTRUCTION = "put both the alphabet soup and the tomato sauce in the basket"
SAMPLING = Sampling(temperature=1.6)
CHANCES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.0)


class PaddedTrainer(Trainer):
    """Trains on everything that it is given, in a ragged row of micro-batches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._objective.carries_gradient = lambda batch: torch.ones(len(batch), dtype=torch.bool)  # type: ignore[method-assign]

    def _micro_batches(
        self, own: RankRecords, batch: Batch, chosen: Tensor, keep: Tensor, metrics: UpdateMetrics
    ) -> list[Tensor]:
        metrics.samples += len(chosen)
        return list(torch.arange(len(chosen)).split(self.actor.micro_batch_size))


@dataclass
class Variant:
    name: str
    trainer: Trainer
    results: list[EpisodeResult]
    wall: list[float] = field(default_factory=list)  # seconds of an update, one entry a round
    cpu: list[float] = field(default_factory=list)  # CPU seconds of the process, the same

    def measure(self, arrays: Mapping[str, np.ndarray], number: int) -> None:
        began, cpu = time.perf_counter(), time.process_time()
        self.trainer.update(arrays, self.results, number)
        if self.trainer.device.type == "cuda":
            torch.cuda.synchronize(self.trainer.device)
        self.wall.append(time.perf_counter() - began)
        self.cpu.append(time.process_time() - cpu)


class Bench:
    """The same episodes for both variants, each with a copy of the policy and an optimizer of its own."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.device, self.horizon = torch.device(args.device), args.horizon
        settings = Settings.from_kwargs(
            {
                "size": args.size, "precision": args.precision, "is_lora": True, "lora_rank": 32,
                "gradient_checkpointing": True, "lora_init_weights": False,
            }
        )  # fmt: skip
        policy: Policy = build(settings, self.device)
        policy.to(self.device).train()  # type: ignore[attr-defined]
        self.env = _env(settings.net_config().image_size, self.horizon * policy.spec.num_action_chunks)
        policy.bind(self.env)
        returns = _successes(args.chances, args.group)
        self.arrays, results, self.useful = self._episodes(policy, returns, args.group)
        padded = [replace(result, rows=self._all_rows(i)) for i, result in enumerate(results)]
        # One copy at a time would not hold both of a 7B model: there they share it, and weights drift together.
        own = deepcopy(policy) if args.size == "tiny" else policy
        self.variants = [
            Variant("ours", self._trainer(Trainer, policy, args), results),
            Variant("padded", self._trainer(PaddedTrainer, own, args), padded),
        ]

    def _trainer(self, kind: type[Trainer], policy: Policy, args: argparse.Namespace) -> Trainer:
        actor = ActorConfig(
            global_batch_size=len(self.arrays["t"]), micro_batch_size=args.micro_batch, optim=OptimConfig(lr=1e-6),
            model=ModelConfig.model_validate({"_target_": "embodied.models.openvla_oft.build_policy"}),
        )  # fmt: skip
        return kind(
            policy=policy, env=self.env, actor=actor, algorithm=AlgorithmConfig(group_size=args.group),
            sampling=SAMPLING, device=self.device, seed=0, max_steps=self.env.max_episode_steps, max_bad_updates=1,
        )  # fmt: skip

    def _all_rows(self, episode: int) -> tuple[int, ...]:
        return tuple(range(episode * self.horizon, (episode + 1) * self.horizon))

    def _episodes(
        self, policy: Policy, successes: np.ndarray, group: int
    ) -> tuple[dict[str, np.ndarray], list[EpisodeResult], int]:
        """Arrays of a slab with ``horizon`` rows an episode, the episodes, and how many records are useful."""
        fields = {**self.env.obs, **policy.spec.decision, **runtime_fields(policy.spec.num_action_chunks)}
        count = len(successes) * self.horizon
        arrays = {name: np.zeros((count, *spec.shape), spec.dtype) for name, spec in fields.items()}
        random = np.random.default_rng(0)
        arrays["images"][:] = random.integers(0, 256, arrays["images"].shape, dtype=np.uint8)
        lengths = np.where(successes, random.integers(3, 10, len(successes)) * self.horizon // 10, self.horizon)
        self._act(policy, arrays)
        results = []
        for i, (success, length) in enumerate(zip(successes, lengths.clip(1), strict=True)):
            rows = self._all_rows(i)[:length]
            arrays["num_steps"][list(rows)] = policy.spec.num_action_chunks
            arrays["rewards"][rows[-1], -1] = float(success)
            steps = int(length) * policy.spec.num_action_chunks
            episode = Episode(i, i // group, Start(0, i // group, 0))
            failed = not success
            results.append(EpisodeResult(episode, rows, float(success), bool(success), steps, bool(success), failed))
        solved = successes.reshape(-1, group).sum(axis=1)
        mixed = [0 < count < group for count in solved.tolist()]
        useful = sum(len(result.rows) for result in results if mixed[result.episode.group_id])
        return arrays, results, useful

    def _act(self, policy: Policy, arrays: dict[str, np.ndarray]) -> None:
        """Let the policy answer every row, so that log-probs are those of its tokens."""
        for part in np.array_split(np.arange(len(arrays["t"])), -(-len(arrays["t"]) // 32)):
            obs = {n: torch.from_numpy(arrays[n][part]).to(self.device) for n in self.env.obs}
            obs |= policy.encode_instructions([self.env.tasks[task] for task in arrays["task_id"][part]])
            drawn = torch.Generator().manual_seed(int(part[0]))
            noise = torch.rand(len(part), *policy.spec.noise.shape, generator=drawn)
            for name, values in policy.act(obs, noise.to(self.device), SAMPLING).fields.items():
                arrays[name][part] = values.cpu().numpy()


def _successes(chances: list[float], group: int) -> np.ndarray:
    """For each group its chance of success, as a share of its episodes: bool [groups · group]."""
    return np.concatenate([np.arange(group) < round(chance * group) for chance in chances])


def _env(size: int, max_steps: int) -> EnvSpec:
    return EnvSpec(
        obs={"images": ArraySpec((1, size, size, 3), "uint8")}, cameras=("front",),
        action=ContinuousAction((-1.0,) * 7, (1.0,) * 7), tasks=(INSTRUCTION,), num_init_states=(64,),
        max_episode_steps=max_steps, control_hz=20.0,
    )  # fmt: skip


def rows_of(bench: Bench) -> list[dict[str, Any]]:
    return [
        {
            "variant": variant.name,
            "records": variant.trainer.samples,
            "useful": bench.useful,
            "ms_per_useful": spread([1000 * s / bench.useful for s in variant.wall]),
            "cpu_ms_per_useful": spread([1000 * s / bench.useful for s in variant.cpu]),
        }
        for variant in bench.variants
    ]


def ratios_of(bench: Bench) -> dict[str, float]:
    """How many times the time of ``ours`` ``padded`` takes: medians over rounds of the ratio within a round."""
    ours, padded = bench.variants
    return {
        "wall": median(p / o for o, p in zip(ours.wall, padded.wall, strict=True)),
        "cpu": median(p / o for o, p in zip(ours.cpu, padded.cpu, strict=True)),
        "records": padded.trainer.samples / ours.trainer.samples,
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", choices=["tiny", "7b"], help="default: 7b on a GPU, tiny on a CPU")
    parser.add_argument("--precision", choices=["fp32", "bf16"], help="default: bf16 on a GPU, fp32 on a CPU")
    parser.add_argument("--horizon", type=int, default=12, help="chunks of an episode that fails")
    parser.add_argument("--group", type=int, default=8, help="episodes of a group")
    parser.add_argument("--chances", type=float, nargs="*", default=list(CHANCES), help="of success, one a group")
    parser.add_argument("--micro-batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    args = parser.parse_args()
    gpu = args.device.startswith("cuda")
    args.size = args.size or ("7b" if gpu else "tiny")
    args.precision = args.precision or ("bf16" if gpu else "fp32")
    return args


def rounds(bench: Bench, count: int) -> Iterator[str]:
    """Measure in turns, the order reversed in every second round; the first round is thrown away."""
    for number in range(count + 1):
        for variant in bench.variants if number % 2 else reversed(bench.variants):
            variant.measure(bench.arrays, number)
            yield f"round {number}  {variant.name:6s} {variant.wall[-1]:8.2f} s  {variant.cpu[-1]:8.2f} s CPU"
    for variant in bench.variants:
        del variant.wall[0], variant.cpu[0]


def main() -> None:
    args = arguments()
    facts = begin(args)
    bench = Bench(args)
    for line in rounds(bench, args.rounds):
        print(line, flush=True)
    rows, ratios = rows_of(bench), ratios_of(bench)
    for row in rows:
        print(
            f"{row['variant']:6s} {row['records']:5d} records, {row['useful']} useful  "
            f"{row['ms_per_useful']['median']:8.2f} ms a useful one, {row['cpu_ms_per_useful']['median']:8.2f} ms CPU"
        )
    print(f"padded/ours: {ratios['wall']:.2f} wall, {ratios['cpu']:.2f} CPU, {ratios['records']:.2f} records")
    result = {"machine": facts, "settings": vars(args), "rows": rows, "ratios": ratios}
    print("wrote", save(f"trainer_{args.size}_{args.device.partition(':')[0]}", result))


if __name__ == "__main__":
    main()
