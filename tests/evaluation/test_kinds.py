"""Success by kind and strength: by hand, in a run with a task that cannot be run, and on the report's page."""

from __future__ import annotations

import contextlib
import html
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from varied_env import KINDS, NAMES, STRENGTHS, VariedEnv

from embodied import train
from embodied.evaluation import compare_kinds, kinds
from embodied.evaluation.kinds import KindsDone, KindSuccess, by_kind
from embodied.evaluation.pairwise import pairs
from embodied.evaluation.results import read
from embodied.observe.statistics import wilson
from embodied.run.build.action_kind import ROBOT
from embodied.run.evaluation.resume_evaluation import Unfinished
from embodied.run.evaluation.successes import summarise
from embodied.run.folder.reporter import Reporter
from embodied.testing import FakeEnv
from embodied.tools import compare, report
from embodied.types import Episode, EpisodeResult, Start

CONFIG = str(Path(__file__).parents[1] / "config")
SPOILED = 4  # the task that ends its worker


def ended(task: int, success: bool, not_run: str = "") -> EpisodeResult:
    return EpisodeResult(Episode(task, task, Start(task, 0, 0)), (), 0.0, success, 1, success, False, not_run=not_run)


ENDED = [ended(0, True), ended(1, False), ended(2, True), ended(3, True), ended(4, False, "no scene"), ended(5, False)]


def test_rows_of_kinds_strengths_and_all():
    found = VariedEnv().task_kinds()
    rows = {(row.kind, row.strength): row for row in by_kind(found, ENDED, ROBOT.origin)}
    counts = {key: (row.successes, row.episodes, row.not_run, row.left_out) for key, row in rows.items()}
    assert counts == {
        ("camera", "all"): (2, 3, 0, 0), ("camera", "1"): (1, 2, 0, 0), ("camera", "3"): (1, 1, 0, 0),
        ("layout", "all"): (0, 0, 0, 1200), ("light", "all"): (0, 1, 0, 0), ("light", "1"): (0, 1, 0, 0),
        ("noise", "all"): (1, 1, 1, 0), ("noise", "2"): (1, 1, 0, 0), ("all", "all"): (3, 5, 1, 1200),
    }  # fmt: skip
    assert next(iter(rows)) == ("camera", "all")
    assert [*rows][-1] == ("all", "all")
    assert (rows["camera", "all"].low, rows["camera", "all"].high) == wilson(2, 3)
    assert rows["layout", "all"].success_rate is None
    assert kinds.metrics(by_kind(found, ENDED, ROBOT.origin)) == {
        "eval/kind/camera/success_rate": 2 / 3, "eval/kind/light/success_rate": 0.0,
        "eval/kind/noise/success_rate": 1.0,
    }  # fmt: skip


def test_episodes_of_one_start_count_as_one_in_intervals():
    found = VariedEnv().task_kinds()
    several = [replace(one, episode=replace(one.episode, episode_id=4 * one.episode.episode_id + number))
               for one in ENDED for number in range(4)]  # fmt: skip
    rows = by_kind(found, several, ROBOT.origin)
    assert (rows[-1].successes, rows[-1].episodes) == (12, 20)
    assert (rows[-1].low, rows[-1].high) == wilson(3, 5)
    over_all = summarise(NAMES, [one for one in several if not one.not_run])[-1]
    assert (rows[-1].low, rows[-1].high) == (over_all.low, over_all.high)


def test_tasks_that_could_not_be_run_are_named():
    found = VariedEnv().task_kinds()
    assert kinds.facts(found, [], ENDED)["tasks_not_run"] == {NAMES[4]: "no scene"}
    assert kinds.named(found, [ENDED[4]]).endswith(f"could not be run: {NAMES[4]}")
    many = found._replace(names=tuple(f"n{number}" for number in range(30)), kinds=("camera",) * 30)
    said = kinds.named(many, [ended(task, False, "no") for task in range(30)])
    assert said.endswith("n9 and 20 more")


def test_envs_without_kinds_have_none():
    assert kinds.kinds_of(FakeEnv()) is None


def test_kinds_that_are_done_are_counted():
    plan = [result.episode for result in ENDED]
    done = KindsDone(VariedEnv().task_kinds(), plan, before=ENDED[:2])
    assert [done.book(result)["kinds_done"] for result in ENDED[2:]] == ["1/3", "1/3", "2/3", "3/3"]


def test_rows_of_a_file_are_read_or_left():
    row = KindSuccess("camera", "1", 1, 2, 0.5, 0.1, 0.9, 0)
    assert kinds.read([vars(row)]) == [row]
    for damaged in (None, 3, [4], [{"kind": "camera"}], {"camera": 1}):
        assert kinds.read(damaged) == []
    for name in vars(row):
        for value in ("half", None, [], {}, -1, True, float("nan"), 3.5):
            if (name, value) not in [("kind", "half"), ("strength", "half"), ("success_rate", None)]:
                assert kinds.read([vars(row), {**vars(row), name: value}]) == [], (name, value)


