"""A protocol is one file with a route: a third one beside openpi's and OpenVLA's, and what the server has for all."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys

import numpy as np
import pytest
from aiohttp import web
from serving_rig import FAST, observation, serving

from embodied.serving import build
from embodied.serving.host import Host, Route
from embodied.serving.service import Session


async def sums(host: Host, request: web.Request, address: str) -> web.Response:
    """Answers an observation, whose numbers come as JSON, with the sum of the actions."""
    if not host.ready:
        raise web.HTTPServiceUnavailable(text="not ready\n")
    host.begins()
    try:
        fields = {name: np.array(value, np.float32) for name, value in (await request.json()).items()}
        pictures = {name: value.astype(np.uint8) for name, value in fields.items() if name == "images"}
        question = await host.decoded(host.reader.read, {**fields, **pictures, "prompt": "lift"})
        actions = (await host.service.answer(question, Session())).actions
        return web.json_response({"sum": float(actions.sum()), "address": address})
    finally:
        host.ends()


@pytest.fixture
def with_sums(monkeypatch):
    routes = [*build.ROUTES, Route("PUT /sum", ("PUT",), "/sum", sums)]
    monkeypatch.setattr(build, "ROUTES", routes)


def reply(address: str, method: str, path: str, body: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_a_third_protocol_is_answered_beside_the_others(with_sums):
    asked = {name: np.asarray(value).tolist() for name, value in observation().items() if name != "prompt"}
    with serving(limits=FAST) as served:
        status, text = reply(served.address, "PUT", "/sum", json.dumps(asked))
        assert status == 200, text
        assert np.isfinite(json.loads(text)["sum"])
        assert json.loads(text)["address"] == "127.0.0.1"
        served.server.ready = False
        assert reply(served.address, "PUT", "/sum", json.dumps(asked)) == (503, "not ready\n")
        assert reply(served.address, "GET", "/other")[1] == (
            "here are a websocket, POST /act, vla-eval at /vla-eval, PUT /sum, /healthz, /readyz and /metrics\n"
        )


def test_who_asks_for_nothing_that_is_there_learns_what_is():
    with serving() as served:
        directory = "here are a websocket, POST /act, vla-eval at /vla-eval, /healthz, /readyz and /metrics\n"
        assert reply(served.address, "GET", "/other") == (404, directory)
        assert reply(served.address, "GET", "/act") == (404, directory)
        assert reply(served.address, "HEAD", "/other") == (404, "")
        assert reply(served.address, "POST", "/other")[0] == 405
        assert reply(served.address, "GET", "/readyz") == (200, "ready\n")


def test_a_route_for_any_path_hides_no_other():
    """The websocket's takes every path; the others are matched whatever the order in which they are listed."""
    with serving() as served:
        for routes in (build.ROUTES, build.ROUTES[::-1]):
            server = type(served.server)(served.server.service, served.server.reader, {}, routes, FAST,
                                         served.server.metrics)  # fmt: skip
            *first, last = (route.path for route in server._routes)
            assert (sorted(first), last) == (["/act", "/vla-eval"], "/{path:.*}")


def test_without_aiohttp_the_package_is_named():
    code = (
        "import sys; sys.modules['aiohttp'] = None\n"
        "from embodied.errors import ConfigError\n"
        "try: import embodied.serving.build\n"
        "except ConfigError as error: print(error.message)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8")
    assert done.stdout == "the Python package 'aiohttp' is not installed\n", done.stderr
