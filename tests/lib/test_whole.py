"""Files that are whole or not there, whenever the process that writes them ends."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from embodied.lib import whole
from embodied.lib.whole import left_aside, settle, sync_folder, write_whole

STEPS = ("write", "fsync", "replace", "fsync again", "done")
KILLED = """
import os, signal, sys
from pathlib import Path
from embodied.lib import whole
path, step = Path(sys.argv[1]), sys.argv[2]
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
def half(file):
    file.write(b"new")
    file.flush()
    die()
fsync, calls = os.fsync, []
def second(descriptor):
    calls.append(descriptor)
    return die() if len(calls) == 2 else fsync(descriptor)
if step == "fsync": os.fsync = die
if step == "replace": os.replace = die
if step == "fsync again": os.fsync = second
whole.write_whole(path, half if step == "write" else "new content")
die()
"""


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("was_there", [True, False])
def test_killed_between_any_two_steps(tmp_path, step, was_there):
    path = tmp_path / "file.json"
    if was_there:
        path.write_text("old content", encoding="utf-8")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path), step])
    assert killed.returncode == -9
    renamed = step in ("fsync again", "done")
    assert (path.read_text(encoding="utf-8") if path.exists() else None) == (
        "new content" if renamed else "old content" if was_there else None
    )
    write_whole(path, "next")
    assert [(file.name, file.read_text(encoding="utf-8")) for file in tmp_path.iterdir()] == [("file.json", "next")]


def test_what_is_written_is_on_the_disk_before_its_name(tmp_path, monkeypatch):
    steps = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor):
        steps.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def replaced(aside, path):
        steps.append(f"{aside.name} → {path.name}: {aside.read_text(encoding='utf-8')}")
        replace(aside, path)

    monkeypatch.setattr(whole.os, "fsync", synced)
    monkeypatch.setattr(whole.os, "replace", replaced)
    write_whole(tmp_path / "file", "whole")
    assert steps == [".file.part", ".file.part → file: whole", tmp_path.name]


@pytest.mark.parametrize("content", ["häuser\n", "häuser\n".encode(), lambda file: file.write("häuser\n".encode())])
def test_text_bytes_and_a_function(tmp_path, content):
    write_whole(tmp_path / "file", content)
    assert (tmp_path / "file").read_bytes() == "häuser\n".encode()


def test_text_that_is_none_in_utf8_touches_nothing(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "file", "\udc80")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
@pytest.mark.parametrize("shared", [True, False])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, step, number, shared):
    path = tmp_path / "file"
    path.write_text("old", encoding="utf-8")

    def full(*_):
        raise OSError(number, os.strerror(number))

    if step != "write":
        monkeypatch.setattr(whole.os, step, full)
    with pytest.raises(OSError, match=r"\[Errno") as raised:
        write_whole(path, full if step == "write" else "new", shared=shared)
    assert raised.value.errno == number
    assert [(file.name, file.read_text(encoding="utf-8")) for file in tmp_path.iterdir()] == [("file", "old")]


def test_a_disk_that_is_full(tmp_path):
    """On a file system of 64 KiB; where none can be mounted, in a name space of its own or not at all."""
    code = (
        "import os, sys; from pathlib import Path; from embodied.lib.whole import write_whole\n"
        "path = Path(sys.argv[1]) / 'file'; write_whole(path, 'old')\n"
        "try: write_whole(path, 'x' * 1_000_000)\n"
        "except OSError as error: print(error.errno, path.read_text(encoding='utf-8'), os.listdir(sys.argv[1]))"
    )
    mounted = f'mount -t tmpfs -o size=64k none "{tmp_path}" && exec "{sys.executable}" -c "$0" "{tmp_path}"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mounted, code], capture_output=True, text=True, encoding="utf-8"
    )
    if done.returncode and not done.stdout:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()[-200:]}")
    assert done.stdout.strip() == f"{errno.ENOSPC} old ['file']"


def test_a_folder_that_is_gone(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "gone" / "file", "new")
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(NotADirectoryError):
        write_whole(tmp_path / "file" / "file", "new")


def test_a_folder_that_goes_while_it_is_written(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()

    def removes(file):
        file.write(b"new")
        os.rename(folder, tmp_path / "other")

    with pytest.raises(FileNotFoundError):
        write_whole(folder / "file", removes)
    assert not folder.exists()
    assert not (tmp_path / "other" / "file").exists()


def test_a_file_that_may_only_be_read_is_replaced(tmp_path):
    path = tmp_path / "file"
    path.write_text("old", encoding="utf-8")
    path.chmod(0o444)
    write_whole(path, "new")
    assert path.read_text(encoding="utf-8") == "new"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_only_be_read(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(PermissionError):
        write_whole(tmp_path / "file", "new")
    tmp_path.chmod(0o755)


def test_a_target_that_is_a_folder_stays(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "file", "new")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_link_is_replaced_and_its_target_stays(tmp_path):
    (tmp_path / "elsewhere").write_text("of others", encoding="utf-8")
    (tmp_path / "file").symlink_to("elsewhere")
    write_whole(tmp_path / "file", "new")
    assert not (tmp_path / "file").is_symlink()
    assert ((tmp_path / "file").read_text(encoding="utf-8"), (tmp_path / "elsewhere").read_text(encoding="utf-8")) == (
        "new",
        "of others",
    )


def test_a_link_under_the_name_aside_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_text("of others", encoding="utf-8")
    (tmp_path / ".file.part").symlink_to("elsewhere")
    write_whole(tmp_path / "file", "new")
    assert (tmp_path / "elsewhere").read_text(encoding="utf-8") == "of others"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["elsewhere", "file"]


@pytest.mark.parametrize(("umask", "mode", "found"), [(0o022, 0o666, 0o644), (0o077, 0o666, 0o600), (0, 0o600, 0o600)])
def test_permissions_are_those_of_a_new_file(tmp_path, umask, mode, found):
    before = os.umask(umask)
    try:
        write_whole(tmp_path / "file", "new", mode=mode)
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == found


def test_many_who_write_the_same_leave_one_whole(tmp_path):
    contents, failed = [f"{number}" * 100_000 for number in range(8)], []

    def write(content):
        try:
            for _ in range(20):
                write_whole(tmp_path / "file", content, shared=True)
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert not (tmp_path / "file").exists() or (tmp_path / "file").read_text(encoding="utf-8") in contents
    assert not failed
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_processes_of_two_machines_with_equal_ids_leave_one_whole(tmp_path):
    def slowly(file):
        file.write(b"first")
        write_whole(tmp_path / "file", "second", shared=True)
        file.write(b" and whole")

    write_whole(tmp_path / "file", slowly, shared=True)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "first and whole"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_what_a_process_left_aside_is_its_own(tmp_path):
    path, seen = tmp_path / "a[1].html", []

    def half(file):
        (tmp_path / f".a[1].html.{os.getpid()}0-0a1b2c3d.part").touch()  # of another process
        seen.extend(left_aside(path, os.getpid()))
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        write_whole(path, half, shared=True)
    (left,) = seen
    assert left.parent == tmp_path
    assert left_aside(path, os.getpid()) == []


def test_a_file_system_that_cannot_sync_is_no_error_and_a_broken_disk_is(tmp_path, monkeypatch):
    def fails(number):
        def fsync(descriptor):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(whole.os, "fsync", fsync)

    for number in (errno.EINVAL, errno.ENOTSUP):
        fails(number)
        write_whole(tmp_path / "file", "new")
    fails(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(tmp_path)


def test_a_file_that_a_program_has_written_gets_its_name(tmp_path):
    (tmp_path / ".a.part.mp4").write_text("video", encoding="utf-8")
    settle(tmp_path / ".a.part.mp4", tmp_path / "a.mp4")
    assert [(file.name, file.read_text(encoding="utf-8")) for file in tmp_path.iterdir()] == [("a.mp4", "video")]
