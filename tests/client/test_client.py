"""The client against a server that misbehaves, over real websockets on loopback."""

from __future__ import annotations

import shlex
import socket as sockets
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from stub_server import METADATA, counting, cut, stub_server

from embodied.client import Client, wire
from embodied.client.tls import certificate_fix, tls_context
from embodied.errors import ConfigError, ServerLostError, ServerRefusedError, WireError


def asking(state: float) -> dict[str, object]:
    return {"state": np.array([state, 0], np.float32), "prompt": "go"}


def test_an_observation_is_answered_with_actions_of_the_caller_s_own():
    with stub_server() as server, Client(server.url, greedy=True, session=3) as client:
        actions = client.infer(asking(5), delay_steps=2)
        assert actions.dtype == np.float32
        assert actions.tolist() == [[5] * 3, [6] * 3, [7] * 3, [8] * 3]
        actions[:] = 0  # its own: what comes over the wire is read-only
        assert (client.horizon, client.action_shape, client.control_hz) == (4, (4, 3), 20.0)
        (request,) = server.requests
        assert request.pop("state").tolist() == [5, 0]
        assert request == {
            "prompt": "go", wire.REQUEST_ID: 1, wire.DELAY_STEPS: 2, wire.GREEDY: True, wire.SESSION: 3
        }  # fmt: skip
        answer = client.answer(asking(1))
        assert answer.server == {"infer_ms": 1.5}
        assert 0 < answer.round_trip_s < 5
        assert wire.DELAY_STEPS not in server.requests[1]


def test_choices_are_whole_numbers():
    with (
        stub_server(lambda request, _: {"actions": np.array([2, 0], np.int32)}) as server,
        Client(server.url) as client,
    ):
        actions = client.infer(asking(0))
    assert actions.dtype == np.int32
    assert actions.tolist() == [2, 0]


def test_a_lost_connection_is_made_anew_and_the_request_sent_again():
    def drops_the_second(request, connection):
        if len(server.requests) == 2:
            cut(connection)
        return counting(request)

    with stub_server(drops_the_second) as server, Client(server.url) as client:
        assert [client.infer(asking(n))[0, 0] for n in (1, 2, 3)] == [1, 2, 3]
        assert client.reconnects == 1
        assert [request["state"][0] for request in server.requests] == [1, 2, 2, 3]


def test_a_server_that_comes_back_within_the_deadline_answers():
    with stub_server() as server, Client(server.url, timeout_s=20.0) as client:
        client.infer(asking(1))
        server.stop()
        threading.Timer(0.5, server.start).start()
        assert client.infer(asking(2))[0, 0] == 2
        assert client.reconnects == 1


def test_a_server_may_still_start_when_the_client_does():
    with stub_server() as server:
        server.stop()
        threading.Timer(0.3, server.start).start()
        with Client(server.url, connect_s=20.0) as client:
            assert client.infer(asking(2))[0, 0] == 2


def test_nobody_there_is_said_with_the_reason():
    with stub_server() as server:
        server.stop()
        with pytest.raises(ServerLostError, match=r"no answer within 0.3 s: ConnectionRefusedError(.|\n)*tools.serve"):
            Client(server.url, connect_s=0.3)


def test_no_answer_in_time_is_said_and_a_late_one_is_never_taken_for_another():
    late = threading.Event()

    def waits_once(request, connection):
        if len(server.requests) == 1:
            late.wait(20)
        return counting(request)

    with stub_server(waits_once) as server, Client(server.url, timeout_s=20.0) as client:
        with pytest.raises(ServerLostError, match=r"no answer within 0.2 s"):
            client.infer(asking(1), timeout_s=0.2)
        late.set()
        assert client.infer(asking(2))[0, 0] == 2
        assert client.reconnects == 1


