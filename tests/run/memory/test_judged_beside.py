"""The moment in which a reward model scores, in turn with updates and beside them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from embodied.parallel.group import Group
from embodied.run.build.preflight import check
from embodied.run.memory import footprint as footprints
from embodied.run.memory.footprint import Pass, Passes, Weights, footprint
from embodied.schema.compose.compose import compose

CONFIG = str(Path(__file__).parents[2] / "config")
GB = 2**30


@pytest.mark.parametrize(("lag", "activations", "lanes"), [(0, 0, 0), (1, 3, 2), (2, 3, 2)])
def test_with_a_lag_answers_are_scored_beside_an_update(tmp_path, monkeypatch, lag, activations, lanes):
    judge = SimpleNamespace(gathered=0, waits=True, held=20 * GB)
    monkeypatch.setattr(footprints, "_judges", lambda config: True)
    monkeypatch.setattr(footprints, "of_reward_model", lambda model, processes: judge)
    keys = ("env=fake_text", "model=causal_lm_tiny", f"algorithm.max_staleness={lag}", f"runner.output_dir={tmp_path}")
    checked = check(compose([*keys, "tracker=jsonl", "runner.device=cpu"], "train", [CONFIG]), Group())
    passes, weights = Passes(2 * GB, Pass(3 * GB, 3 * GB, 0)), Weights(10 * GB, GB)
    taken = footprint(checked.config, checked.sides, checked.processes, weights, GB, passes, on_gpu=True)
    assert (taken.moment, taken.device["reward model"]) == ("score", 20 * GB)
    assert taken.device.get("activations", 0) == activations * GB
    assert taken.device.get("a call of the policy beside it", 0) == lanes * GB
