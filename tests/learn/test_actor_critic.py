"""The learner of an actor with critics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from embodied.models.head import HeadPolicy

from embodied.errors import ConfigError, SpecMismatchError
from embodied.learn.actor_critic.learner import ActorCriticLearner
from embodied.learn.actor_critic.memory import Memory, clear, entries_of
from embodied.learn.actor_critic.transitions import transitions_at
from embodied.learn.actor_critic.update import Draws
from embodied.learn.replay.ring import Replay
from embodied.schema import ActorConfig, AlgorithmConfig
from embodied.testing import FakePolicy
from embodied.types import ArraySpec, ContinuousAction, EnvSpec, Episode, EpisodeResult, Sampling, Start

ENV = EnvSpec({"state": ArraySpec((1,), "float32")}, (), ContinuousAction((-1.0,), (1.0,)), ("go",), (1,), 8, 10.0)
FIELDS = {
    "state": ArraySpec((1,), "float32"), "chunk": ArraySpec((2,), "float32"), "rewards": ArraySpec((2,), "float32"),
    "num_steps": ArraySpec((), "int32"), "terminated": ArraySpec((), "bool"),
}  # fmt: skip
CPU = torch.device("cpu")


def remembered(folder, capacity=10, whole_bytes=1 << 30):
    """Two episodes: one of three records, the last of which ends in its first step; one that was cut off."""
    memory = Memory(Replay.open(folder, FIELDS, capacity, None, "tests"), whole_bytes)
    memory.append({
        "state": np.arange(6, dtype=np.float32)[:, None], "chunk": np.zeros((6, 2), np.float32),
        "rewards": np.array([[1, 1], [1, 1], [8, np.nan], [2, 2], [4, 4], [np.nan, np.nan]], np.float32),
        "num_steps": np.array([2, 2, 1, 2, 2, 0], np.int32), "terminated": np.array([0, 0, 1, 0, 0, 0], bool),
    })  # fmt: skip
    return memory


class Reads:
    """What transitions ask of a policy."""

    def reads(self):
        return ["state"]

    def prepare(self, records):
        return records


def made(folder, n_step):
    memory = remembered(folder)
    return memory, transitions_at(memory, memory.transitions, Reads(), n_step, 0.5, CPU)


def test_transitions_of_one_chunk(tmp_path):
    memory, found = made(tmp_path, 1)
    assert memory.transitions.tolist() == [0, 1, 2, 3, 4]
    assert found.rewards.tolist() == [1.5, 1.5, 8, 3, 6]
    assert found.discounts.tolist() == [0.25, 0.25, 0, 0.25, 0.25]  # terminated; cut off: the end is worth something
    after = found.after["state"][:, 0].tolist()
    assert [after[index] for index in (0, 1, 3, 4)] == [1, 2, 4, 5]


def test_transitions_of_two_chunks_end_with_the_episode(tmp_path):
    _, found = made(tmp_path, 2)
    assert found.rewards.tolist() == [1.5 + 1.5 / 4, 1.5 + 8 / 4, 8, 3 + 6 / 4, 6]
    assert found.discounts.tolist() == [1 / 16, 0, 0, 1 / 16, 0.25]
    after = found.after["state"][:, 0].tolist()
    assert [after[index] for index in (0, 3, 4)] == [2, 5, 5]


def test_the_oldest_entries_leave_and_what_was_kept_is_given_back(tmp_path):
    memory = remembered(tmp_path, capacity=4)
    assert memory.batch(np.arange(4), ["state"])["state"][:, 0].tolist() == [2, 3, 4, 5]
    state = memory.ring.state_dict()
    memory.ring.close()
    other = Memory(Replay.open(tmp_path, FIELDS, 4, None, "tests"))
    other.load_state_dict(state)
    assert other.ring.total == 6
    assert np.array_equal(other.batch(np.arange(4), ["state"])["state"], memory.batch(np.arange(4), ["state"])["state"])


@pytest.mark.parametrize("whole_bytes", [0, 1 << 30])
def test_pictures_come_from_host_memory_or_from_files_and_are_the_same(tmp_path, whole_bytes):
    fields = {**FIELDS, "images": ArraySpec((1, 20, 20, 3), "uint8")}
    ring, random, kept = Replay.open(tmp_path, fields, 7, None, "tests"), np.random.default_rng(0), []
    memory = Memory(ring, whole_bytes)
    for count in (3, 9, 5):
        entries = {
            name: random.integers(0, 99, (count, *spec.shape)).astype(spec.dtype) for name, spec in fields.items()
        }
        memory.append(entries)
        kept.append(entries)
    index = np.array([6, 0, 0, 4])
    state, found = ring.state_dict(), memory.batch(index)
    ring.close()
    again = Memory(Replay.open(tmp_path, fields, 7, None, "tests"), whole_bytes)
    again.load_state_dict(state)
    for name in fields:
        expected = np.concatenate([each[name] for each in kept])[-7:][index]
        assert np.array_equal(found[name], expected)
        assert np.array_equal(again.batch(index)[name], expected)


@pytest.mark.parametrize("expected", [2, 5, 100, None])
def test_pictures_are_copied_of_a_ring_that_will_stay_small(tmp_path, expected):
    fields = {**FIELDS, "images": ArraySpec((1, 20, 20, 3), "uint8")}
    ring = Replay.open(tmp_path, fields, 1000, None, "tests", expected=expected)
    memory, kept = Memory(ring, whole_bytes=15 * ring.record_bytes), []
    for count in (3, 9):
        entries = {name: np.full((count, *spec.shape), count, spec.dtype) for name, spec in fields.items()}
        memory.append(entries)
        kept.append(entries["images"])
        assert ("images" in memory._copies) == (ring.room <= 15)
    assert memory._copies["state"].shape[0] == ring.room == {2: 12, 5: 12, 100: 100, None: 1000}[expected]
    np.testing.assert_array_equal(memory.batch(np.arange(12), ["images"])["images"], np.concatenate(kept))


def test_what_an_earlier_record_left_in_the_slab_is_not_kept():
    entries = {
        "num_steps": np.array([2, 1, 0], np.int32), "rewards": np.full((3, 2), 7, np.float32),
        "terminated": np.array([False, True, True]), "chunk": np.ones((3, 2), np.float32),
    }  # fmt: skip
    clear(entries)
    assert entries["rewards"].tolist() == [[7, 7], [7, 0], [0, 0]]
    assert entries["terminated"].tolist() == [False, True, False]
    assert entries["chunk"].tolist() == [[1, 1], [1, 1], [0, 0]]


def test_the_order_in_which_episodes_end_changes_nothing():
    arrays, results, _ = rollout(policy_of_nothing(), 0)
    one, two = (entries_of(arrays, each, [*FIELDS]) for each in (results, results[::-1]))
    for name in FIELDS:
        assert np.array_equal(one[name], two[name], equal_nan=name == "rewards")


def test_draws_are_a_function_of_seed_update_and_rank():
    def drawn(seed=0, update=3, rank=0):
        return Draws.of(seed, update, rank, (4, 2), 5, 2, CPU)

    one = drawn()
    assert torch.equal(one.now, drawn().now)
    assert not torch.equal(one.now, one.after)
    for other in (drawn(seed=1), drawn(update=4), drawn(rank=1)):
        assert not torch.equal(one.now, other.now)
    assert torch.equal(one.critics, drawn(rank=1).critics), "all ranks take the same critics"
    assert len(set(one.critics.tolist())) == 2
    assert len({tuple(sorted(drawn(update=update).critics.tolist())) for update in range(40)}) == 10


def policy_of_nothing():
    policy = HeadPolicy(num_action_chunks=2, hidden=8, critics=2, state_low=[-2.0], state_high=[2.0])
    policy.bind(ENV)
    return policy


def learner(folder, **sac):
    torch.manual_seed(0)
    policy = HeadPolicy(num_action_chunks=2, hidden=32, critics=3, state_low=[-2.0], state_high=[2.0])
    policy.bind(ENV)
    optim = {"lr": 3e-3, "value_lr": 3e-3, "temperature_lr": 3e-3, "impl": "fused", "clip_grad": 100.0}
    actor = ActorConfig.model_validate(
        {"model": {"_target_": "-"}, "global_batch_size": 32, "micro_batch_size": 32, "optim": optim}
    )
    options = {"learning_starts": 40, "target_rate": 0.05, "updates_per_record": 2.0, **sac}
    algorithm = AlgorithmConfig.model_validate({"learner": "sac", "adv_type": "raw", "gamma": 0.9, "sac": options})
    return ActorCriticLearner(policy, ENV, actor, algorithm, CPU, seed=0, max_bad_updates=3, replay=folder)


def rollout(policy, iteration, episodes=5):
    """Plays episodes of a point that is to stay at 0, four chunks of two steps each; the arrays of a slab."""
    rows, results = episodes * 5, []
    arrays = {name: np.zeros((rows, *spec.shape), spec.dtype) for name, spec in FIELDS.items()}
    arrays["version"] = np.zeros(rows, np.int64)
    random = np.random.default_rng([7, iteration])
    total = 0.0
    for number in range(episodes):
        place, own = random.uniform(-1, 1), 0.0
        for t in range(5):
            row = number * 5 + t
            arrays["state"][row] = place
            if t == 4:
                break
            noise = torch.from_numpy(random.standard_normal((1, 2), dtype=np.float32))
            fields = policy.act({"state": torch.tensor([[place]]).float()}, noise, Sampling()).fields
            arrays["chunk"][row], arrays["num_steps"][row] = fields["chunk"][0], 2
            for step, action in enumerate(fields["actions"][0, :, 0].tolist()):
                place = float(np.clip(place + action, -2, 2))
                arrays["rewards"][row, step] = -abs(place)
                own -= abs(place)
        start, places = Start(0, 0, number), tuple(range(number * 5, number * 5 + 4))
        results.append(EpisodeResult(
            Episode(iteration * episodes + number, number, start), places, own, False, 8, False, True, number * 5 + 4
        ))  # fmt: skip
        total += own
    return arrays, results, total / episodes


def trained(made, first, last):
    returns = []
    for iteration in range(first, last):
        made.begin_rollout(iteration)
        arrays, results, mean = rollout(made.acting.policy, iteration)
        found, _ = made.update(arrays, results, iteration)
        returns.append(mean)
    return found, returns


def weights(made):
    return {**dict(made.policy.named_parameters())}


def test_it_learns_a_tiny_env(tmp_path):
    made = learner(tmp_path)
    found, returns = trained(made, 0, 16)
    assert made.updates == 2 * (16 * 20 - 40) == made.weight_version
    assert found["train/optimizer_steps"] == 40
    assert np.mean(returns[:2]) < -6
    assert np.mean(returns[-3:]) > -4, returns
    assert found["train/replay_entries"] == 16 * 25


def test_a_resumed_run_is_the_same_to_the_bit(tmp_path):
    whole, before = learner(tmp_path / "whole"), learner(tmp_path / "parts")
    trained(whole, 0, 5)
    trained(before, 0, 3)
    state = before.state_dict()
    before.close()
    after = learner(tmp_path / "parts")
    with torch.no_grad():
        for name, p in before.policy.named_parameters():
            if p.requires_grad:
                weights(after)[name].copy_(p)
    after.optimizer.load_state_dict(before.optimizer.state_dict())
    after.load_state_dict(state)
    trained(after, 3, 5)
    for name, p in whole.policy.named_parameters():
        assert torch.equal(p, weights(after)[name]), name


def test_micro_batches_change_nothing_but_rounding(tmp_path):
    one, two = learner(tmp_path / "one"), learner(tmp_path / "two")
    two.actor = two.actor.model_copy(update={"micro_batch_size": 10})
    trained(one, 0, 3)
    trained(two, 0, 3)
    for name, p in one.policy.named_parameters():
        assert torch.allclose(p, weights(two)[name], atol=1e-4), name


def test_an_actor_that_is_updated_less_often_and_a_temperature_that_stays(tmp_path):
    made = learner(
        tmp_path, actor_interval=4, learn_temperature=False, actor_critics="mean", target_critics=None, n_step=3
    )
    found, _ = trained(made, 0, 4)
    steps = made.optimizer.state[made.policy.actor.out.weight]["step"]
    assert steps == made.updates / 4
    assert found["train/temperature"] == pytest.approx(1.0)
    assert np.isfinite(found["train/actor_loss"])


def test_it_refuses_other_policies_and_more_critics_than_there_are(tmp_path):
    with pytest.raises(ConfigError, match="has 3 critics"):
        learner(tmp_path, target_critics=4)
    made = learner(tmp_path)
    policy = FakePolicy()
    policy.bind(replace(ENV, action=ContinuousAction((-1.0,) * 7, (1.0,) * 7)))
    with pytest.raises(SpecMismatchError, match="no actor and critics"):
        ActorCriticLearner(policy, ENV, made.actor, made.algorithm, CPU, seed=0, max_bad_updates=3)
