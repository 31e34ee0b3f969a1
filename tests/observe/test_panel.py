"""The panel of a run: what stands on a real terminal, that a stopped terminal stops nothing, and Ctrl-C."""

from __future__ import annotations

import fcntl
import io
import json
import math
import os
import pty
import re
import select
import sys
import termios
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from terminals import Screen, become_owner, run_on_terminal

from embodied.observe.terminal import screen as screens
from embodied.observe.terminal.console import PlainConsole, TerminalConsole, make_console
from embodied.observe.terminal.panel import Panel, sparkline, useful_samples_per_s
from embodied.run.folder.latest_files import earlier, newest_checkpoint, newest_video

CONFIG = Path(__file__).parents[1] / "config"
ROOT = Path(__file__).parents[2]
ROW = {
    "iteration": 3, "iterations": 10, "left_s": 7200.0, "rollout/success_rate": 0.25, "rollout/success_low": 0.1,
    "rollout/success_high": 0.5, "rollout/return_mean": 0.75, "rollout/env_steps_per_s": 812.4,
    "train/approx_kl": 0.0123, "train/clip_share": 0.034, "train/samples_per_s": 100.0, "time/train_s": 2.0,
    "train/records": 100, "time/iteration_s": 10.0, "time/policy_share": 0.4, "time/env_wait_share": 0.3,
    "memory/pss_gb": 1.5,
}  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_INTERACTIVE", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}.items():
        monkeypatch.setenv(name, value)
    return Terminal()


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([0, 1, 2, 7], "_.-@"),
        ([0.5, 0.5], "__"),
        ([1.0, math.nan, math.inf, 0.0], "@  _"),
        ([], ""),
        ([*range(48)], "".join(char * 3 for char in "_.-=+*#@")),
        ([math.nan] * 40 + [1.0] * 40, " " * 12 + "_" * 12),
        ([1e308, -1e308, 3.0, 4.0], "  _@"),
    ],
)
def test_a_sparkline_goes_from_the_lowest_to_the_highest(values, line):
    assert sparkline(values, ascii_only=True) == line


def test_a_row_is_what_was_measured_and_nothing_else():
    panel = Panel("run")
    assert dict(panel.rows()) == {}
    panel.update(ROW | {"rollout/success_rate": 0.0})
    panel.update(ROW)
    assert dict(panel.rows(ascii_only=True)) == {
        "success": "25.0 % (10.0 % to 50.0 %)   _@ 0.0 % to 25.0 %", "return": "0.75   __ 0.75 to 0.75",
        "KL": "0.0123   clip share 3.4 %", "speed": "812 env-steps/s   10 useful samples/s",
        "waits": "policy 40 %   env workers 30 %", "memory": "1.5 GB",
    }  # fmt: skip
    panel.update({"iteration": 4, "sft/loss": 0.5, "sft/samples_per_s": 30.0})
    assert dict(panel.rows()) == {"loss": "0.5", "speed": "30 samples/s"}


def test_the_noise_of_the_gradient_is_shown():
    panel = Panel("run")
    panel.update({"iteration": 1, "train/signal_to_noise": 0.3, "train/noise_scale_episodes": 213.3})
    assert dict(panel.rows())["gradient"] == "signal/noise 0.3   1 at 213 episodes"
    panel.update({"iteration": 2, "train/signal_to_noise": 0.0})
    assert dict(panel.rows())["gradient"] == "signal/noise 0"


def test_memory_is_shown_with_its_parts():
    panel = Panel("run")
    parts = {"memory/pss_policy_gb": 0.5, "memory/pss_template_gb": 0.3, "memory/pss_slots_gb": 0.7}
    panel.update(ROW | parts)
    assert dict(panel.rows())["memory"] == "1.5 GB   policy 0.5 GB   template 0.3 GB   slots 0.7 GB"


def test_a_language_run_has_tokens_and_no_env_steps():
    panel = Panel("run")
    panel.update(ROW | {"rollout/tokens_per_s": 4000.0})
    assert dict(panel.rows())["speed"] == "4000 tokens/s   10 useful samples/s"


def test_an_evaluation_stays_until_the_next():
    panel = Panel("run", rows=[{"step": 2, "eval/success_rate": 0.5}, {"step": 3, "rollout/success_rate": 0.0}])
    panel.update(ROW)
    rows = dict(panel.rows(ascii_only=True))
    assert rows["evaluation"] == "50.0 % after 2"
    assert "_@ 0.0 % to 25.0 %" in rows["success"], "the iterations before this process count"


