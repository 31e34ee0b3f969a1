"""The page of the report as a file: what is in it, that nothing breaks out of it, its size, and the command."""

from __future__ import annotations

import base64
import json
import re
import shutil
import time
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from reported_runs import change_evaluation, cut_at, under, video, write_run, write_trace

from embodied.report import charts, library, videos
from embodied.report.page import in_script
from embodied.report.reading import read
from embodied.report.series import Chart, Line, Point
from embodied.run.folder.folder import RunFolder
from embodied.tools import report

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"' {{ 7 * 7 }}"


class Page(HTMLParser):
    """Elements with their attributes, text by element, and scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.paragraphs: dict[str, list[str]] = {"note": [], "dim": []}  # texts of paragraphs, by their class
        self.tables: dict[str, list[list[str]]] = {}  # by caption
        self._open = ""
        self._paragraph = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag
        if tag == "p":
            self._paragraph = str(dict(attrs).get("class"))
            self.paragraphs.setdefault(self._paragraph, []).append("")
        self._cell(tag)
        if tag == "script":
            self.scripts.append("")

    def _cell(self, tag: str) -> None:
        table = list(self.tables.values())[-1] if self.tables else []
        if tag == "tr" and self.tables:
            table.append([])
        elif tag in ("th", "td") and table:
            table[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = ""
        if tag == "p":
            self._paragraph = ""

    def handle_data(self, data: str) -> None:
        if self._open == "script":
            self.scripts[-1] += data
        elif self._open != "style":
            self.text += data
            if self._paragraph:
                self.paragraphs[self._paragraph][-1] += data
            if self._open == "caption":
                self.tables[data] = []
            elif self._open in ("th", "td"):
                list(self.tables.values())[-1][-1][-1] += data

    @property
    def notes(self) -> list[str]:
        """Notes that everybody sees."""
        first, *others = self.paragraphs["note"]
        assert "need JavaScript" in first
        return others

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def specs(self) -> list[Any]:
        found = zip(self.of("script"), self.scripts, strict=True)
        return [json.loads(text) for attributes, text in found if attributes.get("type") == "application/json"]


@pytest.fixture(autouse=True)
def library_or_stand_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The charting library is a megabyte of no interest here."""
    pytest.importorskip("jinja2")
    monkeypatch.setattr(library, "check_installed", lambda: None)
    monkeypatch.setattr(library, "javascript", lambda: "/* the charting library */")


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return video(tmp_path_factory.mktemp("recording"))


def made(*names: object, expected: int = 0) -> Page:
    assert report.main([str(name) for name in names]) == expected
    folder = Path(str(names[0]))
    return Page((folder / "report.html" if len(names) == 1 else Path("report.html")).read_text(encoding="utf-8"))


def test_everything_is_on_the_page(tmp_path: Path, recording: Path) -> None:
    folder = write_run(tmp_path / "a", recording=recording)
    write_trace(folder)
    page = made(folder)
    assert [tag for tag, _ in page.elements if tag == "main"] == ["main"]
    assert [one["id"] for one in page.of("h2") if "id" in one] == [
        "curves", "success", "videos", "time", "configuration", "reproduce",
    ]  # fmt: skip
    for said in ("6/8 (75%)", "exact McNemar test: p = 0.0312", "python -m embodied.train env=fake", "2.13.0",
                 "runner.max_epochs", "16 of 16 evaluation episodes were recorded"):  # fmt: skip
        assert said in page.text
    assert "missing" not in [one.get("id") for one in page.of("h2")]
    assert len(page.of("video")) == 16
    data = [text for one, text in zip(page.of("script"), page.scripts, strict=True) if one.get("type") == "text/plain"]
    assert base64.b64decode(data[0]) == recording.read_bytes()
    outcomes = {(one["data-task"], one["data-outcome"]) for one in page.of("li") if "data-task" in one}
    assert len(outcomes) == 4


