"""Demonstrations beside own records: their chunks, what a base does there, marks of interventions, shares of ranks."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from embodied.models.head import HeadPolicy, around_base

from embodied.data.demonstrations import Demonstration
from embodied.errors import CheckpointError, ConfigError, SpecMismatchError
from embodied.learn.actor_critic.learner import ActorCriticLearner
from embodied.learn.actor_critic.share import Share
from embodied.learn.checksums import checksums_of
from embodied.learn.replay.sampling import sampled
from embodied.schema import ActorConfig, AlgorithmConfig
from embodied.types import ArraySpec, ContinuousAction, EnvSpec, Episode, EpisodeResult, Start

ENV = EnvSpec(
    {"state": ArraySpec((2,), "float32")}, (), ContinuousAction((-1.0,) * 2, (1.0,) * 2), ("go",), (1,), 8, 10.0
)
BIASED = "biased_policy.Biased"
CPU = torch.device("cpu")


def episode(length=5, seed=0, action=0.5) -> Demonstration:
    state = np.random.default_rng(seed).uniform(-0.2, 0.2, (length, 2)).astype(np.float32)
    return Demonstration("go", np.full((length, 2), action, np.float32), {"state": state}, None)


def from_scratch():
    return HeadPolicy(num_action_chunks=2, hidden=8)


def around(scale=0.6, bias=0.4):
    return around_base(base={"_target_": BIASED, "bias": bias}, residual_scale=scale, hidden=8)


def learner(folder, policy=None, env=ENV, share=None, **replay):
    policy = from_scratch() if policy is None else policy
    policy.bind(env)
    actor = ActorConfig.model_validate({
        "model": {"_target_": "-"}, "global_batch_size": 16, "micro_batch_size": 16, "optim": {"impl": "fused"},
    })  # fmt: skip
    algorithm = AlgorithmConfig.model_validate({
        "learner": "sac", "adv_type": "raw", "sac": {"learning_starts": 4},
        "replay": {"demonstrations": ["-"], "demonstrated_share": share, "capacity": 100, **replay},
    })  # fmt: skip
    return ActorCriticLearner(policy, env, actor, algorithm, CPU, seed=0, max_bad_updates=3, replay=folder)


class Bar:
    def __init__(self) -> None:
        self.asked = 0

    def advance(self, count: int) -> None:
        self.asked += count


def show(made, episodes):
    bar = Bar()

    @contextmanager
    def phase(count):
        yield bar
        assert bar.asked == count

    made.show(episodes, 1.0, phase)
    return bar.asked


def collected(made, marks=None, count=6):
    """An iteration of one episode of ``count`` records that was cut off; its slab may have marks."""
    spec = made.policy.spec
    fields = {**ENV.obs, **spec.decision, "rewards": ArraySpec((2,), "float32"), "num_steps": ArraySpec((), "int32"),
              "terminated": ArraySpec((), "bool"), "version": ArraySpec((), "int64")}  # fmt: skip
    arrays = {name: np.zeros((count + 1, *one.shape), one.dtype) for name, one in fields.items()}
    arrays["num_steps"][:count] = 2
    if marks is not None:
        arrays["demonstrated"] = np.array(marks)
    rows, steps = tuple(range(count)), 2 * count
    result = EpisodeResult(Episode(0, 0, Start(0, 0, 0)), rows, 0.0, False, steps, False, True, count)
    return made.update(arrays, [result], 0)[0]


def test_an_update_takes_half_of_its_records_from_demonstrations(tmp_path):
    made = learner(tmp_path)
    show(made, [episode(), episode(3)])
    found = collected(made)
    share = made.share()
    assert (share.size, share.shown) == (16, 8)
    drawn = share.drawn(0, 3, 0)
    assert (drawn < 8).tolist() == [True] * 8 + [False] * 8
    assert found["train/demonstrations"] == 8
    assert found["train/demonstrations_clamped"] == 0
    batch = made._drawn(0, share)
    assert batch.before["chunk"][:8].tolist() == [[0.5] * 4] * 8, "the chunk of a head from scratch is the actions"
    made.close()


def test_without_demonstrations_the_draws_are_those_of_before(tmp_path):
    made = learner(tmp_path, demonstrations=[])
    found, share = collected(made), made.share()
    assert "demonstrated" not in made.memory.ring.fields
    assert not any("demonstrations" in name for name in found)
    assert np.array_equal(share.drawn(5, 7, 0), share.transitions[sampled(6, 5, 7, 16)])
    assert "demonstrations" not in made.state_dict()
    made.close()


def test_own_records_with_a_mark_count_as_demonstrations(tmp_path):
    made = learner(tmp_path, env=replace(ENV, interventions=True), demonstrations=[])
    found = collected(made, marks=[0, 1, 0, 0, 1, 0, 1])  # the last is no transition, but what was left in the slab
    share = made.share()
    assert found["train/demonstrations"] == 2
    assert set(share.drawn(0, 3, 0)[:8].tolist()) == {1, 4}
    assert made.memory.batch(np.arange(7), ["demonstrated"])["demonstrated"].tolist() == [0, 1, 0, 0, 1, 0, 0]
    made.close()


def test_records_of_a_slab_without_marks_have_none(tmp_path):
    made = learner(tmp_path)
    show(made, [episode()])
    assert collected(made)["train/demonstrations"] == 5
    made.close()


def test_a_residual_learns_the_change_that_leads_from_its_base_to_the_demonstration(tmp_path):
    policy, shown = around(scale=0.8), episode(5, action=0.3)
    made = learner(tmp_path, policy)
    assert show(made, [shown]) == 5
    entries = made.shown.entries
    got = entries.batch(np.arange(5))
    observed = torch.from_numpy(shown.fields["state"][entries._sample])
    base = policy.base.act({"state": observed}, torch.zeros(5, 1), None).fields["actions"]
    assert got["base"] == pytest.approx(base.flatten(1).numpy(), abs=1e-6)
    done = policy.head.actions({}, torch.from_numpy(got["chunk"]), policy.head.given(base))
    assert done.numpy() == pytest.approx(np.full((5, 2, 2), 0.3), abs=1e-5)
    assert made.shown.clamped == 0
    made.close()


def test_changes_beyond_the_scale_are_clamped_and_counted(tmp_path):
    made = learner(tmp_path, around(scale=0.1), capacity=100)
    show(made, [episode(4, action=-1.0), episode(3, action=0.4, seed=1)])
    chunks = made.shown.entries.batch(np.arange(7), ["chunk"])["chunk"]
    assert chunks.min() == -1
    state = np.random.default_rng(1).uniform(-0.2, 0.2, (3, 2)).astype(np.float32)
    near = (np.abs(2 * state) <= 0.1).all(1)  # the base is off by 2 · state
    assert made.shown.clamped == 4 + int((~near).sum())
    assert collected(made)["train/demonstrations_clamped"] == made.shown.clamped / 7
    made.close()


@pytest.mark.parametrize(
    ("changed", "asked"),
    [("", 0), ("demonstrations", 5), ("pictures", 5), ("base", 5), ("file", 5)],
    ids=lambda value: str(value),
)
def test_a_base_is_asked_once(tmp_path, changed, asked):
    made = learner(tmp_path, around())
    assert show(made, [filmed(1)]) == 5
    before = made.shown.entries.batch(np.arange(5))
    made.close()
    if changed == "file":
        file = tmp_path / "demonstrations" / "rank-0.npz"
        content = bytearray(file.read_bytes())
        content[200] ^= 255
        file.write_bytes(content)
    again = learner(tmp_path, around(bias=0.3 if changed == "base" else 0.4))
    shown = replace(episode(seed=1), pictures=filmed(1).pictures) if changed == "demonstrations" else filmed(1)
    assert show(again, [filmed(2) if changed == "pictures" else shown]) == asked
    now = again.shown.entries.batch(np.arange(5))
    if changed in ("", "file"):
        assert all(np.array_equal(before[name], now[name]) for name in before)
    again.close()


def test_a_run_that_goes_on_needs_the_demonstrations_of_before(tmp_path):
    made = learner(tmp_path)
    show(made, [episode()])
    collected(made)
    state = made.state_dict()
    made.close()
    again = learner(tmp_path)
    show(again, [episode(seed=1)])
    with pytest.raises(CheckpointError, match="are others than those"):
        again.load_state_dict(state)
    again.close()


SEEN = replace(ENV, obs={**ENV.obs, "images": ArraySpec((1, 20, 20, 3), "uint8")}, cameras=("front",))


def filmed(value: int) -> Demonstration:
    return replace(episode(), pictures=lambda t: np.full((1, 20, 20, 3), value if t == 3 else 0, np.uint8))


@pytest.mark.parametrize(
    ("pictures", "change", "said"),
    [
        (True, {}, "their pictures have changed"),
        (True, {"instruction": "stop"}, "their actions, observations or instructions and their pictures have changed"),
        (False, {}, None),
    ],
)
def test_changed_pictures_are_refused_where_they_are_read(tmp_path, pictures, change, said):
    made = learner(tmp_path, HeadPolicy(num_action_chunks=2, hidden=8, pictures=pictures), SEEN)
    show(made, [filmed(1)])
    state = made.state_dict()
    made.close()
    again = learner(tmp_path, HeadPolicy(num_action_chunks=2, hidden=8, pictures=pictures), SEEN)
    show(again, [replace(filmed(2), **change)])
    if said is None:
        again.load_state_dict(state)
    else:
        with pytest.raises(CheckpointError, match=said):
            again.load_state_dict(state)
    again.close()


def test_a_checkpoint_of_an_earlier_version_tells_nothing_of_pictures(tmp_path):
    made = learner(tmp_path, HeadPolicy(num_action_chunks=2, hidden=8, pictures=True), SEEN)
    show(made, [filmed(1)])
    made.load_state_dict({name: value for name, value in made.state_dict().items() if name != "demonstrated_pictures"})
    made.close()


def test_a_run_that_has_learnt_from_no_demonstrations_goes_on_without_any(tmp_path):
    made = learner(tmp_path, share=0.5)
    state = made.state_dict()
    made.close()
    again = learner(tmp_path, share=0.5)
    show(again, [episode()])
    with pytest.raises(CheckpointError, match="has learnt from no "):
        again.load_state_dict(state)
    again.close()


def test_of_very_many_pictures_some_are_summed(monkeypatch):
    monkeypatch.setattr("embodied.learn.checksums.SUMMED_BYTES", 2 * 1200)
    read = []
    shown = replace(episode(), pictures=lambda t: read.append(t) or np.zeros((1, 20, 20, 3), np.uint8))
    checksums_of([shown], pictures=True)
    assert read == [0, 0, 3]  # the size of one, then every third


def test_a_policy_that_reads_no_demonstrations_is_refused(tmp_path):
    made = learner(tmp_path)
    made.policy = type("Other", (HeadPolicy,), {"chunks_of": None})(num_action_chunks=2, hidden=8)
    made.policy.bind(ENV)
    with pytest.raises(SpecMismatchError, match="does not say which chunk"):
        show(made, [episode()])
    made.close()


def test_a_replay_that_holds_too_few_records_to_begin_is_refused_with_numbers(tmp_path):
    with pytest.raises(ConfigError, match=r"holds 2 records of \d+ bytes, fewer than .*learning_starts 4") as found:
        learner(tmp_path, max_gb=1e-7)
    need = float(found.value.remedy.split("max_gb to ")[1].split()[0])
    learner(tmp_path, max_gb=need).close()


class Ranks:
    """What one of two ranks sees of the others."""

    def __init__(self, rank, lengths):
        self.rank, self.size, self._lengths = rank, len(lengths), lengths

    def gather(self, value):
        assert value == self._lengths[self.rank]
        return self._lengths


class Held:
    def __init__(self, transitions, demonstrated):
        self.transitions, self.demonstrated = np.arange(transitions), np.arange(demonstrated)


@pytest.mark.parametrize("lengths", [[(30, 4), (10, 0)], [(20, 1), (20, 6)], [(5, 0), (9, 0)]])
def test_ranks_share_an_update_in_proportion_to_what_they_have(lengths):
    shares = [Share.of(Held(*own), Ranks(rank, lengths), 16, 0.5) for rank, own in enumerate(lengths)]
    assert sum(share.size for share in shares) == 16
    assert sum(share.shown for share in shares) == (8 if lengths[0][1] else 0)
    assert all(share.shown == 0 for share, own in zip(shares, lengths, strict=True) if not own[1])
    for share in shares:
        assert len(share.drawn(0, 0, 0)) == share.size
