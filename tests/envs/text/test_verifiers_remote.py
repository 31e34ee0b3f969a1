"""A reward service over HTTP: a real server in a thread, with every way in which it can fail."""

import json
import math
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from embodied.envs.text.verdict import Problem, Verdict
from embodied.envs.text.verifiers import make_verifier

from embodied.errors import ConfigError

PROBLEM = Problem("2+2?", "4", {}, 5)
QUICK = {"timeout_s": 5, "retries": 3, "backoff_s": 0.002}


class Service(ThreadingHTTPServer):
    """Gives the answers of a list, one after another, then the last again: (status, text) or a function."""

    daemon_threads = True

    def __init__(self):
        self.answers, self.requests = [], []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/score"

    def handle_error(self, request, client_address):
        """The client hangs up on a slow one."""


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        service = self.server
        service.requests.append((dict(self.headers), json.loads(body)))
        answer = service.answers.pop(0) if len(service.answers) > 1 else service.answers[0]
        if callable(answer):
            return answer(self)
        status, text = answer
        self.send_response(status)
        if status == 302:
            self.send_header("Location", service.url)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def service(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    service = Service()
    thread = threading.Thread(target=service.serve_forever, args=(0.01,))
    thread.start()
    yield service
    service.shutdown()
    thread.join()
    service.server_close()


def ask(service, *answers, problem=PROBLEM, **options):
    service.answers = list(answers)
    verifier = make_verifier([{"name": "remote", "url": service.url, "on_error": "raise", **QUICK, **options}])
    return verifier(problem, "four")


def test_what_is_sent_and_what_comes_back(service):
    messages = ({"role": "user", "content": "2+2?"},)
    fields = {"level": np.int64(3), "scores": np.array([0.5, np.nan]), "none": None, "nested": {"a": (1, 2)}}
    headers = {"Authorization": "Bearer abc"}
    problem = Problem(messages, "4", fields, 5)
    assert ask(service, (200, '{"score": 0.75}'), problem=problem, headers=headers) == Verdict(0.75, False)
    sent_headers, sent = service.requests[0]
    assert sent == {
        "prompt": [{"role": "user", "content": "2+2?"}], "response": "four", "answer": "4",
        "fields": {"level": 3, "scores": [0.5, None], "none": None, "nested": {"a": [1, 2]}},
    }  # fmt: skip
    assert sent_headers["Authorization"] == "Bearer abc"
    assert sent_headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ('{"score": 1}', {}, Verdict(1.0, True)),
        ('{"score": true}', {}, Verdict(1.0, True)),
        ('{"score": 0.5}', {"success_at": 0.5}, Verdict(0.5, True)),
        ('{"out": {"overall": 2.5}}', {"score_key": "out.overall"}, Verdict(2.5, True)),
    ],
)
def test_scores(service, text, options, expected):
    assert ask(service, (200, text), **options) == expected


@pytest.mark.parametrize(("given", "said"), [('"0.50"', "1/2"), ("0", "0"), ("null", "")])
def test_a_service_may_say_the_answer(service, given, said):
    text = f'{{"score": 1, "out": {{"answer": {given}}}}}'
    assert ask(service, (200, text), answer_key="out.answer").answer == said
    assert ask(service, (200, text)).answer is None
    with pytest.raises(ConfigError, match=r"expected JSON with a text under 'answer'"):
        ask(service, (200, text), answer_key="answer")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_service_that_recovers_is_asked_again(service, status):
    assert ask(service, (status, "busy"), (status, "busy"), (200, '{"score": 1}')) == Verdict(1.0, True)
    assert len(service.requests) == 3


def test_a_connection_that_breaks_is_tried_again(service):
    def breaks(handler):
        handler.connection.shutdown(socket.SHUT_RDWR)

    assert ask(service, breaks, (200, '{"score": 1}')) == Verdict(1.0, True)


def test_a_service_that_stays_ill_ends_with_its_last_answer(service):
    with pytest.raises(ConfigError, match=r"gave no answer to 4 requests in .*status 500 'out of memory'") as caught:
        ask(service, (500, "out of memory"))
    assert service.url in caught.value.message
    assert "checkpoint" in caught.value.remedy
    assert len(service.requests) == 4


def test_a_service_that_is_down_is_said():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        verifier = make_verifier([{"name": "remote", "url": url, **QUICK}])
        with pytest.raises(ConfigError, match=r"gave no answer to 4 requests.*refused"):
            verifier(Problem("", "", {}, 0), "")


