"""The report in headless Chromium: charts are drawn, videos play, filters filter, and the console stays silent. Served
while a run goes on, it is renewed and keeps the reader's place.

Chromium comes from the system (``apt-get install chromium``): playwright's own cannot play H.264.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from environments import python_with
from reported_runs import TASKS, video, write_run, write_trace

from embodied.tools import report

HERE = Path(__file__).parent
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(15, 18, 22)"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chromium() -> str:
    pytest.importorskip("vl_convert")
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium here (apt-get install chromium)")
    return found


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of an environment with playwright."""
    return Path(python_with(["playwright"], tmp_path_factory.mktemp("browser")))


def browsed(python: Path, chromium: str, file: Path) -> dict[str, Any]:
    command = [python, HERE / "browse.py", chromium, file.absolute(), file.parent.absolute()]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=400, check=False, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("several", [False, True], ids=["one run", "several runs"])
def test_it_works_in_a_browser(
    tmp_path: Path, python: Path, chromium: str, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recording = video(tmp_path)
    hostile = "'<img src=x onerror=alert(1)> \"}{{ datum.x }} ' + alert(1) + '"
    for name, seed in (("a.b[0]'\"", 1), ("b", 2), ("c", 3)):
        tasks = (*TASKS, hostile)
        write_trace(
            write_run(Path(name), iterations=200, evaluations=(0, 200), tasks=tasks, seed=seed, recording=recording)
        )
        shutil.copy(recording, Path("videos", name, "000200", "grid.mp4"))
    write_run(Path("d"), group_size=3, recording=recording)
    names = ["a.b[0]'\"", "b", "c", "d"] if several else ["a.b[0]'\""]
    assert report.main([*names, "--out", "page.html"]) == 0
    for name, found in browsed(python, chromium, tmp_path / "page.html").items():
        assert found["said"] == [], name
        assert set(found["asked"]) <= {"file", "data", "blob"}
        assert len(found["charts"]) >= 9
        assert all(found["charts"])
        assert all(found["names"])
        assert found["plays"] == [256, True, None]
        assert not found["too_wide"]
        assert found["paper"] == (DARK if name == "dark" else LIGHT)
        assert found["chosen"] == DARK  # the button: as the system, light, dark
        assert {outcome for _, outcome in found["all"]} == {"success", "failure"}
        assert {outcome for _, outcome in found["failures"]} == {"failure"}
        assert len({task for task, _ in found["failures"]}) == 3
        assert len({task for task, _ in found["of_a_task"]}) == 1
        assert found["count"].startswith(f"{len(found['of_a_task'])} of {len(found['of_a_task'])} videos shown")
        assert found["keys"].startswith("1 of ")
        assert found["focus"] == "content"
        assert found["grid"] == [256, None]
        assert found["any"]["caption"] == "train/entropy"
        assert len(found["any"]["numbers"].strip().splitlines()) == 26
        assert all(all(drawn) for drawn in found.get("unscrolled", {}).values())
        if "tab" in found:
            tab = found["tab"]
            assert tab["stops"] > 40
            assert (tab["missed"], tab["no ring"], tab["out of sight"], tab["in order"]) == ([], [], [], True)


def test_a_page_that_follows_a_run_keeps_the_readers_place(tmp_path: Path, python: Path, chromium: str) -> None:
    write_run(tmp_path / "run", iterations=40, evaluations=(0, 40))
    with subprocess.Popen(
        [sys.executable, "-m", "embodied.tools.watch", "run", "--port", "0"], cwd=tmp_path, text=True,
        stdout=subprocess.PIPE,
    encoding="utf-8") as server:  # fmt: skip
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split(": ")[-1].strip()
            metrics = tmp_path / "run" / "metrics.jsonl"
            with subprocess.Popen(
                [python, HERE / "browse_live.py", chromium, address, metrics], text=True, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            encoding="utf-8") as browser:  # fmt: skip
                try:
                    assert browser.stdin is not None
                    assert browser.stdout is not None
                    found = json.loads(browser.stdout.readline())
                    server.send_signal(signal.SIGINT)
                    assert server.wait(timeout=20) == 0
                    browser.stdin.write("\n")
                    browser.stdin.flush()
                    assert "its server has ended" in json.loads(browser.stdout.readline())
                finally:
                    browser.kill()
        finally:
            server.kill()
    first, second = found["pages"]
    assert 0 < first < second
    before, after = found["before"], found["after"]
    assert abs(before.pop("top") - after.pop("top")) <= 2
    assert before == after
    assert before["theme"] == "light"
    assert (before["search"], before["metric"]) == ("val_check_interval", "train/entropy")
    assert found["said"] == []
    assert all(url.startswith((address, "data:", "blob:")) for url in found["asked"])
