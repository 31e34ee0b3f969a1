"""Uploads the exports of a run (``runner.checkpoint.upload_hf``, ``upload_s3``).

    export is whole ─▶ python -m embodied.tools.upload, a process of its own of the lowest priority; the run goes on
    end of the run  ─▶ uploads are waited for, ``runner.checkpoint.upload_timeout_s`` at most

To each place one folder is sent at a time. An upload that fails stops nothing: the first is said at once, and the
table at the end of the run has all that is missing there, with the command that sends it later. Tokens and keys are
those of the libraries (``HF_TOKEN``, ``AWS_…``): they come through the environment, and stand in no command or file.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection
from pathlib import Path

from fsspec import get_filesystem_class
from fsspec.core import split_protocol

from embodied.errors import ConfigError
from embodied.observe.terminal.console import Console
from embodied.run.folder.beside.beside import NewestNext
from embodied.run.folder.beside.waiting import wait_for
from embodied.runtime.signals import StopSignal
from embodied.schema import CheckpointConfig

PROGRAM = (sys.executable, "-m", "embodied.tools.upload")
HUB = "hf"
STOPPED_S = 5.0  # time limit for uploads after a stop signal, if so much time is granted


class Uploads:
    """Uploads a run's exported folders to the configured stores. Any thread may call it.

    Args:
        run: name of the run.

    Raises:
        ConfigError: a store is of a kind that is not known, or that needs a package which is not installed.
    """

    def __init__(self, run: str, config: CheckpointConfig, console: Console) -> None:
        self._ways: list[_Way] = []
        if config.upload_hf:
            self._ways.append(_Way(f"{HUB}://{config.hf_repo_name}", False, config.upload_hf == "all", console))
        if config.upload_s3:
            assert config.s3_bucket is not None  # the schema refuses it
            place = "/".join([_store(config.s3_bucket), *filter(None, config.s3_prefix.split("/")), run])
            self._ways.append(_Way(place, True, config.upload_s3 == "all", console))
        self._console, self._longest_s = console, config.upload_timeout_s

    @property
    def reading(self) -> Collection[Path]:
        """Exported folders that are being uploaded, or will be."""
        return [folder for way in self._ways for folder in way.reading if folder is not None]

    def exported(self, folder: Path) -> None:
        """Queues the upload of an exported folder, at once or as the last at the end of the run."""
        for way in self._ways:
            way.exported(folder)

    def finish(self, stop: StopSignal) -> None:
        """Waits for the uploads, for a limited time."""
        for way in self._ways:
            way.last()
        if self._sending():
            places = " and ".join(way.place for way in self._ways if way.queue.source is not None)
            with self._console.progress(f"uploading to {places}", brief=True):
                wait_for(lambda: not self._sending(), stop, STOPPED_S, self._longest_s)
        self._end()

    def rows(self) -> list[list[str]]:
        """Rows for the table at the end of a run: the folders that were sent, and those that were not."""
        return [row for way in self._ways for row in way.rows()]

    def close(self) -> None:
        """Ends an upload in progress, and says what is missing if the run has not come to its end."""
        if self._sending() or any(way.pending for way in self._ways):
            self._end()
            for row in self.rows():
                self._console.say(": ".join(row))

    def _sending(self) -> bool:
        return sum(way.queue.goes_on() for way in self._ways) > 0  # each is looked at

    def _end(self) -> None:
        for way in self._ways:
            way.end()


class _Way:
    """The uploads of a run to one place.

    Args:
        place: address of the repository, which has one folder, or of what holds a folder for each.
        each: whether folders lie beside each other there.
        all_of_them: False = the last one alone.
    """

    def __init__(self, place: str, each: bool, all_of_them: bool, console: Console) -> None:
        self.place, self._each, self._all, self._console = place, each, all_of_them, console
        self._sent: list[Path] = []
        self._left: dict[Path, str] = {}  # folder → why it was not sent
        self._newest: Path | None = None  # folder to send at the end
        self._said = False
        self.queue = NewestNext(self._command, self._ended)

    @property
    def pending(self) -> bool:
        return self._newest is not None

    @property
    def reading(self) -> tuple[Path | None, ...]:
        return self.queue.source, self.queue.next, self._newest

    def exported(self, folder: Path) -> None:
        if not self._all:
            self._newest = folder
        elif left_out := self.queue.put(folder):
            self._left[left_out] = "the one before was not ready"

    def last(self) -> None:
        """Begins with the last folder. No more of them come, and the run has nothing else to do."""
        self.queue.hurry()
        newest, self._newest = self._newest, None
        if newest is not None:
            self.queue.put(newest)

    def end(self) -> None:
        """Ends what goes on."""
        waiting = [folder for folder in (self.queue.next, self._newest) if folder is not None]
        self._newest = None
        if (source := self.queue.kill()) is not None:
            waiting.append(source)
        self._left |= dict.fromkeys(waiting, "the run ended before it was sent")

    def rows(self) -> list[list[str]]:
        rows = [["uploaded", self._address(self._sent[-1])]] if self._sent else []
        for folder, why in sorted(self._left.items()):
            later = shlex.join(["python", *PROGRAM[1:], str(folder), "--to", self._address(folder)])
            rows.append(
                [
                    f"{folder.name} not uploaded",
                    later if folder.exists() else f"{why}; since then it was deleted with its checkpoint",
                ]
            )
        return rows

    def _command(self, folder: Path) -> list[str]:
        return [*PROGRAM, str(folder), "--to", self._address(folder)]

    def _ended(self, folder: Path, failure: str) -> None:
        if not failure:
            self._sent.append(folder)
            self._left.pop(folder, None)
            return
        self._left[folder] = failure
        if not self._said:
            self._said = True
            self._console.say(f"{folder} was not uploaded to {self._address(folder)}: {failure}")

    def _address(self, folder: Path) -> str:
        return f"{self.place}/{folder.name}" if self._each else self.place


def _store(bucket: str) -> str:
    """The address of a bucket, which may be one already."""
    kind = split_protocol(bucket)[0] or "s3"
    try:
        get_filesystem_class(kind)
    except ImportError as error:
        extra = "pip install 'embodied-rl[s3]' (from a checkout: pip install -e '.[s3]')"
        raise ConfigError(
            f"runner.checkpoint.upload_s3 to {kind}:// needs a package that is not installed: {error}",
            extra if kind in ("s3", "s3a") else f"install fsspec's package for {kind}",
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"runner.checkpoint.s3_bucket is {bucket!r}, and fsspec knows no {kind}://",
            "give the name of a bucket, or an address of fsspec, e.g. gs://NAME or file:///FOLDER",
        ) from error
    return bucket.rstrip("/") if "://" in bucket else f"s3://{bucket.strip('/')}"
