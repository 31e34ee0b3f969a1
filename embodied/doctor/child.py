"""A check in a process of its own: ``python -m embodied.doctor.child MODULE:FUNCTION ARGUMENTS [FILE]``.

Each finding is written as soon as there is one, so that those before a crash or a hang are kept.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TextIO

from embodied.doctor.findings import Finding, of_error
from embodied.errors import EmbodiedError
from embodied.observe.terminal import streams


def main(argv: Sequence[str]) -> int:
    """Calls the function with its arguments (a JSON list) and writes a line of JSON for each of its findings.

    Args:
        argv: the function's place and arguments; the file to write to, else standard output.
    """
    streams.for_log()
    place, arguments, *file = argv
    module, _, name = place.partition(":")
    function = getattr(importlib.import_module(module), name)
    if not file:
        _write(name, function(*json.loads(arguments)), sys.stdout)
        return 0
    with open(file[0], "w", encoding="utf-8") as out:
        _write(name, function(*json.loads(arguments)), out)
    return 0


def _write(name: str, findings: Iterable[Finding], out: TextIO) -> None:
    try:
        for finding in findings:
            print(json.dumps(asdict(finding)), file=out, flush=True)
    except EmbodiedError as error:
        print(json.dumps(asdict(of_error(name, error))), file=out, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