def test_a_slow_service_is_asked_again(service):
    def slow(handler):
        time.sleep(0.3)

    assert ask(service, slow, (200, '{"score": 1}'), timeout_s=0.1) == Verdict(1.0, True)
    with pytest.raises(ConfigError, match=r"gave no answer to 2 requests.*timed out"):
        ask(service, slow, timeout_s=0.1, retries=1)


def test_an_answer_that_drips_has_no_more_time_than_others(service):
    def drips(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        for _ in range(1000):
            handler.wfile.write(b" ")
            time.sleep(0.02)

    began = time.monotonic()
    with pytest.raises(ConfigError, match="did not end in time"):
        ask(service, drips, timeout_s=0.1, retries=0)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("status", [302, 400, 401, 404])
def test_another_status_is_an_error_at_once(service, status):
    with pytest.raises(ConfigError, match=f"refused problem 5: status {status} 'no'"):
        ask(service, (status, "no"))
    assert len(service.requests) == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("oops", "answered 'oops', expected JSON with a number under 'score'"),
        ('{"reward": 1}', "expected JSON with a number under 'score'"),
        ("[1]", "expected JSON"),
        ('{"score": NaN}', "gave the score 'nan'"),
        ('{"score": "1"}', "gave the score '1'"),
        ('{"score": null}', "gave the score 'None'"),
        (f'{{"score": 1{"0" * 400}}}', "gave the score '1000"),
        ("[" * 100_000, "expected JSON"),
    ],
)
def test_an_answer_without_a_score_costs_one_verdict(service, text, why):
    with pytest.raises(ConfigError, match=why):
        ask(service, (200, text))
    assert len(service.requests) == 1
    assert ask(service, (200, text), on_error="zero") == Verdict(0.0, False)


def test_an_endless_answer_is_not_read(service):
    with pytest.raises(ConfigError, match="more than 1048576 bytes"):
        ask(service, (200, " " * 2**21), retries=0)


def test_a_field_that_is_no_json_is_said(service):
    with pytest.raises(ConfigError, match="problem 5 cannot be sent as JSON: Object of type object"):
        ask(service, (200, "{}"), problem=Problem("", "", {"x": object()}, 5))


def test_waits_double_are_spread_and_repeat(service, monkeypatch):
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    for response in ("2+2?", "2+2?", "3+3?"):
        with pytest.raises(ConfigError):
            ask(service, (500, ""), problem=Problem(response, "", {}, 0), backoff_s=8.0)
    first, again, other = waits[:3], waits[3:6], waits[6:]
    assert first == again != other
    assert all(0.5 <= wait / (8.0 * 2**index) <= 1.5 for index, wait in enumerate(first))
    assert not math.isclose(first[0] / 8, first[1] / 16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "ftp://host/"}, "url is 'ftp://host/'"),
        ({"url": "localhost:8000"}, "expected http"),
        ({"url": "http://localhost:port/"}, "expected http"),
        ({"url": "http://localhost/größe"}, "expected http"),
        ({"url": "http://localhost/a b"}, "expected http"),
        ({"url": "http://[::1/"}, "expected http"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"retries": -1}, "retries -1"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        make_verifier([{"name": "remote", "url": "http://localhost/", **options}])


def test_functions_are_sent_with_each_answer_and_its_score_is_bounded(service):
    service.answers = [(200, '{"score": 9.0}'), (200, '{"score": -9.0}'), (200, '{"score": 0.5}')]
    part = {"name": "remote", "url": service.url, "weight": 2.0, "functions": {"dance": 0.5}, **QUICK}
    bounded = make_verifier([{**part, "clip_min": -3, "clip_max": 4}])
    assert [bounded(PROBLEM, "4").reward for _ in range(3)] == [4.0, -3.0, 1.0]
    assert [sent["reward_fn"] for _, sent in service.requests] == [{"dance": 0.5}] * 3
    plain = make_verifier([{"name": "remote", "url": service.url, **QUICK}])
    assert plain(PROBLEM, "4").reward == 0.5
    assert "reward_fn" not in service.requests[-1][1]
    with pytest.raises(ConfigError, match="clip_min 4 is above clip_max 3"):
        make_verifier([{**part, "clip_min": 4, "clip_max": 3}])
