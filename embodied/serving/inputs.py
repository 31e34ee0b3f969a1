"""Puts several requests together as the inputs of one policy call, B rows, and checks what goes in and comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from embodied.client import wire
from embodied.errors import RequestError, SpecMismatchError
from embodied.instructions import fields_of
from embodied.protocols import ContinuesChunks, Policy
from embodied.random import Stream
from embodied.runtime.plan import noise
from embodied.serving.keys import IMAGES
from embodied.serving.wire.requests import Options, Question
from embodied.types import ArraySpec, ContinuousAction, EnvSpec, Noise


def continues(policy: Policy, env: EnvSpec) -> bool:
    """Whether the policy goes on from what is left of a chunk (:class:`embodied.protocols.ContinuesChunks`)."""
    return isinstance(policy, ContinuesChunks) and isinstance(env.action, ContinuousAction)


def goes_on(options: Options, shape: tuple[int, ...]) -> bool:
    """Whether a request brings what is left of the chunk before.

    Args:
        shape: of a chunk, [K, A].

    Raises:
        RequestError: these are other actions than the policy's.
    """
    if options.left_over is None or not len(options.left_over):
        return False
    count, dim = options.left_over.shape
    if count > shape[0] or dim != shape[1]:
        raise RequestError(
            f"{wire.LEFT_OVER} has the shape {[count, dim]}, expected {list(shape)} or fewer actions",
            "send what is left of the chunk before, in the env's units",
        )
    return True


def observations(questions: Sequence[Question], fields: Mapping[str, ArraySpec]) -> dict[str, np.ndarray]:
    """Returns the ``fields`` of the observations, [B, …] each."""
    found = {}
    for name, spec in fields.items():
        rows = np.empty((len(questions), *spec.shape), spec.dtype)
        for row, question in zip(rows, questions, strict=True):
            if name != IMAGES:
                row[...] = question.fields[name]
                continue
            for place, picture in zip(row, question.pictures, strict=True):
                place[:] = picture
        found[name] = rows
    return found


def check_noise(options: Options, declared: Noise) -> None:
    """Raises RequestError if a request brings random numbers that are none of the policy's."""
    sent, ends = options.noise, declared.shape[0] if declared.shape else 0
    if sent is None:
        return
    if sent.shape != declared.shape:
        raise RequestError(
            f"{wire.NOISE} has the shape {[*sent.shape]}, expected {[*declared.shape]}",
            "send numbers of the shape that the server's metadata tells (noise)",
        )
    uniform = sent if declared.kind == "uniform" else sent[ends - declared.uniform :]
    if ((uniform < 0) | (uniform >= 1)).any():
        raise RequestError(f"{wire.NOISE} has numbers outside [0, 1) where it is uniform", "send others there")


def drawn(
    places: Sequence[tuple[int, int]], seed: int, declared: Noise, greedy: bool,
    sent: Sequence[np.ndarray | None] = (),
) -> np.ndarray:  # fmt: skip
    """Draws the noise of B requests, [B, …]: zeros for greedy actions that read none.

    Args:
        places: requests of the session before, and the number of the session, of each request.
        sent: the numbers that a request brings; None: they are drawn.
    """
    if greedy and not declared.greedy:
        return np.zeros((len(places), *declared.shape), np.float32)
    brought = sent or [None] * len(places)
    return np.stack([
        noise(seed, Stream.SERVED_NOISE, session, count, declared) if own is None else own
        for (count, session), own in zip(places, brought, strict=True)
    ])  # fmt: skip


def left_over(questions: Sequence[Question], shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns what is left of the chunks before, as :class:`embodied.protocols.ContinuesChunks` takes it: actions
    float32 [B, K, A], how many there are int64 [B], and the delays int64 [B].

    Args:
        shape: of a chunk, [K, A].
    """
    rows = np.zeros((len(questions), *shape), np.float32)
    left, delay = np.zeros((2, len(questions)), np.int64)
    for row, question in enumerate(questions):
        actions = question.options.left_over
        assert actions is not None
        left[row] = len(actions)
        rows[row, : left[row]] = actions
        delay[row] = min(question.options.delay_steps or 0, left[row])
    return rows, left, delay


def check_actions(actions: np.ndarray, rows: int, declared: ArraySpec) -> None:
    """Raises SpecMismatchError unless a policy's actions are those of ``rows`` decisions as its spec declares them."""
    wanted = (rows, *declared.shape)
    if actions.shape != wanted or actions.dtype != declared.dtype:
        raise SpecMismatchError(
            f"the policy's act() gave {actions.dtype} {actions.shape} for 'actions', and its spec declares "
            f"{declared.dtype} {wanted}",
            "correct the policy; embodied.testing.check_policy drives it and says what does not fit",
        )


def empty(env: EnvSpec) -> Question:
    """Makes an observation of zeros, with the first task's instruction, to warm the policy up."""
    fields = {name: np.zeros(env.obs[name].shape, env.obs[name].dtype) for name in fields_of(env) if name != IMAGES}
    shape = env.obs[IMAGES].shape if IMAGES in env.obs else (0,)
    pictures = [np.zeros(shape[1:], np.uint8)] * shape[0]
    return Question((*env.tasks, "do nothing")[0], fields, pictures)
