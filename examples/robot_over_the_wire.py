"""A simulated robot that is driven by a policy server in another process.

    python -m embodied.tools.serve runs/NAME/checkpoints/000100 --port 8000
    python examples/robot_over_the_wire.py ws://127.0.0.1:8000 --like runs/NAME/eval/000100.json --env \
        embodied.envs.libero.LiberoEnv '{"task_suite_name": "libero_spatial"}'

With the defaults the simulator waits for each answer: the actions are those that an evaluation in one process executes,
and ``--like`` compares its episodes one by one. With ``--latency-ms`` time goes on while an answer is under way: the
simulator makes a control step every 1/control_hz seconds, with whatever action there is (``--mode``). ``--clock steps``
counts the latency in control steps instead of waiting for it: a slow machine gives the same numbers as a fast one.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from embodied import instructions
from embodied.client import Answer, ChunkQueue, Client, Guard
from embodied.errors import EmbodiedError
from embodied.lib.targets import load_target
from embodied.protocols import Env
from embodied.runtime.plan import eval_plan
from embodied.types import Start


@dataclass(frozen=True)
class Ran:
    """An episode that was executed."""

    start: Mapping[str, int]
    success: bool
    steps: int  # control steps
    held: int  # of these: without an action, because the answer was under way


class Clock(Protocol):
    """When control steps begin, and when answers are there."""

    @property
    def horizon(self) -> int | None: ...

    @property
    def continues(self) -> bool: ...

    def tick(self) -> None:
        """Wait for the next control step."""

    def standing(self) -> AbstractContextManager[None]:
        """Time stands still while the simulator draws: a robot's camera has its picture ready."""

    def infer_async(self, observation: Mapping[str, Any], **options: Any) -> Any:
        """Options as of :meth:`embodied.client.Client.infer_async`."""


