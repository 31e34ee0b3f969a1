"""The policy port of an inference engine, with an engine of the tests in a process of its own."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from rig import CPU, records
from test_chaos import PATIENT

from embodied import instructions
from embodied.errors import EngineError
from embodied.observe.timing import Sections
from embodied.random import Stream
from embodied.run.build.engine_process import SERVE
from embodied.runtime.engine.child.weights_file import read
from embodied.runtime.engine.child.wire import Reader, pack
from embodied.runtime.engine.engine import Engine, EngineConfig
from embodied.runtime.engine.port import EnginePort
from embodied.runtime.engine.process import EngineProcess
from embodied.runtime.engine.weights import WeightsFile, fingerprint
from embodied.runtime.plan import train_plan
from embodied.runtime.policy.policy_port import Draw, PolicyPort, Request
from embodied.runtime.records import RecordStore
from embodied.runtime.rollout.rollout import Rollout, Schedule
from embodied.testing import FakeTextEnv, FakeTextPolicy
from embodied.types import Sampling

FAKE = Path(__file__).with_name("fake_engine.py")
SLOTS, TURNS = 6, 2
TEXT = {"target": "embodied.testing.FakeTextEnv", "kind": FakeTextEnv, "turns": TURNS, "slots": SLOTS, "rows": 128}


@contextmanager
def open_engine(
    policy, logs, *faults, at_once=4, said=None, sleeps=False, weights=None, evidence=None, **changes
) -> Iterator[Engine]:
    options = {"init_timeout_s": 20.0, "answer_timeout_s": 20.0, "max_restarts": 2, "remedy": "install it", **changes}
    config = EngineConfig(
        (sys.executable, str(FAKE), *faults), {"max_num_seqs": at_once, "sleeps": sleeps}, {}, logs / "logs", **options
    )  # fmt: skip
    said = [] if said is None else said
    engine = Engine(config, policy, said.append, lambda name: nullcontext(said.append(name)), weights, evidence)
    try:
        yield engine
    finally:
        engine.close()


@pytest.fixture(scope="module")
def rig(shared_rig):
    return shared_rig(net=FakeTextPolicy(), workers=2, **TEXT)


def port_of(rig, engine, max_gap=1e-4) -> EnginePort:
    return EnginePort(engine, rig.policy, rig.slab, rig.env.spec, CPU, max_gap)


def collect(rig, port: PolicyPort, on_episode=lambda result: None, **job):
    rollout = Rollout(rig.pool, port, RecordStore(rig.slab), 1, Schedule(False, min_batch=1), Sections())
    plan = train_plan(rig.env.spec, seed=3, iteration=0, episodes=12, group_size=2)
    results, stats = rollout.collect(plan, rig.job(max_steps=TURNS, **job), on_episode)
    return records(rig, results), stats


@pytest.fixture(scope="module")
def reference(rig, tmp_path_factory):
    """Records of an engine that writes one text at a time."""
    with open_engine(rig.policy, tmp_path_factory.mktemp("one"), at_once=1) as engine:
        return collect(rig, port_of(rig, engine))[0]


@pytest.fixture
def asked(rig, tmp_path):
    """Asks an engine for texts to all slots, and gives a function that polls until so many have come."""

    def ask(engine: Engine, draw: Draw | None = None):
        port = port_of(rig, engine)
        for row in range(SLOTS):
            instructions.write(f"#{row} {'abc'[row % 3]}", rig.slab.arrays["instruction"][row])
        port.begin(draw or Draw(Sampling(), 1, Stream.TRAIN_NOISE))
        port.submit([Request(slot, slot, slot, 0) for slot in range(SLOTS)])

        def until(count: int) -> list[int]:
            found, end = [], time.monotonic() + 30
            while len(found) < count and time.monotonic() < end:
                found += [request.slot for request in port.poll()]
            return found

        return port, until

    return ask


def test_texts_that_are_written_together_are_those_of_one_at_a_time(rig, reference, tmp_path):
    with open_engine(rig.policy, tmp_path, at_once=5) as engine:
        got, stats = collect(rig, port_of(rig, engine))
    assert got == reference
    assert len(got) == 12 * TURNS == stats.policy_rows


def test_rows_hold_the_engines_texts_and_their_log_probs(rig, reference):
    texts = set()
    for record in reference.values():
        tokens, length = np.frombuffer(record["tokens"], np.int32), int(np.frombuffer(record["length"], np.int32)[0])
        told = rig.policy.encode_instructions([instructions.read(np.frombuffer(record["instruction"], np.uint8))])
        fields = {"tokens": torch.from_numpy(tokens.copy())[None], **told}
        own = rig.policy.evaluate(fields, Sampling()).logprobs[0].detach().numpy()
        assert np.frombuffer(record["logprobs"], np.float32)[:length] == pytest.approx(own[:length], abs=1e-6)
        texts.add(instructions.read(np.frombuffer(record["actions"], np.uint8)))
    assert len(texts) > 8


def test_short_texts_come_back_while_long_ones_are_written(rig, asked, tmp_path):
    with open_engine(rig.policy, tmp_path, at_once=SLOTS) as engine:
        port, until = asked(engine)
        order = until(SLOTS)
    lengths = rig.slab.arrays["length"][order]
    assert (np.diff(lengths) >= 0).all()  # a letter a step
    assert len(set(lengths.tolist())) > 1
    assert port.pending == 0


def test_a_slot_whose_worker_failed_gets_no_answer(rig, asked, tmp_path):
    with open_engine(rig.policy, tmp_path, at_once=2) as engine:
        port, until = asked(engine)
        port.cancel(0)  # taken on, or on its way
        port.cancel(5)
        assert port.pending == SLOTS - 2
        assert sorted(until(SLOTS - 2)) == [1, 2, 3, 4]
        assert (port.pending, port.poll()) == (0, [])
        port.submit([Request(5, 5, 5, 0)])  # the slot is back
        assert until(1) == [5]


def test_what_is_cancelled_is_not_written_to_its_end(rig, asked, tmp_path):
    with open_engine(rig.policy, tmp_path, "slow", at_once=SLOTS) as engine:
        port, until = asked(engine)
        assert port.poll() == []
        for slot in range(1, SLOTS):
            port.cancel(slot)
        assert until(1) == [0]
        port.submit([Request(1, 1, 1, 0)])  # its answer says that the engine has read all before
        assert until(1) == [1]
    assert "left a text unfinished" in (tmp_path / "logs" / "engine.log").read_text(encoding="utf-8")


def test_an_engine_that_fails_now_and_then_is_replaced_as_often_as_it_takes(rig, asked, tmp_path):
    sampling = Sampling(max_new_tokens=2)
    with open_engine(rig.policy, tmp_path, "dies", at_once=1, max_restarts=1) as engine:
        _, until = asked(engine, Draw(sampling, 1, Stream.TRAIN_NOISE))
        assert sorted(until(SLOTS)) == [*range(SLOTS)]
        assert engine.take_metrics()["rollout/engine_restarts"] >= 2


def test_an_engine_with_nothing_to_do_is_not_taken_for_one_that_hangs(rig, asked, tmp_path):
    with open_engine(rig.policy, tmp_path, answer_timeout_s=0.6, max_restarts=0) as engine:
        port, until = asked(engine)
        until(SLOTS)
        time.sleep(0.8)
        assert port.poll() == []
        port.submit([Request(0, 0, 0, 0)])
        assert until(1) == [0]


@pytest.mark.parametrize("fault", ["dies", "raises"])
def test_an_engine_that_fails_is_replaced_and_asked_again(rig, reference, tmp_path, fault):
    said: list[str] = []
    with open_engine(rig.policy, tmp_path, f"{fault}={tmp_path / 'once'}", said=said) as engine:
        got, _ = collect(rig, port_of(rig, engine))
        measured = engine.take_metrics()
    assert got == reference
    assert measured["rollout/engine_restarts"] == 1
    assert measured["time/engine_load_s"] > 0
    waits = ["writing the weights for the engine", "starting the engine", "the engine takes the weights"]
    assert [line for line in said if line in waits] == 2 * waits
    assert [*said[:2], said[3]] == waits, "what is waited for is said before"
    assert ("was killed by SIGKILL" if fault == "dies" else "RuntimeError: the cache is full") in said[4]
    assert (tmp_path / "logs" / "engine.1.log").is_file()


def test_failures_of_env_workers_change_no_record(make_rig, reference, tmp_path, monkeypatch):
    rig = make_rig(net=FakeTextPolicy(), workers=3, max_restarts=1000, deadlines=PATIENT, **TEXT)
    with open_engine(rig.policy, tmp_path) as engine:
        port, polls = port_of(rig, engine), itertools.count()
        poll = port.poll

        def poll_and_kill():
            found = poll()
            if found and next(polls) in (0, 2, 5):
                os.kill(rig.pool.pids[next(polls) % 3], signal.SIGKILL)
            return found

        monkeypatch.setattr(port, "poll", poll_and_kill)
        got, stats = collect(rig, port)
    assert got == reference
    assert stats.worker_restarts


def test_an_engine_that_hangs_is_killed_with_the_place_where_it_stood(rig, asked, tmp_path):
    with open_engine(rig.policy, tmp_path, "hangs", answer_timeout_s=0.5, max_restarts=0) as engine:
        _, until = asked(engine)
        with pytest.raises(EngineError, match=r"did not answer for 0\.5 s") as error:
            until(SLOTS)
    assert "rollout.answer_timeout_s" in error.value.remedy
    assert "_fail_at_the_third_step" in error.value.detail


def test_an_engine_that_fails_again_and_again_ends_the_run(rig, asked, tmp_path):
    with open_engine(rig.policy, tmp_path, "dies", max_restarts=2) as engine:
        port, until = asked(engine)
        with pytest.raises(EngineError, match="failure 3 without an answer") as error:
            until(SLOTS)
        assert "rollout.max_engine_restarts" in error.value.remedy
        port.end()


def test_an_engine_that_cannot_start_says_why(rig, tmp_path):
    with open_engine(rig.policy, tmp_path, "refuses") as engine, pytest.raises(EngineError) as error:
        engine.begin(Sampling())
    assert "No module named 'fast_kernels'" in error.value.message
    assert "in __init__" in error.value.detail
    assert "install it" in error.value.remedy


def test_a_command_that_ends_at_once_shows_its_log(rig, tmp_path):
    config = EngineConfig(("sh", "-c", "echo no such file >&2; exit 3", "sh"), {}, {}, tmp_path, 5.0, 5.0, 3, "fix it")
    engine = Engine(config, rig.policy)
    with pytest.raises(EngineError, match="ended with status 3") as error:
        engine.begin(Sampling())
    engine.close()
    assert "no such file" in error.value.detail


def test_an_engine_that_never_gets_ready_has_a_deadline(rig, tmp_path):
    config = EngineConfig(("sh", "-c", "sleep 60", "sh"), {}, {}, tmp_path, 0.3, 5.0, 3, "fix it")
    engine = Engine(config, rig.policy)
    with pytest.raises(EngineError, match=r"did not answer for 0\.3 s") as error:
        engine.begin(Sampling())
    engine.close()
    assert "rollout.init_timeout_s" in error.value.remedy


def test_changed_weights_are_pushed_and_equal_ones_are_not(make_rig, tmp_path):
    rig = make_rig(net=FakeTextPolicy(), workers=1, **TEXT)
    with open_engine(rig.policy, tmp_path) as engine:
        port = port_of(rig, engine)
        before, _ = collect(rig, port)
        assert "time/engine_load_s" in engine.take_metrics()
        again, _ = collect(rig, port)
        assert "time/engine_load_s" not in engine.take_metrics()
        with torch.no_grad():
            rig.policy.table += torch.randn(rig.policy.table.shape, generator=torch.Generator().manual_seed(3))
        after, _ = collect(rig, port)  # compares its log-probs with those of the new weights
        measured = engine.take_metrics()
    assert before == again != after
    assert measured["rollout/engine_logprob_gap_mean"] <= measured["rollout/engine_logprob_gap"] < 1e-5


def test_an_engine_that_keeps_old_weights_is_refused(make_rig, tmp_path):
    rig = make_rig(net=FakeTextPolicy(), workers=1, **TEXT)
    with open_engine(rig.policy, tmp_path, "deaf") as engine:
        port = port_of(rig, engine)
        collect(rig, port)
        with torch.no_grad():
            rig.policy.table[:, 1] += 0.5
        with pytest.raises(EngineError, match="computes other log-probs than the training network"):
            collect(rig, port)
        assert engine.take_metrics()["rollout/engine_logprob_gap_mean"] > 0.01


def test_greedy_texts_depend_on_no_seed_and_are_not_compared(rig, asked, tmp_path):
    texts = []
    with open_engine(rig.policy, tmp_path) as engine:
        for seed in (1, 2):
            port, until = asked(engine, Draw(Sampling(do_sample=False), seed, Stream.EVAL_NOISE))
            until(SLOTS)
            port.end()
            texts.append(rig.slab.arrays["tokens"][:SLOTS].tolist())
        assert not engine.checked
    assert texts[0] == texts[1]


def test_an_engine_that_sleeps_between_rollouts_wakes_with_its_weights(rig, reference, tmp_path):
    with open_engine(rig.policy, tmp_path, sleeps=True) as engine:
        for _ in range(2):
            assert collect(rig, port_of(rig, engine))[0] == reference
        assert engine._asleep
        assert engine._starts == 1


def test_an_engine_that_cannot_sleep_is_replaced_by_the_next_rollout(rig, reference, tmp_path):
    with open_engine(rig.policy, tmp_path, f"sleepless={tmp_path / 'once'}", sleeps=True) as engine:
        for _ in range(2):
            assert collect(rig, port_of(rig, engine))[0] == reference
        assert engine._starts == 2
        assert engine.take_metrics()["rollout/engine_restarts"] == 1


def test_an_engine_is_heard_behind_a_thousand_open_files(rig, reference, tmp_path):
    least, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if least < 1200:
        pytest.skip("fewer than 1,200 files may be open")
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1024)]
    try:
        with open_engine(rig.policy, tmp_path) as engine:
            assert collect(rig, port_of(rig, engine))[0] == reference
    finally:
        for file in files:
            os.close(file)


def test_a_rollout_that_was_dropped_leaves_nothing_to_the_next(rig, reference, asked, tmp_path):
    with open_engine(rig.policy, tmp_path) as engine:
        port, until = asked(engine)
        until(1)
        port.end()
        assert port.pending == 0
        assert collect(rig, port_of(rig, engine))[0] == reference
        assert engine._starts == 2  # the first still wrote the others


@pytest.mark.parametrize(
    ("package", "said", "place"),
    [("import time\ntime.sleep(600)\n", "did not answer for 1 s", "vllm.py"),
     ("import fast_kernels\n", "No module named 'fast_kernels'", "vllm_engine.py")],
)  # fmt: skip
def test_an_engine_whose_package_cannot_be_imported_says_where_it_stood(tmp_path, package, said, place):
    (tmp_path / "vllm.py").write_text(package, encoding="utf-8")
    paths = {"PYTHONPATH": str(tmp_path)}
    process = EngineProcess([sys.executable, str(SERVE), "vllm"], paths, tmp_path / "log", "install it")
    try:
        process.send("setup")
        with pytest.raises(EngineError, match=said) as raised:
            process.wait_for("ready", 1.0 if "sleep" in package else 20.0, "rollout.init_timeout_s")
        assert place in raised.value.detail
    finally:
        process.close()


def test_the_seed_of_a_text_is_that_of_its_episode(rig, asked, tmp_path):
    with open_engine(rig.policy, tmp_path) as engine:
        port, until = asked(engine)
        until(SLOTS)
        first = rig.slab.arrays["tokens"][:SLOTS].copy()
        port.submit([Request(slot, SLOTS - 1 - slot, SLOTS - 1 - slot, 0) for slot in range(SLOTS)])  # another order
        until(SLOTS)
        assert (rig.slab.arrays["tokens"][:SLOTS] == first).all()
        port.submit([Request(slot, slot, slot + SLOTS, 0) for slot in range(SLOTS)])  # other episodes
        until(SLOTS)
        assert (rig.slab.arrays["tokens"][:SLOTS] != first).any()


def test_messages_are_found_however_the_stream_is_cut():
    sent = [pack("ask", b"\x01\x02\x03", number=7), pack("alive"), pack("answer", b"", text="ü" * 300)]
    for size in (1, 5, 1000):
        reader, stream = Reader(), b"".join(sent)
        got = [one for i in range(0, len(stream), size) for one in reader.feed(stream[i : i + size])]
        assert [one.kind for one in got] == ["ask", "alive", "answer"]
        assert got[0].body == b"\x01\x02\x03"
        assert got[2].fields["text"] == "ü" * 300


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_are_read_as_they_were_written(dtype):
    made = torch.Generator().manual_seed(1)
    sent = {"a.weight": torch.randn(3, 5, generator=made), "b": torch.randn((), generator=made),
            "c": torch.randn(200, 7, generator=made).T}  # fmt: skip
    sent = {name: tensor.to(dtype) for name, tensor in sent.items()}
    file = WeightsFile()
    for _ in range(2):  # it may be written again
        written = file.write(sent.items())
        got = {
            facts["name"]: torch.frombuffer(numbers, dtype=getattr(torch, facts["dtype"])).view(facts["shape"])
            for facts, numbers in read(file.path)
        }
        assert [one["name"] for one in written] == [*got] == [*sent]
        assert all(torch.equal(got[name], tensor) for name, tensor in sent.items())
    file.close()


def test_the_fingerprint_tells_any_change_of_a_trained_weight():
    layer = torch.nn.Linear(100, 100)
    layer.bias.requires_grad_(False)
    before = fingerprint(layer)
    with torch.no_grad():
        layer.bias += 1
        assert fingerprint(layer) == before
        layer.weight[3, 4] = torch.nextafter(layer.weight[3, 4], torch.tensor(9.0))
    changed = fingerprint(layer)
    with torch.no_grad():
        layer.weight[:] = layer.weight.flip(0)
    assert len({before, changed, fingerprint(layer)}) == 3
