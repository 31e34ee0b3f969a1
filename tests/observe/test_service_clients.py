"""What the packages of SwanLab, MLflow and Trackio are told, with packages of the tests in their place.

``tests/observe/test_trackers_real.py`` has the packages themselves.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodied.observe.trackers.service_clients import CLIENTS, MOST_FRAMES, as_gif
from embodied.observe.video.video import VideoWriter

METRICS = {"train/loss": 2.0, "eval/avg@8": 0.5}
COLUMNS, ROWS = ["prompt", "answer"], [["1 + 1", "2"]]


class Recorder:
    """Notes each call: the dotted name, positional and named arguments. What it gives back is one as well."""

    def __init__(self, calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]], name: str = "") -> None:
        self._calls, self._name = calls, name

    def __getattr__(self, name: str) -> Recorder:
        return Recorder(self._calls, f"{self._name}.{name}".removeprefix("."))

    def __call__(self, *given: Any, **named: Any) -> Recorder:
        self._calls.append((self._name, given, named))
        return Recorder(self._calls, f"{self._name}()")

    def __fspath__(self) -> str:
        return "made"


@pytest.fixture
def video(tmp_path: Path) -> Path:
    with VideoWriter(tmp_path / "videos.mp4", 10.0, "go", info=False) as writer:
        for step in range(3):
            writer.add(np.full((32, 32, 3), 80 * step, np.uint8), step, 0.0, False)
    return tmp_path / "videos.mp4"


def told(tmp_path: Path, video: Path, service: str, package: Any) -> Any:
    """A run of one step at the service."""
    about = {
        "id": "0123456789abcdef", "name": "run", "project": "p", "group": "g", "config": {"seed": 1},
        "folder": str(tmp_path), "pid": 1,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, module in package.items():
            patch.setitem(sys.modules, name, module)
        client = CLIENTS[service](about)
        client.table(3, "eval/texts", COLUMNS, ROWS)
        client.video(3, "eval/video/000", str(video))
        client.log(3, METRICS)
        client.close()
    return client


def named(calls: list[Any], name: str) -> list[Any]:
    return [(given, named) for found, given, named in calls if found == name]


def test_trackio_is_told_everything_under_a_name_with_the_id(tmp_path, video):
    calls: list[Any] = []
    client = told(tmp_path, video, "trackio", {"trackio": Recorder(calls)})
    ((_, begun),) = named(calls, "init")
    assert {"project": "p", "name": "run-01234567", "group": "g", "resume": "allow"}.items() <= begun.items()
    assert begun["config"] == {"seed": 1}
    assert named(calls, "Table") == [((), {"columns": COLUMNS, "data": ROWS})]
    assert named(calls, "Video") == [((str(video),), {})]
    table, shown, metrics = named(calls, "init().log")
    assert [*table[0][0], *shown[0][0]] == ["eval/texts", "eval/video/000"]
    assert metrics == ((METRICS,), {"step": 3})
    assert table[1] == shown[1] == {"step": 3}
    assert named(calls, "init().finish") == [((), {})]
    assert client.place == "trackio show --project p, run run-01234567"


def test_swanlab_is_told_everything_with_videos_as_gifs(tmp_path, video):
    calls: list[Any] = []
    told(tmp_path, video, "swanlab", {"swanlab": Recorder(calls)})
    ((_, begun),) = named(calls, "init")
    wanted = {"project": "p", "name": "run", "group": "g", "id": "0123456789abcdef", "resume": "allow"}
    assert wanted.items() <= begun.items()
    assert (begun["log_dir"], begun["config"]) == (str(tmp_path / "swanlab"), {"seed": 1})
    assert named(calls, "echarts.Table().add") == [((COLUMNS, ROWS), {})]
    (((gif,), _),) = named(calls, "Video")
    assert gif.startswith(b"GIF8")
    table, shown, metrics = named(calls, "init().log")
    assert [*table[0][0], *shown[0][0]] == ["eval/texts", "eval/video/000"]
    assert metrics == ((METRICS,), {"step": 3})
    assert table[1] == shown[1] == {"step": 3}
    assert named(calls, "init().finish") == [((), {})]


@pytest.mark.parametrize("known", [True, False])
def test_mlflow_is_told_everything_and_finds_its_run_again(tmp_path, video, known, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    calls: list[Any] = []
    found = [SimpleNamespace(info=SimpleNamespace(run_id="old"))] if known else []
    made = SimpleNamespace(info=SimpleNamespace(run_id="new"))

    class Client(Recorder):
        def __init__(self, **options: str) -> None:
            super().__init__(calls)
            self(**options)

        def get_experiment_by_name(self, name: str) -> Any:
            return SimpleNamespace(experiment_id="7") if known else None

        def search_runs(self, experiments: list[str], wanted: str) -> list[Any]:
            assert wanted == "tags.embodied_id = '0123456789abcdef'"
            return found

        def create_run(self, *given: Any, **named: Any) -> Any:
            calls.append(("create_run", given, named))
            return made

    entities = SimpleNamespace(
        Param=lambda key, value: (key, value), Metric=lambda name, value, when, step: (name, value, step)
    )
    client = told(
        tmp_path, video, "mlflow", {"mlflow": Recorder([]), "mlflow.tracking": SimpleNamespace(MlflowClient=Client),
                                    "mlflow.entities": entities},
    )  # fmt: skip
    run = "old" if known else "new"
    assert calls[0] == ("", (), {"tracking_uri": f"sqlite:///{tmp_path / 'mlflow.db'}"})
    assert named(calls, "update_run") == ([(("old",), {"status": "RUNNING"})] if known else [])
    batches = named(calls, "log_batch")
    if not known:
        ((_, begun),) = named(calls, "create_run")
        assert begun == {"tags": {"embodied_id": "0123456789abcdef", "group": "g"}, "run_name": "run"}
        assert batches.pop(0) == (("new",), {"params": [("seed", "1")]})
    assert batches == [((run,), {"metrics": [("train/loss", 2.0, 3), ("eval/avg_at_8", 0.5, 3)]})]
    assert named(calls, "log_dict") == [
        ((run, {"seed": 1}, "config.yaml"), {}),
        ((run, {"columns": COLUMNS, "data": ROWS}, "eval/texts/000003.json"), {}),
    ]
    assert named(calls, "log_artifact") == [((run, str(video), "eval/video/000003"), {})]
    assert named(calls, "set_terminated") == [((run,), {})]
    assert client.place.endswith(f"experiment p, run {run}")


def test_a_gif_has_at_most_so_many_frames_and_the_video_s_speed(tmp_path):
    import imageio.v3 as imageio

    count = 2 * MOST_FRAMES + 10
    with VideoWriter(tmp_path / "long.mp4", 50.0, "go", info=False) as writer:
        for step in range(count):
            writer.add(np.full((16, 16, 3), step % 256, np.uint8), step, 0.0, False)
    gif = as_gif(tmp_path / "long.mp4")
    assert 0.3 * MOST_FRAMES < len(imageio.imread(gif, extension=".gif")) <= MOST_FRAMES
    shown_s = imageio.immeta(gif, extension=".gif")["duration"] / 1000
    assert shown_s == pytest.approx(3 / 50), "every third frame, each three times as long"