def test_what_can_rise_leads_where_success_is_left_out_and_each_success_says_how_actions_were_drawn():
    panel = Panel("run", rows=[{"step": 0, "eval/success_rate": 0.5, "eval/sampled": 0.0}])
    panel.update(ROW | {"rollout/progress_mean": 0.3, "rollout/sampled": 1.0})
    assert [label for label, _ in panel.rows()][:4] == ["success", "evaluation", "return", "progress"]
    assert dict(panel.rows())["success"] == "25.0 % (10.0 % to 50.0 %), sampled"
    assert dict(panel.rows())["evaluation"] == "50.0 %, greedy after 0"
    panel.update({name: value for name, value in ROW.items() if "success" not in name} | {"rollout/progress_mean": 0.3})
    assert [label for label, _ in panel.rows()][:3] == ["return", "progress", "evaluation"]


def test_a_command_is_never_broken_into_lines(terminal):
    command = "    embodied play " + " ".join(f"key{number}=value" for number in range(12))
    with (console := make_console(terminal)).panel("my run", dict):
        console.say(f"to see one:\n{command}\n{'a sentence of words ' * 8}")
    assert f"{command}\n" in terminal.getvalue()
    assert "\na sentence of words" in terminal.getvalue().split(command)[1], "other text is broken at the width"


def test_useful_samples_are_a_second_of_the_whole_iteration():
    assert useful_samples_per_s(ROW) == pytest.approx(100 / 10), "two epochs went over 100 records"
    assert useful_samples_per_s({"train/samples_per_s": 50.0}) is None


def test_the_panel_stands_below_the_text_and_is_gone_at_the_end(terminal):
    console = make_console(terminal)
    with console.panel("my run", dict):
        console.iteration(ROW)
        with console.progress("rollout", 4) as bar:
            bar.advance(2)
            print("a library speaks")
            time.sleep(screens.DRAW_S + 0.3)
            during = Screen()
            during.take(terminal.getvalue().replace("\n", "\r\n"))
    lines = [line for line in during.text.splitlines() if line]
    assert lines[0].startswith("iteration 3/10  success 25.0 %")
    assert lines[lines.index("a library speaks") + 1].startswith("╭─ my run · iteration 3/10 done · about 2.0 h left ─")
    assert lines[-1].startswith("rollout")
    assert "2/4" in lines[-1]
    after = Screen()
    after.take(terminal.getvalue().replace("\n", "\r\n"))
    assert "my run" not in after.text
    assert "a library speaks" in after.text
    assert after.cursor
    assert not isinstance(sys.stdout, Terminal)


def test_colours_are_left_out_where_they_are_not_wanted(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    console = make_console(terminal)
    with console.panel("my run", dict), console.progress("rollout", 4):
        console.iteration(ROW)
    assert "my run" in terminal.getvalue()
    assert not re.search(r"\x1b\[[0-9;]*(3|4)[0-9][0-9;]*m", terminal.getvalue())


@pytest.mark.parametrize("kind", ["dumb", "unknown"])
def test_a_dumb_terminal_has_plain_lines(terminal, monkeypatch, kind):
    assert isinstance(make_console(terminal), TerminalConsole)
    monkeypatch.setenv("TERM", kind)
    console = make_console(terminal)
    assert isinstance(console, PlainConsole)
    with console.panel("my run", dict):
        console.iteration({"iteration": 3})
    assert terminal.getvalue() == "iteration 3\n"


@pytest.mark.parametrize("by_the_run", [False, True])
def test_what_cannot_be_drawn_is_said_once_and_stops_nothing(terminal, monkeypatch, by_the_run):
    def fail(*_args):
        if by_the_run == (threading.current_thread() is threading.main_thread()):
            raise RuntimeError("no such line")
        return []

    monkeypatch.setattr(Panel, "rows", fail)
    monkeypatch.setattr(screens, "DRAW_S", 0.01)
    console = make_console(terminal)
    with console.panel("my run", dict):
        for iteration in range(5):
            console.iteration(ROW | {"iteration": iteration})
            time.sleep(0.05)
    assert terminal.getvalue().count("the panel is not drawn any more: RuntimeError: no such line") == 1
    assert "iteration 4/10" in terminal.getvalue()


def test_a_run_goes_on_where_there_can_be_no_panel(terminal, monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("no threads")))
    console = make_console(terminal)
    with console.panel("my run", dict):
        console.iteration(ROW)
    assert "there is no panel: RuntimeError: no threads; the run goes on" in terminal.getvalue()
    assert "iteration 3/10" in terminal.getvalue()


