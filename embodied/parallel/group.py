"""A group of processes with its roles and its collectives, as its launcher starts it: one process a device.

    torchrun --standalone --nproc-per-node=8 -m embodied.train …

| role | its processes |
|---|---|
| rollout | host env workers and collect episodes |
| train | update the policy |

A single process is a :class:`Group` of size 1: nothing is started, and every method below returns what it was given.
What processes exchange is small (results of episodes, flags, sums) except for gradients and weights. Every method that
exchanges something is a collective, which all processes must call in the same order, except :meth:`Group.post` and
:meth:`Group.read`.
"""

from __future__ import annotations

import base64
import copy
import json
import os
import pickle
import time
import traceback
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

from embodied.errors import ConfigError, EmbodiedError
from embodied.parallel import transfers
from embodied.parallel.exchanges import Exchanges, collective, lost_rank
from embodied.parallel.placement.launcher import Launcher, launched_by
from embodied.parallel.placement.seat import ABSENT as ABSENT
from embodied.parallel.placement.seat import Seat
from embodied.parallel.placement.table import EVERY_ROLE as EVERY_ROLE
from embodied.parallel.placement.table import PlacementTable
from embodied.parallel.placement.table import Role as Role

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
COMM = 15  # letters of a process's name that Linux keeps
NOTICE_S = 10.0  # launchers look for processes that have ended many times a second, on the machine of each
STORE_LIMIT = 2**20  # bytes of one value in torch's store, which refuses more than 8 MiB


