"""For authors of a new env: does it keep the protocol's promises?"""

from __future__ import annotations

import numpy as np

from embodied.errors import SpecMismatchError
from embodied.protocols import Env, Expert
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
    frame = env.frame()
    _expect(
        frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3,
        "frame()",
        f"{frame.dtype} {frame.shape}",
        "uint8 [H, W, 3]",
    )
    if isinstance(env, Expert):
        _check_expert(env, spec)
    env.close()


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
    result = env.step(action)
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
