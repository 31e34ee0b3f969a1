"""vla-eval's protocol at a live server: what fills an observation, chunks, errors, and frames that nobody can trust."""

from __future__ import annotations

import base64
import http.client
import io
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
from mutated_frames import mutated
from PIL import Image
from serving_rig import ENV, FAST, Served, SlowPolicy, ask, observation, serving
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from embodied.client import vla_eval
from embodied.client.vla_eval import Message
from embodied.errors import RequestError, WireError
from embodied.serving.access import allowed
from embodied.serving.protocols.vla_eval import described, flat, mapping, observation_params
from embodied.testing import FakePolicy

SEEN = replace(ENV, cameras=("front", "robot0_eye_in_hand"))


@pytest.fixture(scope="module")
def line():
    policy = FakePolicy()
    policy.bind(SEEN)
    with serving(policy, SEEN) as served:
        yield served


def opened(served: Served, **options: Any) -> ClientConnection:
    return served.connect("/vla-eval", **options)


def seen(seed: int = 0) -> dict[str, Any]:
    """An observation as vla-eval's LIBERO sends it."""
    given = observation(seed)
    agentview, wrist = given["images"]
    return {
        "images": {"agentview": agentview, "wrist": wrist}, "states": given["state"].astype(np.float64),
        "controller_states": np.zeros(8), "task_description": given["prompt"],
    }  # fmt: skip


def told(socket: ClientConnection, kind: str, payload: Mapping[str, Any], seq: int = 1) -> Message:
    """The answer to a message."""
    socket.send(vla_eval.pack(Message(kind, payload, seq)))
    return vla_eval.read(socket.recv(timeout=30))


def action(reply: Message) -> np.ndarray:
    assert reply.type == "action", reply.payload
    return vla_eval.value_of(reply.payload["actions"])


def chunk(served: Served, message: Mapping[str, Any]) -> np.ndarray:
    """The actions for the same observation over openpi's protocol."""
    with served.connect() as socket:
        socket.recv(timeout=30)
        return ask(socket, message)["actions"]


def test_hello_says_what_a_benchmark_is_built_with_and_what_fills_the_fields(line: Served):
    with opened(line) as socket:
        reply = told(socket, "hello", {"harness_version": "0.8.0", "protocol_version": 1}, seq=7)
        assert (reply.type, reply.seq, reply.payload["protocol_version"]) == ("hello", 7, 1)
        assert reply.payload["observation_params"] == {"send_wrist_image": True, "send_state": True}
        assert reply.payload["embodied"]["keys"]["images/wrist"] == "images/robot0_eye_in_hand"
        assert reply.payload["embodied"]["num_action_chunks"] == 4
        other = told(socket, "hello", {"protocol_version": 2})
        assert other.type == "error"
        assert "version 2" in other.payload["error"]


def test_all_actions_of_a_chunk_are_given_one_after_the_other(line: Served):
    first, second = chunk(line, observation(0)), chunk(line, observation(4))
    with opened(line) as socket:
        socket.send(vla_eval.pack(Message("episode_start", {"task": {"name": "x"}})))
        replies = [told(socket, "observation", seen(step), seq=step + 10) for step in range(5)]
    assert [reply.seq for reply in replies] == [10, 11, 12, 13, 14]
    assert np.array_equal([action(reply) for reply in replies], [*first, second[0]])


@pytest.mark.parametrize("restart", ["episode_start", "episode_end", "episode_restart"])
def test_what_is_left_of_a_chunk_is_dropped(line: Served, restart: str):
    with opened(line) as socket:
        told(socket, "observation", seen(0))
        if restart == "episode_restart":
            reply = told(socket, "observation", {**seen(3), "episode_restart": True})
        else:
            socket.send(vla_eval.pack(Message(restart, {})))
            reply = told(socket, "observation", seen(3))
    assert np.array_equal(action(reply), chunk(line, observation(3))[0])


def test_two_connections_have_chunks_of_their_own(line: Served):
    with opened(line) as one, opened(line) as other:
        told(one, "observation", seen(0))
        assert np.array_equal(action(told(other, "observation", seen(1))), chunk(line, observation(1))[0])
        assert np.array_equal(action(told(one, "observation", seen(1))), chunk(line, observation(0))[1])


