"""A real server on loopback: both protocols, batches, who is refused, and how it ends."""

from __future__ import annotations

import base64
import gc
import http.client
import io
import json
import re
import socket as sockets
import ssl
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from serving_rig import ENV, FAST, Served, SlowPolicy, ask, observation
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from embodied.client import wire
from embodied.errors import ConfigError, RequestError
from embodied.random import Stream
from embodied.runtime.plan import noise
from embodied.serving.build import build_server
from embodied.serving.metrics import METRICS, PREFIX
from embodied.serving.wire import pictures
from embodied.testing import FakePolicy
from embodied.types import Sampling

OURS = {wire.REQUEST_ID: 1}
TOKEN = "0123456789abcdef0123"


def in_process(message: dict[str, Any], noise: np.ndarray | None = None) -> np.ndarray:
    """The actions of the fake policy: greedy, or drawn with ``noise``."""
    policy = FakePolicy()
    policy.bind(ENV)
    obs = {name: torch.from_numpy(message[name]).unsqueeze(0) for name in ("images", "state")}
    drawn = torch.zeros(1, *policy.spec.noise.shape) if noise is None else torch.from_numpy(noise).unsqueeze(0)
    told = policy.encode_instructions([message["prompt"]])
    return policy.act({**obs, **told}, drawn, Sampling(do_sample=noise is not None)).fields["actions"][0].numpy()


def get(served: Served, path: str, **headers: str) -> tuple[int, str]:
    return call(served, "GET", path, None, headers)[:2]


def call(served: Served, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read().decode(), {k.lower(): v for k, v in response.getheaders()}
    finally:
        connection.close()


# -- the websocket ---------------------------------------------------------------------------------------------------


def test_metadata_come_first_and_say_what_is_needed(served: Served):
    with served.connect("/any/path") as socket:
        told = wire.unpack(socket.recv(timeout=10))
    assert told["action_shape"] == [4, 7]
    assert told["action"]["low"] == [-1.0] * 7
    assert told["control_hz"] == 20.0
    assert told["cameras"] == ["camera0", "camera1"]
    assert told["observation"]["images"] == {"shape": [2, 16, 16, 3], "dtype": "uint8"}
    assert told["keys"]["observation/wrist_image"] == "images/camera1"
    assert told["model"]["model"] == "fake"
    assert told["protocol"] == wire.PROTOCOL


def test_answers_are_those_of_the_policy(served: Served):
    with served.connect() as socket:
        socket.recv(timeout=10)
        for seed in range(3):
            message = observation(seed)
            reply = ask(socket, message)
            assert reply["actions"].dtype == np.float32
            assert np.array_equal(reply["actions"], in_process(message))
            assert reply["server_timing"].keys() >= {"infer_ms", "queue_ms", "batch"}
            assert wire.REQUEST_ID not in reply
        other = ask(socket, {**observation(0), "prompt": "a sentence that no task has", wire.REQUEST_ID: "x"})
        assert other[wire.REQUEST_ID] == "x"
        assert not np.array_equal(other["actions"], in_process(observation(0)))


def test_drawn_actions_are_a_function_of_session_and_place(served: Served):
    message = {**observation(), wire.GREEDY: False}
    answers = []
    for _ in range(2):
        with served.connect() as socket:
            socket.recv(timeout=10)
            answers.append([ask(socket, message | more)["actions"] for more in ({}, {}, {wire.SESSION: 7}, {})])
    assert all(np.array_equal(one, other) for one, other in zip(*answers, strict=True))
    shape = FakePolicy().spec.noise
    places = [(0, 0), (0, 1), (7, 0), (7, 1)]
    for (session, asked), actions in zip(places, answers[0], strict=True):
        assert np.array_equal(actions, in_process(message, noise(0, Stream.SERVED_NOISE, session, asked, shape)))


def test_an_error_leaves_the_connection_usable(served: Served):
    bad = {**observation(), "state": np.zeros(3, np.float32)}
    with served.connect() as socket:
        socket.recv(timeout=10)
        text = ask(socket, bad)
        assert isinstance(text, str)
        assert "expected float32 [8]" in text
        assert "Traceback" not in text
        socket.send("text")
        assert "text frame" in socket.recv(timeout=10)
        socket.send(wire.pack([1, 2]))
        assert "expected a map" in socket.recv(timeout=10)
        error = ask(socket, {**bad, wire.REQUEST_ID: 9})
        assert error["error"]["kind"] == "request"
        assert error[wire.REQUEST_ID] == 9
        socket.send(b"\xc1")
        assert wire.unpack(socket.recv(timeout=10))["error"]["kind"] == "wire"
        assert np.array_equal(ask(socket, observation())["actions"], in_process(observation()))


def test_a_frame_that_is_too_large_closes_the_connection(serve):
    served = serve(limits=replace(FAST, max_bytes=4096))
    with served.connect() as socket:
        socket.recv(timeout=10)
        socket.send(bytes(5000))
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=10)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


