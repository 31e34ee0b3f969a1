"""Weights on their way to an engine: their number format there, and where the policy's own are meanwhile.

There is no device here. What rests on the host is filled with NaN instead, so that whoever uses it is found out.
``tests/stand_in_gpu/on_gpu_resting.py`` has the same with a device that torch checks.
"""

from __future__ import annotations

import zlib

import pytest
import torch
from rig import CPU
from test_engine import TEXT, collect, open_engine
from torch import Tensor

from embodied.errors import ConfigError, EngineError, Stopped
from embodied.learn.step import resting
from embodied.learn.step.resting import RestingWeights
from embodied.runtime.engine.child.weights_file import read
from embodied.runtime.engine.port import EnginePort
from embodied.runtime.engine.process import EngineProcess
from embodied.runtime.engine.weights import WeightsFile, in_format
from embodied.testing import FakeTextPolicy

AWAY, HERE = "away", "here"


class NoDevice:
    """Stands for a device. ``seen``: messages to the engine and uses of the policy, with where its weights are."""

    def __init__(self, policy: FakeTextPolicy) -> None:
        self._policy = policy
        self._kept: dict[int, Tensor] = {}  # address of what stands in the weights' place → them
        self.seen: list[tuple[str, str]] = []

    def on_host(self, tensor: Tensor) -> bool:
        return tensor.data_ptr() in self._kept

    def to_host(self, tensor: Tensor) -> Tensor:
        hidden = torch.full_like(tensor, float("nan"))
        self._kept[hidden.data_ptr()] = tensor.clone()
        return hidden

    def to_device(self, tensor: Tensor, device: torch.device) -> Tensor:
        return self._kept.pop(tensor.data_ptr())

    def note(self, what: str) -> None:
        self.seen.append((what, AWAY if self.on_host(self._policy.table.data) else HERE))

    def take(self) -> list[tuple[str, str]]:
        found, self.seen = [*dict.fromkeys(self.seen)], []
        return found


@pytest.fixture
def rig(shared_rig):
    made = shared_rig(net=SHARED, workers=2, **TEXT)
    with torch.no_grad():
        made.policy.table.copy_(FakeTextPolicy().table)
    return made


SHARED = FakeTextPolicy()


@pytest.fixture
def device(rig, monkeypatch):
    made = NoDevice(rig.policy)
    for name in ("on_host", "to_host", "to_device"):
        monkeypatch.setattr(resting, name, getattr(made, name))
    send, evaluate = EngineProcess.send, FakeTextPolicy.evaluate
    monkeypatch.setattr(
        EngineProcess, "send", lambda process, kind, *a, **k: (made.note(kind), send(process, kind, *a, **k))[1]
    )
    monkeypatch.setattr(FakeTextPolicy, "evaluate", lambda *a, **k: (made.note("compare"), evaluate(*a, **k))[1])
    return made


def port_of(rig, engine, max_gap=1e-4) -> EnginePort:
    return EnginePort(engine, rig.policy, rig.slab, rig.env.spec, CPU, max_gap)


def changed(policy: FakeTextPolicy) -> None:
    with torch.no_grad():
        policy.table += torch.randn(policy.table.shape, generator=torch.Generator().manual_seed(3))


def three_rollouts(rig, tmp_path, rests, *faults, sleeps=True):
    """Records of a rollout, of one with the same weights, of one with others; and what was measured."""
    with open_engine(rig.policy, tmp_path, *faults, at_once=1, sleeps=sleeps, weights=rests) as engine:
        found = []
        for after in (False, False, True):
            if after:
                changed(rig.policy)
            records, _ = collect(rig, port_of(rig, engine))
            found.append((records, engine.take_metrics()))
    return found


@pytest.mark.parametrize("sleeps", [True, False])
def test_they_are_away_while_the_engine_generates_and_the_numbers_are_the_same(rig, device, tmp_path, sleeps):
    wanted = three_rollouts(rig, tmp_path / "stay", None, sleeps=sleeps)
    with torch.no_grad():
        rig.policy.table.copy_(FakeTextPolicy().table)
    before, expected = device.take(), []
    assert ("compare", HERE) in before
    assert not [place for _, place in before if place == AWAY], "they stay unless they are asked to rest"
    found = three_rollouts(rig, tmp_path / "rest", RestingWeights(rig.policy, True), sleeps=sleeps)
    assert [records for records, _ in found] == [records for records, _ in wanted]
    assert [more.get("rollout/engine_logprob_gap", 1) < 1e-5 for _, more in found] == [True, False, True]
    for number in range(3):
        expected += ["setup"] if number == 0 else ["wake"] * sleeps
        expected += [*(["load"] if number != 1 else []), "begin", "ask", *["sleep"] * sleeps]
        expected += ["compare"] if number != 1 else []
    every = [one for one, following in zip(device.seen, [*device.seen[1:], None], strict=True) if one != following]
    assert every == [(what, HERE if what == "compare" else AWAY) for what in expected]


def test_without_the_key_they_never_move(rig, device, tmp_path):
    three_rollouts(rig, tmp_path, RestingWeights(rig.policy, False))
    assert {place for _, place in device.take()} == {HERE}


def test_an_engine_that_takes_the_place_of_another_gets_them_too(rig, device, tmp_path):
    fault, weights = f"dies={tmp_path / 'once'}", RestingWeights(rig.policy, True)
    with open_engine(rig.policy, tmp_path, fault, at_once=1, weights=weights) as engine:
        collect(rig, port_of(rig, engine))
        assert engine.take_metrics()["rollout/engine_restarts"] == 1
    assert [place for what, place in device.seen if what == "load"] == [AWAY, AWAY]
    assert device.seen[-1] == ("compare", HERE)


