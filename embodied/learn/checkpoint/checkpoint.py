"""Checkpoints: what is trainable, the optimizer, and where the run stands. Written aside and renamed, so that the
newest complete one is always whole; the frozen base is not saved, since ``actor.model`` says how to make it again.

    checkpoints/000004/           after 4 iterations; 000004+037: and 37 optimizer steps of the next one
        .metadata, __0_0.distcp   torch.distributed.checkpoint: the tensors (state.py), a file a rank
        meta.json                 iteration, plain values, names and shapes of the parameters, facts of the policy

With ``async_save`` the tensors are copied to host memory at once and written by a thread while the run goes on. There
is one such writing at a time; the next save and :meth:`Checkpoints.wait` raise what went wrong in it. The same kind of
copy is taken before an update that may be cut short (:meth:`Checkpoints.keep`), and is written only if it is.

Several ranks save together: what is sharded (DTensor) each its part, what all have rank 0. They load each for itself,
so that any number of ranks can go on from what any other number saved.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException  # a BaseException that stands for any failure in there

from embodied.errors import CheckpointError, DamagedCheckpointError
from embodied.learn.checkpoint.loading import raise_if_stopped, reason_of
from embodied.learn.checkpoint.metadata import Meta, check_files, read_meta
from embodied.learn.checkpoint.snapshot import PARTS, Snapshot, Stager, snapshot_of
from embodied.learn.checkpoint.state import Learner
from embodied.lib.files import checksums, sealed
from embodied.lib.whole import sync_folder, write_whole
from embodied.parallel import collectives as ranks
from embodied.parallel.group import Group

REPLACED = ".replaced-"
NAME = re.compile(r"(\d+)(?:\+(\d+))?")
"""Iterations, and optimizer steps after them."""


def place(path: Path) -> tuple[int, int]:
    """Returns the point of its run at which a checkpoint was saved: iterations, and optimizer steps after them."""
    match = NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2] or 0)


class Checkpoints:
    """The checkpoints of one run. All ranks make the same calls.

    Args:
        folder: ``<run>/checkpoints``.
        max_keep: how many stay; -1 = all.
        async_save: write in the background.
        contents: parts that are saved, see ``runner.checkpoint.save_contents``.
        origin: what each of them says of where its policy comes from (``embodied.learn.origin``), values of JSON.
        completed: is told of each one that is whole (rank 0, in the thread that writes); returns those that are being
            read, which stay until the next is whole.
        among: the ranks that save, if some do not; None = all do.
        saved: is told the learner's state of each one that is whole (every rank, in the thread that writes).
    """

    def __init__(
        self, folder: Path, max_keep: int, async_save: bool = False, origin: Mapping[str, Any] | None = None,
        contents: Sequence[str] = PARTS, completed: Callable[[Path], Collection[Path]] = lambda path: (),
        among: Group | None = None, saved: Callable[[Mapping[str, Any]], None] = lambda state: None,
    ) -> None:  # fmt: skip
        self.folder, self._max_keep, self._async, self._contents = folder, max_keep, async_save, contents
        self._origin, self._completed = dict(origin or {}), completed
        self._thread: ThreadPoolExecutor | None = None
        self._among, self._saved = among, saved
        self._group = None if among is None else ranks.background_group(among)
        self._pending: Future[None] | None = None
        self._stage = Stager()
        self._kept: Snapshot | None = None

    def all(self) -> list[Path]:
        """Lists the complete checkpoints, oldest first."""
        found = [path for path in self.folder.glob("[0-9]*") if NAME.fullmatch(path.name)]
        return sorted((path for path in found if (path / "meta.json").is_file()), key=place)

    def save(self, learner: Learner, iteration: int, run_ids: Mapping[str, str] | None = None, steps: int = 0) -> Path:
        """Save the state of ``learner`` and delete the oldest checkpoints beyond ``max_keep``.

        With ``async_save`` it returns as soon as a copy was taken and the writing before this one has ended.

        Args:
            steps: optimizer steps of the next iteration that are done as well.

        Raises:
            CheckpointError: the disk is full or the folder cannot be written (then by now, or by the writing before);
                what was there stays.
        """
        self.wait()
        thread = self._opened()
        self._kept = None
        snapshot = snapshot_of(learner, iteration, run_ids or {}, steps, self._origin, self._contents, self._among)
        if self._async:
            snapshot = self._copied(snapshot)
            self._pending = thread.submit(self._write, snapshot)
        else:
            self._write(snapshot)
        return self._path(snapshot.meta)

    def keep(self, learner: Learner, iteration: int, run_ids: Mapping[str, str] | None = None) -> None:
        """Copy the state of ``learner`` to host memory, for :meth:`save_kept`; nothing without ``async_save``.

        Raises:
            CheckpointError: as :meth:`wait`.
        """
        if self._async:
            self.wait()
            self._kept = None  # so that there are never two of them
            self._kept = self._copied(
                snapshot_of(learner, iteration, run_ids or {}, 0, self._origin, self._contents, self._among)
            )  # fmt: skip

    def save_kept(self) -> Path | None:
        """Write what :meth:`keep` has copied last, unless something was saved since; None if there is nothing.

        Raises:
            CheckpointError: as :meth:`save`.
        """
        self.wait()
        kept, self._kept = self._kept, None
        if kept is None:
            return None
        self._opened()
        self._write(kept)
        return self._path(kept.meta)

    def _opened(self) -> ThreadPoolExecutor:
        """The thread that writes, with a group of its own among the ranks. All ranks open it together."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
            if self._among is None:
                self._group = ranks.background_group()
        return self._thread

    def _copied(self, snapshot: Snapshot) -> Snapshot:
        return Snapshot(self._stage(snapshot.tensors), snapshot.meta)

    def wait(self) -> None:
        """Waits until no checkpoint is being written.

        Raises:
            CheckpointError: as :meth:`save`, once for each writing that failed.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self, say: Callable[[str], None] = print) -> None:
        """:meth:`wait` for a run that ends with another error: what went wrong in the writing is only said."""
        try:
            self.wait()
        except Exception as error:  # noqa: BLE001  whatever it is, the error that ends the run comes first
            say(f"{type(error).__name__}: {error}")
        if self._thread is not None:
            self._thread.shutdown()

    def clean(self) -> None:
        """Remove what a killed process left half written or half deleted, and bring back what it was replacing."""
        if ranks.here(self._among) != 0:
            return
        for replaced in self.folder.glob(f"{REPLACED}*"):
            final = self.folder / replaced.name.removeprefix(REPLACED)
            if not final.exists():  # it was killed between two renames
                replaced.rename(final)
        for left in self.folder.glob(".*-[0-9]*"):
            shutil.rmtree(left, ignore_errors=True)

    def newest_loadable(self, say: Callable[[str], None] = print) -> tuple[Path, Meta] | None:
        """The newest checkpoint whose files are whole; damaged ones are named and passed over. None if there is none.

        Raises:
            CheckpointError: all are damaged, or one is of another format: starting anew would overwrite the run.
        """
        damaged = 0
        for path in reversed(self.all()):
            try:
                meta = read_meta(path)
                check_files(path, meta)
            except DamagedCheckpointError as error:
                say(f"{error.message}; trying the one before it")
                damaged += 1
                continue
            return path, meta
        if damaged:
            raise CheckpointError(
                f"none of the {damaged} checkpoints in {self.folder} is whole",
                f"restore one from a copy, or remove {self.folder} to start anew",
            )
        return None

    def _path(self, meta: Meta) -> Path:
        return self.folder / (f"{meta.iteration:06d}" + (f"+{meta.steps:03d}" if meta.steps else ""))

    def _write(self, snapshot: Snapshot) -> None:
        """Everything that touches the disk, and only what may run beside the next rollout."""
        final = self._path(snapshot.meta)
        aside = final.with_name(f".writing-{final.name}")
        reason = ""
        try:
            if ranks.here(self._among) == 0:
                shutil.rmtree(aside, ignore_errors=True)
            # Each rank makes the folder again before it tells rank 0 what it will write, and writes after its answer.
            dcp.save(snapshot.tensors, checkpoint_id=aside, process_group=self._group, no_dist=self._group is None)
        except CheckpointException as error:
            raise_if_stopped(error)
            reason = reason_of(error)
        ranks.of_first(lambda: self._complete(snapshot.meta, aside, final, reason), self._group, self._among)
        self._saved(snapshot.meta.trainer)

    def _complete(self, meta: Meta, aside: Path, final: Path, reason: str) -> None:
        """Rank 0: meta.json, the rename, and the end of what is too old; or the error for ``reason``."""
        try:
            if reason:
                raise OSError(reason)
            files = {file.name: file.stat().st_size for file in sorted(aside.iterdir())}
            written = asdict(meta) | {"files": files, "checksums": checksums(aside, files)}
            write_whole(aside / "meta.json", json.dumps(sealed(written), indent=1))
            replaced = _replace(final, aside)
            for folder in (self.folder, self.folder.parent):
                sync_folder(folder)
            shutil.rmtree(replaced, ignore_errors=True)
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise CheckpointError(
                f"cannot write checkpoint {final}: {error}",
                "free space or fix the permissions, then run the same command again; earlier checkpoints are intact",
            ) from error
        read = self._completed(final)
        older = [path for path in self.all() if place(path) <= place(final)]
        for old in older[: -self._max_keep] if self._max_keep > 0 else []:
            if old not in read:
                with suppress(OSError):  # the new one is whole, and the next save tries again
                    _remove(old)


def _replace(final: Path, aside: Path) -> Path:
    """Renames ``aside`` to ``final``; the name under which what was there still lies. A process that is killed in here
    leaves one of the two, which :meth:`Checkpoints.clean` finds, and an error leaves what was there."""
    replaced = final.with_name(f"{REPLACED}{final.name}")
    if not final.exists():
        aside.rename(final)
        return replaced
    final.rename(replaced)
    try:
        aside.rename(final)
    except OSError:
        replaced.rename(final)
        raise
    return replaced


def _remove(folder: Path) -> None:
    """Renames the folder, then deletes it: a process killed in here leaves no checkpoint that only looks whole."""
    if folder.exists():
        aside = folder.with_name(f".removing-{folder.name}")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