def test_idle_connections_are_closed(serve):
    served = serve(limits=replace(FAST, idle_s=0.2))
    with served.connect() as socket:
        socket.recv(timeout=10)
        assert "actions" in ask(socket, observation())
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=10)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


# -- batches, and requests that fail ---------------------------------------------------------------------------------


def ask_alone(served: Served, message: dict[str, Any]) -> Any:
    with served.connect() as socket:
        socket.recv(timeout=10)
        return ask(socket, message)


def waiting(served: Served, count: int) -> None:
    """Until so many requests wait for the policy."""
    deadline = time.monotonic() + 20
    while served.metric("waiting") < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_pictures_are_decoded_side_by_side_and_never_on_the_event_loop(served: Served, monkeypatch):
    both, read, threads = threading.Barrier(2), pictures.read, set()

    def slow(*arguments: Any) -> Any:
        threads.add(threading.current_thread().name)
        both.wait(10)  # for the other picture's thread
        return read(*arguments)

    monkeypatch.setattr(pictures, "read", slow)
    files = [io.BytesIO() for _ in ENV.cameras]
    for picture, file in zip(observation()["images"], files, strict=True):
        Image.fromarray(picture).save(file, "PNG")
    whole = [file.getvalue() for file in files]
    with served.connect() as socket:
        socket.recv(timeout=10)
        answer = ask(socket, observation() | {"images": whole})
        assert np.array_equal(answer["actions"], ask(socket, observation())["actions"])
        both_bad = ask(socket, observation() | {"images": [whole[0][:50], b"no picture"], "embodied/request_id": 1})
        assert "'images[0]'" in both_bad["error"]["message"], "the first of them is said"
        large = np.zeros((2, 40, 40, 3), np.uint8)  # of another size: with --resize it would take its time
        assert "40 × 40" in ask(socket, observation() | {"images": large})["error"]["message"]
    assert all(name.startswith("decoder") for name in threads)
    assert len(threads) == 2


def test_requests_that_wait_share_a_call(serve):
    policy = SlowPolicy(paced=True)
    served = serve(policy, max_batch=4)
    assert policy.batches == [1, 2, 4], "the sizes that are warmed up"
    with ThreadPoolExecutor(8) as clients:
        first = clients.submit(ask_alone, served, observation(0))
        waiting_before = [policy.began.acquire(timeout=20) for _ in range(4)]
        assert all(waiting_before)
        others = [clients.submit(ask_alone, served, observation(n) | OURS | {wire.GREEDY: n != 3}) for n in range(1, 7)]
        waiting(served, 6)
        policy.go.set()
        replies = [one.result(30) for one in (first, *others)]
    assert policy.batches[3] == 1
    assert sorted(policy.batches[4:]) == [1, 1, 4], "greedy ones together, four at most; a drawn one alone"
    for number, reply in enumerate(replies):
        if number != 3:
            assert np.allclose(reply["actions"], in_process(observation(number)), atol=1e-6)
    assert served.metric("batch_size_count") == 3 + 4


def test_one_bad_request_of_a_batch_costs_the_others_nothing(serve, caplog):
    policy = SlowPolicy(paced=True)
    served = serve(policy, max_batch=8)
    prompts = ["fail", "break", "go", "go"]
    with ThreadPoolExecutor(8) as clients:
        first = clients.submit(ask_alone, served, observation(0))
        while policy.batches.count(1) < 2:
            time.sleep(0.005)
        others = [clients.submit(ask_alone, served, observation(1) | OURS | {"prompt": text}) for text in prompts]
        unbounded = clients.submit(ask_alone, served, observation(1) | OURS | {"state": np.full(8, 1e7)})
        waiting(served, 5)
        policy.go.set()
        failed, broken, *fine = [one.result(30) for one in others]
        assert "actions" in first.result(30)
        assert "not finite" in unbounded.result(30)["error"]["message"]
    assert failed["error"] == {"kind": "policy", "message": "no such thing", "fix": "say something else"}
    assert broken["error"]["kind"] == "policy"
    assert "secret" not in str(broken)
    assert "RuntimeError" in broken["error"]["message"]
    assert "/secret/path is broken" in caplog.text, "the log has the traceback"
    assert all("actions" in reply for reply in fine)