VARIED = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "env.eval.video_cfg.save_video=false",
    "env.train._target_=varied_env.VariedEnv", "env.eval._target_=varied_env.VariedEnv", "env.eval.total_num_envs=2",
    "env.num_workers=2", "env.eval.success_distance=0.9", "runner.logger.log_path=run",
)  # fmt: skip


def evaluate(*overrides: str) -> int:
    return train.main([*VARIED, *overrides, "--config-dir", CONFIG], "eval")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The run's folder and what was printed."""
    folder, said = tmp_path_factory.mktemp("kinds"), io.StringIO()
    overrides = [
        "env.max_worker_restarts=1", "env.eval.episodes_per_task=2", "env.eval.fault=exception",
        f"env.eval.fault_task={SPOILED}",
    ]  # fmt: skip
    with contextlib.redirect_stdout(said), pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert evaluate(*overrides) == 0
    return folder / "run", said.getvalue()


@pytest.mark.parametrize("workers", [1, 2])
def test_tasks_whose_files_are_damaged_are_named_and_the_others_are_those_of_a_whole_evaluation(
    workers, monkeypatch, tmp_path, capsys
):
    """Also neighbours in the plan, and whatever worker is left alone with them."""
    monkeypatch.chdir(tmp_path)
    asked = ("env.eval.episodes_per_task=2", f"env.num_workers={workers}")
    assert evaluate(*asked, "+env.eval.lacking=[1,2,3]") == 0
    assert f"the first: {NAMES[1]}.xml is damaged\n" in capsys.readouterr().out
    assert evaluate(*asked, "runner.logger.log_path=whole") == 0
    found, whole = (
        json.loads(Path(run, "eval", "000000.json").read_text(encoding="utf-8")) for run in ("run", "whole")
    )
    assert found["tasks_not_run"] == {NAMES[task]: f"{NAMES[task]}.xml is damaged" for task in (1, 2, 3)}
    assert len(found["episodes"]) == 12
    for one, other in zip(found["episodes"], whole["episodes"], strict=True):
        assert one["start"] == other["start"]
        assert one == other or (one["success"] is None and one["start"]["task_id"] in (1, 2, 3))


class Bar:
    """Notes what a progress bar is told."""

    def __init__(self, told: list[tuple[int, dict[str, str]]]) -> None:
        self._told = told

    def advance(self, count: int, **facts: str) -> None:
        self._told.append((count, facts))


