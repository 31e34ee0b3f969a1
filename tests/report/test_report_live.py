"""``embodied watch``: a real server beside a run that grows, asked by friends and by others."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from reported_runs import write_run

from embodied.report import live
from embodied.tools import watch

pytest.importorskip("vl_convert")

ROOT = Path(__file__).parents[2]
SOON = (
    "import sys; from embodied.report import live; live.EVERY_S = 0.2; from embodied.cli import main; sys.exit(main())"
)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int, Path, str]]:
    """A server's process, its port, the run's folder, and what it said."""
    run = write_run(tmp_path / "runs" / "A")
    (tmp_path / "aside").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "aside")}
    command = [sys.executable, "-c", SOON, "watch", str(run)]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8"
    )
    try:
        assert process.stdout is not None
        said = "".join(process.stdout.readline() for _ in range(3))
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", said)
        assert found, said
        yield process, int(found[1]), run, said
    finally:
        process.kill()
        process.communicate()


def ask(port: int, path: str = "/", host: str | None = None, method: str = "GET") -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
    connection.close()
    return found


def newest(port: int) -> dict[str, Any]:
    return json.loads(ask(port, "/newest")[2])


def stays(port: int, answer: dict[str, Any]) -> bool:
    """Whether the answer is the same for longer than a report takes, while somebody looks."""
    return all(newest(port) == answer for _ in range(12) if time.sleep(0.1) is None)


def until(holds: Callable[[], bool], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_page_follows_its_run_and_ctrl_c_ends_it(served, tmp_path):
    process, port, run, said = served
    assert re.search(rf"^from another machine: ssh -L {port}:127\.0\.0\.1:{port} \S+, and open", said, re.MULTILINE)
    assert "The report is being written." in ask(port)[2]
    until(lambda: newest(port)["page"] == 1)
    status, headers, page = ask(port)
    assert (status, headers["cache-control"], headers["x-frame-options"]) == (200, "no-store", "DENY")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert policy[1].startswith("default-src 'none'; ")
    assert "; connect-src 'self'; " in policy[1]
    assert page.count("connect-src") == 1
    assert '<script data-page="1">' in page
    assert "6 of 6" in page
    assert not (run / "report.html").exists(), "the run's own folder stays as it is"

    assert stays(port, {"page": 1, "problem": ""}), "nothing has changed"
    rows = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(json.loads(rows[-1]) | {"step": 7}) + "\n")
    until(lambda: newest(port)["page"] == 2)
    assert "7 of 6" in ask(port)[2]
    (run / "report.html").write_text("the run's own report is no change", encoding="utf-8")
    assert stays(port, {"page": 2, "problem": ""})

    # Others.
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost@evil.example", ""):
        for path in ("/", "/newest"):
            status, _, text = ask(port, path, host)
            assert (status, "7 of 6" in text, "page" in text.replace("this page", "")) == (403, False, False), host
    for host in ("localhost", "localhost:1234", "127.0.0.1", "[::1]:80"):
        assert ask(port, "/newest", host)[0] == 200
    assert ask(port, "/../config.yaml")[0] == ask(port, "/config.yaml")[0] == 404
    assert ask(port, method="POST")[0] == 501
    assert ask(port, method="HEAD")[2] == ""
    with pytest.raises(ConnectionRefusedError):  # which a server on all addresses would take
        socket.create_connection(("127.0.0.2", port), 2)

    # Ctrl-C, while the next page is being written.
    with (run / "starts.jsonl").open("a", encoding="utf-8") as file:
        file.write("{}\n")
    newest(port)
    time.sleep(0.3)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert time.monotonic() - began < 30
    assert process.stdout.read() == ""
    assert [*(tmp_path / "aside").iterdir()] == []


def test_what_cannot_be_written_is_said_and_the_page_stays(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(live, "EVERY_S", 0.05)
    monkeypatch.setattr(live, "PROGRAM", (sys.executable, "-c", "import sys; sys.exit('no room')"))
    maker = live.Maker(["run"], [tmp_path], tmp_path, 30)
    try:
        for _ in range(2):
            maker.want()
            until(lambda: maker.problem == "no room")
        time.sleep(0.3)
        assert (maker.number, b"being written" in maker.page) == (0, True)
    finally:
        maker.close()
    assert capsys.readouterr().err == "the report was not written: no room\n"
    assert not maker._thread.is_alive()


def test_reports_keep_their_distance_and_wait_for_a_reader(tmp_path, monkeypatch):
    code = "import sys, pathlib; pathlib.Path(sys.argv[3]).write_text('<body></body>', encoding='utf-8')"
    monkeypatch.setattr(live, "EVERY_S", 0.6)
    monkeypatch.setattr(live, "PROGRAM", (sys.executable, "-c", code))
    grows = tmp_path / "metrics.jsonl"
    grows.write_text("1", encoding="utf-8")
    maker = live.Maker(["run"], [grows], tmp_path, 30)
    try:
        time.sleep(0.2)
        assert maker.number == 0, "nobody has looked"
        began = time.monotonic()
        while maker.number < 3:
            grows.write_text(str(time.monotonic_ns()), encoding="utf-8")
            maker.want()
            time.sleep(0.01)
        assert time.monotonic() - began > 2 * 0.6
    finally:
        maker.close()


def test_the_end_does_not_wait_for_a_report(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "PROGRAM", (sys.executable, "-c", "import time; time.sleep(600)"))
    maker = live.Maker(["run"], [tmp_path], tmp_path, 30)
    maker.want()
    until(lambda: maker._process is not None)
    process, began = maker._process, time.monotonic()
    maker.close()
    assert time.monotonic() - began < 60
    assert process.poll() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "error: "),
        (["run", "--port", "70000"], "fix: give another --port"),
        (["run", "--size", "0"], "--size is 0"),
    ],
)
def test_mistakes_are_said(tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run")
    assert watch.main(arguments) == 2
    assert said in capsys.readouterr().err


def test_a_port_that_is_taken_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert watch.main(["run", "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
