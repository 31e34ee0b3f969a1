"""Rates, places and tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.errors import ConfigError
from embodied.serving import access
from embodied.serving.limits import Places, Rate

TOKEN = "0123456789abcdef0123"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 2), min_size=1, max_size=60), st.integers(1, 5))
def test_nobody_is_answered_faster_than_the_rate(pauses, burst):
    clock = Clock()
    rate = Rate(2.0, burst, clock)
    answered = []
    for pause in pauses:
        clock.now += pause
        clock.now += rate.wait("a")  # as a websocket does: it is held back
        answered.append(clock.now)
    for first in range(len(answered)):
        for last in range(first, len(answered)):
            assert last - first + 1 <= burst + 2.0 * (answered[last] - answered[first]) + 1e-6


def test_a_burst_is_answered_at_once_and_addresses_do_not_share():
    clock = Clock()
    rate = Rate(10.0, 3, clock)
    assert [rate.wait("a") for _ in range(5)] == pytest.approx([0, 0, 0, 0.1, 0.2])
    assert rate.wait("b") == 0
    clock.now = 100.0
    assert rate.wait("a") == 0


def test_a_request_that_is_refused_does_not_count():
    clock = Clock()
    rate = Rate(10.0, 1, clock)
    assert rate.refuse("a") == 0
    assert [rate.refuse("a") for _ in range(50)] == [pytest.approx(0.1)] * 50
    clock.now = 0.11
    assert rate.refuse("a") == 0


def test_addresses_are_forgotten():
    clock = Clock()
    rate = Rate(10.0, 1, clock)
    rate.MOST = 100
    for number in range(1000):
        clock.now += 1
        rate.wait(str(number))
    assert len(rate._due) <= 101


def test_places_in_all_and_for_each_address():
    places = Places(3, 2)
    assert [places.take(address) for address in "aaabb"] == [True, True, False, True, False]
    places.free("a")
    assert places.take("b")
    assert not places.take("a")
    assert places.taken == 3


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        (f"Api-Key {TOKEN}", True), (f"Bearer {TOKEN}", True), (f"bearer  {TOKEN}", True), (TOKEN, False),
        (f"Basic {TOKEN}", False), (f"Bearer {TOKEN}x", False), (f"Bearer {TOKEN[:-1]}", False), ("Bearer ", False),
        ("Bearer ä", False), ("", False),
    ],
)  # fmt: skip
def test_tokens(header, allowed):
    assert access.allowed({"Authorization": header}, TOKEN) is allowed
    assert access.allowed({"Authorization": header}, None)


def test_a_token_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(access.TOKEN_VARIABLE, raising=False)
    file = tmp_path / "token"
    assert access.read_token(None) is None
    with pytest.raises(ConfigError, match="cannot be read"):
        access.read_token(file)
    for bad in ("", "short", "x" * 20 + " y"):
        file.write_text(bad, encoding="utf-8")
        with pytest.raises(ConfigError, match="16 or more"):
            access.read_token(file)
    file.write_text(TOKEN + "\n", encoding="utf-8")
    assert access.read_token(file) == TOKEN
    monkeypatch.setenv(access.TOKEN_VARIABLE, TOKEN[::-1])
    assert access.read_token(None) == TOKEN[::-1]


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("192.168.1.5", False), ("robot.local", False), ("127.0.0.1.example.org", False)],
)  # fmt: skip
def test_other_machines_need_a_token(host, loopback):
    assert access.is_loopback(host) is loopback
    access.check_host(host, TOKEN)
    if loopback:
        access.check_host(host, None)
    else:
        with pytest.raises(ConfigError, match="can be reached"):
            access.check_host(host, None)


@pytest.mark.parametrize(
    ("headers", "page"),
    [
        ({}, False),
        ({"Host": "localhost:8000"}, False),
        ({"Origin": "http://localhost:8000", "Host": "localhost:8000"}, True),
        ({"Origin": "http://evil.example", "Host": "localhost:8000"}, True),
        ({"Origin": "null", "Host": "localhost:8000"}, True),
    ],
)
def test_pages_of_web_browsers(headers, page):
    assert access.from_web_page(headers) is page


def test_a_certificate_needs_its_key(tmp_path: Path):
    assert access.tls(None, None) is None
    with pytest.raises(ConfigError, match="both"):
        access.tls(tmp_path / "cert.pem", None)
    (tmp_path / "cert.pem").write_text("nothing", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be used"):
        access.tls(tmp_path / "cert.pem", tmp_path / "cert.pem")