def test_pictures_come_as_png_or_as_they_are(line: Served):
    given = seen(2)
    file = io.BytesIO()
    Image.fromarray(given["images"]["agentview"]).save(file, "PNG")
    png = {"__image__": True, "format": "png", "data": file.getvalue(), "shape": [16, 16, 3]}
    wrist = given["images"]["wrist"]
    raw = {"__image__": True, "format": "raw", "data": wrist.tobytes(), "dtype": "|u1", "shape": [16, 16, 3]}
    with opened(line) as socket:
        reply = told(socket, "observation", {**given, "images": {"agentview": png, "wrist": raw}})
    assert np.array_equal(action(reply), chunk(line, observation(2))[0])


def without(*path: str) -> dict[str, Any]:
    found: dict[str, Any] = {**seen(), "images": {**seen()["images"]}}
    inner = found
    for name in path[:-1]:
        inner = inner[name]
    del inner[path[-1]]
    return found


@pytest.mark.parametrize(
    ("sent", "what", "fix"),
    [
        (without("task_description"), "no 'prompt'", "send it as 'task_description'"),
        (without("states"), "no 'state'", "'state' or 'states' (many benchmarks do so with send_state"),
        (
            without("images", "wrist"),
            "camera 'robot0_eye_in_hand'; its keys are 'images/agentview'",
            "send_wrist_image",
        ),
        (without("images"), "no picture of the camera 'front'", "'images/agentview' or 'images/primary'"),
        ({**seen(), "state": np.zeros(8)}, "both give 'state'", "--map state=state"),
        ({**seen(), "images/wrist": 0}, "'images/wrist' twice", "once"),
        ({**seen(), "states": np.zeros(9)}, "float64 [9], expected float32 [8]", "trained in"),
        ({**seen(), "states": np.full(8, np.nan)}, "not finite", "sensor"),
        ({**seen(), "states": "eight"}, "expected numbers", "array"),
        ({**seen(), "task_description": 3}, "is a int", "send a text"),
        (
            {**seen(), "images": {**seen()["images"], "wrist": np.zeros((8, 8, 3), np.uint8)}},
            "8 × 8 pixels",
            "--resize",
        ),
        ({**seen(), "images": 3}, "no picture of the camera 'front'", "images/front"),
    ],
)
def test_an_observation_that_does_not_fit_is_told_what_and_how_to_mend_it(
    line: Served, sent: dict, what: str, fix: str
):
    with opened(line) as socket:
        reply = told(socket, "observation", sent, seq=5)
        assert (reply.type, reply.seq, reply.payload["kind"]) == ("error", 5, "request")
        assert what in reply.payload["error"]
        assert fix in reply.payload["error"]
        assert fix in reply.payload["fix"]
        assert action(told(socket, "observation", seen())).shape == (7,), "the connection goes on"


def framed(**others: Any) -> bytes:
    return msgpack.packb({"type": "observation", "payload": {}, "seq": 1, "timestamp": 0.0, **others})


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"x": value}
    return value


BAD_FRAMES = {
    "nothing": b"",
    "no msgpack": b"\xc1",
    "a list": msgpack.packb([1]),
    "no type": msgpack.packb({"payload": {}, "seq": 1}),
    "another type": framed(type="observations"),
    "type no text": framed(type=["observation"]),
    "payload no map": framed(payload=[1]),
    "no payload": msgpack.packb({"type": "observation", "seq": 1}),
    "seq no number": framed(seq="1"),
    "seq a bool": framed(seq=True),
    "seq below 0": framed(seq=-1),
    "a deep payload": framed(payload=nested(40)),
    "a very deep payload": b"\x81\xa1x" * 5000,
    "many values": framed(payload={"x": [1] * 5000}),
    "many values announced": b"\x84\xa4type\xdd\xff\xff\xff\xff",
    "bytes behind": framed() + b"\x00",
    "an extension type": framed(payload={"x": msgpack.ExtType(4, b"xx")}),
    "an extension type as picture": framed(payload={"images": {"agentview": msgpack.Timestamp(1)}}),
}


@pytest.mark.parametrize("frame", [*BAD_FRAMES.values()], ids=[*BAD_FRAMES])
def test_a_frame_that_is_no_message_is_told_so_and_the_connection_goes_on(line: Served, frame: bytes):
    with pytest.raises(WireError):
        vla_eval.read(frame)
    with opened(line) as socket:
        socket.send(frame)
        reply = vla_eval.read(socket.recv(timeout=30))
        assert (reply.type, reply.payload["kind"]) == ("error", "wire")
        assert action(told(socket, "observation", seen())).shape == (7,)


