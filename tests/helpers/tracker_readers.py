"""Prints what a tracker's package has written, as JSON; run with the Python that has the package.

python tracker_readers.py wandb|swanlab|mlflow|trackio RUN_FOLDER
→ {"runs": [id of each run], "metrics": {name: [[step, value], …]}, "tables": {name: {step: rows}}, "videos": bytes
   of each, "config": text, "group": …}
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FULL, LAST = 1, 4
BLOCK, HEAD = 32768, 7


def records(file: Path) -> Iterator[bytes]:
    """Records of wandb's file: LevelDB's log format behind a header of 7 bytes."""
    data, at, whole = file.read_bytes(), HEAD, b""
    while at + HEAD <= len(data):
        if (left := BLOCK - at % BLOCK) < HEAD:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + HEAD])
        whole += data[at + HEAD : at + HEAD + size]
        at += HEAD + size
        if kind in (FULL, LAST):
            yield whole
            whole = b""


def sorted_metrics(found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: sorted(values) for name, values in found.items()}


def wandb(folder: Path) -> dict[str, Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    runs, metrics, tables, videos, config, groups = [], defaultdict(list), defaultdict(dict), [], "", set()
    for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        for data in records(file):
            record = Record()
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                runs.append(record.run.run_id)
                groups.add(record.run.run_group)
                config += "".join(f"{one.key} {one.value_json}\n" for one in record.run.config.update)
            if kind == "history":
                nested: dict[str, dict[str, Any]] = defaultdict(dict)
                for item in record.history.item:
                    keys = [item.key] if item.key else list(item.nested_key)
                    value = json.loads(item.value_json)
                    nested[keys[0]][keys[1] if len(keys) > 1 else ""] = value
                step = record.history.step.num
                for name, parts in nested.items():
                    media = file.parent / "files" / str(parts.get("path", "-"))
                    if parts.get("_type") == "table-file":
                        tables[name][step] = json.loads(media.read_text(encoding="utf-8"))["data"]
                    elif parts.get("_type") == "video-file":
                        videos.append(media.stat().st_size)
                    elif "" in parts:
                        metrics[name].append([step, parts[""]])
    return {"runs": runs, "metrics": metrics, "tables": tables, "videos": videos, "config": config,
            "group": groups.pop()}  # fmt: skip


def swanlab(folder: Path) -> dict[str, Any]:
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    runs, metrics, tables, videos, config, groups = [], defaultdict(list), defaultdict(dict), [], "", set()
    for file in sorted(folder.glob("swanlab/run-*/run-*.swanlab")):
        reader = DataStoreReader()
        reader.open(file)
        for data in reader:
            record = Record()
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "start":
                runs.append(record.start.id)
                groups.add(record.start.group)
            if kind == "scalar":
                metrics[record.scalar.key].append([record.scalar.step, record.scalar.value.number])
            if kind == "media":
                for one in record.media.value.items:
                    (media,) = file.parent.glob(f"media/**/{one.filename}")
                    if media.suffix == ".gif":
                        videos.append(media.stat().st_size)
                    else:
                        rows = json.loads(media.read_text(encoding="utf-8"))["rowData"]
                        tables[record.media.key][record.media.step] = [list(row.values()) for row in rows]
        config += (file.parent / "files" / "config.yaml").read_text(encoding="utf-8")
    return {"runs": runs, "metrics": sorted_metrics(metrics), "tables": tables, "videos": videos, "config": config,
            "group": groups.pop()}  # fmt: skip


def mlflow(folder: Path) -> dict[str, Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    found = client.search_runs([client.get_experiment_by_name("embodied").experiment_id])
    metrics, tables, videos, config = {}, defaultdict(dict), [], ""
    for run in found:
        for name in run.data.metrics:
            metrics[name] = [[one.step, one.value] for one in client.get_metric_history(run.info.run_id, name)]
        files = Path(client.download_artifacts(run.info.run_id, ""))
        for file in files.rglob("eval/*/*.json"):
            tables[str(file.parent.relative_to(files))][int(file.stem)] = json.loads(file.read_text(encoding="utf-8"))[
                "data"
            ]
        videos += [file.stat().st_size for file in files.rglob("*.mp4")]
        config += (files / "config.yaml").read_text(encoding="utf-8") + json.dumps(run.data.params)
    return {"runs": [run.data.tags["embodied_id"] for run in found], "metrics": sorted_metrics(metrics),
            "tables": tables, "videos": videos, "config": config, "group": found[0].data.tags["group"],
            "status": [run.info.status for run in found]}  # fmt: skip


def trackio(folder: Path) -> dict[str, Any]:
    place = Path(os.environ["TRACKIO_DIR"])
    database = sqlite3.connect(place / "embodied.db")
    runs, metrics, tables, videos = [], defaultdict(list), defaultdict(dict), []
    for run, step, logged in database.execute("select run_name, step, metrics from metrics order by id"):
        if run not in runs:
            runs.append(run)
        for name, value in json.loads(logged).items():
            if not isinstance(value, dict):
                metrics[name].append([step, value])
            elif value["_type"] == "trackio.table":
                tables[name][step] = [list(row.values()) for row in value["_value"]]
            elif value["_type"] == "trackio.video":
                videos.append((place / "media" / value["file_path"]).stat().st_size)
    config = "".join(
        str(row[0], "utf-8") if isinstance(row[0], bytes) else row[0]
        for row in database.execute("select config from configs")
    )
    return {"runs": runs, "metrics": sorted_metrics(metrics), "tables": tables, "videos": videos, "config": config,
            "group": json.loads(config)["_Group"]}  # fmt: skip


if __name__ == "__main__":
    print("\n" + json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]).absolute())))
