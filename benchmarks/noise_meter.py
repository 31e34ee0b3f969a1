"""What the meter of gradient noise costs of an update, and how far its sketch is from whole gradients.

    python benchmarks/noise_meter.py

The episodes are made up: random pictures and states, one of each for a group, noise on them at each decision. A policy
with random weights acts in them; some of its tokens become those that are sought, and their share is the reward: so
gradients have a signal and noise. Three policies:
``openvla_oft_tiny``, one of the sizes of what ``make train`` trains, ``mlp``.

- ``cpu_share``: CPU time of an update with the meter over that without, minus 1; in turns, medians over rounds, once
  all layers are checked. ``updates_that_check``: before that, a pass of two records more in each of the first updates.
- ``noise_scale``: over some updates at the same weights, from the gradients of all trained weights of each
  group (``exact``; a backward pass a group), and from the sketches, with three seeds. Both are ratios of means over all
  updates.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np
import torch
from _measure import begin, save, spread
from embodied.models.mlp import MLPPolicy
from embodied.models.openvla_oft import Settings
from embodied.models.openvla_oft.build import build
from torch import Tensor

from embodied.learn.batch import Batch
from embodied.learn.step.meters.noise.estimate import NoiseScale
from embodied.learn.step.meters.update_metrics import UpdateMetrics
from embodied.learn.trainer import Trainer
from embodied.runtime.slab import runtime_fields
from embodied.schema import ActorConfig, AlgorithmConfig, ModelConfig, OptimConfig
from embodied.types import ArraySpec, ContinuousAction, EnvSpec, Episode, EpisodeResult, Sampling, Start

CPU, SAMPLING, STATE = torch.device("cpu"), Sampling(), 8
TINY = {"size": "tiny", "precision": "fp32"}
POLICIES: Mapping[str, tuple[Mapping[str, Any], int]] = {  # settings, pictures
    "openvla_oft_tiny": (
        {**TINY, "is_lora": True, "lora_rank": 16, "lora_modules_to_save": ["lm_head"], "num_images_in_input": 1}, 1,
    ),
    "quickstart_libero": (
        {**TINY, "is_lora": False, "patch_size": 16, "num_images_in_input": 2, "value_head": True,
         "proprio_dim": STATE, "use_proprio": True}, 2,
    ),
    "mlp": ({}, 0),
}  # fmt: skip

SIZES = {"mlp": (8, 8, 5, 64, 50, 61)}
"""Groups, episodes of a group, chunks of an episode, records of a pass, updates, rounds."""
SMALL = (4, 4, 1, 8, 40, 61)  # of policies with pictures: an update of 16 records takes half a second or more
SEEDS = (0, 1, 2)
"""Of the layers that are drawn, and of the projections."""

Collected = tuple[dict[str, np.ndarray], list[EpisodeResult]]


class Bench:
    """A policy with its trainer, and episodes for it."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        self.args, (settings, pictures) = args, POLICIES[name]
        args.groups, args.group, args.horizon, args.micro_batch, args.updates, args.rounds = args.sizes or SIZES.get(
            name, SMALL
        )
        policy: Any = build(Settings.from_kwargs(dict(settings)), CPU) if pictures else MLPPolicy(num_action_chunks=8)
        self.env, self.policy = _env(pictures, args.horizon * 8), policy.train()
        policy.bind(self.env)
        self.sought: Tensor | None = None  # tokens
        self.trainer = self.made(True, epochs=1)

    def made(self, on: bool, epochs: int = 2) -> Trainer:
        """A trainer whose steps change next to nothing."""
        actor = ActorConfig(
            global_batch_size=256, micro_batch_size=self.args.micro_batch, optim=OptimConfig(lr=1e-12),
            model=ModelConfig.model_validate({"_target_": "any"}),
        )  # fmt: skip
        algorithm = AlgorithmConfig(group_size=self.args.group, update_epoch=epochs, calculate_noise_scale=on)
        return Trainer(
            policy=self.policy, env=self.env, actor=actor, algorithm=algorithm, sampling=SAMPLING, device=CPU, seed=0,
            max_steps=self.env.max_episode_steps, max_bad_updates=1,
        )  # fmt: skip

    def episodes(self, seed: int) -> Collected:
        """The episodes of an iteration, as they stand in a slab."""
        random, horizon, group = np.random.default_rng(seed), self.args.horizon, self.args.group
        fields = {**self.env.obs, **self.policy.spec.decision, **runtime_fields(8)}
        count = self.args.groups * group
        arrays = {name: np.zeros((count * horizon, *spec.shape), spec.dtype) for name, spec in fields.items()}
        start = np.arange(len(arrays["t"])) // (group * horizon)  # of each record
        states = random.normal(size=(self.args.groups, STATE))[start] + 0.3 * random.normal(size=(len(start), STATE))
        arrays["state"][:] = states
        if "images" in arrays:
            scenes = random.integers(0, 200, (self.args.groups, *arrays["images"].shape[1:]))
            arrays["images"][:] = scenes[start] + random.integers(0, 56, arrays["images"].shape)
        arrays["num_steps"][:] = 8
        self._act(arrays, seed)
        return arrays, [self._result(arrays, number) for number in range(count)]

    def _result(self, arrays: Mapping[str, np.ndarray], number: int) -> EpisodeResult:
        rows = tuple(range(number * self.args.horizon, (number + 1) * self.args.horizon))
        group = number // self.args.group
        returned = float(arrays["rewards"][list(rows)].sum())
        episode = Episode(number, group, Start(0, group, 0))
        return EpisodeResult(episode, rows, returned, returned > 0, 8 * len(rows), True, False)

    @torch.no_grad()
    def _act(self, arrays: dict[str, np.ndarray], seed: int) -> None:
        drawn = torch.Generator().manual_seed(seed)
        for part in np.array_split(np.arange(len(arrays["t"])), -(-len(arrays["t"]) // 64)):
            obs = {name: torch.from_numpy(arrays[name][part]) for name in self.env.obs}
            obs |= self.policy.encode_instructions([self.env.tasks[0]] * len(part))
            noise = torch.rand(len(part), *self.policy.spec.noise.shape, generator=drawn)
            fields = dict(self.policy.act(obs, noise, SAMPLING).fields)
            tokens, share = fields["action_tokens"], torch.rand(len(part), 1, generator=drawn)
            self.sought = tokens[0].clone() if self.sought is None else self.sought
            hit = torch.rand(tokens.shape, generator=drawn) < share
            fields["action_tokens"] = torch.where(hit, self.sought, tokens)
            fields["logprobs"] = self.policy.evaluate({**obs, **fields}, SAMPLING).logprobs
            for name, values in fields.items():
                arrays[name][part] = values.numpy()
            arrays["rewards"][part, -1] = hit.float().mean(1).numpy()


def _env(pictures: int, max_steps: int) -> EnvSpec:
    cameras = tuple(f"camera {number}" for number in range(pictures))
    seen = {"images": ArraySpec((pictures, 64, 64, 3), "uint8")} if pictures else {}
    return EnvSpec(
        obs={**seen, "state": ArraySpec((STATE,), "float32")}, cameras=cameras,
        action=ContinuousAction((-1.0,) * 7, (1.0,) * 7), tasks=("move to the right",), num_init_states=(64,),
        max_episode_steps=max_steps, control_hz=20.0,
    )  # fmt: skip


def group_gradients(trainer: Trainer, collected: Collected) -> Tensor:
    """The gradient of each group's part of the loss, of all trained weights but the value head's: float64 [G, D]."""
    own = trainer._own(*collected)
    batch, trained, own = trainer._score(own, collected[1], trainer._evaluate, None, UpdateMetrics())
    assert trained is not None
    named = [(name, p) for name, p in trainer.policy.named_parameters() if p.requires_grad]
    weights = [p for name, p in named if not name.startswith("value_head")]
    return torch.stack([_gradient(trainer, own, trained, group, weights) for group in batch.group_ids.unique()])


def _gradient(trainer: Trainer, own: Any, batch: Batch, group: Tensor, weights: Sequence[Tensor]) -> Tensor:
    found = [torch.zeros_like(p) for p in weights]
    for chosen in trainer._steps(batch, 0, 0):
        whole = trainer._objective.optimizer_batch(batch, chosen)
        part = (batch.group_ids[chosen] == group).nonzero().flatten()
        if len(part):
            records = own.gather(batch.rows[chosen[part].numpy()])
            _, total = trainer._loss(records, whole.part(part, CPU))
            for sums, grad in zip(found, torch.autograd.grad(total, weights, allow_unused=True), strict=True):
                sums += 0 if grad is None else grad
    return torch.cat([part.flatten() for part in found]).double()


@contextmanager
def sketches(trainer: Trainer) -> Any:
    """The sketches that the meter takes, one tensor an update."""
    found: list[Tensor] = []
    take = trainer.noise._scale.take
    trainer.noise._scale.take = lambda sums, episodes: (found.append(sums), take(sums, episodes))[1]  # type: ignore[method-assign, func-returns-value]
    yield found
    del trainer.noise._scale.take


def whole_mean(updates: Sequence[Tensor], episodes: int) -> dict[str, float]:
    """Noise scale and signal-to-noise as ratios of plain means over all updates."""
    found = []
    for sums in updates:
        scale = NoiseScale()
        scale.take(sums, episodes)
        found.append((scale.square, scale.trace))
    square, trace = np.mean(found, axis=0)
    return {"noise_scale_episodes": float(trace / square), "signal_to_noise": float(episodes * square / trace)}


def distance(bench: Bench) -> dict[str, Any]:
    """Noise scales from whole gradients and from sketches of each seed, over the same updates."""
    episodes, updates = bench.args.groups * bench.args.group, range(bench.args.updates)
    exact = [group_gradients(bench.trainer, bench.episodes(number)) for number in updates]
    found: dict[str, Any] = {"exact": whole_mean(exact, episodes), "sketch": [], "metrics": []}
    for seed in SEEDS:
        trainer = bench.made(True, epochs=1)
        trainer.noise._sketch._seed = seed
        with sketches(trainer) as sketched:
            for number in updates:
                trainer.update(*bench.episodes(number), number)
        found["sketch"].append(whole_mean(sketched, episodes))
        found["metrics"].append(trainer.noise.metrics(episodes))
    ratios = [one["noise_scale_episodes"] / found["exact"]["noise_scale_episodes"] for one in found["sketch"]]
    return {**found, "sketch over exact": ratios, "layers": len(bench.trainer.noise._sketch.layers)}


def share(bench: Bench) -> dict[str, Any]:
    """CPU seconds of updates with the meter and without, in turns."""
    collected, trainers = bench.episodes(0), {True: bench.made(True), False: bench.made(False)}
    seconds: dict[bool, list[float]] = {True: [], False: []}
    sketch, checks = trainers[True].noise._sketch, 0
    while set(sketch.layers) - sketch._checked:
        trainers[True].update(*collected, checks)
        checks += 1
    for number in range(bench.args.rounds + 1):
        for on in (True, False) if number % 2 else (False, True):
            began = time.process_time()
            trainers[on].update(*collected, number)
            seconds[on].append(time.process_time() - began)
    ratios = [on / off - 1 for on, off in zip(seconds[True][1:], seconds[False][1:], strict=True)]
    return {"cpu_s_with": spread(seconds[True][1:]), "cpu_s_without": spread(seconds[False][1:]),
            "updates_that_check": checks, "cpu_share": median(ratios),
            "cpu_share_of_rounds": spread(ratios)}  # fmt: skip


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="*", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--sizes", nargs=6, type=int, help="groups, episodes of a group, chunks, records of a pass, "
                        "updates, rounds; default: those of the policy")  # fmt: skip
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    args = parser.parse_args(given)
    facts, rows = begin(argparse.Namespace(**vars(args), device="cpu")), {}
    for name in args.policies:
        bench = Bench(name, args)
        sizes = {name: value for name, value in vars(args).items() if name not in ("policies", "sizes")}
        rows[name] = {"sizes": sizes, **share(bench), **(distance(bench) if args.updates else {})}
        print(name, rows[name], flush=True)
        save("noise_meter", {"machine": facts, "rows": rows})


if __name__ == "__main__":
    main()
