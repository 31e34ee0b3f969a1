"""A part that fails, crashes, hangs or leaves something behind costs only itself, and the result says it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
import odd_parts

from embodied.runtime.apart.left import LABEL
from embodied.selftest import page, record, running
from embodied.selftest.parts import PARTS, Part
from embodied.selftest.running import Runner
from embodied.tools import selftest

ALONE = ("embodied", "selftest", "--parts")


def part(name: str, limit_s: float = 60.0) -> Part:
    return Part(name, f"what {name} is", limit_s, f"odd_parts:{name}")


def run(*names: str, limit_s: float = 60.0, minutes: float = 10.0):
    found = []
    Runner("cpu", minutes, ALONE).run_all([part(name, limit_s) for name in names], found.append)
    return found


def one(name: str, **keys):
    (found,) = run(name, **keys)
    return found


def with_label() -> list[int]:
    """Processes that carry the label of any part."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{LABEL}=".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_a_part_that_holds_is_passed():
    found = one("good")
    assert (found.status, found.reason, found.tail, found.left) == ("passed", "", "", 0)
    assert [(m.what, m.found, m.holds) for m in found.measured] == [("gap", 0.5, True), ("device", "cpu", True)]
    assert found.command == "embodied selftest --parts good"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raises", "it ended with status 1: ZeroDivisionError: no such thing"),
        ("refuses", "it is wrong; fix: mend it"),
        ("killed", "it was killed by SIGKILL"),
        ("aborts", "it was killed by SIGABRT"),
        ("leaves_early", "its process ended with status 0 before the part came to its end"),
        ("writes_rubbish", 'it wrote what is no result: {"measured": {"what": 3}}'),
        ("cut_off", "it was killed by SIGKILL"),
        ("out_of_memory", "it ended with status 1: MemoryError"),
        ("exits", "it ended with status 5"),
    ],
)
def test_what_was_measured_before_is_kept_and_the_reason_is_said(name, reason):
    found = one(name)
    assert (found.status, found.reason) == ("failed", reason)
    assert [(m.what, m.found) for m in found.measured] == [("before", 0.5)]


def test_the_end_of_what_it_printed_is_text_without_signs_of_a_terminal():
    found = one("raises")
    assert "red <script>alert(1)</script>" in found.tail
    assert found.tail.endswith("ZeroDivisionError: no such thing")
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", found.tail)


def test_a_part_that_hangs_is_ended_at_its_limit_and_the_others_run():
    began = time.monotonic()
    hung, good = run("hangs", "good", limit_s=4)
    assert time.monotonic() - began < 60
    assert (hung.status, hung.reason) == ("failed", "it did not end within 4 s")
    assert [m.what for m in hung.measured] == ["before"]
    assert good.status == "passed"
    assert not with_label()


@pytest.mark.parametrize("name", ["stops", "thread_stays"])
def test_a_process_that_does_not_end_is_ended(name):
    found = one(name, limit_s=5)
    assert (found.status, found.reason) == ("failed", "it did not end within 5 s")
    assert [m.what for m in found.measured] == ["before"]
    assert not with_label()


@pytest.mark.parametrize("name", ["closes_its_output", "deletes_its_folder"])
def test_what_a_part_does_to_its_own_files_is_no_fault(name):
    assert one(name).status == "passed"


def test_a_flood_of_results_is_cut(monkeypatch):
    monkeypatch.setattr(running, "MOST_SAID", 50_000)
    found = one("floods")
    assert (found.status, found.reason) == ("failed", "it wrote what is no result: more than 50,000 bytes")
    assert 100 < len(found.measured) < 1000


def test_output_that_is_no_text_is_shown_as_far_as_it_is():
    found = one("no_utf8")
    assert found.status == "failed"
    assert "bytes" in found.tail
    record.as_text({"tail": found.tail}).encode("utf-8")


