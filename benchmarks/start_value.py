"""How much noise the baseline of ``start_value`` leaves in an update, against that of groups, at equal episodes.

    python benchmarks/start_value.py collect --out /tmp/starts                 # 8 episodes of each start, no training
    python benchmarks/start_value.py report --out /tmp/starts                  # benchmarks/results/start_value.json
    python benchmarks/start_value.py collect --out /tmp/starts experiment=…    # of another experiment
    python benchmarks/start_value.py made                                      # a made-up problem, in a minute

``collect`` plays whole passes through the starts with one policy. It keeps the return of each episode, and its score,
the gradient of the mean log-prob of its tokens, as a count sketch (Charikar et al., 2002). An update's gradient is
then the mean of advantage times score over its episodes, for any estimator. ``report`` draws updates of 64 episodes
from them and gives, for each estimator, the variance of the update's gradient (its trace), its noise scale in episodes
``tr Σ · B / |G|²`` (arXiv 1812.06162, equation 2.8; |G|² without the bias of the noise, of the draws and of the pool),
and the mean square of the advantages. ``collect`` with a larger ``runner.max_epochs`` adds episodes. The policy stands
still, so the memory is as good as it can be; ``--drift`` adds so much to all returns an iteration, as if the policy
became better at that rate.

``made`` has 90 starts of 3 tasks. An episode makes 5 choices of 4 by softmax(W x), x the start's 32 features, half of
them its task's; it succeeds if as many choices are right as its start needs, 0 to 6 around 1.5 with ``--spread``. So
the scores are exact, and how much the start decides is set.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measure import machine, save

from embodied import train
from embodied.algorithms.advantages import advantages
from embodied.algorithms.advantages.start_value import Seen, StartValues
from embodied.learn.batch import counts_of
from embodied.learn.trainer import Trainer

SKETCH = 4096  # numbers of a sketch: inner products are known to about 1/√4096 of the norms
EPISODES = 64
GROUPED = ("grpo", "rloo")
USUAL = ("experiment=quickstart_libero", "runner.max_epochs=12")
STILL = (
    "actor.optim.lr=1e-12", "algorithm.update_epoch=1", "runner.val_check_interval=-1", "runner.save_interval=-1",
    "runner.val_before_train=false", "env.eval.video_cfg.save_video=false", "runner.experiment_name=starts",
)  # fmt: skip

Advantages = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""``(returns, starts, tasks) → advantages``, [E] each, of one update after another."""


class Sketches:
    """Keeps the return, the start and the sketched score of each episode that a trainer is given, after those that the
    file has already."""

    def __init__(self, file: Path) -> None:
        self._file, self._rows, self._hash = file, list[dict[str, Any]](), list[tuple[torch.Tensor, torch.Tensor]]()
        if file.exists():
            stored = dict(np.load(file))
            self._rows = [dict(zip(stored, row, strict=True)) for row in zip(*stored.values(), strict=True)]

    def add(self, trainer: Trainer, arrays: Mapping[str, np.ndarray], results: Any) -> None:
        own, layout = trainer._own(arrays, results), trainer._objective.layout
        parameters = [p for _, p in trainer.policy.named_parameters() if p.requires_grad]
        for result in results:
            rows = np.asarray(result.rows, np.int64)
            found = trainer._evaluate(own.gather(rows)).logprobs.flatten(1)
            mask = layout.mask(counts_of(arrays, rows), "token_level").to(found.device)
            mean = torch.where(mask, found, 0.0).sum() / mask.sum()
            gradients = torch.autograd.grad(mean, parameters, allow_unused=True)
            start = result.episode.start
            self._rows.append({
                "value": result.episode_return, "task": start.task_id, "state": start.init_state_id,
                "success": result.success, "sketch": self._sketch(gradients),
            })  # fmt: skip
        columns: dict[str, Any] = {name: np.stack([row[name] for row in self._rows]) for name in self._rows[0]}
        np.savez(self._file, **columns)

    def _sketch(self, gradients: Any) -> np.ndarray:
        if not self._hash:
            random = torch.Generator().manual_seed(0)
            for each in gradients:
                size = 0 if each is None else each.numel()
                signs = torch.randint(2, (size,), generator=random).float() * 2 - 1
                self._hash.append((torch.randint(SKETCH, (size,), generator=random), signs))
        found = torch.zeros(SKETCH)
        for each, (place, signs) in zip(gradients, self._hash, strict=True):
            if each is not None:
                found.index_add_(0, place, each.detach().float().cpu().flatten() * signs)
        return found.numpy()


def collect(out: Path, overrides: list[str]) -> None:
    """Plays the experiment without training, and writes ``starts.npz`` after each iteration."""
    out.mkdir(parents=True, exist_ok=True)
    os.chdir(out)
    sketches, update = Sketches(out / "starts.npz"), Trainer.update

    def measured(self: Trainer, arrays: Any, results: Any, *more: Any) -> Any:
        sketches.add(self, arrays, results)
        return update(self, arrays, results, *more)

    Trainer.update = measured  # type: ignore[method-assign, assignment]
    if status := train.main([*(overrides or USUAL), *STILL]):
        raise SystemExit(status)


