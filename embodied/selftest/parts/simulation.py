"""ManiSkill: copies of a task in one simulation on the GPU, against the simulation of a CPU."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from embodied.lib.targets import load_target
from embodied.observe.terminal import streams
from embodied.protocols import Batched, Env
from embodied.schema import target_kwargs
from embodied.schema.compose.compose import compose
from embodied.selftest import apart
from embodied.selftest.measured import Measured, NotRun, at_least, at_most, figure, none_of
from embodied.selftest.place import Place
from embodied.types import EnvSpec, Obs, Start

KEYS = (
    "experiment=null", "env=maniskill_pickcube", "env.train.state=[qpos,tcp_pose]", "env.train.show_goal=false",
    "env.train.init_params.camera_heights=64", "env.train.init_params.camera_widths=64",
)  # fmt: skip
COPIES = {"cpu": 2, "gpu": 8}
STEPS = 8
NOT_EMPTY = 5.0  # standard deviation, of 255
CLOSE_STATE = 0.1  # rad and m, of means over copies
CLOSE_REWARD = 0.1  # tolerance; rewards are at most 1


def simulation(place: Place) -> Iterator[Measured]:
    """Measures GPU simulation: whether pictures and states are there, and how far the means are from the CPU's."""
    absent = [package for package in ("mani_skill", "sapien") if find_spec(package) is None]
    if absent:
        raise NotRun(f"ManiSkill is not installed, {absent[0]} is missing: pip install 'embodied-rl[maniskill]'")
    cpu = _apart("cpu", place, "cpu")
    yield from _sound("CPU", cpu)
    if not place.on_gpu:
        again = _apart("cpu", place, "again")
        differ = sum(not np.array_equal(cpu[name], again[name]) for name in ("states", "rewards", "images"))
        yield none_of("CPU: states, rewards and pictures that differ the second time", differ, 3)
        return
    gpu = _apart("gpu", place, "gpu")
    yield from _sound("GPU", gpu)
    yield figure("GPU: control steps of all copies", float(gpu["steps_per_s"]), "a second")
    gap = np.abs(gpu["states"].mean(1) - cpu["states"].mean(1))
    yield at_most("states of GPU and CPU, means over copies", float(gap.max()), CLOSE_STATE, "rad or m")
    gap = np.abs(gpu["rewards"].mean(1) - cpu["rewards"].mean(1))
    yield at_most("rewards of GPU and CPU, means over copies", float(gap.max()), CLOSE_REWARD)
    gap = abs(float(gpu["images"].mean()) - float(cpu["images"].mean()))
    yield at_most("pictures of GPU and CPU, means", gap, 16.0, "of 255")


def _sound(side: str, found: dict[str, np.ndarray]) -> Iterator[Measured]:
    states, rewards = found["states"], found["rewards"]
    yield none_of(f"{side}: states that are not finite", int((~np.isfinite(states)).sum()), states.size)
    yield none_of(f"{side}: rewards that are not finite", int((~np.isfinite(rewards)).sum()), rewards.size)
    for copy, picture in enumerate(found["images"]):
        yield at_least(f"{side}: standard deviation of picture {copy}", float(picture.std()), NOT_EMPTY, "of 255")
    moved = float(np.abs(states[-1] - states[0]).max())
    yield at_least(f"{side}: largest motion", moved, 0.01, "rad or m")


def _apart(backend: str, place: Place, name: str) -> dict[str, np.ndarray]:
    """Simulates in a process of its own: PhysX begins on a GPU, or not, once in a process."""
    file = place.folder / f"{name}.npz"
    apart.ask(__name__, backend, file, place.device)
    with np.load(file) as found:
        return dict(found)


def simulate(backend: str, file: Path) -> None:
    """Simulates N copies under equal random actions; writes states [T, N, S], rewards [T, N] and pictures [N, C, H, W,
    3] to ``file``."""
    side = compose([*KEYS, f"env.train.sim_backend={backend}"]).config.env.train
    env: Env = load_target(side.target, "env.train._target_")(**target_kwargs(side, "env.train"))
    env.prepare()
    copies = COPIES[backend]
    low, high = (np.asarray(bound, np.float32) for bound in (env.spec.action_low, env.spec.action_high))
    random = np.random.default_rng(0)
    actions = random.uniform(low, high, (STEPS, len(low))).astype(np.float32)
    found = _together(env, copies, actions) if isinstance(env, Batched) else _one_by_one(env, copies, actions)
    np.savez(file, allow_pickle=False, **found)


def _starts(copies: int) -> list[Start]:
    return [Start(0, 0, seed) for seed in range(copies)]


def _together(env: Batched, copies: int, actions: np.ndarray) -> dict[str, np.ndarray]:
    batch, slots, spec = env.batch(copies), list(range(copies)), env.spec  # type: ignore[attr-defined]
    batch.reset(slots, _starts(copies))
    outs = [_out(spec) for _ in slots]
    states, rewards = [], []
    began = time.monotonic()
    for action in actions:
        results = batch.step(np.repeat(action[None], copies, 0), np.ones(copies, bool))
        rewards.append([result.reward for result in results])
        batch.observe(slots, outs)
        states.append([out["state"].copy() for out in outs])
    seconds = time.monotonic() - began
    batch.close()
    images = [out["images"] for out in outs]
    rate = np.asarray(copies * len(actions) / seconds)
    return {**_arrays(states, rewards, images), "steps_per_s": rate}


def _one_by_one(env: Env, copies: int, actions: np.ndarray) -> dict[str, np.ndarray]:
    states = np.zeros((len(actions), copies, *env.spec.obs["state"].shape), np.float32)
    rewards, images = np.zeros((len(actions), copies)), []
    for copy, start in enumerate(_starts(copies)):
        env.reset(start)
        out = _out(env.spec)
        for step, action in enumerate(actions):
            rewards[step, copy] = env.step(action).reward
            env.observe(out)
            states[step, copy] = out["state"]
        images.append(out["images"])
    env.close()
    return _arrays(states, rewards, images)


def _arrays(states: object, rewards: object, images: object) -> dict[str, np.ndarray]:
    return {"states": np.asarray(states), "rewards": np.asarray(rewards), "images": np.asarray(images)}


def _out(spec: EnvSpec) -> Obs:
    return {name: np.zeros(field.shape, field.dtype) for name, field in spec.obs.items()}


if __name__ == "__main__":
    streams.for_log()
    sys.exit(apart.answer(simulate, sys.argv[1:]))
