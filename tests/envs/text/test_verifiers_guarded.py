"""Verifiers that hang, die or raise, in a helper process: each costs one helper and one count, and nothing else."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import MappingProxyType

import imageio.v2 as imageio
import numpy as np
import pytest
from embodied.envs.text.failures import VerifierFailed
from embodied.envs.text.verdict import Problem, Verdict
from embodied.envs.text.verifiers import make_verifier
from embodied.envs.text.verifiers.guarded import MAX_FUNCTIONS, Guarded

from embodied.errors import ConfigError
from embodied.observe.video.video import VideoWriter
from embodied.testing import FakeEnv
from embodied.types import Start, StepResult

QUICK_S = 0.1


class Obedient:
    """Does what the response says."""

    loads = 0

    def load(self):
        self.loads += 1

    def __call__(self, problem, response):
        match response.split():
            case ["hang"]:
                while True:
                    pass
            case ["sleep", seconds]:
                time.sleep(float(seconds))
            case ["exit", code]:
                sys.exit(int(code))
            case ["die"]:
                os._exit(3)
            case ["kill"]:
                os.kill(os.getpid(), signal.SIGKILL)
            case ["raise"]:
                raise ValueError("no number")
            case ["explain"]:
                raise ConfigError("the column is missing", "add it")
            case ["start"]:
                child = subprocess.Popen(["sleep", "600"])
                Path(problem.answer).write_text(str(child.pid), encoding="utf-8")
                time.sleep(600)
            case ["field"]:
                return Verdict(problem.fields["function"](20), True)
        return Verdict(float(os.getpid()), True)


@pytest.fixture
def guarded():
    guard = Guarded(Obedient(), 10.0)
    yield guard
    guard.close()


def ask(guard, response, answer=None, **fields):
    return guard(Problem("", answer, fields, 0), response)


def children() -> set[int]:
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split()))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_verdicts_come_from_one_helper(guarded):
    first, second = ask(guarded, "1"), ask(guarded, "2")
    assert first == second
    assert first.reward != os.getpid()
    assert int(first.reward) in children()
    assert guarded._verifier.loads == 1


def test_no_helper_before_the_first_response_and_none_after_close(guarded):
    before = children()
    ask(guarded, "1")
    assert len(children() - before) == 1
    guarded.close()
    guarded.close()
    assert children() == before
    assert ask(guarded, "1").success


def test_a_helper_does_not_hold_up_the_video_of_an_episode(guarded, tmp_path):
    """ffmpeg ends when nobody can write to it any more, and a helper that is forked meanwhile has all open files."""
    small, large = (VideoWriter(tmp_path / f"{size}.mp4", 2, "", info=False) for size in (16, 320))
    for video, size in ((small, 16), (large, 320)):  # 768 bytes wait in a buffer when the helper is forked
        video.add(np.zeros((size, size, 3), np.uint8), 0, 0.0, False)
    assert ask(guarded, "1").success
    for video in (small, large):
        closing = threading.Thread(target=video.close, daemon=True)
        closing.start()
        closing.join(10.0)
        assert not closing.is_alive()
    for size in (16, 320):
        with imageio.get_reader(tmp_path / f"{size}.mp4") as reader:
            assert sum(1 for _ in reader) == 1, "the helper has written nothing into it"


def test_fifty_hangs_cost_fifty_helpers_and_leave_nothing():
    guard = Guarded(Obedient(), 0.02)
    before, files = children(), open_files()
    helpers = set()
    for _ in range(50):
        with pytest.raises(VerifierFailed, match=r"not done within verify_timeout_s 0\.02 s") as caught:
            ask(guard, "hang")
        assert caught.value.kind == "timeouts"
        helpers.add(guard._helper)
    assert helpers == {None}
    assert children() == before  # no zombie
    assert open_files() <= files  # those of tests before may be closed meanwhile
    guard._timeout_s = 10.0
    assert ask(guard, "1").success
    guard.close()
    assert (children(), open_files()) == (before, files)


def test_a_helper_that_nobody_holds_leaves_nothing():
    gc.collect()  # what earlier tests have left
    before, files = children(), open_files()
    guard = Guarded(Obedient(), 10.0)
    ask(guard, "1")
    assert len(children() - before) == 1
    del guard
    gc.collect()
    assert (children(), open_files()) == (before, files)


def test_the_next_problem_after_a_hang_is_verified(guarded):
    guarded._timeout_s = QUICK_S
    with pytest.raises(VerifierFailed):
        ask(guarded, "hang")
    guarded._timeout_s = 10.0
    assert ask(guarded, "1").success


@pytest.mark.parametrize(
    ("response", "why"), [("die", "its process ended with status 3"), ("kill", "its process was ended by SIGKILL")]
)
def test_a_helper_that_dies_costs_one_response(guarded, response, why):
    before = children()
    with pytest.raises(VerifierFailed, match=why) as caught:
        ask(guarded, response)
    assert caught.value.kind == "deaths"
    assert children() == before
    assert ask(guarded, "1").success


def test_a_helper_that_dies_between_two_responses_costs_none(guarded):
    helper = int(ask(guarded, "1").reward)
    os.kill(helper, signal.SIGKILL)
    until(lambda: gone(helper))
    assert ask(guarded, "1").reward != helper


@pytest.mark.parametrize(
    ("response", "why"), [("raise", r"it raised ValueError: no number \("), ("exit 4", "SystemExit: 4")]
)
def test_an_error_keeps_the_helper(guarded, response, why):
    helper = ask(guarded, "1")
    with pytest.raises(VerifierFailed, match=why) as caught:
        ask(guarded, response)
    assert caught.value.kind == "errors"
    assert ask(guarded, "1") == helper


def test_an_error_with_a_fix_comes_through(guarded):
    with pytest.raises(ConfigError, match="the column is missing") as caught:
        ask(guarded, "explain")
    assert caught.value.remedy == "add it"


def test_what_a_verifier_has_started_ends_with_it(guarded, tmp_path):
    guarded._timeout_s = 0.5
    with pytest.raises(VerifierFailed, match="not done"):
        ask(guarded, "start", answer=str(tmp_path / "pid"))
    started = int((tmp_path / "pid").read_text(encoding="utf-8"))
    until(lambda: gone(started))


def test_signals_for_the_run_do_not_end_a_verdict(guarded):
    helper = int(ask(guarded, "1").reward)
    for stop in (signal.SIGTERM, signal.SIGINT):
        os.kill(helper, stop)
    assert ask(guarded, "sleep 0.05").reward == helper


def test_functions_among_the_fields_are_inherited(guarded):
    for step in range(3):
        assert ask(guarded, "field", function=lambda number, step=step: number + step).reward == 20 + step
    assert ask(guarded, "1").success


def test_a_function_that_is_known_costs_no_helper(guarded):
    tasks = [ScorerOfATask(), ScorerOfATask()]
    helpers = [ask(guarded, "1", scorer=tasks[index].score_answer).reward for index in (0, 0, 1, 0, 1)]
    assert helpers[0] == helpers[1] != helpers[2]
    assert len(set(helpers[2:])) == 1


class Callable:
    """Cannot be hashed, and is another one with each problem."""

    __hash__ = None

    def __call__(self, number):
        return number + 5


def test_other_objects_that_can_be_called_are_sent(guarded):
    helpers = [ask(guarded, "1", function=Callable()).reward for _ in range(3)]
    assert len(set(helpers)) == 1
    assert ask(guarded, "field", function=Callable()).reward == 25


def test_many_functions_are_not_all_kept(guarded):
    for step in range(MAX_FUNCTIONS + 2):
        guarded._inheriting(Problem("", "", {"one": lambda: 1, "same": min}, step))
    assert len(guarded._functions) == 4
    assert ask(guarded, "field", function=lambda number: number).reward == 20


def test_fields_may_be_any_mapping(guarded):
    assert guarded(Problem("", "", MappingProxyType({"function": abs}), 0), "field").reward == 20


def test_other_fields_that_cannot_be_pickled_are_said(guarded):
    with pytest.raises(VerifierFailed, match="the problem cannot be pickled for the helper process: cannot pickle"):
        ask(guarded, "1", rows=(row for row in "ab"))


def test_a_long_response_arrives(guarded):
    assert ask(guarded, "x" * 3_000_000).success


def test_a_busy_helper_ends_with_its_worker():
    code = (
        "import os, time\n"
        "from embodied.envs.text.verdict import Problem\n"
        "from embodied.envs.text.verifiers.guarded import Guarded\n"
        "class Mine:\n"
        "    def load(self): pass\n"
        "    def __call__(self, problem, response):\n"
        "        print(os.getpid(), flush=True)\n"
        "        time.sleep(600)\n"
        "Guarded(Mine(), 600)(Problem('', '', {}, 0), '')\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, encoding="utf-8") as worker:
        assert worker.stdout is not None
        helper = int(worker.stdout.readline())
        worker.kill()
    until(lambda: gone(helper))


def test_a_pattern_that_backtracks_is_one_counted_timeout():
    verifier = make_verifier([{"name": "format", "pattern": "(a+)+b", "verify_timeout_s": QUICK_S}])
    try:
        assert verifier(Problem("", None, {}, 0), "a" * 60) == Verdict(0.0, False)
        assert verifier(Problem("", None, {}, 1), "ab") == Verdict(1.0, True)
        assert verifier.counts["timeouts"] == 1
    finally:
        verifier.close()


class ScorerOfATask:
    """As a data set of reasoning-gym."""

    def score_answer(self, answer, entry):
        if answer == "hang":
            time.sleep(600)
        return {"4": 1.0, "four": 0.5, "none": None}.get(answer, 0.01) if entry["question"] == "2+2?" else 0.0


@pytest.mark.parametrize(
    ("response", "options", "expected"),
    [
        ("4", {}, Verdict(1.0, True)),
        ("so <answer> 4 </answer>", {}, Verdict(1.0, True)),
        ("four", {}, Verdict(0.5, False)),
        ("four", {"success_at": 0.5}, Verdict(0.5, True)),
        ("5", {}, Verdict(0.01, False)),
        ("none", {"failure_reward": -2}, Verdict(-2.0, False)),
        ("hang", {"verify_timeout_s": QUICK_S}, Verdict(0.0, False)),
    ],
)
def test_the_scorer_of_reasoning_gym(response, options, expected):
    verifier = make_verifier([{"name": "reasoning_gym", **options}])
    fields = {"entry": {"question": "2+2?", "answer": "4"}, "scorer": ScorerOfATask().score_answer}
    try:
        assert verifier(Problem("2+2?", "4", fields, 0), response) == expected
    finally:
        verifier.close()


def test_a_problem_without_a_scorer_is_said():
    verifier = make_verifier([{"name": "reasoning_gym", "on_error": "raise"}])
    try:
        with pytest.raises(ConfigError, match="has no entry and no scorer"):
            verifier(Problem("2+2?", "4", {}, 0), "4")
    finally:
        verifier.close()


class Judged(FakeEnv):
    """Its first step is judged by a verifier that hangs for one of the initial states of each task."""

    def __init__(self, hanging: int = 1, **options) -> None:
        super().__init__(**options)
        self._hanging, self._guard = hanging, Guarded(Obedient(), QUICK_S)

    def reset(self, start: Start) -> None:
        super().reset(start)
        self._number = start.init_state_id

    def step(self, action: np.ndarray) -> StepResult:
        problem = Problem("", "", {}, self._number)
        try:
            verdict = self._guard(problem, "hang" if self._number == self._hanging else "right")
        except VerifierFailed:
            verdict = Verdict(0.0, False)
        return StepResult(float(verdict.success), True, verdict.success)

    def close(self) -> None:
        self._guard.close()


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"], indirect=True)
def test_a_hanging_verifier_in_a_worker_loses_neither_worker_nor_episode(make_rig):
    from embodied.runtime.plan import train_plan

    rig = make_rig(slots=4, workers=2, target="test_verifiers_guarded.Judged", max_restarts=0)
    plan = train_plan(rig.env.spec, seed=3, iteration=0, episodes=16, group_size=2)
    results, stats = rig.rollout().collect(plan, rig.job())
    assert len(results) == 16
    assert {result.episode.start.init_state_id for result in results if not result.success} == {1}
    assert sum(result.success for result in results) == 12
    assert stats.worker_restarts == 0


@pytest.mark.parametrize("task", ["chain_sum", "countdown", "spell_backward"])
def test_tasks_of_the_package_reasoning_gym(task):
    data = pytest.importorskip("reasoning_gym").create_dataset(task, size=2, seed=1)
    verifier = make_verifier([{"name": "reasoning_gym", "on_error": "raise"}])
    try:
        for number, entry in enumerate(data):
            problem = Problem(entry["question"], entry["answer"], {"entry": entry, "scorer": data.score_answer}, number)
            assert verifier(problem, f" so <answer>{entry['answer']}</answer>") == Verdict(1.0, True)
            assert not verifier(problem, "no").success
    finally:
        verifier.close()
