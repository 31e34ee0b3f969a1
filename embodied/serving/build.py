"""Builds a server around a policy."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import torch

from embodied.protocols import Policy
from embodied.serving import inputs
from embodied.serving.limits import ServerLimits
from embodied.serving.metrics import Metrics
from embodied.serving.protocols import openpi, openvla, vla_eval
from embodied.serving.server import Server
from embodied.serving.service import Service
from embodied.serving.wire.metadata import metadata
from embodied.serving.wire.requests import QuestionReader
from embodied.types import EnvSpec, Sampling

GREEDY = Sampling(do_sample=False)
ROUTES = [openpi.ROUTE, openvla.ROUTE, vla_eval.ROUTE]


def build_server(
    policy: Policy,
    env: EnvSpec,
    limits: ServerLimits | None = None,
    *,
    sampling: Sampling = GREEDY,
    max_batch: int = 8,
    fixed_shape: bool = False,
    seed: int = 0,
    device: torch.device | str = "cpu",
    keys: Mapping[str, str] | None = None,
    resize: bool = False,
    token: str | None = None,
    certificate: ssl.SSLContext | None = None,
) -> Server:
    """Returns a server that has not started; arguments as of :class:`Service`, :class:`QuestionReader` and
    :class:`Server`.

        server = build_server(policy, env)
        port = await server.start("127.0.0.1", 0)
        …
        await server.drain()

    Args:
        policy: bound to ``env``, on ``device``.

    Raises:
        ConfigError: the policy does not draw as ``sampling`` says.
        SpecMismatchError: the env takes text.
        UnknownNameError: ``keys`` name a field that the env does not have.
    """
    policy.spec.check_sampling(sampling, "")
    limits, metrics = limits or ServerLimits(), Metrics()
    reader = QuestionReader(env, keys, limits.max_pixels, resize)
    service = Service(
        policy, env, sampling, metrics, max_batch=max_batch, fixed_shape=fixed_shape, max_waiting=limits.max_waiting,
        seed=seed, device=device,
    )  # fmt: skip
    told = metadata(
        policy, env, reader.keys, limits, greedy=not sampling.do_sample, max_batch=max_batch,
        requests=service.most_together, continues=inputs.continues(policy, env),
    )  # fmt: skip
    return Server(service, reader, told, ROUTES, limits, metrics, token, certificate)
