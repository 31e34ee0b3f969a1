"""``env=gym`` with ``vectorization``: all slots in one vector env of gymnasium, the same bits as an env a slot."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from embodied.envs.gym import GymEnv, env, probe, vector

from embodied import train
from embodied.errors import AssetsMissingError, ConfigError
from embodied.protocols import Batched
from embodied.testing import check_batch_env
from embodied.types import Start, StepResult

SEEN = "small_gym_envs:tests/Seen-v0"
VECTOR = "vector_entry_point"
TOGETHER = {"id": None, "entry_point": "small_gym_envs.Together", "imports": ["small_gym_envs"]}


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    """Envs are asked in this process, which takes milliseconds."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("MUJOCO_GL", os.environ.get("MUJOCO_GL", "egl"))
    asked = lambda making, remake, python: probe.describe(making, remake)  # noqa: E731
    monkeypatch.setattr(env, "facts_of", asked)
    monkeypatch.setattr(env, "ask", asked)


def seen(mode: str | None, **more) -> GymEnv:
    return GymEnv(**{"id": SEEN, "success": "info.solved", "vectorization": mode, **more})


@pytest.mark.parametrize("mode", ["sync", "async", VECTOR])
def test_it_keeps_the_promises_of_a_batch_env(mode):
    check_batch_env(seen(mode, images=["render", "obs.top"], image_size=16, progress_features=["obs.arm.place"]))
    assert not isinstance(seen(None), Batched)


def ended(result: StepResult) -> bool:
    return result.terminated or result.truncated


@pytest.mark.parametrize(
    ("mode", "more"),
    [
        ("sync", {}),
        ("async", {"tasks": [{"make_kwargs": {"far": 0.1}, "instruction": "near"}, SEEN], "kept_envs": 1}),
        ("sync", {"make_kwargs": {"discrete": True}, "remake": True}),
        ("sync", {"success": "return>=-40"}),
        (VECTOR, {"success": "return>=-40"}),
        (VECTOR, {}),
        (VECTOR, {"end_on_success": False, "instruction_from": "obs.mission"}),
        (VECTOR, {"make_kwargs": {"discrete": True}, "success": "reward>-0.1", "progress": "reward"}),
        (VECTOR, {**TOGETHER, "make_kwargs": {"fault": "reuses"}, "instruction": "go", "end_on_success": False}),
    ],
    ids=[
        "sync",
        "async, tasks",
        "sync, remake",
        "sync, at the end",
        "vector, at the end",
        "vector",
        "goes on",
        "discrete",
        "reuses its arrays",
    ],
)
def test_every_episode_is_the_one_of_an_env_a_slot(mode, more):
    """Episodes begin and end at different times; steps go on behind an end, as with ignore_terminations."""
    same = {"images": ["render", "obs.top"], "image_size": 8, "state": ["obs.arm.place", "obs.arm.mark"]}
    same = {**more, **same}
    together = seen(mode, **same)
    if "entry_point" in same:
        same |= {"id": SEEN, "entry_point": None, "make_kwargs": {}}
    alone = [seen(None, **same) for _ in "abc"]
    batch, spec, rng = together.batch(3), together.spec, np.random.default_rng(0)
    assert spec == alone[0].spec
    active, ends, solved = np.zeros(3, bool), 0, 0

    def look(slots) -> None:
        outs = [{name: np.zeros(field.shape, field.dtype) for name, field in spec.obs.items()} for _ in "xy"]
        for slot in slots:
            batch.observe([slot], outs[:1])
            alone[slot].observe(outs[1])
            for name in spec.obs:
                np.testing.assert_array_equal(outs[0][name], outs[1][name])
            np.testing.assert_array_equal(batch.frame(slot), alone[slot].frame())

    for step in range(150):
        slots = [slot for slot in range(3) if not active[slot] and (step or slot != 1) and rng.random() < 0.5]
        if slots:
            starts = [Start(int(rng.integers(len(spec.tasks))), 0, int(rng.integers(99))) for _ in slots]
            batch.reset(slots, starts)
            for slot, start in zip(slots, starts, strict=True):
                alone[slot].reset(start)
            active[slots] = True
        actions = spec.action.sample(rng, 3)
        actions[~active] = spec.action.neutral()
        results = batch.step(actions, active)
        for slot in np.flatnonzero(active):
            assert results[slot] == alone[slot].step(actions[slot])
            ends, solved = ends + ended(results[slot]), solved + results[slot].success
        if step % 3 == 0:
            look(np.flatnonzero(active))
        active &= [rng.random() < 0.9 or not ended(result) for result in results]
    assert ends > 3
    assert solved > 0
    batch.close()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"id": "CartPole-v1"}, "resets ended copies by itself, without a seed .autoreset_mode NextStep"),
        ({"id": "Pendulum-v1"}, "'Pendulum-v1' registers no vector_entry_point"),
        ({"make_kwargs": {"fault": "one seed"}}, "does not take a list of seeds, one a copy: Error: Seed must be"),
        ({"make_kwargs": {"fault": "no mask"}}, "a reset of one copy of .* changes another: obs"),
        ({"make_kwargs": {"fault": "mixes"}}, "a reset of one copy of .* changes another: .* after 5 steps"),
        ({"make_kwargs": {"fault": "no options"}}, "does not take options={'reset_mask'"),
        ({"make_kwargs": {"fault": "counts on"}}, "two episodes from one seed differ: copies 0 and 2: obs"),
        ({"make_kwargs": {"autoreset_mode": "SameStep"}}, "autoreset_mode SameStep"),
        ({"entry_point": "small_gym_envs.no_vector_env"}, "Seen without num_envs, expected a gymnasium.vector.Vector"),
        ({"make_kwargs": {"foo": 1}}, "unexpected keyword argument 'foo'"),
        ({"tasks": [SEEN, SEEN]}, "there is several tasks"),
        ({"remake": True, "expert": "small_gym_envs.towards"}, "env.train.remake=true, env.train.expert"),
        ({"vectorization": "asinc"}, "Did you mean 'async'"),
    ],
)
def test_a_vector_env_whose_copies_cannot_be_restarted_from_their_seeds_is_refused(more, message):
    with pytest.raises(ConfigError) as caught:
        seen(**{"mode": VECTOR, **({} if "id" in more else TOGETHER), **more})
    assert re.search(message, " ".join(caught.value.message.split())), caught.value
    assert caught.value.remedy