def test_a_full_queue_says_busy(serve):
    policy = SlowPolicy(paced=True)
    served = serve(policy, limits=replace(FAST, max_waiting=2), max_batch=1)
    with ThreadPoolExecutor(4) as clients:
        asked = [clients.submit(ask_alone, served, observation(0) | OURS)]
        for _ in ("warm-up", "first request"):
            assert policy.began.acquire(timeout=20)
        asked += [clients.submit(ask_alone, served, observation(n) | OURS) for n in (1, 2)]
        waiting(served, 2)
        assert ask_alone(served, observation() | OURS)["error"]["kind"] == "busy"
        policy.go.set()
        assert all("actions" in one.result(30) for one in asked)


def test_nothing_is_computed_for_a_client_that_has_gone(serve):
    policy = SlowPolicy(paced=True)
    served = serve(policy, max_batch=1)
    calls = len(policy.batches)
    with ThreadPoolExecutor(2) as clients:
        first = clients.submit(ask_alone, served, observation(0))
        while len(policy.batches) == calls:
            time.sleep(0.005)
        leaving = served.opened()
        leaving.recv(timeout=10)
        leaving.send(wire.pack(observation(1)))
        waiting(served, 1)
        leaving.close()
        while served.metric("waiting"):
            time.sleep(0.005)
        last = clients.submit(ask_alone, served, observation(2))
        waiting(served, 1)
        policy.go.set()
        assert "actions" in first.result(30)
        assert "actions" in last.result(30)
    assert len(policy.batches) == calls + 2


def test_answers_of_a_fixed_shape_do_not_depend_on_others(serve):
    policy = SlowPolicy()
    served = serve(policy, max_batch=4, fixed_shape=True)
    alone = ask_alone(served, observation(0))["actions"]
    with ThreadPoolExecutor(6) as clients:
        together = [*clients.map(lambda n: ask_alone(served, observation(n))["actions"], [0] * 12)]
    assert set(policy.batches) == {4}
    assert all(np.array_equal(alone, one) for one in together)


def test_a_policy_that_fails_at_once_is_not_served(serve):
    class Broken(SlowPolicy):
        def act(self, *arguments: Any) -> Any:
            raise RuntimeError("no kernel")

    with pytest.raises(RequestError, match="RuntimeError"):
        serve(Broken())


def test_a_policy_of_texts_is_refused():
    from embodied.errors import SpecMismatchError
    from embodied.types import TextAction

    with pytest.raises(SpecMismatchError, match="takes text"):
        build_server(FakePolicy(), replace(ENV, action=TextAction(10)))


# -- OpenVLA's REST --------------------------------------------------------------------------------------------------


def json_numpy(array: np.ndarray) -> dict[str, Any]:
    """As the package json_numpy writes arrays."""
    return {"__numpy__": base64.b64encode(array.tobytes()).decode(), "dtype": array.dtype.str, "shape": array.shape}


def of_json(value: dict[str, Any]) -> np.ndarray:
    data = np.frombuffer(base64.b64decode(value["__numpy__"]), value["dtype"])
    return data.reshape(value["shape"])


def act(served: Served, message: Any, **headers: str) -> tuple[int, Any]:
    status, text, _ = call(served, "POST", "/act", json.dumps(message), headers)
    return status, json.loads(text)


def oft(message: dict[str, Any]) -> dict[str, Any]:
    """A request of OpenVLA-OFT's client."""
    pictures = message["images"]
    return {
        "full_image": json_numpy(pictures[0]), "left_wrist_image": json_numpy(pictures[1]),
        "state": json_numpy(message["state"]), "instruction": message["prompt"], "unnorm_key": "libero",
    }  # fmt: skip


def test_a_client_of_openvla_oft_gets_a_list_of_actions(served: Served):
    status, reply = act(served, oft(observation(4)))
    assert status == 200
    assert np.array_equal([of_json(row) for row in reply], in_process(observation(4)))


def test_a_client_of_openvla_gets_one_action(served: Served):
    message = oft(observation(4))
    message["image"] = message.pop("full_image")
    status, reply = act(served, message)
    assert status == 200
    assert np.array_equal(of_json(reply), in_process(observation(4))[0])