class Group(Seat, Exchanges):
    """Processes that work together, as one of them sees them.

    Args:
        rank: of this process, 0 … size − 1; rank 0 owns the run's folder and speaks.
        local_rank: the same among the processes of this machine, of which there are ``local_size``.
        roles: what each of the processes does.
        processes: torch's process group of those that are not all of a run (:meth:`part`); None = all.
        launcher: who has started them, for texts.
        members: their ranks in the run; None = all.
    """

    def __init__(
        self, rank: int = 0, size: int = 1, local_rank: int = 0, local_size: int = 1,
        roles: frozenset[Role] = EVERY_ROLE, processes: Any = None, launcher: Launcher = "torchrun",
        members: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        self.rank, self.size, self.local_rank, self.local_size = rank, size, local_rank, local_size
        self.roles, self._called, self._processes, self.launcher = roles, "rank", processes, launcher
        self.members = tuple(range(size) if members is None else members)
        self._is_all, self._with = members is None, dict[Role, tuple[int, ...]]()
        self._parts: dict[Role, Any] = {}  # torch's process group of each role
        self._patience: timedelta | None = None  # None: not connected
        self._was_connected = False
        self._store: Any = None
        self._posted: set[str] = set()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Group:
        """Makes the group of all processes of a run, as torchrun describes them; a group of one where it says nothing.

        Raises:
            ConfigError: the description is incomplete, or a number in it is none or out of range.
        """
        size, launcher = _number(environment, "WORLD_SIZE", "1"), launched_by(environment) or "torchrun"
        if size == 1:
            return cls(launcher=launcher)
        missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in environment]
        if missing:
            raise ConfigError(
                f"WORLD_SIZE is {size} and {', '.join(missing)} is not set",
                "start several processes with torchrun, or unset WORLD_SIZE for a run of one process",
            )
        local_size = _number(environment, "LOCAL_WORLD_SIZE", str(size), most=size)
        rank = _number(environment, "RANK", least=0, most=size - 1)
        local_rank = _number(environment, "LOCAL_RANK", least=0, most=local_size - 1)
        return cls(rank, size, local_rank, local_size, launcher=launcher)

    def with_roles(self, ranks: Mapping[Role, Sequence[int]]) -> Group:
        """Says which ``ranks`` have each role, and returns the group itself. Call it before the processes connect.

        >>> world = Group(rank=2, size=3).with_roles({"train": [0], "rollout": [1, 2]})
        >>> world.of("rollout").rank, world.of("train").here
        (1, False)
        """
        self._with = {role: tuple(found) for role, found in ranks.items() if len(found) < self.size}
        return self

    def with_table(self, table: PlacementTable) -> Group:
        """Says where all processes of the run are and what they do, and returns the group itself. Call it before the
        processes connect."""
        self.table = table
        return self.with_roles({role: table.ranks_of(role) for role in sorted(EVERY_ROLE)})

    def of(self, role: Role) -> Group:
        """The group of the processes that have ``role``; this one if all have it. A process that lacks the role
        gets that group, too, with the rank :data:`ABSENT`.

        Raises:
            ConfigError: no process has it.
        """
        found = self._with.get(role, self.members if role in self.roles else ())
        if not found:
            raise ConfigError(
                f"no process of this run has the role '{role}', its {self.size} processes have: "
                f"{', '.join(sorted(self.roles)) or 'none'}",
                f"start processes with the role '{role}'",
            )
        return self if role not in self._with else self._of_members(found, self._parts.get(role))

    @property
    def is_split(self) -> bool:
        """True if some processes lack a role."""
        return bool(self._with)

    def _of_members(self, members: Sequence[int], processes: Any) -> Group:
        """Makes the group of some processes, given by their ranks in the run."""
        place = self.members[self.rank] if self.here else ABSENT
        node = self.node_of(place if place != ABSENT else members[0])
        near = [rank for rank in members if self.node_of(rank) == node] or [members[0]]
        own = Group(
            members.index(place) if place in members else ABSENT, len(members),
            near.index(place) if place in near else 0, len(near), self.roles, processes, self.launcher, members,
        )  # fmt: skip
        own._patience, own._store, own._was_connected = self._patience, self._store, self._was_connected
        own._called, own.table = self._called, self.table
        return own

    def part(self, parts: Sequence[Sequence[int]]) -> Group:
        """Splits the group; returns the group of the processes that are in one part with this one. A collective of all
        processes of the run; one that is in no part gets the first, as :data:`ABSENT`.

        Args:
            parts: ranks of each part, the same on all ranks; each rank is in one of them at most.
        """
        in_run = [[self.members[rank] for rank in ranks] for ranks in parts]
        own, mine = next((ranks for ranks in parts if self.rank in ranks), None), None
        if self._patience is not None and max(map(len, parts)) > 1:
            import torch.distributed as dist

            with collective(self.members[self.rank]):
                made = [dist.new_group(ranks, timeout=self._patience) for ranks in in_run]
            mine = None if own is None or len(own) == 1 else made[parts.index(own)]
        number = 0 if own is None else parts.index(own)
        found = Group(
            ABSENT if own is None else own.index(self.rank), len(parts[number]), self.local_rank, self.local_size,
            self.roles, mine, self.launcher, in_run[number],
        )  # fmt: skip
        found._patience = self._patience
        return found

    def beside(self) -> Group:
        """Returns the group of the same processes for the collectives of another thread, which may run at the same time
        as those of this one. A collective of all processes of the run."""
        own = copy.copy(self)
        if self._patience is not None:
            import torch.distributed as dist

            with collective(self.members[self.rank]):
                ranks = None if self._is_all else list(self.members)
                own._processes = dist.new_group(ranks, timeout=self._patience)
        return own

    @property
    def is_all(self) -> bool:
        """True if these are all processes of the run."""
        return self._is_all

    @property
    def processes(self) -> Any:
        """torch's process group; None = that of all processes, or there is none."""
        return self._processes

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def speaks(self) -> bool:
        """True if this process prints its errors. Before the processes connect, all of a machine have the same ones."""
        return self._was_connected or self.local_rank == 0

    @property
    def share_note(self) -> str:
        """Note beside a count of this process alone, such as `` (rank 1)``; empty in a group of one."""
        return f" (rank {self.rank})" if self.size > 1 else ""

    @property
    def name(self) -> str:
        """Prefix of this process's lines, such as ``rank 1: ``; empty in a group of one."""
        return f"{self._called} {self.rank}: " if self.size > 1 else ""

    def call(self, name: str) -> None:
        """Names the processes (``actor.group_name``): lines begin with it, and ps and top show it."""
        self._called = name
        own = f"-{self.rank}" if self.size > 1 else ""
        with suppress(OSError):  # not every system has this file
            Path("/proc/self/comm").write_text(name[: COMM - len(own)] + own, encoding="utf-8")

    @contextmanager
    def connected(self, on_gpu: bool, timeout_s: float, init_timeout_s: float | None = None) -> Iterator[None]:
        """Connects the processes for the time of the block: gloo between CPUs, NCCL between GPUs.

        Args:
            timeout_s: how long a process waits for the others in a collective, seconds.
            init_timeout_s: how long it waits for them to come; None = the same.

        Raises:
            RankError: a process did not come.
        """
        if self.size == 1:
            yield
            return
        import torch.distributed as dist

        patience, to_come = timedelta(seconds=timeout_s), timedelta(seconds=init_timeout_s or timeout_s)
        with collective(self.members[self.rank]):
            store, _, _ = next(dist.rendezvous("env://", self.rank, self.size, timeout=to_come))
            store.set_timeout(patience)
            self._store = dist.PrefixStore("embodied", store)
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
                store=dist.PrefixStore("group", store), rank=self.rank, world_size=self.size, timeout=patience,
            )  # fmt: skip
        self._was_connected, self._patience = True, patience
        with collective(self.members[self.rank]):
            self._parts = {role: dist.new_group(list(m), timeout=patience) for role, m in sorted(self._with.items())}
        try:
            yield
        finally:
            self._store = self._patience = None
            self._parts = {}
            if transfers.finish():  # else the process leaves with the group
                dist.destroy_process_group()

    # -- who does what -----------------------------------------------------------------------------------------------

    def divide(self, count: int) -> int:
        """Returns this process's part of ``count`` things that are shared equally."""
        return count // self.size

    def share(
        self, items: Sequence[T], together: Callable[[T], Hashable] | None = None, room: Sequence[int] | None = None
    ) -> list[T]:
        """Returns this process's items: they are dealt in turn, those of an equal ``together(item)`` to one process.

        Args:
            room: how many of these keys each process can take, in all as many as there are; None = any number.

        >>> Group(rank=1, size=2).share("abcde")
        ['b', 'd']
        >>> Group(rank=1, size=2).share([3, 3, 8, 8, 5, 5], together=lambda item: item)
        [8, 8]
        """
        keys = [together(item) if together else index for index, item in enumerate(items)]
        owners = self.owners(keys, room)
        return [item for key, item in zip(keys, items, strict=True) if owners[key] == self.rank]

    def owners(self, keys: Iterable[K], room: Sequence[int] | None = None) -> dict[K, int]:
        """Returns which process gets each key: they are dealt in turn.

        Args:
            room: as in :meth:`share`.
        """
        owners, turns = dict[K, int](), cycle(range(self.size))
        left = None if room is None else list(room)
        for key in dict.fromkeys(keys):
            owners[key] = next(rank for rank in turns if left is None or left[rank])
            if left is not None:
                left[owners[key]] -= 1
        return owners

    # -- a message that waits ----------------------------------------------------------------------------------------

    def post(self, key: str, value: Any) -> None:
        """Publishes a value under ``key`` for the :meth:`read` of other processes. A value posted before stays."""
        if self.size == 1 or key in self._posted:
            return
        self._posted.add(key)
        text = base64.b64encode(pickle.dumps(value)).decode()
        parts = [text[i : i + STORE_LIMIT] for i in range(0, len(text), STORE_LIMIT)]
        with collective(self.members[self.rank]):
            for index, part in enumerate(parts):
                self._store.set(f"{key}/{index}", part)
            self._store.set(key, str(len(parts)))

    def read(self, key: str) -> Any:
        """Waits for a value that a process posts under ``key``, and returns it."""
        with collective(self.members[self.rank]):
            count = int(self._store.get(key))
            text = b"".join(self._store.get(f"{key}/{index}") for index in range(count))
        return pickle.loads(base64.b64decode(text))