def test_unequal_episodes_are_trained_on_if_that_is_said():
    more = {**TOGETHER, "make_kwargs": {"fault": "counts on"}, "repeatable": False}
    assert not seen(VECTOR, **more).spec.repeatable


def test_a_gymnasium_that_cannot_do_it_is_named(monkeypatch):
    monkeypatch.delattr(gymnasium.vector, "AutoresetMode")
    with pytest.raises(AssetsMissingError, match="does not let a vector env leave its resets"):
        seen(VECTOR)


def test_vector_wrappers_are_put_on():
    moved = []
    for wrappers in ([], ["small_gym_envs.Slower"]):
        one = seen(VECTOR, wrappers=wrappers, state=["obs.arm.place[0:1]"], images=[])
        batch = one.batch(2)
        batch.reset([0, 1], [Start(0, 0, 0)] * 2)
        batch.step(np.array([[1, 0], [-1, 0]], np.float32), np.ones(2, bool))
        outs = [{"state": np.zeros(1, np.float32)} for _ in "ab"]
        batch.observe([0, 1], outs)
        moved.append([float(out["state"][0]) for out in outs])
    np.testing.assert_allclose(moved, [[0.1, -0.1], [0.05, -0.05]], rtol=1e-6)


def test_info_belongs_to_the_copies_that_have_it():
    info = {"won": np.array([1, 0]), "_won": np.array([True, False]), "deep": {"far": np.array([3, 4])}, "took": 0.5}
    assert vector._info_of(info, 0, 2) == {"won": 1, "deep": {"far": 3}}
    assert vector._info_of(info, 1, 2) == {"deep": {"far": 4}}


def test_errors_of_slots_in_processes_of_their_own_are_ours():
    batches = []
    for fault, kind, message in (("fails", ConfigError, "the sixth step fails"), ("ends", RuntimeError, "has ended")):
        one = seen("async", id=None, entry_point="small_gym_envs.Dies", make_kwargs={"fault": fault})
        batch, still = one.batch(2), np.zeros((2, 2), np.float32)
        batches.append(batch)
        batch.reset([0, 1], [Start(0, 0, 0)] * 2)
        processes = batch._made.processes
        for _ in range(5):
            batch.step(still, np.array([True, False]))
        with pytest.raises(kind, match=message):
            batch.step(still, np.array([True, False]))
        batch.close()
        assert not any(process.is_alive() for process in processes)


def test_slots_in_processes_of_their_own_end_with_a_killed_worker():
    """Also one that is in the middle of a step."""
    reads, writes = os.pipe()
    if (worker := os.fork()) == 0:
        batch = seen("async", id=None, entry_point="small_gym_envs.Dies", make_kwargs={"fault": "sleeps"}).batch(2)
        batch.reset([0, 1], [Start(0, 0, 0)] * 2)
        os.write(writes, json.dumps([process.pid for process in batch._made.processes]).encode())
        for _ in range(6):
            batch.step(np.zeros((2, 2), np.float32), np.array([True, False]))
    left = json.loads(os.read(reads, 1000))
    time.sleep(0.2)
    assert all(map(_runs, left))
    os.kill(worker, 9)
    os.waitpid(worker, 0)
    until = time.monotonic() + 10
    while any(map(_runs, left)):
        assert time.monotonic() < until, f"processes {left} go on"
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


RUN = (
    "env=gym", "env.train.id=CartPole-v1", "model=mlp", "tracker=jsonl", "runner.device=cpu", "runner.max_epochs=2",
    "runner.save_interval=0", "runner.val_check_interval=2", "env.train.max_episode_steps=20", "env.num_workers=2",
    "env.eval.video_cfg.save_video=false", "actor.model.num_action_chunks=2", "runner.experiment_name=run",
)  # fmt: skip


def test_a_run_has_the_numbers_of_one_with_an_env_a_slot(tmp_path, monkeypatch):
    rows = []
    for mode in ("null", "async"):
        (tmp_path / mode).mkdir()
        monkeypatch.chdir(tmp_path / mode)
        assert train.main([*RUN, f"env.train.vectorization={mode}"]) == 0
        lines = [*map(json.loads, Path("runs/run/metrics.jsonl").read_text(encoding="utf-8").splitlines())]
        kept = [name for name in lines[-1] if name.startswith(("train/", "eval/")) and not name.endswith("_per_s")]
        rows.append([{name: line.get(name) for name in kept} for line in lines])
    assert rows[0] == rows[1]
    assert rows[0][0]["train/grad_norm"] > 0