def test_a_terminal_that_takes_no_text_holds_nothing_up(terminal, monkeypatch):
    monkeypatch.setattr(screens, "END_S", 0.1)
    ours, theirs = pty.openpty()  # nobody reads, so that it is full after some kilobytes
    stream = os.fdopen(theirs, "w", encoding="utf-8")
    console, began = make_console(stream), time.monotonic()
    with console.panel("my run", dict):
        for _ in range(200):
            console.iteration(ROW)
        with console.progress("rollout", 4) as bar:
            bar.advance(1)
        took = time.monotonic() - began
    assert took < 5
    assert time.monotonic() - began - took < 2
    os.close(ours)
    with suppress(OSError):
        stream.close()


DRAWS = """
import signal, sys, threading
from embodied.observe.terminal.console import make_console
pressed = threading.Event()
signal.signal(signal.SIGINT, lambda *_: pressed.set())
console = make_console()
with console.panel("run", dict) if sys.argv[1] == "panel" else console.progress("phase"):
    for number in range(60):
        console.say(f"line {number:03d} " + 80 * "-")
    pressed.wait(60)
print("the end")
"""


@pytest.mark.parametrize("display", ["panel", "phase"])
def test_ctrl_c_drops_no_text_that_is_on_its_way(display):
    """A terminal drops all that it has not shown yet, unless it is told to keep it: here nobody has read a line."""
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        become_owner(theirs)
        os.execve(sys.executable, [sys.executable, "-c", DRAWS, display], environment)
    until = time.monotonic() + 60
    while waiting_bytes(ours) < 4000 and time.monotonic() < until:  # of 4095 that the reader's side takes
        time.sleep(0.05)
    time.sleep(0.2)  # the rest stands in the terminal
    assert termios.tcgetattr(theirs) != before
    os.write(ours, b"\x03")
    text = b""
    while b"the end" not in text and select.select([ours], [], [], 60)[0]:
        text += os.read(ours, 1 << 16)
    os.waitpid(pid, 0)
    assert re.findall(rb"line (\d+)", text) == [b"%03d" % number for number in range(60)]
    assert b"^C" not in text
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


