"""OpenVLA's REST protocol: ``POST /act`` with arrays in JSON, as its ``deploy.py`` and that of OpenVLA-OFT take them.

An array is ``{"__numpy__": base64, "dtype": "|u1", "shape": [H, W, 3]}`` (the package json_numpy). A request whose only
key is ``encoded`` holds the request as a JSON text, and is answered with a JSON text in JSON: clients of OpenVLA decode
twice. A request with the key ``image`` gets one action [A], as of OpenVLA; any other a list of K actions, as of
OpenVLA-OFT.

Unlike the original servers, which answer a failure with status 200 and the text "error", this one answers with a status
of 400 or more and ``{"error": {"kind", "message", "fix"}}``. ``unnorm_key`` is ignored: the policy has one range of
actions.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from aiohttp import web

from embodied.client import wire
from embodied.errors import RequestError, WireError
from embodied.serving.host import Host, Route
from embodied.serving.keys import in_order
from embodied.serving.service import Session
from embodied.serving.wire.requests import Question

NAME = "openvla"
ONE_ACTION = "image"  # the key that OpenVLA's clients send and those of OpenVLA-OFT do not
STATUS = {"wire": 400, "request": 400, "busy": 429, "draining": 503, "policy": 500}
ARRAY, ENCODED = "__numpy__", "encoded"


async def act(host: Host, request: web.Request, address: str) -> web.Response:
    """Answers one OpenVLA request: an observation by POST, its action as JSON."""
    if not host.ready:
        return refusal(host.failed(RequestError("the server is not ready", "try again later", "draining")))
    host.begins()
    try:
        return await _actions(host, request, address)
    finally:
        host.ends()


async def _actions(host: Host, request: web.Request, address: str) -> web.Response:
    came = asyncio.get_running_loop().time()
    encoded = False
    try:
        data = await _body(host, request, address)
        message, encoded, question = await host.decoded(_read, host, data)
        if host.draining.is_set():
            raise RequestError("the server ends", "ask another server", "draining")
        actions = (await host.service.answer(question, Session())).actions
        host.answered(NAME, came)
        if ONE_ACTION in message and actions.ndim == 2:
            return _response(_array(actions[0]), encoded)
        return _response([_array(row) for row in actions], encoded)
    except (RequestError, WireError) as error:
        return refusal(host.failed(error))


def refusal(error: Mapping[str, str]) -> web.Response:
    """Makes the response to an OpenVLA request that failed."""
    status = STATUS[error["kind"]]
    headers = {"Retry-After": "1"} if status in (429, 503) else {}
    return web.json_response({wire.ERROR: dict(error)}, status=status, headers=headers)


async def _body(host: Host, request: web.Request, address: str) -> bytes:
    if host.rate.refuse(address) > 0:
        host.metrics.slowed.inc()
        raise RequestError("this address sends too many requests", f"at most {host.limits.rate:g} a second", "busy")
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise WireError("a compressed body", "send the JSON as it is")
    try:
        async with asyncio.timeout(host.limits.body_s):
            data = await request.read()
    except TimeoutError:
        raise WireError(f"the body did not come within {host.limits.body_s:g} s", "send it at once") from None
    except web.HTTPRequestEntityTooLarge:
        raise WireError(f"a body of more than {host.limits.max_bytes} bytes", "send smaller pictures") from None
    host.metrics.received_bytes.inc(len(data))
    return data


def _read(host: Host, data: bytes) -> tuple[Mapping[str, Any], bool, Question]:
    """The message, whether it was encoded twice, and what it asks. Runs in a thread."""
    limits = host.wire_limits
    message = _object(data, limits)
    encoded = message.keys() == {ENCODED}
    if encoded:
        if not isinstance(message[ENCODED], str):
            raise WireError(f"'{ENCODED}' is a {type(message[ENCODED]).__name__}, expected a JSON text", "send a text")
        message = _object(message[ENCODED].encode(errors="replace"), limits)
    message = {key: _plain(value, limits) for key, value in message.items()}
    wrists = in_order(host.reader.env, host.reader.keys, [*message])
    return message, encoded, host.reader.read({wrists.get(key, key): value for key, value in message.items()})


def _object(data: bytes, limits: wire.Limits) -> dict[str, Any]:
    """A JSON object, of at most ``max_items`` values: counted by their separators before anything is made of them."""
    if (values := sum(map(data.count, (b",", b"[", b"{")))) > limits.max_items:
        raise WireError(
            f"JSON of about {values} values, at most {limits.max_items} are read", "send arrays as json_numpy does"
        )
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise WireError(
            f"no JSON: {type(error).__name__}", "send JSON with arrays as json_numpy writes them"
        ) from error
    if not isinstance(message, dict):
        raise WireError(f"JSON of a {type(message).__name__}, expected an object", "send an object with the fields")
    return message


def _plain(value: Any, limits: wire.Limits) -> Any:
    """A value with its arrays; only values of the outermost object may be arrays."""
    if not isinstance(value, dict) or ARRAY not in value:
        return value
    try:
        data = base64.b64decode(value[ARRAY], validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise WireError(f"an array's '{ARRAY}' is no base64: {type(error).__name__}", "use json_numpy") from error
    return wire.read_array(value.get("dtype"), value.get("shape"), data, limits)


def _array(values: np.ndarray) -> dict[str, Any]:
    """An array as json_numpy writes it."""
    data = base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
    return {ARRAY: data, "dtype": values.dtype.str, "shape": list(values.shape)}


def _response(value: Any, encoded: bool) -> web.Response:
    text = json.dumps(value)
    return web.json_response(text=json.dumps(text) if encoded else text)


ROUTE = Route("POST /act", ("POST",), "/act", act)