def test_success_in_training_says_where_its_episodes_are_cut(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    assert "success, last iteration, sampled" in made(folder).text
    assert "success, last iteration, sampled, in" not in made(folder).text
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    config.setdefault("env", {}).setdefault("train", {})["max_episode_steps"] = 40
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    assert "success, last iteration, sampled, in 40 steps" in made(folder).text


def test_a_success_that_cannot_happen_is_left_out_and_why_is_said_once(tmp_path: Path) -> None:
    text = made(cut_at(write_run(tmp_path / "a"), 96)).text
    assert text.count("The success of training episodes is left out: they end after 96 control steps") == 1
    assert "return, last iteration, sampled, in 96 steps" in text
    assert "progress, last iteration, sampled, in 96 steps" in text
    assert "success, last iteration" not in text
    assert "success, newest evaluation, greedy" in text


def test_nothing_is_fetched_and_everything_has_a_name(tmp_path: Path, recording: Path) -> None:
    page = made(write_run(tmp_path / "a", recording=recording))
    for tag, attributes in page.elements:
        assert not any(str(attributes.get(name, "")).startswith(("http", "//")) for name in ("src", "href"))
        if tag == "video":
            assert attributes["aria-label"]
        if tag in ("select", "input"):
            assert attributes["id"] in [one["for"] for one in page.of("label")]
    policy = next(one["content"] for one in page.of("meta") if one.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    specs = [spec for spec in page.specs() if "$schema" in spec]
    assert len(specs) == 9
    assert all(spec["description"] for spec in specs)


def test_every_chart_has_a_table(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    write_trace(folder)
    page = made(folder)
    assert "000001-train.json, 0.0396 s" in page.text
    parts = [tag if tag != "div" else one.get("class") for tag, one in page.elements]
    charts = [place for place, part in enumerate(parts) if part == "chart"]
    assert len(charts) == 11, "nine curves and bars, any metric, the timeline"
    for place, after in pairwise([*charts, len(parts)]):
        assert "table" in parts[place:after]
    text = " ".join(page.text.split())
    assert "lanepolicy, sstep, srender, s policy0.024 slot 00.024 slot 10.024" in text
    whole = json.loads((folder / "trace" / "000001-train.json").read_text(encoding="utf-8"))
    (folder / "trace" / "rank-00").mkdir()
    cut = json.dumps(whole | {"otherData": {"spans_left_out": 7}})
    (folder / "trace" / "rank-00" / "000001-train.json").write_text(cut, encoding="utf-8")
    (folder / "trace" / "000001-train.json").unlink()
    assert "000001-train.json, the first 0.0396 s" in made(folder).text, "of several processes, the first"


def test_several_runs_are_compared_in_all_pairs(
    tmp_path: Path, recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, seed in (("a", 1), ("b", 2)):
        write_run(Path(name), seed=seed, recording=recording)
    write_run(Path("c"), group_size=3, evaluations=(3,))
    page = made("a", "b", "c")
    head, *rows = page.tables["each pair, over all tasks"]
    assert [row[0] for row in rows] == ["B against A", "C against A", "C against B"]
    assert head[-1] == "p by Holm"
    assert all(row[-1].startswith("p ") for row in rows)
    assert "3 pairs were tested. Each test alone calls one in twenty" in page.text
    assert "C against B, by task: c after 3 iterations" in page.text
    assert "a (seed 1), b (seed 2)" in page.text
    assert "C against A, by task: c after 3 iterations" in page.text
    assert "what differs between the runs" in page.text


def test_results_of_different_protocols_are_never_side_by_side_without_saying_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note above the curves and above the table, a column in the table, and words at each curve of evaluations."""
    monkeypatch.chdir(tmp_path)
    for name, protocol, digest in (("a", "rlinf", "aaaa"), ("b", "rlinf", "aaaa"), ("c", None, "cccc")):
        folder = write_run(Path(name), group_size=len(digest) + ord(name), evaluations=(6,))
        change_evaluation(folder, 6, under(protocol, digest))
    page = made("a", "b", "c")
    assert page.notes == [
        "DIFFERENT PROTOCOLS: rlinf (aaaa) of a, b; no name (cccc) of c. Success is a result under its protocol: a "
        "difference may be the protocol's.",
        "DIFFERENT PROTOCOLS: rlinf (aaaa) of A, B; no name (cccc) of C. Success is a result under its protocol: a "
        "difference may be the protocol's.",
    ]  # fmt: skip
    head, *rows = page.tables["each pair, over all tasks"]
    other = [f"no name (cccc), another than {first}'s" for first in "AB"]
    assert [head[2], *(row[2] for row in rows)] == ["its protocol", "rlinf (aaaa)", *other]
    assert [line for line in page.paragraphs["dim"] if "evaluations of different protocols" in line] == [
        "episodes that succeed, greedy · 95 % intervals (Wilson); evaluations of different protocols"
    ], "there is one chart of evaluations"
    page = made("a", "b")
    assert "DIFFERENT PROTOCOLS" not in page.text
    assert "evaluations of different protocols" not in page.text
    assert "B b after 6 iterations, protocol rlinf (aaaa)" in page.text
    change_evaluation(Path("b"), 6, lambda found: found.pop("protocol"))
    page = made("a", "b")
    assert page.notes[1].startswith(
        "Whether these evaluations are of one protocol is not known: rlinf (aaaa) of A; not recorded of B"
    )
    folder = write_run(Path("d"))
    change_evaluation(folder, 6, under("rlinf", "aaaa"))
    change_evaluation(folder, 0, under("rlinf", "dddd"))
    page = made("d")
    assert page.notes[0].startswith(
        "DIFFERENT PROTOCOLS: rlinf (dddd) of after 0 iterations; rlinf (aaaa) of after 6 iterations"
    )
    page = made("d@6", "--out", "report.html")
    assert page.notes == []
    assert "d@6, protocol rlinf (aaaa)" in page.text


def test_lengths_of_episodes_and_those_that_were_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def told(found: dict[str, Any]) -> None:
        for row in [*found["tasks"], {"task_id": -1, "instruction": "all tasks"}]:
            row |= {"steps_mean": 20.4 + row["task_id"], "steps_to_success": 17.0 if row["task_id"] else None}
        found["tasks"].append(row)

    def lost(found: dict[str, Any]) -> None:
        told(found)
        found["episodes"][0] |= {"success": None, "not_run": "<b>gone</b> http://me:pw@host"}
        found["tasks"][0]["not_run"] = found["tasks"][-1]["not_run"] = 1

    folder = write_run(Path("a"), evaluations=(0, 6))
    change_evaluation(folder, 6, told)
    change_evaluation(folder, 0, lost)
    head, *rows = made("a@6", "--out", "report.html").tables["success by task"]
    assert head[3:] == ["mean length", "to success, median"]
    assert [row[3:] for row in rows] == [["20", ""], ["21", "17"], ["19", "17"]]
    page = made("a")
    head, *rows = page.tables["B against A, by task"]
    assert head[7:] == [
        "A mean length", "B mean length", "A to success, median", "B to success, median", "A not run", "B not run",
    ]  # fmt: skip
    assert rows[0][7:] == ["20", "20", "", "", "1", ""]
    assert page.notes == [
        "1 planned episodes of A were not run, and count neither as success nor as failure; the first: <b>gone</b> "
        "http://(hidden)@host"
    ]  # fmt: skip
    change_evaluation(folder, 6, lambda found: found["conditions"].update(sampling={"max_new_tokens": 8}))
    assert made("a@6", "--out", "report.html").tables["success by task"][0] == ["task", "success", "95 % interval"]


def test_failures_that_got_farthest_come_first(tmp_path: Path, recording: Path) -> None:
    folder = write_run(tmp_path / "a", per_task=6, evaluations=(6,), recording=recording)

    def progress(found: dict[str, Any]) -> None:
        for number, episode in enumerate(found["episodes"]):
            episode |= {"success": number % 3 == 0, "progress": number * 5 % 12 / 12}
        del found["episodes"][1]["progress"]

    change_evaluation(folder, 6, progress)
    run = read(str(folder))
    chosen = videos.choose([run], 10**9).videos
    failed = [one.episode.progress for one in chosen if not one.episode.success]
    assert failed == [11 / 12, 10 / 12, 8 / 12, 7 / 12, 4 / 12, 2 / 12, 1 / 12, None]
    assert [one.episode.success for one in chosen].count(True) == 4
    assert {one.episode.success for one in chosen[:4]} == {True, False}, "tasks and outcomes still take turns"
    needed = -(-recording.stat().st_size // 3) * 4 + 30 * videos.TIMES_TOLD
    few = [one.episode for one in videos.choose([run], 4 * needed).videos]
    assert sorted(one.progress for one in few if not one.success) == [10 / 12, 11 / 12], "the best of both tasks"
    assert "progress 0.92" in made(folder).text


def test_hostile_names_stay_texts(tmp_path: Path, recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain = write_run(Path("plain"), recording=recording)
    folder = write_run(Path("<i>x&y"), tasks=(HOSTILE, "fine"), recording=recording, loss_type=HOSTILE)
    line = {"command": HOSTILE, "time": HOSTILE, "versions": {HOSTILE: HOSTILE}}
    (folder / "starts.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    (folder / "metrics.jsonl").write_text(
        json.dumps({"step": 1, HOSTILE: 1.0, "train/loss": 0.5}) + "\n", encoding="utf-8"
    )
    for names in ((folder,), (plain, folder)):
        page = made(*names)
        scripts = [one.get("type") for one in page.of("script")]
        assert scripts.count(None) == 2  # the library and ours
        assert page.of("img") == []
        assert page.of("i") == []
        assert all(not name.startswith("on") for _, attributes in page.elements for name in attributes)
        assert HOSTILE in page.text
        page.specs()


def test_a_run_that_goes_on_is_no_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, other = (write_run(tmp_path / name, evaluations=()) for name in "ab")
    rows = (one / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for folder in (one, other):
        (folder / "metrics.jsonl").write_text(rows[0], encoding="utf-8")
    config = (one / "config.yaml").read_text(encoding="utf-8").replace("interval: -1", "interval: 5")
    (one / "config.yaml").write_text(config, encoding="utf-8")
    opened = RunFolder.open(one, yaml.safe_load(config))
    page = made(one)
    assert page.paragraphs["state running"] == ["Running, iteration 1 of 6 done."]
    assert "missing" not in [one.get("id") for one in page.of("h2")]
    page = made("a", "b")
    opened.close()
    assert page.paragraphs["state running"] == ["a: running, iteration 1 of 6 done."]
    assert page.paragraphs["state"] == [
        "b: stopped after 1 of 6 iterations; the same command goes on from its last checkpoint."
    ]


def test_text_in_scripts() -> None:
    text = in_script({"a": "</script><!--&\u2028", "b": [1, None]})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!--&\u2028", "b": [1, None]}


@pytest.mark.parametrize("name", ["a", "a/eval/000006.json"])
def test_an_empty_or_damaged_run_still_has_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a/eval").mkdir(parents=True)
    Path("a/eval/000006.json").write_text('{"tasks": [', encoding="utf-8")
    assert report.main([name]) == 0
    page = Page(
        Path("report.html").read_text(encoding="utf-8")
    )  # not into a folder that is no run's: none could begin there
    assert "What is missing" in page.text
    assert "is damaged or half written" in page.text
    assert not Path("a/report.html").exists()


def test_videos_that_do_not_fit_are_left_out_and_counted(tmp_path: Path, recording: Path) -> None:
    folder = write_run(tmp_path / "a", per_task=20, evaluations=(0, 3, 6), recording=recording)
    made(folder)
    whole = (folder / "report.html").stat().st_size
    assert report.main([str(folder), "--size", str(whole / 1e6 / 3)]) == 0
    assert (folder / "report.html").stat().st_size <= whole / 3
    page = Page((folder / "report.html").read_text(encoding="utf-8"))
    kept = [one for one in page.of("li") if "data-task" in one]
    assert 4 <= len(kept) < 120
    assert f"{len(kept)} of these are in this file, {120 - len(kept)} are left out" in page.text
    newest = {(one["data-task"], one["data-outcome"]) for one in kept if one["data-iteration"] == "6"}
    assert len(newest) == 4


def test_files_that_are_no_videos_are_not_taken(tmp_path: Path, recording: Path) -> None:
    folder = write_run(tmp_path / "a", recording=recording)
    own = sorted((tmp_path / "videos").rglob("*.mp4"))
    own[0].write_bytes(own[0].read_bytes()[:200])
    own[1].unlink()
    own[2].write_text("something else", encoding="utf-8")
    secret = tmp_path / "secret.txt"
    secret.write_bytes(recording.read_bytes())
    file = folder / "eval" / "000006.json"
    found = json.loads(file.read_text(encoding="utf-8"))
    found["episodes"][-1]["video"] = str(secret)
    file.write_text(json.dumps(found), encoding="utf-8")
    run = read(str(folder))
    chosen = videos.choose([run], 10**9)
    assert (chosen.recorded, len(chosen.videos), chosen.missing, chosen.too_many) == (16, 12, 4, 0)


def test_a_run_that_was_moved_with_its_videos(tmp_path: Path, recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "here" / "a", recording=recording)
    shutil.move(tmp_path / "here", tmp_path / "there")
    monkeypatch.chdir("/")
    assert len(videos.choose([read(str(tmp_path / "there" / "a"))], 10**9).videos) == 16


def test_the_grid_of_the_newest_evaluation_comes_first(tmp_path: Path, recording: Path) -> None:
    folder = write_run(tmp_path / "a", recording=recording)
    for iteration in (0, 6):
        grid = recording.read_bytes() + (8).to_bytes(4) + (b"fre%d" % iteration)
        (tmp_path / "videos" / "a" / f"{iteration:06d}" / "grid.mp4").write_bytes(grid)
    run = read(str(folder))
    chosen = videos.choose([run], 10**9)
    assert [(one.run, one.iteration) for one in chosen.grids] == [(str(folder), 6)]
    assert base64.b64decode(chosen.grids[0].base64) == grid
    assert (chosen.recorded, len(chosen.videos), chosen.missing) == (16, 16, 0)
    small = videos.choose([run], -(-len(grid) // 3) * 4)
    assert (len(small.grids), len(small.videos), small.too_many) == (1, 0, 16)
    page = made(folder)
    assert [one["data-video"] for one in page.of("video")][:2] == ["grid-0", "video-0"]
    assert "grid-0" in [one.get("id") for one in page.of("script")]
    (tmp_path / "videos" / "a" / "000006" / "grid.mp4").write_bytes(grid[:200])
    assert videos.choose([run], 10**9).grids == []


def test_a_thousand_iterations_and_two_hundred_episodes(tmp_path: Path, recording: Path) -> None:
    large = tmp_path / "large.mp4"
    padding = 300_000
    large.write_bytes(recording.read_bytes() + padding.to_bytes(4) + b"free" + bytes(padding - 8))
    folder = write_run(tmp_path / "a", iterations=1000, evaluations=(0, 1000), per_task=50, recording=large)
    began = time.monotonic()
    made(folder)
    assert time.monotonic() - began < 10
    size = (folder / "report.html").stat().st_size
    assert 28e6 < size <= 30e6


def test_the_command_refuses_what_it_cannot_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = str(write_run(tmp_path / "a"))
    for arguments, said in (
        (["runs/nothing"], "there is no runs/nothing"),
        ([folder, "--size", "0"], "--size is 0"),
        ([folder] * 27, "got 27 runs"),
        ([folder, "--out", str(tmp_path / "no" / "file.html")], "cannot write the report"),
    ):
        assert report.main(arguments) == 2
        error = capsys.readouterr().err
        assert said in error
        assert "\n  fix: " in error
    assert not list(tmp_path.rglob("*.part"))


def test_the_only_point_of_a_line_is_drawn():
    one, two = (Line(f"{count}", [Point(step, 0.5) for step in range(count)], 1) for count in (1, 2))
    values = charts.of_lines(Chart("KL", "nats", False, "", [one, two]), "")["data"]["values"]
    assert [row.get("m", False) for row in values] == [True, False, False]