def _number(environment: Mapping[str, str], name: str, default: str = "", least: int = 1, most: int = 1 << 30) -> int:
    """Reads a whole number from ``least`` to ``most``. Raises :class:`ConfigError` with the variable's name."""
    text = environment.get(name) or default
    if not text.strip().isdecimal() or not least <= int(text) <= most:
        raise ConfigError(
            f"the environment variable {name} is '{text}', expected a whole number from {least}"
            + (f" to {most}" if most < 1 << 30 else ""),
            "start several processes with torchrun, which sets it, or unset WORLD_SIZE for a run of one process",
        )
    return int(text)


@contextmanager
def ended_by(group: Group) -> Iterator[None]:
    """Tells the launcher what ended this process, for its report of the first failure.

    A process that only lost another is not the cause: it gives the launcher the time to see the other first, and is
    ended by it.
    """
    try:
        yield
    except Exception as error:
        launched = group.size > 1 or group.launcher != "torchrun"
        if group.size > 1 and lost_rank(error):
            time.sleep(NOTICE_S)
        elif launched and (file := os.environ.get("TORCHELASTIC_ERROR_FILE")):
            shown = str(error) if isinstance(error, EmbodiedError) else traceback.format_exc()
            told = {"message": str(error), "extraInfo": {"py_callstack": shown, "timestamp": str(int(time.time()))}}
            Path(file).write_text(json.dumps({"message": told}), encoding="utf-8")
        raise
