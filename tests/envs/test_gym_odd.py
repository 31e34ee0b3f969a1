"""``env=gym``: spaces, results and entries of success in the forms that envs of others have them."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
import pytest
import small_gym_envs
import torch
from embodied.envs.gym import GymEnv, env, late, probe, vector
from embodied.envs.gym.calls import from_action, to_action
from embodied.envs.gym.facts import GymFacts, alike
from embodied.envs.gym.mapping import MappingSettings, mapping_of
from embodied.envs.gym.sources import Rule, tells_success

from embodied import train
from embodied.errors import ConfigError, EmbodiedError, SpecMismatchError
from embodied.types import ContinuousAction, DiscreteAction, Start

spaces = gymnasium.spaces
BOX = spaces.Box(-1, 1, (2,))
ZEROS = np.zeros(2, np.float32)


class Gives(gymnasium.Env[Any, Any]):
    """Gives what it is made with. Its episodes have six steps; ``last`` is the info of the last one alone."""

    def __init__(
        self, obs: Any = ZEROS, space: Any = BOX, actions: Any = BOX, info: Any = MappingProxyType({"success": False}),
        last: Any = None, step: Any = None, reset: Any = None, steps: int = 6, cut: bool = False,
    ) -> None:  # fmt: skip
        self.observation_space, self.action_space = space, actions
        self._obs, self._info, self._last, self._step, self._reset = obs, info, last, step, reset
        self._cut, self._limit, self.got = cut, steps, []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return (self._obs, dict(self._info or {})) if self._reset is None else self._reset

    def step(self, action: Any) -> Any:
        self._steps += 1
        self.got.append(action)
        if self._step is not None:
            return self._step
        ended = self._steps == self._limit
        info = self._last if ended and self._last is not None else self._info
        return self._obs, 0.5, ended and not self._cut, ended and self._cut, info


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    """Envs are asked in this process, as the process of their own does it."""

    def asked(making: Any, remake: bool, python: Any) -> GymFacts:
        tried: list[late.ProbedEnv] = []
        facts = probe.describe(making, remake, tried=tried)
        return GymFacts(**{**vars(facts), **late.play_on(vars(facts), tried[0])})

    monkeypatch.setattr(env, "facts_of", asked)


def gives(success: str | None = None, more: Any = None, **made: Any) -> GymEnv:
    return GymEnv(entry_point=f"{__name__}.Gives", make_kwargs=made, success=success, **(more or {}))


def play(one: GymEnv, steps: int = 6) -> list[Any]:
    one.reset(Start(0, 0, 0))
    out = {name: np.zeros(field.shape, field.dtype) for name, field in one.spec.obs.items()}
    results = []
    for _ in range(steps):
        one.observe(out)
        results.append(one.step(one.spec.action.neutral()))
    return results


TRUE = [True, np.True_, 1, 1.0, np.float32(1), np.array([1]), np.array([[True]]), [1], torch.tensor(True)]


@pytest.mark.parametrize("value", TRUE, ids=lambda value: f"{type(value).__name__} {value!s}")
@pytest.mark.parametrize("key", ["is_success", "success"])
def test_a_success_that_only_the_last_step_has_is_found(key, value):
    one = gives(info={}, last={key: value})
    assert [result.success for result in play(one)] == [False] * 5 + [True]
    assert one.reads()["success"] == f"info.{key}, which is there when an episode ends"
    assert [result.success for result in play(one)] == [False] * 5 + [True]


@pytest.mark.parametrize(
    "value", ["no", "yes", "", 0.37, 7, -1, float("nan"), None, np.array([True, False]), np.array([]), b"no", {"a": 1}]
)
def test_a_success_that_is_neither_true_nor_false_is_not_taken(value):
    for kwargs in ({"info": {"success": value}}, {"info": {}, "last": {"is_success": value}}):
        with pytest.raises(ConfigError, match="the env does not say when it is solved"):
            gives(**kwargs)
    other = gives(info={"success": value}, last={"is_success": 1, "success": value})
    assert play(other)[-1].success


def test_of_nan_and_truths_the_truths_count():
    assert tells_success([np.nan, 0.0, True])
    assert not tells_success([np.nan])
    assert not tells_success([0.0, "no"])


def test_what_the_info_of_a_reset_by_itself_says_is_found():
    one = gives(info={}, last={"final_info": {"is_success": True}})
    assert play(one)[-1].success


LONG = {"info": {}, "steps": 1200}


def test_the_user_s_word_counts_where_the_trial_saw_no_end():
    with pytest.raises(ConfigError, match="the trial saw no episode end"):
        gives(**LONG)
    one = gives("info.won", {"progress": "info.score"}, **LONG, last={"won": True, "score": 3.0})
    assert one.reads()["success"] == "info.won, which is there when an episode ends"
    last = play(one, 1200)[-1]
    assert (last.success, last.reward) == (True, 3.0)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("which", ["success", "progress"])
def test_the_user_s_word_is_checked_when_an_episode_first_ends(which, cut):
    words = {"success": "info.there", "progress": "return", which: "info.won"}
    one = gives(words["success"], {"progress": words["progress"]}, **LONG, cut=cut, last={"wonn": True, "there": 0})
    with pytest.raises(
        SpecMismatchError, match=r"info.won, and an episode has ended without it. Did you mean 'info.wonn'"
    ):
        play(one, 1200)
    lenient = gives(f"{words['success']}?", {"progress": f"{words['progress']}"}, **LONG, last={"won": 1})
    assert play(lenient, 1200)[-1].terminated


def test_a_word_that_the_whole_episode_does_not_know_is_refused_at_once_unless_it_may_miss():
    with pytest.raises(ConfigError, match=r"info.won, which the env does not have") as caught:
        gives("info.won", last={"other": 1})
    assert "info.won?" in caught.value.remedy
    one = gives("info.won?", last={"other": 1})
    assert not any(result.success for result in play(one))
    compared = gives("info.gap?<=0.5", last={"other": 1})
    assert compared._mapped.success == Rule.of("info.gap? <= 0.5", "key")
    with pytest.raises(ConfigError, match=r"Did you mean 'info\.won'"):
        gives("info.wonn", last={"won": 1})


def test_one_number_is_asked_for():
    with pytest.raises(ConfigError, match="has 2 numbers here, expected one") as caught:
        gives("info.pair", info={"pair": np.ones(2)})
    assert "info.pair[0:1]" in caught.value.remedy
    assert play(gives("info.pair[1:2]", info={"pair": np.ones(2)}))[0].success


def test_whether_an_episode_ended_in_time_makes_no_other_env():
    plain = probe.describe(env.making_of(None, f"{__name__}.Gives", {}, None, None, [], [], {}), False)
    whole = GymFacts(**{**vars(plain), "late": {"info.won": ((), "bool")}, "whole": True})
    assert alike(plain, whole)
    assert not alike(whole, GymFacts(**{**vars(whole), "late": {}}))
    assert not alike(plain, GymFacts(**{**vars(whole), "max_steps": 9}))


def test_answers_go_through_json():
    made = env.making_of(None, f"{__name__}.Gives", {"space": None}, None, None, [], [], {})
    facts = probe.describe(made, False)
    from embodied.envs.gym import facts as module

    assert module._decode(json.loads(json.dumps(module.asdict(facts)))) == facts
    assert facts.bounds == {}


REUSED = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ({"obs": {"a": {"b": ZEROS}, "c": 1}}, 3),
        ({"obs": (ZEROS, {"x": np.float64(3)})}, 3),
        ({"obs": 4, "space": spaces.Discrete(9, start=3)}, 1),
        ({"obs": np.array([1, 2]), "space": spaces.MultiDiscrete([3, 4])}, 2),
        ({"obs": np.array([1, 0, 1], np.int8), "space": spaces.MultiBinary(3)}, 3),
        ({"obs": np.float32(1.0), "space": spaces.Box(0, 2, ())}, 1),
        ({"obs": [0.5, 1.5], "space": None}, 2),
        ({"obs": np.zeros(3, np.float64)}, 3),
        ({"obs": np.full(2, 9.0, np.float32)}, 2),
        ({"obs": torch.zeros(2, 2)}, 4),
        ({"obs": REUSED}, 2),
        ({"info": None, "last": {"is_success": True}}, 2),
        ({"info": MappingProxyType({"success": False})}, 2),
        ({"obs": {"text": "go", "x": ZEROS}, "space": spaces.Dict({"text": spaces.Text(9), "x": BOX})}, 2),
        ({"obs": (ZEROS, ZEROS), "space": spaces.Sequence(BOX)}, 4),
        ({"obs": spaces.GraphInstance(np.zeros((2, 3)), None, None), "space": spaces.Graph(BOX, None)}, 6),
        ({"step": (ZEROS, np.array([0.5]), np.False_, np.array([0]), {"success": 0})}, 2),
        ({"step": (ZEROS, 1, 0, 0, {"success": 0})}, 2),
        ({"step": [ZEROS, torch.tensor(1.0), False, None, {"success": 0}]}, 2),
    ],
)
def test_observations_and_results_of_many_forms_are_read(made, expected):
    one = gives(**made)
    assert one.spec.obs["state"].shape == (expected,)
    assert len(play(one)) == 6


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"step": (ZEROS, 0.5, False, {"success": 0})}, r"step\(\) gives \(ndarray, float, bool, dict\), expected"),
        ({"step": (ZEROS, 0.5, False, False, "fine")}, r"step\(\) gives \(ndarray, float, bool, bool, str\)"),
        ({"step": None, "reset": ZEROS}, r"reset\(\) gives ndarray, expected \(observation, info\)"),
        ({"reset": (1.0, 2.0)}, r"reset\(\) gives \(float, float\)"),
        ({"reset": {"obs": 1, "info": {}}}, r"reset\(\) gives dict"),
        ({"step": (ZEROS, None, False, False, {})}, "gave the reward None"),
        ({"step": (ZEROS, "1.0", False, False, {})}, "gave the reward '1.0'"),
        ({"step": (ZEROS, np.ones(2), False, False, {})}, "gave the reward array"),
        ({"step": (ZEROS, 1j, False, False, {})}, "gave the reward 1j"),
        ({"step": (ZEROS, 0.0, "False", False, {})}, "gave 'False' as terminated"),
        ({"step": (ZEROS, 0.0, False, np.zeros(2), {})}, "as truncated, expected True or False"),
        ({"step": (ZEROS, 0.0, float("nan"), False, {})}, "gave nan as terminated"),
        ({"actions": spaces.Box(-np.inf, 1, (2,))}, "no bounds"),
        ({"actions": spaces.MultiBinary(2)}, "expected Box or Discrete"),
        ({"actions": spaces.Text(5)}, "expected Box or Discrete"),
        ({"actions": spaces.Dict({"a": BOX})}, "expected Box or Discrete"),
        ({"actions": spaces.Tuple([BOX])}, "expected Box or Discrete"),
        ({"obs": "go"}, "an observation has nothing"),
        ({"obs": None}, "an observation has nothing"),
    ],
)
def test_what_no_env_gives_is_refused_with_what_was_given(made, message):
    with pytest.raises(EmbodiedError, match=message) as caught:
        gives(**made)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("space", "action", "expected"),
    [
        (spaces.Box(-1, 1, (2,), np.float64), [0.25, -3], [0.25, -1]),
        (spaces.Box(0, 5, (3,), np.int64), [0.9, 1.2, 9.0], [1, 1, 5]),
        (spaces.Box(0, 255, (3,), np.uint8), [-0.4, 254.6, 300.0], [0, 255, 255]),
        (spaces.Box(-2, 2, ()), [1.5], 1.5),
        (spaces.Box(-1, 1, (2, 2)), [1, 2, 3, -4], [[1, 1], [1, -1]]),
        (spaces.Discrete(4, start=-2), 3, 1),
    ],
)
def test_actions_arrive_in_the_type_and_bounds_of_the_space(space, action, expected):
    given = from_action(space, "it")(np.asarray(action, np.float32 if isinstance(space, spaces.Box) else np.int32))
    np.testing.assert_array_equal(given, expected)
    assert space.contains(given)
    one = gives(actions=space)
    assert isinstance(one.spec.action, DiscreteAction if isinstance(space, spaces.Discrete) else ContinuousAction)
    assert to_action(space, given).dtype == (np.int32 if isinstance(space, spaces.Discrete) else np.float32)
    play(one)


class Changes(Gives):
    """Its observation changes its form in the fifth step."""

    def __init__(self, to: Any) -> None:
        super().__init__()
        self._to = to

    def step(self, action: Any) -> Any:
        obs, *more = super().step(action)
        return self._to if self._steps == 5 else obs, *more


@pytest.mark.parametrize(
    ("to", "message"),
    [
        (np.zeros(3), "has 3 numbers, expected 2"),
        ("gone", "is a str, expected numbers"),
        (None, "has 1 numbers, expected 2"),
        ({"a": 1}, "is a dict, expected numbers"),
        (np.full(2, np.nan), "has the number nan"),
    ],
)
def test_an_observation_that_changes_its_form_is_said(monkeypatch, to, message):
    monkeypatch.setattr(late, "_STEPS", 0)
    one = GymEnv(entry_point=f"{__name__}.Changes", make_kwargs={"to": to})
    with pytest.raises(SpecMismatchError, match=message):
        play(one)


@pytest.mark.parametrize("state", ["obs.0", "info.extra"])
def test_an_entry_that_is_missing_from_an_observation_is_said(state):
    facts = GymFacts({"obs.0": ((2,), "float32"), "info.extra": ((), "float64"), "info.success": ((), "bool")},
                     {"n": 2}, 30, 12.0, None, None, "", "", {}, "1")  # fmt: skip
    mapped = mapping_of(MappingSettings(state=[state]), facts)
    with pytest.raises(SpecMismatchError, match=f"{state} is not in every observation"):
        mapped.write({"obs": (), "info": {}}, {"state": np.zeros(mapped.state_dim, np.float32)})


def test_an_entry_of_the_end_is_no_observation():
    with pytest.raises(ConfigError, match=r"info\.won, which only later steps of an episode have"):
        gives(more={"state": ["info.won"]}, last={"won": 1, "success": True})


def test_the_case_of_stable_baselines_trains(tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("MUJOCO_GL", "egl")
    made = "{info: {}, last: {is_success: true}}"
    run = (
        "env=gym", f"env.train.entry_point={__name__}.Gives", "model=mlp", "tracker=jsonl", "runner.device=cpu",
        f"env.train.make_kwargs={made}", "runner.max_epochs=1", "runner.save_interval=0",
        "runner.val_check_interval=0", "env.eval.video_cfg.save_video=false", "runner.experiment_name=run",
    )  # fmt: skip
    assert train.main(run) == 0
    (row,) = map(json.loads, (tmp_path / "runs/run/metrics.jsonl").read_text(encoding="utf-8").splitlines())
    assert row["rollout/success_rate"] == 1.0


class LateTogether(small_gym_envs.Together):
    """A vector env whose copies say at their end alone whether they are solved."""

    def step(self, actions: Any) -> Any:
        *more, info = super().step(actions)
        ended = np.logical_or(more[2], more[3])
        return *more, {"final_info": {"is_success": info["gap"] < 9}, "_final_info": ended} if ended.any() else {}


def test_the_copies_of_a_vector_env_say_it_at_their_end():
    made = {"max_episode_steps": 12}
    more = {"vectorization": "vector_entry_point", "images": ["obs.top"], "state": ["obs.arm.place"]}
    one = GymEnv(entry_point=f"{__name__}.LateTogether", make_kwargs=made, **more)
    assert one.reads()["success"] == "info.final_info.is_success, which is there when an episode ends"
    batch = one.batch(2)
    batch.reset([0, 1], [Start(0, 0, 0), Start(0, 0, 1)])
    still, both = np.zeros((2, 2), np.float32), np.ones(2, bool)
    solved = [[result.success for result in batch.step(still, both)] for _ in range(12)]
    assert solved == [[False, False]] * 11 + [[True, True]]
    batch.close()


def test_the_last_info_of_copies_may_stand_in_an_array_of_dicts():
    info = {"final_info": np.array([{"is_success": True}, None], object), "_final_info": np.array([True, False])}
    assert vector._info_of(info, 0, 2) == {"final_info": {"is_success": True}}
    assert vector._info_of(info, 1, 2) == {}
