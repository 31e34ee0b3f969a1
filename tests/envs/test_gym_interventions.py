"""``env=gym``: what ``info`` says that a human had executed in place of an action."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from embodied.envs.gym import GymEnv, env, probe

from embodied.errors import ConfigError, SpecMismatchError
from embodied.types import Start


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    """Envs are asked in this process, and no answer is kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = lambda making, remake, python: probe.describe(making, remake)  # noqa: E731
    monkeypatch.setattr(env, "facts_of", asked)
    monkeypatch.setattr(env, "ask", asked)


def helped(interventions: bool = True, done: Any = None, flag: Any = True, **more: Any) -> GymEnv:
    wrapper = {"target": "small_gym_envs.Helped", "kwargs": {"done": done, "flag": flag}}
    found = GymEnv(
        id="small_gym_envs:tests/Seen-v0",
        success="info.solved",
        wrappers=[wrapper],
        interventions=interventions,
        **more,
    )
    return found


def steps(one: GymEnv, count: int = 2) -> list[Any]:
    one.reset(Start(0, 0, 3))
    return [one.step(np.array([0.5, 0.25], np.float32)).intervention for _ in range(count)]


def test_the_executed_action_is_told_flattened_where_info_says_that_a_human_acted():
    one = helped(done=[[-2.0], [1.0]])
    assert one.spec.interventions
    first, second = steps(one)
    assert first is None
    assert second.tolist() == [-2.0, 1.0]
    assert second.dtype == np.float32
    assert steps(helped(done=[1, 1], flag=False)) == [None, None]


def test_nothing_is_read_unless_it_is_asked_for():
    one = helped(interventions=False)
    assert not one.spec.interventions
    assert steps(one) == [None, None]


@pytest.mark.parametrize(
    ("options", "said"),
    [({"done": None}, "executed_action.*is None"), ({"done": "left"}, "is 'left'"), ({"flag": "yes"}, "gave 'yes' as")],
)
def test_what_is_no_action_is_refused(options, said):
    with pytest.raises(SpecMismatchError, match=said):
        steps(helped(**options))


def test_interventions_of_vector_envs_and_of_one_of_n_actions_are_refused():
    with pytest.raises(ConfigError, match="vectorization sync"):
        helped(vectorization="sync")
    with pytest.raises(ConfigError, match="one of 3 actions"):
        GymEnv(
            id="small_gym_envs:tests/Seen-v0", success="info.solved", make_kwargs={"discrete": True}, interventions=True
        )
