"""For authors of a new env: does it keep the protocol's promises?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from embodied.errors import SpecMismatchError
from embodied.protocols import Batched, BatchEnv, Env, Expert
from embodied.types import ArraySpec, EnvSpec, Start, StepResult, WorkerFacts


def check_env(env: Env, steps: int = 5) -> None:
    """Drive every method of ``env`` and compare with its spec.

    Checks: observations fill every field with the declared shape and dtype; equal starts and actions give equal
    episodes; ``set_state(get_state())`` goes on exactly; a frame is uint8 [H, W, 3]; an expert, if there is one, gives
    an action.

    Raises:
        SpecMismatchError: the field, what was got, and what was expected.
    """
    spec = env.spec
    _check_spec(spec)
    env.preflight()
    facts = env.prepare()
    _expect(isinstance(facts, WorkerFacts), "prepare()", type(facts).__name__, "WorkerFacts")
    actions = np.random.default_rng(0).uniform(spec.action_low, spec.action_high, (2 * steps, spec.action_dim))
    actions = actions.astype(np.float32)
    env.reset(Start(0, 0, 0))
    first = _observe(env)
    before = [_step(env, action) for action in actions[:steps]]
    state = env.get_state()
    after = [_step(env, action) for action in actions[steps:]]
    end = _observe(env)
    env.set_state(state)
    _equal("rewards after set_state(get_state())", [_step(env, a) for a in actions[steps:]], after)
    _same_obs("after set_state(get_state())", _observe(env), end)
    env.reset(Start(0, 0, 0))
    _same_obs("of an equal start", _observe(env), first)
    _equal("rewards of an equal start", [_step(env, a) for a in actions], before + after)
    _check_frame(env.frame())
    if isinstance(env, Expert):
        _check_expert(env, spec)
    env.close()


def check_batch_env(env: Env, num_slots: int = 3, steps: int = 5, tolerance: float = 0.0) -> None:
    """Drive every method of ``env.batch(num_slots)`` and compare with the env's spec.

    Checks: equal starts give equal episodes, in whichever slot and whatever runs beside them; a reset of some slots
    leaves the others as they are; slots that are not active change nothing for the others; an observation fills every
    field of the slots that were asked for; a frame is uint8 [H, W, 3].

    Args:
        tolerance: by which rewards, and numbers of observations other than uint8, may differ (GPU simulators place the
            copies in one space, so that each rounds in its own way); above 0 pictures are not compared.

    Raises:
        SpecMismatchError: the field, what was got, and what was expected.
    """
    _expect(isinstance(env, Batched), "batch()", "none", "a method that gives a BatchEnv")
    spec = env.spec
    _check_spec(spec)
    env.preflight()
    env.prepare()
    batch, everyone = env.batch(num_slots), range(num_slots)  # type: ignore[attr-defined]
    last = Start(0, spec.num_init_states[0] - 1, 1)
    starts = [last if slot == 1 else Start(0, 0, 0) for slot in everyone]
    others = [slot for slot in everyone if slot != 1]
    actions = np.random.default_rng(0).uniform(spec.action_low, spec.action_high, (2 * steps, spec.action_dim))
    before, after = actions[:steps].astype(np.float32), actions[steps:].astype(np.float32)

    def play(given: np.ndarray, slots: Sequence[int]) -> dict[int, list[float]]:
        return _play_batch(batch, given, slots, num_slots)

    def look() -> list[dict[str, np.ndarray]]:
        return _observe_batch(batch, spec, num_slots)

    def same(what: str, slots: Sequence[int], got: Any, expected: Any) -> None:
        for slot in slots:
            _same_numbers(f"{what}, slot {slot}", got[slot], expected[slot], tolerance)

    batch.reset(everyone, starts)
    first = look()
    rewards = play(before, everyone)
    middle = look()
    rest = play(after, everyone)
    end = look()
    for name, episode in (("observation", first), ("rewards", rewards), ("rewards", rest), ("observation", end)):
        same(f"{name} of equal starts in two slots", others, [episode[others[0]]] * num_slots, episode)
    batch.reset(everyone, starts)
    same("observation of an equal start", everyone, look(), first)
    same("rewards of an equal start", everyone, play(before, everyone), rewards)
    if num_slots > 1:
        batch.reset([1], starts[:1])
        now = look()
        same("observation after a reset of slot 1", others, now, middle)
        same("observation of an equal start", [1], [first[0]] * 2, now)
        same("rewards while slot 1 is not active", others, play(after, others), rest)
        same("observation while slot 1 is not active", others, look(), end)
    _check_frame(batch.frame(num_slots - 1))
    batch.close()


def _play_batch(
    batch: BatchEnv, actions: np.ndarray, slots: Sequence[int], num_slots: int
) -> dict[int, list[float]]:  # fmt: skip
    """The same actions in some slots; rewards by slot."""
    active = np.zeros(num_slots, bool)
    active[list(slots)] = True
    rewards: dict[int, list[float]] = {slot: [] for slot in slots}
    for action in actions:
        results = batch.step(np.where(active[:, None], action, np.float32(0)), active)
        _expect(len(results) == num_slots, "step()", f"{len(results)} results", f"{num_slots}, one a slot")
        for slot in slots:
            rewards[slot].append(_reward(results[slot]))
    return rewards


def _observe_batch(batch: BatchEnv, spec: EnvSpec, num_slots: int) -> list[dict[str, np.ndarray]]:
    """As :func:`_observe`, of all slots together and then of each alone."""

    def over(value: int, slots: Sequence[int]) -> list[dict[str, np.ndarray]]:
        outs = [{name: np.full(f.shape, value, f.dtype) for name, f in spec.obs.items()} for _ in slots]
        batch.observe(slots, outs)
        return outs

    filled, alone = over(0, range(num_slots)), [over(1, [slot])[0] for slot in range(num_slots)]
    for slot in range(num_slots):
        for name, spec_of in spec.obs.items():
            what = f"observation '{name}' of slot {slot}: written by observe()"
            _same(what, filled[slot][name], alone[slot][name], spec_of)
    return filled


def _same_numbers(what: str, got: Any, expected: Any, tolerance: float) -> None:
    if isinstance(got, list):
        got, expected = {"reward": np.array(got)}, {"reward": np.array(expected)}
    for name in got:
        exact = np.issubdtype(got[name].dtype, np.integer)
        if exact and tolerance:
            continue
        gap = np.abs(got[name].astype(np.float64) - expected[name].astype(np.float64)).max(initial=0.0)
        _expect(bool(gap <= tolerance), f"{what}: {name}", f"a difference of {gap:.3g}", f"at most {tolerance:g}")


def _check_frame(frame: np.ndarray) -> None:
    fits = frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3
    _expect(fits, "frame()", f"{frame.dtype} {frame.shape}", "uint8 [H, W, 3]")


def _check_expert(env: Expert, spec: EnvSpec) -> None:
    env.reset(Start(0, 0, 0))  # type: ignore[attr-defined]  # it is an Env as well
    action = next(env.expert())
    shown = f"{action.dtype} {action.shape}"
    _expect(shown == f"float32 ({spec.action_dim},)", "an action of expert()", shown, f"float32 ({spec.action_dim},)")
    inside = (action >= np.array(spec.action_low) - 1e-5) & (action <= np.array(spec.action_high) + 1e-5)
    _expect(bool(inside.all()), "an action of expert()", str(action), f"in {spec.action_low}..{spec.action_high}")


def _check_spec(spec: EnvSpec) -> None:
    _expect(
        len(spec.action_low) == len(spec.action_high) == spec.action_dim,
        "spec.action_low/high",
        f"{len(spec.action_low)}, {len(spec.action_high)}",
        f"{spec.action_dim} numbers each",
    )
    _expect(len(spec.tasks) > 0, "spec.tasks", "none", "one instruction or more")
    _expect(
        len(spec.tasks) == len(spec.num_init_states),
        "spec.num_init_states",
        str(len(spec.num_init_states)),
        f"one for each of {len(spec.tasks)} tasks",
    )
    if "images" in spec.obs:
        shape = spec.obs["images"].shape
        _expect(
            len(shape) == 4 and shape[0] == len(spec.cameras) and shape[3] == 3,
            "spec.obs['images']",
            str(shape),
            f"({len(spec.cameras)}, H, W, 3)",
        )


def _observe(env: Env) -> dict[str, np.ndarray]:
    """An observation into arrays that hold other values before, so that a field that is not written shows."""
    filled = [_observe_over(env, value) for value in (0, 1)]
    for name, spec in env.spec.obs.items():
        _same(f"observation '{name}': written by observe()", filled[0][name], filled[1][name], spec)
    return filled[0]


def _observe_over(env: Env, value: int) -> dict[str, np.ndarray]:
    out = {name: np.full(spec.shape, value, spec.dtype) for name, spec in env.spec.obs.items()}
    env.observe(out)
    return out


def _step(env: Env, action: np.ndarray) -> float:
    return _reward(env.step(action))


def _reward(result: StepResult) -> float:
    _expect(isinstance(result, StepResult), "step()", type(result).__name__, "StepResult")
    _expect(bool(np.isfinite(result.reward)), "reward of step()", str(result.reward), "a finite number")
    return float(result.reward)


def _same_obs(what: str, got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name in expected:
        _same(f"observation '{name}' {what}", got[name], expected[name], None)


def _same(what: str, got: np.ndarray, expected: np.ndarray, spec: ArraySpec | None) -> None:
    differ = int((got != expected).sum())
    of = f"{spec.dtype} {spec.shape}" if spec else f"{got.size} values"
    _expect(differ == 0, what, f"{differ} values differ", f"the same {of} both times")


def _equal(what: str, got: list[float], expected: list[float]) -> None:
    _expect(got == expected, what, str(got), str(expected))


def _expect(holds: bool, what: str, got: str, expected: str) -> None:
    if not holds:
        raise SpecMismatchError(
            f"{what}: got {got}, expected {expected}",
            "correct the env; embodied/protocols.py says what each method promises",
        )
