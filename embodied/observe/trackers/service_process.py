"""The process of one service (:mod:`embodied.observe.trackers.services`): takes what a run sends, hands it to the
package.

Lines of JSON come on standard input; the first is ``begin``. What the user should see goes back on standard output, one
line of JSON each: ``{"say": …}``, or ``{"failed": …}`` before it ends. The package gets neither of the two.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import IO, Any

from embodied.lib.whole import write_whole
from embodied.observe.terminal import streams
from embodied.observe.trackers.service_clients import CLIENTS, Client

END_S = 300.0
"""After the end of the run, how long the process stays at most: nobody may be left to end it."""


def main() -> int:
    """Serves until standard input ends; returns the exit status."""
    streams.for_log()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the run decides when it ends, by closing standard input
    messages, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, encoding="utf-8") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    try:
        _serve(messages, answers)
    except BaseException as error:  # noqa: BLE001  (a package may even call sys.exit)
        traceback.print_exc()
        _answer(answers, failed=" ".join(f"{type(error).__name__}: {error}".split())[:500])
        return 1
    return 0


def _serve(messages: IO[str], answers: IO[str]) -> None:
    begin = json.loads(messages.readline() or "{}").get("begin")
    if begin is None:
        return
    client: Client = CLIENTS[begin["service"]](begin)
    if client.place:
        _answer(answers, say=client.place)
    done, state = begin["done"], Path(begin["state"])
    for line in messages:
        ((what, values),) = json.loads(line).items()
        kind = values.get("name", what)
        if values["step"] <= done.get(kind, -1):
            continue  # a resumed run repeats it
        getattr(client, what)(**values)
        done[kind] = values["step"]
        write_whole(state, json.dumps({"id": begin["id"], "done": done}))
    _limit(END_S)
    client.close()


def _limit(seconds: float) -> None:
    timer = threading.Timer(seconds, os._exit, (1,))
    timer.daemon = True
    timer.start()


def _answer(answers: IO[str], **said: Any) -> None:
    answers.write(json.dumps(said) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
