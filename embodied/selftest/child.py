"""A part in a process of its own: ``python -m embodied.selftest.child MODULE:FUNCTION DEVICE PYTHON FOLDER FILE``.

Each line is written as soon as it is there, so that those before a crash or a hang are kept. The last says that the
part came to its end: a library that ends the process is then no success.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from embodied.errors import EmbodiedError
from embodied.observe.terminal import streams
from embodied.selftest.measured import Measured, NotRun
from embodied.selftest.place import Place


def main(argv: Sequence[str]) -> int:
    """Runs a part and writes a line of JSON for each thing that it says; returns the exit status."""
    streams.for_log()
    place, device, vllm_python, folder, file = argv
    module, _, name = place.partition(":")
    function: Callable[[Place], Iterable[Measured]] = getattr(importlib.import_module(module), name)
    with open(file, "a", encoding="utf-8") as out:
        try:
            for one in function(Place(device, Path(folder), vllm_python)):
                _write(out, measured=asdict(one))
        except NotRun as reason:
            _write(out, not_run=str(reason))
        except EmbodiedError as error:
            _write(out, error=error.message, fix=error.remedy)
        _write(out, ended=True)
    return 0


def _write(out: TextIO, **line: Any) -> None:
    print(json.dumps(line, allow_nan=False), file=out, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
