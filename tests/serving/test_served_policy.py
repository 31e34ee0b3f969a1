"""A policy behind a server (models/served): what it asks, what it refuses, and what it notices of the server."""

from __future__ import annotations

import base64
import json
import shlex
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embodied.models.served import build_policy
from embodied.models.served.dialects import DIALECTS, Told, dialect
from embodied.models.served.fit import check_told
from embodied.models.served.mapping import parse, read, ready, resized
from serving_rig import ENV, SlowPolicy, serving
from stub_server import Stub, cut, stub_server

from embodied.errors import (
    ConfigError,
    EmbodiedError,
    PolicyChangedError,
    ServerLostError,
    ServerRefusedError,
    SpecMismatchError,
    WireError,
)
from embodied.protocols import AnswersLater, HasExtraState, NamesSampler, NamesWeights
from embodied.runtime.worker.shown import Shown
from embodied.testing import FakeEnv, FakePolicy, FlowPolicy
from embodied.types import ContinuousAction, Sampling, TextAction

GREEDY, SAMPLED = Sampling(do_sample=False), Sampling()
QUICK: dict[str, Any] = {"timeout_s": 2.0, "connect_s": 1.0, "reconnect_s": 3.0}
MAPPING = {
    "request": {
        "observation/image": {"camera": 0, "rotate": 180, "size": 8},
        "observation/state": {"field": "state", "slice": [0, 3]},
        "prompt": {"instruction": True},
    },
}


@contextmanager
def served(url: str, env: Any = ENV, **keys: Any) -> Iterator[Any]:
    policy = build_policy(url=url, **{**QUICK, **keys})
    try:
        policy.bind(env)
        yield policy
    finally:
        policy._crew.close()


def begin(url: str, env: Any = ENV, **keys: Any) -> None:
    """What a run does before its first episode."""
    with served(url, env, **keys):
        pass


def observations(rows: int) -> dict[str, torch.Tensor]:
    random = np.random.default_rng(3)
    images = random.integers(0, 256, (rows, *ENV.obs["images"].shape), np.uint8)
    state = random.standard_normal((rows, 8)).astype(np.float32)
    return {"images": torch.from_numpy(images), "state": torch.from_numpy(state)}


def decided(policy: Any, rows: int = 6, sampling: Sampling = GREEDY, seed: int = 0) -> torch.Tensor:
    noise = torch.from_numpy(np.random.default_rng(seed).random((rows, *policy.spec.noise.shape), np.float32))
    texts = [ENV.tasks[row % len(ENV.tasks)] for row in range(rows)]
    obs = observations(rows) | dict(policy.encode_instructions(texts))
    return policy.act(obs, noise, sampling).fields["actions"]


# -- our server ------------------------------------------------------------------------------------------------------


def test_its_decisions_are_those_of_the_policy_behind_it():
    own = FakePolicy()
    own.bind(ENV)
    with serving(own) as server, served(f"ws://{server.address}") as policy:
        assert all(isinstance(policy, kind) for kind in (AnswersLater, HasExtraState, NamesSampler, NamesWeights))
        assert (policy.spec.num_action_chunks, policy.spec.noise.greedy) == (4, 0)
        assert torch.equal(decided(policy), decided(own))
        drawn = decided(policy, sampling=SAMPLED)
        assert not torch.equal(drawn, decided(own))
        with served(f"ws://{server.address}", connections=1) as other:
            assert torch.equal(decided(other, sampling=SAMPLED), drawn), "noise names what is drawn"
            assert torch.equal(decided(other, 1, SAMPLED), decided(other, 1, SAMPLED)), "also asked twice"
            assert not torch.equal(decided(other, sampling=SAMPLED, seed=1), drawn)
        assert policy.repeatable
        assert Shown.of(policy.spec, value=False) is None, "a video shows no probability that nobody told"
        assert policy.probe({}) == ()
        policy.check()
        assert torch.equal(decided(deepcopy(policy)), decided(own)), "a copy asks over the same connections"