@pytest.mark.parametrize(
    ("reply", "error", "said"),
    [
        (b"\xc1", WireError, "fix"),
        ([1, 2], WireError, "list, expected a map"),
        ({"actions": np.zeros((1, 2, 3))}, WireError, r"float64 \[1, 2, 3\]"),
        ({"actions": np.zeros((0, 3))}, WireError, r"\[0, 3\]"),
        ({"actions": "fast"}, WireError, "str under 'actions'"),
        ({}, WireError, "NoneType under 'actions'"),
        ({"actions": np.zeros((1, 3)), wire.REQUEST_ID: 99}, WireError, "that to request 99, expected the one to 1"),
        ("Traceback …\nKeyError: 'state'", ServerRefusedError, "the server failed: KeyError: 'state'"),
        ({"error": {"kind": "request", "message": "no field 'state'", "fix": "send it"}}, ServerRefusedError,
         "no field 'state'\n  fix: send it"),
        ({"error": "broken"}, ServerRefusedError, "broken"),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_an_error_and_the_next_one_is_answered(reply, error, said):
    def once(request, connection):
        return reply if len(server.requests) == 1 else counting(request)

    with stub_server(once) as server, Client(server.url) as client:
        with pytest.raises(error, match=said):
            client.infer(asking(1))
        assert client.infer(asking(2))[0, 0] == 2
        assert client.reconnects == (error is WireError), "after bytes that make no sense the connection is not trusted"


@pytest.mark.parametrize(("kind", "reconnects"), [("busy", 0), ("draining", 1)])
def test_a_server_that_cannot_now_is_asked_again(kind, reconnects):
    def once(request, connection):
        error = {"error": {"kind": kind, "message": "later", "fix": ""}}
        return error if len(server.requests) == 1 else counting(request)

    with stub_server(once) as server, Client(server.url) as client:
        assert client.infer(asking(2))[0, 0] == 2
        assert client.reconnects == reconnects


def test_a_server_that_closes_for_a_reason_of_its_own_is_not_asked_again():
    def too_large(request, connection):
        connection.close(1009, "3 MiB, at most 1")

    with stub_server(too_large) as server, Client(server.url) as client:
        with pytest.raises(ServerRefusedError, match=r"3 MiB, at most 1 \(code 1009\)"):
            client.infer(asking(1))
        assert len(server.requests) == 1


def test_another_policy_behind_the_same_address_is_refused_each_time():
    def drops(request, connection):
        server.metadata = METADATA | {"action_shape": [8, 3]}
        cut(connection)

    with stub_server(drops) as server, Client(server.url) as client:
        for _ in range(2):
            with pytest.raises(ServerRefusedError, match=r"another policy .*action_shape was \[4, 3\] and is \[8, 3\]"):
                client.infer(asking(1))
        assert len(server.requests) == 1


@pytest.mark.parametrize("metadata", ["hello", [1]])
def test_what_is_no_policy_server_is_said(metadata):
    with stub_server(metadata=metadata) as server, pytest.raises(WireError, match="first message"):
        Client(server.url)


def test_the_token_is_sent_and_a_wrong_one_is_refused_at_once():
    with stub_server(token="secret") as server:
        with Client(server.url, "secret") as client:
            assert client.infer(asking(2))[0, 0] == 2
        with pytest.raises(ServerRefusedError, match="refuses the token") as refused:
            Client(server.url, "wrong")
        assert "wrong" not in str(refused.value)


def server_tls(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's TLS, with the certificate that its clients trust."""
    key, certificate = folder / "key.pem", folder / "cert.pem"
    made = f"-nodes -days 1 -subj /CN=robot -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    command = shlex.split(f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 {made}")
    subprocess.run(command, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    return tls, certificate


def test_with_tls_the_server_s_certificate_is_checked(tmp_path, often_switching):
    tls, certificate = server_tls(tmp_path)
    with stub_server(tls=tls) as server:
        with Client(server.url, ca_file=certificate) as client:
            assert client.infer(asking(2))[0, 0] == 2
        for _ in range(100):  # this server's tickets come while the first request goes out
            began = time.monotonic()
            with Client(server.url, ca_file=certificate) as client:
                assert client.infer(asking(2))[0, 0] == 2
            assert time.monotonic() - began < 30
        with pytest.raises(ServerRefusedError, match=r"certificate(.|\n)*ca_file"):
            Client(server.url)
        with pytest.raises(ServerRefusedError, match=r"certificate") as refused:
            Client(server.url.replace("127.0.0.1", "localhost"), ca_file=certificate)
        assert "name for which the certificate was made in the URL" in refused.value.remedy
        assert "ca_file" not in refused.value.remedy


@pytest.mark.parametrize("code", [9, 10, 24, 26])
def test_another_authority_is_no_fix_for_a_certificate_with_another_fault(code):
    error = ssl.SSLCertVerificationError()
    error.verify_code = code
    fix = certificate_fix(error, "the URL", "ca_file")
    assert "certificate" in fix
    assert "ca_file" not in fix
    assert ("clock" in fix) == (code in (9, 10))


def test_with_tls_a_silent_server_is_given_up_at_the_deadline(tmp_path):
    tls, certificate = server_tls(tmp_path)
    listening = tls.wrap_socket(sockets.create_server(("127.0.0.1", 0)), server_side=True)
    with listening as silent, ThreadPoolExecutor(2) as threads:
        silent.settimeout(10)
        accepted = threads.submit(silent.accept)
        url = f"wss://127.0.0.1:{silent.getsockname()[1]}"
        asked = threads.submit(Client, url, ca_file=certificate, connect_s=0.5)
        with accepted.result(10)[0], pytest.raises(ServerLostError, match=r"no answer within 0.5 s"):
            asked.result(5)


def test_with_tls_a_timeout_that_is_set_while_data_is_waited_for_holds(tmp_path, monkeypatch):
    class Waits(SimpleNamespace):  # for data; meanwhile another thread sets the timeout
        def poll(self, _: float) -> bool:
            ours.settimeout(3.0)
            return True

    tls, certificate = server_tls(tmp_path)
    context = tls_context("wss://", certificate)
    theirs, ours = sockets.socketpair()
    with ThreadPoolExecutor(1) as threads:
        accepted = threads.submit(tls.wrap_socket, theirs, server_side=True)
        ours = context.wrap_socket(ours, server_hostname="127.0.0.1")
        with accepted.result(10) as theirs, ours:
            ours.settimeout(5.0)
            theirs.sendall(b"x")
            monkeypatch.setattr("embodied.client.tls.select.poll", lambda: Waits(register=lambda *_: None))
            assert ours.recv() == b"x"
            assert ours.gettimeout() == 3.0


def test_in_the_background_an_answer_comes_while_the_caller_goes_on():
    go = threading.Event()

    def waits(request, connection):
        go.wait(20)
        return counting(request)

    with stub_server(waits) as server, Client(server.url, timeout_s=20.0) as client:
        observation = asking(3)
        first, second = client.infer_async(asking(1)), client.infer_async(observation)
        observation["state"][0] = 9  # the robot's next picture comes into the same array
        assert not first.done()
        go.set()
        assert [one.result(20).actions[0, 0] for one in (first, second)] == [1, 3]


def test_several_threads_get_their_own_answers():
    with stub_server() as server, Client(server.url, timeout_s=20.0) as client:
        got: dict[int, float] = {}

        def ask(number: int) -> None:
            got[number] = client.infer(asking(number))[0, 0]

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert got == {number: number for number in range(8)}


def test_closing_gives_up_what_is_under_way():
    never = threading.Event()
    with stub_server(lambda request, _: never.wait(20) and None) as server:
        client = Client(server.url, timeout_s=20.0)
        pending = client.infer_async(asking(1))
        while not server.requests:
            time.sleep(0.01)
        client.close()
        with pytest.raises(ServerLostError, match="closed"):
            pending.result(20)
        never.set()


@pytest.mark.parametrize(
    ("url", "ca_file", "said"),
    [
        ("http://127.0.0.1:1", None, "no address of a policy server"),
        ("ws://127.0.0.1:1", "ca.pem", "has no TLS"),
        ("wss://127.0.0.1:1", "none.pem", "none.pem cannot be read"),
    ],
)
def test_an_address_that_cannot_be_is_refused(url, ca_file, said):
    with pytest.raises(ConfigError, match=said):
        Client(url, ca_file=ca_file, connect_s=5.0)


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "websockets.sync.client", None)
    with pytest.raises(ConfigError, match=r"websockets(.|\n)*embodied-rl\[client\]"):
        Client("ws://127.0.0.1:1")


ALONE = """
import sys
for name in ("torch", "hydra", "omegaconf", "pydantic", "transformers", "PIL", "embodied.runtime", "embodied.types"):
    sys.modules[name] = None
import numpy as np, embodied
from embodied.client import ChunkQueue, Client, Guard
with Client(sys.argv[1]) as client:
    guard = Guard.from_map({"control_hz": 20, "action": {"low": [0, 0, 0], "high": [6.5, 9, 9]}})
    queue = ChunkQueue(client, execute=2, guard=guard)
    print([queue.action({"state": np.array([5.0]), "prompt": "go"}).tolist() for _ in range(2)])
ours = {name.split(".")[1] for name in sys.modules if name.startswith("embodied.") and sys.modules[name]}
print(sorted(ours))
"""


def test_a_robot_s_computer_needs_no_torch():
    with stub_server() as server:
        command = [sys.executable, "-c", ALONE, server.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[[5.0, 5.0, 5.0], [6.0, 6.0, 6.0]]", "['client', 'errors']"]
