"""A policy that answers behind a server: openpi's, OpenVLA's, our own (``python -m embodied.tools.serve``).

``build_policy`` is the ``_target_`` of ``config/model/served.yaml``. It is evaluated like any other; it has no weights
here that could be trained. Importing this package does not import torch.

| file | what it does |
|---|---|
| ``policy.py`` | what the runtime drives |
| ``dialects/`` | protocols of servers, a module each |
| ``crew.py`` | connections, each with a thread: asks, connects anew, gives up |
| ``mapping.py``, ``mappings/`` | what fills a request, and how its answer is read, in YAML; those that are ready |
| ``secret.py`` | the server's token |
| ``fit.py`` | whether the server and its answers fit the env |
| ``fingerprint.py`` | whether what answers is what answered first |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .policy import ServedPolicy

__all__ = ["build_policy", "reads"]


def reads() -> str:
    """Returns what a policy reads, for the page of models."""
    return "what its server reads"


def build_policy(
    *,
    url: str,
    protocol: str = "auto",
    mapping: str | Mapping[str, Any] | None = None,
    num_action_chunks: int | None = None,
    connections: int = 8,
    timeout_s: float = 30.0,
    connect_s: float = 30.0,
    reconnect_s: float = 120.0,
    token_file: str | None = None,
    ca_file: str | None = None,
    send_noise: bool = False,
) -> ServedPolicy:
    """Connect to a policy server.

    Args:
        url: its address: ``ws://HOST:PORT``, ``wss://…`` (openpi), ``http://HOST:PORT``, ``https://…`` (openvla).
        protocol: auto (by the address), openpi (ours too), openvla or vla_eval.
        mapping: what fills a request of a server that does not describe itself: the name of a ready mapping, a YAML
            file, or the mapping itself.
        num_action_chunks: K, actions that are executed of each answer; None = the mapping's, else all.
        connections: most connections that ask at a time; one is made when observations wait and none is free. Where the
            server takes several in a request, as ours does, those that begin to wait together are one request.
        timeout_s: seconds that an answer may take before it is asked for again.
        connect_s: seconds that a server may take to be there when a run begins.
        reconnect_s: seconds that a server may be away later, e.g. while it restarts.
        token_file: file with the server's token; None = the variable EMBODIED_SERVE_TOKEN, else none.
        ca_file: certificates (PEM) of the authority that signed the server's; None = the public ones.
        send_noise: requests bring the random numbers of a decision, where else they name a draw of the server's.

    Raises:
        ConfigError: a value that cannot be.
        ServerLostError: nobody answers there.
        ServerRefusedError: the server wants another token, or its certificate is not to be trusted.
    """
    from .policy import build

    return build(
        url, protocol, mapping, num_action_chunks, connections, timeout_s, connect_s, reconnect_s, token_file, ca_file,
        send_noise,
    )  # fmt: skip