def test_fewer_actions_of_an_answer_are_executed():
    own = FakePolicy()
    own.bind(ENV)
    with serving(own) as server:
        with served(f"ws://{server.address}", num_action_chunks=2) as policy:
            assert torch.equal(decided(policy), decided(own)[:, :2])
        with pytest.raises(SpecMismatchError, match="gives 4 actions an answer, and 5 are") as caught:
            begin(f"ws://{server.address}", num_action_chunks=5)
        assert "num_action_chunks=4" in caught.value.remedy


def test_greedy_actions_that_begin_with_noise_are_asked_for_by_session():
    env = FakeEnv().spec
    own = FlowPolicy(one_step=True)
    own.bind(env)
    with serving(own, env, fixed_shape=True) as server, served(f"ws://{server.address}", env) as policy:
        assert policy.spec.noise.greedy == 2
        assert torch.equal(decided(policy), decided(policy))
        assert not torch.equal(decided(policy), decided(policy, seed=1))


def test_a_question_that_is_forgotten_is_not_answered():
    own = SlowPolicy(paced=True)
    own.go.set()
    with serving(own) as server, served(f"ws://{server.address}", connections=1) as policy:
        own.go.clear()
        obs = {name: array[0].numpy() for name, array in observations(1).items()}
        for number in range(3):
            policy.ask(number, obs, ENV.tasks[0], np.zeros(2, np.float32), GREEDY)
        assert policy.answers(0.05) == []
        policy.forget(1)
        own.go.set()
        found: list[int] = []
        while len(found) < 2:
            found += [number for number, _ in policy.answers(5.0)]
        assert sorted(found) == [0, 2]
        assert policy.answers(0.05) == []


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (replace(ENV, action=ContinuousAction((-1.0,) * 6, (1.0,) * 6)), "actions of 7 numbers, the env takes 6"),
        (replace(ENV, action=ContinuousAction((-0.05,) * 7, (0.05,) * 7)), "other units, or another controller"),
        (replace(ENV, cameras=("over", "side")), "takes the cameras"),
        (FakeEnv(size=24).spec, r"takes 'images' as uint8 \[2, 16, 16, 3\], the env gives uint8 \[2, 24, 24, 3\]"),
        (replace(ENV, obs={"images": ENV.obs["images"]}), r"takes 'state' as float32 \[8\], the env has none"),
        (replace(ENV, control_hz=7.0), "control steps a second"),
        (replace(ENV, action=TextAction(9)), "takes text"),
    ],
)
def test_what_does_not_fit_the_env_is_found_before_an_episode(served_address, env, said):
    with pytest.raises(SpecMismatchError, match=said) as caught, served(served_address, env):
        pass
    assert caught.value.remedy


@pytest.fixture(scope="module")
def served_address() -> Iterator[str]:
    with serving() as server:
        yield f"ws://{server.address}"


def test_one_of_n_actions_is_told_apart():
    told = Told(action_dim=1, num_actions=3)
    with pytest.raises(SpecMismatchError, match="one of 3 actions, the env takes 7 numbers"):
        check_told(told, ENV, None, "ws://x:1")


# -- other servers ---------------------------------------------------------------------------------------------------


def constant(request: Mapping[str, Any], value: float = 0.25, actions: int = 4, dim: int = 7) -> dict[str, Any]:
    return {"actions": np.full((actions, dim), value, np.float64)}


@contextmanager
def foreign(reply: Callable[[Mapping[str, Any]], Any] = constant, **options: Any) -> Iterator[Stub]:
    """A server of openpi's, which tells nothing of itself."""
    with stub_server(lambda request, connection: reply(request), metadata={}, **options) as stub:
        yield stub


