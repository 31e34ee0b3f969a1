"""The conformance checks for authors of envs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from embodied import instructions
from embodied.errors import SpecMismatchError
from embodied.protocols import Batched, BatchEnv, Env, Expert, HasProgressFeatures, MovesCameras, Restorable, SafeStop
from embodied.types import (
    ActionSpec,
    ArraySpec,
    ContinuousAction,
    DiscreteAction,
    EnvSpec,
    Start,
    StepResult,
    TextAction,
    WorkerFacts,
)


def check_env(env: Env, steps: int = 5) -> None:
    """Drive every method of ``env``, and exactly the capabilities that its spec declares; compare with the spec.

    Checks: observations fill every field with the declared shape and dtype, and with finite numbers; equal starts and
    actions give equal episodes (unless ``repeatable=False``); ``set_state(get_state())`` goes on exactly (unless
    ``restorable=False``; of an env that is not repeatable only that it goes on is checked); a frame is uint8 [H, W, 3];
    a move of a camera by zero changes nothing, another one does, and a reset undoes it; an expert, if there is one,
    gives an action; progress features are float32 [F] and finite; a robot (``retry_safe=False``) can be stopped.

    Raises:
        SpecMismatchError: the field, what was got, and what was expected.
    """
    spec = env.spec
    _check_spec(spec)
    env.preflight()
    facts = env.prepare()
    _expect(isinstance(facts, WorkerFacts), "prepare()", type(facts).__name__, "WorkerFacts")
    actions = spec.action.sample(np.random.default_rng(0), 2 * steps)
    env.reset(Start(0, 0, 0))
    first, where = _observe(env), _features(env)
    before = [_step(env, action) for action in actions[:steps]]
    state = _restorable(env).get_state() if spec.restorable else None
    after = [_step(env, action) for action in actions[steps:]]
    end = _observe(env)
    if spec.restorable:
        _restorable(env).set_state(state)
        again = [_step(env, action) for action in actions[steps:]]
        _compare(spec, "after set_state(get_state())", (again, after), (_observe(env), end))
    env.reset(Start(0, 0, 0))
    start = {**_observe(env), **_features(env)}
    again = [_step(env, action) for action in actions]
    _compare(spec, "of an equal start", (again, before + after), (start, {**first, **where}))
    _check_frame(env.frame())
    if isinstance(env, MovesCameras):
        _check_cameras(env, spec)
    if isinstance(env, Expert):
        _check_expert(env, spec)
    if not spec.retry_safe:
        _expect(isinstance(env, SafeStop), "safe_stop() of an env with retry_safe=False", "none", "a method")
        env.safe_stop()  # type: ignore[attr-defined]
    env.close()


def check_batch_env(env: Env, num_slots: int = 3, steps: int = 5, tolerance: float = 0.0) -> None:
    """Drive every method of ``env.batch(num_slots)`` and compare with the env's spec.

    Checks: equal starts give equal episodes, in whichever slot and whatever runs beside them; a reset of some slots
    leaves the others as they are; slots that are not active change nothing for the others; an observation fills every
    field of the slots that were asked for; a frame is uint8 [H, W, 3].

    The comparisons are left out of an env with ``repeatable=False``, unless a tolerance says what may be expected.

    Args:
        tolerance: largest difference of rewards, and of numbers of observations other than uint8 (GPU simulators place
            the copies in one space, so each rounds in its own way). Above 0 pictures are not compared.

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
    actions = spec.action.sample(np.random.default_rng(0), 2 * steps)
    before, after = actions[:steps], actions[steps:]

    def play(given: np.ndarray, slots: Sequence[int]) -> dict[int, list[float]]:
        return _play_batch(batch, spec, given, slots, num_slots)

    def look() -> list[dict[str, np.ndarray]]:
        return _observe_batch(batch, spec, num_slots, isinstance(env, HasProgressFeatures))

    def same(what: str, slots: Sequence[int], got: Any, expected: Any) -> None:
        for slot in slots if spec.repeatable or tolerance else ():
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
    batch: BatchEnv, spec: EnvSpec, actions: np.ndarray, slots: Sequence[int], num_slots: int
) -> dict[int, list[float]]:  # fmt: skip
    """Play the same actions in some slots. Returns rewards by slot."""
    active = np.zeros(num_slots, bool)
    active[list(slots)] = True
    rewards: dict[int, list[float]] = {slot: [] for slot in slots}
    for action in actions:
        results = batch.step(np.stack([action if moves else spec.action.neutral() for moves in active]), active)
        _expect(len(results) == num_slots, "step()", f"{len(results)} results", f"{num_slots}, one a slot")
        for slot in slots:
            rewards[slot].append(_reward(results[slot]))
    return rewards


