"""TLS of a connection that one thread reads while another writes."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from embodied.errors import ConfigError

NAMES_MISMATCH = {62, 64}
"""OpenSSL's codes (``x509_vfy.h``) of a certificate for another name, and for another IP address."""
UNKNOWN_SIGNER = {2, 18, 19, 20, 21}  # no certificate of the issuer, self-signed, only the first of a chain
NOT_AT_THIS_TIME = {9, 10}  # not yet valid, has expired


class OneAtATime(ssl.SSLSocket):
    """A TLS socket that never reads and writes at the same time; waiting for data does not block a write.

    OpenSSL does not allow the two at the same time on one connection. It mostly works, but not while messages of the
    handshake come: the tickets that servers send just after it made connections hang when the first request went out
    at that moment.
    """

    _one: threading.RLock

    def __new__(cls, *arguments: Any, **options: Any) -> OneAtATime:
        made = super().__new__(cls, *arguments, **options)
        made._one = threading.RLock()
        return made

    def settimeout(self, value: float | None) -> None:
        with self._one:
            super().settimeout(value)

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        while True:
            waiting = select.poll()
            waiting.register(self.fileno(), select.POLLIN)
            with self._one:
                patience, decrypted = self.gettimeout(), self.pending()
            if not decrypted and not waiting.poll(None if patience is None else 1000 * patience):
                raise TimeoutError("the read operation timed out")
            with self._one:
                patience = self.gettimeout()  # it may be another by now
                super().settimeout(0.0)
                try:
                    return super().recv(buflen, flags)
                except ssl.SSLWantReadError:
                    continue  # it was a message of TLS itself, or a part of one
                finally:
                    super().settimeout(patience)

    def sendall(self, data: Any, flags: int = 0) -> None:
        with self._one:
            super().sendall(data, flags)

    def close(self) -> None:
        """Close the connection, and wake the threads that wait for data or for room to send."""
        with suppress(OSError):  # it is closed already, or was never made
            socket.socket.shutdown(self, socket.SHUT_RDWR)
        with self._one:
            super().close()


def certificate_fix(error: ssl.SSLCertVerificationError, address: str, authority: str) -> str:
    """Returns what mends that a server's certificate is refused.

    Args:
        address: where the server's name is given.
        authority: how a file of certificates is given.
    """
    if error.verify_code in NAMES_MISMATCH:
        return f"give the name for which the certificate was made in {address}, or have one made for this name"
    if error.verify_code in UNKNOWN_SIGNER:
        return authority
    if error.verify_code in NOT_AT_THIS_TIME:
        return "compare this machine's clock (`date`); if it is right, the server needs a certificate that is valid now"
    return "the server needs a certificate without this fault"


def tls_context(url: str, ca_file: Path | str | None) -> ssl.SSLContext | None:
    """Returns the TLS context that checks a policy server's certificate; None for a URL without TLS. Raises
    :class:`ConfigError`."""
    if not url.startswith("wss://"):
        if ca_file is not None:
            raise ConfigError(f"ca_file is given, and {url} has no TLS", "give wss://HOST:PORT, or leave out ca_file")
        return None
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ConfigError(f"ca_file {ca_file} cannot be read: {error}", "give a file of certificates (PEM)") from error
    context.sslsocket_class = OneAtATime
    return context
