"""Keeps finished episodes of an evaluation in a file: an evaluation that was killed goes on from them.

<run>/.unfinished/000000.jsonl      {"identity": "3f0c…"}, then a line for each episode that has ended

Episodes do not depend on each other (their noise is a function of seed, episode and record), so those that were run
before and those that are run now give the numbers of an evaluation that was not interrupted. The identity is a hash of
all that they may depend on; a file of another identity is written anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import IO, Any

from embodied.lib.whole import write_whole
from embodied.protocols import NamesWeights, TaskKinds
from embodied.types import Episode, EpisodeResult

KEPT = tuple(
    field.name for field in fields(EpisodeResult) if field.name not in ("episode", "rows", "leases", "info", "rank")
)
"""Fields of a result that are written; the others are those of a slab that is gone."""


HARMLESS = (
    "runner.logger", "runner.checkpoint", "runner.stop_timeout_s", "runner.resume_dir", "env.eval.video_cfg",
    "env.train.video_cfg", "env.num_workers", "env.pin_workers", "env.init_timeout_s", "env.reset_timeout_s",
    "env.step_timeout_s", "env.start_method", "env.channel", "actor.channel", "cluster",
    "rollout.trace",
)  # fmt: skip
"""Keys on which no episode of an evaluation depends."""


class Unfinished:
    """The finished episodes of an interrupted evaluation, in a file of each process, from which it resumes.

    Args:
        file: it is made when the first episode ends; None: nothing is kept.
        identity: hash of what the episodes depend on.
    """

    def __init__(self, file: Path | None, identity: str) -> None:
        self._path, self._identity = file, identity
        self._file: IO[str] | None = None
        self.kept = 0  # episodes that are in the file
        self._foreign = 0  # episodes of another identity, which are not used
        self.results: dict[int, EpisodeResult] = {}  # results of the earlier attempt, by episode_id
        self.texts: list[dict[str, Any]] = []  # answers of these episodes, as far as they are kept for reading
        self._lines: list[Any] = []  # lines of the file with these episodes

    def read(self, plan: Sequence[Episode]) -> None:
        """Reads the episodes that had ended before the interruption. What is damaged or of another identity counts as
        not there."""
        by_id = {episode.episode_id: episode for episode in plan}
        lines = [*_lines(self._path)] if self._path is not None else []
        if not lines or lines[0] != {"identity": self._identity}:
            self._foreign = len(lines[1:])
            return
        with suppress(KeyError, TypeError, AttributeError):  # a malformed line, and all after it, is dropped
            for line in lines[1:]:
                planned = by_id[line["episode"]]
                episode = replace(planned, video=line["video"])
                result = EpisodeResult(episode, (), **line["result"], info=line["info"])
                self.texts += [line["text"]] if line["text"] else []
                self.results[episode.episode_id] = result
                self._lines.append(line)
        self.kept = len(self.results)

    def remark(self, planned: int) -> str:
        """Says how many of the planned episodes were run before, or that those that were are not used; else empty."""
        if self._foreign:
            return f"{self._foreign} episodes were run under other conditions: all are run anew"
        return f"{self.kept} of {planned} episodes were run before; the others follow" if self.kept else ""

    def add(self, result: EpisodeResult, text: Mapping[str, Any] | None = None) -> None:
        """Appends an episode that has ended to the file.

        Args:
            text: its answer, if that is kept for reading.
        """
        if self._path is None:
            return
        if self._file is None:
            self._file = self._open(self._path)
        kept = {name: getattr(result, name) for name in KEPT} | {"last_row": -1, "final_row": -1}
        line = {"episode": result.episode.episode_id, "video": result.episode.video, "result": kept}
        self._file.write(json.dumps(line | {"info": dict(result.info), "text": text}) + "\n")
        self._file.flush()
        self.kept += 1

    def _open(self, path: Path) -> IO[str]:
        """Writes what was good anew, in one step, and goes on behind it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "".join(f"{json.dumps(line)}\n" for line in [{"identity": self._identity}, *self._lines]))
        return path.open("a", encoding="utf-8")

    def close(self) -> None:
        """Ends writing; the file stays."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _lines(file: Path) -> Iterator[Any]:
    """Yields the whole lines of a file of JSON lines."""
    try:
        for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
            if not line.endswith("\n"):
                return
            yield json.loads(line)
    except (OSError, ValueError):
        return


def identity_of_files(folder: Path) -> list[list[Any]]:
    """Lists name, size and time of change of a folder's files, for the identity of a resumable evaluation."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [[str(path.relative_to(folder)), *_state(path)] for path in files]


def identity_of_config(resolved: Mapping[str, Any]) -> list[Any]:
    """Returns what of a configuration determines episodes, for the identity of a resumable evaluation, and the state of
    the files and folders that it names: weights, adapters, data, whatever key it is that names them."""
    values = {key: value for key, value in _flat(resolved) if not key.startswith(HARMLESS)}
    texts = {value for value in values.values() if isinstance(value, str)}
    named = sorted(text for text in texts if ("/" in text or "." in text) and os.path.isfile(text))
    folders = sorted({text for key, text in values.items() if isinstance(text, str) and _names_folder(key, text)})
    run = Path(resolved["runner"]["logger"]["log_path"] or "").absolute()
    folders = [
        text for text in folders if not run.is_relative_to(_folder(text).absolute())
    ]  # the evaluation changes it
    return [
        values, [[path, *_state(Path(path))] for path in named],
        [[text, identity_of_files(_folder(text))] for text in folders],
    ]  # fmt: skip


def _names_folder(key: str, text: str) -> bool:
    """Returns whether a value is the path of a folder. A plain word is one where the key says that it is a path."""
    last = next(part for part in reversed(key.split(".")) if not part.isdigit())
    path = "/" in text or last.endswith(("path", "paths", "dir", "folder"))
    return path and bool(text) and os.path.isdir(_folder(text))


def _folder(text: str) -> Path:
    return Path(text).expanduser()


def _flat(values: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from _flat(value, f"{key}.{name}".lstrip("."))
    elif isinstance(values, list | tuple):
        for place, value in enumerate(values):
            yield from _flat(value, f"{key}.{place}")
    else:
        yield key, values


def _state(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def of_plan(plan: Sequence[Episode]) -> list[Any]:
    """Returns a plan as JSON values, for the identity of a resumable evaluation. Where a video goes is no
    part of it."""
    return [asdict(episode) | {"video": None} for episode in plan]


def of_tasks(tasks: Sequence[str], kinds: TaskKinds | None) -> list[Any]:
    """Returns what a plan's numbers of tasks mean, for the identity of a resumable evaluation, as the end of a list.
    Empty of tasks without kinds: configuration and versions, which are in the identity, determine them. Which
    variations a sample has depends on what is installed, too."""
    return [[list(tasks), list(kinds.names)]] if kinds else []


def of_weights(policy: object) -> list[Mapping[str, str]]:
    """Returns whose weights answer, of a policy that has them elsewhere, as the end of a list."""
    return [policy.weights()] if isinstance(policy, NamesWeights) else []