ARRAY = {"__ndarray__": True, "data": bytes(64), "dtype": "<f8", "shape": [8]}
BAD_VALUES = {
    "objects": {**ARRAY, "dtype": "|O"},
    "text": {**ARRAY, "dtype": "<U16"},
    "other bytes": {**ARRAY, "shape": [9]},
    "a shape below 0": {**ARRAY, "shape": [-8]},
    "a huge shape": {**ARRAY, "data": b"", "shape": [0, 1 << 40, 1 << 40]},
    "a shape no list": {**ARRAY, "shape": "8"},
    "data no bytes": {**ARRAY, "data": "x" * 64},
    "no data": {"__ndarray__": True, "dtype": "<f8", "shape": [8]},
    "a mark that is none": {**ARRAY, "__ndarray__": 1},
    "a key more": {**ARRAY, "more": 1},
    "both": {**ARRAY, "__image__": True},
    "another format": {"__image__": True, "format": "tiff", "data": b"", "shape": [8]},
    "format no text": {"__image__": True, "format": ["png"], "data": b"", "shape": [8]},
    "a file no bytes": {"__image__": True, "format": "png", "data": "x", "shape": [8]},
}


@pytest.mark.parametrize("value", [*BAD_VALUES.values()], ids=[*BAD_VALUES])
def test_an_array_that_is_none_is_refused(line: Served, value: dict):
    with pytest.raises(WireError):
        vla_eval.value_of(value)
    with opened(line) as socket:
        reply = told(socket, "observation", {**seen(), "states": value})
        assert (reply.type, reply.payload["kind"]) == ("error", "wire")


def test_a_picture_that_is_none_or_a_bomb_is_refused(line: Served):
    file = io.BytesIO()
    Image.new("1", (8000, 8000)).save(file, "PNG")
    with opened(line) as socket:
        for data, what in ((b"\x89PNG\r\n", "no JPEG or PNG"), (file.getvalue(), "8000 × 8000 pixels")):
            png = {"__image__": True, "format": "png", "data": data, "shape": [16, 16, 3]}
            reply = told(socket, "observation", {**seen(), "images": {**seen()["images"], "agentview": png}})
            assert what in reply.payload["error"]


def test_frames_of_random_bytes_end_nothing(line: Served):
    random = np.random.default_rng(0)
    good = vla_eval.pack(Message("observation", seen(), 1))
    frames = [mutated(random) for _ in range(60)] + [good[: random.integers(len(good))] for _ in range(20)]
    for _ in range(40):
        broken = np.frombuffer(good, np.uint8).copy()
        broken[random.integers(0, len(broken), 3)] ^= 255
        frames.append(broken.tobytes())
    with opened(line) as socket:
        for frame in frames:
            socket.send(frame)
            socket.send(vla_eval.pack(Message("hello", {}, 1 << 40)))
            while vla_eval.read(socket.recv(timeout=30)).seq != 1 << 40:
                pass
        assert action(told(socket, "observation", {**seen(), "episode_restart": True})).shape == (7,)


def test_texts_and_actions_are_no_messages_of_a_client(line: Served):
    with opened(line) as socket:
        socket.send("hello")
        assert "text frame" in vla_eval.read(socket.recv(timeout=30)).payload["error"]
        assert "came from a client" in told(socket, "action", {"actions": np.zeros(7)}).payload["error"]
        socket.send(vla_eval.pack(Message("error", {"error": "x"})))
        assert told(socket, "hello", {}).type == "hello"


def test_a_user_s_keys_take_the_place_of_the_usual_ones():
    keys = {"controller_states": "state", "images/front": "images/robot0_eye_in_hand"}
    found = mapping(SEEN, keys)
    assert {key for key, filled in found.items() if filled == "state"} == {"controller_states"}
    assert {key for key, filled in found.items() if filled == "images/robot0_eye_in_hand"} == {"images/front"}
    assert "state ← controller_states" in described(SEEN, keys)
    assert observation_params(replace(ENV, cameras=("front", "side"))) == {"send_state": True}
    policy = FakePolicy()
    policy.bind(SEEN)
    with serving(policy, SEEN, keys={"images/left": "images/front", "controller_states": "state"}) as served:
        given, sent = observation(6), seen(6)
        sent = {**sent, "controller_states": sent["states"], "states": np.ones(8)}
        sent["images"] = {"left": given["images"][0], "wrist": given["images"][1], "agentview": given["images"][1]}
        with opened(served) as socket:
            assert np.array_equal(action(told(socket, "observation", sent)), chunk(served, given)[0])


