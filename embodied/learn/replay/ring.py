"""The ring: the last ``capacity`` records that were appended, in files of a folder of the run.

Records are numbered as they are appended, and none is written over another. So a run that was killed returns to any
point whose records are still there, and appends again from it:

    deleted │ kept for the last checkpoints │ the ring: what is sampled │ written after the checkpoint, not counted yet
            └───────── total at the oldest kept checkpoint - capacity   └── total of the state that was loaded

What the ring no longer samples is deleted once a later checkpoint is whole (:meth:`Replay.saved`), a file at a time.
So the disk holds ``capacity`` records, and those that were appended since the oldest of the :data:`KEPT` last
checkpoints. An earlier checkpoint restores weights, and not these records: :meth:`Replay.load_state_dict` says so.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from embodied.errors import CheckpointError, ConfigError, DamagedCheckpointError
from embodied.learn.replay import header as headers
from embodied.learn.replay.header import FORMAT, Header, check_same, shown
from embodied.learn.replay.opening import check_room, checked, locked, made
from embodied.learn.replay.segments import CHAIN, Layout, Segments
from embodied.learn.replay.sums import chained
from embodied.protocols import DEMONSTRATED
from embodied.types import ArraySpec

KEPT = 2  # checkpoints that can be returned to: the last, and the one before it if the last is damaged
TAKEN = 2  # states that were given and may yet become checkpoints: one that is being written, one in host memory
FILES = 16  # the ring has at least so many, so that little more than its capacity is on the disk
MOST_FILES = 128
FILE_BYTES = 1 << 28
LEAST_BYTES = 1 << 24  # of a file of a large ring, so that a run that goes on for longer than planned has few files
PIECE = 1 << 24  # bytes that are written at a time, so that memory stays flat
ANEW = "start anew under another runner.experiment_name"


def most_records(fields: Mapping[str, ArraySpec], capacity: int, max_gb: float | None) -> int:
    """Returns how many records a ring holds; arguments as of :meth:`Replay.open`."""
    return capacity if max_gb is None else min(capacity, int(max_gb * 10**9 / Layout(fields, 1).record_bytes))


def _per_file(one: int, most: int, room: int) -> int:
    """Returns the records of a file of a ring of ``most`` records of ``one`` byte each, of which ``room`` will come."""
    fits = min(room // FILES, max(FILE_BYTES // one, room // MOST_FILES))
    return max(1, min(most // FILES, max(LEAST_BYTES // one, fits)))


class Replay:
    """A ring of records. Index 0 is the oldest record that it holds.

    One process writes it. :meth:`batch` may be called by another thread while one appends.

    Example:
        >>> import tempfile
        >>> ring = Replay.open(Path(tempfile.mkdtemp()), {"reward": ArraySpec((), "float32")}, 3, None, "example")
        >>> ring.append({"reward": np.arange(5, dtype=np.float32)})
        >>> len(ring), ring.total, ring.batch(np.array([0, 2]))["reward"].tolist()
        (3, 5, [2.0, 4.0])
    """

    def __init__(self, folder: Path, layout: Layout, header: Header, lock: int, room: int) -> None:
        self.folder, self.capacity, self._header = folder, header.capacity, header
        self._layout, self._files, self._lock = layout, Segments(folder, layout), lock
        self._begun = False  # whether anything was written or deleted since it was opened
        self._total, self._chain = 0, 0
        self._taken: list[int] = []
        self._guard = threading.RLock()
        self._transition = np.zeros(room, bool)  # by number modulo capacity; as long as it, or as what came so far
        self._demonstrated = np.zeros(room, bool)
        self._waits = False  # whether the last record's episode goes on
        self._listed: dict[str, tuple[int, np.ndarray]] = {}

    @classmethod
    def open(
        cls, folder: Path, fields: Mapping[str, ArraySpec], capacity: int, max_gb: float | None, origin: str,
        rank: tuple[int, int] = (0, 1), expected: int | None = None,
    ) -> Replay:  # fmt: skip
        """Opens the ring of a folder, which is made if it is not there. It is empty until a state is loaded.

        Args:
            fields: of a record. Where ``num_steps`` is among them, an entry with 0 is no transition; ``demonstrated``
                marks those that count as demonstrations.
            capacity: most records.
            max_gb: most GB (10⁹ bytes) of them; the smaller of both holds. None = as many as ``capacity`` take.
            origin: of what env and policy the records are. Another one's are refused.
            rank: of the process that appends them, and how many there are. Each has a folder of its own.
            expected: records that will ever be appended: files and memory are laid out for no more of them. It changes
                nothing else, and more may come. None = it is not known.

        Raises:
            ConfigError: not even one record fits.
            RunFolderError: the folder holds another run's records, is in use, or its disk has too little room.
            DamagedCheckpointError: what the folder says of itself is damaged.
        """
        one = Layout(fields, 1).record_bytes
        most = most_records(fields, capacity, max_gb)
        if most < 1:
            raise ConfigError(
                f"a replay of {capacity} records and {max_gb} GB holds none: a record takes {one / 2**20:.2f} MiB",
                "raise algorithm.replay.capacity or algorithm.replay.max_gb",
            )
        room = most if expected is None else max(1, min(most, expected))
        layout = Layout(fields, _per_file(one, most, room))
        made(folder)
        lock = locked(folder)
        try:
            here, there = Header(FORMAT, origin, shown(fields), most, layout.per_file, list(rank)), headers.read(folder)
            if there is not None:
                check_same(folder, there, here)
                layout = Layout(fields, there.per_file)
            check_room(folder, layout.disk_bytes(room), Segments(folder, layout).held_bytes(), room)
            ring = cls(folder, layout, here if there is None else there, lock, room)
            if there is None:
                headers.write(folder, here)
        except BaseException:
            os.close(lock)
            raise
        return ring

    @property
    def record_bytes(self) -> int:
        """Bytes of a record on the disk."""
        return self._layout.record_bytes

    @property
    def disk_bytes(self) -> int:
        """Bytes on the disk of a full ring. Those of the records come on top that were appended since the oldest of
        the last :data:`KEPT` checkpoints."""
        return self._layout.disk_bytes(self.capacity)

    @property
    def room(self) -> int:
        """Records that memory is laid out for: ``capacity``, or fewer while no more are expected."""
        return len(self._transition)

    @property
    def fields(self) -> Mapping[str, ArraySpec]:
        """Fields of a record."""
        return self._layout.fields

    @property
    def total(self) -> int:
        """Records ever appended."""
        return self._total

    def __len__(self) -> int:
        return min(self._total, self.capacity)

    @property
    def transitions(self) -> np.ndarray:
        """Indices of the records that are transitions, int64 in order: all but the final observations of episodes that
        were cut off, and a last record whose next entry is not there."""
        return self._found("transitions", self._transition)

    @property
    def demonstrated(self) -> np.ndarray:
        """Indices of the transitions that count as demonstrations: int64, in order."""
        return self._found(DEMONSTRATED, self._transition & self._demonstrated)

    def _found(self, name: str, marks: np.ndarray) -> np.ndarray:
        with self._guard:
            at, found = self._listed.get(name, (-1, marks))
            if at != self._total:
                numbers = np.arange(self._total - len(self), self._total)
                found = np.flatnonzero(marks[numbers % self.capacity])
                if self._waits and len(found) and found[-1] == len(self) - 1:
                    found = found[:-1]
                self._listed[name] = self._total, found
            return found

    def append(self, records: Mapping[str, np.ndarray]) -> None:
        """Appends n records, [n, …] each; the oldest leave the ring.

        Raises:
            SpecMismatchError: fields, shapes or dtypes are others than the ring's.
            CheckpointError: the folder holds records of checkpoints, and none of them was loaded.
            RunFolderError: the disk is full. None of these records is appended then.
        """
        count = checked(records, self.fields)
        if not count:
            return
        with self._guard:
            self._begin()
            self._free()
            first, chain = self._total, self._chain
            self._files.reserve(first, first + count)
            done, most = 0, max(1, PIECE // self.record_bytes)
            while done < count:
                number = first + done
                size = min(count - done, self._layout.per_file - number % self._layout.per_file, most)
                piece = {name: records[name][done : done + size] for name in self.fields}
                chain = self._files.write(number, piece, chain)
                done += size
            self._total, self._chain = first + count, chain
            self._mark(first, records)

    def _begin(self) -> None:
        """Before the first change: checkpoints that were made after the loaded state are no longer returned to."""
        if self._begun:
            return
        if self._total == 0 and self._header.saved and max(self._header.saved) > 0:
            raise CheckpointError(
                f"{self.folder} holds replayed records of a checkpoint, and this run has not gone on from it",
                f"go on from the run's newest checkpoint (runner.resume_dir=auto), or {ANEW}",
            )
        self._keep([total for total in self._header.saved if total <= self._total])
        self._begun = True

    def _keep(self, saved: Iterable[int]) -> None:
        kept = sorted(set(saved))[-KEPT:]
        if kept != self._header.saved:
            self._header = replace(self._header, saved=kept)
            headers.write(self.folder, self._header)

    def _mark(self, first: int, records: Mapping[str, np.ndarray]) -> None:
        """Notes which of n > 0 records are transitions and demonstrations. They are numbered from ``first``."""
        count = len(next(iter(records.values())))
        self._grow(first + count)
        start = max(0, count - self.capacity)
        places = np.arange(first + start, first + count) % self.capacity
        self._transition[places] = records["num_steps"][start:] > 0 if "num_steps" in self.fields else True
        if DEMONSTRATED in self.fields:
            self._demonstrated[places] = records[DEMONSTRATED][start:]
        self._waits = "terminated" in self.fields and not records["terminated"][-1]

    def _grow(self, total: int) -> None:
        """Makes room for ``total`` records, where more come than were expected."""
        if self.room < min(total, self.capacity):
            more = np.zeros(min(max(total, 2 * self.room), self.capacity) - self.room, bool)
            self._transition = np.concatenate([self._transition, more])
            self._demonstrated = np.concatenate([self._demonstrated, more])

    def _free(self) -> None:
        """Deletes the files that neither the ring nor a checkpoint needs."""
        needed = min([self._total, *self._header.saved, *self._taken]) - self.capacity
        for number in self._files.there():
            if (number + 1) * self._layout.per_file <= needed:
                self._files.remove(number)

    def batch(self, index: np.ndarray, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """Copies of the records at the indices int64 [n], in [0, len(self)): [n, …] each.

        Args:
            names: of the fields to read; None = all.

        Raises:
            IndexError: an index is out of range.
            DamagedCheckpointError: a file was cut off, or a record is not what was written.
        """
        with self._guard:
            numbers = np.asarray(index, np.int64)
            if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(self):
                raise IndexError(f"indices from {numbers.min()} to {numbers.max()} of a ring of {len(self)} records")
            numbers = numbers + (self._total - len(self))
            return self._files.read(numbers, self.fields if names is None else names)

    def state_dict(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps: plain values by which :meth:`load_state_dict` finds these contents. All that
        was appended is on the disk."""
        with self._guard:
            self._files.sync()
            self._taken = [*self._taken, self._total][-TAKEN:]
            return {"format": FORMAT, "total": self._total, "chain": self._chain, "capacity": self.capacity}

    def saved(self, state: Mapping[str, Any]) -> None:
        """Says that the checkpoint with this state is whole on the disk. What only earlier ones than the last
        :data:`KEPT` need is deleted from now on. Another thread may call it.

        Without these calls the last :data:`TAKEN` states that were given can be returned to.
        """
        with self._guard:
            self._keep([*self._header.saved, int(state["total"])])
            self._taken = [total for total in self._taken if total > state["total"]]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Returns to the contents of a checkpoint. Nothing is deleted or written before the next :meth:`append`.

        Raises:
            CheckpointError: the state is of another format, its records were deleted, or others stand in their place.
            DamagedCheckpointError: a file is damaged.
        """
        with self._guard:
            if state.get("format") != FORMAT or state.get("capacity") != self.capacity:
                raise CheckpointError(
                    f"the checkpoint's replay has format {state.get('format')} and {state.get('capacity')} records, "
                    f"expected {FORMAT} and {self.capacity}",
                    f"go on with the configuration and version of embodied that wrote it, or {ANEW}",
                )
            total, end = int(state["total"]), 0
            self._check_there(max(0, total - self.capacity), total)
            number, chain = max(0, total - self.capacity), None if total > self.capacity else 0
            for block in self._files.small_blocks(number, total):
                chain = chained(block, chain, f"{self.folder}, record {number}")
                self._mark(number, {name: block[name] for name in block.dtype.names or ()})
                number, end = number + len(block), int(block[CHAIN][-1])
            if end != int(state["chain"]):
                raise CheckpointError(
                    f"the records of this checkpoint are no longer in {self.folder}: a run went on from an earlier "
                    "one, and has written others in their place",
                    f"go on from the newest checkpoint (runner.resume_dir=auto), or {ANEW}",
                )
            self._total, self._chain, self._taken, self._begun = total, end, [total], False
            self._waits = self._waits and total > 0
            self._listed.clear()

    def _check_there(self, first: int, end: int) -> None:
        """Raises errors for records ``first`` … ``end`` - 1 whose files are gone or cut off."""
        wanted = range(first // self._layout.per_file, -(-end // self._layout.per_file))
        there = self._files.there()
        if missing := [number for number in wanted if number not in there]:
            raise CheckpointError(
                f"of the replayed records {first} to {end - 1} of this checkpoint {len(missing)} files are gone from "
                f"{self.folder}: it keeps those of the last {KEPT} checkpoints",
                f"go on from a later checkpoint, restore {self.folder} from a copy, or {ANEW}",
            )
        for number in wanted:
            if not self._files.whole(number):
                raise DamagedCheckpointError(
                    f"{self._files.path(number)} has {self._files.path(number).stat().st_size} bytes, expected "
                    f"{self._layout.file_bytes}",
                    f"restore it from a copy, or {ANEW}",
                )

    def close(self) -> None:
        """Closes the files, and lets another process open the folder."""
        self._files.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
