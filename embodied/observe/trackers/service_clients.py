"""What each service's package is told: its run, metrics, tables, videos. Only the process of the service uses it.

A client is made with what :class:`embodied.observe.trackers.services.Service` sends first: ``id``, ``name``,
``project``, ``group``, ``config``, ``folder`` (the run's), ``pid`` (the run's process).
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

MOST_FRAMES = 150
"""Frames of a GIF; of more, every second, third … is kept."""


class Client(Protocol):
    """Interface of a client of a tracking service, for one run. ``place`` says where the user finds it, or nothing."""

    place: str

    def __init__(self, run: Mapping[str, Any]) -> None: ...

    def log(self, step: int, metrics: dict[str, float]) -> None: ...

    def table(self, step: int, name: str, columns: list[str], rows: list[list[Any]]) -> None: ...

    def video(self, step: int, name: str, file: str) -> None: ...

    def close(self) -> None: ...


class Wandb:
    """Client of Weights & Biases. It ignores steps below the last one, so metrics, which come last, close a step."""

    def __init__(self, run: Mapping[str, Any]) -> None:
        import wandb

        self._wandb = wandb
        self._run = wandb.init(
            project=run["project"], name=run["name"], group=run["group"], id=run["id"], resume="allow",
            dir=run["folder"], config=run["config"],
            settings=wandb.Settings(console="off", x_stats_pid=run["pid"]),
        )  # fmt: skip
        offline = self._run.settings.mode in ("offline", "dryrun")
        self.place = f"wandb sync {Path(self._run.dir).parent} uploads it" if offline else str(self._run.url or "")

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self._run.log(metrics, step=step, commit=True)

    def table(self, step: int, name: str, columns: list[str], rows: list[list[Any]]) -> None:
        self._run.log({name: self._wandb.Table(columns=columns, data=rows)}, step=step)

    def video(self, step: int, name: str, file: str) -> None:
        self._run.log({name: self._wandb.Video(file, format="mp4")}, step=step)

    def close(self) -> None:
        self._run.finish()


class SwanLab:
    """Client of SwanLab. Of videos it takes GIFs alone."""

    def __init__(self, run: Mapping[str, Any]) -> None:
        import swanlab

        self._swanlab, self._folder = swanlab, Path(run["folder"]) / "swanlab"
        self._folder.mkdir(exist_ok=True)
        self._run = swanlab.init(
            project=run["project"], name=run["name"], group=run["group"], id=run["id"], resume="allow",
            log_dir=str(self._folder), config=run["config"],
        )  # fmt: skip
        try:
            self.place = str(self._run.url)
        except ValueError:  # it has none unless it is online
            self.place = f"swanlab sync {self._folder}/run-… uploads it"

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self._run.log(metrics, step=step)

    def table(self, step: int, name: str, columns: list[str], rows: list[list[Any]]) -> None:
        table = self._swanlab.echarts.Table()
        table.add(columns, rows)
        self._run.log({name: table}, step=step)

    def video(self, step: int, name: str, file: str) -> None:
        self._run.log({name: self._swanlab.Video(as_gif(Path(file)))}, step=step)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """Client of MLflow: a database in the run's folder, unless ``MLFLOW_TRACKING_URI`` names a server."""

    def __init__(self, run: Mapping[str, Any]) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.tracking import MlflowClient

        folder, server = Path(run["folder"]), os.environ.get("MLFLOW_TRACKING_URI")
        uri = server or f"sqlite:///{folder / 'mlflow.db'}"
        artifacts = None if server else (folder / "mlartifacts").as_uri()
        self._client = client = MlflowClient(tracking_uri=uri)
        known = client.get_experiment_by_name(run["project"])
        experiment = known.experiment_id if known else client.create_experiment(run["project"], artifacts)
        found = client.search_runs([experiment], f"tags.embodied_id = '{run['id']}'")
        if found:
            self._id = found[0].info.run_id
            client.update_run(self._id, status="RUNNING")
        else:
            tags = {"embodied_id": run["id"]} | ({"group": run["group"]} if run["group"] else {})
            self._id = client.create_run(experiment, tags=tags, run_name=run["name"]).info.run_id
            self._params(run["config"])
        client.log_dict(self._id, run["config"], "config.yaml")
        self.place = f"{uri}, experiment {run['project']}, run {self._id}"

    def _params(self, config: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(mlflow_name(key)[:250], str(value)[:6000]) for key, value in flat(config)]
        for some in _in_batches(params, 100):
            self._client.log_batch(self._id, params=some)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        every = [Metric(mlflow_name(name), value, now, step) for name, value in metrics.items()]
        for some in _in_batches(every, 1000):
            self._client.log_batch(self._id, metrics=some)

    def table(self, step: int, name: str, columns: list[str], rows: list[list[Any]]) -> None:
        data = {"columns": columns, "data": rows}  # as MLflow's own log_table writes it
        self._client.log_dict(self._id, data, f"{name}/{step:06d}.json")

    def video(self, step: int, name: str, file: str) -> None:
        self._client.log_artifact(self._id, file, f"{Path(name).parent}/{step:06d}")

    def close(self) -> None:
        self._client.set_terminated(self._id)


class Trackio:
    """Client of Trackio, which knows a run by its name, so the name holds the id."""

    def __init__(self, run: Mapping[str, Any]) -> None:
        import trackio

        self._trackio = trackio
        name = f"{run['name']}-{run['id'][:8]}"
        self._run = trackio.init(
            project=run["project"], name=name, group=run["group"], resume="allow", config=run["config"], embed=False
        )
        self.place = f"trackio show --project {run['project']}, run {name}"

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self._run.log(metrics, step=step)

    def table(self, step: int, name: str, columns: list[str], rows: list[list[Any]]) -> None:
        self._run.log({name: self._trackio.Table(columns=columns, data=rows)}, step=step)

    def video(self, step: int, name: str, file: str) -> None:
        self._run.log({name: self._trackio.Video(file)}, step=step)

    def close(self) -> None:
        self._run.finish()


CLIENTS: dict[str, type[Client]] = {"wandb": Wandb, "swanlab": SwanLab, "mlflow": MLflow, "trackio": Trackio}


def as_gif(video: Path) -> bytes:
    """Returns an mp4 file as a GIF of the same speed, with at most :data:`MOST_FRAMES` frames."""
    import imageio.v3 as imageio

    frames, fps = imageio.imread(video, plugin="FFMPEG"), imageio.immeta(video, plugin="FFMPEG")["fps"]
    every = -(-len(frames) // MOST_FRAMES)
    return imageio.imwrite("<bytes>", frames[::every], extension=".gif", duration=1000 * every / fps, loop=0)


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Flattens a nested configuration to ``(dotted key, value)``; lists are written as JSON."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value, default=str) if isinstance(value, list) else value


def mlflow_name(name: str) -> str:
    """Returns a name with the characters that MLflow takes: ``avg@8`` becomes ``avg_at_8``."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"))


def _in_batches(values: list[Any], size: int) -> Iterator[list[Any]]:
    return (values[i : i + size] for i in range(0, len(values), size))