def test_episodes_that_are_given_up_count_as_done_and_are_not_kept(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    kept, facts, shown = list[EpisodeResult](), list[str](), list[tuple[int, dict[str, str]]]()
    add, book, counting = Unfinished.add, KindsDone.book, Reporter.counting

    def added(self: Unfinished, result: EpisodeResult, text: object = None) -> None:
        kept.append(result)
        add(self, result)

    def booked(self: KindsDone, result: EpisodeResult) -> dict[str, str]:
        facts.append(book(self, result)["kinds_done"])
        return {}

    monkeypatch.setattr(Unfinished, "add", added)
    monkeypatch.setattr(KindsDone, "book", booked)
    monkeypatch.setattr(Reporter, "counting", lambda self, bar, job: counting(self, Bar(shown), job))
    assert evaluate("env.eval.episodes_per_task=2", "+env.eval.lacking=[1,2,3]") == 0
    assert (len(facts), facts[-1]) == (12, "3/3")
    assert len(kept) == 6
    assert not any(result.not_run for result in kept)
    assert [number for number, _ in shown] == [1] * 12
    assert shown[-1][1]["success"].partition("/")[2].startswith("6 ")


@pytest.mark.parametrize("other", [False, True])
def test_episodes_of_another_sample_are_not_resumed(other, monkeypatch, tmp_path, capsys):
    """A sample may have other tasks under the same numbers and instructions when a file of the benchmark has come."""

    class Killed(Exception):
        pass

    class Dying(Unfinished):
        def add(self, result: EpisodeResult, text: object = None) -> None:
            super().add(result)
            raise Killed

    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("embodied.run.evaluation.evaluator.Unfinished", Dying)
        with pytest.raises(Killed):
            evaluate("env.eval.episodes_per_task=1")
    if other:
        monkeypatch.setattr("varied_env.NAMES", (*NAMES[:-1], "light_9"))
    assert evaluate("env.eval.episodes_per_task=1") == 0
    said = capsys.readouterr().out
    assert ("were run before" in said, "1 episodes were run under other conditions: all are run anew" in said) == (
        not other,
        other,
    )


def test_a_smaller_sample_is_paired_with_a_larger_one(monkeypatch, tmp_path, capsys):
    """The same task has another number there."""
    monkeypatch.chdir(tmp_path)
    for name, sample in (("large", 6), ("small", 2)):
        asked = ("env.eval.episodes_per_task=2", f"+env.eval.sample={sample}", f"runner.logger.log_path={name}")
        assert evaluate(*asked) == 0
    capsys.readouterr()
    assert compare.main(["large", "small"]) == 0
    said = capsys.readouterr().out
    assert "4 of A's 12 starts and of B's 4 have a partner; 8 of A's are left out" in said
    assert "UNPAIRED" not in said
    assert re.search(r"env\.sample +6 +2 +chooses tasks; those that both have are paired", said)
    found = pairs([read("large"), read("small")]).comparisons[0]
    assert {key[0] for key in found.outcomes[0]} == {*NAMES[4:]}
    assert [row.kind for row in compare_kinds.by_kind(found) if row.strength == "all"] == ["light", "noise"]


@pytest.mark.parametrize("change", ["of one file alone", "without names", "another argument"])
def test_other_arguments_of_the_env_pair_nothing(change, made, tmp_path):
    found = json.loads((made[0] / "eval" / "000000.json").read_text(encoding="utf-8"))
    other = json.loads(json.dumps(found))
    other["env"]["sample"] = other["protocol"]["keys"]["env"]["sample"] = 3
    if change == "of one file alone":
        del found["tasks_chosen_by"]
    elif change == "without names":
        found["task_names"] = other["task_names"] = []
    else:
        other["env"]["wait_steps"] = 3
    files = [tmp_path / "000000.json", tmp_path / "000001.json"]
    for file, content in zip(files, (found, other), strict=True):
        file.write_text(json.dumps(content), encoding="utf-8")
    assert pairs([read(str(file)) for file in files]).comparisons[0].unpaired


def test_a_run_says_kinds_on_the_console_and_in_its_file(made):
    folder, said = made
    found = json.loads((folder / "eval" / "000000.json").read_text(encoding="utf-8"))
    rows = {(row["kind"], row["strength"]): row for row in found["kinds"]}
    outcomes = [(one["start"]["task_id"], one["success"]) for one in found["episodes"]]
    camera = [success for task, success in outcomes if KINDS[task] == "camera"]
    assert (rows["camera", "all"]["successes"], rows["camera", "all"]["episodes"]) == (sum(camera), 6)
    assert rows["noise", "all"]["not_run"] == 2
    assert [*found["tasks_not_run"]] == [NAMES[SPOILED]]
    assert found["task_names"] == found["protocol"]["keys"]["task_names"] == list(NAMES)
    assert (found["task_kinds"], found["task_strengths"]) == ([*KINDS], [*STRENGTHS])
    assert len(found["tasks"]) == 6, "each task that was run, and all"
    assert re.search(r"success by kind and strength\n *strengths are made up", said)
    assert re.search(r"kind +strength +success +95 % interval +episodes not run +tasks left out\n", said)
    assert re.search(r"noise +all .*% +2 *\n", said)
    assert re.search(r"layout +all +- +- +1,200", said)
    assert f"tasks that could not be run: {NAMES[SPOILED]}" in said
    assert "kinds done" in said
    failed = said[said.index("failures, by how far they got") :]
    assert re.search(r"video +name\n", failed)
    first = found["failures"][0]["start"]
    task, state = first["task_id"], first["init_state_id"]
    assert re.search(rf"^ *{task} +{state} .* {NAMES[task]} *$", failed, re.M)
    table = said[said.index("evaluation of ") : said.index("success by kind")]
    assert len(re.findall(r"^ +(\d+|all) ", table, re.M)) == 1, "tasks have one row together"


def test_the_report_has_the_table(made):
    folder, _ = made
    assert report.main([str(folder)]) == 0
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "By kind and strength" in page
    assert "1,200" in page


@pytest.mark.parametrize("paired", [True, False])
def test_the_report_compares_by_kind_before_and_after_a_training(paired, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    asked = ("runner.max_epochs=1", "runner.val_check_interval=1", "runner.val_before_train=true",
             "env.train.total_num_envs=2", "env.eval.episodes_per_task=4")  # fmt: skip
    assert train.main([*VARIED, *asked, "--config-dir", CONFIG]) == 0
    if not paired:
        file = Path("run", "eval", "000001.json")
        found = json.loads(file.read_text(encoding="utf-8"))
        found["env"]["wait_steps"] = 3
        file.write_text(json.dumps(found), encoding="utf-8")
    assert report.main(["run"]) == 0
    page = Path("run", "report.html").read_text(encoding="utf-8")
    found = pairs([read("run@0"), read("run@1")]).comparisons[0]
    rows = compare_kinds.table(compare_kinds.by_kind(found), ("A", "B"))[1:]
    table = re.search(r'<caption class="unseen">B against A, by kind and strength</caption>.*?</table>', page, re.S)
    shown = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in table.group().split("<tr>")[1:]]
    assert [html.unescape(cell) for row in shown[1:] for cell in row] == [cell for row in rows for cell in row]
    assert shown[0] == [
        "kind",
        "strength",
        "A",
        "95 % interval",
        "B",
        "95 % interval",
        "difference",
        "95 % interval",
        "p",
    ]
    assert len(rows) == 7, "three kinds and their strengths"
    assert ("Pairs of the same task and start" in page, "Starts that are not paired" in page) == (paired, not paired)
