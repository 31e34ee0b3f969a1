"""Programs that are started, watched and ended, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from embodied.lib import child
from embodied.lib.child import Child, end_with_parent, how_it_ended, reap

LIMIT_S = 60.0
FAMILY = """
import os, signal, subprocess, sys, time
from pathlib import Path
folder, ignores = Path(sys.argv[1]), sys.argv[2] == "ignores"
if os.fork() == 0:
    if ignores:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (folder / "grandchild.part").write_text(str(os.getpid()), encoding='utf-8')
    (folder / "grandchild.part").rename(folder / "grandchild")
    time.sleep(600)
time.sleep(600)
"""
"""A program that has started another, which may ignore SIGTERM."""


def until(holds: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, "it never held"
        time.sleep(0.01)


def lives(pid: int) -> bool:
    """Whether a process runs: one that has ended and was not reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def family(folder: Path, ignores: bool = True) -> tuple[Child, int]:
    started = Child([sys.executable, "-c", FAMILY, str(folder), "ignores" if ignores else "listens"])
    until((folder / "grandchild").exists)
    return started, int((folder / "grandchild").read_text(encoding="utf-8"))


def test_a_grandchild_that_ignores_sigterm_ends_too(tmp_path):
    started, grandchild = family(tmp_path)
    began = time.monotonic()
    started.end(grace_s=LIMIT_S)
    assert time.monotonic() - began < LIMIT_S / 2, "it did not wait for the one that ignores it"
    assert started.returncode == -signal.SIGTERM
    until(lambda: not lives(grandchild), 5)


