"""``python -m embodied.tools.watch RUN``: serves the report of a run on this machine while the run goes on.

    RUN ─▶ report/live.py: pages, made anew ─▶ http://127.0.0.1:PORT/ ─▶ a browser here, or one behind ssh -L

Only 127.0.0.1 is listened on. Ctrl-C ends it at once, with status 0.
"""

from __future__ import annotations

import argparse
import getpass
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from embodied import report
from embodied.cli import piped
from embodied.errors import ConfigError, EmbodiedError, printed
from embodied.report import library, live


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 after Ctrl-C or SIGTERM, or 2 after an explained error."""
    given = _arguments().parse_args(argv)
    before = {number: signal.signal(number, _end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        _serve(given)
    except KeyboardInterrupt:
        pass
    except EmbodiedError as error:
        print(printed(error), file=sys.stderr)
        return 2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def _end(number: int, frame: FrameType | None) -> None:
    for one in (signal.SIGINT, signal.SIGTERM):  # the end itself is not interrupted
        signal.signal(one, signal.SIG_IGN)
    raise KeyboardInterrupt


def _serve(given: argparse.Namespace) -> None:
    """Serves until a signal raises KeyboardInterrupt."""
    if not given.size > 0:
        raise ConfigError(f"--size is {given.size:g}", "give the most megabytes that the page may have, e.g. 30")
    library.check_installed()
    files = [file for name in given.runs for file in live.watched(report.read(name))]
    with tempfile.TemporaryDirectory(prefix="embodied-watch-", ignore_cleanup_errors=True) as own:
        maker = live.Maker(given.runs, files, Path(own), given.size)
        try:
            with live.Server(given.port, maker) as server:
                maker.want()
                _say(given.runs, server.server_port)
                server.serve_forever(poll_interval=0.2)
        finally:
            maker.close()


def _say(runs: Sequence[str], port: int) -> None:
    lines = [
        f"report of {', '.join(runs)}: http://{live.HOST}:{port}/",
        f"from another machine: ssh -L {port}:{live.HOST}:{port} {_here()}, and open the same address there",
        "Ctrl-C ends it",
    ]
    print(*(line.encode("utf-8", errors="replace").decode() for line in lines), sep="\n", flush=True)


def _here() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError, ImportError):  # a user without a name
        return socket.gethostname()


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m embodied.tools.watch", description="Serve the report of a run on this machine while it goes on."
    )
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="runs/NAME, or what embodied.tools.report takes; several are compared"
    )
    parser.add_argument("--port", type=int, default=0, help="of 127.0.0.1; 0 takes one that is free (default: 0)")
    parser.add_argument(
        "--size", type=float, default=30.0, metavar="MB",
        help="most megabytes of the page; videos are left out until it fits (default: 30)",
    )  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(piped(main))
