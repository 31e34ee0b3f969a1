"""The report of a run as a web page that follows it, on this machine only: made anew when the run's files have changed.

browser ─▶ GET /         the newest page, with a script that asks for newer ones
        ─▶ GET /newest   its number, and what went wrong with the last one
Maker:  files changed, and somebody looks ─▶ python -m embodied.tools.report … ─▶ the next page
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

from embodied.errors import ConfigError
from embodied.lib.child import Child
from embodied.report.reading import Run
from embodied.run.folder.beside.reports import PROGRAM
from embodied.run.folder.folder import LOCK, is_open

HOST = "127.0.0.1"
EVERY_S = 5.0
"""Seconds between the end of one report and the beginning of the next, at least; more where a report takes longer."""

WATCHED = (LOCK, "config.yaml", "starts.jsonl", "metrics.jsonl", "eval", "trace")
"""What of a run's folder a report shows. Videos are named by evaluations, which appear after them."""

POLICY = "base-uri 'none'"
LIVE_POLICY = "connect-src 'self'; base-uri 'none'"
_REQUEST_S = 30.0  # a connection that says nothing for so long is closed
_LOOPBACK = ("localhost", "127.0.0.1", "::1")

WAITING = (
    '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; script-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'\"><title>report</title></head><body><p>The report is being written.</p></body></html>"
)


class Maker:
    """Rewrites a report in a child process whenever runs have changed and somebody looks; pages go to a
    folder of its own.

    Args:
        names: of runs, as :func:`embodied.report.read` takes them.
        watched: folders and files whose changes make a page old.
        folder: where pages go.
        size: most megabytes of a page.
    """

    def __init__(self, names: Sequence[str], watched: Sequence[Path], folder: Path, size: float) -> None:
        self._watched, self._file = list(watched), folder / "report.html"
        self._command = [*PROGRAM, *names, "--out", str(self._file), "--size", f"{size:g}"]
        self._lock = threading.Lock()
        self._wanted, self._ended = threading.Event(), threading.Event()
        self._process: Child | None = None
        self._seen: object = None
        self.number = 0
        """Of the newest page; 0 = there is none yet."""
        self.page = live(WAITING, 0)
        self.problem = ""
        """Why the last report was not written; empty if it was."""
        self._thread = threading.Thread(target=self._run, daemon=True, name="reports")
        self._thread.start()

    def want(self) -> None:
        """Notes that somebody looks at the page, so that it is kept up to date."""
        self._wanted.set()

    def close(self) -> None:
        """Stops rewriting, and kills the process that writes at the moment."""
        self._ended.set()
        self._wanted.set()
        with self._lock:
            if self._process is not None:
                self._process.kill()
        self._thread.join(5.0)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._wanted.wait()
            self._wanted.clear()
            found = fingerprint(self._watched)
            if found == self._seen or self._ended.is_set():
                continue
            began = time.monotonic()
            if self._written():
                self._seen = found
            self._ended.wait(max(EVERY_S, time.monotonic() - began))

    def _written(self) -> bool:
        """Writes a report, and says whether it is there now."""
        with self._lock:
            if self._ended.is_set():
                return False
            try:
                process = self._process = Child(self._command, kept="stderr")
            except OSError as error:
                self._fail(str(error))
                return False
        status = process.wait()
        with self._lock:
            self._process = None
        if self._ended.is_set():
            return False
        if status:
            said = " ".join(line.strip() for line in process.lines()[-2:])
            self._fail(said or f"its process ended with status {status}")
            return False
        try:
            self.page = live(self._file.read_text(encoding="utf-8"), self.number + 1)
        except OSError as error:
            self._fail(str(error))
            return False
        self.number, self.problem = self.number + 1, ""
        return True

    def _fail(self, reason: str) -> None:
        if reason != self.problem:
            print(f"the report was not written: {reason}", file=sys.stderr, flush=True)
        self.problem = reason


def watched(run: Run) -> list[Path]:
    """Lists the files and folders of a run whose changes make its report outdated."""
    named = [Path(run.name)] if run.evaluation_alone else []
    return named + [run.folder / name for name in WATCHED]


def fingerprint(paths: Sequence[Path]) -> list[tuple[str, int, int]]:
    """Name, size and time of the files at ``paths`` and below them, as far as they are there; of a lock, whether a run
    has it."""
    return sorted(found for path in paths for found in _facts(path))


def _facts(path: Path) -> Iterator[tuple[str, int, int]]:
    with suppress(OSError):  # it is not there, or was deleted in between
        if path.is_dir():
            for one in sorted(path.iterdir()):
                yield from _facts(one)
        elif path.name == LOCK:  # a run that is killed changes no file
            yield str(path), int(is_open(path)), 0
        else:
            stat = path.stat()
            yield str(path), stat.st_size, stat.st_mtime_ns


def live(page: str, number: int) -> bytes:
    """Turns page ``number`` of a report into one that polls this server for a newer one; its content policy allows that
    request alone."""
    script = (files("embodied.report") / "assets" / "live.js").read_text(encoding="utf-8")
    head, found, rest = page.replace(POLICY, LIVE_POLICY, 1).rpartition("</body>")
    return f'{head}<script data-page="{number}">\n{script}</script>\n{found}{rest}'.encode()


class Handler(BaseHTTPRequestHandler):
    """Answers one connection. Refuses what no browser of this machine asks: other hosts, other methods."""

    server_version, sys_version = "embodied", ""
    timeout = _REQUEST_S
    server: Server

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not is_loopback(hosts[0]):
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"this page is for 127.0.0.1 and localhost alone\n")
            return
        maker, path = self.server.maker, urlsplit(self.path).path
        if path == "/":
            maker.want()
            self._answer(HTTPStatus.OK, "text/html", maker.page)
        elif path == "/newest":
            maker.want()
            text = json.dumps({"page": maker.number, "problem": maker.problem})
            self._answer(HTTPStatus.OK, "application/json", text.encode())
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"there is only /\n")

    do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body)), "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
        }  # fmt: skip
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def is_loopback(host: str) -> bool:
    """Whether a ``Host`` header names this machine's loopback, with any port: another page's name that was made to lead
    here (DNS rebinding) does not."""
    try:
        parts = urlsplit(f"//{host}")
        return parts.hostname in _LOOPBACK and parts.netloc == host and "@" not in host and (parts.port or 1) > 0
    except ValueError:
        return False


class Server(ThreadingHTTPServer):
    """Serves the pages of ``maker`` over HTTP on 127.0.0.1.

    Args:
        port: 0 = any that is free.

    Raises:
        ConfigError: the port cannot be had.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, maker: Maker) -> None:
        self.maker = maker
        try:
            super().__init__((HOST, port), Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"cannot listen on {HOST}:{port}: {error}", "give another --port; 0 takes one that is free"
            ) from error

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores errors of connections whose browser went away."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError, socket.timeout)):
            super().handle_error(request, client_address)  # type: ignore[arg-type]
