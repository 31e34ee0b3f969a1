"""Experts in workers: what reaches the recorder, control step by control step."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rig import FAST

from embodied.data import pictures
from embodied.data.lerobot.writer import Recording
from embodied.errors import WorkerDiedError
from embodied.random import Stream, generator
from embodied.runtime.channel import Command, Completion, Kind
from embodied.runtime.pool.pool import Pool, PoolConfig
from embodied.runtime.ports import Back, Event, Lost
from embodied.runtime.recorder import Recorder
from embodied.runtime.slab import Slab
from embodied.runtime.worker import expert
from embodied.runtime.worker.expert import ExpertJob, expert_fields
from embodied.runtime.worker.reward import ShapedReward
from embodied.testing import FakeEnv
from embodied.types import EnvSpec, Start

SEED, NOISE = 11, 0.3


@contextmanager
def recorder(
    log_dir: Path, workers: int = 1, target: str = "embodied.testing.FakeEnv", max_steps: int = 40,
    max_restarts: int = 0, spec: EnvSpec | None = None, noise_std: float = NOISE, **env: Any,
) -> Iterator[Recorder]:  # fmt: skip
    """Over a pool with a slot a worker."""
    slab = Slab.create(expert_fields(spec or FakeEnv(**env).spec), workers)
    config = PoolConfig(
        num_slots=workers, num_workers=workers, env_target=target, env_kwargs=env, reward=ShapedReward(),
        deadlines=FAST, log_dir=log_dir, max_restarts=max_restarts, expert=ExpertJob(SEED, noise_std),
    )  # fmt: skip
    try:
        pool = Pool(config, slab)
        try:
            yield Recorder(pool, slab, max_steps)
        finally:
            pool.close()
    finally:
        slab.close()


def played(attempt: int, start: Start, max_steps: int, **options: Any) -> Recording | None:
    """What an attempt records, by a loop of its own around an env in this process."""
    env, random = FakeEnv(**options), generator(SEED, Stream.EXPERT_NOISE, attempt)
    seen: list[dict[str, np.ndarray]] = []
    done: list[tuple[np.ndarray, float, bool]] = []
    env.reset(start)
    for action in env.expert():
        obs = {name: np.zeros(field.shape, field.dtype) for name, field in env.spec.obs.items()}
        env.observe(obs)
        seen.append(obs)
        noise = NOISE * random.standard_normal(len(action)).astype(np.float32)
        result = env.step(np.clip(action + noise, -1, 1))
        done.append((action, result.reward, result.success))
        if result.success or len(done) == max_steps:
            break
    if not done[-1][2]:
        return None
    columns = [[pictures.encode(obs["images"][camera]) for obs in seen] for camera in range(2)]
    actions, rewards, successes = (np.array(column) for column in zip(*done, strict=True))
    state = {"state": np.stack([obs["state"] for obs in seen])}
    return Recording(start, attempt, columns, state, actions, rewards.astype(np.float32), successes)


def same(one: Recording | None, other: Recording | None) -> bool:
    if one is None or other is None:
        return one is other
    arrays = [(r.actions, r.rewards, r.successes, r.fields["state"]) for r in (one, other)]
    assert one.fields.keys() == other.fields.keys()
    equal = all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(*arrays, strict=True))
    return equal and (one.start, one.attempt, one.pictures) == (other.start, other.attempt, other.pictures)


STARTS = [Start(n % 2, n % 4, n) for n in range(8)]


@pytest.mark.parametrize("steps", [1, 3, 32])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_attempt_is_recorded_as_it_was_whatever_the_steps_of_a_command(tmp_path, monkeypatch, steps, workers):
    monkeypatch.setattr(expert, "MAX_STEPS", steps)
    options = {"success_distance": 0.05}
    whole = [played(n, start, 99, **options) for n, start in enumerate(STARTS)]
    limit = max(len(one.actions) for one in whole if one is not None) - 1  # the longest is too long by one
    with recorder(tmp_path, workers, max_steps=limit, **options) as opened:
        assert opened._slab.fields["rewards"].shape == (steps,)
        got = dict(opened.results(iter(enumerate(STARTS))))
    expected = {n: played(n, start, limit, **options) for n, start in enumerate(STARTS)}
    assert got.keys() == expected.keys()
    assert None in expected.values()
    assert max(len(one.actions) for one in expected.values() if one is not None) > 6
    for n, one in expected.items():
        assert same(got[n], one), n


def test_an_expert_that_gives_up_has_failed_wherever_it_does(tmp_path, monkeypatch):
    """After 0 … 7 control steps, with 3 of them in a command."""
    monkeypatch.setattr(expert, "MAX_STEPS", 3)
    with recorder(tmp_path, target="odd_experts.GivesUp", success_distance=0.0) as opened:
        assert dict(opened.results(iter(enumerate(STARTS)))) == dict.fromkeys(range(8))


def test_an_attempt_that_the_env_cuts_off_has_failed(tmp_path):
    with recorder(tmp_path, target="odd_experts.CutsOff", success_distance=0.05) as opened:
        got = dict(opened.results(iter(enumerate(STARTS))))
    assert {len(one.actions) for one in got.values() if one is not None} == {1}, "those that are solved at once"
    assert None in got.values()


def test_an_attempt_that_ends_worker_after_worker_ends_the_recording(tmp_path):
    dies = {"target": "odd_experts.Dies", "max_restarts": 2, "success_distance": 0.3}
    with recorder(tmp_path, workers=2, **dies) as opened, pytest.raises(WorkerDiedError) as failed:
        list(opened.results(iter(enumerate(STARTS))))
    assert "status 7" in failed.value.message
    assert "in a row" in failed.value.message or "episode 2 has ended 3 workers" in failed.value.message


class Scripted:
    """An env port that answers with prepared events, and knows what it was given."""

    def __init__(self, slab: Slab, events: list[list[Event]]) -> None:
        self.num_slots, self.up, self.moving, self.restarts = slab.rows, [*range(slab.rows)], set(), 0
        self.sent: list[Command] = []
        self.blamed: list[tuple[int, int, int]] = []
        self._down: set[int] = set()
        self._events = iter(events)

    def group_of(self, slot: int) -> int:
        return 0

    def simulators_of(self, slot: int) -> int:
        return slot

    def send(self, command: Command, video: str | None = None) -> None:
        assert command.slot not in self._down
        self.sent.append(command)

    def flush(self) -> None:
        pass

    def recv(self, min_ready: int, timeout: float | None = None) -> list[Event]:
        events = next(self._events)
        self._down |= {event.slot for event in events if isinstance(event, Lost)}
        self._down -= {event.slot for event in events if isinstance(event, Back)}
        return events

    def blame(self, lost: Lost, episode_id: int, count: int) -> None:
        self.blamed.append((lost.slot, episode_id, count))


def test_what_was_lost_is_redone_first_and_only_what_was_tried_is_blamed():
    """Slot 1 has no task left when its worker, which serves slot 0 as well, fails twice."""
    slab, error = Slab.create(expert_fields(FakeEnv().spec), 2), WorkerDiedError("it died", "mend it")
    twice = [Lost(0, error, 1), Lost(1, error, 0), Back(1), Back(0)]
    port = Scripted(
        slab,
        [
            [Completion(Kind.RESET, 0), Completion(Kind.RESET, 1), Completion(Kind.EXPERT, 1, 0, True)],
            twice[:2],
            twice[2:],
            twice,
            [Completion(Kind.RESET, 1), Completion(Kind.EXPERT, 1, 0, True)],
        ],
    )
    assert list(Recorder(port, slab, 9).results(iter(enumerate(STARTS[:2])))) == [(1, None), (0, None)]
    slab.close()
    resets = [(command.slot, command.attempt, command.seed) for command in port.sent if command.kind == Kind.RESET]
    assert resets == [(0, 0, 0), (1, 1, 1), (1, 0, 0), (1, 0, 0)]
    assert port.blamed == [(0, 0, 1)]


def test_failures_of_one_attempt_are_counted():
    slab, error = Slab.create(expert_fields(FakeEnv().spec), 1), WorkerDiedError("it died", "mend it")
    ended = [Completion(Kind.RESET, 0), Completion(Kind.EXPERT, 0, 0, True)]
    port = Scripted(slab, [[Lost(0, error, 1), Back(0)], [Lost(0, error, 1), Back(0)], ended, ended])
    assert [number for number, _ in Recorder(port, slab, 9).results(iter(enumerate(STARTS[:2])))] == [0, 1]
    slab.close()
    assert port.blamed == [(0, 0, 1), (0, 0, 2)]


def test_an_env_is_prepared_before_its_first_attempt(tmp_path):
    with pytest.raises(WorkerDiedError, match="told to fail in prepare"), recorder(tmp_path, fault="prepare_exception"):
        pass


def test_a_row_holds_fewer_steps_of_large_pictures(monkeypatch):
    spec = FakeEnv(size=64).spec
    step = sum(field.nbytes for field in expert_fields(spec).values()) / expert.MAX_STEPS
    monkeypatch.setattr(expert, "ROW_BYTES", int(5.5 * step))
    assert expert_fields(spec)["rewards"].shape == (5,)
    monkeypatch.setattr(expert, "ROW_BYTES", 1)
    assert expert_fields(spec)["rewards"].shape == (1,)


@pytest.mark.parametrize("shape", [(1, 1), (16, 16), (3, 700), (480, 640)])
def test_no_picture_file_is_larger_than_its_place(shape):
    noise = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    for picture in (noise, np.zeros_like(noise)):
        file = pictures.encode(picture)
        assert len(file) <= pictures.most_bytes(*shape)
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(file))), picture)


def test_an_attempt_that_may_not_be_redone_ends_the_recording():
    slab, error = Slab.create(expert_fields(FakeEnv().spec), 1), WorkerDiedError("it died", "mend it")
    port = Scripted(slab, [[Lost(0, error, 1)]])
    with pytest.raises(WorkerDiedError, match=r"attempt 0 was lost(.|\n)*retry_safe is False(.|\n)*it died"):
        list(Recorder(port, slab, 9, retry_safe=False).results(iter(enumerate(STARTS[:1]))))
    slab.close()


def test_tasks_that_remain_wait_for_a_worker_that_died_when_it_was_idle():
    """Its last completion and its loss come with one call; nothing runs then, and nothing was lost."""
    slab = Slab.create(expert_fields(FakeEnv().spec), 1)
    idle = Lost(0, WorkerDiedError("it died", "mend it"), 0)
    reset, ended = Completion(Kind.RESET, 0), Completion(Kind.EXPERT, 0, 0, True)
    port = Scripted(slab, [[reset], [ended, idle], [Back(0)], [reset], [ended]])
    assert [number for number, _ in Recorder(port, slab, 9).results(iter(enumerate(STARTS[:2])))] == [0, 1]
    slab.close()
