"""Checks that go wrong, for ``test_running.py``: they run in processes of their own."""

from __future__ import annotations

import os
import sys
import time

from embodied.doctor.findings import Finding
from embodied.errors import ConfigError


def good(name):
    yield Finding(name, "ok", "all is well")


def crash():
    yield Finding("before", "ok", "said before the crash")
    os.abort()


def hang():
    yield Finding("before", "ok", "said before it hung")
    time.sleep(600)


def error():
    raise ZeroDivisionError("no such thing")
    yield


def cut():
    yield Finding("before", "ok", "said before it")
    with open(sys.argv[-1], "a", encoding="utf-8") as answers:
        answers.write('{"name": }\n')  # as a full disk leaves it


def explained():
    yield Finding("before", "warn", "said before", "nothing to do")
    raise ConfigError("it is wrong", "mend it")
