"""A human overrides the policy: records have what was executed, and say so. Real workers of a robot."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from robot_envs import Helped

from embodied.errors import EmbodiedError
from embodied.random import Stream
from embodied.runtime.plan import train_plan


def collected(make_rig, folder, episodes=3, job=None, **options):
    rig = make_rig(
        slots=1, workers=1, target="robot_envs.Helped", kind=Helped, folder=str(folder), pool={"safe_stop_s": 20.0},
        num_tasks=1, horizon=8, **options,
    )  # fmt: skip
    plan = train_plan(rig.env.spec, seed=0, iteration=0, episodes=episodes, group_size=1)
    results, _ = rig.rollout().collect(plan, rig.job(retry_safe=False, **job or {}))
    return rig, results


def test_records_of_an_intervention_have_the_executed_actions_and_others_their_own(make_rig, tmp_path):
    (tmp_path / "usual").mkdir()
    rig, results = collected(make_rig, tmp_path, helped=1)
    usual, same = collected(make_rig, tmp_path / "usual", helped=0)
    arrays, plain = rig.slab.arrays, usual.slab.arrays
    marked = [{*arrays["demonstrated"][[*result.rows]].tolist()} for result in results]
    assert marked == [{True}, {False}, {False}]
    first, decided = results[0].rows[0], same[0].rows[0]
    assert (arrays["actions"][first, 0] == plain["actions"][decided, 0]).all(), (
        "the first control step was the policy's"
    )
    executed = arrays["actions"][first, 1:]
    assert (executed != plain["actions"][decided, 1:]).any(1).all()
    assert (executed[:, 2:] == 0).all(), "what the human did moves two dimensions"
    for helped, alone in zip(results[1:], same[1:], strict=True):
        for name in ("actions", "rewards", "state"):
            assert (arrays[name][[*helped.rows]] == plain[name][[*alone.rows]]).all(), name


def test_an_episode_of_an_evaluation_that_a_human_helps_does_not_count_as_solved(make_rig, tmp_path):
    job = {"stream": Stream.EVAL_NOISE, "keep_records": False}
    _, results = collected(make_rig, tmp_path, helped=1, success_distance=5.0, job=job)  # any step solves it
    assert [result.success for result in results] == [True, True, True], "the first step was the policy's own"
    (tmp_path / "near").mkdir()
    _, results = collected(make_rig, tmp_path / "near", helped=3, success_distance=0.5, job=job)
    helped = [result for result in results if result.terminated and result.num_steps > 1]
    assert helped
    assert not any(result.success for result in helped)


NAN = [math.nan] * 7


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"odd": np.zeros(3, np.float32)}, r"is float32 \(3,\), expected the executed action: 7 finite"),
        ({"odd": NAN}, "has nan"),
        ({"odd": [0, 0, 0, 0, 0, 0, 1.5]}, "has 1.5 as number 6, outside of -1.0 to 1.0"),
        ({"odd": "left"}, "is str, expected the executed action"),
        ({"odd": [1e300] * 7}, "has inf"),
        ({"declares": False}, "declares that nobody does"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_no_action_is_refused(make_rig, tmp_path, options, said):
    with pytest.raises(EmbodiedError, match=said):
        collected(make_rig, tmp_path, **options)
    assert (Path(tmp_path) / "stops").exists(), "the robot was stopped"