class RealTime:
    """The clock on the wall: control steps begin at their times, answers take longer by the latency."""

    def __init__(self, client: Client, hertz: float, latency_s: float) -> None:
        self._client, self._period_s, self._latency_s = client, 1.0 / hertz, latency_s
        self._line = ThreadPoolExecutor(1)
        self._next = time.monotonic()
        self.horizon = client.horizon

    @property
    def continues(self) -> bool:
        return self._client.continues

    def tick(self) -> None:
        """After a step that is late by more than a period, the next comes a whole period later."""
        time.sleep(max(0.0, self._next - time.monotonic()))
        now = time.monotonic()
        self._next = (now if now > self._next + self._period_s else self._next) + self._period_s

    @contextmanager
    def standing(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._next += time.monotonic() - began

    def infer_async(self, observation: Mapping[str, Any], **options: Any) -> Future[Answer]:
        def there_and_back() -> Answer:
            time.sleep(self._latency_s / 2)
            answer = self._client.answer(observation, **options)
            time.sleep(self._latency_s / 2)
            return answer

        return self._line.submit(there_and_back)


class StepTime:
    """A clock that counts control steps: an answer comes so many steps after its question, however long it takes."""

    def __init__(self, client: Client, hertz: float, latency_s: float) -> None:
        self._client, self._delay = client, math.ceil(latency_s * hertz - 1e-9)  # 0.14 s at 50 Hz are 7.000000000000001
        self._now = 0
        self.horizon = client.horizon

    @property
    def continues(self) -> bool:
        return self._client.continues

    def tick(self) -> None:
        self._now += 1

    def standing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def infer_async(self, observation: Mapping[str, Any], **options: Any) -> StepTimeAnswer:
        answer = self._client.answer(observation, **options)
        due = self._now + self._delay
        return StepTimeAnswer(answer, lambda: self._now >= due)


@dataclass(frozen=True)
class StepTimeAnswer:
    """An answer that is not to be known yet."""

    answer: Answer
    done: Callable[[], bool]

    def result(self) -> Answer:
        return self.answer

    def cancel(self) -> bool:
        return True


def run(env: Env, queue: ChunkQueue, clock: Clock, start: Start, max_steps: int, log: list[Any]) -> Ran:
    """Executes an episode. Its actions are appended to ``log``."""
    spec, held = env.spec, queue.held
    out = {name: np.zeros(field.shape, field.dtype) for name, field in spec.obs.items()}

    def observe() -> dict[str, Any]:
        with clock.standing():
            env.observe(out)
        prompt = instructions.read(out[instructions.FIELD]) if instructions.FIELD in out else spec.tasks[start.task_id]
        return {**{name: out[name].copy() for name in instructions.fields_of(spec)}, "prompt": prompt}

    env.reset(start)
    queue.reset()
    actions: list[np.ndarray] = []
    success = ended = False
    while not ended and len(actions) < max_steps:
        clock.tick()
        actions.append(queue.action(observe))
        result = env.step(actions[-1])
        success, ended = success or result.success, result.terminated or result.truncated
    log.append(np.stack(actions))
    return Ran(asdict(start), success, len(actions), queue.held - held)


def compare(ran: Sequence[Ran], like: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns lines on how episodes differ from those of an evaluation with the same starts."""
    pairs = [*zip(ran, like, strict=True)]
    same = [one.success == other["success"] and one.steps == other["steps"] for one, other in pairs]
    lines = [f"in one process: {sum(other['success'] for other in like)}/{len(like)} succeed"]
    lines += [f"equal in success and length: {sum(same)} of {len(same)} episodes"]
    differing = [pair for pair, equal in zip(pairs, same, strict=True) if not equal]
    return lines + [
        f"  {one.start}: success {one.success} after {one.steps} steps, in one process {other['success']} after "
        f"{other['steps']}"
        for one, other in differing
    ]  # fmt: skip


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Drive a simulated robot by a policy server.")
    parser.add_argument("url", help="of the server, e.g. ws://127.0.0.1:8000")
    parser.add_argument("--token-file", type=Path, help="file that holds the server's token")
    parser.add_argument(
        "--env", nargs="+", required=True, metavar=("CLASS", "JSON"), help="env class and its arguments"
    )
    parser.add_argument("--like", type=Path, help="eval/NUMBER.json of a run: the same starts, and a comparison")
    parser.add_argument("--episodes", type=int, default=1, help="of each task, without --like (default: 1)")
    parser.add_argument("--max-steps", type=int, help="control steps of an episode (default: the env's)")
    parser.add_argument("--mode", default="wait", help="wait, ahead or realtime (default: wait)")
    parser.add_argument(
        "--execute", type=int, help="control steps from one question to the next (default: all of an answer)"
    )
    parser.add_argument("--latency-ms", type=float, default=0.0, help="added to each answer; time goes on meanwhile")
    parser.add_argument("--clock", choices=("real", "steps"), default="real", help="(default: real)")
    parser.add_argument("--guard", type=Path, help="YAML of a guard")
    parser.add_argument("--out", type=Path, help="file for the results (JSON)")
    parser.add_argument("--actions", type=Path, help="file for the executed actions (npz, an array an episode)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 after an explained error."""
    given = arguments().parse_args(argv)
    try:
        for line in drive(given):
            print(line, flush=True)
    except EmbodiedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def drive(given: argparse.Namespace) -> list[str]:
    """Runs the episodes; returns lines to say."""
    target, *kwargs = given.env
    env: Env = load_target(target, "--env")(**json.loads(kwargs[0] if kwargs else "{}"))
    like = json.loads(given.like.read_text(encoding="utf-8"))["episodes"] if given.like else []
    starts = [Start(**one["start"]) for one in like] or [
        one.start for one in eval_plan(env.spec, episodes_per_task=given.episodes)
    ]
    token = given.token_file.read_text(encoding="utf-8").strip() if given.token_file else None
    guard = Guard.from_yaml(given.guard) if given.guard else None
    late = given.latency_ms > 0
    env.prepare()
    log: list[np.ndarray] = []
    with Client(given.url, token, greedy=True, timeout_s=60.0) as client:
        clock: Clock = (RealTime if given.clock == "real" else StepTime)(
            client, env.spec.control_hz, given.latency_ms / 1000
        )
        execute = given.execute or client.horizon or 1
        hold = env.spec.action.neutral() if late else None
        queue = ChunkQueue(clock, execute, given.mode, hold=hold, guard=guard)
        steps = given.max_steps or env.spec.max_episode_steps
        ran = [run(env, queue, clock, start, steps, log) for start in starts]
    env.close()
    if given.out:
        given.out.write_text(json.dumps([asdict(one) for one in ran], indent=1), encoding="utf-8")
    if given.actions:
        np.savez(given.actions, *log)
    successes, steps, held = np.sum([(one.success, one.steps, one.held) for one in ran], axis=0)
    lines = [
        f"{successes}/{len(ran)} succeed, {steps / len(ran):.1f} control steps an episode, {held / len(ran):.1f} of "
        "them without an action"
    ]
    return lines + (compare(ran, like) if like else [])


if __name__ == "__main__":
    sys.exit(main())