def test_a_field_s_own_name_is_a_choice_too():
    """The fix of an observation with both ``state`` and ``states`` may name either."""
    policy = FakePolicy()
    policy.bind(SEEN)
    sent = {**seen(6), "state": seen(6)["states"], "states": np.ones(8)}
    with serving(policy, SEEN, keys={"state": "state"}) as served, opened(served) as socket:
        assert np.array_equal(action(told(socket, "observation", sent)), chunk(served, observation(6))[0])


def test_maps_are_spread_out_once():
    assert flat({"a": {"b": 1, "c": {"d": 2}}, "e": 3}) == {"a/b": 1, "a/c": {"d": 2}, "e": 3}
    with pytest.raises(RequestError):
        flat({"a": {"b": 1}, "a/b": 2})


def test_limits_and_tokens_hold_here_too(serve):
    token = "0123456789abcdef0123"
    served = serve(limits=replace(FAST, max_bytes=4096, idle_s=0.5, rate=20.0, burst=1), token=token)
    with pytest.raises(InvalidStatus) as refused, opened(served):
        pass
    assert refused.value.response.status_code == 401
    headers = {"Authorization": f"Bearer {token}"}
    with opened(served, additional_headers=headers) as socket:
        began = time.monotonic()
        assert [told(socket, "hello", {}).type for _ in range(4)] == ["hello"] * 4
        assert time.monotonic() - began > 0.1, "four at 20 a second"
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=30)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008, "idle"
    with opened(served, additional_headers=headers) as socket:
        socket.send(bytes(5000))
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=30)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


@pytest.mark.parametrize("user", ["embodied", "", "with space"])
def test_a_token_may_be_the_password_of_an_address(user: str):
    def asked(text: bytes) -> bool:
        return allowed({"Authorization": f"Basic {base64.b64encode(text).decode()}"}, "token of 20 letters")

    assert asked(user.encode() + b":token of 20 letters")
    for text in (b"token of 20 letters", b"x:other", b"", b"token of 20 letters:", b"\xff:\xff"):
        assert not asked(text)
    assert not allowed({"Authorization": "Basic no base64!"}, "token of 20 letters")
    assert not allowed({"Authorization": "Basic ÿ"}, "token of 20 letters")
    assert not allowed({"Authorization": "Digest token of 20 letters"}, "token of 20 letters")


def test_busy_and_failing_policies_are_told_and_a_drain_lets_the_answer_through(serve):
    policy = SlowPolicy(SEEN, paced=True)
    served = serve(policy, SEEN, replace(FAST, max_waiting=1))
    one, two, three = (served.opened(path="/vla-eval") for _ in range(3))
    while policy.began.acquire(blocking=False):  # the calls of the warm-up
        pass
    one.send(vla_eval.pack(Message("observation", seen(), 1)))
    assert policy.began.acquire(timeout=30)
    two.send(vla_eval.pack(Message("observation", seen(), 1)))
    while not served.server.service.waiting():
        time.sleep(0.01)
    assert told(three, "observation", seen()).payload["kind"] == "busy"
    policy.go.set()
    assert [vla_eval.read(socket.recv(timeout=30)).type for socket in (one, two)] == ["action", "action"]
    broken = told(three, "observation", {**seen(), "task_description": "break"})
    assert broken.payload["kind"] == "policy"
    assert "secret" not in str(broken.payload)
    policy.go.clear()
    while policy.began.acquire(blocking=False):
        pass
    three.send(vla_eval.pack(Message("observation", seen(), 9)))
    assert policy.began.acquire(timeout=30)
    drain = threading.Thread(target=served.drain)
    drain.start()
    with pytest.raises(ConnectionClosed) as closed:
        one.recv(timeout=30)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1001
    policy.go.set()
    assert vla_eval.read(three.recv(timeout=30)).seq == 9
    drain.join(30)


def test_a_browser_and_a_plain_request_are_refused(line: Served):
    connection = http.client.HTTPConnection("127.0.0.1", line.port, timeout=30)
    connection.request("GET", "/vla-eval")
    response = connection.getresponse()
    assert response.status == 404
    assert b"vla-eval at /vla-eval" in response.read()
    with pytest.raises(InvalidStatus), opened(line, additional_headers={"Origin": "http://x"}):
        pass
