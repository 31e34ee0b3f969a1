"""The robot-side guard: no action that leaves it breaks a limit, whatever goes in."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.client import Guard
from embodied.client.limits import reach
from embodied.errors import ConfigError, GuardStopError, UnknownKeyError

HERTZ = 20.0
NUMBERS = st.floats(-1e6, 1e6) | st.sampled_from([-1.0, 0.0, 1.0])


def limited(**changes: Any) -> dict[str, Any]:
    """An arm with two delta dimensions of 0.05 m a step, and a gripper."""
    return {
        "control_hz": HERTZ,
        "action": {"low": [-1, -1, -1], "high": [1, 1, 1], "scale": [0.05, 0.05, 1]},
        "gripper": {"dims": [2]},
        **changes,
    }


def arm(log: Path | None = None, clock: Any = None, **changes: Any) -> Guard:
    guard = Guard.from_map(limited(**changes), log)
    if clock is not None:
        guard._clock = clock
    return guard


def action(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def test_an_action_within_all_limits_passes_bit_by_bit():
    wanted = action(0.1, -0.3, 1)
    assert arm().check(wanted).tobytes() == wanted.tobytes()


def test_each_limit_gives_its_nearest_action(tmp_path):
    speed = {"low": [-1] * 3, "high": [1] * 3, "scale": [0.05, 0.05, 1], "velocity": [0.5, None, None]}
    guard = arm(log=tmp_path / "log", action=speed)
    assert guard.check(action(9, -9, 0)).tolist() == [0.5, -1, 0]  # 0.5 m/s at 20 Hz are 0.025 m a step
    guard = arm(action={**speed, "velocity": None, "acceleration": [2.0, None, None]})
    given = [guard.check(action(1, 0, 0))[0] for _ in range(6)]
    assert np.allclose(given, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])  # 2 m/s² are 0.1 of the unit a step
    on, clipped = lines(tmp_path / "log")
    assert on["what"] == ["on"]
    assert clipped["what"] == ["bounds[0]", "bounds[1]", "velocity[0]"]
    assert (clipped["wanted"], clipped["given"], clipped["step"]) == ([9, -9, 0], [0.5, -1, 0], 0)
    assert clipped["time"] > 1.7e9


def test_a_position_never_leaves_the_box_and_comes_back_from_outside():
    box = {
        "position": {"field": "state", "indices": [3, 4], "dims": [0, 1]},
        "workspace": {"low": [-0.1, None], "high": [0.12, None]},
    }
    guard = arm(**box)
    guard.observed({"state": np.zeros(8)})
    moved = [guard.check(action(1, 1, 0)) for _ in range(4)]
    assert np.allclose(np.stack(moved)[:, 0], [1, 1, 0.4, 0], atol=1e-6)  # 0.05 m each, up to 0.12
    assert np.stack(moved)[:, 1].tolist() == [1] * 4
    guard.observed({"state": np.array([0, 0, 0, 0.3, 0, 0, 0, 0])})
    assert guard.check(action(0.5, 0, 0))[0] == 0, "no further out"
    assert guard.check(action(-0.5, 0, 0))[0] == -0.5


def test_an_absolute_action_moves_from_the_position_that_was_observed():
    guard = Guard.from_map({
        "control_hz": 10,
        "action": {"kind": "absolute", "low": [-3, -3], "high": [3, 3], "velocity": 1.0},
        "position": {"field": "joints", "indices": [0, 1], "dims": [0, 1]},
    })  # fmt: skip
    guard.observed({"joints": np.array([1.0, -1.0])})
    assert np.allclose(guard.check(action(3, -1.05)), [1.1, -1.05])
    assert np.allclose(guard.check(action(3, 3)), [1.2, -0.95])
    guard.observed({"joints": np.array([0.0, 0.0])})
    assert np.allclose(guard.check(action(3, 3)), [1.3, -0.85]), (
        "the next action follows the last, not what lags behind"
    )


def test_a_gripper_is_held_to_its_own_limits():
    guard = arm(gripper={"dims": [2], "low": -0.5, "high": 0.8, "step": 0.25})
    assert np.allclose([guard.check(action(0, 0, 1))[2] for _ in range(2)], 0.8)
    assert np.allclose([guard.check(action(0, 0, -1))[2] for _ in range(4)], [0.55, 0.3, 0.05, -0.2])


def test_stop_mode_stops_at_the_first_action_outside_until_reset(tmp_path):
    guard = arm(log=tmp_path / "log", mode="stop")
    guard.check(action(1, 0, 0))
    for _ in range(2):
        with pytest.raises(GuardStopError, match=r"control step 1: the action breaks bounds\[0\]"):
            guard.check(action(2, 0, 0) if not guard._why else action(0, 0, 0))
    guard.reset()
    guard.check(action(0, 0, 0))
    assert [line["what"] for line in lines(tmp_path / "log")] == [
        ["on"], ["stop: the action breaks bounds[0]"], ["reset after a stop"]
    ]  # fmt: skip
    assert lines(tmp_path / "log")[1]["given"] is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stops_in_every_mode(bad, tmp_path):
    with pytest.raises(GuardStopError, match="not finite"):
        arm(log=tmp_path / "log").check(action(bad, 0, 0))
    assert lines(tmp_path / "log")[-1]["wanted"][0] == str(bad)


def test_an_old_observation_stops():
    now = [100.0]
    guard = arm(clock=lambda: now[0], observation={"max_age_s": 0.5})
    with pytest.raises(GuardStopError, match="nothing was observed yet"):
        guard.check(action(0, 0, 0))
    guard.reset()
    guard.observed({})
    now[0] += 0.4
    guard.check(action(0, 0, 0))
    guard.observed({}, taken_at=99.95)  # a picture that came late is as old as it is
    now[0] += 0.1
    with pytest.raises(GuardStopError, match=r"observation is 0.550 s old, at most 0.5"):
        guard.check(action(0, 0, 0))


def test_a_first_answer_that_comes_late_is_called_that_and_a_later_one_is_not():
    now = [100.0]
    guard = arm(clock=lambda: now[0], observation={"max_age_s": 0.5})
    for episode in range(2):
        guard.reset()
        guard.observed({})
        if episode == 0:
            guard.check(action(0, 0, 0))
            guard.reset()
            guard.observed({})
        now[0] += 1.353
        with pytest.raises(
            GuardStopError, match=r"the first answer came late: the last observation is 1.353 s old"
        ) as stop:
            guard.check(action(0, 0, 0))
        assert "ask once before the loop (client.infer(observation))" in stop.value.remedy
    guard.reset()
    guard.observed({})
    guard.check(action(0, 0, 0))
    now[0] += 0.6
    with pytest.raises(GuardStopError, match=r"step 2: the last observation is 0.600 s old") as stop:
        guard.check(action(0, 0, 0))
    assert "client.infer" not in stop.value.remedy


@pytest.mark.parametrize(
    ("velocity", "said"),
    [
        ([0.667, 0.667, 0.667], "70% break it, in dimensions [0, 1, 2]. 1, 1, 1 (scale"),
        ([0.4, None, None], "60% break it, in dimensions [0]. 1 (scale"),
        ([0.5, 1.0, None], ""), (None, ""), ([1.0, 1.0, 1.0], ""), ([0.8, 0.8, 0.8], ""),
    ],
)  # fmt: skip
def test_limits_that_most_actions_break_are_warned_of(velocity, said):
    limits = {"low": [-1] * 3, "high": [1] * 3, "scale": 0.05, "velocity": velocity}
    for enabled in (True, False):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            Guard.from_map({"control_hz": HERTZ, "action": limits, "enabled": enabled})
        assert len(found) == bool(said and enabled)
        assert said in "".join(str(one.message) for one in found) or not enabled
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Guard.from_map({"control_hz": HERTZ, "action": {**limits, "kind": "absolute", "velocity": None}})


def test_a_position_that_is_not_finite_stops_and_one_that_is_missing_is_said():
    box = {"position": {"field": "state", "indices": [0], "dims": [0]}, "workspace": {"low": -1, "high": 1}}
    guard = arm(**box)
    guard.observed({"state": np.array([np.nan])})
    with pytest.raises(GuardStopError, match="position in 'state' is not finite"):
        guard.check(action(0, 0, 0))
    with pytest.raises(ConfigError, match="no such field"):
        guard.observed({})
    with pytest.raises(ConfigError, match=r"shape \(0,\)"):
        guard.observed({"state": np.zeros(0)})


def test_a_stop_from_outside_is_logged_once_and_holds(tmp_path):
    guard = arm(log=tmp_path / "log")
    for why in ("the server is lost", "something else"):
        assert "the server is lost" in str(guard.stop(why))
    with pytest.raises(GuardStopError):
        guard.check(action(0, 0, 0))
    assert [line["what"] for line in lines(tmp_path / "log")] == [["on"], ["stop: the server is lost"]]


def test_off_is_explicit_and_logged(tmp_path):
    guard = arm(log=tmp_path / "log")
    guard.off()
    assert guard.check(action(7, np.nan, 0))[0] == 7
    guard.on()
    assert guard.check(action(7, 0, 0))[0] == 1
    assert [line["what"] for line in lines(tmp_path / "log")] == [["on"], ["off"], ["on"], ["bounds[0]"]]
    guard = arm(log=tmp_path / "other", enabled=False)
    assert guard.check(action(7, 0, 0))[0] == 7
    assert lines(tmp_path / "other")[0]["what"] == ["off: enabled is false"]


def test_another_number_of_dimensions_is_said():
    with pytest.raises(ConfigError, match=r"shape \(2,\).*3 dimensions"):
        arm().check(action(0, 0))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"control_hz": 0}, "control_hz is 0"),
        ({"mode": "warn"}, "mode is warn, expected one of clip, stop"),
        ({"enabled": "no"}, "enabled is no, expected true or false"),
        ({"action": {"low": [-1], "high": [1, 1]}}, "action.high is 2 numbers"),
        ({"action": {"low": [-1, -1, 2], "high": [1, 1, 1]}}, r"more than high in dimensions \[2\]"),
        ({"action": {"low": [0.5, -1, -1], "high": [1, 1, 1]}}, r"bounds without 0 in dimensions \[0\]"),
        ({"action": {"low": [-1] * 3, "high": [1] * 3, "velocity": [1, 1]}}, "action.velocity is 2 numbers"),
        ({"action": {"low": [-1] * 3, "high": [1] * 3, "acceleration": 0}}, "action.acceleration is 0"),
        ({"action": {"low": [-1] * 3, "high": [1] * 3, "scale": "1e-3"}}, "action.scale is 1e-3"),
        ({"action": {"low": [-1] * 3, "high": [float("nan")] * 3}}, "action.high"),
        ({"action": {"low": [-1] * 3, "high": [1] * 3, "kind": "absolute", "velocity": 1}}, "position is nothing"),
        ({"workspace": {"low": -1, "high": 1}}, "workspace is given without position"),
        ({"position": {"field": "state", "indices": [0], "dims": [7]}}, "position.dims"),
        ({"position": {"field": "state", "indices": [0, 1], "dims": [0]}}, "position.indices is 2 numbers"),
        ({"gripper": {"dims": []}}, "gripper.dims"),
        ({"observation": {"max_age_s": -1}}, "observation.max_age_s is -1"),
        ({"action": None}, "action is None"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_key(changes, said):
    with pytest.raises(ConfigError, match=said):
        Guard.from_map(limited(**changes))


def test_an_unknown_key_is_refused_with_a_hint():
    with pytest.raises(UnknownKeyError, match=r"'velocty' in action. Did you mean 'velocity'"):
        Guard.from_map(limited(action={"low": [-1], "high": [1], "velocty": 1}))


def test_a_file_is_named_in_its_errors(tmp_path):
    file = tmp_path / "guard.yaml"
    with pytest.raises(ConfigError, match=r"guard.yaml cannot be read"):
        Guard.from_yaml(file)
    file.write_text("control_hz: -1\naction: {low: [0], high: [1]}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"guard.yaml: control_hz is -1"):
        Guard.from_yaml(file)
    file.write_text(f"control_hz: 20\naction: {{low: [0], high: [1]}}\nlog: {tmp_path}/none/log\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be written"):
        Guard.from_yaml(file)


@settings(deadline=None)
@given(st.floats(0, 100), st.floats(0.01, 10))
def test_braking_from_the_largest_motion_ends_at_the_wall(distance, brake):
    def way(motion: float) -> float:
        return motion + way(motion - brake) if motion > 0 else 0.0

    motion = float(reach(np.array([distance]), np.array([brake]))[0])
    assert way(motion) <= distance + 1e-6
    assert way(1.001 * motion + 1e-6) > distance - 1e-9, "and a larger one does not"


def numbers(low: float, high: float, size: int) -> st.SearchStrategy[list[float]]:
    return st.lists(st.floats(low, high), min_size=size, max_size=size)


@st.composite
def guards(draw: st.DrawFn) -> dict[str, Any]:
    """Limits of two arm dimensions and a gripper, all at once."""
    kind = draw(st.sampled_from(["delta", "absolute"]))
    action = {
        "kind": kind, "low": [-x for x in draw(numbers(0.5, 2, 3))], "high": draw(numbers(0.5, 2, 3)),
        "scale": [*draw(numbers(0.1, 2, 2)), 1], "velocity": [*draw(numbers(1, 50, 2)), None],
        "acceleration": [*draw(numbers(20, 500, 2)), None],
    }  # fmt: skip
    return {
        "control_hz": HERTZ, "action": action, "gripper": {"dims": [2], "step": draw(st.floats(0.05, 1))},
        "position": {"field": "state", "indices": [0, 1], "dims": [0, 1]},
        "workspace": {"low": [-x for x in draw(numbers(0.2, 3, 2))], "high": draw(numbers(0.2, 3, 2))},
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:action.velocity")
@settings(deadline=None, max_examples=40)
@given(guards(), st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=60))
def test_no_action_that_leaves_it_breaks_a_limit(config, wanted):
    """The robot moves exactly as it is told; whatever is wanted, there is an action, and it meets each limit."""
    guard, told = Guard.from_map(config), config["action"]
    low, high, scale = (np.array(told[name][:2]) for name in ("low", "high", "scale"))
    fastest, hardest = (np.array(told[name][:2]) for name in ("velocity", "acceleration"))
    box = [np.array(config["workspace"][name]) for name in ("low", "high")]
    position, velocity, gripper = np.zeros(2), np.zeros(2), None
    for one in wanted:
        guard.observed({"state": position})
        given = guard.check(np.array(one))
        arm, close = given[:2].astype(float), float(given[2])
        assert given.dtype == np.float32
        assert (arm >= low).all()
        assert (arm <= high).all()
        moved = arm * scale - (position if told["kind"] == "absolute" else 0)
        now = moved * HERTZ
        assert (np.abs(now) <= fastest * (1 + 1e-6) + 1e-5).all()
        assert (np.abs(now - velocity) * HERTZ <= hardest * (1 + 1e-6) + 1e-3).all()
        position, velocity = position + moved, now
        assert (position >= box[0] - 1e-6).all()
        assert (position <= box[1] + 1e-6).all()
        assert told["low"][2] <= close <= told["high"][2]
        assert gripper is None or abs(close - gripper) <= config["gripper"]["step"] + 1e-6
        gripper = close


@pytest.mark.filterwarnings("ignore:action.velocity")
@settings(deadline=None, max_examples=40)
@given(guards(), st.lists(st.tuples(numbers(-5, 5, 2), numbers(-3, 3, 3)), min_size=1, max_size=30))
def test_with_a_robot_that_is_elsewhere_it_stops_rather_than_break_a_limit(config, steps):
    guard = Guard.from_map({**config, "action": {**config["action"], "kind": "delta"}})
    scale, before = np.array(config["action"]["scale"][:2]), np.zeros(2)
    box = [np.array(config["workspace"][name]) for name in ("low", "high")]
    for position, wanted in steps:
        guard.observed({"state": np.array(position)})
        try:
            given = guard.check(np.array(wanted))[:2].astype(float)
        except GuardStopError:
            return
        change = np.abs(given - before) * scale * HERTZ**2
        assert (change <= np.array(config["action"]["acceleration"][:2]) * (1 + 1e-6) + 1e-3).all()
        after, before = np.array(position) + given * scale, given
        assert (after >= np.minimum(box[0], position) - 1e-6).all()
        assert (after <= np.maximum(box[1], position) + 1e-6).all()