class OfGroups:
    """The advantages of a group estimator."""

    def __init__(self, name: str) -> None:
        self._estimate = getattr(advantages, name)

    def __call__(self, returns: np.ndarray, starts: np.ndarray, tasks: np.ndarray) -> np.ndarray:
        return self._estimate(torch.from_numpy(returns), torch.from_numpy(starts)).values.numpy()


class OfMemory:
    """The advantages of ``start_value``, which remembers the updates before.

    Args:
        drift: added to what an iteration's returns are, for each iteration.
    """

    def __init__(self, tasks: int, starts: int, half_life: float | None, drift: float = 0.0) -> None:
        self._memory, self._half_life, self._drift, self._iteration = (
            StartValues.empty(tasks, starts),
            half_life,
            drift,
            0,
        )

    def __call__(self, returns: np.ndarray, starts: np.ndarray, tasks: np.ndarray) -> np.ndarray:
        found = self.advantages(returns, starts, tasks)
        self.remember(returns, starts, tasks)
        return found

    def advantages(self, returns: np.ndarray, starts: np.ndarray, tasks: np.ndarray) -> np.ndarray:
        seen = self._seen(returns, starts, tasks)
        found = self._memory.baselines(seen, self._memory.prior, self._half_life is not None)
        return (seen.returns - found.values).numpy()

    def remember(self, returns: np.ndarray, starts: np.ndarray, tasks: np.ndarray) -> None:
        self._memory = self._memory.after(self._seen(returns, starts, tasks), self._half_life)
        self._iteration += 1

    def _seen(self, returns: np.ndarray, starts: np.ndarray, tasks: np.ndarray) -> Seen:
        values = torch.from_numpy(returns + self._drift * self._iteration)
        return Seen(values, torch.from_numpy(tasks), torch.from_numpy(starts), torch.from_numpy(starts))


class OfOthers(OfMemory):
    """As :class:`OfMemory`, but what is remembered are other episodes of the pool than those that are learnt from: a
    pool of few episodes of a start shows each again and again, which a training does not.

    Args:
        remembered: draws of the pool's first halves; each call takes the next.
    """

    def __init__(self, pool: Pool, remembered: Iterator[np.ndarray], *args: Any) -> None:
        super().__init__(*args)
        self._pool, self._remembered = pool, remembered

    def __call__(self, returns: np.ndarray, starts: np.ndarray, tasks: np.ndarray) -> np.ndarray:
        found, chosen = self.advantages(returns, starts, tasks), next(self._remembered)
        self.remember(self._pool.returns[chosen], self._pool.starts[chosen], self._pool.tasks[chosen])
        return found


