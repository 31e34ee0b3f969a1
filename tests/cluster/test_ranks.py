"""The ranks of one machine, as real processes: their variables, their words, their ends, and who outlives whom."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from lab import wait_for

from embodied.cluster import keeper
from embodied.cluster.agent import Agent
from embodied.cluster.events import Ended, Event, HeadGone, Line, event_of
from embodied.cluster.keeper import answers
from embodied.cluster.ranks import Order, Ranks, environment_of, free_port
from embodied.parallel.group import Group
from embodied.parallel.placement.table import Node, nodes_as_text, nodes_of

ENDS_S = 60.0
SAVES = """
import os, signal, sys, time
def stop(*_):
    os.mkdir("saved-" + os.environ["RANK"])
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
while True:
    time.sleep(0.05)  # a signal that comes just before a long sleep would wait for its end
"""


def order(code: str, tmp_path: Path, each: int = 2, **how: object) -> Order:
    usual = Order(["-c", code], "ray", 2, each, 1, 4, "127.0.0.1", 1234, str(tmp_path), str(tmp_path / "logs"), 5.0)
    return replace(usual, **how)


def told(ranks_of: Order) -> list[Event]:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    ranks = Ranks(ranks_of, events.put)
    found: list[Event] = []
    while sum(isinstance(event, Ended) for event in found) < ranks_of.each:
        found.append(events.get(timeout=ENDS_S))
    ranks.close()
    return found


def test_a_rank_has_the_variables_of_torchrun(tmp_path):
    variables = environment_of(order("", tmp_path), 1, tmp_path / "error", {"HOME": "/root"})
    group = Group.from_environment(variables)
    assert (group.rank, group.size, group.local_rank, group.local_size) == (3, 4, 1, 2)
    assert group.launcher == "ray"
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"], variables["GROUP_RANK"]) == ("127.0.0.1", "1234", "1")
    assert variables["HOME"] == "/root"
    assert "RAY_ADDRESS" not in variables


@pytest.mark.parametrize(
    ("base", "own", "threads"), [({}, {}, "1"), ({"OMP_NUM_THREADS": "4"}, {}, "4"),
                                 ({"OMP_NUM_THREADS": ""}, {}, "1"),
                                 ({"OMP_NUM_THREADS": "4"}, {"OMP_NUM_THREADS": "3"}, "3")],
)  # fmt: skip
def test_a_rank_has_one_thread_unless_the_user_says_otherwise(tmp_path, base, own, threads):
    given = order("", tmp_path, variables=own)
    assert environment_of(given, 0, tmp_path / "error", base)["OMP_NUM_THREADS"] == threads


def test_a_rank_of_ray_knows_the_head_its_node_and_all_nodes(tmp_path):
    nodes = [Node("a", 2), Node("b", 2)]
    given = order("", tmp_path, head="198.18.0.1:6379", own="198.18.0.2", nodes=nodes_as_text(nodes))
    variables = environment_of(given, 0, tmp_path / "error", {"RAY_ADDRESS": "another"})
    assert (variables["RAY_ADDRESS"], variables["EMBODIED_NODE"]) == ("198.18.0.1:6379", "198.18.0.2")
    assert nodes_of(variables) == nodes


def test_a_rank_has_interpreter_and_variables_of_its_node(tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$RANK $OMP_NUM_THREADS $COLOUR $1"\n', encoding="utf-8")
    python.chmod(0o755)
    software = {"COLOUR": "red", "OMP_NUM_THREADS": "3", "RANK": "9"}
    events = told(order("", tmp_path, each=1, python=str(python), variables=software))
    assert [event.text for event in events if isinstance(event, Line)] == ["2 3 red -c"], (
        "the rank stays the launcher's"
    )


def test_what_ranks_print_is_told_and_kept_in_a_log_of_each(tmp_path):
    events = told(order("import os; print('I am', os.environ['RANK'])", tmp_path))
    assert {event for event in events if isinstance(event, Line)} == {Line(2, "I am 2"), Line(3, "I am 3")}
    assert {event for event in events if isinstance(event, Ended)} == {
        Ended(2, 0, "", "I am 2"), Ended(3, 0, "", "I am 3"),
    }  # fmt: skip
    assert (tmp_path / "logs" / "rank-03.log").read_text(encoding="utf-8") == "I am 3\n"


def test_a_rank_s_own_words_about_its_error_are_told(tmp_path):
    code = (
        "from embodied.parallel.group import Group, ended_by\n"
        "from embodied.errors import ConfigError\n"
        "with ended_by(Group.from_environment()):\n"
        "    raise ConfigError('it is so', 'make it so')\n"
    )
    ended = [event for event in told(order(code, tmp_path, each=1)) if isinstance(event, Ended)]
    assert [(event.status, event.message) for event in ended] == [(1, "it is so\n  fix: make it so")]
    assert "Traceback" in ended[0].tail


def test_ranks_get_signals_and_are_killed_after_their_time(tmp_path):
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    ranks = Ranks(order(SAVES, tmp_path, each=1), events.put)
    assert events.get(timeout=ENDS_S) == Line(2, "ready")
    ranks.signal(signal.SIGTERM)
    assert events.get(timeout=ENDS_S).status == 143
    ranks.close()
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    ranks = Ranks(order(deaf, tmp_path, each=1), events.put)
    assert events.get(timeout=ENDS_S) == Line(2, "ready")
    ranks.end(0.2)
    assert events.get(timeout=ENDS_S).status == -signal.SIGKILL
    ranks.close()


def started_keeper(given: Order) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "embodied.cluster.keeper"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        encoding="utf-8", env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps(asdict(given)) + "\n")
    process.stdin.flush()
    return process


def next_event(process: subprocess.Popen[str]) -> Event:
    assert process.stdout is not None
    return event_of(process.stdout.readline())


def test_ranks_save_when_their_agent_has_gone(tmp_path):
    process = started_keeper(order(SAVES, tmp_path, each=1))
    assert next_event(process) == Line(2, "ready")
    assert process.wait(ENDS_S) == 0, "the agent's child is not the keeper: Ray kills an agent's children"
    process.stdin.close()
    wait_for((tmp_path / "saved-2").exists, ENDS_S)
    process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_keeper_hands_on_signals_that_its_agent_blocks(tmp_path, number):
    """As Ray's workers do with SIGINT."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        process = started_keeper(order(SAVES.replace("SIGTERM", number.name), tmp_path, each=1))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert next_event(process) == Line(2, "ready")
    process.stdin.write(json.dumps({"signal": number}) + "\n")
    process.stdin.flush()
    assert next_event(process) == Ended(2, 143, "", "ready")
    process.stdin.close()
    process.stdout.close()
    process.wait(ENDS_S)