def test_a_server_that_tells_nothing_needs_a_mapping():
    with foreign() as stub:
        with pytest.raises(SpecMismatchError, match="does not tell") as caught, served(stub.url):
            pass
        assert "openpi_libero" in caught.value.remedy
        with served(stub.url, mapping=MAPPING | {"actions": {"take": 3}}) as policy:
            assert (policy.spec.num_action_chunks, policy.repeatable) == (3, True)
            stub.requests.clear()
            actions = decided(policy, 1)
        assert (actions == 0.25).all()
        request = stub.requests[-1]  # before it, the fixed ones over its connection
        picture = observations(1)["images"][0, 0].numpy()
        assert set(request) == {"observation/image", "observation/state", "prompt"}, "pictures travel once"
        assert (request["observation/image"] == resized(picture[::-1, ::-1], 8)).all()
        assert (request["observation/state"] == observations(1)["state"][0, :3].numpy()).all()
        assert request["prompt"] == ENV.tasks[0]


@pytest.mark.parametrize(
    ("reply", "actions", "said"),
    [
        (lambda request: constant(request, dim=6), {}, r"gave actions \[4, 6\], the env takes 7"),
        (lambda request: constant(request, actions=2), {"take": 4}, "gives 2 actions an answer, and 4 are"),
        (lambda request: constant(request, value=np.nan), {}, "not finite"),
        (lambda request: {"action": np.zeros((4, 7))}, {}, "expected numbers"),
        (lambda request: "Traceback\nKeyError: 'state'", {}, "KeyError: 'state'"),
    ],
)
def test_answers_that_are_none_of_the_env_are_found_before_an_episode(reply, actions, said):
    with foreign(reply) as stub, pytest.raises((SpecMismatchError, WireError, ServerRefusedError), match=said) as found:
        begin(stub.url, mapping=MAPPING | {"actions": actions})
    assert found.value.remedy


def test_other_units_are_said_at_the_first_answer():
    with foreign(lambda request: constant(request, value=250.0)) as stub:
        with (
            served(stub.url, mapping=MAPPING) as policy,
            pytest.raises(SpecMismatchError, match="other units") as found,
        ):
            decided(policy)
        assert "actions.scale" in found.value.remedy
        with served(stub.url, mapping=MAPPING | {"actions": {"scale": 1e-3}}) as policy:
            assert (decided(policy) == 0.25).all()


def test_a_server_that_draws_by_itself_is_said_and_only_its_metadata_are_compared():
    random = np.random.default_rng(0)
    drawn = foreign(lambda request: {"actions": random.uniform(-1, 1, (4, 7))})
    with drawn as stub, served(stub.url, mapping=MAPPING) as policy:
        assert not policy.repeatable
        assert policy.spec.noise.greedy == 2, "several episodes of a start are worth while"
        assert "not repeatable" in policy.probe({})[0].replace("numbers are", "")
        assert policy.sampler(GREEDY) == {"repeatable": False}
        policy.check()
        stub.metadata = {"model": "another"}
        stub.stop()
        stub.start()
        with pytest.raises(PolicyChangedError, match="something else of itself"):
            policy.check()


# -- servers that go and come ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.25, 0.3])
def test_a_server_that_comes_again_is_compared(value):
    with foreign() as stub, served(stub.url, mapping=MAPPING) as policy:
        assert (decided(policy) == 0.25).all()
        stub.stop()
        stub.reply = lambda request, connection: constant(request, value=value)
        later = threading.Timer(0.3, stub.start)
        later.start()
        if value == 0.25:
            assert (decided(policy) == 0.25).all()
            policy.check()
        else:
            with pytest.raises(PolicyChangedError, match="another policy than before"):
                decided(policy)
            with pytest.raises(PolicyChangedError):
                policy.check()
        later.join()


def test_weights_that_change_behind_a_connection_are_found_at_the_end_of_a_rollout():
    with foreign() as stub, served(stub.url, mapping=MAPPING) as policy:
        policy.check()
        stub.reply = lambda request, connection: constant(request, value=0.3)
        with pytest.raises(PolicyChangedError, match=r"answers the same 3 observations otherwise, by up to 0\.05"):
            policy.check()