def test_megabytes_are_not_kept(monkeypatch):
    monkeypatch.setattr(running, "MOST_PRINTED", 2 * 2**20)
    most, shorten = [0], running._shorten
    monkeypatch.setattr(running, "_shorten", lambda log: (most.append(log.stat().st_size), shorten(log)))
    found, failed = run("prints", "prints_and_fails")
    assert found.status == "passed"
    assert len(most) > 2, "it was cut several times"
    assert max(most) < odd_parts.MEGABYTES * 2**20 / 2
    assert len(failed.tail) <= running.TAIL
    assert failed.tail.endswith("ZeroDivisionError: no such thing")
    assert "the last line" in failed.tail


def test_what_a_part_leaves_behind_is_ended_and_counted():
    found = one("forks")
    assert found.status == "passed"
    assert found.left in (2, 3), "the one in its group is ended with it, and may take a moment"
    assert not with_label()


def test_numbers_that_are_not_finite_never_hold():
    found = one("nan")
    assert (found.status, found.reason) == ("failed", "3 of 4 do not hold")
    assert [(m.found, m.holds) for m in found.measured] == [("nan", False), ("inf", False), (0, False), (0.5, True)]


@pytest.mark.parametrize("name", ["no_number", "numpy_number"])
def test_what_is_no_plain_number_fails(name):
    assert one(name).status == "failed"


def test_what_cannot_be_run_here_is_not_run():
    not_here, skipped, nothing = run("not_here", "all_skipped", "nothing")
    assert (not_here.status, not_here.reason) == ("not run", "there is none of these here")
    assert (skipped.status, skipped.reason) == ("not run", "one: it is not there")
    assert (nothing.status, nothing.reason) == ("failed", "it measured nothing")


def test_the_time_of_all_is_kept():
    began = time.monotonic()
    hung, late = run("hangs", "good", minutes=5 / 60)
    assert time.monotonic() - began < 60
    assert (hung.status, hung.reason[:13]) == ("not run", "no time left:")
    assert (late.status, late.reason) == ("not run", "no time left of 0.0833333 minutes")


def test_a_part_that_cannot_be_started_fails(monkeypatch):
    def full(*args, **keys):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(running.tempfile, "TemporaryDirectory", full)
    found = one("good")
    assert (found.status, found.reason) == ("failed", "it could not be run: [Errno 28] No space left on device")


def test_the_names_of_parts_are_those_of_their_files():
    folder = Path(running.__file__).with_name("parts")
    assert {*PARTS} == {path.stem for path in folder.glob("[!_]*.py")}
    assert sum(one.limit_s for one in PARTS.values()) < 2 * 20 * 60


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def parts(monkeypatch):
    """Parts that go wrong in the place of the real ones."""
    names = ("good", "raises", "killed", "nan", "not_here")
    odd = {name: part(name) for name in names}
    monkeypatch.setattr(selftest, "PARTS", odd)
    monkeypatch.setattr(record, "PARTS", odd)
    return odd


def test_the_record_and_the_page_say_all(parts, tmp_path, capsys):
    assert selftest.main(["--device", "cpu", "--out", str(tmp_path / "a" / "b")]) == 1
    found = json.loads((tmp_path / "a" / "b" / "selftest.json").read_text(encoding="utf-8"))
    assert (found["status"], found["ended"]) == ("failed", "complete")
    assert found["counts"] == {"passed": 1, "failed": 3, "not run": 1}
    assert [(one["name"], one["status"]) for one in found["parts"]] == [
        ("good", "passed"), ("raises", "failed"), ("killed", "failed"), ("nan", "failed"), ("not_here", "not run"),
    ]  # fmt: skip
    assert found["machine"].keys() >= {"python", "torch", "CUDA of torch", "date", "commit", "packages", "embodied"}
    alone = f"embodied selftest --gpu --device cpu --out {tmp_path / 'a' / 'b' / 'alone'} --parts"
    assert found["parts"][1]["command"] == f"{alone} raises"
    text = (tmp_path / "a" / "b" / "selftest.html").read_text(encoding="utf-8")
    assert "<script" not in text
    assert "http" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    for said in ("it was killed by SIGKILL", "there is none of these here", "ZeroDivisionError", "--parts killed"):
        assert said in text
    shown = capsys.readouterr().out
    assert "WRONG NaN: nan nats (allowed: at most 1)" in shown
    assert f"alone: {alone} killed" in shown
    assert "complete: 1 passed, 3 failed, 1 not run" in shown


