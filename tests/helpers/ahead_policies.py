"""A policy whose weights go ahead and do not arrive: the process that trains sends none of them."""

from __future__ import annotations

import threading

from slow_policies import Slow

from embodied.learn.ranks.weights import Sender


class Withheld(Slow):
    def __init__(self, **times: float) -> None:
        super().__init__(**times)
        Sender._transfer_ahead = _wait  # type: ignore[method-assign]


def _wait(self: Sender, packed: object) -> float:
    threading.Event().wait()
    return 0.0