def test_another_env_is_asked_about_with_the_same_policy():
    other = replace(ENV, tasks=("something else",))
    with foreign() as stub, served(stub.url, mapping=MAPPING) as policy:
        policy.bind(other)
        policy.bind(ENV)
        stub.reply = lambda request, connection: constant(request, value=0.3)
        with pytest.raises(PolicyChangedError):
            policy.check()
        policy.bind(other)
        with pytest.raises(PolicyChangedError):
            policy.check()
        with pytest.raises(PolicyChangedError):
            policy.bind(replace(ENV, tasks=("a third",)))


def test_a_checkpoint_belongs_to_what_answered():
    with foreign() as stub:
        with served(stub.url, mapping=MAPPING) as policy:
            state = policy.extra_state()
        with served(stub.url, mapping=MAPPING) as policy:
            policy.load_extra_state(state)
        stub.reply = lambda request, connection: constant(request, value=0.3)
        with served(stub.url, mapping=MAPPING) as policy, pytest.raises(PolicyChangedError):
            policy.load_extra_state(state)


def test_a_server_that_stalls_is_asked_again_over_another_connection():
    stalled = threading.Event()

    def once(request: Mapping[str, Any], connection: Any) -> Any:
        if len(stub.requests) > 6 and not stalled.is_set():  # after the fixed observations
            stalled.set()
            return None
        return constant(request)

    keys = {"mapping": MAPPING, "timeout_s": 0.3, "connections": 1}
    with stub_server(once, metadata={}) as stub, served(stub.url, **keys) as policy:
        assert (decided(policy, 2) == 0.25).all()
        assert stalled.is_set()


def test_a_server_that_stays_away_is_given_up():
    with foreign() as stub, served(stub.url, mapping=MAPPING, reconnect_s=0.3) as policy:
        stub.stop()
        with pytest.raises(ServerLostError, match="has given no answer") as caught:
            decided(policy)
        assert "reconnect_s" in caught.value.remedy


def test_a_connection_that_is_cut_costs_nothing_but_time():
    cuts = iter([False] * 6 + [True, False] * 50)

    def unreliable(request: Mapping[str, Any], connection: Any) -> Any:
        if next(cuts):
            cut(connection)
        return constant(request)

    with stub_server(unreliable, metadata={}) as stub, served(stub.url, mapping=MAPPING, connections=1) as policy:
        stub.reply = lambda request, connection: (cut(connection) if len(stub.requests) == 8 else 0, constant(request))[
            1
        ]
        assert (decided(policy, 4) == 0.25).all()


# -- reaching it -----------------------------------------------------------------------------------------------------


def test_nobody_there():
    with pytest.raises(ServerLostError, match=r"nobody answers at ws://127\.0\.0\.1:9 ") as caught:
        build_policy(url="ws://127.0.0.1:9", **{**QUICK, "connect_s": 0.2})
    assert "actor.model.url" in caught.value.remedy