def _observe_batch(batch: Any, spec: EnvSpec, num_slots: int, features: bool) -> list[dict[str, np.ndarray]]:
    """Observe as :func:`_observe` does: all slots together, then each alone. ``features``: with those of progress."""

    def over(value: int, slots: Sequence[int]) -> list[dict[str, np.ndarray]]:
        outs = [{name: np.full(f.shape, value, f.dtype) for name, f in spec.obs.items()} for _ in slots]
        batch.observe(slots, outs)
        return outs

    filled, alone = over(0, range(num_slots)), [over(1, [slot])[0] for slot in range(num_slots)]
    for slot in range(num_slots):
        _check_written(spec, filled[slot], alone[slot], f" of slot {slot}")
        if features:
            filled[slot]["progress_features"] = batch.progress_features(slot).copy()
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


def _check_cameras(env: MovesCameras, spec: EnvSpec) -> None:
    def look(move: float | None) -> dict[str, np.ndarray]:
        env.reset(Start(0, 0, 0))  # type: ignore[attr-defined]  # it is an Env as well
        for camera in spec.cameras if move is not None else ():
            env.move_camera(camera, np.full(3, move), np.full(3, move))
        return _observe(env)  # type: ignore[arg-type]

    still = look(None)
    _compare(spec, "after move_camera by zero", ([], []), (look(0.0), still))
    moved = look(0.05)
    for camera, name in enumerate(spec.cameras):
        differ = bool((moved["images"][camera] != still["images"][camera]).any())
        _expect(differ, f"picture of '{name}' after move_camera", "the same", "another one")
    _compare(spec, "after a reset that follows move_camera", ([], []), (look(None), still))


def _check_expert(env: Expert, spec: EnvSpec) -> None:
    env.reset(Start(0, 0, 0))  # type: ignore[attr-defined]  # it is an Env as well
    action, field = np.asarray(next(env.expert())), spec.action.field(1)
    shown, wanted = f"{action.dtype} {action.shape}", f"{field.dtype} {field.shape[1:]}"
    _expect(shown == wanted, "an action of expert()", shown, wanted)
    low, high = _bounds(spec.action)
    inside = (action >= np.array(low) - 1e-5) & (action <= np.array(high) + 1e-5)
    _expect(bool(inside.all()), "an action of expert()", str(action), f"in {low}..{high}")


def _bounds(action: ActionSpec) -> tuple[Any, Any]:
    """The lowest and the highest number of an action; any bytes are a text."""
    if isinstance(action, ContinuousAction):
        return action.low, action.high
    return (0, action.num_actions - 1) if isinstance(action, DiscreteAction) else (0, 255)


def _check_action(action: ActionSpec) -> None:
    _expect(
        isinstance(action, ActionSpec), "spec.action", type(action).__name__,
        "a ContinuousAction, a DiscreteAction or a TextAction",
    )  # fmt: skip
    if isinstance(action, TextAction):
        _expect(action.max_bytes > 0, "spec.action.max_bytes", str(action.max_bytes), "1 or more")
        return
    if isinstance(action, DiscreteAction):
        _expect(action.num_actions > 0, "spec.action.num_actions", str(action.num_actions), "1 or more")
        return
    low, high = action.low, action.high
    _expect(len(low) == len(high), "spec.action.low and high", f"{len(low)} and {len(high)} numbers", "equally many")
    _expect(len(low) > 0, "spec.action", "no number", "one or more")
    wrong = [i for i, (least, most) in enumerate(zip(low, high, strict=True)) if not least <= most]
    _expect(not wrong, "spec.action.low", f"above high in dimensions {wrong}", "low ≤ high")


def _check_spec(spec: EnvSpec) -> None:
    if (own := spec.obs.get(instructions.FIELD)) is not None:
        fits = own.dtype == "uint8" and len(own.shape) == 1
        _expect(fits, f"spec.obs['{instructions.FIELD}']", f"{own.dtype} {own.shape}", "uint8 (L,): text as UTF-8")
    _check_action(spec.action)
    _expect(len(spec.tasks) > 0, "spec.tasks", "none", "one instruction or more")
    _expect(
        len(spec.tasks) == len(spec.num_init_states),
        "spec.num_init_states",
        str(len(spec.num_init_states)),
        f"one for each of {len(spec.tasks)} tasks",
    )
    if "images" not in spec.obs:
        _expect(not spec.cameras, "spec.cameras", str(spec.cameras), "(), as spec.obs has no 'images'")
    else:
        shape = spec.obs["images"].shape
        _expect(
            len(shape) == 4 and shape[0] == len(spec.cameras) and shape[3] == 3,
            "spec.obs['images']",
            str(shape),
            f"({len(spec.cameras)}, H, W, 3)",
        )


