"""Parts that go wrong, for ``test_selftest_running.py``: they run in processes of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np

from embodied.errors import ConfigError
from embodied.parallel.group import Group
from embodied.selftest.measured import NotRun, at_least, at_most, figure, none_of, skipped

MEGABYTES = 64


def good(place):
    yield at_most("gap", 0.5, 1.0, "nats")
    yield figure("device", place.device)
    (place.folder / "a file").write_text("of its own", encoding="utf-8")


def alone_in_its_job(place):
    yield none_of("others", Group.from_environment().size - 1, 1)
    yield figure("vLLM", place.vllm_python)


def raises(place):
    yield at_most("before", 0.5, 1.0)
    print("\x1b[31mred\x1b[0m <script>alert(1)</script> \x07")
    raise ZeroDivisionError("no such thing")


def refuses(place):
    yield at_most("before", 0.5, 1.0)
    raise ConfigError("it is wrong", "mend it")


def hangs(place):
    yield at_most("before", 0.5, 1.0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def killed(place):
    yield at_most("before", 0.5, 1.0)
    os.kill(os.getpid(), signal.SIGKILL)


def aborts(place):
    yield at_most("before", 0.5, 1.0)
    os.abort()


def leaves_early(place):
    yield at_most("before", 0.5, 1.0)
    os._exit(0)


def prints(place):
    block = "x" * 1023 + "\n"
    for _ in range(MEGABYTES):
        for _ in range(1024):
            sys.stdout.write(block)
        sys.stdout.flush()
        time.sleep(0.01)
    print("the last line")
    yield at_most("after", 0.5, 1.0)


def prints_and_fails(place):
    yield from prints(place)
    raise ZeroDivisionError("no such thing")


def forks(place):
    """Leaves a child in its group, one in a session of its own, and one that a child has left."""
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    subprocess.Popen(sleep)
    subprocess.Popen(sleep, start_new_session=True)
    twice = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"
    subprocess.run([sys.executable, "-c", twice, *sleep], check=True)
    yield at_most("gap", 0.5, 1.0)


def nan(place):
    yield at_most("NaN", float("nan"), 1.0, "nats")
    yield at_least("infinite", float("inf"), 1.0)
    yield none_of("nothing", 0, 0)
    yield at_most("after", 0.5, 1.0)


def no_number(place):
    yield at_most("an array", np.ones(3), 1.0)


def numpy_number(place):
    yield figure("of numpy", np.float32(3))


def not_here(place):
    raise NotRun("there is none of these here")
    yield


def all_skipped(place):
    yield skipped("one", "it is not there")


def nothing(place):
    yield from ()


def writes_rubbish(place):
    yield at_most("before", 0.5, 1.0)
    with open(sys.argv[-1], "a", encoding="utf-8") as file:
        file.write('{"measured": {"what": 3}}\n')


def cut_off(place):
    yield at_most("before", 0.5, 1.0)
    with open(sys.argv[-1], "a", encoding="utf-8") as file:
        file.write('{"measured": {"wha')
    os.kill(os.getpid(), signal.SIGKILL)


def out_of_memory(place):
    yield at_most("before", 0.5, 1.0)
    raise MemoryError


def exits(place):
    yield at_most("before", 0.5, 1.0)
    raise SystemExit(5)


def stops(place):
    yield at_most("before", 0.5, 1.0)
    os.kill(os.getpid(), signal.SIGSTOP)


def thread_stays(place):
    threading.Thread(target=time.sleep, args=(600,)).start()
    yield at_most("before", 0.5, 1.0)


def closes_its_output(place):
    os.close(1)
    os.close(2)
    yield at_most("gap", 0.5, 1.0)


def deletes_its_folder(place):
    os.chdir(place.folder)
    shutil.rmtree(place.folder)
    yield at_most("gap", 0.5, 1.0)


def floods(place):
    for number in range(50_000):
        yield figure(f"number {number}", number)


def no_utf8(place):
    os.write(1, b"\xff\xfe\x00 bytes\n")
    print("\ud800".encode("utf-8", "surrogatepass"))
    raise ValueError("\ud800 caf\u00e9")
