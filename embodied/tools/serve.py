"""``python -m embodied.tools.serve CHECKPOINT|EXPORT``: a policy server; no simulator is needed.

    robots, other programs ── websocket (openpi, vla-eval), POST /act (OpenVLA) ──▶ embodied.serving ──▶ the policy

SIGTERM or Ctrl-C ends it: what is under way is answered, then it leaves with status 0. A second signal ends it at once.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from embodied.cli import piped
from embodied.errors import ConfigError, EmbodiedError, printed
from embodied.observe.terminal.console import Console, make_console
from embodied.serving import access
from embodied.serving.limits import ServerLimits

if TYPE_CHECKING:
    import ssl

    from embodied.serving.loading import Loaded

OFFERED = {
    "max_bytes": "of a message", "max_connections": "of all clients", "max_connections_per_address": "of one client",
    "rate": "requests a second of an address", "burst": "requests at once of an address",
    "idle_s": "seconds until a connection without requests is closed", "drain_s": "seconds for the last answers",
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 after a signal, or 2 after an explained error."""
    given = arguments().parse_intermixed_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    try:
        return run(given)
    except EmbodiedError as error:
        print(printed(error), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 128 + signal.SIGINT


def arguments() -> argparse.ArgumentParser:
    """Makes the parser of the command line of ``embodied serve``."""
    parser = argparse.ArgumentParser("python -m embodied.tools.serve", description="Serve a policy to robots.")
    parser.add_argument(
        "folder", type=Path, help="of a checkpoint (runs/NAME/checkpoints/000100), a run (its newest), an export"
    )
    parser.add_argument(
        "keys", nargs="*", metavar="actor.model.KEY=VALUE", help="of the policy, in place of what the folder says"
    )
    where = parser.add_argument_group("where")
    where.add_argument(
        "--host", default="127.0.0.1", help="address to listen at; others than this machine's need a token"
    )
    where.add_argument("--port", type=int, default=8000, help="0 = any free one (default: 8000)")
    where.add_argument(
        "--token-file", type=Path, help=f"file with the token that clients send (or variable {access.TOKEN_VARIABLE})"
    )
    where.add_argument("--tls-cert", type=Path, help="certificate (PEM)")
    where.add_argument("--tls-key", type=Path, help="its private key (PEM)")
    policy = parser.add_argument_group("policy")
    policy.add_argument(
        "--base", metavar="URL", help="of a head: server of the policy that it changes, e.g. ws://127.0.0.1:8000"
    )
    policy.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 … (default: a GPU if there is one)")
    policy.add_argument("--threads", type=int, default=0, help="of arithmetic on the CPU (default: torch's choice)")
    policy.add_argument("--max-batch", type=int, default=8, help="most requests that share a call (default: 8)")
    policy.add_argument(
        "--fixed-shape", action="store_true", help="fill each call up to --max-batch: equal answers to the bit, slower"
    )
    policy.add_argument("--sample", action="store_true", help="draw actions unless a request says greedy")
    policy.add_argument("--temperature", type=float, default=1.0, help="of drawn actions (default: 1)")
    policy.add_argument("--seed", type=int, default=0, help="of drawn actions (default: 0)")
    policy.add_argument(
        "--trust", action="store_true", help="the folder is your own: it may name other code and hold machine code"
    )
    requests = parser.add_argument_group("requests")
    requests.add_argument(
        "--map", action="append", default=[], metavar="KEY=FIELD", help="a key that fills a field, repeatable"
    )
    requests.add_argument(
        "--resize", action="store_true", help="scale pictures of another size instead of refusing them"
    )
    limits = parser.add_argument_group("limits")
    for name, what in OFFERED.items():
        default = getattr(ServerLimits(), name)
        option = f"--{name.replace('_', '-')}"
        limits.add_argument(option, type=type(default), default=default, help=f"{what} (default: {default:g})")
    return parser


def run(options: argparse.Namespace) -> int:
    """Loads the policy that the command line names and serves it until a signal comes; returns the exit status.

    Raises:
        EmbodiedError: what hinders it.
    """
    for name in ("max_batch", "temperature", *OFFERED):
        if not 0 < getattr(options, name) < math.inf:
            raise ConfigError(f"--{name.replace('_', '-')} is {getattr(options, name)}", "give a number above 0")
    for name, end in (("seed", 1 << 64), ("port", 1 << 16), ("threads", 1 << 16)):
        if not 0 <= getattr(options, name) < end:
            raise ConfigError(f"--{name} is {getattr(options, name)}", f"give a number from 0 to {end - 1}")
    token = access.read_token(options.token_file)
    access.check_host(options.host, token)
    certificate = access.tls(options.tls_cert, options.tls_key)
    if certificate is None and not access.is_loopback(options.host):
        print("warning: without --tls-cert token and pictures can be read on the way", file=sys.stderr)

    console = make_console()
    with console.progress("importing torch", brief=True):
        import torch

        from embodied.learn.step.device import device_named
        from embodied.serving.loading import load, parse_keys

    # As embodied.run.build.policy.reproducible_arithmetic, whose module imports what starts simulators.
    os.environ.setdefault("MKL_CBWR", "AUTO")
    if options.threads > 0:
        torch.set_num_threads(options.threads)
    device = str(device_named(options.device, "--device"))
    with console.progress(f"loading {options.folder}", brief=True):
        loaded = load(options.folder, device, options.trust, parse_keys(options.keys), options.base)
    print(f"{loaded.source}, on {device}", flush=True)
    return asyncio.run(serve(options, loaded, device, token, certificate, console))


async def serve(
    options: argparse.Namespace, loaded: Loaded, device: str, token: str | None, certificate: ssl.SSLContext | None,
    console: Console,
) -> int:  # fmt: skip
    """Serves a loaded policy until a signal comes; returns the exit status."""
    from embodied.instructions import fields_of
    from embodied.serving.build import build_server
    from embodied.serving.keys import parse
    from embodied.serving.protocols import vla_eval
    from embodied.types import Sampling

    policy, env, _ = loaded
    server = build_server(
        policy, env, ServerLimits(**{name: getattr(options, name) for name in OFFERED}), device=device,
        sampling=Sampling(do_sample=options.sample, temperature=options.temperature), seed=options.seed,
        max_batch=options.max_batch, fixed_shape=options.fixed_shape, keys=parse(options.map), resize=options.resize,
        token=token, certificate=certificate,
    )  # fmt: skip
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _end, ended, loop, number)
    try:
        with console.progress("asking the policy for the first time", brief=True):
            port = await server.start(options.host, options.port)
        secure = "" if certificate is None else "s"
        for name in fields_of(env):
            print(f"  {name}: {env.obs[name].dtype} {list(env.obs[name].shape)}")
        print(f"  cameras: {', '.join(env.cameras) or 'none'}; {env.control_hz:g} control steps a second")
        print(f"  vla-eval's observations at {vla_eval.PATH}: {vla_eval.described(env, server.reader.renamed)}")
        at = f"{f'[{options.host}]' if ':' in options.host else options.host}:{port}"
        print(f"ready: ws{secure}://{at}, http{secure}://{at}/act, ws{secure}://{at}{vla_eval.PATH}", flush=True)
        await ended.wait()
        print("ends: answering what is under way", flush=True)
    finally:
        await server.drain()
    return 0


def _end(ended: asyncio.Event, loop: asyncio.AbstractEventLoop, number: signal.Signals) -> None:
    """The first signal ends the server; the next one ends the process as it would any other."""
    ended.set()
    loop.remove_signal_handler(number)


if __name__ == "__main__":
    sys.exit(piped(main))