def test_what_is_encoded_twice_is_answered_so(served: Served):
    status, reply = act(served, {"encoded": json.dumps(oft(observation(4)))})
    assert status == 200
    assert isinstance(reply, str)
    assert np.array_equal([of_json(row) for row in json.loads(reply)], in_process(observation(4)))


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "wire"), (b"[1]", "wire"), (b"{", "wire"), (b"\xff\xfe", "wire"), (b"[" * 100_000, "wire"),
        (b'{"a":' * 2000, "wire"), (b'{"state": [' + b"1," * 5000 + b"1]}", "wire"), (b"{}", "request"),
        (b'{"encoded": 5}', "wire"), (b'{"encoded": "{"}', "wire"),
        (json.dumps({"state": {"__numpy__": "AAAA", "dtype": "|O", "shape": [1]}}).encode(), "wire"),
        (json.dumps({"state": {"__numpy__": "AAAA", "dtype": "<f4", "shape": [1 << 62]}}).encode(), "wire"),
        (json.dumps({"state": {"__numpy__": "not base64!", "dtype": "<f4", "shape": [1]}}).encode(), "wire"),
        (json.dumps({"state": {"__numpy__": 5}}).encode(), "wire"),
    ],
    ids=range(14),
)  # fmt: skip
def test_bad_bodies_get_an_error(served: Served, body, kind):
    status, text, _ = call(served, "POST", "/act", body, {})
    assert status == 400
    assert json.loads(text)["error"]["kind"] == kind


def test_rest_says_when_a_client_asks_too_often_or_too_much(serve):
    served = serve(limits=replace(FAST, rate=0.001, burst=1, max_bytes=8192))
    assert call(served, "POST", "/act", b"x" * 9000, {})[0] == 400
    status, text, headers = call(served, "POST", "/act", json.dumps(oft(observation())), {})
    assert (status, json.loads(text)["error"]["kind"], headers["retry-after"]) == (429, "busy", "1")


def test_compressed_bodies_are_not_opened(served: Served):
    status, text, _ = call(served, "POST", "/act", b"x", {"Content-Encoding": "gzip"})
    assert status == 400
    assert "compressed" in text


# -- health, metrics, who is refused ---------------------------------------------------------------------------------


def test_health_readiness_and_other_paths(served: Served):
    assert get(served, "/healthz") == (200, "OK\n")
    assert get(served, "/readyz") == (200, "ready\n")
    assert get(served, "/elsewhere")[0] == 404
    assert call(served, "DELETE", "/act", None, {})[0] == 405


def test_every_metric_is_exported_and_documented(served: Served):
    with served.connect() as socket:
        socket.recv(timeout=10)
        ask(socket, {**observation(), wire.DELAY_STEPS: 3})
        status, text = get(served, "/metrics")
    assert status == 200
    found = {line.split()[2].removeprefix(PREFIX) for line in text.splitlines() if line.startswith("# TYPE")}
    assert {name.removesuffix("_total") for name in found if not name.endswith("_created")} == set(METRICS)
    assert re.search(r'latency_quantile_seconds\{quantile="0.95"\} [0-9.e-]+', text)
    assert served.metric("client_delay_steps_sum") == 3
    documented = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    assert not [name for name in METRICS if f"`{name}`" not in documented]


def test_pages_of_web_browsers_are_refused(served: Served):
    with pytest.raises(InvalidStatus) as refused:
        served.opened(origin="http://evil.example")
    assert refused.value.response.status_code == 403
    assert call(served, "POST", "/act", b"{}", {"Origin": "http://evil.example"})[0] == 403


def test_the_token_is_asked_of_everything_but_health(serve):
    served = serve(token=TOKEN)
    assert get(served, "/healthz")[0] == get(served, "/readyz")[0] == 200
    assert get(served, "/metrics")[0] == 401
    assert get(served, "/metrics", Authorization=f"Bearer {TOKEN}")[0] == 200
    assert call(served, "POST", "/act", b"{}", {})[0] == 401
    for wrong in ({}, {"Authorization": f"Api-Key {TOKEN}x"}):
        with pytest.raises(InvalidStatus) as refused:
            served.opened(additional_headers=wrong)
        assert refused.value.response.status_code == 401
    with served.connect(additional_headers={"Authorization": f"Api-Key {TOKEN}"}) as socket:
        socket.recv(timeout=10)
        assert "actions" in ask(socket, observation())
    assert served.metric("refused_connections_total", {"reason": "token"}) == 4


