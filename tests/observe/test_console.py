"""The lines that a person reads."""

import io
import re
import time

import pytest

from embodied.observe.terminal.console import NullConsole, PlainConsole, TerminalConsole, make_console, summary_line
from embodied.observe.terminal.progress import Phase

SUMMARY = {
    "iteration": 3,
    "iterations": 100,
    "rollout/success_rate": 12 / 64,
    "rollout/episodes": 64,
    "rollout/return_mean": 0.9375,
    "rollout/zero_advantage_share": 0.5,
    "train/loss": -0.012345,
    "train/grad_norm": 1.5,
    "rollout/env_steps_per_s": 1234.5678,
    "time/iteration_s": 41.23,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_INTERACTIVE", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    return Terminal()


def test_a_summary_says_how_actions_were_drawn():
    drawn = SUMMARY | {"rollout/sampled": 1.0, "eval/success_rate": 0.5, "eval/sampled": 0.0}
    assert "  success 12/64 (18.8 %, sampled)  " in summary_line(drawn)
    assert "  eval success 50.0 %, greedy  " in summary_line(drawn)
    left_out = summary_line({name: value for name, value in SUMMARY.items() if name != "rollout/success_rate"})
    assert left_out.startswith("iteration 3/100  return 0.938")


def test_a_summary_has_everything_in_one_line():
    assert summary_line(SUMMARY) == (
        "iteration 3/100  success 12/64 (18.8 %)  return 0.938  zero-advantage 50 %  loss -0.0123  grad 1.5  "
        "1235 env-steps/s  41.2 s"
    )


def test_a_summary_of_texts_says_how_many_tokens_were_written():
    line = summary_line(SUMMARY | {"rollout/tokens_per_s": 4321.0})
    assert "  4321 tokens/s  41.2 s" in line
    assert "env-steps" not in line


def test_a_summary_leaves_out_what_it_does_not_have():
    assert summary_line({"iteration": 3, "train/loss": float("nan")}) == "iteration 3  loss nan"
    assert summary_line({"eval/success_rate": 0.25, "eval/episodes": 20}) == "eval success 5/20 (25.0 %)"
    assert summary_line({"rollout/success_rate": 0.25}) == "success 25.0 %"


def test_three_of_seven_is_counted_back_exactly():
    assert summary_line({"rollout/success_rate": 3 / 7, "rollout/episodes": 7}) == "success 3/7 (42.9 %)"


@pytest.mark.parametrize(
    ("value", "shown"), [(0.000012345, "1.23e-05"), (0.5, "0.5"), (99.96, "100"), (123456.7, "123457"), (3e7, "3e+07")]
)
def test_numbers_have_three_digits_or_all_of_their_integer_part(value, shown):
    assert summary_line({"train/loss": value}) == f"loss {shown}"


def test_plain_progress_is_one_line_at_the_end_and_one_now_and_then():
    now, out = [0.0], io.StringIO()
    with PlainConsole(out, clock=lambda: now[0]).progress("iteration 3/100 rollout", 64) as bar:
        for done in range(1, 65):
            now[0] += 0.625
            bar.advance(1, success=f"{done // 4}/{done}", env_steps_per_s=812.4)
    # 30 s are 48 episodes of 0.625 s; all 64 take 40 s.
    assert out.getvalue().splitlines() == [
        "iteration 3/100 rollout: 48/64  success 12/48  env steps per s 812  elapsed 30.0 s  about 10 s left",
        "iteration 3/100 rollout: 64/64  success 16/64  env steps per s 812  elapsed 40.0 s",
    ]


def test_a_phase_in_which_nothing_changes_is_not_silent():
    out = io.StringIO()
    with PlainConsole(out, interval_s=0.05).progress("iteration 3/100 update", 640, brief=True) as bar:
        bar.advance(160)
        time.sleep(0.4)
    shown = out.getvalue().splitlines()
    assert len(shown) >= 3
    assert all(
        re.fullmatch(r"iteration 3/100 update: 160/640  elapsed 0\.\d s  about 1 s left", line) for line in shown
    )


def test_only_the_innermost_phase_speaks():
    out = io.StringIO()
    console = PlainConsole(out, interval_s=0.05)
    with console.progress("evaluation", 10, brief=True), console.progress("starting 8 env workers", brief=True):
        begun = len(out.getvalue())  # a slow machine may have let the outer one speak before
        time.sleep(0.3)
        lines = out.getvalue()[begun:].splitlines()
    assert len(lines) >= 3
    assert {line.split(":")[0] for line in lines} == {"starting 8 env workers"}


def test_a_brief_phase_that_is_soon_over_says_nothing():
    out = io.StringIO()
    with PlainConsole(out).progress("saving", brief=True):
        pass
    assert out.getvalue() == ""


def test_a_phase_in_which_single_things_take_long_counts_finer():
    now, out = [0.0], io.StringIO()
    with PlainConsole(out, clock=lambda: now[0]).progress("rollout", 4, brief=True) as bar:
        now[0] = 40.0
        bar.at(0.1)
        assert (bar.share, bar.left_s) == (0.1, pytest.approx(360))
    assert out.getvalue().splitlines() == ["rollout: 0/4  elapsed 40.0 s  about 6 min left"] * 2


def test_what_was_there_before_does_not_count_as_speed():
    now = [0.0]
    phase = Phase("demonstrations", 100, clock=lambda: now[0], done=90)
    assert (phase.left_s, phase.left) == (None, "")
    now[0] = 10.0
    phase.advance(5)
    assert phase.left_s == pytest.approx(10)


def test_phases_within_phases_share_one_display(terminal):
    console = make_console(terminal)
    with console.progress("evaluation", 2) as outer:
        with console.progress("starting 8 env workers"):
            console.say("worker 3 is late")
        outer.advance(2)
    assert "starting 8 env workers" in terminal.getvalue()
    assert "2/2" in terminal.getvalue()


def test_plain_progress_says_how_far_it_came_when_it_failed():
    out = io.StringIO()

    def fail(bar):
        bar.advance(3)
        raise KeyError

    with pytest.raises(KeyError), PlainConsole(out, clock=lambda: 0.0).progress("rollout", 8) as bar:
        fail(bar)
    assert out.getvalue() == "rollout: 3/8  elapsed 0.0 s\n"


def test_plain_table_aligns_its_columns():
    out = io.StringIO()
    PlainConsole(out).table("worker", [("renderer", "egl", "first that works"), ("pid", 12), ("slots", 4, "x")])
    assert out.getvalue().splitlines() == [
        "worker",
        "  renderer  egl  first that works",
        "  pid       12",
        "  slots     4    x",
    ]
    PlainConsole(out).table("empty", [])
    assert out.getvalue().endswith("empty\n")


def test_what_is_said_is_text_and_not_markup(terminal):
    for console, out in ((PlainConsole(plain := io.StringIO()), plain), (TerminalConsole(terminal), terminal)):
        console.say("pick up [red]the bowl[/red] 12")
        assert "pick up [red]the bowl[/red] 12\n" in out.getvalue()


def test_a_terminal_gets_a_bar_that_vanishes_and_text_above_it(terminal):
    console = make_console(terminal)
    with console.progress("rollout [3]", 4) as bar:
        bar.advance(2, success="1/2")
        console.say("worker 7 restarted")
        bar.advance(2, env_steps_per_s=99.0)
    console.iteration(SUMMARY)
    console.table("facts", [("a", 1)])
    shown = terminal.getvalue()
    assert "rollout [3]" in shown
    assert "success 1/2  env steps per s 99" in shown
    assert "\x1b[2K" in shown  # lines of the bar are erased
    assert shown.index("worker 7 restarted") < shown.index("4/4")
    assert "success 12/64 (18.8 %)" in shown
    assert "facts" in shown


def test_the_display_follows_the_stream(terminal):
    assert isinstance(make_console(terminal), TerminalConsole)
    assert isinstance(make_console(io.StringIO()), PlainConsole)


def test_the_null_console_takes_everything_and_says_nothing(capsys):
    console = NullConsole()
    console.say("x")
    console.table("x", [("a", "b")])
    with console.progress("x", 3) as bar:
        bar.advance(1, success="1/1")
    console.iteration(SUMMARY)
    assert capsys.readouterr() == ("", "")
