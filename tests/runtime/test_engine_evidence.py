"""What is told and kept of an engine that reads other weights than were sent, or computes other log-probs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_engine import TEXT, collect, open_engine, port_of

from embodied.errors import EngineError
from embodied.runtime.engine.evidence import Evidence
from embodied.runtime.engine.weights import WeightsFile
from embodied.testing import FakeTextPolicy
from embodied.types import Sampling

SENT = {"norm": torch.ones(3), **{f"layer.{i}": torch.ones(2, i) for i in range(3)}, "table": torch.ones(7, 7)}


@pytest.fixture
def policy(monkeypatch) -> FakeTextPolicy:
    """One that sends several tensors."""
    monkeypatch.setattr(FakeTextPolicy, "engine_weights", lambda policy: iter(SENT.items()))
    return FakeTextPolicy()


def kept_in(folder: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.iterdir()}


def refused(policy: FakeTextPolicy, tmp_path: Path, *faults: str, evidence: Evidence | None = None) -> EngineError:
    with open_engine(policy, tmp_path, *faults, evidence=evidence) as engine, pytest.raises(EngineError) as failed:
        engine.begin(Sampling())
    return failed.value


@pytest.mark.parametrize(
    ("fault", "differing", "read"), [("forgets", "norm", None), ("changes", "table", {"shape": [7, 7]})]
)
def test_a_tensor_that_is_read_otherwise_than_it_was_sent_is_named_and_kept(policy, tmp_path, fault, differing, read):
    error = refused(policy, tmp_path, fault, evidence=Evidence(tmp_path / "kept"))
    assert f"than the 5 tensors that were sent: {differing} (float32 {[*SENT[differing].shape]} " in error.message
    assert error.message.endswith(" sent, not read)" if read is None else " read)")
    assert f"what was compared is in {tmp_path / 'kept' / 'weights_1.json'}" in error.remedy
    kept = kept_in(tmp_path / "kept")["weights_1"]
    assert [one["name"] for one in kept["tensors"]] == [*SENT]
    for one in kept["tensors"]:
        assert (one["sent"] != one["read"]) == (one["name"] == differing) == (one["name"] in kept["differing"])
        assert one["sent"]["shape"] == [*SENT[one["name"]].shape]
        assert one["name"] != differing or (one["read"] is None) == (read is None)


def test_of_many_tensors_three_are_named_and_where_all_can_be(policy, tmp_path, monkeypatch):
    write = WeightsFile.write
    wrong = lambda file, weights: [{**one, "checksum": 1} for one in write(file, weights)]  # noqa: E731
    monkeypatch.setattr(WeightsFile, "write", wrong)
    error = refused(policy, tmp_path)
    assert "layer.1" in error.message
    assert "layer.2" not in error.message
    assert error.message.endswith(" and 2 more")
    assert "rollout.validate_save_dir=FOLDER keeps what was compared" in error.remedy


def test_a_folder_that_cannot_be_written_hides_no_difference(policy, tmp_path):
    (tmp_path / "kept").write_text("a file", encoding="utf-8")
    error = refused(policy, tmp_path, "forgets", evidence=Evidence(tmp_path / "kept"))
    assert "norm (float32 [3] " in error.message
    assert "weights_1.json could not be written" in error.remedy


@pytest.mark.parametrize("first", [True, False])
def test_what_disagrees_is_kept_and_what_agrees_the_first_time_if_asked(make_rig, tmp_path, first):
    rig, said = make_rig(net=FakeTextPolicy(), workers=1, **TEXT), list[str]()
    evidence = Evidence(tmp_path / "kept", first)
    with open_engine(rig.policy, tmp_path, "deaf", said=said, evidence=evidence, at_once=1) as engine:
        for _ in range(2):  # the second time with the same weights
            collect(rig, port_of(rig, engine))
        with torch.no_grad():
            rig.policy.table[:, 1] += 0.5
        with pytest.raises(EngineError, match="computes other log-probs") as error:
            collect(rig, port_of(rig, engine))
    kept = kept_in(tmp_path / "kept")
    assert sorted(kept) == (["logprobs_1", "logprobs_2", "weights_1"] if first else ["logprobs_2"])
    assert str(tmp_path / "kept" / "logprobs_2.json") in error.value.remedy
    assert any("1 tensors were read as they were sent; what" in line for line in said) == first
    assert not first or kept["weights_1"]["differing"] == []
    for name, found in kept.items():
        if name.startswith("logprobs"):
            sides = [(text["engine"], text["policy"]) for text in found["texts"]]
            gaps = [np.abs(np.subtract(*both)) for both in sides]
            assert found["mean_gap"] == pytest.approx(np.concatenate(gaps).mean(), rel=1e-4)
            assert found["agree"] == (name == "logprobs_1") == (found["mean_gap"] <= found["allowed_mean_gap"])
            assert [len(text["tokens"]) for text in found["texts"]] == [len(one) for one, _ in sides]
            assert max(len(one) for one, _ in sides) > 1