class Pool:
    """Episodes of a policy that stands still: returns, starts, tasks, and sketches of their scores."""

    def __init__(self, stored: Mapping[str, np.ndarray]) -> None:
        self.returns, self.tasks = stored["value"].astype(np.float64), stored["task"].astype(np.int64)
        pairs = np.stack([self.tasks, stored["state"]], axis=1)
        _, self.starts = np.unique(pairs, axis=0, return_inverse=True)
        self.sketches, self.successes = stored["sketch"].astype(np.float64), stored["success"]
        self.episodes_of = [np.flatnonzero(self.starts == start) for start in range(self.starts.max() + 1)]

    def updates(self, group: int, count: int, seed: int, half: int | None = None) -> list[np.ndarray]:
        """Draws ``count`` updates: each start once before any comes twice, and other episodes of it each time.

        Args:
            half: of each start's episodes, 0 or 1, to draw from; None: all.
        """
        own = self.episodes_of if half is None else [episodes[half::2] for episodes in self.episodes_of]
        random, order, found = np.random.default_rng(seed), list[int](), []
        for _ in range(count):
            while len(order) < EPISODES // group:
                order += random.permutation(len(self.episodes_of)).tolist()
            chosen, order = order[: EPISODES // group], order[EPISODES // group :]
            found.append(np.concatenate([random.permutation(own[start])[:group] for start in chosen]))
        return found


def measure(
    pool: Pool, group: int, make: Callable[[int], Advantages], count: int, half: int | None = None, warmup: int = 8,
) -> dict[str, float]:  # fmt: skip
    """Measures the gradients of updates with one estimator, in 20 runs of ``count`` updates behind ``warmup``."""
    gradients, squares = [], []
    for seed in range(20):
        estimate = make(seed)
        for number, chosen in enumerate(pool.updates(group, warmup + count, seed, half)):
            found = estimate(pool.returns[chosen], pool.starts[chosen], pool.tasks[chosen])
            if number >= warmup:
                gradients.append(found @ pool.sketches[chosen] / len(chosen))
                squares.append(np.mean(found**2))
    stacked = np.stack(gradients)
    noise = float(stacked.var(axis=0, ddof=1).sum())
    episodes = len(pool.returns) if half is None else len(pool.returns) / 2
    signal = float((stacked.mean(axis=0) ** 2).sum()) - noise / len(stacked) - noise * EPISODES / episodes
    return {
        "noise": noise,
        "signal": signal,
        "noise_scale": noise * EPISODES / signal,
        "advantage_square": float(np.mean(squares)),
    }


def _of_groups(name: str, seed: int) -> Advantages:
    return OfGroups(name)


def report(out: Path, drift: float, count: int) -> dict[str, Any]:
    """Compares the estimators on what ``collect`` has written."""
    return compared(Pool(np.load(out / "starts.npz")), drift, count)


def compared(pool: Pool, drift: float, count: int) -> dict[str, Any]:
    """Compares the estimators on the episodes of ``pool``."""
    tasks, starts = int(pool.tasks.max()) + 1, len(pool.episodes_of)
    memory, found = (tasks, starts, 8.0, drift), {}
    for group in (8, 4, 2):
        for name in GROUPED:
            found[f"{name}, groups of {group}"] = measure(pool, group, partial(_of_groups, name), count)
    for group in (1, 2, 4, 8):
        found[f"start_value, groups of {group}"] = measure(pool, group, lambda _: OfMemory(*memory), count)
    for group in (1, 2, 4):

        def make(seed: int, group: int = group) -> Advantages:
            return OfOthers(pool, iter(pool.updates(group, 8 + count, 100 + seed, 0)), *memory)

        found[f"start_value, groups of {group}, others remembered"] = measure(pool, group, make, count, 1)
    within = float(np.mean([pool.returns[own].var(ddof=1) for own in pool.episodes_of if len(own) > 1]))
    facts = {
        "episodes": len(pool.returns), "starts": starts, "tasks": tasks, "success": float(pool.successes.mean()),
        "return_variance": float(pool.returns.var()), "variance_within_starts": within, "drift": drift,
    }  # fmt: skip
    return {"facts": facts, "estimators": found}


def made(spread: float, each: int = 64) -> dict[str, np.ndarray]:
    """Plays ``each`` episodes of the starts of the made-up problem."""
    random, tasks, starts, features = np.random.default_rng(0), 3, 90, 32
    task = np.repeat(np.arange(tasks), starts // tasks)
    x = (random.normal(size=(tasks, features))[task] + random.normal(size=(starts, features))) / math.sqrt(2 * features)
    needed = np.clip(np.rint(1.5 + spread * random.normal(size=starts)), 0, 6)
    weights = 0.3 * random.normal(size=(4, features))
    chance = np.exp(x @ weights.T)
    chance /= chance.sum(axis=1, keepdims=True)
    rows = np.repeat(np.arange(starts), each)
    chosen = (random.random((len(rows), 5, 1)) > chance[rows].cumsum(axis=1)[:, None, :-1]).sum(axis=2)
    score = np.eye(4)[chosen].mean(axis=1) - chance[rows]
    value = ((chosen == 0).sum(axis=1) >= needed[rows]).astype(np.float64)
    sketch = (score[:, :, None] * x[rows][:, None, :]).reshape(len(rows), -1)
    return {"value": value, "task": task[rows], "state": rows, "success": value, "sketch": sketch}


def show(found: Mapping[str, Any]) -> None:
    """Prints the table: noise of each estimator, relative to grpo with groups of 8."""
    print(json.dumps(found["facts"], indent=1))
    usual = found["estimators"]["grpo, groups of 8"]
    for name, row in found["estimators"].items():
        scale, relative = row["noise_scale"], row["noise_scale"] / usual["noise_scale"]
        print(
            f"{name:46s} noise scale {scale:8.1f} ({relative:5.2f} of grpo's)  A² {row['advantage_square']:.4f}"
            f"  tr Σ {row['noise']:.3e}  |G|² {row['signal']:.3e}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("collect", "report", "made"))
    parser.add_argument("--out", type=Path, default=Path("starts"))
    parser.add_argument("--drift", type=float, default=0.0)
    parser.add_argument("--spread", type=float, nargs="*", default=[0.5, 1.0, 2.0])
    parser.add_argument("--updates", type=int, default=12)
    options, overrides = parser.parse_known_args()
    if options.what == "collect":
        collect(options.out.resolve(), overrides)
        return
    if options.what == "report":
        found = {"recorded": report(options.out, options.drift, options.updates)}
    else:
        found = {f"made, spread {s:g}": compared(Pool(made(s)), options.drift, options.updates) for s in options.spread}
    for name, one in found.items():
        print(name)
        show(one)
    save("start_value" if options.what == "report" else "start_value_made", {**found, "machine": machine(["torch"])})


if __name__ == "__main__":
    main()
