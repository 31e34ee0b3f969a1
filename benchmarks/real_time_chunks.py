"""What latency costs a flow policy, and what guided chunks save of it: success and jerk, in simulated time.

    python benchmarks/real_time_chunks.py --out FOLDER    # records and clones, unless FOLDER has the clone; drives

A small flow policy is cloned from a scripted hand that catches a drifting block (``_drifting_block.py``). It then
drives the same task through ``embodied.client.ChunkQueue``. Time is counted in control steps: an answer comes d steps
after its question, so that the machine's speed changes no number. Each way has the same starts and the same noise.

    wait        the robot stands still (a velocity of 0) until the answer is there
    ahead       it executes what it has, and drops the first d actions of the new chunk
    blend       the same, and what both chunks have is blended
    guided      the new chunk goes on from the rest of the old one, by LeRobot's formula
    jacobian    the same by the paper's formula, with the derivative through the network
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _drifting_block import HERTZ, STEP
from _measure import machine, save

from embodied.client import Answer, ChunkQueue
from embodied.client.plan import Mode

HERE = Path(__file__).parent
TASK = (
    "env=gym", "env.train.id=DriftingBlock-v0", "env.train.imports=[_drifting_block]", "env.train.instruction=catch",
    "env.train.images=[obs.table]", "env.train.state=[obs.state]", "env.train.success=info.is_success",
    "env.train.expert=_drifting_block.Expert", "env.train.max_episode_steps=80",
)  # fmt: skip
CHUNK, EXECUTE, DELAYS = 20, 8, {"0 ms": 0, "100 ms": 2, "300 ms": 6}
SWEPT = "100 ms"  # the delay at which keys of the ways are varied
NETWORK = {
    "image_size": 32, "patch_size": 8, "num_action_chunks": CHUNK, "eval_steps": 5, "state_width": 8,
    "action_width": 4, "num_hidden_layers": 3, "vision_num_layers": 1, "vision_hidden_size": 48,
    "vision_intermediate_size": 96, "hidden_size": 64, "intermediate_size": 128, "expert_hidden_size": 64,
    "expert_intermediate_size": 128,
}  # fmt: skip
ITERATIONS = 12
CLONING = (
    "model=flow_vla_tiny", "data=demos/gym", "runner.experiment_name=cloned", f"runner.max_epochs={ITERATIONS}",
    "sft.steps_per_iteration=200", "runner.val_check_interval=-1", "runner.save_interval=4",
    "actor.global_batch_size=64", "actor.micro_batch_size=64", "actor.optim.lr=2e-3",
    "actor.lr_sched.lr_decay_style=cosine",
)  # fmt: skip


@dataclass(frozen=True)
class Way:
    """How chunks follow each other."""

    mode: Mode
    guided: bool = False
    keys: Mapping[str, Any] = field(default_factory=dict)  # of the policy
    blend: int | None = None  # control steps over which it blends; None = all that both chunks have


GUIDED = partial(Way, "realtime", True)
WAYS = {
    "wait": Way("wait"), "ahead": Way("ahead"), "blend": Way("realtime"), "guided": GUIDED(),
    "jacobian": GUIDED({"rtc_jacobian": True}),
}  # fmt: skip
OTHERS = {
    "blend, 3 steps": Way("realtime", blend=3),
    **{f"guided, {name}": GUIDED({"rtc_schedule": name}) for name in ("linear", "ones", "zeros")},
    "guided, weight at most 5": GUIDED({"rtc_max_weight": 5.0}),
    "jacobian, weight at most 5": GUIDED({"rtc_max_weight": 5.0, "rtc_jacobian": True}),
}  # fmt: skip


# -- the policy ------------------------------------------------------------------------------------------------------


def cloned(folder: Path, episodes: int, extra: tuple[str, ...] = ()) -> Path:
    """Records demonstrations and clones them, or goes on where that was ended; returns the run."""
    run = folder / "runs" / "cloned"
    if not (run / "checkpoints" / f"{ITERATIONS:06d}").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        network = [f"actor.model.{key}={value}" for key, value in NETWORK.items()]
        _command(folder, "embodied.tools.demos", *TASK, f"episodes={episodes}", "noise_std=0.2")
        _command(folder, "embodied.sft", *TASK, *CLONING, *network, *extra)
    return run


def _command(folder: Path, module: str, *words: str) -> None:
    path = os.pathsep.join([str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-m", module, *words], cwd=folder, env=environment, check=True)


# -- simulated time --------------------------------------------------------------------------------------------------


class Line:
    """The policy at the end of a line: an answer comes ``delay`` control steps after its question. Questions of one
    control step share a call of the policy."""

    def __init__(self, policy: Any, env: Any, delay: int, guided: bool) -> None:
        self.policy, self.env, self.delay, self.guided = policy, env, delay, guided
        self.now = 0
        self.waiting: list[Reply] = []

    def answer(self) -> None:
        """Asks the policy about all that waits."""
        from embodied.serving import inputs

        waiting, self.waiting = self.waiting, []
        shape = self.policy.spec.decision["actions"].shape
        for goes_on in (False, True):
            if rows := [one for one in waiting if inputs.goes_on(one.question.options, shape) == goes_on]:
                for one, actions in zip(rows, self._act(rows, goes_on, shape), strict=True):
                    one.actions = actions

    def _act(self, rows: list[Reply], goes_on: bool, shape: tuple[int, ...]) -> np.ndarray:
        import torch

        from embodied.instructions import fields_of
        from embodied.serving import inputs
        from embodied.types import Sampling

        questions = [one.question for one in rows]
        fields = {name: self.env.obs[name] for name in fields_of(self.env)}
        seen = {name: torch.from_numpy(v) for name, v in inputs.observations(questions, fields).items()}
        seen |= self.policy.encode_instructions([one.prompt for one in questions])
        noise = torch.from_numpy(inputs.drawn([one.place for one in rows], 0, self.policy.spec.noise, True))
        greedy = Sampling(do_sample=False)
        if not goes_on:
            return self.policy.act(seen, noise, greedy).fields["actions"].numpy()
        before = [torch.from_numpy(values) for values in inputs.left_over(questions, shape)]
        return self.policy.act_after(seen, noise, greedy, *before).fields["actions"].numpy()


@dataclass(eq=False)
class Reply:
    """An answer under way, see :class:`embodied.client.chunks.Pending`."""

    line: Line
    question: Any
    place: tuple[int, int]  # of its noise: questions of the episode before it, and the episode
    actions: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.due = self.line.now + self.line.delay
        self.line.waiting.append(self)

    def done(self) -> bool:
        return self.line.now >= self.due

    def result(self) -> Answer:
        if self.actions is None:
            self.line.answer()
        assert self.actions is not None
        return Answer(self.actions, 0.0)

    def cancel(self) -> bool:
        return True


class Asker:
    """The client of one episode, see :class:`embodied.client.chunks.AsksOn`."""

    horizon = CHUNK

    def __init__(self, line: Line, episode: int) -> None:
        self.line, self.episode, self.count, self.continues = line, episode, 0, line.guided

    def infer_async(self, observation: Any, *, delay_steps: int | None = None, left_over: Any = None) -> Reply:
        from embodied.serving.wire.requests import Options, Question

        fields = {name: value for name, value in observation.items() if name not in ("images", "prompt")}
        options = Options(delay_steps=delay_steps, left_over=left_over)
        question = Question(observation["prompt"], fields, [*observation["images"]], options)
        self.count += 1
        return Reply(self.line, question, (self.count - 1, self.episode))


# -- episodes --------------------------------------------------------------------------------------------------------


class Episode:
    """One episode of the task, driven by a queue of its own."""

    def __init__(self, make: Callable[[], Any], start: Any, line: Line, way: Way) -> None:
        self.env, self.actions = make(), list[np.ndarray]()
        self.success = self.ended = False
        hold = np.zeros(2, np.float32)
        self.queue = ChunkQueue(
            Asker(line, start.seed), EXECUTE, way.mode, blend=way.blend, gripper=(), hold=hold, delay=line.delay
        )  # fmt: skip
        self.env.prepare()
        self.env.reset(start)
        self.prompt = self.env.spec.tasks[start.task_id]

    def observe(self) -> dict[str, Any]:
        out = {name: np.zeros(spec.shape, spec.dtype) for name, spec in self.env.spec.obs.items()}
        self.env.observe(out)
        return {**out, "prompt": self.prompt}

    def step(self) -> None:
        """Makes a control step."""
        self.actions.append(self.queue.action(self.observe))
        result = self.env.step(self.actions[-1])
        self.success = self.success or result.success
        self.ended = self.success or result.terminated or len(self.actions) >= self.env.spec.max_episode_steps
        if self.ended:
            self.env.close()

    @property
    def jerk(self) -> float:
        """Root of the mean square of the hand's jerk, m/s³; it begins at rest."""
        velocity = np.concatenate([np.zeros((1, 2)), self.actions]) * STEP * HERTZ
        change = np.diff(velocity, 2, axis=0)
        return float(np.sqrt((change**2).sum(-1).mean())) * HERTZ**2 if len(change) else 0.0


