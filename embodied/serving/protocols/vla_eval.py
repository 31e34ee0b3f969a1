"""vla-eval's protocol at the path ``/vla-eval``: its benchmarks drive the policy, one observation a control step.

    server:
      url: ws://127.0.0.1:8000/vla-eval      # of vla-eval's configuration; ws://embodied:TOKEN@HOST:PORT/vla-eval

The policy answers one observation with K actions, and all of them are executed, as in its training: the next K − 1
observations of the connection are answered with the rest, and their pictures are not looked at. The start of an episode
and ``episode_restart`` in an observation drop what is left. :mod:`embodied.client.vla_eval` has the messages.

There are no pings: a benchmark answers none while its simulator is built. A client that says nothing for ``idle_s`` is
cut.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from aiohttp import WSCloseCode, WSMessage, WSMsgType, web

import embodied
from embodied.client import vla_eval, wire
from embodied.errors import EmbodiedError, RequestError, WireError
from embodied.instructions import fields_of
from embodied.serving.host import Host, Route
from embodied.serving.keys import IMAGES, camera
from embodied.serving.service import Session
from embodied.serving.websocket import opened
from embodied.serving.wire.requests import Question, unforeseen
from embodied.types import EnvSpec

log = logging.getLogger(__name__)

NAME = "vla_eval"
PATH = "/vla-eval"
GOODBYE = b"the server ends"
STATE, STATES = "state", "states"
WRIST = ("wrist", "hand", "gripper")  # parts of the names of cameras that move with the gripper
OUTSIDE_NAMES = ("agentview", "primary", "front", "rgb_static", "base_camera", "head_camera")
WRIST_NAMES = ("wrist", "wrist_camera", "hand_camera", "rgb_gripper")
"""Names of vla-eval's benchmarks for the camera that looks at the scene, and for that at the gripper."""


def mapping(env: EnvSpec, own: Mapping[str, str]) -> dict[str, str]:
    """Maps each key of an observation, ``images/NAME`` for a camera, to what of the env's observation it fills.

    Args:
        own: keys of the user's own (``--map``). What they fill, nothing else fills: ``state=state`` chooses ``state``
            before ``states``.
    """
    found = {"task_description": wire.PROMPT} | {name: name for name in fields_of(env) if name != IMAGES}
    if STATE in found:
        found[STATES] = STATE
    for names, at_wrist in ((OUTSIDE_NAMES, False), (WRIST_NAMES, True)):
        fitting = [name for name in env.cameras if is_wrist(name) == at_wrist]
        found |= {camera(name): camera(fitting[0]) for name in names if fitting}
    found |= {camera(name): camera(name) for name in env.cameras}
    return {key: filled for key, filled in found.items() if filled not in own.values()} | dict(own)


def described(env: EnvSpec, own: Mapping[str, str]) -> str:
    """Describes the mapping for people: what fills each field. Arguments as of :func:`mapping`."""
    by_field: dict[str, list[str]] = {}
    for key, filled in mapping(env, own).items():
        by_field.setdefault(filled, []).append(key)
    return "; ".join(f"{filled} ← {' | '.join(several)}" for filled, several in by_field.items())


def observation_params(env: EnvSpec) -> dict[str, bool]:
    """Returns the arguments with which most of vla-eval's benchmarks send what the policy takes; those that do not know
    them are built without."""
    needed = {"send_wrist_image": any(map(is_wrist, env.cameras)), "send_state": STATE in env.obs}
    return {name: True for name, so in needed.items() if so}


def is_wrist(name: str) -> bool:
    """Returns whether a camera of that name moves with the gripper."""
    return any(part in name for part in WRIST)


