"""``env=gym``: envs that raise, end their process, or give what is no number."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from embodied.envs.gym import GymEnv, env, probe

from embodied.errors import ConfigError, SpecMismatchError
from embodied.types import Start

FAULTY = f"{__name__}.Faulty"
BOX = gymnasium.spaces.Box(-1, 1, (2,))


class Faulty(gymnasium.Env):
    """Does what it is told after three steps."""

    def __init__(self, fault: str = "", actions: gymnasium.Space[Any] = BOX) -> None:
        self._fault = fault
        self.observation_space, self.action_space = BOX, actions

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(2, np.float32), {"success": False}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._steps += 1
        fault = self._fault if self._steps > 3 else ""
        if fault == "raises":
            raise RuntimeError("the gripper is jammed")
        if fault == "ends":
            raise SystemExit(3)
        reward: Any = {"no number": np.zeros(2), "nan": np.nan}.get(fault, 0.5)
        obs = np.array([0, np.inf if fault == "no state" else 1], np.float32)
        return obs, reward, False, False, {"success": np.nan if fault == "no success" else False}


@pytest.fixture
def here(monkeypatch):
    """Envs are asked in this process, which takes milliseconds."""
    monkeypatch.setattr(env, "facts_of", lambda making, remake, python: probe.describe(making, remake))


def faulty(fault: str = "", **more: Any) -> GymEnv:
    return GymEnv(entry_point=FAULTY, make_kwargs={"fault": fault, **more})


@pytest.mark.parametrize(
    ("kwargs", "kind", "message"),
    [
        ({"fault": "raises"}, ConfigError, r"RuntimeError: the gripper is jammed \(in step, .*test_gym_faults.py line"),
        ({"fault": "no number"}, SpecMismatchError, r"reward array\(\[0., 0.\]\), expected a number"),
        ({"actions": gymnasium.spaces.MultiDiscrete([2, 3])}, ConfigError, "expected Box or Discrete"),
        ({"actions": gymnasium.spaces.MultiBinary(2)}, ConfigError, "expected Box or Discrete"),
    ],
)
def test_an_env_with_a_fault_is_refused_by_what_it_did(here, kwargs, kind, message):
    with pytest.raises(kind, match=message):
        faulty(**kwargs)


def test_an_env_that_ends_its_process_is_no_env_that_cannot_be_made(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"the process that tried .*Faulty ended with status 3"):
        faulty("ends")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("nan", "progress reads return, which is nan"),
        ("no state", r"obs of an observation has the number inf"),
    ],
)
def test_what_is_not_finite_ends_the_run_with_its_name(here, fault, message):
    one = faulty(fault)  # two such episodes are equal, so it is not said that they differ
    one.reset(Start(0, 0, 0))
    out = {name: np.zeros(field.shape, field.dtype) for name, field in one.spec.obs.items()}

    def step() -> None:
        one.step(np.zeros(2, np.float32))
        one.observe(out)

    for _ in range(3):
        step()
    with pytest.raises(SpecMismatchError, match=message):
        step()


def test_a_success_of_nan_is_none(here):
    one = faulty("no success")
    one.reset(Start(0, 0, 0))
    assert [one.step(np.zeros(2, np.float32)).success for _ in range(4)] == [False] * 4