def test_what_ignores_sigterm_is_killed_after_its_grace():
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    started = Child([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert started.stdout is not None
    with started.stdout as printed:
        assert printed.readline() == b"ready\n"
    started.end(grace_s=0.3)
    assert started.returncode == -signal.SIGKILL


def test_a_grandchild_is_ended_also_after_its_parent(tmp_path):
    started, grandchild = family(tmp_path)
    os.kill(started.pid, signal.SIGKILL)
    assert started.wait(LIMIT_S) == -signal.SIGKILL
    assert lives(grandchild)
    started.end()
    until(lambda: not lives(grandchild), 5)


def test_a_pid_is_killed_once(monkeypatch):
    """When it was reaped others may get it."""
    sent = []
    monkeypatch.setattr(child.os, "killpg", lambda pid, number: sent.append(number) or os.kill(pid, number))
    started = Child(["sleep", "600"])
    started.end()
    started.kill()
    started.end()
    assert (sent, started.returncode) == ([signal.SIGKILL], -signal.SIGKILL)


def test_a_program_of_our_group_is_ended_alone(tmp_path):
    code = "import os, sys, time; print(os.getpgid(0), os.getsid(0), flush=True); time.sleep(600)"
    started = Child([sys.executable, "-c", code], session=False, stdout=subprocess.PIPE)
    assert started.stdout is not None
    with started.stdout as printed:
        assert printed.readline().split() == [str(os.getpgid(0)).encode(), str(os.getsid(0)).encode()]
    started.end()
    assert started.returncode == -signal.SIGKILL


PARENT = """
import sys, threading, time
from embodied.lib.child import Child
def start():
    global started
    death = {"none": None}.get(sys.argv[1], 9)
    started = Child(["sleep", "600"], death=death)
if sys.argv[2] == "thread":
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    time.sleep(0.3)
else:
    start()
print(started.pid, started.poll(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("place", ["main", "thread"])
@pytest.mark.parametrize("death", ["dies", "none"])
def test_a_parent_that_is_killed_leaves_no_child(death, place):
    """Nor does one end with the thread that has started it."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, death, place], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent.stdout as printed:
        pid, state = printed.readline().split()
    try:
        assert (state, lives(int(pid))) == (b"None", True)
        parent.kill()
        parent.wait()
        if death == "dies":
            until(lambda: not lives(int(pid)), 5)
        else:
            time.sleep(0.3)
            assert lives(int(pid))
    finally:
        parent.kill()
        if lives(int(pid)):
            os.kill(int(pid), signal.SIGKILL)


def test_programs_start_in_a_fork_of_a_process_whose_thread_starts_some():
    def in_thread() -> list[int]:
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(Child(["true"]).wait(LIMIT_S)))
        thread.start()
        thread.join(LIMIT_S)
        return codes

    assert in_thread() == [0]
    fork = os.fork()
    if fork == 0:
        os._exit(0 if in_thread() == [0] else 1)
    assert os.waitpid(fork, 0)[1] == 0


def test_of_megabytes_the_end_is_kept():
    code = "import sys; [print(n, 'x' * 100, file=sys.stderr) for n in range(50_000)]; sys.exit(3)"
    started = Child([sys.executable, "-c", code], kept="stderr")
    assert started.wait(LIMIT_S) == 3
    lines = started.lines()
    assert lines[-1] == f"49999 {'x' * 100}"
    assert sum(map(len, lines)) <= child.KEPT
    assert len(lines) > 100


def test_binary_output_is_shown_as_text():
    code = "import sys; sys.stdout.buffer.write(bytes(range(256)) + b'\\nlast \\xff word\\n')"
    started = Child([sys.executable, "-c", code], kept="stdout")
    assert started.wait(LIMIT_S) == 0
    assert started.lines()[-1] == "last � word"


def test_errors_join_what_is_kept():
    started = Child(["sh", "-c", "echo one; echo two >&2; echo three"], kept="stdout")
    started.wait(LIMIT_S)
    assert started.lines() == ["one", "two", "three"]
    alone = Child(["sh", "-c", "echo one; echo two >&2"], kept="stderr")
    alone.wait(LIMIT_S)
    assert alone.lines() == ["two"]


def test_one_that_closes_its_output_lives_on():
    code = "import os, time; os.write(2, b'last words'); os.close(1); os.close(2); time.sleep(600)"
    started = Child([sys.executable, "-c", code], kept="stderr")
    assert started._reader is not None
    started._reader.join(LIMIT_S)
    assert started.lines() == ["last words"]
    assert started.runs()
    started.end()
    assert not started.runs()


def test_a_grandchild_that_keeps_the_output_open_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(child, "DRAIN_S", 0.5)
    started = Child(["sh", "-c", "echo words >&2; sleep 600 & exit 4"], kept="stderr")
    assert started.wait(LIMIT_S) == 4
    began = time.monotonic()
    assert started.lines() == ["words"]
    assert time.monotonic() - began < 20
    started.end()


@pytest.mark.parametrize("death", [signal.SIGKILL, None])
def test_what_cannot_be_started_is_said_as_ever(tmp_path, death):
    """As without a death signal: the same exception, number and file."""
    script = tmp_path / "script"
    script.write_text("no program", encoding="utf-8")
    cases = {"no-such-program": FileNotFoundError, str(tmp_path): PermissionError, str(script): PermissionError}
    for name, kind in cases.items():
        with pytest.raises(kind) as raised:
            Child([name], death=death)
        assert raised.value.filename == name
    script.chmod(0o755)
    with pytest.raises(OSError, match=r"^\[Errno 8\] Exec format error: "):
        Child([str(script)], death=death)
    with pytest.raises(FileNotFoundError, match="gone"):
        Child(["true"], death=death, cwd=tmp_path / "gone")


def children() -> set[str]:
    """Process ids of this process's children; tests that ran here before may have left some of theirs."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split())


def test_a_program_that_was_not_started_leaves_nothing(tmp_path):
    before, raised, others = set(os.listdir("/proc/self/fd")), [], children()
    for _ in range(3):
        with pytest.raises(FileNotFoundError) as each:
            Child(["no-such-program"], kept="stderr", stdin=subprocess.PIPE)
        raised.append(each.value)  # its frames keep all that nobody has closed
    assert set(os.listdir("/proc/self/fd")) == before
    assert children() <= others


FACTS = "env | sort; grep SigIgn /proc/self/status; pwd; ls /proc/self/fd"
"""In a shell: Python would change its environment and signals by itself."""


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_a_program_finds_what_it_would_without_a_death_signal(tmp_path, locale):
    """Environment, ignored signals, folder and descriptors: nothing is left of what asks for the signal."""
    variables = {"PATH": "/usr/bin:/bin", "LC_ALL": "", "LANG": locale, "ODD": "a=b\nc", "PYTHONPATH": "/nowhere"}
    facts = []
    for death in (signal.SIGKILL, None):
        started = Child(["sh", "-c", FACTS], death=death, stdout=subprocess.PIPE, env=variables, cwd=tmp_path)
        facts.append(started.communicate(timeout=LIMIT_S)[0])
    assert facts[0] == facts[1]
    assert f"LANG={locale}\n".encode() in facts[0]
    plain = subprocess.run(["grep", "SigIgn", "/proc/self/status"], capture_output=True, check=True)
    assert plain.stdout in facts[0], "it ignores what any program ignores that is started here"


def test_a_session_and_a_priority_of_its_own():
    started = Child(["sleep", "600"], priority=7)
    assert os.getsid(started.pid) == os.getpgid(started.pid) == started.pid
    assert os.getpriority(os.PRIO_PROCESS, started.pid) == 7
    started.end()


def test_an_interrupt_while_it_starts_leaves_no_process(monkeypatch):
    """As a stop signal that comes before the program has begun."""
    monkeypatch.setattr(child, "_EXEC", "import time; time.sleep(600)")
    others = children()
    before = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            Child(["true"])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert children() <= others


def test_several_are_reaped_within_one_time(monkeypatch):
    monkeypatch.setattr(child, "REAP_S", 2.0)
    stuck = [Child(["sleep", "600"]) for _ in range(8)]
    began = time.monotonic()
    reap(stuck)
    assert 2.0 <= time.monotonic() - began < 7 * 2.0
    for each in stuck:
        each.end()


def test_a_process_that_has_lost_its_parent_ends_at_once():
    fork = os.fork()
    if fork == 0:
        end_with_parent(parent=1 if os.getppid() != 1 else 2)
        os._exit(77)
    assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 1


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "ended with status 0"),
        (3, "ended with status 3"),
        (-11, "was killed by SIGSEGV"),
        (-40, "was killed by signal 40"),
    ],
)
def test_how_a_process_ended(code, text):
    assert how_it_ended(code) == text
    assert how_it_ended(code, "ended") == text.replace("killed", "ended")


def test_what_lives_on_keeps_its_end_in_a_file(tmp_path):
    """Nobody reads a pipe when its reader is gone; a program that writes to one then ends by SIGPIPE."""
    code = f"""
import sys, time
from embodied.lib.child import Child
talks = "import os, time; time.sleep(1); os.write(2, b'words'); open({str(tmp_path / "done")!r}, 'w')"
Child([sys.executable, "-c", talks], kept="stderr", death=None)
print("begun", flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent.stdout as printed:
        assert printed.readline() == b"begun\n"
    parent.kill()
    parent.wait()
    until((tmp_path / "done").exists)


@pytest.mark.parametrize("ends", ["by itself", "killed", "never began"])
def test_a_file_of_what_lives_on_is_read_and_closed(ends):
    before = set(os.listdir("/proc/self/fd"))
    if ends == "never began":
        with pytest.raises(FileNotFoundError):
            Child(["no-such-program"], kept="stderr", death=None)
    else:
        loud = f"import sys, time; sys.stderr.write('x' * 10 + chr(10) + 'y' * {2 * child.KEPT}); sys.stderr.flush()"
        more = "; time.sleep(600)" if ends == "killed" else ""
        started = Child([sys.executable, "-c", loud + more], kept="stderr", death=None)
        if ends == "killed":
            assert started._file is not None
            file = started._file
            until(lambda: os.fstat(file.fileno()).st_size > child.KEPT)
            started.end()
        started.wait(LIMIT_S)
        assert started.lines() == started.lines() == ["y" * child.KEPT]
    assert set(os.listdir("/proc/self/fd")) == before
