"""Gymnasium envs that do to their process what programs of others do. Helpers say their numbers in a file."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

BOX = gymnasium.spaces.Box(-1, 1, (2,))
_SLEEP = "import os, sys, time; open(sys.argv[1], 'a', encoding='utf-8').write(f'{os.getpid()} '); time.sleep(400)"
_DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN); "
_DAEMON = "import os\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"


def _helper(code: str, file: str, **more: Any) -> None:
    count = len(Path(file).read_text(encoding="utf-8").split()) if Path(file).exists() else 0
    subprocess.Popen([sys.executable, "-S", "-c", code, file], **more)
    while not Path(file).exists() or len(Path(file).read_text(encoding="utf-8").split()) == count:
        time.sleep(0.005)


def _thread(file: str) -> None:
    threading.Thread(target=time.sleep, args=(400,)).start()


def _prints(file: str) -> None:
    for _ in range(40):
        os.write(1, b"x" * 100_000 + b"\n")
        os.write(2, b"y" * 100_000 + b"\n")


def _speaks_binary(file: str) -> None:
    os.write(1, bytes(range(256)) + b'\nEMBODIED_GYM={"error": "ConfigError", "message": "m", "remedy": "r"}\nanswer')
    print('{"entries": {}}', flush=True)


def _forks(file: str) -> None:
    os.fork()  # both go on


def _moves(file: str) -> None:
    os.chdir(Path(__file__).parents[1])


def _listens(file: str) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


RESETS: dict[str, Callable[[str], Any]] = {
    "helper": lambda file: _helper(_SLEEP, file),
    "deaf helper": lambda file: _helper(_DEAF + _SLEEP, file),
    "helper of another session": lambda file: _helper(_SLEEP, file, start_new_session=True),
    "daemon": lambda file: _helper(_DAEMON + _SLEEP, file),
    "thread": _thread,
    "prints": _prints,
    "speaks binary": _speaks_binary,
    "forks": _forks,
    "moves": _moves,
    "listens": _listens,
    "closes its output": lambda file: [os.close(one) for one in (0, 1, 2)],
    "ends": lambda file: os._exit(0),
    "exits": lambda file: sys.exit("no licence"),
    "crashes": lambda file: ctypes.string_at(0),
    "reads": lambda file: input("which robot? "),
    "interrupts": lambda file: os.kill(os.getpid(), signal.SIGINT),
    "hangs": lambda file: time.sleep(400),
}


class Odd(gymnasium.Env[Any, Any]):
    """Does what ``reset`` names in its first reset; ``close`` may hang, and the fifth step may end the process."""

    observation_space, action_space = BOX, BOX

    def __init__(self, reset: str = "", file: str = "", hangs_in: str = "", late: str = "") -> None:
        self._reset, self._file, self._hangs_in, self._late, self._first = reset, file, hangs_in, late, True

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self._first and self._reset:
            self._first = False
            RESETS[self._reset](self._file)
        self._steps = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps > 4 and self._late:
            RESETS[self._late](self._file)
        if self._hangs_in == "step":
            time.sleep(400)
        return np.zeros(2, np.float32), 0.0, self._steps == 9, False, {"success": False}

    def close(self) -> None:
        if self._hangs_in == "close":
            time.sleep(400)


class Shown(Odd):
    """The same with pictures, which are tried with an env that is closed before there is an answer."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (as Gymnasium has it)

    def __init__(self, render_mode: str | None = None, **kwargs: str) -> None:
        super().__init__(**kwargs)
        self.render_mode = render_mode

    def render(self) -> np.ndarray:  # type: ignore[override]
        return np.zeros((16, 16, 3), np.uint8)
