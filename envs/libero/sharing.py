"""Lets the env slots of a process share its simulators.

Of the slots that are in one task, one has the simulator; the others' states are kept beside it, and change places with
that one's when their turn comes: 0.14 ms of CPU time, once a chunk.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakSet, ref

from .build import blamed_on
from .memory import explained, function
from .rendering import Pictures
from .simulator import WAIT_ACTION, Suspended, TaskSimulator

Key = tuple[str, Pictures, object]  # BDDL file, what is drawn, whose it is alone (None: everybody's)


@dataclass(eq=False)
class Shared:
    """A simulator that several env slots share, one at a time.

    Args:
        ahead: built before a slot was in its task, which any may come to.
    """

    simulator: TaskSimulator
    ahead: bool = False
    users: WeakSet[EnvSlot] = field(default_factory=WeakSet)  # slots that were in its task, and may come back
    holder: Callable[[], EnvSlot | None] = lambda: None  # a weak reference to the slot whose state it has

    def turn_to(self, slot: EnvSlot) -> None:
        """Stores the state of the slot that used the simulator last, before ``slot`` uses it. The state of ``slot`` is
        then to be set."""
        holder = self.holder()
        if holder is not None and holder is not slot:
            holder.suspended = self.simulator.suspend(holder.suspended)
        self.holder = ref(slot)

    @property
    def is_idle(self) -> bool:
        """Whether no slot is in its task now."""
        return all(slot.shared is not self for slot in self.users)


class Simulators:
    """The simulators of a process, by task, the one used longest ago first."""

    def __init__(self) -> None:
        self._shared: OrderedDict[Key, Shared] = OrderedDict()
        self._evicts = False  # simulators are closed to make room, so that they are built again and again

    def take(self, slot: EnvSlot, key: Key, limit: int) -> Shared:
        """Returns the simulator of a task for a slot, and builds it if there is none."""
        if key not in self._shared:
            self._make_room(limit)
            bddl_file, pictures, _ = key
            with explained(Path(bddl_file).stem), blamed_on(Path(bddl_file)):
                self._shared[key] = Shared(TaskSimulator(bddl_file, pictures, keep_assets=self._evicts))
        self._shared.move_to_end(key)
        shared = self._shared[key]
        shared.users.add(slot)
        return shared

    def build_ahead(self, bddl_file: str, pictures: Pictures, draw: bool, keep_assets: bool) -> None:
        """Builds the simulator of a task before a slot is in it, for the forks of this process.

        Args:
            draw: make its GL context and draw, too.
            keep_assets: as :class:`TaskSimulator` takes it.
        """
        key = (bddl_file, pictures, None)
        if key in self._shared:
            return
        with explained(Path(bddl_file).stem), blamed_on(Path(bddl_file)):
            simulator = TaskSimulator(bddl_file, pictures, keep_assets)
        simulator.step(WAIT_ACTION)  # what a process's first step loads and compiles, its forks then share
        if draw:
            os.environ.setdefault(
                "MESA_SHADER_CACHE_DISABLE", "true"
            )  # Mesa writes that cache in a thread, lost by forks
            for camera in pictures.cameras:
                simulator.render(camera)
        self._shared[key] = Shared(simulator, ahead=True)

    def _make_room(self, limit: int) -> None:
        """Closes simulators until another may be built; none that a slot is in, for which it would be built again at
        that slot's next turn."""
        idle = [key for key, shared in self._shared.items() if shared.is_idle]
        for key in idle[: max(0, len(self._shared) + 1 - limit)]:
            self._shared.pop(key).simulator.close()
            self._evicts = True

    def forget(self, slot: EnvSlot) -> None:
        """Removes a slot; closes simulators that no other slot uses."""
        for key, shared in [*self._shared.items()]:
            shared.users.discard(slot)
            if not shared.users and not shared.ahead:
                self._shared.pop(key).simulator.close()


_OF_PROCESS = Simulators()
build_ahead = _OF_PROCESS.build_ahead


def can_share() -> bool:
    """Returns whether this mujoco lets slots change places in a simulator."""
    return function("mj_copyData") is not None


class EnvSlot:
    """An env slot among those that share the simulators of this process.

    Args:
        limit: simulators that the process keeps. Those that a slot is in are kept beyond that.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.shared: Shared | None = None  # the simulator of the task that it is in
        self.suspended: Suspended | None = None  # the slot's state while another has its simulator

    def enter(self, bddl_file: str, pictures: Pictures) -> TaskSimulator:
        """Switches the slot to a task. The simulator may hold another slot's state: set this slot's at once."""
        self._leave()
        alone = None if can_share() else self
        self.shared = _OF_PROCESS.take(self, (bddl_file, pictures, alone), self.limit)
        self.shared.turn_to(self)
        return self.shared.simulator

    @property
    def simulator(self) -> TaskSimulator:
        """The simulator with this slot's state. Another slot's turn may come before the next use: ask again."""
        shared = self.shared
        assert shared is not None, "reset() comes first"
        if shared.holder() is not self:
            assert self.suspended is not None
            shared.turn_to(self)
            shared.simulator.resume(self.suspended)
        return shared.simulator

    def scene(self) -> Any:
        """The slot's ``experts.Scene``, for scripts that go on after the turns of other slots."""
        return _Scene(self)

    def _leave(self) -> None:
        if self.shared is not None and self.shared.holder() is self:
            self.shared.holder = lambda: None
        self.shared = self.suspended = None

    def close(self) -> None:
        self._leave()
        _OF_PROCESS.forget(self)


class _Scene:
    """Asks for the simulator anew at each reading."""

    def __init__(self, slot: EnvSlot) -> None:
        self._slot = slot

    def __getattr__(self, name: str) -> Any:
        return getattr(self._slot.simulator, name)