def test_an_engine_that_computes_something_else_is_refused_when_it_has_generated(rig, device, tmp_path):
    with open_engine(rig.policy, tmp_path, "deaf", weights=RestingWeights(rig.policy, True)) as engine:
        port = port_of(rig, engine)
        collect(rig, port)
        changed(rig.policy)
        device.take()
        with pytest.raises(EngineError, match="computes other log-probs than the training network"):
            collect(rig, port)
        assert device.take()[-2:] == [("ask", AWAY), ("compare", HERE)]
        assert engine.take_metrics()["rollout/engine_logprob_gap_mean"] > 0.01


def stop(result: object) -> None:
    raise Stopped


def test_a_rollout_that_is_stopped_is_not_compared_and_the_next_one_is(make_rig, device, tmp_path):
    stopped, other = (make_rig(net=SHARED, workers=1, **TEXT) for _ in range(2))
    with open_engine(SHARED, tmp_path, weights=RestingWeights(SHARED, True)) as engine:
        with pytest.raises(Stopped):
            collect(stopped, port_of(stopped, engine), on_episode=stop)
        seen = device.take()
        assert ("ask", AWAY) in seen
        assert "compare" not in dict(seen)
        assert torch.equal(SHARED.table, FakeTextPolicy().table), "they are back for a save"
        collect(other, port_of(other, engine))
        assert ("compare", HERE) in device.take()


def test_they_come_back_from_an_engine_that_cannot_start(rig, device, tmp_path):
    with open_engine(rig.policy, tmp_path, "refuses", weights=RestingWeights(rig.policy, True)) as engine:
        port = port_of(rig, engine)
        with pytest.raises(EngineError, match="No module named 'fast_kernels'"):
            collect(rig, port)
    assert torch.equal(rig.policy.table, FakeTextPolicy().table)


def test_a_signal_while_they_come_back_leaves_none_on_the_host(rig, device, monkeypatch):
    layer = torch.nn.Linear(3, 2)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    weights, to_device = RestingWeights(layer, True), device.to_device
    weights.rest()
    assert all(value.isnan().all() for value in layer.state_dict().values())
    left = iter([None, KeyboardInterrupt])

    def interrupted(tensor: Tensor, device: torch.device) -> Tensor:
        if error := next(left, None):
            raise error
        return to_device(tensor, device) if hidden(tensor) else tensor

    hidden = device.on_host
    monkeypatch.setattr(resting, "to_device", interrupted)
    with pytest.raises(KeyboardInterrupt):
        weights.wake()
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "bfloat16"), (torch.float16, "float16")])
def test_an_engine_takes_them_in_the_format_in_which_they_travel(rig, tmp_path, dtype, name):
    """And writes what rounded weights write."""
    changed(rig.policy)
    exact = rig.policy.table.detach().clone()
    with open_engine(rig.policy, tmp_path, at_once=1, weights_dtype=dtype) as engine:
        got, _ = collect(rig, port_of(rig, engine, max_gap=0.1))
        gap = engine.take_metrics()["rollout/engine_logprob_gap_mean"]
    assert torch.equal(rig.policy.table, exact), "those that learn are not rounded"
    assert f"the weights came in {name}" in (tmp_path / "logs" / "engine.log").read_text(encoding="utf-8")
    with torch.no_grad():
        rig.policy.table.copy_(exact.to(dtype).float())
    with open_engine(rig.policy, tmp_path / "rounded", at_once=1) as engine:
        wanted, _ = collect(rig, port_of(rig, engine))
        assert engine.take_metrics()["rollout/engine_logprob_gap_mean"] < 1e-6 < gap
    assert got == wanted


def test_a_small_gap_is_not_allowed_where_they_are_rounded_on_the_way(rig, tmp_path):
    changed(rig.policy)
    said = "computes other log-probs than the training network"
    rounded = open_engine(rig.policy, tmp_path, weights_dtype=torch.bfloat16)
    with rounded as engine, pytest.raises(EngineError, match=said):
        collect(rig, port_of(rig, engine, max_gap=1e-6))


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16, torch.float16])
def test_checksums_are_of_what_is_sent(dtype):
    made = torch.Generator().manual_seed(1)
    sent = {"a": torch.randn(3, 5, generator=made), "b": torch.randn(7, generator=made).to(torch.bfloat16)}
    file = WeightsFile()
    written = file.write(in_format(sent.items(), dtype))
    for one, (facts, numbers_), (name, tensor) in zip(written, read(file.path), sent.items(), strict=True):
        format_ = dtype or tensor.dtype
        assert (facts["name"], facts["dtype"]) == (name, str(format_).removeprefix("torch."))
        got = torch.frombuffer(numbers_, dtype=format_).view(facts["shape"])
        assert torch.equal(got, tensor.to(format_))
        assert one == facts == {**facts, "checksum": zlib.crc32(numbers_)}
    file.close()


def test_a_number_that_the_format_does_not_hold_is_refused():
    weights = {"small": torch.ones(3), "head.weight": torch.tensor([1.0, -70_000.0])}
    with pytest.raises(ConfigError, match=r"largest number is 65504, and head\.weight has 70000") as error:
        list(in_format(weights.items(), torch.float16))
    assert "runner.weight_sync_dtype" in error.value.message
    assert len(list(in_format(weights.items(), torch.bfloat16))) == 2