def driven(policy: Any, way: Way, delay: int, make: Callable[[], Any], starts: list[Any]) -> dict[str, Any]:
    """Success, jerk and length of the episodes of ``starts``, which go on side by side."""
    settings = policy.parts.settings
    line = Line(policy, make().spec, delay, way.guided)
    policy.parts = replace(policy.parts, settings=replace(settings, **way.keys))
    episodes = [Episode(make, start, line, way) for start in starts]
    while going := [one for one in episodes if not one.ended]:
        for one in going:
            one.step()
        line.now += 1
    policy.parts = replace(policy.parts, settings=settings)
    ends = ("caught", "touched the post", "too late")
    kinds = [0 if one.success else 1 if len(one.actions) < one.env.spec.max_episode_steps else 2 for one in episodes]
    return {
        "success": float(np.mean([one.success for one in episodes])),
        "jerk": float(np.mean([one.jerk for one in episodes])),
        "control_steps": float(np.mean([len(one.actions) for one in episodes])),
        "ends": {name: kinds.count(number) for number, name in enumerate(ends)},
    }


def cells(run: Path, episodes: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Drives each way at each delay; without latency they differ in nothing that matters here, and one is driven."""
    import torch

    from embodied.learn.checkpoint.metadata import read_meta
    from embodied.learn.origin import origin_of, restore
    from embodied.lib.targets import load_target
    from embodied.runtime.plan import eval_plan

    torch.set_num_threads(1)
    checkpoint = sorted((run / "checkpoints").iterdir())[-1]
    policy, spec = restore(checkpoint)
    simulator = origin_of(checkpoint, read_meta(checkpoint)).simulator
    assert simulator is not None
    make = partial(load_target(simulator.target, "env"), **simulator.kwargs)
    starts = [one.start for one in eval_plan(spec, episodes_per_task=episodes)]
    for latency, delay in DELAYS.items():
        ways = WAYS | OTHERS if delay == DELAYS[SWEPT] else WAYS if delay else {"wait": WAYS["wait"]}
        for name, way in ways.items():
            yield latency, name, driven(policy, way, delay, make, starts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("real_time_chunks"), help="folder of the clone")
    parser.add_argument("--demonstrations", type=int, default=500)
    parser.add_argument("--episodes", type=int, default=200)
    args = parser.parse_args()
    run = cloned(args.out, args.demonstrations)
    found: dict[str, dict[str, Any]] = {latency: {} for latency in DELAYS}
    for latency, name, row in cells(run, args.episodes):
        found[latency][name] = row
        print(latency, name, row, flush=True)
    facts = machine(["torch", "numpy", "gymnasium"])
    chunks = {"control_hz": HERTZ, "chunk": CHUNK, "execute": EXECUTE, "delay_steps": DELAYS}
    print(save("real_time_chunks", {**facts, **chunks, "episodes": args.episodes, "cells": found}))


if __name__ == "__main__":
    main()