def test_a_wrong_token(tmp_path: Path):
    with stub_server(token="right" * 4) as stub:
        (file := tmp_path / "token.txt").write_text("wrong" * 4, encoding="utf-8")
        with pytest.raises(ServerRefusedError, match="refuses the token") as caught:
            build_policy(url=stub.url, token_file=str(file), **QUICK)
        assert "actor.model.token_file" in caught.value.remedy
        file.write_text("right" * 4 + "\n", encoding="utf-8")
        build_policy(url=stub.url, token_file=str(file), **QUICK)._crew.close()
    with pytest.raises(ConfigError, match="cannot be read"):
        build_policy(url="ws://127.0.0.1:9", token_file=str(tmp_path / "none"))


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, Path]:
    key, file = folder / "key.pem", folder / "cert.pem"
    made = f"-nodes -days 1 -subj /CN=robot -addext subjectAltName={name} -keyout {key} -out {file}"
    command = shlex.split(f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 {made}")
    subprocess.run(command, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(file, key)
    return tls, file


@pytest.mark.parametrize("kind", ["wss", "https"])
def test_a_certificate_for_another_name(tmp_path: Path, kind: str):
    tls, file = certificate(tmp_path, "DNS:robot.example")
    with stub_server(tls=tls) as stub:  # what it speaks after the handshake is no matter
        url = f"{kind}://127.0.0.1:{stub.port}"
        with pytest.raises(ServerRefusedError, match="certificate") as caught:
            build_policy(url=url, ca_file=str(file), **QUICK)
        assert "the name for which" in caught.value.remedy
        with pytest.raises(ServerRefusedError, match="certificate") as caught:
            build_policy(url=url, **QUICK)
        assert "actor.model.ca_file" in caught.value.remedy


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"url": "127.0.0.1:8000"}, "expected ws://"),
        ({"url": "ws://x:1", "protocol": "openvla"}, "begin with http:// or https://"),
        ({"url": "ws://x:1", "protocol": "opempi"}, "Did you mean 'openpi'"),
        ({"url": "ws://x:1", "timeout_s": 0}, "timeout_s is 0"),
        ({"url": "ws://x:1", "connections": 0}, "connections is 0"),
        ({"url": "ws://x:1", "num_action_chunks": 0}, "num_action_chunks is 0"),
        ({"url": "ws://x:1", "mapping": "openpi_libera"}, "Did you mean 'openpi_libero'"),
    ],
)
def test_keys_that_cannot_be(keys, said):
    with pytest.raises(ConfigError, match=said):
        build_policy(**keys)


def test_every_protocol_can_be_imported():
    for name, schemes in DIALECTS.items():
        assert dialect(name, f"{schemes[0]}://x:1")[0] == name


def test_a_server_of_another_protocol(served_address: str):
    with rest(lambda message: [0.0]) as (url, _), pytest.raises(EmbodiedError) as caught:
        build_policy(url=url.replace("http", "ws"), **QUICK)
    assert "openpi" in caught.value.remedy


# -- OpenVLA's protocol ----------------------------------------------------------------------------------------------


def as_json(values: np.ndarray) -> dict[str, Any]:
    return {"__numpy__": base64.b64encode(values.tobytes()).decode(), "dtype": values.dtype.str, "shape": values.shape}


