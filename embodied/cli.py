"""``embodied VERB …``: one command for everything that ``python -m embodied.…`` does.

Imports nothing heavy, so that ``embodied --help`` and completion answer at once.
"""

from __future__ import annotations

import atexit
import gc
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple

from embodied import __version__
from embodied.errors import did_you_mean
from embodied.observe.terminal import streams


class Verb(NamedTuple):
    """A verb of the command line, such as ``train``: its module, its line of help, and whether it composes a
    configuration."""

    module: str
    meaning: str
    composed: bool = False  # it takes GROUP=NAME and KEY=VALUE


VERBS = {
    "train": Verb("embodied.train", "train a policy or a language model with reinforcement learning", composed=True),
    "eval": Verb("embodied.eval", "evaluate: success with intervals, videos", composed=True),
    "play": Verb("embodied.tools.play", "play one episode into a video", composed=True),
    "sft": Verb("embodied.sft", "learn from demonstrations or answers", composed=True),
    "demos": Verb("embodied.tools.demos", "record demonstrations by an env's own expert", composed=True),
    "compare": Verb("embodied.tools.compare", "say whether two evaluations differ, paired by start"),
    "report": Verb("embodied.tools.report", "write runs and evaluations into one HTML file"),
    "watch": Verb("embodied.tools.watch", "serve the report of a run while it goes on"),
    "export": Verb("embodied.tools.export", "write a checkpoint for other programs"),
    "upload": Verb("embodied.tools.upload", "send an exported folder to the Hugging Face hub or to S3"),
    "serve": Verb("embodied.tools.serve", "serve a checkpoint or an export to a robot"),
    "doctor": Verb("embodied.tools.doctor", "find what is wrong on this machine, with fixes", composed=True),
    "selftest": Verb("embodied.tools.selftest", "test this machine's GPU, or its CPU, against known numbers"),
    "bench": Verb("embodied.tools.bench", "time a configuration on this machine", composed=True),
    "migrate": Verb("embodied.tools.migrate", "turn a configuration of another system into an experiment"),
    "explain": Verb("embodied.tools.explain", "say what a key, a metric or an error is"),
    "completion": Verb("embodied.tools.completion", "print the completion script of a shell"),
}
"""Each module has a ``main(argv) -> exit status``."""


def usage() -> str:
    """Returns the text of ``embodied --help``."""
    width = max(map(len, VERBS))
    lines = [f"  {name:<{width}}  {verb.meaning}" for name, verb in VERBS.items()]
    return "\n".join(["usage: embodied VERB …", "", *lines, "", "embodied VERB --help says more"])


def piped(main: Callable[[], int]) -> int:
    """Runs a command; returns its exit status. Its output may be closed, full or of any encoding. Who reads it may end
    early, as ``head`` does; then the status is that of a process that SIGPIPE ended."""
    streams.for_person()
    atexit.register(gc.disable)  # else the interpreter looks through all that is left before it ends, for 0.04 s
    try:
        try:
            return main()
        finally:
            sys.stdout.flush()  # --help ends with SystemExit
    except BrokenPipeError:
        if not (gone := _readers_gone()):
            raise
        for number in gone:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)  # else the interpreter meets it again when it ends
        return 128 + signal.SIGPIPE
    except OSError as error:
        if not _fails_to_write(error):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        print(f"error: standard output cannot be written: {error.strerror}", file=sys.stderr)
        return 1


def see_current_folder() -> None:
    """Puts the current folder on the import path of this process and its workers, as ``python -m`` does; not with
    ``python -P`` or ``PYTHONSAFEPATH``."""
    if sys.flags.safe_path:
        return
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        return
    if folder not in map(os.path.abspath, sys.path):
        sys.path.insert(0, folder)


def _fails_to_write(error: OSError) -> bool:
    """Whether it is standard output that fails in this way, e.g. for a full disk."""
    try:
        os.write(1, b"\n")
    except OSError as again:
        return again.errno == error.errno
    return False


def _readers_gone() -> list[int]:
    """The outputs that nobody reads. Without one it was another pipe, of a worker or a service, that broke."""
    outputs = select.poll()
    for number in (1, 2):
        outputs.register(number, 0)
    return [number for number, state in outputs.poll(0) if state & select.POLLERR]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a verb; returns its exit status, and 2 for a verb that is not known."""
    if argv is None:
        see_current_folder()
    return piped(lambda: _main(argv))


def train() -> int:
    """Runs ``embodied-train``; returns its exit status."""
    return main(["train", *sys.argv[1:]])


def evaluate() -> int:
    """Runs ``embodied-eval``; returns its exit status."""
    return main(["eval", *sys.argv[1:]])


def _main(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"embodied {__version__}")
        return 0
    if words[0] not in VERBS:
        print(f"error: there is no 'embodied {words[0]}'.{did_you_mean(words[0], VERBS)}", file=sys.stderr)
        print(f"  fix: use one of: {', '.join(VERBS)}", file=sys.stderr)
        return 2
    return int(import_module(VERBS[words[0]].module).main(words[1:]))


if __name__ == "__main__":
    sys.exit(main())