def flat(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a payload whose maps are spread out: ``images: {agentview: …}`` becomes ``images/agentview``.

    Raises:
        RequestError: a key comes twice.
    """
    found: dict[str, Any] = {}
    for key, value in payload.items():
        several = isinstance(value, Mapping) and not vla_eval.is_marked(value)
        for name, inner in ((f"{key}/{inner}", one) for inner, one in value.items()) if several else ((key, value),):
            if name in found:
                raise RequestError(f"the observation has '{name}' twice", "send it once")
            found[name] = inner
    return found


class Reader:
    """Reads the frames of one server's clients."""

    def __init__(self, host: Host) -> None:
        self._host, self.keys = host, mapping(host.reader.env, host.reader.renamed)
        env = host.reader.env
        self._needed = [wire.PROMPT, *(name for name in fields_of(env) if name != IMAGES), *map(camera, env.cameras)]
        # the user's keys may have given the name of a field to another one
        self._names = {filled: key for key, filled in host.reader.keys.items()} | {
            filled: key for key, filled in host.reader.keys.items() if key == filled
        }

    def read(self, data: bytes, has_actions: bool) -> tuple[vla_eval.Message, Question | EmbodiedError | None]:
        """Returns the message of a frame, and what it asks of the policy: nothing where actions are left. In a thread.

        Raises:
            WireError: the frame is no message.
        """
        message = vla_eval.read(data, self._host.wire_limits)
        if message.type != vla_eval.OBSERVATION or (has_actions and not restarts(message.payload)):
            return message, None
        try:
            return message, self._host.reader.read(self._translated(message.payload))
        except (RequestError, WireError) as error:
            return message, error
        except Exception as error:
            log.exception("an observation could not be read")
            return message, unforeseen(error)

    def _translated(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """The observation as the server's reader takes it."""
        given, came = flat(payload), dict[str, str]()
        for key in given:
            if (filled := self.keys.get(key)) is None:
                continue
            if filled in came:
                raise RequestError(
                    f"'{came[filled]}' and '{key}' both give '{filled}'",
                    f"let the benchmark send one of them, or start the server with --map {key}={filled} to take that",
                )
            came[filled] = key
        for name in self._needed:
            if name not in came:
                raise self._missing(name, given)
        return {
            self._names.get(filled, filled): vla_eval.value_of(given[key], self._host.wire_limits)
            for filled, key in came.items()
        }

    def _missing(self, name: str, given: Mapping[str, Any]) -> RequestError:
        expected = " or ".join(f"'{key}'" for key, filled in self.keys.items() if filled == name)
        picture = name.startswith(f"{IMAGES}/")
        what = f"no picture of the camera '{name.partition('/')[2]}'" if picture else f"no '{name}'"
        param = next(
            (one for one, about in (("send_wrist_image", picture), ("send_state", name == STATE)) if about), ""
        )
        built = f" (many benchmarks do so with {param}: true in their params)" if param else ""
        return RequestError(
            f"the observation has {what}; its keys are {', '.join(map(repr, [*given][:20])) or 'none'}",
            f"let the benchmark send it as {expected}{built}, or start the server with --map KEY={name}",
        )


def restarts(payload: Mapping[str, Any]) -> bool:
    """Returns whether an observation begins another task in the middle of an episode."""
    return payload.get("episode_restart") is True


async def converse(host: Host, request: web.Request, address: str) -> web.WebSocketResponse:
    """Serves one vla-eval connection until either side ends it; errors as of :func:`opened`."""
    socket = await opened(host, request, heartbeat=None)
    if socket.prepared and request.transport is not None:
        await Conversation(host, socket, request.transport, address).run()
    return socket


class Conversation:
    """One vla-eval connection: messages are answered one after the other, and actions that are left are kept."""

    def __init__(self, host: Host, socket: web.WebSocketResponse, transport: asyncio.Transport, address: str) -> None:
        self.host, self.session, self.loop = host, Session(), asyncio.get_running_loop()
        self._socket, self._transport, self._address = socket, transport, address
        self._reader = Reader(host)
        self._actions: deque[np.ndarray] = deque()  # of the last chunk, not sent yet
        self._answers = False  # a message is being answered
        self._closing: asyncio.Task[Any] | None = None

    async def run(self) -> None:
        """Serves the connection until either side ends it."""
        limits, draining = self.host.limits, self.host.draining
        self.host.conversations.add(self)
        try:
            while not draining.is_set():
                try:
                    message = await self._socket.receive(timeout=limits.idle_s)
                except TimeoutError:
                    await self._socket.close(code=WSCloseCode.POLICY_VIOLATION, message=b"idle for too long")
                    return
                if message.type not in (WSMsgType.BINARY, WSMsgType.TEXT):
                    return
                await self._serve(message)
            await self._socket.close(code=WSCloseCode.GOING_AWAY, message=GOODBYE)
        except (ConnectionError, TimeoutError):  # the client has gone, or does not take its answers
            self._transport.abort()
        finally:
            self.host.conversations.discard(self)

    def leave(self) -> None:
        """Close the connection because the server ends; if an answer is under way, after it."""
        if not self._answers:
            closing = self._socket.close(code=WSCloseCode.GOING_AWAY, message=GOODBYE)
            self._closing = self.loop.create_task(closing)

    async def _serve(self, message: WSMessage) -> None:
        self._answers = True
        self.host.begins()
        try:
            if (answer := await self._answer(message)) is not None:
                async with asyncio.timeout(self.host.limits.send_s):
                    await self._socket.send_bytes(vla_eval.pack(answer))
        finally:
            self.host.ends()
            self._answers = False

    async def _answer(self, frame: WSMessage) -> vla_eval.Message | None:
        """The answer to a message, if there is one to it."""
        host, came, seq = self.host, self.loop.time(), 0
        if (wait := host.rate.wait(self._address)) > 0:
            host.metrics.slowed.inc()
            await asyncio.sleep(wait)
        try:
            if frame.type is WSMsgType.TEXT:
                raise WireError("a text frame", "send binary frames")
            host.metrics.received_bytes.inc(len(frame.data))
            message, question = await host.decoded(self._reader.read, frame.data, bool(self._actions))
            seq = message.seq
            if message.type == vla_eval.OBSERVATION:
                actions = await self._next(question)
                host.answered(NAME, came)
                return vla_eval.Message(vla_eval.ACTION, {wire.ACTIONS: actions}, seq)
            return self._other(message)
        except (RequestError, WireError) as error:
            told = host.failed(error)
            shown = {"error": f"{told['message']}\n  fix: {told['fix']}", "kind": told["kind"], "fix": told["fix"]}
            return vla_eval.Message(vla_eval.ERROR, shown, seq)

    async def _next(self, question: Question | EmbodiedError | None) -> np.ndarray:
        """The action of the next control step: a question is asked, without one the chunk goes on."""
        if question is not None:
            self._actions.clear()
            if isinstance(question, EmbodiedError):
                raise question
            answer = await self.host.service.answer(question, self.session)
            self._actions.extend(np.atleast_1d(action) for action in answer.actions)
        return self._actions.popleft()

    def _other(self, message: vla_eval.Message) -> vla_eval.Message | None:
        if message.type == vla_eval.HELLO:
            return vla_eval.Message(vla_eval.HELLO, self._hello(message.payload), message.seq)
        if message.type == vla_eval.ACTION:
            raise RequestError("an 'action' came from a client", "send observations; this server answers with actions")
        if message.type == vla_eval.ERROR:
            log.warning("%s tells of an error: %.500r", self._address, message.payload.get("error"))
        else:  # an episode begins or ends
            self._actions.clear()
        return None

    def _hello(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        version = payload.get("protocol_version", vla_eval.PROTOCOL)
        if version != vla_eval.PROTOCOL:
            raise RequestError(
                f"the client speaks version {version!r:.40} of vla-eval's protocol, this server {vla_eval.PROTOCOL}",
                f"install a vla-eval that speaks version {vla_eval.PROTOCOL} (0.8 does), or a newer embodied-rl",
            )
        return {
            "harness_version": f"embodied {embodied.__version__}",
            "protocol_version": vla_eval.PROTOCOL,
            "model_server": "embodied",
            "capabilities": {},
            "observation_params": observation_params(self.host.reader.env),
            "embodied": {**wire.unpack(self.host.metadata), "keys": self._reader.keys},
        }


ROUTE = Route(f"vla-eval at {PATH}", ("GET", "HEAD"), PATH, converse)