@contextmanager
def rest(reply: Callable[[Any], Any], status: int = 200) -> Iterator[tuple[str, list[Any]]]:
    """A server of OpenVLA's: its address, and what it was asked."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_error(404)

        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            body = json.dumps(reply(asked[-1])).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()


OFT = {
    "request": {
        "full_image": {"camera": 0},
        "wrist_image": {"camera": 1},
        "state": {"field": "state"},
        "instruction": {"instruction": True},
    },
    "actions": {"gripper": {"dim": -1, "low": 0, "high": 1, "binarize": True, "invert": True}},
}


@pytest.mark.parametrize(
    ("reply", "chunk"),
    [
        (lambda message: [as_json(np.full(7, 0.75, np.float32))] * 8, 8),
        (lambda message: as_json(np.full(7, 0.75)), 1),
        (lambda message: json.dumps([as_json(np.full(7, 0.75))] * 2), 2),
        (lambda message: [[0.75] * 7] * 3, 3),
    ],
    ids=["OFT", "OpenVLA", "encoded twice", "lists"],
)
def test_both_forms_of_openvla(reply, chunk):
    with rest(reply) as (url, asked), served(url, mapping=OFT) as policy:
        assert policy.spec.num_action_chunks == chunk
        actions = decided(policy, 2)
        assert (actions[..., :6] == 0.75).all()
        assert (actions[..., 6] == -1).all(), "1 is open there, −1 here"
        message = asked[-1]
        assert set(message) == {"full_image", "wrist_image", "state", "instruction"}
        assert message["full_image"]["shape"] == [16, 16, 3]
        assert message["instruction"] in ENV.tasks


@pytest.mark.parametrize(
    ("reply", "status", "said"),
    [
        (lambda message: "error", 200, "answered 'error'"),
        (lambda message: {"error": "x"}, 400, "HTTP status 400"),
        (lambda message: {"nothing": 1}, 200, "no actions"),
        (lambda message: "abc", 200, "no actions|expected numbers"),
    ],
)
def test_failures_of_openvla_s_servers(reply, status, said):
    with rest(reply, status) as (url, _), pytest.raises((ServerRefusedError, WireError), match=said):
        begin(url, mapping=OFT)


def test_our_server_speaks_it_too():
    own = FakePolicy()
    own.bind(ENV)
    with serving(own) as server, served(f"http://{server.address}", mapping={"request": OFT["request"]}) as policy:
        assert torch.equal(decided(policy), decided(own))


# -- mappings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ready())
def test_ready_mappings_fit_libero(name):
    from embodied.types import ArraySpec

    obs = {"images": ArraySpec((2, 256, 256, 3), "uint8"), "state": ArraySpec((8,), "float32")}
    env = replace(ENV, obs=obs, cameras=("agentview", "robot0_eye_in_hand"))
    mapping = read(name)
    assert mapping is not None
    given = {"images": np.zeros((2, 256, 256, 3), np.uint8), "state": np.arange(8, dtype=np.float32)}
    request = {key: fill(given, "open it") for key, fill in mapping.fills(env).items()}
    texts = [key for key, value in request.items() if isinstance(value, str)]
    assert texts in (["prompt"], ["instruction"], ["task_description"])
    if name == "openpi_libero":
        assert request["observation/image"].shape == request["observation/wrist_image"].shape == (224, 224, 3)
        assert mapping.take == 5
        assert (mapping.actions(np.full((5, 7), 0.3)) == np.float32(0.3)).all()
    elif name == "vla_eval_libero":
        assert request["images/wrist"].shape == (256, 256, 3)
        assert mapping.actions(np.array([[0.1] * 6 + [grip] for grip in (-0.9, 0.9)]))[:, 6].tolist() == [-1, 1]
    else:
        assert mapping.actions(np.array([[0.1] * 6 + [grip] for grip in (0.0, 0.4, 0.6, 1.0)]))[:, 6].tolist() == [
            1, 1, -1, -1,
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "has no request"),
        ({"request": {"image": {"camara": 0}}}, "give one of|camara"),
        ({"request": {"image": {"camera": 0, "rotate": 45}}}, "rotate is 45"),
        ({"request": {"image": {"camera": 0, "resize": "pad"}}}, "resize is 'pad'"),
        ({"request": {"state": {"field": "state", "slice": [1]}}}, r"slice is \[1\]"),
        ({"request": OFT["request"], "action": {}}, "Did you mean 'actions'"),
        ({"request": OFT["request"], "actions": {"take": 0}}, "take is 0"),
        ({"request": OFT["request"], "actions": {"scale": "x"}}, "scale is 'x'"),
        ({"request": OFT["request"], "actions": {"gripper": {"low": 1, "high": 0}}}, "low 1"),
    ],
)
def test_mappings_that_say_nothing_that_is_known(changed, said):
    with pytest.raises(ConfigError, match=said):
        parse(changed, "actor.model.mapping")


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"image": {"camera": "roof"}}, "the camera 'roof', and the env has"),
        ({"image": {"camera": 2}}, "the camera 2"),
        ({"joints": {"field": "joints"}}, "the field 'joints'"),
        ({"state": {"field": "state", "slice": [0, 9]}}, r"state\[0:9\]"),
    ],
)
def test_mappings_that_do_not_fit_the_env(request_, said):
    with pytest.raises(SpecMismatchError, match=said):
        parse({"request": request_}, "x").fills(ENV)


def test_a_picture_keeps_its_shape_unless_it_is_stretched():
    wide = np.full((10, 20, 3), 200, np.uint8)
    padded = resized(wide, 8)
    assert (padded[:2] == 0).all()
    assert (padded[2:6] == 200).all()
    assert (padded[6:] == 0).all()
    assert (resized(wide, 8, stretch=True) == 200).all()
