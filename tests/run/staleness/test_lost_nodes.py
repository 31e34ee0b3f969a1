"""Runs whose simulator hosts lose their nodes at random: each planned episode is trained on once, to the same bits."""

from __future__ import annotations

import random
from typing import Any

import pytest
from host_rig import Nodes
from test_fixed_lag_run import EPISODES, ITERATIONS, before, in_tmp_path, outcome, run  # noqa: F401 (a fixture)

from embodied.learn.trainer import Trainer
from embodied.run.build.workers import hosts
from embodied.testing import FakePolicy

HOSTS = ("cluster.simulator_hosts=2", "env.max_worker_restarts=1000", "env.num_workers=2", "env.start_method=spawn")
SOME = ("rollout/worker_restarts", "eval/worker_restarts")


def trained(*keys: str, lag: int, name: str) -> tuple[Any, list[int]]:
    """Returns the outcome of a run, and the ids of the episodes of each update."""
    episodes: list[int] = []

    def look(trainer: Trainer, arrays: Any, results: Any, *_: Any) -> None:
        episodes.extend(result.episode.episode_id for result in results)

    with pytest.MonkeyPatch.context() as patch:
        before(patch, Trainer, "update", look)
        assert run(*keys, "runner.val_check_interval=2", lag=lag, name=name) == 0
    rows, weights = outcome(name)
    return ([{key: value for key, value in row.items() if key not in SOME} for row in rows], weights), episodes


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1, 2, 3])
def test_each_planned_episode_is_trained_on_once_whatever_node_is_lost(monkeypatch, lag):
    calm, planned = trained(lag=lag, name="calm")
    assert planned == [*range(EPISODES * ITERATIONS)]
    nodes, choose, calls = Nodes("a", "b", "spare"), random.Random(lag), list[int]()

    def cut(*_: Any) -> None:
        calls.append(1)
        if len(calls) % 15 == 10:
            nodes.cut_power(choose)

    monkeypatch.setattr(hosts, "LocalStarter", lambda start_s: nodes)
    before(monkeypatch, FakePolicy, "act", cut)
    rough, episodes = trained(*HOSTS, lag=lag, name="rough")
    assert len(nodes.lost) >= 3
    assert {"a", "b"} <= {node for _, node in nodes.starts[:2]}
    assert "spare" in {node for _, node in nodes.starts[2:]}
    assert episodes == planned
    assert rough == calm
