"""What the launcher makes of what ranks tell: the first cause, restarts, exit statuses. No process is started."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from embodied.cluster import launch
from embodied.cluster.events import Ended, Event, HeadGone, Line, Lost, Note, Placed, Refused, as_line, event_of
from embodied.cluster.first_cause import cause_of
from embodied.cluster.launch import Job, Local, Watch
from embodied.errors import ClusterError, ConfigError, RankError

PLACED = Placed(["a (198.18.0.1)", "b (198.18.0.2)"], [2, 2])
LOST = Lost(1, "id-b", "it has not answered for 5 s")


class Told:
    """Ranks that tell what a test says."""

    def __init__(self, *events: Event) -> None:
        self.events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self.sent: list[dict[str, float]] = []
        for event in (PLACED, *events, None):
            self.events.put(event)

    def send(self, command: dict[str, float]) -> None:
        self.sent.append(command)

    def words(self) -> str:
        return "Fatal Python error"

    def close(self) -> None:
        pass


def watched(*events: Event, signals: Sequence[int] = ()) -> tuple[Watch, Told, list[str]]:
    told, said = Told(*events), list[str]()
    watch = Watch(told, 30.0, said.append)
    for number in signals:
        watch.signal(number)
    watch.run()
    return watch, told, said


@pytest.mark.parametrize("event", [Line(3, "ü"), Ended(1, -9, "m", "t"), LOST, PLACED, Refused("m", "r"), Note("n")])
def test_an_event_is_a_line(event):
    assert as_line(event).count("\n") == 1
    assert event_of(as_line(event)) == event


def test_the_first_that_fails_is_the_cause_and_ends_the_others(capsys):
    watch, told, _ = watched(Line(0, "one"), Ended(2, -9, "", "its last line"), Line(0, "two"), Ended(0, 1, "lost"))
    assert str(watch.cause.error()).startswith(
        "rank 2 on node b (198.18.0.2) was killed by SIGKILL, and the end of its log is:\nits last line\n  fix: "
    )
    assert told.sent == [{"end": launch.END_S}]
    assert capsys.readouterr().out == "one\n", "what others print after it stands nowhere"


def test_a_lost_node_is_named_with_its_ranks():
    watch, *_ = watched(LOST, Ended(0, 1, "", "connection reset"))
    assert watch.cause.text == "node b (198.18.0.2) with ranks 2 to 3 is lost: it has not answered for 5 s"
    assert watch.cause.node_id == "id-b"


def test_a_rank_s_own_error_and_fix_are_said_once():
    cause = cause_of(Ended(1, 2, "slots are 3\nand so on\n  fix: take 4"), PLACED)
    assert (
        str(cause.error())
        == "rank 1 on node a (198.18.0.1) ended with status 2:\nslots are 3\nand so on\n  fix: take 4"
    )
    assert not cause.again, "an explained error comes again"
    assert cause_of(Ended(1, 1, "Traceback …"), PLACED).again


def test_nodes_with_different_numbers_of_ranks_are_told_apart():
    placed = Placed(["a", "b", "c"], [2, 1, 3])
    assert launch._places(placed) == "ranks: a: rank 0-1, b: rank 2, c: rank 3-5"
    texts = [cause_of(Ended(rank, -9), placed).text for rank in (1, 2, 3)]
    assert [text.split(" was")[0] for text in texts] == ["rank 1 on node a", "rank 2 on node b", "rank 3 on node c"]
    lost = [cause_of(Lost(node, "id", "gone"), placed).text for node in range(3)]
    assert lost == ["node a with ranks 0 to 1 is lost: gone", "node b with rank 2 is lost: gone",
                    "node c with ranks 3 to 5 is lost: gone"]  # fmt: skip
    assert event_of(as_line(placed)) == placed


@pytest.mark.parametrize("status", [130, 143])
def test_ranks_that_were_stopped_are_no_failure(status):
    watch, told, _ = watched(*(Ended(rank, status) for rank in range(4)), signals=[signal.SIGTERM])
    assert (watch.cause, watch.status) == (None, status)
    assert told.sent == [{"signal": signal.SIGTERM}]


def test_a_signal_before_a_rank_can_answer_it_is_a_stop_as_well():
    watch, *_ = watched(Ended(0, -signal.SIGTERM), Ended(1, 143), signals=[signal.SIGTERM])
    assert (watch.cause, watch.status) == (None, 143)
    watch, *_ = watched(Ended(0, -signal.SIGTERM))
    assert "was killed by SIGTERM" in watch.cause.text, "nobody asked for it here"


def test_a_lost_head_is_said_once_and_its_nodes_are_no_cause():
    gone = HeadGone("198.18.0.1:6379")
    watch, _, said = watched(gone, gone, Ended(0, 143), LOST)
    assert [text for text in said if "head" in text] == ["the head (198.18.0.1:6379) is gone: the ranks save and end"]
    assert (watch.cause, watch.status) == (None, 143)


def test_ranks_that_do_not_end_after_the_first_are_killed(monkeypatch):
    monkeypatch.setattr(launch, "LOOKED_S", 0.01)
    monkeypatch.setattr(launch, "END_S", 0.0)
    told = Told()
    told.events = queue.SimpleQueue()
    for event in (PLACED, Ended(0, -9)):
        told.events.put(event)
    watch = Watch(told, 30.0, lambda text: None)
    send = told.send

    def sent(command: dict[str, float]) -> None:
        send(command)
        if len(told.sent) == 2:
            told.events.put(None)

    told.send = sent  # type: ignore[method-assign]
    watch.run()
    assert told.sent == [{"end": 0.0}, {"end": 0.0}]


def test_ranks_that_nobody_sees_any_more_are_a_failure_with_ray_s_words():
    with pytest.raises(ClusterError, match="Ray has failed, and these are its last words:\nFatal Python error"):
        watched(Ended(0, 0))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_anything_is_placed_is_a_stop(number):
    told = Told()
    told.events = queue.SimpleQueue()
    told.events.put(None)
    watch = Watch(told, 30.0, lambda text: None)
    watch.signal(number)
    watch.run()
    assert watch.status == 128 + number


class Slow(int):
    """Lets other threads go on while it is counted down."""

    def __sub__(self, other: int) -> Slow:
        time.sleep(0.001)
        return Slow(int(self) - other)


def test_ranks_of_a_machine_that_end_at_the_same_time_end_the_events_once():
    local = Local.__new__(Local)
    local.events, local._left, local._lock = queue.SimpleQueue(), Slow(20), threading.Lock()
    threads = [threading.Thread(target=local._tell, args=(Ended(rank, 0),)) for rank in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [local.events.get_nowait() for _ in range(local.events.qsize())]
    assert (len(found), found.count(None), found[-1]) == (21, 1, None)


def job(tmp_path: Path, **how: object) -> Job:
    usual = Job(
        "local", ["-m", "embodied.train"], tmp_path / "runs" / "one", "CPU", None, 2, "auto", 60.0, 5.0, 20.0, 0,
        lambda size: True, lambda text: None,
    )  # fmt: skip
    return replace(usual, **how)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """Each start: arguments, shapes, lost nodes. What the next ones tell is put in with ``starts.tells``."""

    class Starts(list):
        tells: list[tuple[Event, ...]]

    made = Starts()

    def start(job: Job, shapes: list, lost: list) -> nullcontext:
        made.append((job.arguments, list(shapes), list(lost)))
        return nullcontext(Told(*made.tells[len(made) - 1]))

    monkeypatch.setattr(launch, "_started", start)
    return made


def test_a_lost_node_starts_the_run_again_without_it(tmp_path, starts):
    starts.tells = [(LOST,), tuple(Ended(rank, 0) for rank in range(4))]
    said: list[str] = []
    (tmp_path / "runs" / "one" / "checkpoints").mkdir(parents=True)
    given = job(tmp_path, max_restarts=1, say=said.append, arguments=["-m", "x", "runner.resume_dir=null"])
    assert launch.launch(given) == 0
    assert starts[0] == (["-m", "x", "runner.resume_dir=null"], [], [])
    arguments, shapes, lost = starts[1]
    assert arguments == ["-m", "x", "runner.resume_dir=auto"]
    assert [shape.counts for shape in shapes] == [(2, 2), (4,), (2,)]
    assert lost == ["id-b"]
    assert any("restart 1 of 1" in text and "is lost" in text for text in said)


def test_a_run_starts_again_as_often_as_it_may(tmp_path, starts):
    starts.tells = [(Ended(0, -9),)] * 3
    with pytest.raises(RankError, match="was killed by SIGKILL"):
        launch.launch(job(tmp_path, max_restarts=2))
    assert len(starts) == 3


def test_an_error_that_would_come_again_is_not_retried(tmp_path, starts):
    starts.tells = [(Ended(0, 2, "wrong\n  fix: right"),)]
    with pytest.raises(RankError, match="wrong"):
        launch.launch(job(tmp_path, max_restarts=2))
    assert len(starts) == 1


def test_what_the_cluster_refuses_is_said_whole_and_leaves_no_folder(tmp_path, starts):
    starts.tells = [(Refused("node b is old", "renew it"), Refused("node c is old", "renew it"))]
    with pytest.raises(ClusterError, match="node b is old") as refused:
        launch.launch(job(tmp_path))
    assert [error.message for error in refused.value.others] == ["node c is old"]
    assert not (tmp_path / "runs").exists()


def test_without_ray_the_command_that_installs_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'ray\[default\]>=2\.50'"):
        launch.launch(job(tmp_path, launcher="ray"))


def test_signals_have_their_handlers_back(tmp_path, starts):
    starts.tells = [tuple(Ended(rank, 0) for rank in range(4))]
    before = signal.getsignal(signal.SIGTERM)
    launch.launch(job(tmp_path))
    assert signal.getsignal(signal.SIGTERM) is before
    assert os.listdir(tmp_path) == []
