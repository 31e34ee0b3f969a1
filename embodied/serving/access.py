"""Access rules: addresses that a server may listen at, its token, its certificate, and pages of web browsers."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from embodied.errors import ConfigError

TOKEN_VARIABLE = "EMBODIED_SERVE_TOKEN"
SHORTEST_TOKEN = 16
SCHEMES = ("api-key", "bearer")  # schemes of Authorization: openpi's client sends the first, curl users the second
PASSWORD = "basic"  # scheme of addresses with a password, the only way for vla-eval's client: ws://embodied:TOKEN@HOST


def is_loopback(host: str) -> bool:
    """Returns whether ``host`` is an address that only programs of this machine reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(file: Path | None) -> str | None:
    """The token in ``file``, else that in the environment variable ``EMBODIED_SERVE_TOKEN``, else None.

    Raises:
        ConfigError: the file cannot be read, or a token is too short to be one.
    """
    make = "make one: python -c 'import secrets; print(secrets.token_urlsafe(32))' > token.txt"
    if file is not None:
        try:
            token = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--token-file {file} cannot be read: {error}", make) from error
        where = f"--token-file {file}"
    else:
        token, where = os.environ.get(TOKEN_VARIABLE, "").strip(), TOKEN_VARIABLE
        if not token:
            return None
    if len(token) < SHORTEST_TOKEN or not token.isascii() or any(sign.isspace() for sign in token):
        raise ConfigError(
            f"{where} has a token of {len(token)} characters, expected {SHORTEST_TOKEN} or more (ASCII, no spaces)",
            make,
        )
    return token


def check_host(host: str, token: str | None) -> None:
    """Raises ConfigError if others may reach ``host`` and no token is asked of them."""
    if not is_loopback(host) and token is None:
        raise ConfigError(
            f"--host {host} can be reached from other machines, and no token is asked of them",
            f"give --token-file FILE (or {TOKEN_VARIABLE}), or stay at --host 127.0.0.1 and use an SSH tunnel",
        )


def tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Makes the TLS context of a server; None without a certificate.

    Raises:
        ConfigError: one of the two is missing, or they cannot be used.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("TLS needs both a certificate and its key", "give --tls-cert FILE and --tls-key FILE")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    # Clients with threads (openpi's among them) read while they write, on one TLS connection, which OpenSSL does not
    # allow while messages of the handshake come. Tickets for a later session are such messages, and come just when the
    # first request goes out: some clients then wait for ever. Robots stay connected and need no tickets.
    context.num_tickets = 0
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:  # errors of the ssl module are OSErrors, too
        raise ConfigError(
            f"--tls-cert {certificate} and --tls-key {key} cannot be used: {error}",
            "give a certificate (PEM) and the private key that belongs to it, without a password",
        ) from error
    return context


def allowed(headers: Mapping[str, str], token: str | None) -> bool:
    """Returns whether a request carries the token, compared in constant time. Without a token everybody may ask."""
    if token is None:
        return True
    scheme, _, text = headers.get("Authorization", "").partition(" ")
    given = text.strip().encode("utf-8", "surrogateescape")
    if scheme.lower() == PASSWORD:
        try:
            given = base64.b64decode(given, validate=True).partition(b":")[2]
        except binascii.Error:
            return False
    same = hmac.compare_digest(given, token.encode())
    return same and scheme.lower() in (*SCHEMES, PASSWORD)


def from_web_page(headers: Mapping[str, str]) -> bool:
    """Returns whether a browser sends the request for a page (it says so in ``Origin``). Pages of any site may reach
    servers of this machine that nobody else does, and may choose the name under which they do; robots have no pages."""
    return "Origin" in headers