def _observe(env: Env) -> dict[str, np.ndarray]:
    """Observe into arrays that held other values before, so that a field that is not written shows."""
    zeros, ones = (_observe_over(env, value) for value in (0, 1))
    _check_written(env.spec, zeros, ones)
    if instructions.FIELD in zeros:
        text = instructions.read(zeros[instructions.FIELD])
        _expect("\ufffd" not in text, f"observation '{instructions.FIELD}'", repr(text), "UTF-8 (instructions.write)")
    return zeros


def _check_written(spec: EnvSpec, zeros: dict[str, np.ndarray], ones: dict[str, np.ndarray], of: str = "") -> None:
    """Compare two observations of one moment: one into arrays of zeros, one into arrays of ones. Those of an env that
    is not repeatable may differ: there a field counts as missing if all of it stayed as it was."""
    for name, field in spec.obs.items():
        if field.dtype.startswith("float"):
            finite = bool(np.isfinite(zeros[name]).all() and np.isfinite(ones[name]).all())
            _expect(finite, f"observation '{name}'{of}", "numbers that are not finite", "finite ones")
        what = f"observation '{name}'{of}: written by observe()"
        if spec.repeatable:
            _same(what, zeros[name], ones[name], field)
        else:
            untouched = bool((zeros[name] == 0).all() and (ones[name] == 1).all())
            _expect(not untouched, what, "no value", f"{field.dtype} {field.shape}")


def _features(env: Env) -> dict[str, np.ndarray]:
    """The env's progress features by name; empty if it offers none."""
    if not isinstance(env, HasProgressFeatures):
        return {}
    found, dim = env.progress_features(), env.num_progress_features
    shown = f"{found.dtype} {found.shape}"
    _expect(shown == f"float32 ({dim},)", "progress_features()", shown, f"float32 ({dim},)")
    _expect(bool(np.isfinite(found).all()), "progress_features()", "numbers that are not finite", "finite ones")
    return {"progress_features": found.copy()}


def _observe_over(env: Env, value: int) -> dict[str, np.ndarray]:
    out = {name: np.full(spec.shape, value, spec.dtype) for name, spec in env.spec.obs.items()}
    env.observe(out)
    return out


def _step(env: Env, action: np.ndarray) -> float:
    result = env.step(action)
    reward = _reward(result)
    _check_info(env.spec, result)
    return reward


def _check_info(spec: EnvSpec, result: StepResult) -> None:
    declared = ", ".join(spec.info) or "nothing"
    _expect(
        set(result.info) <= set(spec.info), "info of step()", ", ".join(result.info), f"{declared}, as spec.info says"
    )
    for name, value in result.info.items():
        fits = isinstance(value, int) and -(2**63) <= value < 2**63
        _expect(fits, f"info['{name}'] of step()", repr(value), "a whole number of 64 bits")


def _reward(result: StepResult) -> float:
    _expect(isinstance(result, StepResult), "step()", type(result).__name__, "StepResult")
    _expect(bool(np.isfinite(result.reward)), "reward of step()", str(result.reward), "a finite number")
    return float(result.reward)


Rewards = list[float]
Seen = dict[str, np.ndarray]


def _compare(spec: EnvSpec, when: str, rewards: tuple[Rewards, Rewards], seen: tuple[Seen, Seen]) -> None:
    """Compare rewards and observation (got, expected) of two episodes: they must be equal if the env is repeatable."""
    if not spec.repeatable:
        return
    _expect(rewards[0] == rewards[1], f"rewards {when}", str(rewards[0]), str(rewards[1]))
    for name, expected in seen[1].items():
        _same(f"observation '{name}' {when}", seen[0][name], expected, None)


def _restorable(env: Env) -> Restorable:
    _expect(
        isinstance(env, Restorable), "spec.restorable", "an env without get_state() and set_state()",
        "both, or EnvSpec(restorable=False)",
    )  # fmt: skip
    return env  # type: ignore[return-value]


def _same(what: str, got: np.ndarray, expected: np.ndarray, spec: ArraySpec | None) -> None:
    differ = int((got != expected).sum())
    of = f"{spec.dtype} {spec.shape}" if spec else f"{got.size} values"
    _expect(differ == 0, what, f"{differ} values differ", f"the same {of} both times")


def _expect(holds: bool, what: str, got: str, expected: str) -> None:
    if not holds:
        raise SpecMismatchError(
            f"{what}: got {got}, expected {expected}",
            "correct the env; embodied/protocols/env.py says what each method promises",
        )
