"""The processes of a crew: what they are, and that none is left."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from embodied.errors import WorkerDiedError
from embodied.runtime.crew import Crew, Job
from embodied.types import Start


def make_crew(workers: int, **env: object) -> Crew:
    return Crew(Job("embodied.testing.FakeEnv", env, max_steps=8, seed=0, noise_std=0.0), workers, limit=60.0)


def test_workers_end_with_the_launcher_and_are_reaped():
    crew = make_crew(2)
    workers = multiprocessing.active_children()
    assert [worker.daemon for worker in workers] == [True, True]
    crew.close()
    assert not [worker.pid for worker in workers if Path(f"/proc/{worker.pid}").exists()]


def test_an_env_is_prepared_before_its_first_attempt():
    crew = make_crew(1, fault="prepare_exception")
    try:
        with pytest.raises(WorkerDiedError) as failed:
            list(crew.results(iter([(0, Start(0, 0, 0))])))
    finally:
        crew.close()
    assert "told to fail in prepare" in failed.value.detail
