"""What videos say of decisions: the numbers that stand in the row, and no other number of the run."""

from pathlib import Path

import imageio.v2 as imageio
import numpy as np
import pytest
from rig import records

from embodied.runtime.plan import train_plan, with_videos
from embodied.runtime.worker.shown import Shown
from embodied.testing import FakePolicy, FakeTextPolicy, FlowPolicy
from embodied.types import Elements


def test_the_probability_is_the_geometric_mean_of_the_tokens_own():
    arrays = {"logprobs": np.log([[0.1] * 4, [0.5, 0.125, 0.5, 0.125]]).astype(np.float32),
              "value": np.array([[0.734, 9.0], [-1.0, 9.0]], np.float32)}  # fmt: skip
    shown = Shown(Elements((2, 2), action_axis=0), True)
    assert shown.text(arrays, 0) == "value 0.73   probability 0.1"
    assert shown.text(arrays, 1) == "value -1.00   probability 0.25"
    del arrays["value"]
    assert shown.text(arrays, 1) == "probability 0.25"


def test_a_value_that_nothing_trains_is_not_shown():
    spec = FakePolicy(value_head=True).spec
    arrays = {"value": np.array([0.73]), "logprobs": np.zeros((1, *spec.elements.shape), np.float32)}
    assert Shown.of(spec, value=True).text(arrays, 0) == "value 0.73   probability 1"
    assert Shown.of(spec, value=False).text(arrays, 0) == "probability 1"


def test_of_a_text_those_count_that_were_written():
    arrays = {"logprobs": np.log([[0.5, 0.5, 1e-9]]).astype(np.float32), "length": np.array([2], np.int32)}
    shown = Shown(Elements((3,), length_axis=0), True)
    assert shown.text(arrays, 0) == "probability 0.5"
    arrays["length"][0] = 0
    assert shown.text(arrays, 0) == ""


def test_densities_are_no_probabilities():
    arrays = {"logprobs": np.array([[1.5, 2.5]], np.float32)}
    assert Shown(Elements((2,)), False).text(arrays, 0) == "log-prob 2.00"
    assert Shown.of(FakePolicy().spec, True).probabilities
    assert not Shown.of(FlowPolicy().spec, True).probabilities
    assert Shown.of(FakeTextPolicy().spec, True).probabilities


@pytest.mark.parametrize("target", ["FakeEnv", "FakeBatchEnv"])
def test_a_video_says_what_stands_in_the_row_and_changes_no_record(make_rig, tmp_path: Path, target: str, monkeypatch):
    policy = {"value_head": True}
    pool = {"shown": Shown.of(FakePolicy(**policy).spec, value=True), "batch": "Batch" in target}
    rig = make_rig(slots=2, workers=1, target=f"embodied.testing.{target}", pool=pool, policy=policy)
    plan = train_plan(rig.env.spec, seed=3, iteration=0, episodes=4, group_size=2)
    without = records(rig, rig.rollout().collect(plan, rig.job())[0])
    results, stats = rig.rollout().collect(with_videos(plan, tmp_path, 4), rig.job())
    assert stats.video_s > 0
    assert records(rig, results) == without
    one = results[0]
    with imageio.get_reader(one.episode.video) as reader:
        lines = np.stack([frame for frame in reader])[:, -22:].astype(int)  # noqa: C416
    assert len(lines) == one.num_steps + 1
    lit = [(line > 128).sum() for line in lines]
    assert lit[0] == 0, "nothing is decided yet"
    assert min(lit[1:]) > 100
    for first, last in ((1, 4), (5, 8)):  # the steps of a chunk have its decision
        assert np.abs(lines[first] - lines[last]).max() < 60
    said = [pool["shown"].text(rig.slab.arrays, row) for row in one.rows]
    assert said[0] != said[1]
    assert (np.abs(lines[4] - lines[5]) > 60).sum() > 10


def test_with_fewer_pictures_a_video_has_the_same_end_speed_and_return(make_rig, tmp_path: Path):
    seen = {}
    for interval in (1, 4):
        rig = make_rig(slots=1, workers=1, size=64)
        plan = with_videos(train_plan(rig.env.spec, seed=3, iteration=0, episodes=1, group_size=1), tmp_path, 1)
        results, _ = rig.rollout().collect(plan, rig.job(frame_interval=interval))
        assert results[0].num_steps == 10
        with imageio.get_reader(results[0].episode.video) as reader:
            seen[interval] = reader.get_meta_data()["fps"], np.stack([frame for frame in reader])  # noqa: C416
    (fps, every), (slower, some) = seen[1], seen[4]
    assert (fps, len(every)) == (20, 11)
    assert (slower, len(some)) == (5, 4)  # after 0, 4, 8 and 10 control steps
    for place, step in enumerate((0, 4, 8, 10)):  # step, return and decision are written there
        other = (np.abs(every[:, 256:].astype(int) - some[place, 256:]) > 90).sum(axis=(1, 2, 3))
        assert other[step] < 5
        assert min(np.delete(other, step)) > 10


@pytest.mark.parametrize("target", ["embodied.testing.FakeEnv", "embodied.testing.FakeBatchEnv"])
def test_a_video_of_what_the_policy_sees_has_a_picture_a_chunk_and_the_end(make_rig, tmp_path: Path, target: str):
    seen, records = {}, []
    for interval in (1, None):
        rig = make_rig(slots=1, workers=1, size=64, target=target, pool={"batch": target.endswith("BatchEnv")})
        plan = with_videos(train_plan(rig.env.spec, seed=3, iteration=0, episodes=1, group_size=1), tmp_path, 1)
        (one,), stats = rig.rollout().collect(plan, rig.job(frame_interval=interval, info_on_video=False))
        assert one.num_steps == 10
        assert stats.video_s > 0
        assert min(stats.step_s, stats.render_s) > 0
        records.append([rig.slab.arrays[name][list(one.rows)].tobytes() for name in ("images", "actions", "rewards")])
        with imageio.get_reader(one.episode.video) as reader:
            seen[interval] = reader.get_meta_data()["fps"], np.stack([frame for frame in reader])  # noqa: C416
    (fps, every), (slower, some) = seen[1], seen[None]
    assert (fps, len(every)) == (20, 11)
    assert (slower, len(some)) == (5, 4)  # after 0, 4 and 8 control steps, and the end
    assert np.abs(every[[0, 4, 8, 10]].astype(int) - some).mean() < 8  # the encoder's
    assert records[0] == records[1]