def test_ranks_are_stopped_when_the_head_does_not_answer(monkeypatch):
    monkeypatch.setattr(keeper, "PROBED_S", 0.01)
    monkeypatch.setattr(keeper, "patience_of", lambda grace_s: 0.05)
    monkeypatch.setattr(keeper, "answers", lambda address: False)
    events: list[Event] = []
    signals: list[int] = []

    class Fake:
        signal = staticmethod(signals.append)

    keeper._watch_head(replace(order("", Path("/")), head="198.18.0.1:6379"), Fake(), events.append)
    assert events == [HeadGone("198.18.0.1:6379")]
    assert signals == [signal.SIGTERM]


def test_an_address_answers_if_somebody_listens_there():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert answers(f"127.0.0.1:{port}")
    assert not answers(f"127.0.0.1:{free_port('127.0.0.1')}")
    assert not answers("no address")


def test_an_agent_starts_ranks_and_says_what_they_tell(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    agent = Agent("127.0.0.1")
    assert agent.port() > 0
    agent.start(asdict(order("print('hello')", tmp_path, each=1)))
    found: list[Event] = []

    def ended() -> bool:
        found.extend(map(event_of, agent.events(len(found), 0.2)))
        return any(isinstance(event, Ended) for event in found)

    wait_for(ended, ENDS_S)
    assert found == [Line(2, "hello"), Ended(2, 0, "", "hello")]
    agent.send({"signal": 15})
    assert agent.events(2, 0.01) == []


def test_a_keeper_that_is_killed_is_an_error_for_who_asks_its_agent(tmp_path, monkeypatch):
    """Without one the driver would wait for ever for ranks that have died with it."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    agent = Agent("127.0.0.1")
    agent.start(asdict(order("import os, time; print(os.getppid(), flush=True); time.sleep(600)", tmp_path, each=1)))
    said: list[str] = []
    wait_for(lambda: said.extend(agent.events(0, 0.2)) or said, ENDS_S)
    keeper_pid = int(event_of(said[0]).text)
    assert os.readlink(f"/proc/{keeper_pid}/cwd") == str(tmp_path), "modules of the command's folder are found"
    os.kill(keeper_pid, signal.SIGKILL)

    def fails() -> bool:
        try:
            return agent.events(1, 0.2) == ["never"]
        except RuntimeError as error:
            return "keeper of the ranks has ended" in str(error)

    wait_for(fails, ENDS_S)


def test_an_answer_that_was_lost_on_the_way_is_asked_for_again(monkeypatch):
    agent = Agent("127.0.0.1")
    agent._lines += ["one", "two", "three"]
    assert agent.events(0, 0.0) == agent.events(0, 0.0) == ["one", "two", "three"]
    assert agent.events(2, 0.0) == agent.events(2, 0.0) == ["three"]
    agent._lines.append("four")
    assert agent.events(3, 0.0) == ["four"]


@pytest.mark.parametrize("names", [["lo"]])
def test_gloo_takes_the_interface_of_the_node_s_address(names, monkeypatch):
    from embodied.cluster.agent import _environment, interface_of

    assert interface_of("127.0.0.1") in names
    assert interface_of("203.0.113.7") is None
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert _environment("127.0.0.1")["GLOO_SOCKET_IFNAME"] == "lo"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert _environment("127.0.0.1")["GLOO_SOCKET_IFNAME"] == "ib0"