def test_some_parts_alone_in_their_order(parts, tmp_path):
    assert selftest.main(["--parts", "not_here,good", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "selftest.json").read_text(encoding="utf-8"))
    assert [one["name"] for one in found["parts"]] == ["good", "not_here"]
    assert found["asked"] == {"device": "cpu", "minutes": 20.0, "parts": ["good", "not_here"]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--parts", "nubmers"], "numbers"),
        (["--parts", ","], "--parts names no part"),
        (["--parts", ""], "--parts names no part"),
        (["--minutes", "0"], "--minutes is 0"),
        (["--minutes", "nan"], "--minutes is nan"),
        (["--minutes", "-3"], "--minutes is -3"),
        (["--device", "gpu"], "--device is gpu, expected cpu, cuda or cuda:1"),
        (["--minutes", "0.5"], "--minutes is 0.5, expected 1 or more"),
        (["--device", "cuda:01"], "--device is cuda:01"),
        (["--device", "cuda:\u0663"], "--device is cuda:"),
        (["--device", "cuda:x"], "--device is cuda:x"),
        (["--device", ""], "--device is , expected"),
        (["--vllm-python", "no/such/python"], "--vllm-python is 'no/such/python', which is no program"),
        (["--vllm-python", ""], "--vllm-python is ''"),
        (["--vllm-python", "/etc"], "--vllm-python is '/etc'"),
    ],
)
def test_wrong_usage(arguments, said, tmp_path, capsys):
    assert selftest.main([*arguments, "--out", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [["--minutes", "soon"], ["--part"], ["numbers"], ["--minutes"]])
def test_wrong_words(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        selftest.main(arguments)
    assert end.value.code == 2


def test_without_a_gpu_it_says_what_to_do_and_asks_no_torch(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(selftest.machine, "SIGNS", (str(tmp_path / "none"),))
    monkeypatch.setattr(Runner, "run", lambda *given: pytest.fail("a process was started"))
    for asked in (["--gpu"], ["--device", "cuda"], ["--gpu", "--device", "cuda:1"]):
        assert selftest.main([*asked, "--out", str(tmp_path / "out")]) == 2
        assert "no driver shows a GPU" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "device", ["nvidia0", "nvidia3", "nvidiactl", "nvmap", "kfd", "dxg"],
)  # fmt: skip
def test_any_device_of_a_driver_shows_a_gpu(device, tmp_path, monkeypatch):
    here = [sign.replace("/dev/", f"{tmp_path}/") for sign in selftest.machine.SIGNS if sign.startswith("/dev/")]
    monkeypatch.setattr(selftest.machine, "SIGNS", here)
    (tmp_path / "nvidia-modeset").touch()
    assert not selftest.machine.shows_gpu()
    (tmp_path / device).touch()
    assert selftest.machine.shows_gpu()


def test_a_part_repeated_alone_leaves_the_results_of_all(parts, tmp_path):
    assert selftest.main(["--out", str(tmp_path), "--parts", "good,nan"]) == 1
    before = (tmp_path / "selftest.json").read_bytes()
    (failed,) = [one for one in json.loads(before)["parts"] if one["name"] == "nan"]
    assert selftest.main(shlex.split(failed["command"])[2:]) == 1
    assert (tmp_path / "selftest.json").read_bytes() == before
    assert (tmp_path / "alone" / "selftest.html").exists()


def test_a_part_is_alone_whatever_the_cluster_says_and_knows_the_python_of_vllm(parts, tmp_path, monkeypatch):
    for name, value in {"WORLD_SIZE": "8", "RANK": "3"}.items():
        monkeypatch.setenv(name, value)
    parts["alone_in_its_job"] = part("alone_in_its_job")
    arguments = ["--parts", "alone_in_its_job", "--vllm-python", sys.executable, "--out", str(tmp_path)]
    assert selftest.main(arguments) == 0
    (found,) = json.loads((tmp_path / "selftest.json").read_text(encoding="utf-8"))["parts"]
    assert found["measured"][1]["found"] == os.path.abspath(sys.executable)
    assert f"--vllm-python {os.path.abspath(sys.executable)}" in found["command"]


def test_a_gpu_that_torch_does_not_find_is_no_gpu(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(selftest.machine, "SIGNS", (str(tmp_path),))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert selftest.main(["--gpu", "--out", str(tmp_path / "out")]) == 2
    assert "finds no GPU" in capsys.readouterr().err


def test_a_torch_that_crashes_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(selftest, "MACHINE", part("raises"))
    assert selftest.main(["--out", str(tmp_path)]) == 2
    assert "ZeroDivisionError: no such thing" in capsys.readouterr().err
    found = json.loads((tmp_path / "selftest.json").read_text(encoding="utf-8"))
    assert (found["ended"], found["parts"]) == ("refused", [])


def test_a_folder_that_cannot_be_written_is_said_at_once(parts, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setattr(Runner, "run", lambda *given: pytest.fail("a process was started"))
    assert selftest.main(["--out", str(tmp_path / "file")]) == 2
    assert "name another folder: --out FOLDER" in capsys.readouterr().err


def test_a_disk_that_is_full_in_the_midst_ends_nothing(parts, tmp_path, monkeypatch, capsys):
    write, calls = record.write, [0]

    def full(file, text):
        calls[0] += 1
        if calls[0] in (2, 3):
            raise selftest.RunFolderError("cannot write: No space left on device", "name another folder: --out FOLDER")
        write(file, text)

    monkeypatch.setattr(record, "write", full)
    assert selftest.main(["--parts", "good,not_here", "--out", str(tmp_path)]) == 0
    assert len(json.loads((tmp_path / "selftest.json").read_text(encoding="utf-8"))["parts"]) == 2
    assert "No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all_and_writes_what_there_is(sent, tmp_path):
    code = (
        "import sys; sys.path.append(sys.argv.pop(1))\n"
        "from embodied.selftest import record\nfrom embodied.selftest.parts import Part\n"
        "from embodied.tools import selftest\n"
        "odd = {n: Part(n, n, 300, f'odd_parts:{n}') for n in ('good', 'hangs', 'nan')}\n"
        "selftest.PARTS = record.PARTS = odd\n"
        "sys.exit(selftest.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent), "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8", start_new_session=True)
    limit = threading.Timer(120, process.kill)
    limit.start()
    try:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("passed"):
            assert process.poll() is None
        while not with_label():
            time.sleep(0.05)
        os.kill(process.pid, sent)
        said = process.stdout.read()
        assert process.wait() == 128 + sent
    finally:
        limit.cancel()
        process.kill()
    assert "interrupted: 1 passed, 0 failed, 2 not run" in said
    found = json.loads((tmp_path / "selftest.json").read_text(encoding="utf-8"))
    assert found["ended"] == "interrupted"
    assert [(one["name"], one["status"], one["reason"]) for one in found["parts"]] == [
        ("good", "passed", ""), ("hangs", "not run", "it was interrupted"), ("nan", "not run", "it was interrupted"),
    ]  # fmt: skip
    assert "interrupted" in (tmp_path / "selftest.html").read_text(encoding="utf-8")
    assert not with_label()


def test_a_number_is_shown_for_a_person():
    assert page.number(0.1234567) == "0.1235"