def test_too_many_connections_are_refused_and_places_come_back(serve):
    served = serve(limits=replace(FAST, max_connections=3))
    opened = [served.opened() for _ in range(3)]
    with pytest.raises(InvalidStatus) as refused:
        served.opened()
    assert refused.value.response.status_code == 503
    opened.pop().close()
    deadline = time.monotonic() + 10
    while served.metric("connections") == 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with served.connect() as socket:
        assert wire.unpack(socket.recv(timeout=10))["server"] == "embodied"
    for socket in opened:
        socket.close()


def test_tls(serve, tmp_path, often_switching):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
               "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost",
               "-addext", "subjectAltName=DNS:localhost"]  # fmt: skip
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    from embodied.serving.access import tls

    served = serve(certificate=tls(certificate, key))
    trusted = ssl.create_default_context(cafile=certificate)

    def opened() -> ClientConnection:
        return connect(f"wss://localhost:{served.port}", ssl=trusted, proxy=None, compression=None, open_timeout=5)

    for _ in range(100):  # the client reads in a thread of its own: what comes while it sends must not stop it
        with opened() as socket:
            socket.recv(timeout=10)
    with opened() as socket:
        socket.recv(timeout=10)
        assert np.array_equal(ask(socket, observation())["actions"], in_process(observation()))
    with pytest.raises((InvalidMessage, OSError)):
        served.opened(open_timeout=3)


def test_a_port_in_use_is_said(served: Served):
    import asyncio

    async def again() -> None:
        server = build_server(SlowPolicy(), ENV)
        try:
            await server.start("127.0.0.1", served.port)
        finally:
            await server.drain()

    with pytest.raises(ConfigError, match="cannot listen"):
        asyncio.run(again())


# -- clients that are slow, silent or flood --------------------------------------------------------------------------


def test_silent_slow_and_flooding_clients_harm_nobody(serve):
    served = serve(limits=replace(FAST, first_request_s=1.0, send_s=1.0, rate=200.0, burst=20, body_s=1.0))
    address = ("127.0.0.1", served.port)
    silent = [sockets.create_connection(address) for _ in range(5)]
    half = sockets.create_connection(address)
    half.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
    slow_body = sockets.create_connection(address)
    slow_body.sendall(b"POST /act HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    cut = served.opened()
    cut.recv(timeout=10)
    cut.socket.sendall(b"\x82\xfe\x10\x00abcd123")  # a frame of which the rest never comes
    deaf = served.opened()  # sends and never reads
    flood = threading.Thread(target=lambda: [deaf.send(wire.pack(observation())) for _ in range(300)], daemon=True)
    flood.start()
    with served.connect() as socket:
        socket.recv(timeout=10)
        for seed in range(20):
            assert np.array_equal(ask(socket, observation(seed))["actions"], in_process(observation(seed)))
    for one in (*silent, half):
        one.settimeout(10)
        with suppress(ConnectionResetError):
            assert one.recv(10) == b"", "closed without an answer"
    slow_body.settimeout(10)
    assert b"400 Bad Request" in slow_body.recv(1000)
    assert served.metric("refused_connections_total", {"reason": "silent"}) == 6
    for one in (cut, deaf):
        one.socket.close()
    gc.collect()


# -- the end ---------------------------------------------------------------------------------------------------------


def test_draining_answers_what_is_under_way(serve, monkeypatch):
    monkeypatch.setattr("embodied.serving.server.LEAVE_S", 0.2)
    policy = SlowPolicy(paced=True)
    served = serve(policy, max_batch=2)
    with ThreadPoolExecutor(8) as clients, served.connect() as quiet:
        quiet.recv(timeout=10)
        asked = [clients.submit(ask_alone, served, observation(n)) for n in range(4)]
        posted = clients.submit(act, served, oft(observation(4)))
        deadline = time.monotonic() + 20
        while served.server._under_way < 5:  # a request that has not come is refused
            assert time.monotonic() < deadline
            time.sleep(0.005)
        ending = clients.submit(served.drain)
        while not served.server.draining.is_set():
            time.sleep(0.005)
        with pytest.raises(ConnectionRefusedError):
            served.opened()
        with pytest.raises(ConnectionClosed) as closed:
            quiet.recv(timeout=10)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
        time.sleep(1.5)  # longer than clients have for leaving
        policy.go.set()
        ending.result(30)
        answers = [one.result(30)["actions"] for one in asked]
        assert posted.result(30)[0] == 200
    assert all(
        np.allclose(actions, in_process(observation(number)), atol=1e-6) for number, actions in enumerate(answers)
    )
    assert not served.server.service.alive