def waiting_bytes(terminal: int) -> int:
    return int.from_bytes(fcntl.ioctl(terminal, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_a_process_in_the_background_leaves_the_terminal_alone(terminal):
    """It would be stopped by the shell when it changes a setting."""
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    with os.fdopen(theirs, "w", encoding="utf-8") as stream, make_console(stream).panel("run", dict):
        assert termios.tcgetattr(theirs) == before
    os.close(ours)


def test_the_newest_files_are_whole_ones(tmp_path):
    assert newest_checkpoint(tmp_path / "checkpoints") is newest_video({tmp_path / "videos"}) is None
    for name, whole in (("000002", True), ("000010", True), ("000010+3", True), ("000012", False)):
        folder = tmp_path / "checkpoints" / name
        folder.mkdir(parents=True)
        if whole:
            (folder / "meta.json").touch()
    assert newest_checkpoint(tmp_path / "checkpoints") == tmp_path / "checkpoints" / "000010+3"
    for age, name in enumerate(("000009/.c.part.mp4", "000009/b.mp4", "000009/a.mp4", "000003/z.mp4")):
        file = tmp_path / "videos" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        os.utime(file, (1000 - age, 1000 - age))
        os.utime(file.parent, (1000 - age, 1000 - age))
    os.utime(tmp_path / "videos" / "000009", (1000, 1000))
    assert newest_video({tmp_path / "videos"}) == tmp_path / "videos" / "000009" / "b.mp4"


@pytest.mark.parametrize(("age", "said"), [(0, "now"), (300, "5 min ago"), (7200, "2.0 h ago"), (-30, "now")])
def test_a_file_has_its_age(tmp_path, age, said):
    """Of a clock that was put back a file is new."""
    file = tmp_path / "a.mp4"
    file.touch()
    os.utime(file, (time.time() - age,) * 2)
    panel = Panel("run")
    panel.set_files({"video": file})
    assert dict(panel.rows(width=200))["video"].endswith(f"a.mp4, {said}")


def test_the_disk_is_looked_at_at_once_and_then_now_and_then(terminal, monkeypatch, tmp_path):
    """Much more seldom than the panel is drawn: a folder of videos is long, and the disk may be far away."""
    now, looks, drawn, outdated = [100.0], [], [], Panel.outdated
    monkeypatch.setattr(screens, "DRAW_S", 0.001)
    monkeypatch.setattr(screens, "SHARE", 1.0)
    monkeypatch.setattr(screens, "monotonic", lambda: now[0])
    monkeypatch.setattr(Panel, "outdated", lambda panel: (drawn.append(now[0]), outdated(panel)))

    def look():
        looks.append(now[0])
        return {"checkpoint": tmp_path / f"checkpoints/{len(looks):06d}"}

    console = make_console(terminal)
    with console.panel("my run", look):
        console.iteration(ROW)
        for seconds in (0.0, screens.LOOK_S - 0.1, 0.2, screens.LOOK_S + 0.1):
            now[0] += seconds
            before, patience = len(drawn), time.monotonic() + 30
            while len(drawn) < before + 10 and time.monotonic() < patience:
                time.sleep(0.001)
    assert looks == pytest.approx([100.0, 100.1 + screens.LOOK_S, 100.2 + 2 * screens.LOOK_S])
    assert len(drawn) >= 40
    assert "checkpoints/000002" in terminal.getvalue()


def test_a_panel_that_grows_while_a_line_is_printed_leaves_nothing_behind(terminal, monkeypatch, tmp_path):
    """Rich has counted the panel's lines by then; the drawing thread is given half a second to draw more of them."""
    monkeypatch.setattr(screens, "DRAW_S", 0.001)
    monkeypatch.setattr(screens, "SHARE", 1.0)
    console = make_console(terminal)
    panels, make = [], Panel.__init__
    monkeypatch.setattr(Panel, "__init__", lambda panel, *given: (panels.append(panel), make(panel, *given))[0])

    class Slow:
        def __rich_console__(self, *given):
            panels[0].set_files({name: tmp_path / name for name in ("checkpoint", "video", "answers")})
            time.sleep(0.5)
            yield "a line\n"

    with console.panel("my run", dict):
        console.iteration(ROW)
        time.sleep(0.2)
        console._rich.print(Slow())
    shown = Screen()
    shown.take(terminal.getvalue())
    assert "a line" in shown.text
    assert "╭─ my run" not in shown.text


def test_a_long_name_loses_its_beginning(tmp_path):
    panel = Panel("run")
    panel.set_files({"checkpoint": Path("a" * 40, "checkpoints/000003")})
    assert dict(panel.rows(width=30)) == {"checkpoint": "…aaaaaaaaaa/checkpoints/000003"}
    assert dict(panel.rows())["checkpoint"] == "a" * 40 + "/checkpoints/000003"


def test_earlier_rows_are_those_of_whole_lines(tmp_path):
    assert earlier(tmp_path, 5) == []
    rows = [{"step": step, "rollout/success_rate": step / 10} for step in range(1, 8)]
    text = "".join(json.dumps(row) + "\n" for row in rows[:2]) + '{"step": 3, "roll\n\xff\n[1]\n' + json.dumps(rows[3])
    (tmp_path / "metrics.jsonl").write_text(text, encoding="latin-1")
    assert [row["step"] for row in earlier(tmp_path, 3)] == [1, 2]
    assert [row["step"] for row in earlier(tmp_path, 4)] == [1, 2, 4]
    assert earlier(tmp_path, 0) == []


def test_a_real_run_on_a_terminal_and_ctrl_c(tmp_path):
    command = [
        sys.executable, "-m", "embodied.train", "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu",
        "runner.max_epochs=500", "runner.save_interval=1", "algorithm.rollout_epoch=4", "runner.logger.report=false",
        "runner.val_check_interval=-1",
        "env.train.max_episode_steps=10", "env.train.reward_mode=dense", "env.num_workers=1",
        f"runner.output_dir={tmp_path}", "runner.experiment_name=run", "--config-dir", str(CONFIG),
    ]  # fmt: skip
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        environment.pop(name, None)
    ready = re.compile(r"run · iteration \d+/500 done · about .* left .*checkpoint  [^\n]*/\d{6}, .*╯", re.DOTALL)
    shown = run_on_terminal(command, environment, lambda seen: bool(ready.search(seen)))
    assert shown.seen, shown.output[-3000:]
    place = shown.seen.rindex("╭─ run · iteration")
    panel = shown.seen[place : shown.seen.index("╯", place)]
    done = int(re.search(r"iteration (\d+)/500 done", panel)[1])
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    row = rows[done - 1]
    low, high = (100 * row[f"rollout/success_{end}"] for end in ("low", "high"))
    assert f"success     {100 * row['rollout/success_rate']:.1f} % ({low:.1f} % to {high:.1f} %)" in panel
    assert f"{row['rollout/env_steps_per_s']:.0f} env-steps/s" in panel
    assert f"waits       policy {100 * row['time/policy_share']:.0f} %" in panel
    for label in ("return", "KL", "stages", "memory", "checkpoint"):
        assert f"│ {label} " in panel
    assert "video" not in panel, "there was none"
    # Ctrl-C: the run saves and ends, and the terminal is as it was.
    assert (shown.status, shown.sane, shown.screen.cursor) == (130, True, True)
    assert "SIGINT: stopping within" in shown.screen.text
    assert "\x1b[?25l" not in shown.output, "a run that is killed could not show the cursor again"
    assert "where things are" in shown.screen.text
    assert "╭─ run" not in shown.screen.text
