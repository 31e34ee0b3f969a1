"""Finds the line of a user's class where an error came from."""

from __future__ import annotations

import inspect
import traceback
from pathlib import Path
from typing import Any


def blame(error: BaseException, kind: Any) -> str:
    """Names the line of user code that raised an error: ``my_losses.py, line 12: …``. It is the innermost one in the
    file of ``kind``, else the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    try:
        own = inspect.getsourcefile(kind)
    except TypeError:  # it is built in
        own = None
    frame = next((one for one in reversed(frames) if own is not None and one.filename == own), frames[-1])
    return f"{Path(frame.filename).name}, line {frame.lineno}: `{frame.line}`"
