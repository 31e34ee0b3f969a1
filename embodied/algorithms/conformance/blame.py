"""Says what is wrong with a user's class, and the line where an error came from."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from embodied.algorithms.conformance.isolation import one_line
from embodied.errors import ConfigError, EmbodiedError

GUIDE = "(docs/how_to/add_a_loss.md)"


class Check:
    """Calls what a user has written, and says what is wrong with it.

    Args:
        tried: an object of the user's class.
        name: of the object, for errors.
    """

    likely: ClassVar[str]  # what to look at where the user's class raises

    def __init__(self, tried: Any, name: str) -> None:
        self._kind, self._name = type(tried), name

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except EmbodiedError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{self._name} raises {type(error).__name__}: {one_line(error)} ({blame(error, self._kind)})",
                f"mend that line; {self.likely} {GUIDE}",
            ) from error

    def _wrong(self, got: str, expected: str, fix: str) -> ConfigError:
        return ConfigError(f"{self._name} {got}, expected {expected}", f"{fix} {GUIDE}")


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
